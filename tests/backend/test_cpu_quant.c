/* Layers with weights in blocks on the CPU, with every set of instructions that this machine has:
 * against weights decoded and multiplied in double, within what rounding x to 8 or 16 bits allows. */
#include "backend/cpu/quant_kernels.h"
#include "backend/backend.h"
#include "ops/infer.h"
#include "tensor/quant.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const km_dtype blocks[] = {KM_Q4_0, KM_Q4_1, KM_Q5_0, KM_Q5_1,   KM_Q8_0,   KM_Q2_K, KM_Q3_K,
                                  KM_Q4_K, KM_Q5_K, KM_Q6_K, KM_IQ4_NL, KM_IQ4_XS, KM_MXFP4};
#define BLOCKS ((int)(sizeof blocks / sizeof *blocks))

static km_ctx *ctx;

static void begin(int threads) {
    ctx = km_ctx_make(km_cpu_device(), threads, NULL);
    assert_non_null(ctx);
    ctx->no_grad++;
}

static void end(void) {
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_ctx_free(ctx);
}

/* Makes the ith set the one in use; false when it is not here. *more: there are further ones. */
static bool use(int i, bool *more) {
    *more = km_quant_kernels_name(i + 1) != NULL;
    return km_quant_choose(i);
}

static void use_best(void) {
    for (int i = 0; km_quant_kernels_name(i); i++) km_quant_choose(i);
}

static double number(uint32_t seed, int64_t i) { /* in [-1, 1), by place alone */
    uint32_t x = (uint32_t)i * 2654435761u + seed * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return (double)x / 2147483648.0 - 1;
}

static float *floats(uint32_t seed, int64_t n) {
    float *p = malloc((size_t)n * sizeof *p + 1);
    for (int64_t i = 0; i < n; i++) p[i] = (float)(number(seed, i) * (1 + 2 * (i % 7 == 0)));
    return p;
}

/* A weight that lies in exactly its own bytes, so that a sanitizer sees what is read behind it. */
typedef struct weight {
    km_tensor *t;
    void *data;
    float *value; /* as floats */
} weight;

static weight weight_new(km_dtype d, uint32_t seed, int64_t outs, int64_t in) {
    weight w;
    float *f = floats(seed, outs * in);
    w.data = malloc((size_t)km_dtype_bytes(d, outs * in) + (outs ? 0 : 1));
    w.value = f;
    if (km_dtype_is_block(d)) { /* finding the best codes takes long: every fifth row is the same */
        int64_t bytes = km_dtype_bytes(d, in), made = outs < 5 ? outs : 5;
        km_quantise(d, f, NULL, made * in, w.data);
        for (int64_t o = made; o < outs; o++)
            memcpy((char *)w.data + o * bytes, (char *)w.data + o % 5 * bytes, (size_t)bytes);
        km_dequantise(d, w.data, outs * in, f);
    } else {
        for (int64_t i = 0; i < outs * in; i++) {
            uint16_t h = d == KM_F16 ? km_f32_to_f16(f[i]) : km_f32_to_bf16(f[i]);
            if (d == KM_F32)
                ((float *)w.data)[i] = f[i];
            else
                ((uint16_t *)w.data)[i] = h;
            if (d != KM_F32) f[i] = d == KM_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
        }
    }
    w.t = km_wrap(ctx, "w", d, KM_SHAPE(outs, in), w.data, free, w.data);
    assert_non_null(w.t);
    return w;
}

static void weight_free(weight *w) {
    km_release(w->t);
    free(w->value);
}

/* Row r of x times row o of w, and how far the rounding of x may take a kernel from it. */
static double product(const float *x, const weight *w, int64_t r, int64_t o, int64_t in,
                      bool exact_x, double *bound) {
    double sum = 0, size = 0;
    *bound = 0;
    for (int64_t g = 0; g < in; g += 32) {
        double most = 0, weights = 0;
        for (int64_t i = g; i < g + 32 && i < in; i++) {
            double a = x[r * in + i], b = w->value[o * in + i];
            sum += a * b;
            size += fabs(a * b);
            weights += fabs(b);
            if (fabs(a) > most) most = fabs(a);
        }
        if (!exact_x) *bound += weights * most / 254;
    }
    /* Codes far from zero and their offset cancel: what they lose goes with the largest code. */
    *bound += 4e-5 * size + (exact_x ? 0 : 1e-5 * *bound * 254);
    return sum;
}

static km_tensor *layer(const float *x, int64_t rows, int64_t in, const weight *w) {
    km_tensor *xt = km_from_data(ctx, KM_F32, KM_SHAPE(rows, in), x), *out[3];
    assert_int_equal(km_linears(ctx, xt, &w->t, NULL, 1, out), KM_OK);
    return out[0];
}

static void check_layer_of(km_dtype d, int bits, int64_t rows, int64_t in, int64_t outs,
                           const char *set) {
    float *x = floats(7, rows * in);
    weight w = weight_new(d, 3, outs, in);
    km_ctx_set_activations(ctx, bits);
    km_tensor *y = layer(x, rows, in, &w);
    const float *got = km_tensor_ptr(y);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < outs; o++) {
            double bound, want = product(x, &w, r, o, in, !km_dtype_is_block(d), &bound);
            if (fabs(got[r * outs + o] - want) <= bound) continue;
            fail_msg("%s, %s, %d bits, %lld x %lld x %lld: %g where %g +- %g is wanted, at "
                     "(%lld, %lld)",
                     set, km_dtype_name(d), bits, (long long)rows, (long long)in, (long long)outs,
                     (double)got[r * outs + o], want, bound, (long long)r, (long long)o);
        }
    weight_free(&w);
    free(x);
    km_step_end(ctx);
}

static void check_layer(km_dtype d, int64_t rows, int64_t in, int64_t outs, const char *set) {
    check_layer_of(d, 8, rows, in, outs, set);
    check_layer_of(d, 16, rows, in, outs, set);
}

/* How far a layer is from exact products: root mean square, against that of the products. */
static double distance(km_dtype d, int bits, int64_t rows) {
    const int64_t in = 512, outs = 36;
    float *x = floats(11, rows * in);
    weight w = weight_new(d, 5, outs, in);
    double apart = 0, size = 0, bound;
    km_ctx_set_activations(ctx, bits);
    const float *y = km_tensor_ptr(layer(x, rows, in, &w));
    for (int64_t i = 0; i < rows * outs; i++) {
        double want = product(x, &w, i / outs, i % outs, in, true, &bound);
        apart += (y[i] - want) * (y[i] - want);
        size += want * want;
    }
    weight_free(&w);
    free(x);
    km_step_end(ctx);
    return sqrt(apart / size);
}

static void sixteen_bits_are_many_times_closer_than_eight(void **state) {
    static const int64_t rows[] = {1, 5, 18};
    bool more = true;
    begin(2);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int b = 0; b < BLOCKS; b++)
            for (int r = 0; r < 3; r++) {
                double fine = distance(blocks[b], 16, rows[r]);
                double coarse = distance(blocks[b], 8, rows[r]);
                bool tiles = rows[r] > KM_FEW_ROWS && km_quant_kernels_at(i)->tiles;
                if (tiles ? fine < 3e-4 && coarse == fine /* tiles have 16 bits whatever is asked */
                          : fine < (rows[r] <= KM_FEW_ROWS ? 1e-4 : 4e-4) && coarse > 2e-3 &&
                                coarse < 2e-2)
                    continue;
                fail_msg("%s, %s, %lld rows: %g with 16 bits, %g with 8", km_quant_kernels_name(i),
                         km_dtype_name(blocks[b]), (long long)rows[r], fine, coarse);
            }
    }
    end();
    use_best();
}

/* Weights and inputs whose products come as near to the end of 32 bits as they can. */
static void the_largest_sums_do_not_overflow(void **state) {
    bool more = true;
    begin(1);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int b = 0; b < BLOCKS; b++)
            for (int kind = 0; kind < 3; kind++) {
                const int64_t in = 256, outs = 3, rows = 18;
                static const float sizes[] = {1, 1e30f, 1e-25f};
                float *x = malloc((size_t)(rows * in) * sizeof *x);
                weight w = weight_new(blocks[b], 3, outs, in);
                for (int64_t k = 0; k < rows * in; k++) /* in line with the weights: all add up */
                    x[k] = w.value[k % in] * sizes[kind];
                for (int64_t n = 1; n <= rows; n += 17) {
                    const float *y = km_tensor_ptr(layer(x, n, in, &w));
                    double bound, want = product(x, &w, 0, 0, in, true, &bound);
                    for (int64_t r = 0; r < n; r++)
                        assert_true(fabs(y[r * outs] - want) <= 1e-3 * want);
                }
                weight_free(&w);
                free(x);
                km_step_end(ctx);
            }
    }
    end();
    use_best();
}

static void every_type_is_multiplied_as_its_values_are(void **state) {
    static const int64_t rows[] = {1, 2, 5, 16, 17, 64};
    static const struct { int64_t in, outs; } sizes[] = {{256, 1}, {768, 37}, {512, 70}};
    bool more = true;
    begin(2);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int b = 0; b < BLOCKS; b++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                for (size_t s = 0; s < 3; s++)
                    if (rows[r] * sizes[s].in <= 20000 || s == 0)
                        check_layer(blocks[b], rows[r], sizes[s].in, sizes[s].outs,
                                    km_quant_kernels_name(i));
    }
    end();
    use_best();
}

static void rows_may_end_within_a_step(void **state) {
    static const int64_t lengths[] = {32, 64, 96, 224, 288, 576, 992};
    bool more = true;
    begin(2);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int b = 0; b < BLOCKS; b++)
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
                if (km_dtype_block(blocks[b]) == 32) {
                    check_layer(blocks[b], 1, lengths[k], 5, km_quant_kernels_name(i));
                    check_layer(blocks[b], 6, lengths[k], 33, km_quant_kernels_name(i));
                    check_layer(blocks[b], 19, lengths[k], 3, km_quant_kernels_name(i));
                }
    }
    end();
    use_best();
}

static void weights_of_floats_go_with_inputs_of_another_dtype(void **state) {
    static const km_dtype kinds[] = {KM_F32, KM_F16, KM_BF16};
    bool more = true;
    begin(2);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int k = 0; k < 3; k++)
            for (int64_t rows = 1; rows < 30; rows += 8) {
                check_layer(kinds[k], rows, 131, 37, km_quant_kernels_name(i));
                check_layer(kinds[k], rows, 256, 4, km_quant_kernels_name(i));
            }
    }
    end();
    use_best();
}

/* The same rows, all at once on one thread and on two, and one after the other. */
static void check_same_bits(km_dtype d, int bits, int64_t rows, int64_t in, int64_t outs) {
    int64_t alone = rows > KM_FEW_ROWS ? KM_FEW_ROWS + 1 : 1; /* as few as take the same path */
    float *x = floats(7, rows * in), *keep = malloc((size_t)(rows * outs) * sizeof *keep);
    for (int threads = 1; threads <= 2; threads++) {
        begin(threads);
        km_ctx_set_activations(ctx, bits);
        weight w = weight_new(d, 3, outs, in);
        km_tensor *y = layer(x, rows, in, &w);
        if (threads == 1)
            memcpy(keep, km_tensor_ptr(y), (size_t)(rows * outs) * sizeof *keep);
        else
            assert_memory_equal(keep, km_tensor_ptr(y), (size_t)(rows * outs) * sizeof *keep);
        for (int64_t r = 0; r + alone <= rows; r += alone) {
            y = layer(x + r * in, alone, in, &w);
            assert_memory_equal(keep + r * outs, km_tensor_ptr(y),
                                (size_t)(alone * outs) * sizeof *keep);
        }
        weight_free(&w);
        end();
    }
    free(keep);
    free(x);
}

static void a_row_has_the_same_bits_alone_and_among_others(void **state) {
    static const km_dtype some[] = {KM_Q4_0, KM_Q4_1, KM_Q8_0, KM_Q4_K, KM_Q6_K, KM_F16, KM_F32};
    bool more = true;
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (size_t k = 0; k < sizeof some / sizeof *some; k++) {
            for (int bits = 8; bits <= 16; bits += 8) {
                check_same_bits(some[k], bits, 16, 512, 69);
                if (km_dtype_is_block(some[k])) check_same_bits(some[k], bits, 41, 768, 69);
            }
        }
    }
    use_best();
}

/* As in a step of many sequences: however many rows there are, each has the bits that it has alone. */
static void rows_of_a_step_have_the_bits_they_have_alone(void **state) {
    static const int64_t counts[] = {64, 2, 3, 5, 9, 17, 30};
    const int64_t outs = 69;
    bool more = true;
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        begin(2);
        ctx->rows_alone = 64;
        for (int k = 0; k <= BLOCKS; k++)
            for (int bits = 8; bits <= 16; bits += 8) {
                km_dtype d = k < BLOCKS ? blocks[k] : KM_F16;
                int64_t in = km_dtype_block(d) == 32 ? 576 : 512;
                float *x = floats(7, 64 * in), *keep = malloc((size_t)(64 * outs) * sizeof *keep);
                weight w = weight_new(d, 3, outs, in);
                km_ctx_set_activations(ctx, bits);
                for (int64_t r = 0; r < 64; r++)
                    memcpy(keep + r * outs, km_tensor_ptr(layer(x + r * in, 1, in, &w)),
                           (size_t)outs * sizeof *keep);
                for (size_t n = 0; n < sizeof counts / sizeof *counts; n++)
                    assert_memory_equal(keep, km_tensor_ptr(layer(x, counts[n], in, &w)),
                                        (size_t)(counts[n] * outs) * sizeof *keep);
                weight_free(&w);
                free(keep);
                free(x);
                km_step_end(ctx);
            }
        end();
    }
    use_best();
}

static void layers_together_equal_layers_apart(void **state) {
    static const km_dtype kinds[] = {KM_Q4_K, KM_F16, KM_Q6_K};
    static const int64_t outs[] = {64, 33, 7};
    begin(2);
    for (int64_t rows = 1; rows <= 40; rows += 13) {
        float *x = floats(1, rows * 256);
        weight w[3];
        km_tensor *wt[3], *bt[3], *out[3];
        for (int i = 0; i < 3; i++) {
            float *b = floats(20 + (uint32_t)i, outs[i]);
            w[i] = weight_new(kinds[i], 9 + (uint32_t)i, outs[i], 256);
            wt[i] = w[i].t;
            bt[i] = i == 1 ? NULL : km_from_data(ctx, KM_F32, KM_SHAPE(outs[i]), b);
            free(b);
        }
        km_tensor *xt = km_from_data(ctx, KM_F32, KM_SHAPE(rows, 256), x);
        assert_int_equal(km_linears(ctx, xt, wt, bt, 3, out), KM_OK);
        for (int i = 0; i < 3; i++) {
            km_tensor *one;
            assert_int_equal(km_linears(ctx, xt, &wt[i], &bt[i], 1, &one), KM_OK);
            assert_memory_equal(km_tensor_ptr(out[i]), km_tensor_ptr(one),
                                (size_t)(rows * outs[i]) * sizeof(float));
        }
        for (int i = 0; i < 3; i++) weight_free(&w[i]);
        free(x);
        km_step_end(ctx);
    }
    end();
}

static void a_gated_layer_is_the_product_of_two(void **state) {
    static const struct {
        km_dtype gate, up;
        bool joined;
    } kinds[] = {{KM_Q4_0, KM_Q4_0, false},
                 {KM_Q4_K, KM_Q6_K, false},
                 {KM_F16, KM_Q8_0, false},
                 {KM_Q5_1, KM_Q5_1, true},
                 {KM_BF16, KM_BF16, true}};
    begin(2);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int64_t rows = 1; rows <= 40; rows += 13) {
            const int64_t in = 256, outs = 45;
            float *x = floats(1, rows * in);
            weight g = weight_new(kinds[k].gate, 4, kinds[k].joined ? 2 * outs : outs, in);
            weight u = weight_new(kinds[k].up, 5, outs, in);
            km_tensor *xt = km_from_data(ctx, KM_F32, KM_SHAPE(rows, in), x);
            km_tensor *both[2],
                *y = km_gated(ctx, xt, g.t, kinds[k].joined ? NULL : u.t, KM_ACT_SILU);
            both[0] = layer(x, rows, in, &g);
            if (kinds[k].joined)
                km_split(ctx, both[0], -1, 2, both);
            else
                both[1] = layer(x, rows, in, &u);
            km_tensor *want = km_mul(ctx, km_silu(ctx, both[0]), both[1]);
            assert_non_null(y);
            assert_non_null(want);
            for (int64_t i = 0; i < rows * outs; i++) {
                double a = ((float *)km_tensor_ptr(y))[i], b = ((float *)km_tensor_ptr(want))[i];
                assert_true(fabs(a - b) <= 1e-4 * (1 + fabs(b)));
            }
            weight_free(&g);
            weight_free(&u);
            free(x);
            km_step_end(ctx);
        }
    end();
}

static void what_is_not_a_number_stays_in_its_row(void **state) {
    bool more = true;
    begin(2);
    for (int i = 0; more; i++) {
        if (!use(i, &more)) continue;
        for (int64_t rows = 3; rows <= 23; rows += 20) {
            float *x = floats(7, rows * 512);
            x[512 + 300] = NAN;
            x[2 * 512 + 511] = INFINITY;
            weight w = weight_new(KM_Q4_1, 3, 9, 512);
            const float *y = km_tensor_ptr(layer(x, rows, 512, &w));
            for (int64_t r = 0; r < rows; r++)
                for (int64_t o = 0; o < 9; o++)
                    assert_int_equal(isfinite(y[r * 9 + o]) != 0, r != 1 && r != 2);
            weight_free(&w);
            free(x);
            km_step_end(ctx);
        }
    }
    end();
    use_best();
}

static void small_and_empty_inputs_give_zeros(void **state) {
    begin(2);
    for (int64_t rows = 0; rows <= 20; rows += 10) {
        float *x = calloc((size_t)(rows * 64) + 1, sizeof *x);
        for (int64_t i = 0; i < rows * 64; i += 3) x[i] = 1e-39f; /* too small to be scaled */
        weight w = weight_new(KM_Q8_0, 3, 40, 64);
        const float *y = km_tensor_ptr(layer(x, rows, 64, &w));
        for (int64_t i = 0; i < rows * 40; i++) assert_true(y[i] == 0);
        weight_free(&w);
        free(x);
        km_step_end(ctx);
    }
    end();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_bits_are_many_times_closer_than_eight),
        cmocka_unit_test(the_largest_sums_do_not_overflow),
        cmocka_unit_test(every_type_is_multiplied_as_its_values_are),
        cmocka_unit_test(rows_may_end_within_a_step),
        cmocka_unit_test(weights_of_floats_go_with_inputs_of_another_dtype),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_among_others),
        cmocka_unit_test(rows_of_a_step_have_the_bits_they_have_alone),
        cmocka_unit_test(layers_together_equal_layers_apart),
        cmocka_unit_test(a_gated_layer_is_the_product_of_two),
        cmocka_unit_test(what_is_not_a_number_stays_in_its_row),
        cmocka_unit_test(small_and_empty_inputs_give_zeros),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Fused attention and its gradient against plain loops in double: every instruction set and dtype,
 * odd lengths and head sizes, grouped heads, both memory layouts, and queries that see nothing. */
#include "cpu_product.h"
#include "backend/cpu/cpu.h"
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

static km_kernel kernel[KM_OP_COUNT];
static km_ctx one, three; /* by their number of threads */

static int set_up(void **state) {
    (void)state;
    km_cpu_register_attention(kernel);
    one.threads = km_threads_new(1);
    three.threads = km_threads_new(3);
    return one.threads && three.threads ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    km_ctx *all[] = {&one, &three};
    for (int i = 0; i < 2; i++) {
        km_threads_free(all[i]->threads);
        km_free_aligned(all[i]->scratch, all[i]->scratch_bytes);
    }
    return 0;
}

typedef struct shape {
    int64_t B, H, Hkv, Tq, Tk, D;
    bool causal;
    bool inside; /* heads lie side by side in memory: (B, T, H, D) */
    double scale;
} shape;

typedef struct box {
    km_tensor t;
    km_storage storage;
    int64_t count;
} box;

/* (B, heads, T, D), with a gap after each head's vector. D = 0 makes (B, heads, T). */
static void make(box *x, km_dtype dtype, const shape *s, int64_t heads, int64_t T, int64_t D,
                 uint32_t seed) {
    int64_t d = D ? D + 3 : 1;
    *x = (box){.t = {.dtype = dtype, .shape = {D ? 4 : 3, {s->B, heads, T, D}}}};
    x->t.stride[0] = heads * T * d;
    x->t.stride[1] = s->inside && D ? d : T * d;
    x->t.stride[2] = s->inside && D ? heads * d : d;
    x->t.stride[3] = 1;
    x->count = s->B * heads * T * d;
    x->storage.data = x->count ? cp_new(dtype, x->count, seed) : NULL;
    x->t.storage = &x->storage;
}

static double at(const box *x, int64_t b, int64_t h, int64_t t, int64_t i) {
    const int64_t *s = x->t.stride;
    return cp_get(x->storage.data, x->t.dtype, b * s[0] + h * s[1] + t * s[2] + i);
}

/* Whether every element outside the tensor is what cp_new put there. */
static bool gaps_intact(const box *x, uint32_t seed) {
    unsigned char *inside = calloc((size_t)x->count + 1, 1);
    const int64_t *n = x->t.shape.dim, *s = x->t.stride;
    bool intact = true;
    void *fresh = cp_new(x->t.dtype, x->count, seed);
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t t = 0; t < n[2]; t++)
                for (int64_t i = 0; i < n[3]; i++) inside[b * s[0] + h * s[1] + t * s[2] + i] = 1;
    for (int64_t i = 0; i < x->count; i++)
        intact = intact && (inside[i] ||
                            cp_get(x->storage.data, x->t.dtype, i) == cp_get(fresh, x->t.dtype, i));
    free(inside);
    free(fresh);
    return intact;
}

typedef struct answers { /* in double, row-major */
    double *o, *lse, *dq, *dk, *dv;
} answers;

static int64_t seen(const shape *s, int64_t t) {
    int64_t n = s->causal ? s->Tk - s->Tq + t + 1 : s->Tk;
    return n < 0 ? 0 : n > s->Tk ? s->Tk : n;
}

static double *zeros(int64_t n) { return calloc((size_t)n + 1, sizeof(double)); }

static answers solve(const shape *s, const box *q, const box *k, const box *v, const box *d_o) {
    int64_t nq = s->B * s->H * s->Tq, nk = s->B * s->Hkv * s->Tk, D = s->D;
    answers a = {zeros(nq * D), zeros(nq), zeros(nq * D), zeros(nk * D), zeros(nk * D)};
    double *p = zeros(s->Tk);
    for (int64_t b = 0; b < s->B; b++)
        for (int64_t h = 0; h < s->H; h++)
            for (int64_t t = 0; t < s->Tq; t++) {
                int64_t hk = h / (s->H / s->Hkv), n = seen(s, t), row = (b * s->H + h) * s->Tq + t;
                int64_t keys = (b * s->Hkv + hk) * s->Tk;
                double max = -INFINITY, sum = 0, delta = 0;
                for (int64_t j = 0; j < n; j++) {
                    p[j] = 0;
                    for (int64_t i = 0; i < D; i++) p[j] += at(q, b, h, t, i) * at(k, b, hk, j, i);
                    p[j] *= s->scale;
                    max = fmax(max, p[j]);
                }
                for (int64_t j = 0; j < n; j++) sum += p[j] = exp(p[j] - max);
                a.lse[row] = n ? max + log(sum) : -INFINITY;
                for (int64_t j = 0; j < n; j++) p[j] /= sum;
                for (int64_t j = 0; j < n; j++)
                    for (int64_t i = 0; i < D; i++) a.o[row * D + i] += p[j] * at(v, b, hk, j, i);
                for (int64_t i = 0; i < D; i++) delta += at(d_o, b, h, t, i) * a.o[row * D + i];
                for (int64_t j = 0; j < n; j++) {
                    double dp = 0;
                    for (int64_t i = 0; i < D; i++) dp += at(d_o, b, h, t, i) * at(v, b, hk, j, i);
                    double ds = s->scale * p[j] * (dp - delta);
                    for (int64_t i = 0; i < D; i++) {
                        a.dq[row * D + i] += ds * at(k, b, hk, j, i);
                        a.dk[(keys + j) * D + i] += ds * at(q, b, h, t, i);
                        a.dv[(keys + j) * D + i] += p[j] * at(d_o, b, h, t, i);
                    }
                }
            }
    free(p);
    return a;
}

/* A 16-bit o makes delta, and so the gradients, a little different from the exact ones. */
static double slack(km_dtype d) { return d == KM_F32 ? 1 : d == KM_F16 ? 600 : 5000; }

static void compare(const shape *s, const box *got, const double *want, const char *what,
                    double tolerance) {
    const int64_t *n = got->t.shape.dim;
    for (int64_t b = 0; b < n[0]; b++)
        for (int64_t h = 0; h < n[1]; h++)
            for (int64_t t = 0; t < n[2]; t++)
                for (int64_t i = 0; i < s->D; i++) {
                    double w = want[((b * n[1] + h) * n[2] + t) * s->D + i];
                    double g = at(got, b, h, t, i);
                    if (!(fabs(g - w) <= tolerance + cp_rounding(got->t.dtype, w)))
                        fail_msg("%s %s: %s(%lld, %lld, %lld, %lld) is %.9g, not %.9g "
                                 "(H %lld/%lld, T %lld/%lld, D %lld, causal %d)",
                                 km_isa_name(km_gemm_isa()), km_dtype_name(got->t.dtype), what,
                                 (long long)b, (long long)h, (long long)t, (long long)i, g, w,
                                 (long long)s->H, (long long)s->Hkv, (long long)s->Tq,
                                 (long long)s->Tk, (long long)s->D, s->causal);
                }
}

static void check(km_ctx *ctx, shape s, km_dtype dtype) {
    if (s.scale == 0) s.scale = 1 / sqrt((double)s.D);
    box q, k, v, o, lse, d_o, dq, dk, dv;
    make(&q, dtype, &s, s.H, s.Tq, s.D, 1);
    make(&k, dtype, &s, s.Hkv, s.Tk, s.D, 2);
    make(&v, dtype, &s, s.Hkv, s.Tk, s.D, 3);
    make(&d_o, dtype, &s, s.H, s.Tq, s.D, 4);
    make(&o, dtype, &s, s.H, s.Tq, s.D, 5);
    make(&lse, KM_F32, &s, s.H, s.Tq, 0, 6);
    make(&dq, dtype, &s, s.H, s.Tq, s.D, 7);
    make(&dk, dtype, &s, s.Hkv, s.Tk, s.D, 8);
    make(&dv, dtype, &s, s.Hkv, s.Tk, s.D, 9);
    answers a = solve(&s, &q, &k, &v, &d_o);

    km_params p = {.causal = s.causal, .f = {s.scale}};
    km_call forward = {.op = KM_OP_ATTENTION,
                       .n_in = 3,
                       .n_out = 2,
                       .p = &p,
                       .in = (km_tensor *[]){&q.t, &k.t, &v.t},
                       .out = (km_tensor *[]){&o.t, &lse.t}};
    assert_int_equal(kernel[KM_OP_ATTENTION](ctx, &forward), KM_OK);
    double spread = fmax(1, s.scale * sqrt((double)s.D)); /* an error of a score is one of exp's */
    compare(&s, &o, a.o, "o", 2e-6 * spread);
    for (int64_t i = 0; i < s.B * s.H * s.Tq; i++) {
        float got = ((float *)lse.storage.data)[i];
        if (isinf(a.lse[i]))
            assert_true(got == -INFINITY);
        else
            assert_true(fabs(got - a.lse[i]) <= 2e-6 * (1 + fabs(a.lse[i])));
    }

    km_call backward = {.op = KM_OP_ATTENTION_GRAD,
                        .n_in = 6,
                        .n_out = 3,
                        .p = &p,
                        .in = (km_tensor *[]){&d_o.t, &q.t, &k.t, &v.t, &o.t, &lse.t},
                        .out = (km_tensor *[]){&dq.t, &dk.t, &dv.t}};
    assert_int_equal(kernel[KM_OP_ATTENTION_GRAD](ctx, &backward), KM_OK);
    double tolerance = 4e-6 * slack(dtype) * spread * spread;
    compare(&s, &dq, a.dq, "dq", tolerance);
    compare(&s, &dk, a.dk, "dk", tolerance);
    compare(&s, &dv, a.dv, "dv", tolerance);

    box *outs[] = {&o, &dq, &dk, &dv}, *all[] = {&q, &k, &v, &o, &lse, &d_o, &dq, &dk, &dv};
    static const uint32_t seeds[] = {5, 7, 8, 9};
    for (int i = 0; i < 4; i++) assert_true(gaps_intact(outs[i], seeds[i]));
    for (int i = 0; i < 9; i++) free(all[i]->storage.data);
    free(a.o), free(a.lse), free(a.dq), free(a.dk), free(a.dv);
}

static void odd_lengths_and_head_sizes_match_plain_loops(void **state) {
    (void)state;
    static const int64_t T[] = {1, 2, 3, 5, 17, 31, 33, 64, 65, 127, 129};
    static const int64_t D[] = {1, 2, 7, 16, 24, 31, 64, 65, 80};
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        for (int i = isa; i < 11 * 9; i += 2) {
            shape s = {1 + i % 2, 2,     1 + i / 2 % 2, T[i % 11], T[i * 5 % 11],
                       D[i / 11], i % 2, i / 3 % 2,     0};
            check(i % 4 ? &three : &one, s, cp_dtypes[i % 7 % 3]);
        }
    }
}

static void long_causal_sequences_match(void **state) {
    (void)state;
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        for (int d = 0; d < CP_DTYPES; d++) {
            check(&three, (shape){1, 1, 1, 270, 270, 8, true, false, 0}, cp_dtypes[d]);
            check(&three, (shape){1, 4, 2, 100, 100, 16, true, true, 0.3}, cp_dtypes[d]);
            check(&one, (shape){1, 2, 1, 40, 400, 10, true, true, 0}, cp_dtypes[d]);
        }
    }
}

static void heads_of_up_to_256_are_computed(void **state) {
    (void)state;
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        check(&three, (shape){1, 2, 2, 40, 50, 256, true, true, 0}, KM_F32);
        check(&three, (shape){1, 1, 1, 10, 140, 200, false, false, 0}, KM_BF16);
        check(&one, (shape){1, 1, 1, 9, 9, 300, false, false, 0}, KM_F16);
    }
}

static void one_query_reads_a_long_history(void **state) {
    (void)state;
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        for (int i = 0; i < 4 * CP_DTYPES; i++) {
            km_dtype d = cp_dtypes[i % 3];
            check(&three, (shape){1, 1 + i / 3, 1, 1, 1100, 12, true, i % 2, 0}, d);
            check(&three, (shape){2, 2, 2, 1 + i % 4, 331, 20, true, i % 2, 0}, d);
            check(&one, (shape){1, 2, 2, 2, 40, 64, i % 2, false, 0}, d);
        }
    }
}

static void queries_that_see_no_key_give_zero(void **state) {
    (void)state;
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        check(&three, (shape){1, 2, 1, 100, 30, 8, true, false, 0}, KM_F32); /* the first 70 */
        check(&one, (shape){1, 1, 1, 4, 2, 8, true, false, 0}, KM_F16);      /* by dot products */
        check(&three, (shape){1, 2, 1, 5, 0, 8, false, false, 0}, KM_F32);   /* no keys at all */
        check(&one, (shape){1, 1, 1, 2, 0, 8, true, false, 0}, KM_BF16);
    }
}

static void empty_calls_do_nothing_and_keys_nobody_asks_get_no_gradient(void **state) {
    (void)state;
    check(&three, (shape){0, 2, 1, 5, 5, 8, false, false, 0}, KM_F32);
    check(&three, (shape){1, 2, 1, 0, 5, 8, false, false, 0}, KM_F32); /* dk = dv = 0 */
}

static void large_scores_do_not_overflow(void **state) {
    (void)state;
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        check(&three, (shape){1, 1, 1, 40, 40, 16, true, false, 60}, KM_F32);
        check(&three, (shape){1, 1, 1, 2, 300, 16, false, false, 60}, KM_F32);
    }
}

static void the_same_threads_give_the_same_bits(void **state) {
    (void)state;
    shape s = {1, 3, 3, 260, 260, 16, true, false, 0};
    if (!km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_AUTO)) fail();
    box in[6], out[2][5];
    for (int i = 0; i < 5; i++) make(&in[i], KM_F32, &s, 3, 260, 16, (uint32_t)i);
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 4; i++) make(&out[r][i], KM_F32, &s, 3, 260, 16, 9);
        make(&out[r][4], KM_F32, &s, 3, 260, 0, 9);
    }
    for (int round = 0; round < 6; round++) {
        box *o = out[round > 0];
        km_params p = {.causal = true, .f = {0.25}};
        km_call forward = {.op = KM_OP_ATTENTION,
                           .n_in = 3,
                           .n_out = 2,
                           .p = &p,
                           .in = (km_tensor *[]){&in[0].t, &in[1].t, &in[2].t},
                           .out = (km_tensor *[]){&o[0].t, &o[4].t}};
        km_call backward = {
            .op = KM_OP_ATTENTION_GRAD,
            .n_in = 6,
            .n_out = 3,
            .p = &p,
            .in = (km_tensor *[]){&in[3].t, &in[0].t, &in[1].t, &in[2].t, &o[0].t, &o[4].t},
            .out = (km_tensor *[]){&o[1].t, &o[2].t, &o[3].t}};
        assert_int_equal(kernel[KM_OP_ATTENTION](&three, &forward), KM_OK);
        assert_int_equal(kernel[KM_OP_ATTENTION_GRAD](&three, &backward), KM_OK);
        for (int i = 0; i < 5 && round; i++)
            assert_memory_equal(out[0][i].storage.data, out[1][i].storage.data,
                                (size_t)out[0][i].count * 4);
    }
    for (int i = 0; i < 5; i++) {
        free(in[i].storage.data);
        free(out[0][i].storage.data);
        free(out[1][i].storage.data);
    }
}

static void doubles_are_declined(void **state) {
    (void)state;
    shape s = {1, 1, 1, 2, 2, 2, false, false, 1};
    box q, lse;
    make(&q, KM_F32, &s, 1, 4, 4, 1);
    make(&lse, KM_F32, &s, 1, 4, 0, 1);
    q.t.dtype = KM_F64;
    km_params p = {.f = {1}};
    km_tensor *in[] = {&q.t, &q.t, &q.t, &q.t, &q.t, &lse.t}, *out[] = {&q.t, &lse.t, &q.t};
    km_call forward = {.op = KM_OP_ATTENTION, .n_in = 3, .n_out = 2, .in = in, .out = out, .p = &p};
    km_call back = {
        .op = KM_OP_ATTENTION_GRAD, .n_in = 6, .n_out = 3, .in = in, .out = out, .p = &p};
    assert_int_equal(kernel[KM_OP_ATTENTION](&one, &forward), KM_ERR_UNSUPPORTED);
    assert_int_equal(kernel[KM_OP_ATTENTION_GRAD](&one, &back), KM_ERR_UNSUPPORTED);
    assert_int_equal(one.error.code, KM_OK);
    free(q.storage.data);
    free(lse.storage.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_lengths_and_head_sizes_match_plain_loops),
        cmocka_unit_test(long_causal_sequences_match),
        cmocka_unit_test(heads_of_up_to_256_are_computed),
        cmocka_unit_test(one_query_reads_a_long_history),
        cmocka_unit_test(queries_that_see_no_key_give_zero),
        cmocka_unit_test(empty_calls_do_nothing_and_keys_nobody_asks_get_no_gradient),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(the_same_threads_give_the_same_bits),
        cmocka_unit_test(doubles_are_declined),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* Chains of elementwise ops on a GPU: the bits of the same ops one by one, in random programs of all
 * float types, in training steps and in graphs; and near the reference. Skipped where there is no
 * GPU. */
#include "backend/backend.h"
#include "backend/cuda/lane.h"
#include "chain_programs.h"
#include "support/engine.h"
#include <math.h>

static km_ctx *open_on(const char *device, bool fused) {
    setenv("KERMES_FUSE", fused ? "1" : "0", 1);
    km_ctx *ctx = km_ctx_new(device, 2);
    unsetenv("KERMES_FUSE");
    assert_non_null(ctx);
    return ctx;
}

/* Ops that ran in chains; closes the context. */
static uint64_t close_it(km_ctx *ctx, bool fused) {
    assert_ok(ctx);
    uint64_t ops = km_cuda_queue_of(ctx->lanes[0])->chain.ops;
    if (!fused) assert_int_equal(ops, 0);
    km_ctx_free(ctx);
    return ops;
}

/* Which NaN a NaN is, nobody promises. */
static bool is_nan_bits(km_dtype dtype, uint32_t bits) {
    uint32_t infinity = dtype == KM_F32 ? 0x7f800000u : dtype == KM_F16 ? 0x7c00u : 0x7f80u;
    return (bits & (dtype == KM_F32 ? 0x7fffffffu : 0x7fffu)) > infinity;
}

static bool same_bits(km_dtype dtype, const void *a, const void *b, size_t bytes) {
    size_t size = km_dtype_size(dtype);
    for (size_t i = 0; i < bytes; i += size) {
        uint32_t x = 0, y = 0;
        memcpy(&x, (const char *)a + i, size);
        memcpy(&y, (const char *)b + i, size);
        if (x != y && !(is_nan_bits(dtype, x) && is_nan_bits(dtype, y))) return false;
    }
    return true;
}

static void random_programs_have_the_bits_of_single_ops(void **state) {
    static const int64_t sizes[] = {1, 7, 64, 1000, 4099, 100001};
    uint64_t chained = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= 72; seed++) {
        km_dtype dtype = seed % 3 == 0 ? KM_F32 : seed % 3 == 1 ? KM_F16 : KM_BF16;
        int64_t n = sizes[seed / 3 % 6];
        void *left[2];
        size_t bytes = 0;
        for (int fused = 0; fused < 2; fused++) {
            km_ctx *ctx = open_on("cuda:0", fused);
            program p;
            program_start(ctx, &p, seed, seed % 2, dtype, n);
            program_run(ctx, &p, 10);
            left[fused] = program_end(ctx, &p, &bytes);
            chained += close_it(ctx, fused);
        }
        if (!same_bits(dtype, left[0], left[1], bytes))
            fail_msg("program %u of %s[%lld] differs", seed, km_dtype_name(dtype), (long long)n);
        free(left[0]);
        free(left[1]);
    }
    assert_true(chained > 1000);
}

static void random_programs_agree_with_the_reference(void **state) {
    (void)state;
    for (uint32_t seed = 100; seed < 124; seed++) {
        float *left[2];
        size_t bytes = 0;
        for (int fused = 0; fused < 2; fused++) {
            km_ctx *ctx = open_on(fused ? "cuda:0" : "ref", fused);
            program p;
            program_start(ctx, &p, seed, false, KM_F32, 3001);
            program_run(ctx, &p, 6);
            left[fused] = program_end(ctx, &p, &bytes);
            assert_ok(ctx);
            km_ctx_free(ctx);
        }
        for (size_t i = 0; i < bytes / sizeof(float); i++) {
            float off = fabsf(left[0][i] - left[1][i]);
            if (!(off <= 1e-3f + 1e-3f * fabsf(left[0][i])))
                fail_msg("program %u: %g is not %g", seed, (double)left[1][i], (double)left[0][i]);
        }
        free(left[0]);
        free(left[1]);
    }
}

/* ---- Training ---- */

#define WIDE 2050

static km_tensor *some(km_ctx *ctx, km_dtype dtype, float phase) {
    float v[WIDE];
    for (int i = 0; i < WIDE; i++) v[i] = 2 * sinf(phase + (float)i * 0.37f);
    return km_keep(ctx, km_cast(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(WIDE), v), dtype));
}

/* silu(x w) tanh(x + w) gelu(w), and a chain behind it */
static km_tensor *loss_of(km_ctx *ctx, km_tensor *x, km_tensor *w) {
    km_tensor *gate = km_silu(ctx, km_mul(ctx, x, w));
    km_tensor *y = km_mul(ctx, km_mul(ctx, gate, km_tanh(ctx, km_add(ctx, x, w))), km_gelu(ctx, w));
    y = km_sigmoid(ctx, km_clamp(ctx, km_mul_scalar(ctx, y, 0.7), -1, 1.5));
    return km_sum(ctx, y, NULL, 0, false);
}

static void gradients_have_the_bits_of_single_ops(void **state) {
    static const km_dtype dtypes[] = {KM_F32, KM_F16, KM_BF16};
    uint64_t chained = 0;
    (void)state;
    for (int d = 0; d < 3; d++) {
        size_t each = WIDE * km_dtype_size(dtypes[d]);
        char *got[2];
        for (int fused = 0; fused < 2; fused++) {
            km_ctx *ctx = open_on("cuda:0", fused);
            km_tensor *p[2] = {some(ctx, dtypes[d], 0), some(ctx, dtypes[d], 1)};
            for (int i = 0; i < 2; i++) km_require_grad(ctx, p[i], true);
            got[fused] = malloc(2 * each);
            for (int step = 0; step < 3; step++) { /* gradients add up */
                km_backward(ctx, loss_of(ctx, p[0], p[1]));
                km_step_end(ctx);
            }
            for (int i = 0; i < 2; i++)
                km_read(ctx, km_grad(p[i]), got[fused] + each * (size_t)i, each);
            for (int i = 0; i < 2; i++) km_release(p[i]);
            chained += close_it(ctx, fused);
        }
        assert_memory_equal(got[0], got[1], 2 * each);
        free(got[0]);
        free(got[1]);
    }
    assert_true(chained > 0);
}

/* ---- Graphs ---- */

typedef struct graph_step {
    km_tensor *x, *w, *y;
} graph_step;

/* y = y/2 + tanh(relu(x) w), kept between steps */
static void step(km_ctx *ctx, void *user) {
    graph_step *s = user;
    km_scope_begin(ctx);
    km_tensor *t = km_scope_end(ctx, km_tanh(ctx, km_mul(ctx, km_relu(ctx, s->x), s->w)));
    km_tensor *in[2] = {km_mul_scalar(ctx, s->y, 0.5), t};
    km_apply_into(ctx, KM_OP_ADD, in, 2, NULL, s->y);
}

static void replayed_chains_have_the_bits_of_single_ops(void **state) {
    float got[2][WIDE];
    (void)state;
    for (int fused = 0; fused < 2; fused++) {
        km_ctx *ctx = open_on("cuda:0", fused);
        graph_step s = {some(ctx, KM_F32, 0), some(ctx, KM_F32, 2), some(ctx, KM_F32, 3)};
        km_graph *graph = NULL;
        km_step_end(ctx);
        for (int i = 0; i < 6; i++) {
            float x[WIDE];
            for (int k = 0; k < WIDE; k++) x[k] = cosf((float)(i * k));
            assert_int_equal(km_write(ctx, s.x, x, sizeof x), KM_OK);
            if (fused)
                assert_int_equal(km_graph_run(ctx, &graph, 1, step, &s), KM_OK);
            else
                step(ctx, &s);
            km_step_end(ctx);
        }
        if (fused) assert_true(km_graph_captured(graph));
        assert_int_equal(km_read(ctx, s.y, got[fused], sizeof got[fused]), KM_OK);
        km_graph_free(graph);
        km_release(s.x);
        km_release(s.w);
        km_release(s.y);
        uint64_t chained = close_it(ctx, fused);
        assert_true(chained > 0 || !fused);
    }
    assert_memory_equal(got[0], got[1], sizeof got[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_have_the_bits_of_single_ops),
        cmocka_unit_test(random_programs_agree_with_the_reference),
        cmocka_unit_test(gradients_have_the_bits_of_single_ops),
        cmocka_unit_test(replayed_chains_have_the_bits_of_single_ops)};
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

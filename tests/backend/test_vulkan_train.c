/* Ops of training on a Vulkan device: each against the reference with no op sent elsewhere; and what does
 * go elsewhere comes back whole. train/vulkan_training has whole runs. */
#include "live_vulkan.h"
#include "ops/op.h"
#include "ops/verify.h"
#include <math.h>

typedef struct verdict {
    int failed, fell_back, checks;
    char first[256];
} verdict;

static void note(void *user, const km_verify_result *r, int index, int total) {
    verdict *v = user;
    (void)index;
    (void)total;
    v->checks++;
    if (!r->passed && !v->failed++)
        snprintf(v->first, sizeof v->first, "%s %s: %s", r->op, r->dtype, r->worst);
    v->fell_back += r->fallback;
}

static void ops_need_no_other_device(void **state) {
    const uint32_t floats = KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16);
    const struct {
        km_op op;
        uint32_t dtypes;
    } ops[] = {{KM_OP_ARANGE, KM_BIT(KM_F32) | KM_BIT(KM_I32) | KM_BIT(KM_I64)},
               {KM_OP_UNIFORM, floats},
               {KM_OP_NORMAL, KM_BIT(KM_F32)},
               {KM_OP_DROPOUT, floats},
               {KM_OP_NE, floats | KM_BIT(KM_I32) | KM_BIT(KM_I64) | KM_BIT(KM_I8)},
               {KM_OP_LE, KM_BIT(KM_F32) | KM_BIT(KM_I64)},
               {KM_OP_WHERE, floats | KM_BIT(KM_I64) | KM_BIT(KM_U8)},
               {KM_OP_MASKED_FILL, floats},
               {KM_OP_LAYER_NORM_GRAD, floats},
               {KM_OP_RMS_NORM_GRAD, floats},
               {KM_OP_CROSS_ENTROPY, floats},
               {KM_OP_CROSS_ENTROPY_GRAD, floats},
               {KM_OP_MSE, floats},
               {KM_OP_BCE, KM_BIT(KM_F32)},
               {KM_OP_MSE_GRAD, KM_BIT(KM_F32)},
               {KM_OP_BCE_GRAD, KM_BIT(KM_F16)},
               {KM_OP_EMBEDDING_GRAD, floats},
               {KM_OP_ROPE, floats},
               {KM_OP_ATTENTION, KM_BIT(KM_F32)}, /* of 16 bits: train/vulkan_training */
               {KM_OP_ATTENTION_GRAD, KM_BIT(KM_F32)},
               {KM_OP_SGD, floats},
               {KM_OP_ADAMW, floats},
               {KM_OP_SUMSQ_CHUNKS, floats},
               {KM_OP_OPTIM_CONTROL, KM_BIT(KM_F32)}};
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        const char *name = km_op_name(ops[i].op);
        km_verify_how how = {.seed = 1, .op = name, .quick = true, .dtypes = ops[i].dtypes};
        km_error err = {0};
        verdict v = {0};
        if (km_verify(VULKAN, &how, note, &v, &err) != KM_OK) fail_msg("%s", err.text);
        if (v.failed) fail_msg("%d of %s: %s", v.failed, name, v.first);
        if (v.fell_back || !v.checks) fail_msg("%s ran on another device", name);
    }
}

/* Heads of more than 256 are the CPU's, and their three gradients are parts of one tensor. */
static void what_the_cpu_does_comes_back_whole(void **state) {
    enum { T = 3, D = 260, N = T * 3 * D };
    static const char *const devices[] = {"cpu", VULKAN};
    static float x[N], got[2][N];
    (void)state;
    for (int i = 0; i < N; i++) x[i] = (float)(i * 37 % 101) / 101 - 0.5f;
    for (int k = 0; k < 2; k++) {
        km_ctx *ctx = km_ctx_new(devices[k], 1);
        assert_non_null(ctx);
        km_tensor *qkv = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(1, T, 3 * D), x));
        assert_int_equal(km_require_grad(ctx, qkv, true), KM_OK);
        km_tensor *o = km_attention_qkv(ctx, qkv, 1, 1, true, 0);
        km_backward(ctx, km_sum(ctx, km_mul(ctx, o, o), NULL, 0, false));
        assert_int_equal(km_read(ctx, km_grad(qkv), got[k], sizeof got[k]), KM_OK);
        assert_true(k == 0 || km_ctx_stats(ctx).fallbacks > 0);
        km_release(qkv);
        km_ctx_free(ctx);
    }
    for (int i = 0; i < N; i++) assert_true(fabsf(got[0][i] - got[1][i]) < 1e-5f);
}

int main(void) {
    if (vulkan_missing()) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(ops_need_no_other_device),
                                       cmocka_unit_test(what_the_cpu_does_comes_back_whole)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vulkan_clean();
    return failed;
}

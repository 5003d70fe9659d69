/* Every op that has a Vulkan kernel, against the reference, and which of them need no other device. */
#include "live_vulkan.h"
#include "ops/verify.h"
#include "backend/vulkan/vulkan.h"

typedef struct verdict {
    int failed, fell_back;
    char first[256];
} verdict;

static void note(void *user, const km_verify_result *r, int index, int total) {
    verdict *v = user;
    if (!r->passed && !v->failed++)
        snprintf(v->first, sizeof v->first, "%s %s: %s", r->op, r->dtype, r->worst);
    v->fell_back += r->fallback && strcmp(r->dtype, "f32") == 0;
}

static verdict verify(km_op op) {
    km_verify_how how = {.seed = 1, .op = km_op_name(op), .quick = true};
    km_error err = {0};
    verdict v = {0};
    if (km_verify(VULKAN, &how, note, &v, &err) != KM_OK) fail_msg("%s", err.text);
    return v;
}

static void kernels_agree_with_the_reference(void **state) {
    const km_backend *b = km_vulkan_device(0, NULL)->backend;
    int ops = 0, elementwise = 0;
    for (int op = 0; op < KM_OP_COUNT; op++) {
        if (!b->kernel[op]) continue;
        /* Their shaders are many, one for each pair of types: backend/vulkan_logits runs them, and
         * dequantise has every type. */
        if (op == KM_OP_LINEARS || op == KM_OP_GATED || op == KM_OP_QUANT_LINEAR) continue;
        if (op == KM_OP_SAMPLE || op == KM_OP_ATTEND || op == KM_OP_LOW_RANK) continue; /* below */
        if (op == KM_OP_QUANT_EMBEDDING) continue;
        if (vulkan_op_of_training((km_op)op)) continue; /* their own tests */
        /* Elementwise ops share a shader: every sixth. `kermes verify --device vulkan` has them all. */
        if (b->kernel[op] == b->kernel[KM_OP_ADD] && elementwise++ % 6) continue;
        verdict v = verify((km_op)op);
        if (v.failed) fail_msg("%d of %s: %s", v.failed, km_op_name((km_op)op), v.first);
        ops++;
    }
    assert_true(ops >= 25);
}

/* What steps and prompts of running models are made of, beside layers (backend/vulkan_logits). */
static void running_models_need_no_other_device(void **state) {
    static const km_op ops[] = {KM_OP_SAMPLE, KM_OP_ATTEND, KM_OP_LOW_RANK, KM_OP_QUANT_EMBEDDING};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        verdict v = verify(ops[i]);
        if (v.failed) fail_msg("%s: %s", km_op_name(ops[i]), v.first);
        if (v.fell_back && ops[i] != KM_OP_SAMPLE) /* masks of grammars and biases are the host's */
            fail_msg("%s ran on another device", km_op_name(ops[i]));
    }
}

int main(void) {
    if (vulkan_missing()) return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_agree_with_the_reference),
                                       cmocka_unit_test(running_models_need_no_other_device)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vulkan_clean();
    return failed;
}

/* Running models on a Vulkan device: logits of every architecture against the reference,
 * with no op sent to another device. */
#include "live_vulkan.h"
#include "support/compare_logits.h"
#include "support/random_model.h"

enum { CONTEXT = 64, VOCAB = 260 };

static const compare_group groups[] = {{{2, 5}}, {{40}}}; /* 40: by tiles */

static km_ctx *ctx;

static int compare(const km_config *c, const char *mix, int first, km_dtype cache, double limit) {
    compare_work w = {groups + first, 1, cache, limit};
    km_ctx *ref = km_ctx_new("ref", 1);
    uint64_t before = km_ctx_stats(ctx).fallbacks;
    int wrong = compare_logits(ref, ctx, c, mix, &w, NULL);
    km_ctx_free(ref);
    uint64_t fell = km_ctx_stats(ctx).fallbacks - before;
    if (fell) fail_msg("%s: %llu ops ran on another device", mix, (unsigned long long)fell);
    return wrong;
}

static void every_architecture_gives_the_logits_of_the_reference(void **state) {
    int wrong = 0;
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        km_config c = compare_config((km_arch)arch, 64, CONTEXT, VOCAB);
        wrong += compare(&c, arch % 2 ? "q8_0" : "q4_0", 0, KM_F16, 0.01);
    }
    assert_int_equal(wrong, 0);
}

static void types_give_the_logits_of_the_reference(void **state) {
    km_config c = compare_config(KM_ARCH_LLAMA, 256, CONTEXT, VOCAB);
    int wrong = 0;
    (void)state;
    c.layers = 1;
    for (int i = 0; km_mix_at(i); i++) {
        const char *name = km_mix_at(i)->name, *end = name + strlen(name) - 2;
        if (i % 2) continue; /* the others are backend/vulkan_verify's alone */
        if (strcmp(end, "_m") == 0 || strcmp(end, "_l") == 0) continue; /* the types of others */
        wrong += compare(&c, name, 1, KM_F16, 0.01);
    }
    assert_int_equal(wrong, 0);
}

static void caches_in_blocks_give_the_logits_of_the_reference(void **state) {
    km_config c = compare_config(KM_ARCH_QWEN3, 64, CONTEXT, VOCAB);
    (void)state;
    assert_int_equal(compare(&c, "q8_0", 0, KM_Q8_0, 0.01), 0);
    assert_int_equal(compare(&c, "q8_0", 0, KM_Q4_0, 0.01), 0);
}

int main(void) {
    if (vulkan_missing()) return 77;
    ctx = km_ctx_new(VULKAN, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_gives_the_logits_of_the_reference),
        cmocka_unit_test(types_give_the_logits_of_the_reference),
        cmocka_unit_test(caches_in_blocks_give_the_logits_of_the_reference)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    km_ctx_free(ctx);
    vulkan_clean();
    return failed;
}

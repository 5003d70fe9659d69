/* Logits of the CPU's kernels against the reference, for every architecture and every type: what
 * backend/cuda_live_logits compares between CPU and GPU, in sizes for any machine.
 * The reference does not round activations to 8 bits, as the CPU does for weights of few bits. */
#include "support/compare_logits.h"
#include "support/engine.h"
#include <math.h>

enum { CONTEXT = 64, VOCAB = 257 };

static const compare_group groups[] = {{{1}}, {{2, 5}}, {{18}}};

static int compare(km_ctx *ctx, const km_config *c, const char *mix, int first, double limit) {
    compare_work w = {groups + first, 3 - first, KM_F16, limit};
    km_ctx *ref = km_ctx_new("ref", 1);
    int wrong = compare_logits(ref, ctx, c, mix, &w, NULL);
    km_ctx_free(ref);
    return wrong;
}

static void every_architecture_gives_the_logits_of_the_reference(void **state) {
    int wrong = 0;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        km_config c = compare_config((km_arch)arch, 64, CONTEXT, VOCAB);
        wrong += compare(*state, &c, "q8_0", 1, 0.05);
        compare_sharpen(&c);
        wrong += compare(*state, &c, "f16", 1, 0.002);
    }
    assert_int_equal(wrong, 0);
}

static void every_type_gives_the_logits_of_the_reference(void **state) {
    km_config c = compare_config(KM_ARCH_LLAMA, 256, CONTEXT, VOCAB);
    int wrong = 0;
    c.layers = 1;
    for (int i = 0; km_mix_at(i); i++) {
        const char *name = km_mix_at(i)->name, *end = name + strlen(name) - 2;
        if (strcmp(end, "_m") == 0 || strcmp(end, "_l") == 0) continue; /* the types of others */
        wrong += compare(*state, &c, name, 2, 0.05);
    }
    assert_int_equal(wrong, 0);
}

static void sizes_need_be_no_multiples_of_anything(void **state) {
    km_config c;
    int wrong = 0;
    for (int i = 0; compare_odd_config(i, CONTEXT, VOCAB, &c); i++) {
        wrong += compare(*state, &c, "q8_0", 2, 0.05);
        compare_sharpen(&c);
        wrong += compare(*state, &c, "f16", 2, 0.002);
    }
    assert_int_equal(wrong, 0);
}

static void rows_that_are_too_far_apart_are_counted(void **state) {
    km_config c = compare_config(KM_ARCH_LLAMA, 64, CONTEXT, VOCAB);
    compare_work w = {groups, 1, KM_F16, 0};
    double worst = 0;
    assert_int_equal(compare_logits(*state, *state, &c, "q8_0", &w, &worst), 0);
    assert_true(worst == 0);
    assert_int_equal(compare(*state, &c, "q8_0", 2, 1e-9), 1 + COMPARE_AFTER);
    float a[] = {1, 2, 3}, b[] = {1, 2, NAN}, zero[3] = {0};
    assert_true(logits_apart(a, zero, 3) == 1);
    assert_true(isinf(logits_apart(a, b, 3)) && isinf(logits_apart(b, a, 3)));
    assert_true(isinf(logits_apart(zero, zero, 3))); /* a model that says nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", every_architecture_gives_the_logits_of_the_reference),
        ON("cpu", every_type_gives_the_logits_of_the_reference),
        ON("cpu", sizes_need_be_no_multiples_of_anything),
        ON("cpu", rows_that_are_too_far_apart_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

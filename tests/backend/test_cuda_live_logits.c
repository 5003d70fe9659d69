/* Whole models on a real GPU against the CPU: every architecture in every type, prompts that take
 * each of the ways through the kernels, sequences of different lengths together, and every type of
 * cache. The limits are about twice what rounding x to 8 bits and to f16 explains. Skipped where
 * there is no GPU; KERMES_LIVE_DEVICE=cpu runs it without one, and KERMES_LIVE_BRIEF=1 runs so
 * little of it that a sanitizer, a hundred times slower, gets through. */
#include "live_gpu.h"
#include "model/arch.h"
#include "support/compare_logits.h"

enum { DIM = 256, CONTEXT = 4096 + 64, VOCAB = 512 };

#define EIGHT                                                                                      \
    { 31, 1, 66, 2, 40, 17, 65, 5 }
static const compare_group all[] = {{{1}},    {{2}},         {{31}}, {{512}},
                                    {{4096}}, {{31, 1, 66}}, {EIGHT}};
static const compare_group some[] = {{{2}}, {{31}}, {{17, 1, 66}}};
#define WORK(groups, limit)                                                                        \
    { groups, sizeof groups / sizeof *groups, KM_F16, limit }
static const compare_work plain = WORK(all, 0.02), rounded = WORK(all, 0.05);
static const compare_work briefly = WORK(some, 0.05), sharply = WORK(some, 0.02);

static km_ctx *cpu, *gpu;

static int open_both(void **state) {
    const char *device = getenv("KERMES_LIVE_DEVICE");
    (void)state;
    cpu = km_ctx_new("cpu", 0);
    gpu = km_ctx_new(device ? device : GPU, 0);
    return cpu && gpu ? 0 : -1;
}

static int close_both(void **state) {
    (void)state;
    km_ctx_free(cpu);
    km_ctx_free(gpu);
    return 0;
}

/* Says how far apart it came, for whoever wants to know how near the limit that is. */
static int compare(const km_config *c, const char *mix, const compare_work *w) {
    double worst = 0;
    int wrong = compare_logits(cpu, gpu, c, mix, w, &worst);
    print_message("  %-7s %-7s %-5s %.5f\n", km_arch_name(c->arch), mix, km_dtype_name(w->cache),
                  worst);
    return wrong;
}

static void every_architecture_at_every_length(void **state) {
    int wrong = 0;
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        km_config c = compare_config((km_arch)arch, DIM, CONTEXT, VOCAB);
        wrong += compare(&c, "q4_k_m", &rounded);
        compare_sharpen(&c);
        wrong += compare(&c, "f16", &plain);
    }
    assert_int_equal(wrong, 0);
}

static void every_type_at_every_length(void **state) {
    km_config c = compare_config(KM_ARCH_LLAMA, DIM, CONTEXT, VOCAB);
    int wrong = 0;
    (void)state;
    for (int i = 0; km_mix_at(i); i++) wrong += compare(&c, km_mix_at(i)->name, &rounded);
    assert_int_equal(wrong, 0);
}

static void every_architecture_in_every_type(void **state) {
    int wrong = 0;
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        km_config c = compare_config((km_arch)arch, DIM, 128, VOCAB);
        for (int i = 0; km_mix_at(i); i++) wrong += compare(&c, km_mix_at(i)->name, &briefly);
    }
    assert_int_equal(wrong, 0);
}

static void every_type_of_cache(void **state) {
    static const km_dtype caches[] = {KM_F32, KM_BF16, KM_Q8_0, KM_Q4_0};
    km_config c = compare_config(KM_ARCH_QWEN3, DIM, CONTEXT, VOCAB);
    int wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++) {
        compare_work w = rounded;
        w.cache = caches[i];
        wrong += compare(&c, "f16", &w);
    }
    assert_int_equal(wrong, 0);
}

static void sizes_need_be_no_multiples_of_anything(void **state) {
    static const char *const mixes[] = {"q8_0",   "q4_0",  "q4_1",   "q5_0", "q5_1",
                                        "iq4_nl", "mxfp4", "q4_k_m", "bf16", "f32"};
    km_config c;
    int wrong = 0;
    (void)state;
    for (int i = 0; compare_odd_config(i, 512 + 64, VOCAB + 1, &c); i++) {
        for (size_t k = 0; k < sizeof mixes / sizeof *mixes; k++)
            wrong += compare(&c, mixes[k], &briefly);
        compare_sharpen(&c);
        wrong += compare(&c, "f16", &sharply);
    }
    assert_int_equal(wrong, 0);
}

static void a_model_in_brief(void **state) {
    int wrong = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        km_config c = compare_config(i ? KM_ARCH_GEMMA2 : KM_ARCH_LLAMA, DIM, 128, VOCAB);
        c.layers = 1;
        wrong += compare(&c, i ? "q6_k" : "q4_k_m", &briefly);
    }
    assert_int_equal(wrong, 0);
}

static void nothing_was_left_to_the_cpu(void **state) {
    (void)state;
    assert_int_equal(km_ctx_stats(gpu).fallbacks, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_at_every_length),
        cmocka_unit_test(every_type_at_every_length),
        cmocka_unit_test(every_architecture_in_every_type),
        cmocka_unit_test(every_type_of_cache),
        cmocka_unit_test(sizes_need_be_no_multiples_of_anything),
        cmocka_unit_test(nothing_was_left_to_the_cpu),
    };
    const struct CMUnitTest brief[] = {cmocka_unit_test(a_model_in_brief)};
    if (!getenv("KERMES_LIVE_DEVICE") && km_cuda_device_count() == 0) return 77;
    if (getenv("KERMES_LIVE_BRIEF")) return cmocka_run_group_tests(brief, open_both, close_both);
    return cmocka_run_group_tests(tests, open_both, close_both);
}

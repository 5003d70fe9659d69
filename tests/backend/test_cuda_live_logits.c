/* Whole models on a real GPU against the CPU: logits after prompts that take each of the ways through
 * the kernels, and after tokens read one by one, for several architectures and types. Skipped where
 * there is no GPU. */
#include "infer/session.h"
#include "live_gpu.h"
#include "model/arch.h"
#include "model/synthetic.h"
#include <string.h>

enum { VOCAB = 512, CONTEXT = 256, LONGEST = 140, AFTER = 3 };

static const int lengths[] = {1, 2, 16, 31, 65, 130};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

typedef struct heard {
    float row[LENGTHS][1 + AFTER][VOCAB];
} heard;

/* Logits after a prompt of each length and the tokens that follow it. */
static void listen(const char *device, const km_config *c, const char *mix, heard *h) {
    km_error err = {0};
    int32_t ids[LONGEST];
    for (int i = 0; i < LONGEST; i++) ids[i] = (i * 37 + i * i) % VOCAB;
    km_ctx *ctx = km_ctx_new(device, 2);
    km_model *m = km_synthetic_model(ctx, c, km_mix_find(mix), 3, NULL, NULL, NULL, &err);
    if (!m) fail_msg("%s", err.text);
    for (int l = 0; l < LENGTHS; l++) {
        km_session *s = km_session_open(ctx, m, NULL, &err);
        if (!s) fail_msg("%s", err.text);
        if (km_session_read(s, ids, (size_t)lengths[l], &err) != KM_OK) fail_msg("%s", err.text);
        memcpy(h->row[l][0], km_session_logits(s), sizeof h->row[l][0]);
        for (int i = 0; i < AFTER; i++) {
            if (km_session_next(s, ids[lengths[l] + i], &err) != KM_OK) fail_msg("%s", err.text);
            memcpy(h->row[l][1 + i], km_session_logits(s), sizeof h->row[l][0]);
        }
        km_session_free(s);
    }
    km_model_free(m);
    km_ctx_free(ctx);
}

/* The distance of two rows of logits, against their spread. */
static double apart(const float *a, const float *b) {
    double diff = 0, size = 0;
    for (int i = 0; i < VOCAB; i++)
        diff += pow((double)a[i] - b[i], 2), size += pow((double)a[i], 2);
    return isfinite(diff) && size > 0 ? sqrt(diff / size) : INFINITY;
}

static void logits_are_those_of_the_cpu(void **state) {
    static const struct {
        km_arch arch;
        const char *mix;
    } models[] = {{KM_ARCH_LLAMA, "q8_0"},   {KM_ARCH_LLAMA, "q4_k_m"}, {KM_ARCH_QWEN2, "q4_0"},
                  {KM_ARCH_QWEN3, "q5_k_m"}, {KM_ARCH_LLAMA, "bf16"},   {KM_ARCH_LLAMA, "q3_k_m"}};
    static heard cpu, gpu;
    int wrong = 0;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        km_config c = {.arch = models[i].arch,
                       .layers = 2,
                       .heads = 8,
                       .kv_heads = 2,
                       .dim = 512,
                       .hidden = 1024,
                       .context = CONTEXT,
                       .vocab = VOCAB,
                       .rope_base = 1e4,
                       .norm_eps = 1e-5,
                       .tied = true};
        km_error err = {0};
        assert_int_equal(km_config_complete(&c, &err), KM_OK);
        listen("cpu", &c, models[i].mix, &cpu);
        listen(GPU, &c, models[i].mix, &gpu);
        for (int l = 0; l < LENGTHS; l++)
            for (int k = 0; k <= AFTER; k++) {
                double d = apart(cpu.row[l][k], gpu.row[l][k]);
                if (d < 0.03) continue;
                print_message("%s %s, a prompt of %d, %d after it: %.4f apart\n",
                              km_arch_name(models[i].arch), models[i].mix, lengths[l], k, d);
                wrong++;
            }
    }
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_those_of_the_cpu)};
    if (km_cuda_device_count() == 0) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

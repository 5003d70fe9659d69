/* Models of random weights: files that open, run and hold what their type promises. */
#include "base/file.h"
#include "format/formats.h"
#include "infer/sequence.h"
#include "model/layout.h"
#include "model/open.h"
#include "model/synthetic.h"
#include "tensor/quant.h"
#include "token/gguf.h"
#include <math.h>

static km_config small(km_arch arch) {
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 256,
                   .hidden = 512,
                   .context = 64,
                   .vocab = 300,
                   .rope_base = 1e4,
                   .norm_eps = 1e-5};
    km_error err = {0};
    if (km_config_complete(&c, &err) != KM_OK) fail_msg("%s", err.text);
    return c;
}

static const char *written(const char *name, const char *mix, km_arch arch, uint64_t seed) {
    const char *path = in_folder(name);
    km_config c = small(arch);
    km_error err = {0};
    int64_t live = km_alloc_live();
    if (km_synthetic_write(path, &c, km_mix_find(mix), seed, NULL, NULL, &err) != KM_OK)
        fail_msg("%s: %s", mix, err.text);
    assert_int_equal(km_alloc_live(), live);
    return path;
}

/* Every element of every matrix: their mean is near 0 and a row's length near 1. */
static void check_spread(const km_gguf *g, const char *mix) {
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        if (t->shape.ndim != 2) continue;
        int64_t rows = t->shape.dim[0], in = t->shape.dim[1], n = rows * in;
        float *x = malloc(sizeof *x * (size_t)n);
        double sum = 0, squares = 0;
        if (t->info->dtype <= KM_BF16) {
            free(x);
            continue;
        }
        km_dequantise(t->info->dtype, t->data, n, x);
        for (int64_t k = 0; k < n; k++) sum += x[k], squares += (double)x[k] * x[k];
        free(x);
        double length = sqrt(squares / (double)rows), mean = sum / (double)n * sqrt((double)in);
        if (!(length > 0.6 && length < 1.5) || !(fabs(mean) < 0.03))
            fail_msg("%s, %s of %s: rows of length %g, mean %g", mix, t->name, t->info->name,
                     length, mean);
    }
}

static void every_mix_makes_a_file_of_sane_weights(void **state) {
    (void)state;
    for (int i = 0; km_mix_at(i); i++) {
        const char *name = km_mix_at(i)->name;
        km_error err = {0};
        km_gguf *g = km_gguf_open(written("a.gguf", name, KM_ARCH_LLAMA, 1), &err);
        if (!g) fail_msg("%s: %s", name, err.text);
        check_spread(g, name);
        const km_gguf_tensor *up = km_gguf_find(g, "blk.1.ffn_up.weight");
        assert_int_equal(up->info->dtype, km_mix_at(i)->base);
        int64_t type = -1;
        assert_int_equal(km_gguf_int(g, "general.file_type", 0, 99, &type, &err), KM_OK);
        assert_int_equal(type, km_mix_at(i)->file_type);
        km_gguf_close(g);
    }
}

static void a_random_model_runs(void **state) {
    (void)state;
    static const km_arch archs[] = {KM_ARCH_LLAMA, KM_ARCH_QWEN2, KM_ARCH_QWEN3, KM_ARCH_GPT2};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        const char *path = written("b.gguf", "q4_k_m", archs[i], 2);
        km_error err = {0};
        km_ctx *ctx = km_ctx_new("cpu", 1);
        km_net *m = km_net_open(ctx, path, NULL, &err);
        if (!m) fail_msg("%s", err.text);
        km_sequence *s = km_sequence_new(ctx, m, &err);
        assert_int_equal(km_sequence_read(s, (int32_t[]){72, 105, 33}, 3, &err), KM_OK);
        const float *y = km_sequence_logits(s);
        float least = INFINITY, most = -INFINITY;
        for (int64_t k = 0; k < m->config.vocab; k++) {
            assert_true(isfinite(y[k]));
            least = fminf(least, y[k]), most = fmaxf(most, y[k]);
        }
        assert_true(most - least > 0.1f && most - least < 1e3f);
        km_sequence_free(s);
        km_net_free(m);
        km_ctx_free(ctx);
    }
}

static void a_text_of_n_bytes_is_n_tokens(void **state) {
    (void)state;
    km_error err = {0};
    km_token *t = km_token_load(written("c.gguf", "f16", KM_ARCH_LLAMA, 3), &err);
    if (!t) fail_msg("%s", err.text);
    const char *text = "Grey harbour,\n3 boats: \xC3\xA9\xE2\x82\xAC";
    km_ids ids = {0};
    assert_int_equal(km_token_encode(t, text, strlen(text), KM_TOKEN_ADD_SPECIAL, &ids, &err),
                     KM_OK);
    assert_int_equal(ids.len, strlen(text));
    for (size_t i = 0; i < ids.len; i++) assert_int_equal(ids.data[i], (uint8_t)text[i]);
    km_ids_free(&ids);
    assert_int_equal(km_token_eos(t), 256);
    km_token_free(t);
}

static void the_same_seed_gives_the_same_file(void **state) {
    (void)state;
    km_error err = {0};
    km_map a, b, c;
    assert_int_equal(km_map_open(&a, written("1.gguf", "q5_k_m", KM_ARCH_QWEN2, 7), &err), KM_OK);
    assert_int_equal(km_map_open(&b, written("2.gguf", "q5_k_m", KM_ARCH_QWEN2, 7), &err), KM_OK);
    assert_int_equal(km_map_open(&c, written("3.gguf", "q5_k_m", KM_ARCH_QWEN2, 8), &err), KM_OK);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    assert_int_equal(a.size, c.size);
    assert_true(memcmp(a.data, c.data, a.size) != 0);
    km_map_close(&a), km_map_close(&b), km_map_close(&c);
}

static void the_shapes_are_those_of_the_models_they_are_named_after(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {{"smollm2-135m", 134515008},
                 {"qwen2.5-0.5b", 494032768},
                 {"llama-3.2-1b", 1235814400},
                 {"qwen2.5-3b", 3085938688},
                 {"llama-3.1-8b", 8030261248}};
    km_config c;
    km_error err = {0};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(km_synthetic_shape(&c, known[i].name, &err), KM_OK);
        assert_int_equal(km_config_parameters(&c), known[i].parameters);
    }
    assert_int_equal(km_synthetic_shape(&c, "llama-9", &err), KM_ERR_RANGE);
    assert_non_null(strstr(err.text, "smollm2-135m"));
}

static bool stop_early(void *user, uint64_t done, uint64_t total) {
    int *calls = user;
    assert_true(done <= total);
    return ++*calls < 3;
}

static void a_stopped_write_leaves_nothing(void **state) {
    (void)state;
    km_config c = small(KM_ARCH_LLAMA);
    km_error err = {0};
    int calls = 0;
    const char *path = in_folder("stopped.gguf");
    assert_int_equal(km_synthetic_write(path, &c, km_mix_find("q8_0"), 1, stop_early, &calls, &err),
                     KM_ERR_STATE);
    assert_int_equal(calls, 3);
    km_map m;
    assert_int_not_equal(km_map_open(&m, path, &err), KM_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_mix_makes_a_file_of_sane_weights, empty_folder),
        cmocka_unit_test_teardown(a_random_model_runs, empty_folder),
        cmocka_unit_test_teardown(a_text_of_n_bytes_is_n_tokens, empty_folder),
        cmocka_unit_test_teardown(the_same_seed_gives_the_same_file, empty_folder),
        cmocka_unit_test(the_shapes_are_those_of_the_models_they_are_named_after),
        cmocka_unit_test_teardown(a_stopped_write_leaves_nothing, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* Architectures against transformers: logits of tiny random models in GGUF files and Hugging Face
 * folders (scripts/fixtures/make_archs.py, and make_longrope.py from the formulas), read at once and piece by piece over the cache; weights
 * of a few bits used where they lie; and files that are no such models. */
#include "backend/backend.h"
#include "base/alloc.h"
#include "format/safetensors.h"
#include "infer/sequence.h"
#include "model/convert.h"
#include "model/files.h"
#include "model/layout.h"
#include "model/open.h"
#include "model/small.h"
#include "support/fixture.h"
#include "tensor/quant.h"
#include <stdlib.h>
#include <unistd.h>

#define BOUND 1e-4

static km_net *opened(km_ctx *ctx, const char *path) {
    km_error err = {0};
    km_net *m = km_net_open(ctx, path, NULL, &err);
    if (!m) fail_msg("%s", err.text);
    return m;
}

typedef struct expected {
    km_safetensors *file;
    const int32_t *ids;  /* (1, t) */
    const float *logits; /* (1, t, v) */
    int64_t t, v;
} expected;

static expected open_expected(const char *name) {
    km_error err = {0};
    expected e = {.file = km_safetensors_open(fixture(name, ".safetensors"), &err)};
    if (!e.file) fail_msg("%s", err.text);
    const km_st_tensor *ids = km_safetensors_find(e.file, "ids");
    const km_st_tensor *logits = km_safetensors_find(e.file, "logits");
    assert_true(ids && logits && ids->dtype == KM_I32 && logits->dtype == KM_F32);
    e.ids = ids->data;
    e.logits = logits->data;
    e.t = logits->shape.dim[1];
    e.v = logits->shape.dim[2];
    return e;
}

static void near(const char *what, const float *got, const float *want, int64_t n, double bound) {
    double size = 0;
    for (int64_t i = 0; i < n; i++) size = fmax(size, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= bound * fmax(size, 1)))
            fail_msg("%s: element %lld is %.9g, not %.9g", what, (long long)i, got[i], want[i]);
}

static void compare(km_ctx *ctx, const char *what, km_net *m, const expected *e) {
    assert_int_equal(m->config.vocab, e->v);
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, e->t), e->ids);
    float *all = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
    km_no_grad_end(ctx);
    km_step_end(ctx);
    near(what, all, e->logits, e->t * e->v, BOUND);
    km_free(all);

    km_error err = {0};
    km_sequences_options exact = km_sequences_defaults();
    exact.cache = KM_F32;
    km_sequence *s = km_sequence_open(ctx, m, &exact, &err);
    assert_non_null(s);
    for (int64_t at = 0, n = 5; at < e->t;
         at += n, n = at == 5 ? 6 : 1) { /* 5, 6, then one by one */
        if (km_sequence_read(s, e->ids + at, (size_t)n, &err) != KM_OK) fail_msg("%s", err.text);
        near(what, km_sequence_logits(s), e->logits + (at + n - 1) * e->v, e->v, BOUND);
    }
    km_sequence_free(s);
}

static void logits_of_gguf_models_are_those_of_transformers(void **state) {
    static const char *const names[] = {"llama3", "linear",   "mistral", "qwen2",
                                        "yarn",   "qwen3",    "gemma2",  "gemma3",
                                        "phi3",   "phi3long", "phi4mini"};
    km_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "archs/%s", names[i]);
        expected e = open_expected(name);
        km_net *m = opened(ctx, fixture(name, ".gguf"));
        compare(ctx, names[i], m, &e);
        km_net_free(m);
        km_safetensors_close(e.file);
    }
}

static void logits_of_folders_are_those_of_transformers(void **state) {
    static const char *const names[] = {"llama3", "linear", "mistral", "qwen2", "yarn", "qwen3"};
    km_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "archs/%s", names[i]);
        expected e = open_expected(name);
        km_net *m = opened(ctx, fixture(name, ""));
        compare(ctx, names[i], m, &e);
        km_net_free(m);
        km_safetensors_close(e.file);
    }
}

/* GPT-2, and the rows of q and k in GGUF's order for llama: models that have both forms. */
static void both_forms_of_a_model_give_the_same_logits(void **state) {
    km_ctx *ctx = *state;
    static const char *const names[] = {"models/gpt2", "models/llama"};
    for (int i = 0; i < 2; i++) {
        km_net *a = opened(ctx, fixture(names[i], "")),
               *b = opened(ctx, fixture(names[i], ".gguf"));
        float *v[2];
        for (int j = 0; j < 2; j++) {
            km_net *m = j ? b : a;
            km_no_grad_begin(ctx);
            km_tensor *x = small_ids(ctx, 1, SMALL_T, 0);
            v[j] = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
            km_no_grad_end(ctx);
            km_step_end(ctx);
        }
        near(names[i], v[1], v[0], SMALL_T * SMALL_VOCAB, 1e-5);
        km_free(v[0]);
        km_free(v[1]);
        km_net_free(a);
        km_net_free(b);
    }
}

static void converted_folders_give_the_same_logits(void **state) {
    km_ctx *ctx = *state;
    char out[] = "/tmp/kermes-archs-XXXXXX.gguf";
    int fd = mkstemps(out, 5);
    assert_true(fd >= 0);
    close(fd);
    /* Folders into GGUF; and from GGUF into GGUF those that are read from nothing else. */
    static const char *const names[] = {"qwen2", "qwen3",  "llama3", "linear", "mistral",
                                        "yarn",  "gemma2", "gemma3", "phi3",   "phi4mini"};
    for (int i = 0; i < 10; i++) {
        char name[64];
        km_error err = {0};
        snprintf(name, sizeof name, "archs/%s", names[i]);
        expected e = open_expected(name);
        km_conversion o = {
            .in = fixture(name, i < 6 ? "" : ".gguf"), .out = out, .dtype = KM_DTYPE_COUNT};
        if (km_convert_weights(&o, NULL, &err) != KM_OK) fail_msg("%s", err.text);
        km_net *m = opened(ctx, out);
        compare(ctx, names[i], m, &e);
        km_net_free(m);
        km_safetensors_close(e.file);
    }
    unlink(out);
}

/* ---- Weights of a few bits ---- */

enum { DIM = 64, ROWS = 40 };

typedef struct maker {
    km_gguf_out *out;
    void *kept[32];
    int n;
    const char *without, *reshaped; /* a tensor to leave out, or to give another shape */
} maker;

static void add(maker *k, const char *name, int64_t rows, km_dtype d, bool decoded) {
    static const int types[] = {[KM_F32] = 0, [KM_Q4_0] = 2, [KM_Q8_0] = 8};
    int64_t n = rows * DIM;
    float *x = km_alloc(sizeof *x * (size_t)n);
    void *blocks = km_alloc(sizeof *x * (size_t)n);
    k->kept[k->n++] = x;
    k->kept[k->n++] = blocks;
    if (k->without && strcmp(name, k->without) == 0) return;
    unsigned seed = (unsigned)strlen(name) * 7919u + (unsigned)name[0];
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) / 8388608.0f - 1) * (rows == 1 ? 0.1f : 0.3f) + (rows == 1);
    }
    if (d != KM_F32) {
        km_quantise(d, x, NULL, n, blocks);
        if (decoded) km_dequantise(d, blocks, n, x);
    }
    bool as_is = d != KM_F32 && !decoded;
    km_shape s = rows == 1 ? KM_SHAPE(DIM) : KM_SHAPE(rows, DIM);
    if (k->reshaped && strcmp(name, k->reshaped) == 0) s = KM_SHAPE(rows / 2, 2 * DIM);
    km_gguf_add(k->out, name, as_is ? types[d] : 0, s, as_is ? blocks : (void *)x, NULL, NULL);
}

static void write_quantised(const char *path, bool decoded, const char *without,
                            const char *reshaped) {
    km_error err = {0};
    maker k = {.out = km_gguf_out_new(&err), .without = without, .reshaped = reshaped};
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 1,
                   .heads = 2,
                   .kv_heads = 2,
                   .dim = DIM,
                   .head_dim = DIM / 2,
                   .hidden = DIM,
                   .context = 32,
                   .vocab = ROWS,
                   .norm_eps = 1e-5,
                   .rope_base = 1e4,
                   .tied = true};
    km_config_put_gguf(&c, k.out);
    add(&k, "token_embd.weight", ROWS, KM_Q8_0, decoded);
    add(&k, "output_norm.weight", 1, KM_F32, decoded);
    add(&k, "blk.0.attn_norm.weight", 1, KM_F32, decoded);
    add(&k, "blk.0.ffn_norm.weight", 1, KM_F32, decoded);
    static const char *const parts[] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                        "ffn_gate", "ffn_up", "ffn_down"};
    for (int i = 0; i < 7; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.0.%s.weight", parts[i]);
        add(&k, name, DIM, i % 2 ? KM_Q4_0 : KM_Q8_0, decoded);
    }
    if (km_gguf_write(k.out, path, &err) != KM_OK) fail_msg("%s", err.text);
    km_gguf_out_free(k.out);
    for (int i = 0; i < k.n; i++) km_free(k.kept[i]);
}

static char made[] = "/tmp/kermes-archs-made-XXXXXX.gguf";

static int make_file(void **state) {
    memcpy(made + strlen(made) - 11, "XXXXXX", 6);
    int fd = mkstemps(made, 5);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state) { return unlink(made); }

static void quantised_weights_stay_in_the_file_and_compute_alike(void **state) {
    km_ctx *ctx = *state;
    float *v[2];
    for (int decoded = 0; decoded < 2; decoded++) {
        write_quantised(made, decoded, NULL, NULL);
        km_net *m = opened(ctx, made);
        for (int i = 0; i < m->params.n; i++) {
            const km_tensor *t = m->params.at[i].t;
            assert_true(t->storage->drop != NULL); /* in the mapping, f32 norms as well */
            if (!decoded && t->shape.ndim == 2) assert_true(km_dtype_is_block(t->dtype));
        }
        int32_t ids[] = {1, 5, 9, 33};
        km_no_grad_begin(ctx);
        km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, 4), ids);
        v[decoded] = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
        km_no_grad_end(ctx);
        km_step_end(ctx);
        km_write(ctx, m->wte.w, v[0], m->wte.w->storage->bytes);
        assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE); /* and cannot be written to */
        km_ctx_clear_error(ctx);
        km_error err = {0};
        assert_int_equal(km_net_save(m, "/tmp", &err), KM_ERR_UNSUPPORTED);
        km_net_free(m);
    }
    near("quantised", v[0], v[1], 4 * ROWS, 0.03); /* activations may be rounded to 8 bits */
    km_free(v[0]);
    km_free(v[1]);
}

/* ---- Files that are no such models ---- */

static void refused(km_ctx *ctx, const char *why) {
    km_error err = {0};
    int64_t live = km_alloc_live();
    km_net *m = km_net_open(ctx, made, NULL, &err);
    assert_null(m);
    assert_null(strchr(err.text, '\n'));
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    km_ctx_clear_error(ctx);
    km_step_end(ctx);
    assert_int_equal(km_alloc_live(), live);
}

static void missing_and_misshapen_tensors_are_named(void **state) {
    km_ctx *ctx = *state;
    km_step_end(ctx);
    write_quantised(made, false, "blk.0.attn_v.weight", NULL);
    refused(ctx, "'blk.0.attn_v.weight' is missing");
    write_quantised(made, true, NULL, "blk.0.ffn_up.weight");
    refused(ctx, "'blk.0.ffn_up.weight' is [32, 128], but the config makes it [64, 64]");
    write_quantised(made, false, "output_norm.weight", NULL);
    refused(ctx, "'output_norm.weight' is missing");
    write_quantised(made, false, "token_embd.weight", NULL);
    refused(ctx, "holds no matrix token_embd.weight");
}

/* The GGUF file again, as `made`, with a key of another value, or (NULL) without it. */
static void write_with(const char *from, const char *key, const km_gguf_value *v) {
    km_error err = {0};
    km_gguf *g = km_gguf_open(from, &err);
    km_gguf_out *out = km_gguf_out_new(&err);
    assert_true(g && out);
    for (int j = 0; j < km_gguf_meta_count(g); j++)
        if (strcmp(km_gguf_meta_key(g, j), key) != 0)
            km_gguf_put_value(out, km_gguf_meta_key(g, j), km_gguf_meta_at(g, j));
    if (v) km_gguf_put_value(out, key, v);
    for (int j = 0; j < km_gguf_count(g); j++) {
        const km_gguf_tensor *t = km_gguf_at(g, j);
        km_gguf_add(out, t->name, t->info->type, t->shape, t->data, NULL, NULL);
    }
    if (km_gguf_write(out, made, &err) != KM_OK) fail_msg("%s", err.text);
    km_gguf_out_free(out);
    km_gguf_close(g);
}

static void absurd_metadata_is_refused_in_one_line(void **state) {
    static const struct {
        const char *key;
        km_gguf_value v;
        const char *why;
    } list[] = {
        {"general.architecture", {.type = KM_GGUF_STRING, .text = {"mamba\n", 6}}, "'mamba"},
        {"llama.block_count", {.type = KM_GGUF_U32, .u = 2000000000}, "layers"},
        {"llama.block_count", {.type = KM_GGUF_U32, .u = 40}, "blk.1.attn_norm.weight' is missing"},
        {"llama.attention.head_count", {.type = KM_GGUF_U32, .u = 0}, "head_count"},
        {"llama.attention.head_count_kv", {.type = KM_GGUF_U32, .u = 3}, "kv_heads"},
        {"llama.attention.value_length", {.type = KM_GGUF_U32, .u = 9}, "values of another length"},
        {"llama.rope.freq_base", {.type = KM_GGUF_F32, .f = -1}, "rope.freq_base"},
        {"llama.rope.scaling.type", {.type = KM_GGUF_STRING, .text = {"wild", 4}}, "'wild'"},
        {"llama.rope.scaling.type",
         {.type = KM_GGUF_STRING, .text = {"longrope", 8}},
         "rope_factors_long.weight is missing"},
        {"llama.expert_count", {.type = KM_GGUF_U32, .u = 8}, "mixtures of experts"},
        {"llama.attention.causal", {.type = KM_GGUF_BOOL, .u = 0}, "attention.causal is false"},
        {"llama.rope.scaling.attn_factor", {.type = KM_GGUF_F32, .f = 0}, "attn_factor"},
        {"llama.rope.scaling.attn_factor", {.type = KM_GGUF_F32, .f = -1}, "attn_factor"},
        {"llama.rope.scaling.factor", {.type = KM_GGUF_F32, .f = 0.5}, "less than 1"},
        {"llama.attention.sliding_window", {.type = KM_GGUF_I32, .i = -1}, "sliding_window"},
    };
    km_ctx *ctx = *state;
    km_step_end(ctx);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        write_quantised(made, false, NULL, NULL);
        write_with(made, list[i].key, &list[i].v);
        refused(ctx, list[i].why);
    }
    km_gguf_value two = {.type = KM_GGUF_F32, .f = 2}, none = {.type = KM_GGUF_BOOL, .u = 0};
    write_with(fixture("archs/phi3long", ".gguf"), "phi3.rope.scaling.factor", &two);
    refused(ctx, "by a factor and by divisors at once");
    write_with(fixture("models/gpt2", ".gguf"), "gpt2.attention.causal", &none);
    refused(ctx, "attention.causal is false");
}

/* ---- What files say of stretched rotation ---- */

static void a_factor_without_a_type_of_scaling_divides_frequencies(void **state) {
    km_ctx *ctx = *state;
    expected e = open_expected("archs/linear");
    write_with(fixture("archs/linear", ".gguf"), "llama.rope.scaling.type", NULL);
    km_net *m = opened(ctx, made);
    compare(ctx, "without a type", m, &e);
    km_net_free(m);
    km_safetensors_close(e.file);
}

static void an_attention_factor_counts_whatever_the_type_of_scaling(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        const char *name, *arch;
    } list[] = {{"archs/qwen3", "qwen3"},
                {"archs/linear", "llama"},
                {"archs/yarn", "qwen2"},
                {"archs/llama3", "llama"}};
    km_gguf_value by = {.type = KM_GGUF_F32, .f = 1.25};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s.rope.scaling.attn_factor", list[i].arch);
        km_net *plain = opened(ctx, fixture(list[i].name, ".gguf"));
        write_with(fixture(list[i].name, ".gguf"), key, &by);
        km_net *m = opened(ctx, made);
        double was = plain->block[0].attention.scale, is = m->block[0].attention.scale;
        assert_true(fabs(is / was - 1.25 * 1.25) < 1e-6);
        km_net_free(plain);
        km_net_free(m);
    }
    /* Between folders and GGUF only YaRN has words for it. */
    km_error err = {0};
    write_with(fixture("archs/qwen3", ".gguf"), "qwen3.rope.scaling.attn_factor", &by);
    km_conversion o = {.in = made, .out = "/tmp/kermes-archs-none", .dtype = KM_DTYPE_COUNT};
    assert_int_equal(km_convert_weights(&o, NULL, &err), KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "an attention factor, which config.json has no words for"));
}

/* Phi 3 has divisors of its own for contexts up to the one trained on. */
static void short_contexts_rotate_by_their_own_divisors(void **state) {
    km_ctx *ctx = *state;
    static const char *const names[] = {"archs/phi3long", "archs/phi4mini"};
    for (int i = 0; i < 2; i++) {
        km_error err = {0};
        expected e = open_expected(names[i]);
        const km_st_tensor *s = km_safetensors_find(e.file, "short");
        e.t = s->shape.dim[1];
        e.logits = s->data;
        km_net *m = km_net_open(ctx, fixture(names[i], ".gguf"),
                                &(km_open_options){.context = e.t, .dtype = KM_DTYPE_COUNT}, &err);
        assert_non_null(m);
        compare(ctx, names[i], m, &e);
        km_net_free(m);
        km_safetensors_close(e.file);
    }
}

static void a_shorter_context_is_kept_to(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = km_net_open(ctx, fixture("archs/qwen3", ".gguf"),
                            &(km_open_options){.context = 8, .dtype = KM_DTYPE_COUNT}, &err);
    assert_non_null(m);
    km_sequence *s = km_sequence_new(ctx, m, &err);
    int32_t ids[9] = {0};
    assert_int_equal(km_sequence_read(s, ids, 9, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "the prompt has 9 tokens and the model's context 8");
    assert_int_equal(km_sequence_read(s, ids, 8, &err), KM_OK);
    km_sequence_free(s);
    km_net_free(m);
}

static int cpu(void **state) {
    *state = km_ctx_new("cpu", 2);
    return *state && make_file(state) == 0 ? 0 : -1;
}

static int end(void **state) {
    km_ctx_free(*state);
    return remove_file(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_of_gguf_models_are_those_of_transformers),
        cmocka_unit_test(logits_of_folders_are_those_of_transformers),
        cmocka_unit_test(both_forms_of_a_model_give_the_same_logits),
        cmocka_unit_test(converted_folders_give_the_same_logits),
        cmocka_unit_test(quantised_weights_stay_in_the_file_and_compute_alike),
        cmocka_unit_test(missing_and_misshapen_tensors_are_named),
        cmocka_unit_test(absurd_metadata_is_refused_in_one_line),
        cmocka_unit_test(a_factor_without_a_type_of_scaling_divides_frequencies),
        cmocka_unit_test(an_attention_factor_counts_whatever_the_type_of_scaling),
        cmocka_unit_test(short_contexts_rotate_by_their_own_divisors),
        cmocka_unit_test(a_shorter_context_is_kept_to),
    };
    return cmocka_run_group_tests(tests, cpu, end);
}

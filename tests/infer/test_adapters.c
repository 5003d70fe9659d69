/* Adapters beside the weights: they give what merged weights give, a row's own are its own whatever
 * its neighbours have, and what is no adapter of the model is refused and changes nothing. */
#include "model/adapters.h"
#include "infer/sequences.h"
#include "model/convert.h"
#include "model/files.h"
#include "model/folder.h"
#include "model/lora.h"
#include "model/open.h"
#include "support/engine.h"
#include "support/lora_files.h"
#include "support/random_model.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROMPT = 21, STEPS = 3, MOST = 64 };

static char *at(const char *name) {
    static char path[4][160];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static km_config config_of(km_arch arch) {
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = 4,
                   .dim = 64,
                   .context = MOST,
                   .vocab = 300,
                   .bias = arch == KM_ARCH_GPT2};
    if (arch != KM_ARCH_GPT2) c.kv_heads = 2;
    return random_config(c);
}

static km_net *net_of(km_ctx *ctx, const km_config *c) {
    km_net *m = km_net_new(ctx, c, KM_F32);
    assert_ok(ctx);
    assert_int_equal(km_net_init(m, 7), KM_OK);
    return m;
}

static void load(km_net *m, int slot, const char *path) {
    km_error err = {0};
    if (km_adapter_load(m, slot, path, &err) != KM_OK) fail_msg("%s", err.text);
}

static km_adapter_mix mix_of(int first, float scale, int second, float other) {
    km_adapter_mix m = {.n = (first >= 0) + (second >= 0), .slot = {first, second}};
    m.scale[0] = scale, m.scale[1] = other;
    return m;
}

/* The logits after a prompt and after each of some tokens more: (STEPS + 1, vocab). */
static float *alone(km_ctx *ctx, km_net *m, const km_adapter_mix *mix, uint32_t seed) {
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    int s = km_sequences_join(b, &err);
    int32_t ids[MOST];
    size_t vocab = (size_t)m->config.vocab;
    float *v = km_alloc(sizeof *v * vocab * (STEPS + 1));
    random_ids(ids, MOST, m->config.vocab);
    km_sequences_set_mix(b, s, mix);
    if (km_sequences_read(b, s, ids + seed, PROMPT, &err) != KM_OK) fail_msg("%s", err.text);
    memcpy(v, km_sequences_logits(b, s), sizeof *v * vocab);
    for (int i = 0; i < STEPS; i++) {
        km_sequences_token t = {s, ids[(seed + PROMPT + (uint32_t)i) % MOST]};
        assert_int_equal(km_sequences_step(b, &t, 1, &err), KM_OK);
        memcpy(v + (size_t)(i + 1) * vocab, km_sequences_logits(b, s), sizeof *v * vocab);
    }
    km_sequences_free(b);
    return v;
}

static double apart(const float *a, const float *b, const km_net *m) {
    return logits_apart(a, b, m->config.vocab * (STEPS + 1));
}

static bool same_bits(const float *a, const float *b, const km_net *m) {
    return memcmp(a, b, sizeof *a * (size_t)m->config.vocab * (STEPS + 1)) == 0;
}

/* ---- Against merged weights ---- */

static void two_scaled_adapters_are_what_merging_them_gives(void **state) {
    km_ctx *ctx = *state;
    static const km_arch archs[] = {KM_ARCH_GPT2, KM_ARCH_LLAMA, KM_ARCH_QWEN3};
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        km_config c = config_of(archs[i]);
        km_error err = {0};
        lora_form one = {.rank = 4, .alpha = 8, .seed = 1},
                  two = {.rank = 3, .alpha = 6, .seed = 2};
        two.layers = archs[i] == KM_ARCH_GPT2 ? "c_attn" : "q_proj down_proj";
        write_lora_folder(at("one"), &c, &one);
        write_lora_folder(at("two"), &c, &two);
        km_net *m = net_of(ctx, &c);
        load(m, 5, at("one"));
        load(m, 2, at("two"));
        km_adapter_mix mix = mix_of(2, -1.5f, 5, 0.5f);
        float *got = alone(ctx, m, &mix, 0), *plain = alone(ctx, m, &(km_adapter_mix){0}, 0);
        one.alpha *= 0.5, two.alpha *= 1.5; /* and B's sign below */
        km_net *merged = net_of(ctx, &c);
        write_lora_folder(at("one"), &c, &one);
        assert_int_equal(km_lora_load(merged, at("one"), &err), KM_OK);
        assert_int_equal(km_lora_merge(merged, &err), KM_OK);
        assert_int_equal(km_lora_load(merged, at("two"), &err), KM_OK);
        for (int k = 0; k < merged->params.n; k++) {
            km_param *p = &merged->params.at[k];
            if (!strstr(p->name, ".lora_B")) continue;
            km_scope_begin(ctx);
            km_no_grad_begin(ctx);
            km_assign(ctx, p->t, km_mul_scalar(ctx, p->t, -1.5));
            km_no_grad_end(ctx);
            km_scope_end(ctx, NULL);
        }
        assert_int_equal(km_lora_merge(merged, &err), KM_OK);
        float *want = alone(ctx, merged, &(km_adapter_mix){0}, 0);
        assert_true(apart(want, got, m) < 1e-5);
        assert_true(apart(plain, got, m) > 1e-2);
        km_free(got), km_free(plain), km_free(want);
        km_net_free(m), km_net_free(merged);
    }
}

/* GGUF has rows of q and k in another order, in models and in adapters. */
static void both_kinds_of_files_fit_both_kinds_of_models(void **state) {
    km_ctx *ctx = *state;
    km_config c = config_of(KM_ARCH_LLAMA);
    km_error err = {0};
    km_net *hf = net_of(ctx, &c);
    lora_form f = {.rank = 4, .alpha = 8, .seed = 5};
    write_lora_folder(at("peft"), &c, &f);
    write_lora_gguf(at("lora.gguf"), &c, &f);
    assert_int_equal(mkdir(at("model"), 0777), 0);
    assert_int_equal(km_net_save(hf, at("model"), &err), KM_OK);
    km_conversion how = {
        .in = at("model"), .out = at("model.gguf"), .dtype = KM_F32, .no_tokenizer = true};
    km_conversion_done done;
    if (km_convert_weights(&how, &done, &err) != KM_OK) fail_msg("%s", err.text);
    km_net *gguf = km_net_open(ctx, at("model.gguf"), NULL, &err);
    assert_non_null(gguf);
    assert_int_equal(gguf->block[0].attention.pairs, KM_ROPE_ADJACENT);
    float *want = NULL;
    for (int i = 0; i < 4; i++) {
        km_net *m = i & 1 ? gguf : hf;
        load(m, i, i & 2 ? at("lora.gguf") : at("peft"));
        km_adapter_mix mix = mix_of(i, 1, -1, 0);
        float *got = alone(ctx, m, &mix, 0);
        if (!want) want = got;
        assert_true(apart(want, got, m) < 1e-5);
        if (want != got) km_free(got);
    }
    km_free(want);
    km_net_free(hf), km_net_free(gguf);
}

/* ---- Neighbours ---- */

static void mixed_rows(km_ctx *ctx, km_net *m) {
    enum { N = 6 };
    km_adapter_mix mix[N] = {{0}, mix_of(0, 1, -1, 0), mix_of(1, 1, -1, 0), mix_of(0, 0.5f, 1, 2),
                             {0}, mix_of(0, 1, -1, 0)};
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    o.sequences = N;
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    int32_t ids[MOST];
    size_t vocab = (size_t)m->config.vocab;
    float *got[N];
    km_sequences_token t[N];
    random_ids(ids, MOST, m->config.vocab);
    for (int i = 0; i < N; i++) {
        int s = km_sequences_join(b, &err);
        t[i].sequence = s;
        got[i] = km_alloc(sizeof *got[i] * vocab * (STEPS + 1));
        km_sequences_set_mix(b, s, &mix[i]);
        assert_int_equal(km_sequences_read(b, s, ids + i, PROMPT, &err), KM_OK);
        memcpy(got[i], km_sequences_logits(b, s), sizeof *got[i] * vocab);
    }
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < N; i++) t[i].id = ids[(i + PROMPT + k) % MOST];
        uint64_t before = km_alloc_count();
        assert_int_equal(km_sequences_step(b, t, N, &err), KM_OK);
        if (k > 1) assert_int_equal(km_alloc_count(), before); /* the first one is captured */
        for (int i = 0; i < N; i++)
            memcpy(got[i] + (size_t)(k + 1) * vocab, km_sequences_logits(b, t[i].sequence),
                   sizeof *got[i] * vocab);
    }
    for (int i = 0; i < N; i++) {
        float *want = alone(ctx, m, &mix[i], (uint32_t)i);
        assert_true(same_bits(want, got[i], m));
        km_free(want), km_free(got[i]);
    }
    km_sequences_free(b);
}

static void rows_of_other_adapters_change_no_bit(void **state) {
    km_ctx *ctx = *state;
    static const char *const mixes[] = {"q4_k_m", "q8_0", "f32"};
    for (int i = 0; i < 3; i++) {
        km_config c = config_of(KM_ARCH_LLAMA);
        c.dim = 256, c.hidden = 512, c.head_dim = 64;
        km_net *m = random_model(ctx, &c, mixes[i], 3, NULL);
        lora_form one = {.rank = 5, .alpha = 8, .seed = 1, .size = 0.3};
        lora_form two = {
            .rank = 12, .alpha = 8, .seed = 2, .layers = "o_proj up_proj k_proj", .size = 0.3};
        write_lora_folder(at("one"), &m->config, &one);
        write_lora_gguf(at("two.gguf"), &m->config, &two);
        float *before = alone(ctx, m, &(km_adapter_mix){0}, 0);
        load(m, 0, at("one"));
        load(m, 1, at("two.gguf"));
        km_adapter_mix first = mix_of(0, 1, -1, 0);
        float *with = alone(ctx, m, &first, 0), *after = alone(ctx, m, &(km_adapter_mix){0}, 0);
        assert_true(same_bits(before, after, m)); /* loaded, and not used */
        assert_true(apart(before, with, m) > 1e-2);
        mixed_rows(ctx, m);
        km_free(before), km_free(with), km_free(after);
        km_net_free(m);
    }
}

static void captured_steps_follow_adapters_that_come_and_go(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_config c = config_of(KM_ARCH_LLAMA);
    km_net *m = net_of(ctx, &c);
    lora_form f = {.rank = 4, .alpha = 8, .seed = 1}, g = {.rank = 6, .alpha = 8, .seed = 2};
    write_lora_folder(at("one"), &c, &f);
    write_lora_folder(at("two"), &c, &g);
    load(m, 0, at("one"));
    km_adapter_mix mix = mix_of(0, 1, -1, 0);
    float *want = alone(ctx, m, &mix, 0);
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    int s = km_sequences_join(b, &err);
    int32_t ids[MOST];
    size_t vocab = (size_t)c.vocab;
    random_ids(ids, MOST, c.vocab);
    km_sequences_set_mix(b, s, &mix);
    for (int round = 0; round < 4; round++) {
        if (round == 1) load(m, 1, at("two"));
        if (round == 2) assert_int_equal(km_adapter_unload(m, 1, &err), KM_OK);
        km_sequences_rewind(b, s, 0);
        assert_int_equal(km_sequences_read(b, s, ids, PROMPT, &err), KM_OK);
        for (int i = 0; i < STEPS; i++) {
            km_sequences_token t = {s, ids[PROMPT + i]};
            assert_int_equal(km_sequences_step(b, &t, 1, &err), KM_OK);
            assert_memory_equal(km_sequences_logits(b, s), want + (size_t)(i + 1) * vocab,
                                sizeof *want * vocab);
        }
    }
    /* What was read with others is forgotten; a fork keeps to its own. */
    assert_true(km_sequences_length(b, s) > 0);
    km_adapter_mix half = mix_of(0, 0.5f, -1, 0);
    km_sequences_set_mix(b, s, &mix);
    assert_int_equal(km_sequences_length(b, s), PROMPT + STEPS);
    km_sequences_set_mix(b, s, &half);
    assert_int_equal(km_sequences_length(b, s), 0);
    assert_null(km_sequences_logits(b, s));
    km_free(want);
    km_sequences_free(b);
    km_net_free(m);
}

static void a_model_in_parts_has_adapters_in_each(void **state) {
    km_ctx *ctx = *state;
    km_config c = config_of(KM_ARCH_LLAMA);
    c.dim = 256, c.hidden = 512, c.head_dim = 64;
    km_open_split split = {.device = {"cpu", "cpu"}, .layers = {1, 1}, .n = 2};
    km_net *whole = random_model(ctx, &c, "q8_0", 3, NULL);
    km_net *parts = random_model(ctx, &c, "q8_0", 3, &split);
    assert_non_null(parts->next);
    lora_form f = {.rank = 4, .alpha = 8, .seed = 1};
    write_lora_folder(at("one"), &whole->config, &f);
    load(whole, 3, at("one"));
    load(parts, 3, at("one"));
    km_adapter_mix mix = mix_of(3, 1, -1, 0);
    float *a = alone(ctx, whole, &mix, 0), *b = alone(ctx, parts, &mix, 0);
    assert_true(apart(a, b, whole) < 1e-5);
    km_free(a), km_free(b);
    km_net_free(whole), km_net_free(parts);
}

/* ---- Wrong files ---- */

static void refused(km_net *m, const char *path, km_status code, const char *text) {
    km_error err = {0};
    uint64_t changes = m->adapters.changes;
    km_status s = km_adapter_load(m, 1, path, &err);
    if (s != code || !strstr(err.text, text)) fail_msg("%d '%s', not '%s'", (int)s, err.text, text);
    assert_true(m->adapters.changes == changes);
    assert_false(km_failed(m->ctx));
}

static void cut_short(const char *path) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    fclose(f);
    assert_int_equal(truncate(path, n - 9), 0);
}

static void what_is_no_adapter_of_the_model_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_config c = config_of(KM_ARCH_LLAMA), wide = c, deep = c, other = config_of(KM_ARCH_GPT2);
    wide.dim = 128, wide.head_dim = 0, wide.hidden = 256;
    wide = random_config(wide);
    deep.layers = 3;
    lora_form f = {.rank = 4, .alpha = 8, .seed = 1};
    km_net *m = net_of(ctx, &c);
    write_lora_folder(at("good"), &c, &f);
    load(m, 0, at("good"));
    km_adapter_mix mix = mix_of(0, 1, -1, 0);
    float *want = alone(ctx, m, &mix, 0);
    refused(m, at("nowhere"), KM_ERR_FILE, "nowhere");
    assert_int_equal(mkdir(at("empty"), 0777), 0);
    refused(m, at("empty"), KM_ERR_FILE, "adapter_config.json");
    write_lora_folder(at("wide"), &wide, &f);
    refused(m, at("wide"), KM_ERR_SHAPE, "is [4, 128], not [4, 64] of floats");
    write_lora_folder(at("deep"), &deep, &f);
    refused(m, at("deep"), KM_ERR_FORMAT, "14 of the 42 tensors fit no layer of the model");
    write_lora_folder(at("gpt2"), &other, &f);
    refused(m, at("gpt2"), KM_ERR_FORMAT, "16 of the 16 tensors fit no layer");
    write_lora_gguf(at("gpt2.gguf"), &other, &f);
    refused(m, at("gpt2.gguf"), KM_ERR_FORMAT, "general.architecture is gpt2, not llama");
    write_lora_gguf(at("short.gguf"), &c, &f);
    cut_short(at("short.gguf"));
    refused(m, at("short.gguf"), KM_ERR_FORMAT, "short.gguf");
    write_lora_folder(at("short"), &c, &f);
    cut_short(at("short/adapter_model.safetensors"));
    refused(m, at("short"), KM_ERR_FORMAT, "adapter_model.safetensors");
    static const struct {
        const char *config, *text;
        km_status code;
    } bad[] = {
        {"{\"r\": 5, \"lora_alpha\": 8}", "not [5, 64] of floats", KM_ERR_SHAPE},
        {"{\"r\": 0, \"lora_alpha\": 8}", "\"r\"", KM_ERR_FORMAT},
        {"{\"lora_alpha\": 8}", "\"r\" is missing", KM_ERR_FORMAT},
        {"{\"r\": 4}", "\"lora_alpha\" is missing", KM_ERR_FORMAT},
        {"{\"r\": 4, \"lora_alpha\": \"8\"}", "lora_alpha", KM_ERR_FORMAT},
        {"{\"r\": 4, \"lora_alpha\": 8, \"use_dora\": true}", "DoRA is not supported",
         KM_ERR_UNSUPPORTED},
        {"{\"r\": 4, \"lora_alpha\": 8, \"peft_type\": \"IA3\"}", "type IA3, not LORA",
         KM_ERR_UNSUPPORTED},
        {"{\"r\": 4, \"lora_al", "adapter_config.json", KM_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_lora_folder(at("bad"), &c, &f);
        write_text(at("bad"), "adapter_config.json", bad[i].config);
        refused(m, at("bad"), bad[i].code, bad[i].text);
    }
    refused(m, at("good/adapter_config.json"), KM_ERR_FORMAT, "adapter_config.json");
    float *after = alone(ctx, m, &mix, 0);
    assert_true(same_bits(want, after, m));
    km_free(want), km_free(after);
    km_net_free(m);
}

static void patterns_and_rank_stabilised_scales_are_read(void **state) {
    km_ctx *ctx = *state;
    km_config c = config_of(KM_ARCH_LLAMA);
    km_net *m = net_of(ctx, &c);
    lora_form f = {.rank = 4, .alpha = 8, .seed = 1, .layers = "q_proj"};
    write_lora_folder(at("one"), &c, &f); /* alpha / rank = 2 */
    load(m, 0, at("one"));
    write_text(at("one"), "adapter_config.json",
               "{\"r\": 4, \"lora_alpha\": 4, \"use_rslora\": true}");
    load(m, 1, at("one"));
    write_text(at("one"), "adapter_config.json",
               "{\"r\": 64, \"lora_alpha\": 16, \"rank_pattern\": {\"q_proj\": 4},"
               " \"alpha_pattern\": {\"proj\": 5, \"self_attn.q_proj\": 8}}");
    load(m, 2, at("one"));
    km_adapter_mix mix = mix_of(0, 1, -1, 0);
    float *want = alone(ctx, m, &mix, 0);
    for (int slot = 1; slot < 3; slot++) {
        mix.slot[0] = slot;
        float *got = alone(ctx, m, &mix, 0);
        assert_true(same_bits(want, got, m));
        km_free(got);
    }
    km_free(want);
    km_net_free(m);
}

static void a_failed_allocation_leaves_the_model_as_it_was(void **state) {
    km_ctx *ctx = *state;
    km_config c = config_of(KM_ARCH_LLAMA);
    km_net *m = net_of(ctx, &c);
    lora_form f = {.rank = 4, .alpha = 8, .seed = 1}, g = {.rank = 2, .alpha = 8, .seed = 2};
    write_lora_folder(at("one"), &c, &f);
    write_lora_gguf(at("two.gguf"), &c, &g);
    load(m, 0, at("one"));
    km_adapter_mix mix = mix_of(0, 1, -1, 0);
    float *want = alone(ctx, m, &mix, 0);
    int failures = 0;
    bool done = false;
    for (int64_t nth = 0; !done; nth++) {
        km_error err = {0};
        uint64_t before = km_alloc_count();
        km_alloc_fail_nth(nth);
        bool in = km_adapter_load(m, 1, at("two.gguf"), &err) == KM_OK;
        bool out = in && km_adapter_unload(m, 1, &err) == KM_OK;
        done = out && km_alloc_count() - before <= (uint64_t)nth; /* it was never reached */
        km_alloc_fail_nth(-1);
        if (!out) assert_true(err.text[0] != 0);
        if (in && !out) assert_int_equal(km_adapter_unload(m, 1, &err), KM_OK);
        failures += !out;
        assert_false(km_failed(ctx));
    }
    assert_true(failures > 10);
    float *after = alone(ctx, m, &mix, 0);
    assert_true(same_bits(want, after, m));
    km_free(want), km_free(after);
    km_net_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(two_scaled_adapters_are_what_merging_them_gives),
        ON("cpu", both_kinds_of_files_fit_both_kinds_of_models),
        ON("cpu", rows_of_other_adapters_change_no_bit),
        ON("cpu", captured_steps_follow_adapters_that_come_and_go),
        ON("cpu", a_model_in_parts_has_adapters_in_each),
        ON("cpu", what_is_no_adapter_of_the_model_is_refused),
        ON("cpu", patterns_and_rank_stabilised_scales_are_read),
        ON("cpu", a_failed_allocation_leaves_the_model_as_it_was),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

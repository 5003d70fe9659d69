/* Calls of kermes.h with an allocation that fails, each in turn: the error is told, nothing is lost, and the
 * same call works afterwards. Vectors and indexes, tokens, perplexity, generation, sessions, batches, answers,
 * tensors and training by hand. */
#include "api/inputs.h"
#include "base/alloc.h"
#include "base/error.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Runs `work` with the nth allocation failing, for more and more of n, until it makes fewer. What it can do
 * without may fail unseen; otherwise the error says that there was no memory. Leaks are the sanitizer's to
 * tell. */
static void walk(bool (*work)(km_ctx *ctx), km_ctx *ctx) {
    bool reached = true;
    int failures = 0;
    for (int64_t nth = 0; reached; nth += 1 + nth / 64) {
        uint64_t before = km_alloc_count();
        km_public_fail(KM_ERR_PEER, "nothing was told");
        km_alloc_fail_nth(nth);
        bool done = work(ctx);
        km_alloc_fail_nth(-1);
        if (!done && km_last_status() != KM_ERR_MEMORY)
            fail_msg("allocation %lld: %s", (long long)nth, km_last_error());
        reached = !done || km_alloc_count() - before > (uint64_t)nth;
        failures += !done;
        km_ctx_clear_error(ctx);
        km_step_end(ctx);
    }
    assert_true(failures > 0);
}

static bool vectors_work(km_ctx *ctx) {
    float *x = some_vectors(), dist[4];
    uint64_t ids[4];
    km_index_options o = km_index_defaults();
    km_anchor_training training = km_anchor_training_defaults();
    km_measured m = {.size = sizeof m};
    o.training = &training;
    training.rounds = 2;
    o.anchors = 4;
    bool ok = km_vectors_save(in_tmp("f.npy"), "f32", x, VECTORS, DIM) == KM_OK;
    km_vectors *v = ok ? km_vectors_open(in_tmp("f.npy"), NULL) : NULL;
    ok = v && km_index_compress_from(ctx, v, NULL, in_tmp("f.kmx"), &o, NULL) == KM_OK;
    km_index *i = ok ? km_index_open(in_tmp("f.kmx")) : NULL;
    ok = i && km_index_search(i, x, 1, 4, NULL, 1, ids, dist) == KM_OK &&
         km_index_add(ctx, i, x, 3, NULL) == KM_OK && km_index_delete(i, ids, 1) == KM_OK &&
         km_index_ids(i, NULL, 0) == VECTORS + 2 &&
         km_index_decompress(i, in_tmp("g.npy"), NULL) == VECTORS + 2 &&
         km_vectors_rerank(v, KM_METRIC_L2, x, 1, ids, 4, 2, ids, dist) == KM_OK &&
         km_index_measure(ctx, i, v, x, 2, 4, NULL, &m) == KM_OK &&
         km_index_save(i, in_tmp("f.kmx"), true) == KM_OK;
    km_index_close(i);
    km_vectors_close(v);
    return ok;
}

static bool tokens_work(km_ctx *ctx) {
    static const char text[] = "the sea is calm and the boat goes by";
    int32_t ids[64];
    (void)ctx;
    km_tokenizer *t = km_tokenizer_open(tiny_path());
    bool ok = t && km_tokenizer_encode(t, text, sizeof text - 1, 0, ids, 64) > 0 &&
              km_tokenizer_decode(t, ids, 3, 0, NULL, 0) > 0 &&
              km_tokenizer_save(t, in_tmp("t.json")) == KM_OK;
    km_tokenizer_close(t);
    return ok;
}

static km_model *shared;

static bool predictions_work(km_ctx *ctx) {
    static const char text[] = "the sea is calm and the boat goes by, and the sea is calm";
    km_perplexity_options o = km_perplexity_defaults();
    km_perplexity_result r = {.size = sizeof r};
    (void)ctx;
    o.context = 8;
    o.windows = 2;
    o.save_logits = in_tmp("l");
    o.imatrix = in_tmp("i.gguf");
    return km_perplexity(shared, text, sizeof text - 1, &o, &r) == KM_OK;
}

static bool generation_works(km_ctx *ctx) {
    km_generation g = km_generation_defaults(shared);
    km_piece_event e[4];
    int32_t ids[2] = {5, 6};
    (void)ctx;
    g.max_tokens = 3;
    g.schema = "{\"type\": \"boolean\"}";
    char *text = km_generate_text(shared, "the sea", &g);
    bool ok = text != NULL;
    km_string_free(text);
    km_batch *b = ok ? km_batch_new(shared, NULL) : NULL;
    int s = b ? km_batch_join(b) : -1, n = 0;
    ok = s >= 0 && km_batch_start(b, s, ids, 2, &g) == KM_OK;
    while (ok && (n = km_batch_step(b, e, 4)) > 0)
        for (int i = 0; i < n && ok; i++)
            if (e[i].status != KM_OK) ok = km_public_fail(e[i].status, "%s", e[i].text) == KM_OK;
    ok = ok && n == 0;
    km_batch_free(b);
    return ok;
}

static bool sessions_work(km_ctx *ctx) {
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"the sea\"}]";
    static float hidden[3 * 4096];
    const int32_t ids[3] = {5, 6, 7};
    km_generation g = km_generation_defaults(shared);
    km_piece_event e;
    (void)ctx;
    g.max_tokens = 2;
    km_session *s = km_session_new(shared), *f = NULL;
    bool ok = s && km_session_read(s, ids, 3) == KM_OK && km_session_logits(s) != NULL &&
              km_session_save(s, in_tmp("s")) == KM_OK;
    f = ok ? km_session_fork(s) : NULL;
    ok = f && km_session_rewind(f, 1) == KM_OK && km_session_restore(f, in_tmp("s")) == KM_OK &&
         km_session_length(f) == 3 && km_generate_begin_ids(f, ids, 3, &g) == KM_OK;
    for (int n = 1; ok && n > 0;) ok = (n = km_generate_next(f, &e)) >= 0;
    ok = ok && km_generate_chat(s, messages, NULL, &g, NULL) == KM_OK &&
         km_embed_tokens(shared, ids, 3, hidden) == KM_OK;
    char *text = ok ? km_render_chat(shared, messages, NULL) : NULL;
    ok = text != NULL;
    km_string_free(text);
    km_session_free(f);
    km_session_free(s);
    return ok;
}

static bool kept_batches_work(km_ctx *ctx) {
    const int32_t ids[2] = {5, 6};
    km_generation g = km_generation_defaults(shared);
    km_piece_event e[4];
    (void)ctx;
    km_logit_bias on = {.id = 7, .add = 1000}; /* it goes on whatever the model thinks */
    g.max_tokens = 4;
    g.sampling.bias = &on;
    g.sampling.n_bias = 1;
    km_batch *b = km_batch_new(shared, NULL);
    int s = b ? km_batch_join(b) : -1, other = -1, n = 1;
    bool ok = s >= 0 && km_batch_start(b, s, ids, 2, &g) == KM_OK;
    for (int step = 0; ok && n > 0; step++) {
        n = km_batch_step(b, e, 4);
        ok = n >= 0;
        for (int i = 0; ok && i < n; i++)
            if (e[i].status != KM_OK) ok = km_public_fail(e[i].status, "%s", e[i].text) == KM_OK;
        if (ok && step == 0) ok = km_batch_pause(b, s) == KM_OK && km_batch_resume(b, s) == KM_OK;
    }
    ok = ok && km_batch_save(b, s, in_tmp("b")) == KM_OK && (other = km_batch_join(b)) >= 0 &&
         km_batch_restore(b, other, in_tmp("b")) == KM_OK;
    km_batch_free(b);
    return ok;
}

static void take_answer(void *user, const km_answer_part *part) {
    (void)part;
    ++*(int *)user;
}

static bool answers_work(km_ctx *ctx) {
    static const char *const tools[] = {"sail"};
    static const char text[] =
        "so <tool_call>{\"name\": \"sail\", \"arguments\": {\"to\": \"the sea\"}}</tool_call>";
    int parts = 0;
    (void)ctx;
    km_answer_parser *p = km_answer_parser_new(tools, 1, 0, take_answer, &parts);
    bool ok = p && km_answer_parser_put(p, text, sizeof text - 1) == KM_OK &&
              km_answer_parser_end(p) == KM_OK && km_answer_parser_calls(p) == 1 && parts > 0;
    km_answer_parser_free(p);
    return ok;
}

/* A step of training by hand, ops that make an order, and a checkpoint. */
static bool tensors_work(km_ctx *ctx) {
    km_optim_settings settings = km_optim_defaults();
    km_param_list *params = km_param_list_new();
    km_tensor *w = params ? km_param_add(ctx, params, KM_F32, KM_SHAPE(4, DIM), true, "w") : NULL;
    km_optimizer *o = w ? km_optimizer_new(ctx, params, &settings) : NULL;
    bool ok = o && km_optimizer_set(ctx, o, 0.1, 1) == KM_OK;
    km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(VECTORS, DIM), some_vectors()), *at = NULL;
    km_tensor *y = ok ? km_linear(ctx, x, w, NULL, KM_ACT_GELU) : NULL;
    ok = y && km_backward(ctx, km_sum(ctx, km_mul(ctx, y, y), NULL, 0, false)) == KM_OK &&
         km_optimizer_step(ctx, o) == KM_OK &&
         km_param_list_save(ctx, in_tmp("p.safetensors"), params, o, 1) == KM_OK &&
         km_param_list_load(ctx, in_tmp("p.safetensors"), params, o, NULL) == KM_OK &&
         km_sort(ctx, x, 1, true, &at) && km_topk(ctx, x, 2, 1, true, &at) &&
         km_cumsum(ctx, x, 0) && km_repeat(ctx, x, 0, 2);
    km_optimizer_free(o);
    km_param_list_free(params);
    if (!ok && km_ctx_status(ctx) != KM_OK)
        km_public_fail(km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    else if (!params)
        km_public_fail(KM_ERR_MEMORY, "no list");
    return ok;
}

static void an_allocation_that_fails_is_told_and_loses_nothing(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.threads = 1;
    shared = km_model_open(tiny_path(), &o);
    assert_true(ctx && shared);
    walk(tokens_work, ctx);
    walk(vectors_work, ctx);
    walk(predictions_work, ctx);
    walk(generation_works, ctx);
    walk(sessions_work, ctx);
    walk(kept_batches_work, ctx);
    walk(answers_work, ctx);
    walk(tensors_work, ctx);
    km_model_close(shared);
    km_ctx_free(ctx);
    static const char *const left[] = {"f.npy",  "f.kmx", "g.npy", "t.json",       "l",
                                       "i.gguf", "s",     "b",     "p.safetensors"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) remove(in_tmp(left[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_allocation_that_fails_is_told_and_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

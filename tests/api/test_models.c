/* Models from C: opened from everywhere, described, tokenized, rendered; texts generated all at once
 * and step by step; and what is wrong is told, with nothing lost. */
#include "base/alloc.h"
#include "kermes.h"
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *tiny(void) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/models/kermes-tiny.gguf", source ? source : ".");
    return path;
}

static km_model *opened(void) {
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.threads = 2;
    o.context = 256;
    km_model *m = km_model_open(tiny(), &o);
    if (!m) fail_msg("%s", km_last_error());
    return m;
}

static km_generation greedy(km_model *m, int64_t tokens) {
    km_generation g = km_generation_defaults(m);
    g.sampling = km_sampling_defaults();
    g.sampling.temperature = 0;
    g.max_tokens = tokens;
    return g;
}

#define assert_fails(call, code)                                                                   \
    do {                                                                                           \
        assert_int_equal(call, code);                                                              \
        assert_int_equal(km_last_status(), code);                                                  \
        assert_true(km_last_error()[0] != 0);                                                      \
    } while (0)

/* ---- What it is ---- */

static void a_model_is_described_and_gives_its_tokens(void **state) {
    (void)state;
    km_model *m = opened();
    km_model_info i = km_model_describe(m);
    assert_int_equal(i.size, sizeof i);
    assert_string_equal(i.path, tiny());
    assert_string_equal(i.architecture, "llama");
    assert_string_equal(i.devices, "cpu");
    assert_int_equal(i.context, 256);
    assert_true(i.trained_context >= 256 && i.vocab > 256 && i.layers > 0 && i.parameters > 1000);
    char *json = km_model_describe_json(m);
    assert_non_null(strstr(json, "\"general.architecture\""));
    km_string_free(json);
    const char *text = "the sea is large";
    int32_t ids[64];
    char back[64];
    int64_t n = km_tokenize(m, text, strlen(text), KM_TOKENS_PLAIN, ids, 64);
    assert_true(n > 1 && n < 64);
    assert_int_equal(km_tokenize(m, text, strlen(text), KM_TOKENS_PLAIN, NULL, 0), n);
    assert_int_equal(km_detokenize(m, ids, (size_t)n, 0, back, sizeof back), strlen(text));
    assert_memory_equal(back, text, strlen(text));
    size_t bytes = 0, all = 0;
    for (int64_t k = 0; k < n; k++) {
        assert_non_null(km_token_piece(m, ids[k], &bytes));
        all += bytes;
    }
    assert_int_equal(all, strlen(text));
    assert_null(km_token_piece(m, 1 << 30, &bytes));
    assert_true(km_model_eos(m) >= 0 && km_token_ends(m, km_model_eos(m)));
    assert_false(km_token_ends(m, ids[0]));
    km_model_close(m);
}

static void a_chat_is_rendered(void **state) {
    (void)state;
    km_model *m = opened();
    km_render_options r = km_render_defaults();
    r.chat_template = "chatml";
    char *text = km_render_chat(m, "[{\"role\": \"user\", \"content\": \"Hello\"}]", &r);
    assert_string_equal(text, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    km_string_free(text);
    r.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}";
    r.no_answer = true;
    text = km_render_chat(m, "[{\"role\": \"user\", \"content\": \"Hello\"}]", &r);
    assert_string_equal(text, "[Hello]");
    km_string_free(text);
    assert_null(km_render_chat(m, "nonsense", &r));
    assert_int_equal(km_last_status(), KM_ERR_FORMAT);
    assert_null(km_render_chat(m, "{}", &r));
    assert_int_equal(km_last_status(), KM_ERR_FORMAT);
    assert_null(km_render_chat(m, NULL, &r));
    assert_int_equal(km_last_status(), KM_ERR_NULL);
    km_model_close(m);
}

/* ---- From everywhere ---- */

static char *file_bytes(size_t *n) {
    FILE *f = fopen(tiny(), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

static km_status read_piece(void *user, uint64_t offset, void *to, size_t n) {
    memcpy(to, (const char *)user + offset, n);
    return KM_OK;
}

static km_status read_nothing(void *user, uint64_t offset, void *to, size_t n) {
    (void)user, (void)offset, (void)to, (void)n;
    return KM_ERR_FILE;
}

static void a_file_is_opened_by_path_descriptor_memory_and_reader(void **state) {
    (void)state;
    size_t bytes = 0;
    char *data = file_bytes(&bytes);
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.context = 128;
    int fd = open(tiny(), O_RDONLY);
    km_model *m[4] = {km_model_open(tiny(), &o), km_model_open_fd(fd, &o),
                      km_model_open_memory(data, bytes, &o),
                      km_model_open_reader(&(km_reader){bytes, read_piece, data}, &o)};
    close(fd);
    char *first = NULL;
    for (int i = 0; i < 4; i++) {
        if (!m[i]) fail_msg("%d: %s", i, km_last_error());
        km_generation g = greedy(m[i], 8);
        char *text = km_generate_text(m[i], "Once upon a time", &g);
        if (!text) fail_msg("%d: %s", i, km_last_error());
        if (i == 0) first = text;
        assert_string_equal(text, first);
        if (i > 0) km_string_free(text);
        km_model_close(m[i]);
    }
    km_string_free(first);
    assert_null(km_model_open_memory(data, 100, &o));
    assert_null(km_model_open_reader(&(km_reader){bytes, read_nothing, NULL}, &o));
    assert_int_equal(km_last_status(), KM_ERR_FILE);
    assert_null(km_model_open_fd(-1, &o));
    assert_null(km_model_open("/nowhere/at/all.gguf", &o));
    assert_int_equal(km_last_status(), KM_ERR_FILE);
    free(data);
}

static bool stop_loading(void *user, uint64_t done, uint64_t total) {
    (void)total;
    *(uint64_t *)user = done;
    return false;
}

static void loading_can_be_stopped_and_weights_left_out(void **state) {
    (void)state;
    uint64_t done = 0;
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.progress = stop_loading;
    o.user = &done;
    assert_null(km_model_open(tiny(), &o));
    assert_int_equal(km_last_status(), KM_ERR_STATE);
    assert_true(done > 0);
    o.tokenizer_only = true;
    km_model *m = km_model_open(tiny(), &o);
    assert_non_null(m);
    assert_true(km_tokenize(m, "a", 1, 0, NULL, 0) > 0);
    assert_null(km_session_new(m));
    assert_int_equal(km_last_status(), KM_ERR_STATE);
    km_model_close(m);
}

/* ---- Texts ---- */

typedef struct heard {
    char text[4096];
    size_t n;
    int events, tokens, ends;
    km_end_reason end;
} heard;

static bool hear(void *user, const km_piece_event *e) {
    heard *h = user;
    assert_true(h->n + e->bytes < sizeof h->text);
    memcpy(h->text + h->n, e->text, e->bytes);
    h->n += e->bytes;
    h->text[h->n] = 0;
    h->events++;
    h->tokens += e->id >= 0;
    h->ends += e->end != KM_ENDED_NOT;
    h->end = e->end;
    return true;
}

static void a_text_is_the_same_by_callback_by_steps_and_at_once(void **state) {
    (void)state;
    km_model *m = opened();
    km_generation g = greedy(m, 20);
    g.past_end = true;
    heard h = {.n = 0};
    g.on_token = hear;
    g.user = &h;
    km_session *s = km_session_new(m);
    km_generated got = {.size = sizeof got};
    assert_int_equal(km_generate(s, "The sea", 7, &g, &got), KM_OK);
    assert_int_equal(h.ends, 1);
    assert_int_equal(h.end, got.end);
    assert_int_equal(h.tokens, got.tokens);
    char *text = km_generate_text(m, "The sea", &g);
    assert_string_equal(text, h.text);
    km_string_free(text);
    heard by_step = {.n = 0};
    assert_int_equal(km_generate_begin(s, "The sea", 7, &g), KM_OK);
    km_piece_event e;
    int more;
    while ((more = km_generate_next(s, &e)) > 0) hear(&by_step, &e);
    assert_int_equal(more, 0);
    assert_int_equal(e.end, got.end);
    assert_string_equal(by_step.text, h.text);
    assert_int_equal(km_generate_state(s).tokens, got.tokens);
    assert_int_equal(km_session_length(s), km_generate_state(s).prompt_tokens + got.tokens - 1);
    km_session_free(s);
    km_model_close(m);
}

static void logprobs_are_those_of_the_logits(void **state) {
    (void)state;
    km_model *m = opened();
    int64_t vocab = km_model_describe(m).vocab;
    km_session *s = km_session_new(m);
    int32_t ids[32];
    int64_t n = km_tokenize(m, "The sea", 7, KM_TOKENS_ADD_SPECIAL, ids, 32);
    assert_int_equal(km_session_read(s, ids, (size_t)n), KM_OK);
    const float *x = km_session_logits(s);
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++) top = fmax(top, x[i]);
    for (int64_t i = 0; i < vocab; i++) sum += exp(x[i] - top);
    double want = -log(sum);
    km_generation g = greedy(m, 4);
    g.logprobs = 5;
    km_piece_event e;
    assert_int_equal(km_generate_begin_ids(s, ids, (size_t)n, &g), KM_OK);
    assert_int_equal(km_generate_next(s, &e), 1);
    assert_true(fabs(e.logprob - want) < 1e-4);
    assert_int_equal(e.n_top, 5);
    assert_int_equal(e.top[0].id, e.id);
    for (int i = 1; i < 5; i++) assert_true(e.top[i].logprob <= e.top[i - 1].logprob);
    km_session_free(s);
    km_model_close(m);
}

static void a_schema_a_stop_and_a_bias_hold_the_text(void **state) {
    (void)state;
    km_model *m = opened();
    km_generation g = greedy(m, 60);
    g.schema = "{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1, 2]}}, \"required\": "
               "[\"a\"], \"additionalProperties\": false}";
    char *text = km_generate_text(m, "JSON: ", &g);
    if (!text) fail_msg("%s", km_last_error());
    assert_non_null(strstr(text, "\"a\""));
    assert_int_equal(text[strlen(text) - 1], '}');
    km_string_free(text);
    g.schema = NULL;
    char *plain = km_generate_text(m, "The sea", &g);
    assert_true(strlen(plain) > 4);
    char stop[2] = {plain[3], 0};
    const char *stops[] = {stop};
    g.stops = stops;
    g.n_stops = 1;
    text = km_generate_text(m, "The sea", &g);
    assert_int_equal(strlen(text), strcspn(plain, stop));
    km_string_free(text);
    km_string_free(plain);
    g.grammar = "root ::= (";
    assert_null(km_generate_text(m, "x", &g));
    assert_int_equal(km_last_status(), KM_ERR_FORMAT);
    g.grammar = "root ::= \"a\"";
    g.schema = "{}";
    assert_null(km_generate_text(m, "x", &g));
    assert_int_equal(km_last_status(), KM_ERR_RANGE);
    km_model_close(m);
}

static void sessions_fork_rewind_save_and_restore(void **state) {
    (void)state;
    km_model *m = opened();
    km_generation g = greedy(m, 12);
    km_session *s = km_session_new(m);
    int32_t ids[32];
    int64_t n = km_tokenize(m, "Once upon a time there", 22, KM_TOKENS_ADD_SPECIAL, ids, 32);
    assert_int_equal(km_session_read(s, ids, (size_t)n), KM_OK);
    km_session *f = km_session_fork(s);
    assert_non_null(f);
    assert_int_equal(km_session_length(f), n);
    assert_memory_equal(km_session_tokens(f), ids, sizeof *ids * (size_t)n);
    assert_memory_equal(km_session_logits(f), km_session_logits(s), 1000);
    assert_int_equal(km_session_rewind(f, n - 2), KM_OK);
    assert_int_equal(km_session_length(f), n - 2);
    assert_int_equal(km_session_length(s), n);
    assert_fails(km_session_rewind(f, n), KM_ERR_RANGE);
    assert_fails(km_session_rewind(f, -1), KM_ERR_RANGE);
    char path[] = "/tmp/kermes-session-XXXXXX";
    close(mkstemp(path));
    assert_int_equal(km_session_save(s, path), KM_OK);
    assert_int_equal(km_session_restore(f, path), KM_OK);
    assert_int_equal(km_session_length(f), n);
    unlink(path);
    assert_fails(km_session_restore(f, path), KM_ERR_FILE);
    km_generated got = {.size = sizeof got};
    assert_int_equal(km_generate(f, "Once upon a time there", 22, &g, &got), KM_OK);
    assert_int_equal(got.reused, n - 1);
    km_session_free(s); /* the fork stays */
    assert_int_equal(km_generate(f, "Once upon", 9, &g, &got), KM_OK);
    km_model_close(m); /* and the model with it */
    assert_int_equal(km_generate(f, "Once upon", 9, &g, &got), KM_OK);
    km_session_free(f);
}

static void tokens_are_embedded(void **state) {
    (void)state;
    km_model *m = opened();
    int64_t dim = km_model_describe(m).dim;
    int32_t ids[] = {5, 6, 7};
    float *out = malloc(sizeof *out * 3 * (size_t)dim), one[4096];
    assert_true(dim <= 4096);
    assert_int_equal(km_embed_tokens(m, ids, 3, out), KM_OK);
    assert_int_equal(km_embed_tokens(m, ids, 1, one), KM_OK);
    for (int64_t i = 0; i < dim; i++) assert_true(fabsf(out[i] - one[i]) < 1e-2f);
    ids[1] = 1 << 30;
    assert_fails(km_embed_tokens(m, ids, 3, out), KM_ERR_RANGE);
    assert_fails(km_embed_tokens(m, ids, SIZE_MAX / 4, out), KM_ERR_RANGE);
    free(out);
    km_model_close(m);
}

/* ---- What is wrong ---- */

static void nothing_foreign_is_looked_into(void **state) {
    (void)state;
    km_model *m = opened();
    km_session *s = km_session_new(m);
    char junk[64] = {1, 2, 3};
    km_piece_event e;
    int32_t id = 1;
    for (int i = 0; i < 2; i++) {
        void *bad = i ? (void *)junk : NULL;
        km_status code = i ? KM_ERR_STATE : KM_ERR_NULL;
        assert_int_equal(km_tokenize(bad, "a", 1, 0, NULL, 0), -1);
        assert_int_equal(km_last_status(), code);
        assert_int_equal(km_detokenize(bad, &id, 1, 0, NULL, 0), -1);
        assert_null(km_token_piece(bad, 1, NULL));
        assert_int_equal(km_model_bos(bad), -1);
        assert_int_equal(km_model_describe(bad).size, 0);
        assert_null(km_model_describe_json(bad));
        assert_null(km_render_chat(bad, "[]", NULL));
        assert_fails(km_embed_tokens(bad, &id, 1, (float *)junk), code);
        assert_null(km_session_new(bad));
        assert_null(km_session_fork(bad));
        assert_fails(km_session_read(bad, &id, 1), code);
        assert_null(km_session_logits(bad));
        assert_int_equal(km_session_length(bad), -1);
        assert_fails(km_session_rewind(bad, 0), code);
        assert_fails(km_session_save(bad, "/tmp/x"), code);
        assert_fails(km_generate(bad, "a", 1, NULL, NULL), code);
        assert_fails(km_generate_chat(bad, "[]", NULL, NULL, NULL), code);
        assert_fails(km_generate_begin(bad, "a", 1, NULL), code);
        assert_int_equal(km_generate_next(bad, &e), -1);
        assert_null(km_generate_text(bad, "a", NULL));
        assert_null(km_batch_new(bad, NULL));
        assert_int_equal(km_batch_join(bad), -1);
        assert_int_equal(km_batch_step(bad, &e, 1), -1);
        assert_fails(km_batch_start(bad, 0, &id, 1, NULL), code);
        assert_fails(km_batch_leave(bad, 0), code);
        km_session_cancel(bad);
        km_session_free(bad);
        km_batch_free(bad);
        km_model_close(bad);
    }
    assert_fails(km_generate((km_session *)m, "a", 1, NULL, NULL), KM_ERR_STATE);
    assert_int_equal(km_generate_next(s, &e), -1);
    assert_int_equal(km_last_status(), KM_ERR_STATE);
    assert_fails(km_generate(s, NULL, 5, NULL, NULL), KM_ERR_NULL);
    assert_fails(km_session_read(s, (int32_t[]){-1}, 1), KM_ERR_RANGE);
    assert_fails(km_session_read(s, NULL, 3), KM_ERR_NULL);
    km_generation g = greedy(m, 4);
    g.size = 0;
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g.size = sizeof g + 1;
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g = greedy(m, -2);
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g = greedy(m, 4);
    g.logprobs = 100000;
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g = greedy(m, 4);
    g.n_stops = SIZE_MAX;
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_NULL);
    g = greedy(m, 4);
    g.sampling.n_bias = 1;
    g.sampling.bias = &(km_logit_bias){1 << 30, 1};
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g = greedy(m, 4);
    g.sampling.top_p = NAN;
    assert_fails(km_generate(s, "a", 1, &g, NULL), KM_ERR_RANGE);
    g = greedy(m, 4);
    assert_int_equal(km_generate(s, "a", 1, &g, NULL), KM_OK); /* nothing was lost */
    km_session_free(s);
    km_session_free(s); /* closed already */
    km_model_close(m);
    km_model_close(m);
}

typedef struct inside {
    km_session *s;
    km_status again;
    bool frees, stops;
    int calls;
} inside;

static bool call_in(void *user, const km_piece_event *e) {
    inside *i = user;
    (void)e;
    i->calls++;
    i->again = km_generate(i->s, "b", 1, NULL, NULL);
    if (i->frees) km_session_free(i->s);
    return !i->stops;
}

static void callbacks_may_stop_call_in_and_free_their_caller(void **state) {
    (void)state;
    km_model *m = opened();
    for (int k = 0; k < 3; k++) {
        inside i = {.s = km_session_new(m), .frees = k == 1, .stops = k == 2};
        km_generation g = greedy(m, 6);
        g.past_end = true;
        g.on_token = call_in;
        g.user = &i;
        km_generated got = {.size = sizeof got};
        assert_int_equal(km_generate(i.s, "a", 1, &g, &got), KM_OK);
        assert_int_equal(i.again, KM_ERR_STATE);
        assert_int_equal(got.end, k ? KM_ENDED_CANCELLED : KM_ENDED_TOKENS);
        assert_int_equal(i.calls, k == 0 ? 6 : k == 1 ? 2 : 1);
        if (k != 1) km_session_free(i.s);
    }
    km_model_close(m);
}

/* ---- Steps and memory ---- */

static void a_step_of_decoding_makes_no_heap_allocation(void **state) {
    (void)state;
    km_model *m = opened();
    km_session *s = km_session_new(m);
    km_generation g = greedy(m, 120);
    g.past_end = true;
    g.logprobs = 3;
    km_piece_event e;
    assert_int_equal(km_generate_begin(s, "The sea", 7, &g), KM_OK);
    for (int i = 0; i < 60; i++) assert_int_equal(km_generate_next(s, &e), 1);
    uint64_t before = km_alloc_count();
    for (int i = 0; i < 50; i++) assert_int_equal(km_generate_next(s, &e), 1);
    assert_int_equal(km_alloc_count(), before);
    km_session_free(s);
    km_model_close(m);
}

static int heap_before(void **state) {
    static int64_t live;
    live = km_alloc_live();
    *state = &live;
    return 0;
}

static int heap_after(void **state) {
    km_alloc_fail_nth(-1);
    int64_t left = km_alloc_live() - *(int64_t *)*state;
    if (left) print_error("%lld heap blocks were left behind\n", (long long)left);
    return left ? -1 : 0;
}

#define TEST(test)                                                                                 \
    { #test, test, heap_before, heap_after, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_model_is_described_and_gives_its_tokens),
        TEST(a_chat_is_rendered),
        TEST(a_file_is_opened_by_path_descriptor_memory_and_reader),
        TEST(loading_can_be_stopped_and_weights_left_out),
        TEST(a_text_is_the_same_by_callback_by_steps_and_at_once),
        TEST(logprobs_are_those_of_the_logits),
        TEST(a_schema_a_stop_and_a_bias_hold_the_text),
        TEST(sessions_fork_rewind_save_and_restore),
        TEST(tokens_are_embedded),
        TEST(nothing_foreign_is_looked_into),
        TEST(callbacks_may_stop_call_in_and_free_their_caller),
        TEST(a_step_of_decoding_makes_no_heap_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

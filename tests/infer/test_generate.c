/* Text from a model: streamed in whole characters, the same for the same seed, held to a grammar
 * and to stops, in a session that is read no more than it must be. */
#include "infer/generate.h"
#include "model/small.h"

typedef struct heard {
    char text[256];
    size_t bytes;
    int64_t tokens, stop_after;
} heard;

static bool hear(void *user, int32_t id, const char *text, size_t bytes) {
    heard *h = user;
    (void)id;
    assert_true(h->bytes + bytes < sizeof h->text);
    memcpy(h->text + h->bytes, text, bytes);
    h->bytes += bytes;
    h->text[h->bytes] = 0;
    return ++h->tokens != h->stop_after;
}

static void text_is_streamed_and_the_same_for_the_same_seed(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_token *token = km_token_bytes(&err);
    assert_non_null(token);
    km_config c = small_config(KM_ARCH_GPT2);
    c.vocab = 256;
    km_net *m = km_net_new(ctx, &c, KM_F32);
    km_net_init(m, 4);
    heard h[3] = {{.stop_after = -1}, {.stop_after = -1}, {.stop_after = 5}};
    for (int i = 0; i < 3; i++) {
        km_making how = {.tokens = 30,
                         .shift = true,
                         .sampling = km_sampling_defaults(),
                         .on_text = hear,
                         .user = &h[i]};
        km_generated got;
        assert_int_equal(km_make_text(ctx, m, token, "abc", 3, &how, &got, &err), KM_OK);
        assert_int_equal(got.prompt_tokens, 3);
        assert_int_equal(got.tokens, i == 2 ? 5 : 30); /* more than the context of 12 holds */
    }
    assert_int_equal(h[0].bytes, h[1].bytes);
    assert_memory_equal(h[0].text, h[1].text, h[0].bytes);
    assert_memory_equal(h[0].text, h[2].text, 1);
    km_making how = {.tokens = 2, .sampling = km_sampling_defaults()};
    km_generated got;
    assert_int_equal(km_make_text(ctx, m, token, "", 0, &how, &got, &err), KM_OK);
    assert_int_equal(got.prompt_tokens, 1);
    assert_int_equal(km_make_text(ctx, m, token, "0123456789abc", 13, &how, &got, &err),
                     KM_ERR_RANGE);
    assert_string_equal(err.text, "the prompt has 13 tokens and the model's context 12");
    km_net_free(m);
    km_net *few = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    err = (km_error){0};
    assert_int_equal(km_make_text(ctx, few, token, "a", 1, &how, &got, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "the tokenizer has 256 tokens and the model only 29; they do not "
                                  "belong together");
    km_net_free(few);
    km_token_free(token);
}

/* A model over bytes, with room for `context` of them. */
static km_net *bytes_model(km_ctx *ctx, int64_t context) {
    km_config c = small_config(KM_ARCH_GPT2);
    c.vocab = 256;
    c.context = context;
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_ok(ctx);
    assert_int_equal(km_net_init(m, 4), KM_OK);
    return m;
}

typedef struct scene {
    km_token *token;
    km_net *model;
    km_sequence *session;
    heard h;
    km_generated got;
} scene;

static scene scene_begin(km_ctx *ctx, int64_t context) {
    km_error err = {0};
    scene s = {.token = km_token_bytes(&err), .model = bytes_model(ctx, context)};
    s.session = km_sequence_new(ctx, s.model, &err);
    assert_non_null(s.session);
    return s;
}

static void scene_end(scene *s) {
    km_sequence_free(s->session);
    km_net_free(s->model);
    km_token_free(s->token);
}

/* What follows the prompt. */
static const char *say(scene *s, const char *prompt, km_making how) {
    km_error err = {0};
    s->h = (heard){.stop_after = -1};
    how.on_text = hear;
    how.user = &s->h;
    km_status status = km_make_text_in(s->session, s->model, s->token, prompt, strlen(prompt), &how,
                                       &s->got, &err);
    if (status != KM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, KM_OK);
    return s->h.text;
}

static void a_bias_and_a_stop_shape_the_text(void **state) {
    scene s = scene_begin(*state, 64);
    km_logit_bias abc[] = {{'a', 100}, {'b', 100}};
    km_making how = {.tokens = 20, .sampling = km_sampling_defaults()};
    how.sampling.bias = abc, how.sampling.n_bias = 2;
    assert_int_equal(strspn(say(&s, "x", how), "ab"), 20);
    char whole[32];
    strcpy(whole, s.h.text);
    const char *first = strstr(whole, "ab"), *stop = "ab";
    assert_non_null(first);
    how.stops = &stop, how.n_stops = 1;
    say(&s, "x", how);
    assert_int_equal(s.got.end, KM_ENDED_STOP);
    assert_int_equal(s.h.bytes, first - whole);
    assert_memory_equal(s.h.text, whole, s.h.bytes);
    assert_int_equal(s.got.tokens, first - whole + 2);
    stop = "abx"; /* held back, but text after all */
    assert_string_equal(say(&s, "x", how), whole);
    assert_int_equal(s.got.end, KM_ENDED_TOKENS);
    scene_end(&s);
}

static void a_grammar_holds_the_text_to_it(void **state) {
    scene s = scene_begin(*state, 64);
    km_error err = {0};
    const char *text = "root ::= ([0-9] \",\")* \";\"";
    km_grammar *g = km_grammar_parse(text, strlen(text), &err);
    km_trie *trie = km_trie_new(s.token, &err);
    km_guide *guide = km_guide_new(g, trie, &err);
    assert_non_null(guide);
    km_making how = {.tokens = 50, .guide = guide, .sampling = km_sampling_defaults()};
    for (uint64_t seed = 1; seed < 6; seed++) {
        how.sampling.seed = seed;
        say(&s, "x", how);
        for (size_t i = 0; i < s.h.bytes; i++)
            assert_non_null(strchr(s.h.text[i] == ';' ? ";"
                                   : i % 2            ? ","
                                                      : "0123456789",
                                   s.h.text[i]));
        if (s.got.end == KM_ENDED_GRAMMAR)
            assert_int_equal(s.h.text[s.h.bytes - 1], ';');
        else
            assert_int_equal(s.got.end, KM_ENDED_TOKENS);
    }
    km_guide_free(guide);
    km_trie_free(trie);
    km_grammar_free(g);
    scene_end(&s);
}

static void what_the_session_holds_is_not_read_again(void **state) {
    scene s = scene_begin(*state, 64), fresh = scene_begin(*state, 64);
    km_making how = {.tokens = 5, .sampling = {.temperature = 0, .top_p = 1}};
    say(&s, "one two", how);
    assert_int_equal(s.got.reused, 0);
    char more[64];
    snprintf(more, sizeof more, "one two three");
    char text[256];
    strcpy(text, say(&s, more, how));
    assert_int_equal(s.got.reused, 7);
    assert_int_equal(s.got.prompt_tokens, 13);
    assert_string_equal(text, say(&fresh, more, how));
    strcpy(text, say(&s, "one", how)); /* shorter than what is there: its last token is read */
    assert_int_equal(s.got.reused, 2);
    km_sequence_reset(fresh.session);
    assert_string_equal(text, say(&fresh, "one", how));
    assert_int_equal(fresh.got.reused, 0);
    scene_end(&s);
    scene_end(&fresh);
}

static void a_full_context_ends_the_text_unless_it_may_shift(void **state) {
    scene s = scene_begin(*state, 12);
    km_making how = {.tokens = 30, .sampling = km_sampling_defaults()};
    say(&s, "abcd", how);
    assert_int_equal(s.got.end, KM_ENDED_CONTEXT);
    assert_int_equal(s.got.tokens, 9); /* the last one is not read any more */
    how.shift = true;
    say(&s, "abcd", how);
    assert_int_equal(s.got.end, KM_ENDED_TOKENS);
    assert_int_equal(s.got.tokens, 30);
    scene_end(&s);
}

typedef struct watch {
    int64_t calls, last;
} watch;
static bool watch_prompt(void *user, int64_t done, int64_t total) {
    watch *w = user;
    assert_true(done > w->last && done <= total);
    w->last = done;
    return ++w->calls < 2;
}

static void a_long_prompt_can_be_watched_and_stopped(void **state) {
    km_ctx *ctx = *state;
    scene s = scene_begin(ctx, 2000);
    static char prompt[1500];
    memset(prompt, 'a', sizeof prompt);
    watch w = {0};
    km_error err = {0};
    km_making how = {
        .tokens = 3, .sampling = km_sampling_defaults(), .on_prompt = watch_prompt, .user = &w};
    assert_int_equal(
        km_make_text_in(s.session, s.model, s.token, prompt, sizeof prompt, &how, &s.got, &err),
        KM_OK);
    assert_int_equal(s.got.end, KM_ENDED_CANCELLED);
    assert_int_equal(s.got.tokens, 0);
    assert_int_equal(w.last, 1024);
    how.on_prompt = NULL;
    assert_int_equal(
        km_make_text_in(s.session, s.model, s.token, prompt, sizeof prompt, &how, &s.got, &err),
        KM_OK);
    assert_int_equal(s.got.reused, 1024);
    assert_int_equal(s.got.tokens, 3);
    scene_end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", text_is_streamed_and_the_same_for_the_same_seed),
        ON("cpu", a_bias_and_a_stop_shape_the_text),
        ON("cpu", a_grammar_holds_the_text_to_it),
        ON("cpu", what_the_session_holds_is_not_read_again),
        ON("cpu", a_full_context_ends_the_text_unless_it_may_shift),
        ON("cpu", a_long_prompt_can_be_watched_and_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

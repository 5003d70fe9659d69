/* Guesses: whoever makes them, the text is the one without them, chosen greedily or drawn; good
 * ones are accepted, bad ones cost nothing but time. */
#include "infer/generate.h"
#include "support/engine.h"
#include "support/sanitized.h"
#include "support/random_model.h"
#include <math.h>

enum { VOCAB = 300, CONTEXT = 512, TOKENS = 100 };

static km_net *made(km_ctx *ctx, uint64_t seed, int layers) {
    km_config c = random_config((km_config){.arch = KM_ARCH_LLAMA,
                                            .layers = layers,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .dim = 64,
                                            .context = CONTEXT,
                                            .vocab = VOCAB});
    return random_model(ctx, &c, "q8_0", seed, NULL);
}

typedef struct heard {
    int32_t id[4 * TOKENS];
    int n;
} heard;

static bool hear(void *user, int32_t id, const char *text, size_t bytes) {
    heard *h = user;
    (void)text, (void)bytes;
    if (id >= 0) h->id[h->n++] = id;
    return true;
}

typedef struct fixture {
    km_ctx *ctx;
    km_token *token;
    km_net *m;
} fixture;

static fixture begin(void **state) {
    km_error err = {0};
    fixture f = {.ctx = *state, .token = km_token_bytes(&err)};
    f.m = made(f.ctx, 1, 2);
    return f;
}

static void end(fixture *f) {
    km_net_free(f->m);
    km_token_free(f->token);
}

static km_sampling greedy(void) {
    km_sampling s = km_sampling_defaults();
    s.temperature = 0;
    return s;
}

static km_sampling drawn(void) {
    km_sampling s = km_sampling_defaults();
    s.temperature = 0.7;
    s.top_k = 20;
    s.top_p = 0.9;
    s.repeat_penalty = 1.1;
    s.seed = 3;
    return s;
}

static int where; /* tokens are chosen: by the host, or by the op */

/* Two texts in one session, as in a chat. */
static km_generated said(fixture *f, const km_sampling *how, km_drafter *d, heard *h) {
    km_error err = {0};
    km_sequence *s = km_sequence_open(f->ctx, f->m, NULL, &err);
    if (!s) fail_msg("%s", err.text);
    km_generated got = {0}, sum = {0};
    static const char *const prompts[] = {"once upon a time there",
                                          "once upon a time, again and again"};
    for (int i = 0; i < 2; i++) {
        km_making g = {.tokens = TOKENS,
                       .past_end = true,
                       .sampling = *how,
                       .draft = d,
                       .on_text = hear,
                       .user = h};
        g.choose = where;
        if (km_make_text_in(s, f->m, f->token, prompts[i], strlen(prompts[i]), &g, &got, &err) !=
            KM_OK)
            fail_msg("%s", err.text);
        sum.tokens += got.tokens;
        sum.guessed += got.guessed;
        sum.accepted += got.accepted;
        /* What the session holds is the prompt and all but the last token. */
        assert_int_equal(km_sequence_length(s), strlen(prompts[i]) + TOKENS - 1);
        assert_memory_equal(km_sequence_tokens(s) + strlen(prompts[i]), h->id + i * TOKENS,
                            sizeof *h->id * (TOKENS - 1));
    }
    km_sequence_free(s);
    return sum;
}

static void same_text(fixture *f, const km_sampling *how, km_drafter *d, double least,
                      double most) {
    heard plain = {.n = 0}, guessed = {.n = 0};
    said(f, how, NULL, &plain);
    km_generated got = said(f, how, d, &guessed);
    assert_int_equal(plain.n, 2 * TOKENS);
    assert_int_equal(guessed.n, plain.n);
    assert_memory_equal(plain.id, guessed.id, sizeof *plain.id * (size_t)plain.n);
    double rate = (double)got.accepted / (double)got.guessed;
    assert_true(got.guessed > 0);
    if (!(rate >= least && rate <= most)) fail_msg("%g of the guesses were right", rate);
    km_drafter_free(d);
}

static km_drafter *of_model(fixture *f, km_net *m) {
    km_error err = {0};
    km_sequence *s = km_sequence_open(f->ctx, m, NULL, &err);
    if (!s) fail_msg("%s", err.text);
    return km_drafter_model(s, &err);
}

static int on_host(void **state) {
    where = KM_CHOOSE_HOST;
    return engine_open(state);
}

static int by_the_op(void **state) {
    where = KM_CHOOSE_DEVICE;
    return engine_open(state);
}

static void the_model_itself_guesses_all(void **state) {
    fixture f = begin(state);
    km_sampling a = greedy(), b = drawn();
    same_text(&f, &a, of_model(&f, f.m), 1, 1);
    b.repeat_penalty = 1; /* a penalty is what guesses know nothing of */
    /* The host and the op put tokens into another order before a number falls on one. */
    same_text(&f, &b, of_model(&f, f.m), where == KM_CHOOSE_HOST ? 1 : 0, 1);
    end(&f);
}

static void another_model_changes_no_token(void **state) {
    fixture f = begin(state);
    km_net *other = made(f.ctx, 99, 1);
    km_sampling a = greedy(), b = drawn();
    same_text(&f, &a, of_model(&f, other), 0, 0.9);
    same_text(&f, &b, of_model(&f, other), 0, 0.9);
    km_net_free(other);
    end(&f);
}

static void looking_back_finds_what_repeats(void **state) {
    fixture f = begin(state);
    km_error err = {0};
    km_sampling a = greedy(), b = drawn();
    b.repeat_penalty = 1;
    b.top_k = 2;
    same_text(&f, &a, km_drafter_lookup(&err), 0, 1);
    same_text(&f, &b, km_drafter_lookup(&err), 0, 1);
    end(&f);
}

static void look_up_guesses_what_followed(void **state) {
    (void)state;
    km_error err = {0};
    km_drafter *d = km_drafter_lookup(&err);
    const int32_t text[] = {1, 2, 3, 4, 5, 9, 9, 1, 2};
    int32_t out[KM_FEW_ROWS];
    assert_int_equal(km_drafter_guess(d, text, 9, 3, NULL, 3, out, &err), 3);
    assert_memory_equal(out, ((int32_t[]){4, 5, 9}), sizeof(int32_t[3]));
    assert_int_equal(km_drafter_guess(d, text, 9, 7, NULL, 3, out, &err), 0);
    assert_int_equal(km_drafter_guess(d, text, 9, 3, NULL, 0, out, &err), 0);
    assert_int_equal(km_drafter_guess(d, text, 0, 3, NULL, 5, out, &err), 0);
    km_drafter_free(d);
}

/* A guess is accepted as often as the model would say it: the rejection rule for certain
 * guesses. */
static void guesses_are_accepted_with_their_probability(void **state) {
    fixture f = begin(state);
    km_error err = {0};
    km_sequence *s = km_sequence_open(f.ctx, f.m, NULL, &err);
    assert_int_equal(km_sequence_read(s, (int32_t[]){10, 20, 30}, 3, &err), KM_OK);
    km_sampling how = km_sampling_defaults();
    how.top_k = 3;
    km_odds odds[3];
    int hits = 0, tries = SANITIZED ? 500 : 3000;
    for (int i = 0; i < tries; i++) {
        how.seed = (uint64_t)i + 1;
        km_sampler *k = km_sampler_new(&how, VOCAB, NULL, &err);
        int32_t id = km_sampler_pick(k, km_sequence_logits(s), NULL);
        assert_int_equal(km_sampler_odds(k, odds, 3), 3);
        hits += id == odds[0].id;
        km_sampler_free(k);
    }
    double p = odds[0].p, sd = sqrt(p * (1 - p) / tries);
    assert_true(fabs((double)hits / tries - p) < 4 * sd);
    km_sequence_free(s);
    end(&f);
}

static void tokens_that_were_tried_can_be_dropped(void **state) {
    fixture f = begin(state);
    km_error err = {0};
    km_sequence *a = km_sequence_open(f.ctx, f.m, NULL, &err),
                *b = km_sequence_open(f.ctx, f.m, NULL, &err);
    const int32_t ids[] = {5, 6, 7, 8, 9};
    assert_int_equal(km_sequence_read(a, ids, 1, &err), KM_OK);
    assert_int_equal(km_sequence_read(b, ids, 1, &err), KM_OK);
    const float *rows = km_sequence_try(a, ids + 1, 4, &err);
    assert_non_null(rows);
    assert_int_equal(km_sequence_length(a), 1);
    km_sequence_take(a, ids + 1, 2);
    assert_int_equal(km_sequence_length(a), 3);
    assert_int_equal(km_sequence_next(b, 6, &err), KM_OK);
    assert_int_equal(km_sequence_next(b, 7, &err), KM_OK);
    assert_memory_equal(km_sequence_logits(a), km_sequence_logits(b), sizeof(float) * VOCAB);
    assert_int_equal(km_sequence_next(a, 40, &err), KM_OK);
    assert_int_equal(km_sequence_next(b, 40, &err), KM_OK);
    assert_memory_equal(km_sequence_logits(a), km_sequence_logits(b), sizeof(float) * VOCAB);
    assert_null(km_sequence_try(a, (int32_t[]){1, VOCAB}, 2, &err));
    assert_int_equal(err.code, KM_ERR_RANGE);
    km_sequence_free(a);
    km_sequence_free(b);
    end(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define EACH(test)                                                                                 \
    {#test " (host)", test, on_host, engine_close, (void *)"cpu"},                                 \
        {#test " (op)", test, by_the_op, engine_close, (void *)"cpu"}
        EACH(the_model_itself_guesses_all),
        EACH(another_model_changes_no_token),
        EACH(looking_back_finds_what_repeats),
        cmocka_unit_test(look_up_guesses_what_followed),
        ON("cpu", guesses_are_accepted_with_their_probability),
        ON("cpu", tokens_that_were_tried_can_be_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

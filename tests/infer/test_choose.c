/* Choosing tokens where the logits are: the op draws from the distribution that the host's sampler
 * states, and a text made steps ahead is the text made step by step. */
#include "infer/generate.h"
#include "support/engine.h"
#include "support/random_model.h"
#include <math.h>

enum { VOCAB = 300, CONTEXT = 256, TOKENS = 60 };

/* ---- The op ---- */

static void random_logits(float *x, int64_t n, uint32_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-24f * 8 - 4;
    }
}

static int32_t chosen(km_ctx *ctx, const float *x, int64_t v, km_chooser *c) {
    km_tensor *logits = km_from_data(ctx, KM_F32, KM_SHAPE(1, v), x);
    km_tensor *how = km_from_data(ctx, KM_F32, KM_SHAPE(1, KM_SAMPLE_SETTINGS), c->settings);
    km_tensor *state = km_from_data(ctx, KM_I32, KM_SHAPE(1, KM_SAMPLE_STATE), c->state),
              *after = NULL;
    int32_t id = -2;
    km_read(ctx, km_sample_rows(ctx, logits, how, state, true, &after), &id, sizeof id);
    km_read(ctx, after, c->state, sizeof c->state);
    km_step_end(ctx);
    assert_ok(ctx);
    return id;
}

/* Draws many times and compares with what the host's sampler says the odds are. */
static void as_the_host_says(km_ctx *ctx, const km_sampling *s) {
    enum { DRAWS = 4000, V = 80 };
    float x[V];
    km_error err = {0};
    km_odds odds[V];
    int times[V] = {0};
    random_logits(x, V, 9);
    const int32_t said[] = {3, 5, 3, 70, 71, 3};
    km_sampler *host = km_sampler_new(s, V, NULL, &err);
    assert_int_equal(km_sampler_see(host, said, 6, &err), KM_OK);
    km_sampler_pick(host, x, NULL);
    int64_t n = km_sampler_odds(host, odds, V);
    km_chooser start, c;
    assert_true(km_chooser_begin(&start, s, V, 0));
    km_chooser_see(&start, said, 6);
    for (int i = 0; i < DRAWS; i++) {
        c = start;
        c.state[KM_SAMPLE_SEED] = i + 1;
        times[chosen(ctx, x, V, &c)]++;
        assert_int_equal(c.state[KM_SAMPLE_SEEN], 7);
        assert_int_equal(c.state[KM_SAMPLE_DRAWS], 1);
    }
    int all = 0;
    for (int64_t i = 0; i < n; i++) {
        double p = odds[i].p, sd = sqrt(p * (1 - p) / DRAWS);
        if (fabs((double)times[odds[i].id] / DRAWS - p) > 4.5 * sd + 1e-3)
            fail_msg("token %d: %d times, expected %g", odds[i].id, times[odds[i].id], p * DRAWS);
        all += times[odds[i].id];
    }
    assert_int_equal(all, DRAWS); /* nothing but what the host leaves */
    km_sampler_free(host);
}

static void the_op_draws_what_the_sampler_states(void **state) {
    km_sampling s = km_sampling_defaults();
    s.top_k = 12;
    s.top_p = 0.8;
    s.min_p = 0.1;
    s.temperature = 1.3;
    as_the_host_says(*state, &s);
    s = km_sampling_defaults();
    s.top_p = 0.6;
    s.temperature = 2;
    s.repeat_penalty = 1.5;
    s.frequency_penalty = 0.3;
    s.presence_penalty = 0.2;
    as_the_host_says(*state, &s);
}

static void the_likeliest_is_the_hosts(void **state) {
    km_ctx *ctx = *state;
    float x[500];
    km_sampling s = km_sampling_defaults();
    km_chooser c;
    s.temperature = 0;
    assert_true(km_chooser_begin(&c, &s, 500, 0));
    for (uint32_t k = 0; k < 20; k++) {
        random_logits(x, 500, k);
        x[k] = NAN;
        x[400] = x[300]; /* the lower of two that are alike, should they win */
        assert_int_equal(chosen(ctx, x, 500, &c), km_likeliest(x, 500));
    }
    for (int i = 0; i < 500; i++) x[i] = i % 2 ? NAN : -INFINITY;
    assert_int_equal(chosen(ctx, x, 500, &c), -1);
    x[77] = INFINITY;
    assert_int_equal(chosen(ctx, x, 500, &c), 77);
}

static void settings_that_the_op_does_not_know_are_the_hosts(void **state) {
    (void)state;
    km_chooser c;
    km_sampling s = km_sampling_defaults();
    assert_true(km_chooser_begin(&c, &s, 100, 0));
    s.mirostat = 2;
    assert_false(km_chooser_begin(&c, &s, 100, 0));
    s = km_sampling_defaults();
    s.repeat_penalty = 1.1;
    s.repeat_last = KM_SAMPLE_RING;
    assert_true(km_chooser_begin(&c, &s, 100, 0));
    s.repeat_last = -1;
    assert_false(km_chooser_begin(&c, &s, 100, 0));
}

/* ---- Texts ---- */

typedef struct heard {
    int32_t id[2 * TOKENS];
    int n, stop_after;
} heard;

static bool hear(void *user, int32_t id, const char *text, size_t bytes) {
    heard *h = user;
    (void)text, (void)bytes;
    if (id >= 0) h->id[h->n++] = id;
    return h->n != h->stop_after;
}

static km_net *made(km_ctx *ctx, const km_open_split *split) {
    km_config c = random_config((km_config){.arch = KM_ARCH_LLAMA,
                                            .layers = 2,
                                            .heads = 2,
                                            .kv_heads = 1,
                                            .dim = 64,
                                            .context = CONTEXT,
                                            .vocab = VOCAB});
    return random_model(ctx, &c, "q8_0", 1, split);
}

/* A text, and the session's length after it. */
static int64_t said(km_net *m, const km_sampling *s, int where, int stop_after, heard *h) {
    km_error err = {0};
    km_token *token = km_token_bytes(&err);
    km_sequence *session = km_sequence_open(m->ctx, m, NULL, &err);
    if (!session) fail_msg("%s", err.text);
    *h = (heard){.stop_after = stop_after};
    km_making g = {.tokens = TOKENS, .past_end = true, .sampling = *s, .on_text = hear, .user = h};
    g.choose = where;
    km_generated got;
    if (km_make_text_in(session, m, token, "once upon", 9, &g, &got, &err) != KM_OK)
        fail_msg("%s", err.text);
    int64_t length = km_sequence_length(session);
    assert_memory_equal(km_sequence_tokens(session) + 9, h->id,
                        sizeof *h->id * (size_t)(length - 9));
    km_sequence_free(session);
    km_token_free(token);
    return length;
}

static void texts_are_those_of_the_host(void **state) {
    km_net *m = made(*state, NULL);
    heard a, b;
    km_sampling s = km_sampling_defaults();
    s.temperature = 0;
    for (int penalties = 0; penalties < 2; penalties++) {
        s.repeat_penalty = penalties ? 1.3 : 1;
        s.presence_penalty = penalties ? 0.5 : 0;
        said(m, &s, KM_CHOOSE_HOST, -1, &a);
        assert_int_equal(said(m, &s, KM_CHOOSE_DEVICE, -1, &b), 9 + TOKENS - 1);
        assert_int_equal(b.n, TOKENS);
        assert_memory_equal(a.id, b.id, sizeof *a.id * TOKENS);
    }
    /* A text that is stopped leaves what was shown and no more. */
    for (int stop = 1; stop < 30; stop += 7)
        assert_int_equal(said(m, &s, KM_CHOOSE_DEVICE, stop, &b), 9 + stop - 1);
    km_net_free(m);
}

static void steps_ahead_are_steps(void **state) {
    km_ctx *ctx = *state;
    km_net *m = made(ctx, NULL);
    km_error err = {0};
    km_sampling s = km_sampling_defaults();
    s.top_k = 30;
    s.repeat_penalty = 1.2;
    int32_t one[24], many[24];
    for (int way = 0; way < 2; way++) {
        km_chooser c;
        int32_t last = 65, *out = way ? many : one;
        km_sequence *session = km_sequence_open(ctx, m, NULL, &err);
        assert_true(km_chooser_begin(&c, &s, VOCAB, 0));
        assert_int_equal(km_sequence_read(session, (int32_t[]){1, 2, 3}, 3, &err), KM_OK);
        for (int i = 0; i < 24; i += way ? 8 : 1) {
            assert_int_equal(km_sequence_choose(session, last, way ? 8 : 1, &c, out + i, &err),
                             KM_OK);
            last = out[i + (way ? 7 : 0)];
        }
        assert_int_equal(km_sequence_length(session), 27);
        assert_int_equal(km_sequence_tokens(session)[3], 65);
        assert_memory_equal(km_sequence_tokens(session) + 4, out, sizeof *out * 23);
        assert_int_equal(km_sequence_choose(session, last, 65, &c, out, &err), KM_ERR_RANGE);
        km_sequence_free(session);
        err = (km_error){0};
    }
    assert_memory_equal(one, many, sizeof one);
    km_net_free(m);
}

static void parts_choose_where_they_end(void **state) {
    km_open_split split = {.device = {"cpu", "cpu"}, .layers = {1, 1}, .n = 2};
    heard a, b;
    km_sampling s = km_sampling_defaults();
    s.top_k = 20;
    s.seed = 8;
    km_net *m = made(*state, NULL);
    said(m, &s, KM_CHOOSE_DEVICE, -1, &a);
    km_net_free(m);
    m = made(*state, &split);
    said(m, &s, KM_CHOOSE_DEVICE, -1, &b);
    km_net_free(m);
    assert_memory_equal(a.id, b.id, sizeof *a.id * TOKENS);
}

/* ---- A device that fails ---- */

static km_sequence *other_session;
static int rescues;

static km_sequence *rescue(void *user, km_sequence *failed, const km_error *why) {
    km_error err = {0};
    (void)user;
    assert_int_equal(why->code, KM_ERR_GPU);
    rescues++;
    km_sequence *s = other_session;
    if (km_sequence_read(s, km_sequence_tokens(failed), (size_t)km_sequence_length(failed), &err) !=
        KM_OK)
        fail_msg("%s", err.text);
    return s;
}

static void a_text_goes_on_elsewhere(void **state) {
    km_ctx *spare = *state;
    km_error err = {0};
    km_token *token = km_token_bytes(&err);
    km_net *second = made(spare, NULL);
    heard plain, h;
    km_sampling s = km_sampling_defaults();
    s.seed = 4;
    said(second, &s, KM_CHOOSE_HOST, -1, &plain);
    for (int at = 1; at < 40; at += 12) { /* while the prompt is read, and later */
        km_ctx *ctx = km_ctx_new("cpu", 1);
        km_net *m = made(ctx, NULL);
        km_sequence *session = km_sequence_open(ctx, m, NULL, &err);
        other_session = km_sequence_open(spare, second, NULL, &err);
        h = (heard){.stop_after = -1};
        rescues = 0;
        km_making g = {.tokens = TOKENS,
                       .past_end = true,
                       .sampling = s,
                       .on_text = hear,
                       .rescue = rescue,
                       .user = &h};
        km_generated got;
        km_plan_fail_at(at);
        assert_int_equal(km_make_text_in(session, m, token, "once upon", 9, &g, &got, &err), KM_OK);
        assert_int_equal(rescues, 1);
        assert_int_equal(h.n, TOKENS);
        assert_memory_equal(h.id, plain.id, sizeof *h.id * TOKENS);
        km_sequence_free(session);
        km_sequence_free(other_session);
        km_net_free(m);
        km_ctx_free(ctx);
    }
    km_plan_fail_at(0);
    km_net_free(second);
    km_token_free(token);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(the_op_draws_what_the_sampler_states),
        ON_EACH(the_likeliest_is_the_hosts),
        cmocka_unit_test(settings_that_the_op_does_not_know_are_the_hosts),
        ON("cpu", texts_are_those_of_the_host),
        ON("cpu", steps_ahead_are_steps),
        ON("cpu", parts_choose_where_they_end),
        ON("cpu", a_text_goes_on_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

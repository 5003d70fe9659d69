/* Batches: each sequence gets the text that it would get alone, whoever joins, leaves, forks or
 * stops meanwhile; failures are told to those they belong to. */
#include "engine/tiny_model.h"
#include <math.h>
#include <unistd.h>

enum { MANY = 5, TOKENS = 24 };

static const char *const prompts[MANY] = {
    "Once upon a time", "The sea is", "A small dog ran to the house because",
    "One day a girl named Lily went to the park with her mom. She saw a big tree and said", "I"};

typedef struct told {
    char text[2048];
    size_t n;
    int tokens, ends;
    km_end_reason end;
    km_status status;
} told;

static void tell(told *t, const km_piece_event *e) {
    assert_true(t->n + e->bytes < sizeof t->text);
    memcpy(t->text + t->n, e->text, e->bytes);
    t->n += e->bytes;
    t->text[t->n] = 0;
    t->tokens += e->id >= 0;
    t->ends += e->end != KM_ENDED_NOT;
    t->end = e->end;
    t->status = e->status;
}

/* Steps until nothing runs; by_sequence (n) receives the texts. */
static void run(km_batch *b, told *by_sequence, int n, int most) {
    km_piece_event e[64];
    for (int k; (k = km_batch_step(b, e, most)) != 0;) {
        assert_true(k > 0);
        for (int i = 0; i < k; i++)
            if (e[i].sequence >= 0) {
                assert_true(e[i].sequence < n);
                tell(&by_sequence[e[i].sequence], &e[i]);
            }
    }
}

static void each_gets_the_text_that_it_gets_alone(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, TOKENS);
    km_batch_options o = km_batch_defaults();
    o.sequences = MANY;
    o.chunk = 4;
    for (int most = 1; most < 64; most += 50) { /* events come one by one, or all at once */
        km_batch *b = km_batch_new(m, &o);
        assert_non_null(b);
        told t[MANY] = {{.n = 0}};
        for (int i = 0; i < MANY; i++) {
            int32_t ids[64];
            int64_t n = tiny_ids(m, prompts[i], ids, 64);
            assert_int_equal(km_batch_join(b), i);
            assert_int_equal(km_batch_start(b, i, ids, (size_t)n, &g), KM_OK);
        }
        assert_int_equal(km_batch_join(b), -1);
        assert_int_equal(km_last_status(), KM_ERR_MEMORY);
        assert_int_equal(km_batch_describe(b).running, MANY);
        run(b, t, MANY, most);
        for (int i = 0; i < MANY; i++) {
            char *alone = km_generate_text(m, prompts[i], &g);
            assert_string_equal(t[i].text, alone);
            assert_int_equal(t[i].tokens, TOKENS);
            assert_int_equal(t[i].ends, 1);
            assert_int_equal(t[i].end, KM_ENDED_TOKENS);
            assert_int_equal(km_batch_generated(b, i).tokens, TOKENS);
            km_string_free(alone);
        }
        assert_int_equal(km_batch_describe(b).running, 0);
        km_batch_free(b);
    }
    km_model_close(m);
}

static void a_fork_shares_pages_and_a_start_reads_only_what_is_new(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 8);
    km_batch *b = km_batch_new(m, NULL);
    int32_t ids[128];
    int64_t n = tiny_ids(m, prompts[3], ids, 128);
    told t[4] = {{.n = 0}};
    int a = km_batch_join(b);
    assert_int_equal(km_batch_start(b, a, ids, (size_t)n, &g), KM_OK);
    run(b, t, 4, 64);
    int64_t used = km_batch_describe(b).pages - km_batch_describe(b).pages_free;
    assert_true(used > 0);
    int f = km_batch_fork(b, a, n);
    assert_int_equal(km_batch_length(b, f), n);
    assert_int_equal(km_batch_start(b, f, ids, (size_t)n, &g), KM_OK);
    run(b, t, 4, 64);
    assert_int_equal(km_batch_generated(b, f).reused, n - 1);
    assert_string_equal(t[a].text, t[f].text);
    int32_t held[256];
    int64_t length = km_batch_tokens(b, f, held, 256);
    assert_int_equal(length, n + 7);
    assert_memory_equal(held, ids, sizeof *ids * (size_t)n);
    assert_int_equal(km_batch_rewind(b, f, length + 1), KM_ERR_RANGE);
    assert_int_equal(km_batch_rewind(b, f, n - 1), KM_OK);
    assert_int_equal(km_batch_tokens(b, f, held, 256), n - 1);
    assert_memory_equal(held, ids, sizeof *ids * (size_t)(n - 1));
    assert_int_equal(km_batch_rewind(b, f, 0), KM_OK);
    assert_int_equal(km_batch_describe(b).pages - km_batch_describe(b).pages_free, used); /* a's */
    assert_int_equal(km_batch_leave(b, a), KM_OK);
    assert_int_equal(km_batch_leave(b, f), KM_OK);
    run(b, t, 4, 64);
    assert_int_equal(km_batch_describe(b).pages, km_batch_describe(b).pages_free);
    assert_int_equal(km_batch_length(b, f), -1);
    km_batch_free(b);
    km_model_close(m);
}

static void sequences_stop_leave_and_start_again(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 30);
    km_batch_options o = km_batch_defaults();
    o.sequences = 2;
    km_batch *b = km_batch_new(m, &o);
    int32_t ids[64];
    int64_t n = tiny_ids(m, prompts[0], ids, 64);
    km_piece_event e[8];
    told t[2] = {{.n = 0}};
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, ids, (size_t)n, &g), KM_OK);
    assert_int_equal(km_batch_start(b, 0, ids, (size_t)n, &g), KM_ERR_STATE); /* it runs */
    for (int i = 0; i < 5; i++) assert_int_equal(km_batch_step(b, e, 8), 1);
    assert_int_equal(km_batch_stop(b, 0), KM_OK);
    assert_int_equal(km_batch_step(b, e, 8), 1);
    assert_int_equal(e[0].end, KM_ENDED_CANCELLED);
    assert_int_equal(km_batch_step(b, e, 8), 0);
    assert_int_equal(km_batch_length(b, 0), n + 4);
    assert_int_equal(km_batch_start(b, 0, ids, (size_t)n, &g), KM_OK);
    run(b, t, 2, 8);
    assert_int_equal(t[0].tokens, 30);
    for (int i = 0; i < 40; i++) { /* nobody steps meanwhile */
        int s = km_batch_join(b);
        assert_int_equal(s, 1);
        assert_int_equal(km_batch_leave(b, s), KM_OK);
    }
    assert_int_equal(km_batch_join(b), 1);
    assert_int_equal(km_batch_start(b, 1, ids, (size_t)n, &g), KM_OK);
    assert_int_equal(km_batch_leave(b, 1), KM_OK);
    assert_int_equal(km_batch_step(b, e, 8), 1);
    assert_int_equal(e[0].end, KM_ENDED_CANCELLED);
    assert_int_equal(km_batch_step(b, e, 8), 0);
    km_model_close(m);
    km_batch_free(b);
}

static void what_is_wrong_is_told_before_it_runs(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 4);
    km_batch_options o = km_batch_defaults();
    o.memory = 1;
    assert_null(km_batch_new(m, &o));
    assert_int_equal(km_last_status(), KM_ERR_MEMORY);
    o.memory = 0;
    o.sequences = -1;
    assert_null(km_batch_new(m, &o));
    o.sequences = INT64_MAX;
    assert_null(km_batch_new(m, &o));
    o.sequences = 1;
    km_batch *b = km_batch_new(m, &o);
    int32_t id = 5, bad = 1 << 29;
    km_piece_event e;
    assert_int_equal(km_batch_start(b, 0, &id, 1, &g), KM_ERR_RANGE); /* nobody joined */
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, NULL, 1, &g), KM_ERR_NULL);
    assert_int_equal(km_batch_start(b, 0, &id, 0, &g), KM_ERR_NULL);
    assert_int_equal(km_batch_start(b, 0, &bad, 1, &g), KM_ERR_RANGE);
    assert_int_equal(km_batch_start(b, 0, &id, SIZE_MAX / 8, &g), KM_ERR_RANGE);
    g.grammar = "root ::= (";
    assert_int_equal(km_batch_start(b, 0, &id, 1, &g), KM_ERR_FORMAT);
    g.grammar = NULL;
    assert_int_equal(km_batch_fork(b, 0, 5), -1);
    assert_int_equal(km_batch_fork(b, 7, 0), -1);
    assert_int_equal(km_batch_step(b, NULL, 1), -1);
    assert_int_equal(km_batch_step(b, &e, 0), -1);
    assert_int_equal(km_batch_step(b, &e, 1), 0);
    assert_int_equal(km_batch_start(b, 0, &id, 1, &g), KM_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(km_batch_step(b, &e, 1), 1);
    assert_int_equal(km_batch_step(b, &e, 1), 0);
    km_batch_free(b);
    km_batch_free(b);
    km_model_close(m);
}

static void schemas_and_logprobs_are_each_ones_own(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_batch *b = km_batch_new(m, NULL);
    km_generation g = tiny_greedy(m, 40);
    int32_t ids[64];
    int64_t n = tiny_ids(m, prompts[1], ids, 64);
    told t[2] = {{.n = 0}};
    g.grammar = "root ::= \"yes\" | \"no\"";
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, ids, (size_t)n, &g), KM_OK);
    g.grammar = NULL;
    g.logprobs = 2;
    g.max_tokens = 3;
    assert_int_equal(km_batch_join(b), 1);
    assert_int_equal(km_batch_start(b, 1, ids, (size_t)n, &g), KM_OK);
    km_piece_event e[4];
    for (int k; (k = km_batch_step(b, e, 4)) > 0;)
        for (int i = 0; i < k; i++) {
            if (e[i].sequence >= 0) tell(&t[e[i].sequence], &e[i]);
            if (e[i].sequence == 1) assert_int_equal(e[i].n_top, 2);
            if (e[i].sequence == 1) assert_true(e[i].logprob <= 0 && e[i].top[0].id == e[i].id);
        }
    assert_true(strcmp(t[0].text, "yes") == 0 || strcmp(t[0].text, "no") == 0);
    assert_int_equal(t[1].tokens, 3);
    km_batch_free(b);
    km_model_close(m);
}

/* ---- Tokens chosen where their logits are, while the host sees to those before ---- */

enum { WAYS = 10, LONG = 30 };

typedef struct way_told {
    int32_t id[LONG + 1];
    float logprob[LONG + 1], top[LONG + 1][3];
    int32_t top_id[LONG + 1][3];
    int n, ends;
    km_end_reason end;
} way_told;

/* Every kind of setting that the op knows, and some that are the host's. */
static km_generation way(km_model *m, int i, const km_logit_bias *bias) {
    km_generation g = tiny_greedy(m, LONG - i % 4);
    g.sampling.seed = (uint64_t)i + 77;
    if (i != 0) g.sampling.temperature = 0.9;
    if (i == 1) g.sampling.top_k = 20;
    if (i == 2) g.sampling.top_p = 0.7;
    if (i == 3) g.sampling.repeat_penalty = 1.4, g.sampling.presence_penalty = 0.5;
    if (i == 4) g.sampling.bias = bias, g.sampling.n_bias = 3;
    if (i == 5) g.schema = "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}";
    if (i == 6) g.logprobs = 3, g.sampling.min_p = 0.1;
    if (i == 7) g.grammar = "root ::= [a-z ]+", g.logprobs = 3, g.sampling.temperature = 0;
    if (i == 8) g.sampling.mirostat = 2;                  /* the host's */
    if (i == 9) g.past_end = false, g.sampling.top_k = 3; /* may end of itself */
    return g;
}

static void tell_ways(km_model *m, bool ahead, way_told *t) {
    const km_logit_bias bias[] = {{'e', -100}, {'t', 2}, {'t', 1.5f}};
    setenv("KERMES_RUN_AHEAD", ahead ? "1" : "0", 1);
    km_batch_options o = km_batch_defaults();
    o.sequences = WAYS;
    o.chunk = 7;
    km_batch *b = km_batch_new(m, &o);
    unsetenv("KERMES_RUN_AHEAD");
    assert_non_null(b);
    for (int i = 0; i < WAYS; i++) {
        int32_t ids[64];
        int64_t n = tiny_ids(m, prompts[i % MANY], ids, 64);
        km_generation g = way(m, i, bias);
        assert_int_equal(km_batch_join(b), i);
        if (km_batch_start(b, i, ids, (size_t)n, &g) != KM_OK) fail_msg("%s", km_last_error());
    }
    km_piece_event e[16];
    for (int k; (k = km_batch_step(b, e, 16)) > 0;)
        for (int j = 0; j < k; j++) {
            if (e[j].sequence < 0) continue;
            way_told *w = &t[e[j].sequence];
            assert_int_equal(e[j].status, KM_OK);
            w->ends += e[j].end != KM_ENDED_NOT;
            w->end = e[j].end;
            if (e[j].id < 0) continue;
            assert_true(w->n <= LONG);
            w->id[w->n] = e[j].id;
            w->logprob[w->n] = e[j].logprob;
            for (int h = 0; h < e[j].n_top && h < 3; h++) {
                w->top[w->n][h] = e[j].top[h].logprob;
                w->top_id[w->n][h] = e[j].top[h].id;
            }
            w->n++;
        }
    for (int i = 0; i < WAYS; i++)
        assert_int_equal(km_batch_length(b, i),
                         tiny_ids(m, prompts[i % MANY], (int32_t[64]){0}, 64) + t[i].n -
                             (t[i].end != KM_ENDED_TEXT));
    km_batch_free(b);
}

static void what_a_device_chooses_is_what_the_host_chooses(void **state) {
    (void)state;
    km_model *m = tiny_model();
    way_told host[WAYS] = {{.n = 0}}, device[WAYS] = {{.n = 0}};
    tell_ways(m, false, host);
    tell_ways(m, true, device);
    for (int i = 0; i < WAYS; i++) {
        if (i == 2) continue; /* with top-p alone the host draws from the likeliest on, not by id */
        if (host[i].n != device[i].n || host[i].end != device[i].end)
            fail_msg("way %d: %d and %d tokens", i, host[i].n, device[i].n);
        assert_int_equal(device[i].ends, 1);
        for (int k = 0; k < host[i].n; k++) {
            if (host[i].id[k] != device[i].id[k]) fail_msg("way %d differs in token %d", i, k);
            assert_true(fabs((double)host[i].logprob[k] - device[i].logprob[k]) < 1e-4);
            for (int h = 0; h < 3; h++) {
                assert_int_equal(host[i].top_id[k][h], device[i].top_id[k][h]);
                assert_true(fabs((double)host[i].top[k][h] - device[i].top[k][h]) < 1e-4);
            }
        }
    }
    km_model_close(m);
}

/* Steps `steps` times, then pauses, lets the others go on for a while, and resumes. */
static void a_pause_gives_pages_back_and_changes_no_letter(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 60);
    g.sampling.temperature = 1.2;
    g.sampling.seed = 7;
    g.sampling.repeat_penalty = 1.2;
    const char *stops[] = {"zzzz"};
    g.stops = stops;
    g.n_stops = 1;
    told first[2] = {{.n = 0}};
    for (int pause = -1; pause < 40; pause += pause < 0 ? 1 : 13) { /* -1: never */
        km_batch_options o = km_batch_defaults();
        o.sequences = 2;
        o.chunk = 8;
        km_batch *b = km_batch_new(m, &o);
        told t[2] = {{.n = 0}};
        km_piece_event e[8];
        int32_t ids[64];
        for (int i = 0; i < 2; i++) {
            int64_t n = tiny_ids(m, prompts[3 - i], ids, 64);
            assert_int_equal(km_batch_join(b), i);
            assert_int_equal(km_batch_pause(b, i), KM_ERR_STATE); /* it makes no text yet */
            assert_int_equal(km_batch_start(b, i, ids, (size_t)n, &g), KM_OK);
        }
        for (int k = 0; pause >= 0 && k < pause + 10; k++) {
            int n = km_batch_step(b, e, 8);
            assert_true(n > 0);
            for (int i = 0; i < n; i++)
                if (e[i].sequence >= 0) tell(&t[e[i].sequence], &e[i]);
            if (k == pause) assert_int_equal(km_batch_pause(b, 0), KM_OK);
            if (k > pause) assert_int_equal(km_batch_describe(b).paused, 1);
            if (k > pause) assert_int_equal(km_batch_length(b, 0), 0);
        }
        if (pause >= 0) assert_int_equal(km_batch_resume(b, 0), KM_OK);
        run(b, t, 2, 8);
        if (pause < 0) memcpy(first, t, sizeof t);
        for (int i = 0; i < 2; i++) {
            assert_string_equal(t[i].text, first[i].text);
            assert_int_equal(t[i].ends, 1);
        }
        assert_int_equal(km_batch_generated(b, 0).tokens, 60);
        km_batch_free(b);
    }
    /* One that is stopped while it waits has its last event like any other. */
    km_batch *b = km_batch_new(m, NULL);
    km_piece_event e[4];
    int32_t id = 5;
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, &id, 1, &g), KM_OK);
    assert_int_equal(km_batch_step(b, e, 4), 1);
    assert_int_equal(km_batch_pause(b, 0), KM_OK);
    assert_int_equal(km_batch_step(b, e, 4), 0);
    assert_int_equal(km_batch_describe(b).pages, km_batch_describe(b).pages_free);
    assert_int_equal(km_batch_stop(b, 0), KM_OK);
    assert_int_equal(km_batch_step(b, e, 4), 1);
    assert_int_equal(e[0].end, KM_ENDED_CANCELLED);
    km_batch_free(b);
    km_model_close(m);
}

/* Forks that share pages, prompts in chunks, rows and one that is cut: no step takes more than was told, and
 * where nobody shares a page, none takes less. */
static void the_pages_of_a_step_are_told_before_it(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 90);
    km_batch_options o = km_batch_defaults();
    o.sequences = 4;
    o.chunk = 40;
    km_batch *b = km_batch_new(m, &o);
    km_piece_event e[8];
    int32_t ids[200];
    int64_t n = tiny_ids(m, prompts[3], ids, 200);
    for (int64_t i = n; i < 150; i++) ids[i] = ids[i % n];
    assert_int_equal(km_batch_pages_ahead(b), 0);
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, ids, 150, &g), KM_OK);
    bool runs_ahead = getenv("KERMES_RUN_AHEAD") != NULL;          /* a step may begin two passes */
    assert_int_equal(km_batch_pages_ahead(b), runs_ahead ? 2 : 1); /* 40 tokens of it */
    int64_t taken = 0, foretold = 0;
    for (int k = 0; k < 40; k++) {
        if (k == 10) assert_int_equal(km_batch_fork(b, 0, 140), 1);
        if (k == 10) assert_int_equal(km_batch_start(b, 1, ids, 150, &g), KM_OK);
        if (k == 20) assert_int_equal(km_batch_pause(b, 0), KM_OK);
        if (k == 25) assert_int_equal(km_batch_resume(b, 0), KM_OK);
        int64_t ahead = km_batch_pages_ahead(b), free = km_batch_describe(b).pages_free;
        assert_true(km_batch_step(b, e, 8) > 0);
        int64_t took = free - km_batch_describe(b).pages_free;
        assert_in_range(took, 0, ahead);
        taken += took;
        foretold += ahead;
    }
    assert_true(taken > 0);
    if (!runs_ahead) assert_true(foretold - taken <= 1); /* one page was two sequences' */
    km_batch_free(b);
    km_model_close(m);
}

static void what_a_sequence_holds_goes_to_a_file_and_back(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, 12);
    km_batch *b = km_batch_new(m, NULL);
    char path[] = "/tmp/kermes-batch-XXXXXX";
    close(mkstemp(path));
    int32_t ids[128];
    int64_t n = tiny_ids(m, prompts[3], ids, 128);
    told t[3] = {{.n = 0}};
    km_piece_event e[4];
    assert_int_equal(km_batch_join(b), 0);
    assert_int_equal(km_batch_start(b, 0, ids, (size_t)n, &g), KM_OK);
    assert_true(km_batch_step(b, e, 4) > 0);
    for (int i = 0; i < 1; i++) tell(&t[0], &e[i]);
    assert_int_equal(km_batch_save(b, 0, path), KM_ERR_STATE); /* it runs */
    run(b, t, 3, 4);
    assert_int_equal(km_batch_save(b, 0, NULL), KM_ERR_NULL);
    assert_int_equal(km_batch_save(b, 9, path), KM_ERR_RANGE);
    assert_int_equal(km_batch_save(b, 0, path), KM_OK);
    assert_int_equal(km_batch_join(b), 1);
    assert_int_equal(km_batch_restore(b, 1, path), KM_OK);
    assert_int_equal(km_batch_length(b, 1), n + 11);
    assert_int_equal(km_batch_start(b, 1, ids, (size_t)n, &g), KM_OK);
    run(b, t, 3, 4);
    assert_int_equal(km_batch_generated(b, 1).reused, n - 1);
    assert_string_equal(t[0].text, t[1].text);
    assert_int_equal(truncate(path, 200), 0);
    assert_int_equal(km_batch_join(b), 2);
    assert_int_not_equal(km_batch_restore(b, 2, path), KM_OK);
    assert_int_equal(km_batch_start(b, 2, ids, (size_t)n, &g), KM_OK);
    run(b, t, 3, 4);
    assert_string_equal(t[0].text, t[2].text);
    unlink(path);
    km_batch_free(b);
    km_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gets_the_text_that_it_gets_alone),
        cmocka_unit_test(a_fork_shares_pages_and_a_start_reads_only_what_is_new),
        cmocka_unit_test(sequences_stop_leave_and_start_again),
        cmocka_unit_test(what_is_wrong_is_told_before_it_runs),
        cmocka_unit_test(schemas_and_logprobs_are_each_ones_own),
        cmocka_unit_test(a_pause_gives_pages_back_and_changes_no_letter),
        cmocka_unit_test(the_pages_of_a_step_are_told_before_it),
        cmocka_unit_test(what_a_sequence_holds_goes_to_a_file_and_back),
        cmocka_unit_test(what_a_device_chooses_is_what_the_host_chooses),
    };
    int64_t before = km_alloc_live();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    setenv("KERMES_RUN_AHEAD", "1", 1); /* the same, as on a GPU */
    if (!failed) failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!failed && km_alloc_live() != before) {
        fprintf(stderr, "%lld heap blocks were left behind\n",
                (long long)(km_alloc_live() - before));
        return 1;
    }
    return failed;
}

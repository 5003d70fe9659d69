/* One model and many threads: sessions in some, a batch that one steps and others start in, and a
 * cancel from outside. Each text is the one that it is alone. And each allocation fails once. */
#include "engine/tiny_model.h"
#include "backend/backend.h"
#include "engine/engine.h"
#include "support/sanitized.h"
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 3, TOKENS = 16 };

static const char *const prompts[THREADS] = {"Once upon a time", "The sea is", "A small dog"};

typedef struct worker {
    km_model *m;
    km_batch *b;
    int which;
    const char *want;
    atomic_int ended; /* of a batch's sequence */
    int failures;
} worker;

static void *talk(void *user) {
    worker *w = user;
    km_generation g = tiny_greedy(w->m, TOKENS);
    for (int i = 0; i < 3; i++) {
        char *text = km_generate_text(w->m, prompts[w->which], &g);
        w->failures += !text || strcmp(text, w->want) != 0;
        km_string_free(text);
    }
    return NULL;
}

/* Joins, starts, and waits until the stepping thread has seen the end. */
static void *ask(void *user) {
    worker *w = user;
    km_generation g = tiny_greedy(w->m, TOKENS);
    int32_t ids[32];
    int64_t n = km_tokenize(w->m, prompts[w->which], strlen(prompts[w->which]),
                            KM_TOKENS_ADD_SPECIAL, ids, 32);
    for (int i = 1; i <= 3; i++) {
        int s = km_batch_join(w->b);
        w->failures += s < 0 || km_batch_start(w->b, s, ids, (size_t)n, &g) != KM_OK;
        while (atomic_load(&w->ended) < i && !w->failures) usleep(200);
        w->failures += km_batch_length(w->b, s) != n + TOKENS - 1;
        w->failures += km_batch_leave(w->b, s) != KM_OK;
    }
    return NULL;
}

static void sessions_and_a_batch_share_a_model(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_generation g = tiny_greedy(m, TOKENS);
    km_batch *b = km_batch_new(m, NULL);
    worker w[2 * THREADS] = {{0}};
    pthread_t thread[2 * THREADS];
    char *want[THREADS];
    for (int i = 0; i < THREADS; i++) want[i] = km_generate_text(m, prompts[i], &g);
    for (int i = 0; i < 2 * THREADS; i++) {
        w[i].m = m;
        w[i].b = b;
        w[i].which = i % THREADS;
        w[i].want = want[i % THREADS];
        pthread_create(&thread[i], NULL, i < THREADS ? talk : ask, &w[i]);
    }
    /* By the first token of its text a sequence is known for one of the askers. */
    km_piece_event e[16];
    for (int ends = 0; ends < 3 * THREADS;) {
        int n = km_batch_step(b, e, 16);
        assert_true(n >= 0);
        if (n == 0) usleep(200);
        for (int k = 0; k < n; k++) {
            if (e[k].sequence < 0 || e[k].end == KM_ENDED_NOT) continue;
            assert_int_equal(e[k].end, KM_ENDED_TOKENS);
            int32_t first[8];
            assert_true(km_batch_tokens(b, e[k].sequence, first, 8) > 0);
            for (int i = 0; i < THREADS; i++) {
                int32_t ids[32];
                int64_t had =
                    km_tokenize(m, prompts[i], strlen(prompts[i]), KM_TOKENS_ADD_SPECIAL, ids, 32);
                if (memcmp(first, ids, sizeof *ids * (size_t)(had < 3 ? had : 3)) == 0)
                    atomic_fetch_add(&w[THREADS + i].ended, 1);
            }
            ends++;
        }
    }
    for (int i = 0; i < 2 * THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].failures, 0);
    }
    for (int i = 0; i < THREADS; i++) km_string_free(want[i]);
    km_batch_free(b);
    km_model_close(m);
}

static void *cancel_soon(void *user) {
    usleep(20000);
    km_session_cancel(user);
    return NULL;
}

static bool slowly(void *user, const km_piece_event *e) {
    (void)user, (void)e;
    usleep(2000);
    return true;
}

static void another_thread_cancels(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_session *s = km_session_new(m);
    km_generation g = tiny_greedy(m, 200);
    km_generated got = {.size = sizeof got};
    pthread_t thread;
    g.on_token = slowly;
    pthread_create(&thread, NULL, cancel_soon, s);
    assert_int_equal(km_generate(s, "Once", 4, &g, &got), KM_OK);
    pthread_join(thread, NULL);
    assert_int_equal(got.end, KM_ENDED_CANCELLED);
    assert_true(got.tokens < 200);
    g.on_token = NULL;
    g.max_tokens = 3;
    assert_int_equal(km_generate(s, "Once", 4, &g, &got), KM_OK); /* it is not cancelled for ever */
    assert_int_equal(got.tokens, 3);
    km_session_free(s);
    km_model_close(m);
}

/* ---- In the middle of a prompt ---- */

typedef struct watcher { /* of the ops of a prompt's only chunk */
    km_session *s;
    km_batch *b;
    int sequence, layers;
} watcher;

static void watch(void *user, const km_call *c, double seconds) {
    watcher *w = user;
    (void)seconds;
    if (c->op != KM_OP_ATTEND || w->layers++ > 0) return;
    if (w->s) km_session_cancel(w->s);
    if (w->b) assert_int_equal(km_batch_stop(w->b, w->sequence), KM_OK);
}

static void a_prompt_is_cancelled_between_two_layers(void **state) {
    (void)state;
    km_model *m = tiny_model();
    assert_true(km_model_describe(m).layers > 1);
    km_generation g = tiny_greedy(m, 4);
    km_generated got = {.size = sizeof got};
    int32_t ids[64];
    int64_t n = tiny_ids(m, "Once upon a time there was a dog who liked to swim.", ids, 64);
    watcher w = {.s = km_session_new(m)};
    m->ground->ctx->timed = watch;
    m->ground->ctx->timed_user = &w;
    assert_int_equal(km_session_read(w.s, ids, (size_t)n), KM_ERR_STATE);
    assert_int_equal(w.layers, 1);
    assert_int_equal(km_session_length(w.s), 0);
    w.layers = 0;
    assert_int_equal(km_generate_begin_ids(w.s, ids, (size_t)n, &g), KM_OK);
    km_piece_event e[4];
    assert_int_equal(km_generate_next(w.s, e), 1);
    assert_int_equal(e[0].end, KM_ENDED_CANCELLED);
    assert_int_equal(w.layers, 1);
    w.b = km_batch_new(m, NULL);
    w.sequence = km_batch_join(w.b);
    w.layers = 0;
    assert_int_equal(km_batch_start(w.b, w.sequence, ids, (size_t)n, &g), KM_OK);
    for (int k; (k = km_batch_step(w.b, e, 4)) > 0;)
        if (e[0].sequence >= 0) assert_int_equal(e[0].end, KM_ENDED_CANCELLED);
    assert_int_equal(w.layers, 1);
    assert_int_equal(km_batch_length(w.b, w.sequence), 0);
    m->ground->ctx->timed = NULL;
    /* All of them go on as if nothing had been. */
    assert_int_equal(km_generate(w.s, "Once", 4, &g, &got), KM_OK);
    assert_int_equal(got.tokens, 4);
    assert_int_equal(km_batch_start(w.b, w.sequence, ids, (size_t)n, &g), KM_OK);
    while (km_batch_step(w.b, e, 4) > 0) assert_int_equal(e[0].status, KM_OK);
    assert_int_equal(km_batch_generated(w.b, w.sequence).tokens, 4);
    km_batch_free(w.b);
    km_session_free(w.s);
    km_model_close(m);
}

/* ---- Allocations that fail ---- */

static bool use_it_all(void) {
    km_model_options o = tiny_options();
    o.draft = "lookup";
    km_model *m = km_model_open(tiny_path(), &o);
    km_session *s = m ? km_session_new(m) : NULL;
    km_batch_options two = km_batch_defaults();
    two.sequences = 2;
    km_batch *b = s ? km_batch_new(m, &two) : NULL;
    bool ok = b != NULL;
    km_generation g = km_generation_defaults(m);
    const char *stops[] = {"zzz"};
    g.max_tokens = 3;
    g.stops = stops;
    g.n_stops = 1;
    g.logprobs = 2;
    g.grammar = "root ::= [a-z ]*";
    ok = ok && km_generate(s, "The sea", 7, &g, NULL) == KM_OK;
    int32_t ids[] = {5, 6, 7};
    int at = ok ? km_batch_join(b) : -1;
    ok = ok && at >= 0 && km_batch_start(b, at, ids, 3, &g) == KM_OK;
    int fork = ok ? km_batch_fork(b, at, 0) : -1;
    ok = ok && fork >= 0;
    km_piece_event e[4];
    for (int n = 1; ok && (n = km_batch_step(b, e, 4)) != 0;)
        for (int i = 0; i < n; i++) ok = ok && e[i].status == KM_OK;
    km_batch_free(b);
    km_session_free(s);
    km_model_close(m);
    return ok;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    assert_true(use_it_all());
    int64_t live = km_alloc_live();
    int step = SANITIZED ? 11 : 5, failures = 0;
    bool done = false;
    for (int64_t nth = 0; !done; nth += step) {
        km_alloc_fail_nth(nth);
        uint64_t before = km_alloc_count();
        bool ok = use_it_all();
        done = ok && km_alloc_count() - before <= (uint64_t)nth; /* it was never reached */
        km_alloc_fail_nth(-1);
        failures += !ok;
        if (!ok) assert_true(km_last_error()[0] != 0);
        if (km_alloc_live() != live)
            fail_msg("%lld blocks were left behind when allocation %lld failed",
                     (long long)(km_alloc_live() - live), (long long)nth);
    }
    assert_true(failures > 20);
    assert_true(use_it_all());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_and_a_batch_share_a_model),
        cmocka_unit_test(another_thread_cancels),
        cmocka_unit_test(a_prompt_is_cancelled_between_two_layers),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Objects that serve one thread at a time, used by two: while the first is inside a call (held there by its own
 * callback) every call of the second is refused with one line, freeing too, and nothing changes for the first.
 * Then both at once and in no order, for ThreadSanitizer and AddressSanitizer to watch. */
#include "engine/tiny_model.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

enum { DIM = 8, VECTORS = 400, ROUNDS = 300 };

static km_ctx *ctx;
static km_model *model;
static km_session *session;
static km_answer_parser *parser;
static km_vectors *vectors;
static km_index *index_;
static km_searcher *searcher;
static km_optimizer *optimizer;
static km_param_list *params;
static km_graph *graph;
static km_tensor *kept;
static km_batch *batch;

/* ---- Two threads that meet ---- */

static sem_t inside, tried;
static atomic_int wrong; /* of the second thread, whose failures the first one tells */
static char first_wrong[256];

static void check(bool right, const char *what) {
    if (right || wrong++) return;
    snprintf(first_wrong, sizeof first_wrong, "%s: %s", what, km_last_error());
}

static bool is_refusal(void) {
    return km_last_status() == KM_ERR_STATE && strstr(km_last_error(), "another thread") &&
           !strchr(km_last_error(), '\n');
}
static void forget_error(void) { km_vectors_save(NULL, NULL, NULL, 0, 0); /* KM_ERR_NULL */ }

/* A call that tells by a status, by NULL or another value, or by nothing. */
#define REFUSED(call) (forget_error(), check((call) == KM_ERR_STATE && is_refusal(), #call))
#define REFUSED_AS(value, call) (forget_error(), check((call) == (value) && is_refusal(), #call))
#define REFUSED_QUIETLY(call) (forget_error(), (call), check(is_refusal(), #call))

static void *second(void *tries) {
    sem_wait(&inside);
    (*(void (**)(void))tries)();
    sem_post(&tried);
    return NULL;
}

/* In the first thread's callback: until the second has tried all it wants to. */
static void meet(void) {
    sem_post(&inside);
    sem_wait(&tried);
}

static void (*trying)(void);
static pthread_t other;

static void begin(void (*tries)(void)) {
    trying = tries;
    wrong = 0;
    assert_int_equal(pthread_create(&other, NULL, second, &trying), 0);
}

static void end(void) {
    pthread_join(other, NULL);
    if (wrong) fail_msg("%d calls were not refused, first %s", wrong, first_wrong);
}

/* ---- Contexts, and what lives in one ---- */

static km_tensor *wait_in_forward(km_ctx *c, km_tensor *const *in, int n, void *user) {
    (void)n, (void)user;
    meet();
    return km_mul_scalar(c, in[0], 2); /* a callback comes in again */
}

static bool stop_saying(void *user, const char *stage, int64_t done, int64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
    return false;
}

static void use_a_context(void) {
    float x[4] = {0};
    uint64_t id;
    REFUSED(km_ctx_status(ctx));
    REFUSED_AS(NULL, km_ones(ctx, KM_F32, KM_SHAPE(4)));
    REFUSED_AS(NULL, km_normal(ctx, KM_F32, KM_SHAPE(4), 0, 1));
    REFUSED_AS(NULL, km_add(ctx, kept, kept));
    REFUSED_AS(NULL, km_sum(ctx, kept, NULL, 0, false));
    REFUSED_AS(NULL, km_softmax(ctx, kept, 0));
    REFUSED_AS(NULL, km_reshape(ctx, kept, KM_SHAPE(2, 2)));
    REFUSED_AS(NULL, km_sort(ctx, kept, 0, true, NULL));
    REFUSED_AS(NULL, km_keep(ctx, kept));
    REFUSED(km_read(ctx, kept, x, sizeof x));
    REFUSED(km_write(ctx, kept, x, sizeof x));
    REFUSED(km_backward(ctx, kept));
    REFUSED(km_profile_begin(ctx));
    REFUSED(km_optimizer_step(ctx, optimizer));
    REFUSED_QUIETLY(km_step_end(ctx));
    REFUSED_QUIETLY(km_seed(ctx, 1));
    REFUSED_QUIETLY(km_ctx_clear_error(ctx));
    REFUSED_QUIETLY(km_ctx_stats(ctx));
    REFUSED_QUIETLY(km_release(kept));
    REFUSED_QUIETLY(km_graph_free(graph));
    REFUSED_QUIETLY(km_optimizer_free(optimizer));
    REFUSED_QUIETLY(km_param_list_free(params));
    REFUSED_QUIETLY(km_ctx_free(ctx));
    km_index_options o = km_index_defaults();
    o.progress = stop_saying;
    REFUSED_AS(NULL, km_index_build(ctx, x, 1, 4, NULL, &o));
    REFUSED(km_searcher_search(searcher, x, 1, 1, NULL, &id, x));
    REFUSED_QUIETLY(km_searcher_free(searcher));
    check(strcmp(km_ctx_device(ctx), "cpu") == 0, "what never changes is told");
}

static void a_step(km_ctx *c, void *user) {
    (void)user;
    km_assign(c, kept, km_add_scalar(c, kept, 1));
}

static void a_context_serves_one_thread_at_a_time(void **state) {
    (void)state;
    float x[VECTORS * DIM], two[4];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    ctx = km_ctx_new("cpu", 1);
    kept = km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(4)));
    params = km_param_list_new();
    assert_non_null(km_param_add(ctx, params, KM_F32, KM_SHAPE(4), true, "w"));
    optimizer = km_optimizer_new(ctx, params, NULL);
    assert_int_equal(km_graph_run(ctx, &graph, 0, a_step, NULL), KM_OK);
    index_ = km_index_build(ctx, x, VECTORS, DIM, NULL, NULL);
    searcher = km_searcher_new(ctx, index_);
    assert_non_null(searcher);
    begin(use_a_context);
    km_custom_op op = {.name = "wait", .forward = wait_in_forward};
    km_tensor *y = km_custom(ctx, &op, &kept, 1);
    end();
    /* The first goes on as if nobody had come. */
    assert_int_equal(km_read(ctx, y, two, sizeof two), KM_OK);
    assert_true(two[0] == 4 && two[3] == 4);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_int_equal(km_graph_run(ctx, &graph, 0, a_step, NULL), KM_OK);
    km_searcher_free(searcher);
    km_index_close(index_);
    km_graph_free(graph);
    graph = NULL;
    km_optimizer_free(optimizer);
    km_param_list_free(params);
    km_release(kept);
    km_ctx_free(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_STATE);
}

/* One after the other is fine, in whatever thread: what a call made is there for the next. */
static void *double_it(void *user) {
    float x[4];
    km_tensor *t = km_mul_scalar(ctx, *(km_tensor **)user, 2);
    bool ok = km_read(ctx, t, x, sizeof x) == KM_OK && x[0] == 6;
    km_step_end(ctx);
    return ok ? user : NULL;
}

static void a_context_goes_from_thread_to_thread(void **state) {
    (void)state;
    void *ok = NULL;
    ctx = km_ctx_new("cpu", 1);
    km_tensor *t = km_full(ctx, KM_F32, KM_SHAPE(4), 3);
    assert_int_equal(pthread_create(&other, NULL, double_it, &t), 0);
    pthread_join(other, &ok);
    assert_non_null(ok);
    km_ctx_free(ctx);
}

/* ---- Sessions, parsers, files of vectors ---- */

static bool wait_at_first_token(void *user, const km_piece_event *e) {
    (void)e;
    if ((*(int *)user)++ == 0) meet();
    return true;
}

static void use_a_session(void) {
    int32_t ids[] = {5, 6};
    km_piece_event e;
    REFUSED(km_generate(session, "b", 1, NULL, NULL));
    REFUSED(km_generate_chat(session, "[]", NULL, NULL, NULL));
    REFUSED(km_generate_begin(session, "b", 1, NULL));
    REFUSED_AS(-1, km_generate_next(session, &e));
    REFUSED(km_session_read(session, ids, 2));
    REFUSED(km_session_rewind(session, 0));
    REFUSED(km_session_save(session, "/nowhere"));
    REFUSED_AS(NULL, km_session_fork(session));
    REFUSED_AS(NULL, km_session_logits(session));
    REFUSED_AS(NULL, km_session_tokens(session));
    REFUSED_AS(-1, km_session_length(session));
    REFUSED_QUIETLY(km_generate_state(session));
    REFUSED_QUIETLY(km_session_free(session));
}

static void cancel_it(void) { km_session_cancel(session); }

static void a_session_serves_one_thread_and_any_cancels(void **state) {
    (void)state;
    model = tiny_model();
    session = km_session_new(model);
    void (*const tries[])(void) = {use_a_session, cancel_it};
    for (int k = 0; k < 2; k++) {
        int calls = 0;
        km_generation g = tiny_greedy(model, 6);
        g.past_end = true;
        g.on_token = wait_at_first_token;
        g.user = &calls;
        km_generated got = {.size = sizeof got};
        begin(tries[k]);
        assert_int_equal(km_generate(session, "a", 1, &g, &got), KM_OK);
        end();
        assert_int_equal(got.end, k ? KM_ENDED_CANCELLED : KM_ENDED_TOKENS);
        assert_int_equal(calls, k ? 2 : 6); /* cancelled: that token, and the end */
    }
    km_session_free(session);
    assert_int_equal(km_session_length(session), -1);
    km_model_close(model);
}

static void wait_in_sink(void *user, const km_answer_part *part) {
    (void)part;
    if ((*(int *)user)++ == 0) meet();
}

static void use_a_parser(void) {
    REFUSED(km_answer_parser_put(parser, "x", 1));
    REFUSED(km_answer_parser_special(parser, "x", 1));
    REFUSED(km_answer_parser_end(parser));
    REFUSED_AS(-1, km_answer_parser_calls(parser));
    REFUSED_QUIETLY(km_answer_parser_free(parser));
}

static void a_parser_serves_one_thread_at_a_time(void **state) {
    (void)state;
    int calls = 0;
    parser = km_answer_parser_new(NULL, 0, 0, wait_in_sink, &calls);
    begin(use_a_parser);
    assert_int_equal(km_answer_parser_put(parser, "The sea. ", 9), KM_OK);
    end();
    assert_int_equal(km_answer_parser_end(parser), KM_OK);
    assert_true(calls >= 1);
    km_answer_parser_free(parser);
}

static bool wait_at_first_stage(void *user, const char *stage, int64_t done, int64_t total) {
    (void)stage, (void)done, (void)total;
    if ((*(int *)user)++ == 0) meet();
    return true;
}

static void use_a_file(void) {
    float x[DIM];
    REFUSED(km_vectors_read(vectors, 0, 1, x));
    REFUSED_QUIETLY(km_vectors_count(vectors));
    REFUSED_QUIETLY(km_vectors_close(vectors));
    REFUSED(km_ctx_status(ctx));
    REFUSED_QUIETLY(km_ctx_free(ctx));
}

static void a_file_of_vectors_serves_one_thread_at_a_time(void **state) {
    (void)state;
    char folder[] = "/tmp/kermes-two-XXXXXX", in[64], out[64];
    float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    assert_non_null(mkdtemp(folder));
    snprintf(in, sizeof in, "%s/in.npy", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    assert_int_equal(km_vectors_save(in, "f32", x, VECTORS, DIM), KM_OK);
    ctx = km_ctx_new("cpu", 1);
    vectors = km_vectors_open(in, NULL);
    int calls = 0;
    km_index_options o = km_index_defaults();
    o.progress = wait_at_first_stage;
    o.user = &calls;
    begin(use_a_file);
    assert_int_equal(km_index_compress_from(ctx, vectors, NULL, out, &o, NULL), KM_OK);
    end();
    assert_int_equal(km_vectors_count(vectors), VECTORS);
    km_vectors_close(vectors);
    km_ctx_free(ctx);
    remove(in);
    remove(out);
    rmdir(folder);
}

/* ---- Both at once, in no order ---- */

static atomic_int done_by[2];

/* Only kept tensors, and each its own: a step's end would take the other's temporaries. */
static void *hammer(void *user) {
    float x[4] = {1, 2, 3, 4};
    atomic_int *done = user;
    for (int i = 0; i < ROUNDS; i++) {
        if (km_write(ctx, kept, x, sizeof x) == KM_OK) atomic_fetch_add(done, 1);
        km_tensor *mine = km_keep(ctx, kept);
        if (mine && km_read(ctx, mine, x, sizeof x) == KM_OK && (x[0] != 1 || x[3] != 4)) wrong++;
        for (; mine; mine = is_refusal() ? mine : NULL) forget_error(), km_release(mine);
        km_seed(ctx, (uint64_t)i);
        km_ctx_status(ctx);
    }
    return NULL;
}

static void a_context_survives_two_threads_at_once(void **state) {
    (void)state;
    ctx = km_ctx_new("cpu", 1);
    float x[4] = {1, 2, 3, 4};
    kept = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(4), x));
    wrong = 0;
    assert_int_equal(pthread_create(&other, NULL, hammer, &done_by[1]), 0);
    hammer(&done_by[0]);
    pthread_join(other, NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_true(done_by[0] + done_by[1] > 0);
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes > 0, 1); /* the one that is left */
    km_release(kept);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
    km_ctx_free(ctx);
}

static void *free_it(void *user) {
    (void)user;
    while (km_batch_describe(batch).size) km_batch_free(batch);
    while (km_session_length(session) >= 0 || is_refusal()) km_session_free(session);
    return NULL;
}

/* Freed by one while the other works: refused, or gone for both. */
static void a_batch_and_a_session_freed_by_another_thread_go_once(void **state) {
    (void)state;
    model = tiny_model();
    for (int k = 0; k < 4; k++) {
        int32_t ids[] = {5, 6, 7};
        km_piece_event e[4];
        km_generation g = tiny_greedy(model, 40);
        batch = km_batch_new(model, NULL);
        session = km_session_new(model);
        int s = km_batch_join(batch);
        assert_int_equal(km_batch_start(batch, s, ids, 3, &g), KM_OK);
        assert_int_equal(pthread_create(&other, NULL, free_it, NULL), 0);
        while (km_batch_step(batch, e, 4) >= 0) continue;
        assert_int_equal(km_last_status(), KM_ERR_STATE);
        km_status r = KM_OK;
        while (r == KM_OK || is_refusal()) r = km_session_read(session, ids, 1);
        assert_true(r == KM_ERR_STATE || r == KM_ERR_RANGE); /* gone, or full first */
        pthread_join(other, NULL);
    }
    km_model_close(model);
}

/* ---- What any threads may use, closed by one ---- */

static km_tokenizer *tokenizer;
static km_file *file;
static atomic_bool begun;

static void *close_them(void *user) {
    (void)user;
    while (!begun) continue;
    km_model_close(model);
    km_tokenizer_close(tokenizer);
    km_file_close(file);
    km_index_close(index_);
    return NULL;
}

/* Each call works to its end on what was open when it began, or says that nothing is; all of it goes in
 * the end. */
static void what_many_use_is_closed_by_any(void **state) {
    (void)state;
    static float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    for (int k = 0; k < 4; k++) {
        int32_t ids[64], few[] = {5, 6, 7};
        const int32_t *texts[] = {few};
        size_t lengths[] = {3};
        uint64_t near[3];
        float distances[3], states[512];
        model = tiny_model();
        tokenizer = km_tokenizer_open("bytes");
        file = km_file_open(tiny_path());
        ctx = km_ctx_new("cpu", 1);
        km_index_options o = km_index_defaults();
        o.anchors = 4;
        index_ = km_index_build(ctx, x, VECTORS, DIM, NULL, &o);
        assert_true(tokenizer && file && index_ && km_model_describe(model).dim <= 512);
        atomic_store(&begun, false);
        assert_int_equal(pthread_create(&other, NULL, close_them, NULL), 0);
        bool open[5] = {true, true, true, true, true};
        for (int round = 0; open[0] || open[1] || open[2] || open[3] || open[4]; round++) {
            if (round == 1) atomic_store(&begun, true);
            open[0] = km_tokenize(model, "To be, or not to be", 19, 0, ids, 64) > 0;
            open[1] = km_embed(model, texts, lengths, 1, NULL, states) == KM_OK;
            open[2] = km_tokenizer_encode(tokenizer, "To be, or not", 13, 0, ids, 64) == 13;
            open[3] = km_file_count(file) > 0;
            open[4] = km_index_search(index_, x, 1, 3, NULL, 1, near, distances) == KM_OK;
            if (!open[4]) assert_int_equal(km_last_status(), KM_ERR_STATE);
        }
        pthread_join(other, NULL);
        km_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_context_serves_one_thread_at_a_time),
        cmocka_unit_test(a_context_goes_from_thread_to_thread),
        cmocka_unit_test(a_session_serves_one_thread_and_any_cancels),
        cmocka_unit_test(a_parser_serves_one_thread_at_a_time),
        cmocka_unit_test(a_file_of_vectors_serves_one_thread_at_a_time),
        cmocka_unit_test(a_context_survives_two_threads_at_once),
        cmocka_unit_test(a_batch_and_a_session_freed_by_another_thread_go_once),
        cmocka_unit_test(what_many_use_is_closed_by_any),
    };
    sem_init(&inside, 0, 0);
    sem_init(&tried, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A callback that closes what it was called for: the object goes when the call ends, and the call says how it
 * went; one that stops, or calls back in. Under AddressSanitizer a use after the end would show. The list of all
 * callbacks of kermes.h stands at the end. (Contexts: test_callbacks_tensors.c; on_token: test_models.c.) */
#include "engine/tiny_model.h"
#include <unistd.h>

enum { DIM = 8, VECTORS = 400 };

static int calls;
static km_model *model;
static km_tokenizer *tokenizer;
static km_answer_parser *parser;
static km_index *index_;
static km_vectors *vectors;
static km_ctx *ctx;
static km_status inside; /* of a call from the callback on the object that is being used */

static bool close_model(void *user, size_t done, size_t total) {
    (void)user, (void)done, (void)total;
    calls++;
    km_model_close(model);
    return true;
}

static bool close_model64(void *user, int64_t done, int64_t total) {
    return close_model(user, (size_t)done, (size_t)total);
}

static void embedding_and_perplexity_outlive_their_model(void **state) {
    (void)state;
    int32_t ids[64];
    model = tiny_model();
    size_t n = (size_t)tiny_ids(model, "The sea is wide.", ids, 64);
    const int32_t *texts[] = {ids, ids};
    size_t lengths[] = {n, n};
    float out[2 * 256];
    km_embed_options o = km_embed_defaults();
    o.progress = close_model;
    calls = 0;
    assert_int_equal(km_embed(model, texts, lengths, 2, &o, out), KM_OK);
    assert_true(calls > 0);
    assert_int_equal(km_embed(model, texts, lengths, 2, &o, out), KM_ERR_STATE);

    model = tiny_model();
    km_perplexity_options p = km_perplexity_defaults();
    km_perplexity_result r = {.size = sizeof r};
    p.progress = close_model64;
    p.context = 8;
    calls = 0;
    static const char text[] = "Once upon a time there was a little girl who lived by the sea.";
    assert_int_equal(km_perplexity(model, text, sizeof text - 1, &p, &r), KM_OK);
    assert_true(calls > 1 && r.tokens > 0);
}

static bool close_tokenizer(void *user, const int32_t *ids, size_t n) {
    (void)ids;
    calls++;
    *(size_t *)user += n;
    km_tokenizer_close(tokenizer);
    return true;
}

static void encoding_outlives_its_tokenizer(void **state) {
    (void)state;
    size_t bytes = 1 << 20, n = 0;
    char *text = malloc(bytes);
    memset(text, 'a', bytes);
    tokenizer = km_tokenizer_open("bytes");
    assert_int_equal(km_tokenizer_encode_large(tokenizer, text, bytes, 0, 1, close_tokenizer, &n),
                     KM_OK);
    assert_int_equal(n, bytes);
    assert_int_equal(km_tokenizer_encode_large(tokenizer, text, bytes, 0, 1, close_tokenizer, &n),
                     KM_ERR_STATE);
    free(text);
}

static void call_in(void *user, const km_answer_part *part) {
    (void)part;
    calls++;
    inside = km_answer_parser_put(parser, "more", 4);
    if (user) km_answer_parser_free(parser);
}

static void a_parser_is_not_called_from_its_sink_and_may_be_freed_there(void **state) {
    (void)state;
    static const char text[] = "<think>yes</think>It is <tool_call>{\"name\": \"sea\", "
                               "\"arguments\": {}}</tool_call> blue.";
    static const char *const tools[] = {"sea"};
    for (int frees = 0; frees < 2; frees++) {
        calls = 0;
        parser = km_answer_parser_new(tools, 1, 0, call_in, frees ? &calls : NULL);
        assert_int_equal(km_answer_parser_put(parser, text, sizeof text - 1), KM_OK);
        assert_int_equal(inside, KM_ERR_STATE);
        if (frees) {
            assert_int_equal(calls, 1); /* none after it */
            assert_int_equal(km_answer_parser_end(parser), KM_ERR_STATE);
        } else {
            assert_int_equal(km_answer_parser_end(parser), KM_OK);
            assert_true(calls > 3);
            assert_int_equal(km_answer_parser_calls(parser), 1);
            km_answer_parser_free(parser);
        }
    }
}

static bool close_index(void *user, int64_t done, int64_t total) {
    (void)user, (void)done, (void)total;
    calls++;
    km_index_close(index_);
    return true;
}

static bool close_both(void *user, const char *stage, int64_t done, int64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
    calls++;
    km_vectors_close(vectors);
    return true;
}

static bool free_context(void *user, const char *stage, int64_t done, int64_t total) {
    (void)user, (void)stage, (void)done, (void)total;
    calls++;
    km_ctx_free(ctx);
    return true;
}

/* The work under way cannot be finished without it: an error, and nothing is lost or left. */
static void a_context_that_is_freed_makes_the_call_fail(void **state) {
    (void)state;
    float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    km_index_options o = km_index_defaults();
    o.progress = free_context;
    int64_t live[3];
    for (int k = 0; k < 3; k++) { /* what stays for the process's life is there after the first */
        o.anchors = 0;
        ctx = km_ctx_new("cpu", 1);
        calls = 0;
        assert_null(km_index_build(ctx, x, VECTORS, DIM, NULL, &o));
        assert_true(calls > 0);
        assert_int_equal(km_last_status(), KM_ERR_STATE);
        o.anchors = 4;
        ctx = km_ctx_new("cpu", 1);
        calls = 0;
        assert_int_equal(km_anchors_learn(ctx, x, VECTORS, DIM, &o, NULL, NULL), KM_ERR_STATE);
        assert_true(calls > 0);
        live[k] = km_alloc_live();
    }
    assert_int_equal(live[1], live[2]);
}

static void indexes_and_files_of_vectors_last_as_long_as_the_call(void **state) {
    (void)state;
    char folder[] = "/tmp/kermes-callbacks-XXXXXX", in[64], out[64];
    float *x = malloc(sizeof *x * VECTORS * DIM);
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    assert_non_null(mkdtemp(folder));
    snprintf(in, sizeof in, "%s/in.npy", folder);
    snprintf(out, sizeof out, "%s/out", folder);
    ctx = km_ctx_new("cpu", 1);
    index_ = km_index_build(ctx, x, VECTORS, DIM, NULL, NULL);
    assert_non_null(index_);
    km_decompress_options d = km_decompress_defaults();
    d.progress = close_index;
    calls = 0;
    assert_int_equal(km_index_decompress(index_, in, &d), VECTORS);
    assert_int_equal(calls, 1);
    assert_int_equal(km_index_decompress(index_, in, &d), -1);
    assert_int_equal(km_last_status(), KM_ERR_STATE);

    vectors = km_vectors_open(in, NULL);
    assert_non_null(vectors);
    km_index_options o = km_index_defaults();
    o.progress = close_both;
    calls = 0;
    assert_int_equal(km_index_compress_from(ctx, vectors, NULL, out, &o, NULL), KM_OK);
    assert_true(calls > 0);
    assert_int_equal(km_vectors_read(vectors, 0, 1, x), KM_ERR_STATE);
    index_ = km_index_open(out);
    assert_int_equal(km_index_describe(index_).count, VECTORS);
    km_index_close(index_);
    km_ctx_free(ctx);
    remove(in);
    remove(out);
    rmdir(folder);
    free(x);
}

/* ---- km_index_report, and the rounds of learning anchors ---- */

typedef enum closing { STOP, CALL_IN, CLOSE_INDEX, CLOSE_VECTORS, FREE_CONTEXT, CLOSINGS } closing;

static bool while_reporting(void *user, int done, int total) {
    closing does = *(closing *)user;
    float x[DIM];
    (void)done, (void)total;
    calls++;
    if (does == STOP) return false;
    if (does == CALL_IN) { /* by the same context, index and file */
        inside = km_vectors_read(vectors, 0, 1, x);
        if (inside == KM_OK) inside = km_index_add(ctx, index_, x, 1, NULL);
    }
    if (does == CLOSE_INDEX) km_index_close(index_);
    if (does == CLOSE_VECTORS) km_vectors_close(vectors);
    if (does == FREE_CONTEXT) km_ctx_free(ctx);
    return true;
}

static void a_report_outlives_what_it_is_about(void **state) {
    (void)state;
    char folder[] = "/tmp/kermes-callbacks-XXXXXX", in[64], page[64];
    float *x = malloc(sizeof *x * VECTORS * DIM);
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    assert_non_null(mkdtemp(folder));
    snprintf(in, sizeof in, "%s/in.npy", folder);
    snprintf(page, sizeof page, "%s/page.html", folder);
    assert_int_equal(km_vectors_save(in, "f32", x, VECTORS, DIM), KM_OK);
    for (closing does = STOP; does < CLOSINGS; does++) {
        ctx = km_ctx_new("cpu", 1);
        vectors = km_vectors_open(in, NULL);
        index_ = km_index_build(ctx, x, VECTORS, DIM, NULL, NULL);
        km_measured m = {.size = sizeof m};
        assert_int_equal(km_index_measure(ctx, index_, vectors, x, 4, 10, NULL, &m), KM_OK);
        km_report_options o = km_report_defaults();
        o.path = page;
        o.progress = while_reporting;
        o.user = &does;
        calls = 0;
        inside = KM_OK;
        km_status s = km_index_report(ctx, index_, vectors, x, 4, &m, &o);
        bool fails = does == STOP || does == FREE_CONTEXT;
        assert_int_equal(s, fails ? KM_ERR_STATE : KM_OK);
        assert_int_equal(inside, KM_OK);
        assert_true(calls > 0);
        assert_int_equal(remove(page) == 0, !fails);
        /* What was closed is; the rest is as it was. */
        assert_int_equal(km_ctx_status(ctx), does == FREE_CONTEXT ? KM_ERR_STATE : KM_OK);
        assert_int_equal(km_vectors_count(vectors), does == CLOSE_VECTORS ? 0 : VECTORS);
        assert_int_equal(km_index_describe(index_).count, does == CLOSE_INDEX ? 0
                                                          : does == CALL_IN   ? VECTORS + calls
                                                                              : VECTORS);
        km_index_close(index_);
        km_vectors_close(vectors);
        km_ctx_free(ctx);
    }
    remove(in);
    rmdir(folder);
    free(x);
}

static void free_at_round(void *user, const km_anchor_round *round) {
    (void)round;
    calls++;
    if (user) km_ctx_free(ctx);
}

static void a_round_of_anchors_may_free_its_context(void **state) {
    (void)state;
    float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 7919 % 1009);
    for (int frees = 0; frees < 2; frees++) {
        km_anchor_training t = km_anchor_training_defaults();
        km_index_options o = km_index_defaults();
        t.report = free_at_round;
        t.user = frees ? &frees : NULL;
        o.training = &t;
        o.anchors = 4;
        ctx = km_ctx_new("cpu", 1);
        calls = 0;
        assert_int_equal(km_anchors_learn(ctx, x, VECTORS, DIM, &o, NULL, NULL),
                         frees ? KM_ERR_STATE : KM_OK);
        assert_true(frees ? calls == 1 : calls > 1);
        assert_int_equal(km_ctx_status(ctx), frees ? KM_ERR_STATE : KM_OK);
        km_ctx_free(ctx);
    }
}

/* ---- Opening and reading ---- */

static bool open_another(void *user, uint64_t done, uint64_t total) {
    (void)done, (void)total;
    if (calls++ == 0) {
        km_model *m = tiny_model();
        inside = m ? KM_OK : km_last_status();
        km_model_close(m);
    }
    return !user;
}

static km_status read_bytes(void *user, uint64_t offset, void *to, size_t n) {
    FILE *f = fopen(tiny_path(), "rb");
    (void)user;
    if (calls++ == 0) km_model_close(tiny_model());
    bool ok = f && fseek(f, (long)offset, SEEK_SET) == 0 && fread(to, 1, n, f) == n;
    if (f) fclose(f);
    if (calls == *(int *)user) return KM_ERR_PEER;
    return ok ? KM_OK : KM_ERR_FILE;
}

static void opening_may_be_stopped_and_may_open_another(void **state) {
    (void)state;
    int stop = 0;
    for (int stops = 0; stops < 2; stops++) {
        km_model_options o = tiny_options();
        o.progress = open_another;
        o.user = stops ? &stop : NULL;
        calls = 0;
        model = km_model_open(tiny_path(), &o);
        assert_int_equal(model == NULL, stops);
        if (stops) assert_int_equal(km_last_status(), KM_ERR_STATE);
        assert_true(calls > 0 && inside == KM_OK);
        km_model_close(model);

        FILE *f = fopen(tiny_path(), "rb");
        assert_non_null(f);
        fseek(f, 0, SEEK_END);
        stop = stops;
        km_reader r = {.bytes = (uint64_t)ftell(f), .read = read_bytes, .user = &stop};
        fclose(f);
        calls = 0;
        o.progress = NULL;
        model = km_model_open_reader(&r, &o);
        assert_int_equal(model == NULL, stops);
        if (stops) assert_int_equal(km_last_status(), KM_ERR_PEER);
        km_model_close(model);
    }
}

static km_session *session;

static bool free_at_prompt(void *user, int64_t done, int64_t total) {
    (void)done, (void)total;
    calls++;
    inside = km_session_rewind(session, 0);
    if (user) km_session_free(session);
    return user != NULL;
}

static void reading_a_prompt_may_be_stopped_or_lose_its_session(void **state) {
    (void)state;
    static const char prompt[] = "Once upon a time there was a little girl who lived by the sea.";
    model = tiny_model();
    for (int frees = 0; frees < 2; frees++) {
        km_generation g = tiny_greedy(model, 4);
        km_generated got = {.size = sizeof got};
        g.on_prompt = free_at_prompt;
        g.user = frees ? &calls : NULL;
        session = km_session_new(model);
        calls = 0;
        assert_int_equal(km_generate(session, prompt, sizeof prompt - 1, &g, &got), KM_OK);
        assert_true(calls > 0);
        assert_int_equal(inside, KM_ERR_STATE);
        assert_int_equal(got.end, KM_ENDED_CANCELLED);
        assert_int_equal(km_session_length(session) >= 0, !frees);
        km_session_free(session);
    }
    km_model_close(model);
}

/* ---- Training, tokenizers, conversion, notes ---- */

static char run_folder[96], run_text[96];
static km_train_settings run;

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    (void)s, (void)text, (void)user;
    if (e != KM_TRAIN_START) return;
    calls++;
    inside = km_train(&run, NULL, NULL); /* this run again */
    km_model_close(tiny_model());        /* anything else */
}

static bool stop_at_once(void *user) {
    (void)user;
    return ++calls > 2;
}

static bool on_tokenizer(void *user, const char *stage, int64_t done, int64_t total) {
    (void)stage, (void)done, (void)total;
    calls++;
    km_tokenizer *t = km_tokenizer_open("bytes");
    inside = t ? KM_OK : km_last_status();
    km_tokenizer_close(t);
    return !user;
}

static char converted[96];

static void on_bytes(void *user, uint64_t done, uint64_t total) {
    (void)user, (void)done, (void)total;
    if (calls++ == 0) { /* to the same place: who ends last is there */
        km_convert_options o = km_convert_defaults();
        inside = km_convert(tiny_path(), converted, &o, NULL);
    }
}

static void on_note(void *user, km_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
    calls++;
    km_set_log(NULL, NULL);
    km_ctx *c = km_ctx_new("gpu", 1); /* would tell the same note again */
    inside = c ? KM_OK : km_last_status();
    km_ctx_free(c);
}

static void the_others_may_call_in_and_stop(void **state) {
    (void)state;
    char folder[] = "/tmp/kermes-callbacks-XXXXXX", remove_all[128];
    assert_non_null(mkdtemp(folder));
    snprintf(run_folder, sizeof run_folder, "%s/run", folder);
    snprintf(run_text, sizeof run_text, "%s/text", folder);
    assert_int_equal(km_train_demo_text(run_text, 1, 20000), KM_OK);
    run = km_train_defaults();
    run.data.at[run.data.n++] = run_text;
    run.out = run_folder;
    run.layers = 1, run.heads = 2, run.dim = 16, run.context = 16, run.batch = 2, run.steps = 50;
    run.device = "cpu";
    run.threads = 1;
    km_train_hooks h = {.size = sizeof h, .event = on_event, .stop = stop_at_once};
    km_train_result r = {.size = sizeof r};
    calls = 0;
    assert_int_equal(km_train(&run, &h, &r), KM_OK);
    assert_int_equal(r.end, KM_TRAIN_STOPPED);
    assert_int_equal(inside, KM_ERR_STATE);

    for (int stops = 0; stops < 2; stops++) {
        char out[96];
        snprintf(out, sizeof out, "%s/tokenizer.json", folder);
        km_tokenizer_options o = km_tokenizer_defaults();
        km_text_input in = {.path = run_text};
        o.kind = "bpe:400";
        o.threads = 1;
        o.progress = on_tokenizer;
        o.user = stops ? &stops : NULL;
        calls = 0;
        int64_t n = km_tokenizer_train(out, &in, 1, &o);
        assert_true(stops ? n == -1 && km_last_status() == KM_ERR_STATE : n > 256);
        assert_true(calls > 0 && inside == KM_OK);
    }

    snprintf(converted, sizeof converted, "%s/out.gguf", folder);
    km_convert_options c = km_convert_defaults();
    c.type = "q8_0";
    c.progress = on_bytes;
    c.replace = true;
    calls = 0;
    assert_int_equal(km_convert(tiny_path(), converted, &c, NULL), KM_OK);
    assert_true(calls > 0);
    assert_int_equal(inside, KM_OK);
    char *about = km_describe_file(converted, NULL);
    assert_non_null(about);
    km_string_free(about);

    km_set_log(on_note, NULL);
    calls = 0;
    km_ctx *any = km_ctx_new("gpu", 1); /* a note says which it is */
    assert_true(calls <= 1);
    km_ctx_free(any);
    km_set_log(NULL, NULL);
    snprintf(remove_all, sizeof remove_all, "rm -rf %s", folder);
    assert_int_equal(system(remove_all), 0);
}

/* ---- All of them ---- */

static const struct {
    const char *name; /* as the header declares it */
    int times;
    const char *where; /* which tests call it */
} list[] = {
    {"km_log_fn", 1, "the_others_may_call_in_and_stop"},
    {"km_step_fn", 1, "test_callbacks_tensors.c"},
    {"forward", 1, "test_callbacks_tensors.c"},
    {"backward", 1, "test_callbacks_tensors.c"},
    {"km_grad_fn", 1, "test_callbacks_tensors.c"},
    {"event", 1, "the_others_may_call_in_and_stop"},
    {"stop", 1, "the_others_may_call_in_and_stop"},
    {"read", 1, "opening_may_be_stopped_and_may_open_another"},
    {"km_ids_fn", 1, "encoding_outlives_its_tokenizer"},
    {"km_answer_sink", 1, "a_parser_is_not_called_from_its_sink_and_may_be_freed_there"},
    {"on_token", 1, "test_models.c"},
    {"on_prompt", 1, "reading_a_prompt_may_be_stopped_or_lose_its_session"},
    {"report", 1, "a_round_of_anchors_may_free_its_context"},
    /* of km_model_options, km_tokenizer_options, km_embed_options, km_perplexity_options, km_index_options,
     * km_decompress_options, km_report_options and km_convert_options */
    {"progress", 8, "each has its test above"},
};

static void the_list_is_all_that_the_header_has(void **state) {
    (void)state;
    char path[4096], line[512];
    int seen[sizeof list / sizeof *list] = {0};
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/include/kermes.h", source ? source : ".");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        for (const char *at = line; (at = strstr(at, "(*")); at += 2) {
            size_t n = strcspn(at + 2, ")"), i = 0;
            while (i < sizeof list / sizeof *list &&
                   (strlen(list[i].name) != n || strncmp(list[i].name, at + 2, n) != 0))
                i++;
            if (i == sizeof list / sizeof *list)
                fail_msg("test and list the callback '%.*s'", (int)n, at + 2);
            seen[i]++;
        }
    fclose(f);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (seen[i] != list[i].times)
            fail_msg("'%s' (%s) is declared %d times, not %d", list[i].name, list[i].where, seen[i],
                     list[i].times);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_and_perplexity_outlive_their_model),
        cmocka_unit_test(encoding_outlives_its_tokenizer),
        cmocka_unit_test(a_parser_is_not_called_from_its_sink_and_may_be_freed_there),
        cmocka_unit_test(a_context_that_is_freed_makes_the_call_fail),
        cmocka_unit_test(indexes_and_files_of_vectors_last_as_long_as_the_call),
        cmocka_unit_test(a_report_outlives_what_it_is_about),
        cmocka_unit_test(a_round_of_anchors_may_free_its_context),
        cmocka_unit_test(opening_may_be_stopped_and_may_open_another),
        cmocka_unit_test(reading_a_prompt_may_be_stopped_or_lose_its_session),
        cmocka_unit_test(the_others_may_call_in_and_stop),
        cmocka_unit_test(the_list_is_all_that_the_header_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

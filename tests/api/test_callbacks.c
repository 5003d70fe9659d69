/* A callback that closes what it was called for: the object goes when the call ends, and the call says how it
 * went. (Sessions: test_models.c.) Under AddressSanitizer a use after the end would show. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_and_perplexity_outlive_their_model),
        cmocka_unit_test(encoding_outlives_its_tokenizer),
        cmocka_unit_test(a_parser_is_not_called_from_its_sink_and_may_be_freed_there),
        cmocka_unit_test(a_context_that_is_freed_makes_the_call_fail),
        cmocka_unit_test(indexes_and_files_of_vectors_last_as_long_as_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

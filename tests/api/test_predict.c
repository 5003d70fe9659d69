/* Tokenizers without a model, and how well a model predicts a text, from C. */
#include "kermes.h"
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

#define TEXT                                                                                       \
    "The little boat went out to sea. The sea was calm and the wind was low, and the man in the "  \
    "boat looked at the sky. He saw a bird, and the bird saw him."

#define assert_fails(call, code)                                                                   \
    do {                                                                                           \
        assert_int_equal(call, code);                                                              \
        assert_int_equal(km_last_status(), code);                                                  \
        assert_true(km_last_error()[0] != 0);                                                      \
    } while (0)

static const char *tiny(void) {
    static char path[4096];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/models/kermes-tiny.gguf", source ? source : ".");
    return path;
}

static const char *in_folder(const char *name) {
    static char path[4200];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kermes-predict-%d-%s", folder ? folder : "/tmp", (int)getpid(),
             name);
    return path;
}

static km_model *opened(void) {
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.threads = 1;
    km_model *m = km_model_open(tiny(), &o);
    if (!m) fail_msg("%s", km_last_error());
    return m;
}

static km_perplexity_result measured(km_model *m, const km_perplexity_options *o) {
    km_perplexity_result r = {.size = sizeof r};
    if (km_perplexity(m, TEXT, strlen(TEXT), o, &r) != KM_OK) fail_msg("%s", km_last_error());
    return r;
}

/* ---- Tokenizers ---- */

static bool collect(void *user, const int32_t *ids, size_t n) {
    int32_t **at = user;
    memcpy(*at, ids, n * sizeof *ids);
    *at += n;
    return true;
}

static bool stop(void *user, const int32_t *ids, size_t n) {
    (void)user, (void)ids, (void)n;
    return false;
}

static void a_tokenizer_is_that_of_the_model_it_came_from(void **state) {
    (void)state;
    km_model *m = opened();
    km_tokenizer *t = km_tokenizer_open(tiny());
    assert_non_null(t);
    km_tokenizer_info i = km_tokenizer_describe(t);
    assert_int_equal(i.size, sizeof i);
    assert_int_equal(i.vocab, km_model_describe(m).vocab);
    assert_int_equal(i.eos, km_model_eos(m));
    int32_t a[256], b[256], c[256], *at = c;
    char back[512];
    int64_t n = km_tokenize(m, TEXT, strlen(TEXT), KM_TOKENS_PLAIN, a, 256);
    assert_true(n > 8);
    assert_int_equal(km_tokenizer_encode(t, TEXT, strlen(TEXT), KM_TOKENS_PLAIN, b, 256), n);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    assert_int_equal(
        km_tokenizer_encode_large(t, TEXT, strlen(TEXT), KM_TOKENS_PLAIN, 2, collect, &at), KM_OK);
    assert_int_equal(at - c, n);
    assert_memory_equal(a, c, (size_t)n * sizeof *a);
    assert_int_equal(km_tokenizer_decode(t, a, (size_t)n, 0, back, sizeof back), strlen(TEXT));
    assert_memory_equal(back, TEXT, strlen(TEXT));
    size_t bytes = 0;
    assert_non_null(km_tokenizer_piece(t, a[0], &bytes));
    assert_true(bytes > 0);
    assert_fails(km_tokenizer_encode_large(t, TEXT, 9, 0, 1, stop, NULL), KM_ERR_STATE);
    assert_fails(km_tokenizer_encode_large(t, TEXT, 9, 0, -1, stop, NULL), KM_ERR_RANGE);
    assert_fails(km_tokenizer_encode_large(t, TEXT, 9, 0, 1, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_tokenizer_save(t, in_folder("tokenizer.json")), KM_OK);
    km_tokenizer_close(t);
    t = km_tokenizer_open(in_folder("tokenizer.json"));
    assert_non_null(t);
    assert_int_equal(km_tokenizer_encode(t, TEXT, strlen(TEXT), KM_TOKENS_PLAIN, b, 256), n);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    remove(in_folder("tokenizer.json"));
    km_tokenizer_close(t);
    km_model_close(m);
}

static void a_closed_tokenizer_is_an_error(void **state) {
    (void)state;
    km_tokenizer *t = km_tokenizer_open("bytes");
    assert_non_null(t);
    assert_string_equal(km_tokenizer_describe(t).kind, "bytes");
    assert_null(km_tokenizer_piece(t, 256, NULL));
    km_tokenizer_close(t);
    km_tokenizer_close(t);
    assert_fails(km_tokenizer_encode(t, "a", 1, 0, NULL, 0) == -1 ? km_last_status() : KM_OK,
                 KM_ERR_STATE);
    assert_int_equal(km_tokenizer_describe(t).size, 0);
    assert_null(km_tokenizer_open("nowhere/tokenizer.json"));
    assert_int_equal(km_last_status(), KM_ERR_FILE);
}

/* ---- Predictions ---- */

static double loss_of(const float *x, int64_t vocab, int32_t came) {
    double total = 0;
    for (int64_t k = 0; k < vocab; k++) total += exp(x[k]);
    return log(total) - x[came];
}

/* The loss of windows by what the header says of them, over a session; *tokens gets how many. */
static double by_hand(km_model *m, int64_t context, int64_t stride, int64_t *tokens) {
    int32_t ids[256];
    int64_t n = km_tokenize(m, TEXT, strlen(TEXT), KM_TOKENS_PLAIN, ids, 256), reached = 0;
    int64_t vocab = km_model_describe(m).vocab;
    km_session *s = km_session_new(m);
    double sum = 0;
    *tokens = 0;
    for (int64_t begin = 0; reached < n; begin += stride) {
        int64_t end = begin + context < n ? begin + context : n;
        assert_int_equal(km_session_rewind(s, 0), KM_OK);
        for (int64_t i = begin; i < end; i++) {
            if (i > begin && i >= reached) {
                sum += loss_of(km_session_logits(s), vocab, ids[i]);
                ++*tokens;
            }
            assert_int_equal(km_session_read(s, ids + i, 1), KM_OK);
        }
        reached = end;
    }
    km_session_free(s);
    return sum / (double)*tokens;
}

/* The tokenizer of this model puts nothing before a text. */
static void the_loss_is_that_of_the_logits(void **state) {
    (void)state;
    static const int64_t how[][2] = {{256, 256}, {16, 16}, {16, 4}, {16, 15}, {16, 1}};
    km_model *m = opened();
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        km_perplexity_options o = km_perplexity_defaults();
        int64_t tokens;
        double loss = by_hand(m, how[i][0], how[i][1], &tokens);
        o.context = how[i][0];
        o.stride = how[i][1];
        for (int decode = 0; decode < 2; decode++) {
            o.decode = decode;
            km_perplexity_result r = measured(m, &o);
            assert_int_equal(r.tokens, tokens);
            assert_int_equal(r.context, o.context);
            assert_true(fabs(r.loss - loss) < 2e-3 * loss); /* the cache is f16 */
            int64_t bytes = (int64_t)strlen(TEXT);
            if (i == 0) assert_true(r.bytes < bytes && r.bytes > bytes - 8); /* but the first */
        }
    }
    km_perplexity_options o = km_perplexity_defaults();
    km_perplexity_result r = {.size = sizeof r};
    o.context = 16;
    o.stride = 17;
    assert_fails(km_perplexity(m, TEXT, strlen(TEXT), &o, &r), KM_ERR_RANGE);
    km_model_close(m);
}

static bool ask(void *user, int64_t done, int64_t total) {
    km_model *m = user;
    assert_true(done > 0 && done <= total);
    char *text = km_generate_text(m, "The", NULL); /* the model is anybody's between two windows */
    assert_non_null(text);
    km_string_free(text);
    return done < total;
}

static void predictions_are_saved_and_compared_and_a_callback_stops(void **state) {
    (void)state;
    km_model *m = opened();
    km_perplexity_options o = km_perplexity_defaults();
    o.context = 32;
    o.save_logits = in_folder("logits");
    measured(m, &o);
    o.save_logits = NULL;
    o.against = in_folder("logits");
    km_perplexity_result r = measured(m, &o);
    assert_true(r.divergence.tokens == r.tokens && fabs(r.divergence.mean) < 1e-4);
    assert_true(r.divergence.same_top > 0.99);
    o.stride = 8; /* not the windows that were saved */
    assert_fails(km_perplexity(m, TEXT, strlen(TEXT), &o, &r), KM_ERR_SHAPE);
    o = km_perplexity_defaults();
    o.context = 32;
    o.windows = 2;
    o.imatrix = in_folder("im.gguf");
    assert_true(measured(m, &o).imatrix_layers > 4);
    assert_int_equal(remove(in_folder("im.gguf")), 0);
    o.decode = true;
    assert_fails(km_perplexity(m, TEXT, strlen(TEXT), &o, &r), KM_ERR_UNSUPPORTED);
    o = km_perplexity_defaults();
    o.context = 16;
    o.windows = 2;
    o.save_logits = in_folder("never");
    o.progress = ask;
    o.user = m;
    assert_fails(km_perplexity(m, TEXT, strlen(TEXT), &o, &r), KM_ERR_STATE);
    assert_int_not_equal(access(in_folder("never"), F_OK), 0);
    remove(in_folder("logits"));
    km_model_close(m);
}

static void what_is_wrong_is_told(void **state) {
    (void)state;
    km_model *m = opened();
    km_perplexity_options o = km_perplexity_defaults();
    km_perplexity_result r = {.size = sizeof r};
    assert_fails(km_perplexity(NULL, TEXT, 4, NULL, &r), KM_ERR_NULL);
    assert_fails(km_perplexity(m, NULL, 4, NULL, &r), KM_ERR_NULL);
    assert_fails(km_perplexity(m, TEXT, 4, NULL, NULL), KM_ERR_NULL);
    assert_fails(km_perplexity(m, TEXT, 0, NULL, &r), KM_ERR_RANGE);
    o.context = -1;
    assert_fails(km_perplexity(m, TEXT, 40, &o, &r), KM_ERR_RANGE);
    o.context = 1 << 30;
    assert_fails(km_perplexity(m, TEXT, 40, &o, &r), KM_ERR_RANGE);
    o.size = 0;
    assert_fails(km_perplexity(m, TEXT, 40, &o, &r), KM_ERR_RANGE);
    r.size = 0;
    assert_fails(km_perplexity(m, TEXT, 40, NULL, &r), KM_ERR_RANGE);
    km_model_close(m);
    r.size = sizeof r;
    assert_fails(km_perplexity(m, TEXT, 40, NULL, &r), KM_ERR_STATE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tokenizer_is_that_of_the_model_it_came_from),
        cmocka_unit_test(a_closed_tokenizer_is_an_error),
        cmocka_unit_test(the_loss_is_that_of_the_logits),
        cmocka_unit_test(predictions_are_saved_and_compared_and_a_callback_stops),
        cmocka_unit_test(what_is_wrong_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

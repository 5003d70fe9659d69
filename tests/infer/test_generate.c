/* Text from a model: streamed in whole characters, the same for the same seed. */
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
    km_model *m = km_model_new(ctx, &c, KM_F32);
    km_model_init(m, 4);
    heard h[3] = {{.stop_after = -1}, {.stop_after = -1}, {.stop_after = 5}};
    for (int i = 0; i < 3; i++) {
        km_generation how = {
            .tokens = 30, .sampling = km_sampling_defaults(), .on_text = hear, .user = &h[i]};
        km_generated got;
        assert_int_equal(km_generate(ctx, m, token, "abc", 3, &how, &got, &err), KM_OK);
        assert_int_equal(got.prompt_tokens, 3);
        assert_int_equal(got.tokens, i == 2 ? 5 : 30); /* more than the context of 12 holds */
    }
    assert_int_equal(h[0].bytes, h[1].bytes);
    assert_memory_equal(h[0].text, h[1].text, h[0].bytes);
    assert_memory_equal(h[0].text, h[2].text, 1);
    km_generation how = {.tokens = 2, .sampling = km_sampling_defaults()};
    km_generated got;
    assert_int_equal(km_generate(ctx, m, token, "", 0, &how, &got, &err), KM_OK);
    assert_int_equal(got.prompt_tokens, 1);
    assert_int_equal(km_generate(ctx, m, token, "0123456789abc", 13, &how, &got, &err),
                     KM_ERR_RANGE);
    assert_string_equal(err.text, "the prompt has 13 tokens and the model's context 12");
    km_model_free(m);
    km_model *few = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    err = (km_error){0};
    assert_int_equal(km_generate(ctx, few, token, "a", 1, &how, &got, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "the tokenizer has 256 tokens and the model only 29; they do not "
                                  "belong together");
    km_model_free(few);
    km_token_free(token);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", text_is_streamed_and_the_same_for_the_same_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

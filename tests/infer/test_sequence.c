/* Sessions: reading piece by piece gives the logits of reading at once, what follows greedily is
 * what transformers says, and what does not fit is refused. */
#include "backend/backend.h"
#include "format/safetensors.h"
#include "infer/cache.h"
#include "infer/sample.h"
#include "infer/sequence.h"
#include "model/files.h"
#include "model/small.h"
#include "support/random_model.h"
#include "support/sanitized.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A session whose cache rounds nothing. */
static km_sequence *in_f32(km_ctx *ctx, km_net *m, km_error *err) {
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    o.shift = true;
    return km_sequence_open(ctx, m, &o, err);
}

/* Logits of every position at once. */
static float *all_logits(km_ctx *ctx, km_net *m, const int32_t *ids, int64_t n) {
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, n), ids);
    float *v = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
    km_no_grad_end(ctx);
    km_step_end(ctx);
    return v;
}

static void near(const float *got, const float *want, double bound) {
    assert_non_null(got);
    for (int i = 0; i < SMALL_VOCAB; i++)
        if (!(fabs((double)got[i] - want[i]) <= bound)) {
            print_error("logit %d is %.9g, not %.9g\n", i, got[i], want[i]);
            fail();
        }
}

static void reading_in_pieces_gives_the_logits_of_reading_at_once(void **state) {
    km_ctx *ctx = *state;
    enum { LENGTH = 12 };
    int32_t ids[LENGTH];
    for (int i = 0; i < LENGTH; i++) ids[i] = small_token(1, i);
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++)
        for (int low = 0; low < 2; low++) {
            km_error err = {0};
            km_net *m = small_model(ctx, arch, low ? KM_BF16 : KM_F32);
            for (int i = 0; i < m->params.n; i++) /* first values are too small to tell apart */
                if (m->params.at[i].decay) km_param_normal(ctx, &m->params.at[i], 5, 0.3);
            float *want = all_logits(ctx, m, ids, LENGTH);
            km_sequence *s = in_f32(ctx, m, &err);
            assert_null(km_sequence_logits(s));
            static const int pieces[] = {5, 1, 1, 3, 2};
            int at = 0;
            for (int i = 0; i < 5; i++) {
                assert_int_equal(km_sequence_read(s, ids + at, (size_t)pieces[i], &err), KM_OK);
                at += pieces[i];
                near(km_sequence_logits(s), want + (at - 1) * SMALL_VOCAB, low ? 0.1 : 2e-5);
            }
            assert_int_equal(km_sequence_length(s), LENGTH);
            km_free(want);
            km_sequence_free(s);
            km_net_free(m);
        }
}

static void greedy_text_is_that_of_transformers(void **state) {
    km_ctx *ctx = *state;
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        char path[512], expected[600];
        km_error err = {0};
        const char *root = getenv("SRC_DIR");
        snprintf(path, sizeof path, "%s/tests/fixtures/models/%s", root ? root : ".",
                 km_arch_name(arch));
        snprintf(expected, sizeof expected, "%s/expected.safetensors", path);
        km_net *m = km_net_load(ctx, path, KM_F32, &err);
        km_safetensors *f = km_safetensors_open(expected, &err);
        assert_non_null(m);
        const int32_t *want = km_safetensors_find(f, "greedy")->data;
        km_sequence *s = in_f32(ctx, m, &err);
        assert_int_equal(km_sequence_read(s, want, 4, &err), KM_OK);
        for (int i = 4; i < 12; i++) {
            int32_t id = km_likeliest(km_sequence_logits(s), SMALL_VOCAB);
            assert_int_equal(id, want[i]);
            assert_int_equal(km_sequence_next(s, id, &err), KM_OK);
        }
        km_sequence_free(s);
        km_safetensors_close(f);
        km_net_free(m);
    }
}

/* A full context goes on with its second half, read anew. */
static void a_full_context_goes_on_with_its_second_half(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    km_sequence *s = in_f32(ctx, m, &err);
    int32_t ids[13];
    for (int i = 0; i < 13; i++) ids[i] = small_token(0, i);
    assert_int_equal(km_sequence_read(s, ids, 12, &err), KM_OK);
    assert_int_equal(km_sequence_next(s, ids[12], &err), KM_OK);
    assert_int_equal(km_sequence_length(s), 7);
    float *want = all_logits(ctx, m, ids + 6, 7);
    near(km_sequence_logits(s), want + 6 * SMALL_VOCAB, 1e-6);
    km_free(want);
    km_sequence_free(s);
    km_net_free(m);
}

static void what_does_not_fit_is_refused_and_changes_nothing(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = small_model(ctx, KM_ARCH_LLAMA, KM_F32);
    km_sequence *s = in_f32(ctx, m, &err);
    int32_t ids[20] = {0}, odd[] = {3, SMALL_VOCAB}, below[] = {-1};
    assert_int_equal(km_sequence_read(s, ids, 20, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "the prompt has 20 tokens and the model's context 12");
    err = (km_error){0};
    assert_int_equal(km_sequence_read(s, odd, 2, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "token 29 is not in the model's vocabulary of 29");
    err = (km_error){0};
    assert_int_equal(km_sequence_read(s, below, 1, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "token -1 is not in the model's vocabulary of 29");
    err = (km_error){0};
    assert_int_equal(km_sequence_read(s, ids, 10, &err), KM_OK);
    assert_int_equal(km_sequence_read(s, ids, 3, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "3 tokens after 10 do not fit the model's context of 12");
    assert_int_equal(km_sequence_length(s), 10);
    km_sequence_reset(s);
    assert_null(km_sequence_logits(s));
    assert_int_equal(km_sequence_length(s), 0);
    km_sequence_free(s);
    assert_refused(ctx, km_cache_new(ctx, m, &(km_cache_options){KM_F32, 1, 13, 0}), KM_ERR_RANGE,
                   "cache: 1 sequences of 13 tokens; the model's context is 12");
    assert_refused(ctx, km_cache_new(ctx, m, &(km_cache_options){KM_Q8_0, 1, 12, 0}), KM_ERR_DTYPE,
                   "cache: heads of 4 elements cannot be kept as q8_0; f16 takes any");
    assert_refused(ctx, km_cache_new(ctx, m, &(km_cache_options){KM_Q4_K, 1, 12, 0}), KM_ERR_DTYPE,
                   "cache: it can be f32, f16, bf16, q8_0 or q4_0, not q4_k");
    km_net_free(m);
}

static void decoding_allocates_nothing_after_the_first_tokens(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_config c = small_config(KM_ARCH_GPT2);
    c.context = 64;
    km_net *m = km_net_new(ctx, &c, KM_F32);
    km_net_init(m, 2);
    km_sequence *s = in_f32(ctx, m, &err);
    uint64_t before = 0;
    for (int i = 0; i < 40; i++) {
        if (i == 10) before = km_alloc_count();
        assert_int_equal(km_sequence_next(s, small_token(0, i), &err), KM_OK);
    }
    assert_int_equal(km_alloc_count(), before);
    km_sequence_free(s);
    km_net_free(m);
}

/* ---- Sessions that are gone on with ---- */

enum { LONG = 1200, WORDS = 301, AFTER = 6 };

/* Whose weights are of this type, with layers wide enough for every kernel. */
static km_net *typed_model(km_ctx *ctx, const char *mix) {
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 128,
                   .head_dim = 32,
                   .hidden = 256,
                   .context = LONG,
                   .vocab = WORDS,
                   .tied = true,
                   .rope_base = 1e4};
    c = random_config(c);
    return random_model(ctx, &c, mix, 5, NULL);
}

static km_sequence *typed_session(km_ctx *ctx, km_net *m) {
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    km_sequence *s = km_sequence_open(ctx, m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    return s;
}

static void follow(km_sequence *s, const int32_t *ids, int n) {
    km_error err = {0};
    for (int i = 0; i < n; i++) assert_int_equal(km_sequence_next(s, ids[i], &err), KM_OK);
}

static void keep_and_follow(km_sequence *s, float out[2][WORDS]) {
    memcpy(out[0], km_sequence_logits(s), sizeof out[0]);
    follow(s, (int32_t[]){7, 3, 50, 21, 9, 40}, AFTER);
    memcpy(out[1], km_sequence_logits(s), sizeof out[1]);
}

/* As km_make_text_in reads a prompt exactly. */
static int64_t read_settled(km_sequence *s, const int32_t *ids, int n) {
    km_error err = {0};
    int64_t same = km_sequence_settled(s, ids, (size_t)n);
    km_sequence_rewind(s, same);
    assert_int_equal(km_sequence_length(s), same);
    assert_int_equal(km_sequence_read(s, ids + same, (size_t)(n - same), &err), KM_OK);
    return same;
}

/* The prompt, what was chosen after it, and what is read then: few rows, many, and over the bounds of
 * chunks, with last chunks of few rows and of many. */
static void a_session_gone_on_with_gives_the_bits_of_reading_everything(void **state) {
    km_ctx *ctx = *state;
    static const char *const mixes[] = {"q4_0", "q8_0", "f16"};
    static const int cases[][3] = {{40, 9, 3},    {40, 9, 30},  {5, 3, 2},    {5, 20, 40},
                                   {12, 0, 1},    {500, 4, 5},  {505, 9, 3},  {515, 3, 1},
                                   {515, 3, 40},  {700, 20, 2}, {1020, 3, 4}, {200, 0, 1},
                                   {200, 30, 300}};
    char file[64];
    snprintf(file, sizeof file, "/tmp/kermes-gone-on-%d", (int)getpid());
    for (size_t k = 0; k < sizeof mixes / sizeof *mixes; k += SANITIZED ? 2 : 1) {
        km_net *m = typed_model(ctx, mixes[k]);
        int32_t ids[LONG];
        random_ids(ids, LONG, WORDS);
        bool fine = false;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i += SANITIZED ? 3 : 1) {
            const int *c = cases[i];
            int n = c[0] + c[1] + c[2];
            float want[2][WORDS], got[2][WORDS];
            km_error err = {0};
            km_sequence *fresh = typed_session(ctx, m), *s = typed_session(ctx, m);
            assert_int_equal(km_sequence_read(fresh, ids, (size_t)n, &err), KM_OK);
            keep_and_follow(fresh, want);
            assert_int_equal(km_sequence_read(s, ids, (size_t)c[0], &err), KM_OK);
            follow(s, ids + c[0], c[1]);
            if (i % 2) { /* by way of a file */
                assert_int_equal(km_sequence_save(s, file, &err), KM_OK);
                km_sequence_reset(s);
                assert_int_equal(km_sequence_restore(s, file, &err), KM_OK);
                unlink(file);
            }
            int64_t same = read_settled(s, ids, n);
            fine = fine || (same > 0 && same % 512 != 0);
            keep_and_follow(s, got);
            if (memcmp(got, want, sizeof want) != 0)
                fail_msg("%s: %d read, %d chosen, %d read: other bits", mixes[k], c[0], c[1], c[2]);
            km_sequence_free(s);
            km_sequence_free(fresh);
        }
        assert_true(SANITIZED ||
                    fine == (k < 2)); /* only chosen tokens, and a few, are read again */
        km_net_free(m);
    }
}

/* A shorter text than was read before, and one that parts ways. */
static void a_shorter_text_gives_the_bits_of_reading_it_alone(void **state) {
    km_ctx *ctx = *state;
    km_net *m = typed_model(ctx, "q4_0");
    int32_t ids[LONG];
    random_ids(ids, LONG, WORDS);
    static const int lengths[] = {600, 520, 513, 512, 100, 17, 16, 2};
    km_sequence *s = typed_session(ctx, m);
    km_error err = {0};
    assert_int_equal(km_sequence_read(s, ids, 700, &err), KM_OK);
    for (int i = 0; i < 8; i += SANITIZED ? 2 : 1) {
        float want[2][WORDS], got[2][WORDS];
        km_sequence *fresh = typed_session(ctx, m);
        ids[lengths[i] - 1] = (ids[lengths[i] - 1] + 1) % WORDS;
        assert_int_equal(km_sequence_read(fresh, ids, (size_t)lengths[i], &err), KM_OK);
        keep_and_follow(fresh, want);
        read_settled(s, ids, lengths[i]);
        keep_and_follow(s, got);
        assert_memory_equal(got, want, sizeof want);
        km_sequence_free(fresh);
    }
    km_sequence_free(s);
    km_net_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(reading_in_pieces_gives_the_logits_of_reading_at_once),
        ON_EACH(greedy_text_is_that_of_transformers),
        ON_EACH(a_full_context_goes_on_with_its_second_half),
        ON("cpu", what_does_not_fit_is_refused_and_changes_nothing),
        ON("cpu", decoding_allocates_nothing_after_the_first_tokens),
        ON("cpu", a_session_gone_on_with_gives_the_bits_of_reading_everything),
        ON("cpu", a_shorter_text_gives_the_bits_of_reading_it_alone),
    };
    /* Heads of 4 elements are too narrow for a GPU: tests/backend/test_cuda_live_logits.c has others. */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

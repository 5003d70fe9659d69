/* Batches: what a sequence gets does not depend on its neighbours, forks share pages and part ways
 * when one goes on, caches of few bits stay close, and windows give pages back. */
#include "base/alloc.h"
#include "infer/sequences.h"
#include "infer/sequence.h"
#include "model/small.h"
#include "support/sanitized.h"
#include <string.h>

enum { VOCAB = 61, CONTEXT = 400 };

/* Two layers with grouped heads of 32, so that every dtype of a cache fits. */
static km_net *made(km_ctx *ctx, km_arch arch, int64_t window) {
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 64,
                   .head_dim = 32,
                   .hidden = 96,
                   .context = CONTEXT,
                   .vocab = VOCAB,
                   .tied = true,
                   .window = window};
    if (arch == KM_ARCH_GPT2)
        c = (km_config){.arch = arch,
                        .layers = 2,
                        .heads = 2,
                        .dim = 64,
                        .context = CONTEXT,
                        .vocab = VOCAB,
                        .tied = true,
                        .bias = true};
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_ok(ctx);
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].decay) km_param_normal(ctx, &m->params.at[i], 11, 0.2);
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].t->shape.ndim == 1 && !strstr(m->params.at[i].name, "bias"))
            km_assign(ctx, m->params.at[i].t, km_ones(ctx, KM_F32, m->params.at[i].t->shape));
    km_step_end(ctx);
    assert_ok(ctx);
    return m;
}

static int32_t token(int row, int64_t t) {
    return (int32_t)((row * 17 + t * 7 + t * t * 3) % VOCAB);
}

static void ids_of(int row, int64_t n, int32_t *ids) {
    for (int64_t t = 0; t < n; t++) ids[t] = token(row, t);
}

static km_sequences *batch(km_ctx *ctx, km_net *m, km_dtype cache, int64_t sequences) {
    km_error err = {0};
    km_sequences_options o = km_sequences_defaults();
    o.cache = cache;
    o.sequences = sequences;
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    if (!b) fail_msg("%s", err.text);
    return b;
}

static void same(const float *a, const float *b) {
    assert_non_null(a);
    assert_non_null(b);
    assert_memory_equal(a, b, VOCAB * sizeof *a);
}

static void near(const float *a, const float *b, double bound) {
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs((double)a[i] - b[i]) <= bound)) fail_msg("%d: %g, not %g", i, a[i], b[i]);
}

/* Sequence `row` alone: its prompt, then `steps` tokens; the logits after the last. */
static void alone(km_ctx *ctx, km_net *m, km_dtype cache, int row, int64_t prompt, int steps,
                  float *out) {
    km_error err = {0};
    int32_t ids[CONTEXT];
    km_sequences *b = batch(ctx, m, cache, 1);
    int s = km_sequences_join(b, &err);
    ids_of(row, prompt, ids);
    assert_int_equal(km_sequences_read(b, s, ids, (size_t)prompt, &err), KM_OK);
    for (int i = 0; i < steps; i++)
        assert_int_equal(
            km_sequences_step(b, &(km_sequences_token){s, token(row, prompt + i)}, 1, &err), KM_OK);
    memcpy(out, km_sequences_logits(b, s), VOCAB * sizeof *out);
    km_sequences_free(b);
}

static void neighbours_change_no_bit(void **state) {
    km_ctx *ctx = *state;
    static const km_dtype caches[] = {KM_F32, KM_F16, KM_Q8_0, KM_Q4_0};
    enum { MANY = 67, STEPS = 4 }; /* more than go into one call */
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++)
        for (int k = SANITIZED ? arch % 2 : 0; k < 4; k += SANITIZED ? 2 : 1) {
            km_error err = {0};
            km_net *m = made(ctx, arch, 0);
            km_sequences *b = batch(ctx, m, caches[k], MANY);
            int seq[MANY];
            int64_t prompt[MANY];
            for (int i = 0; i < MANY; i++) {
                int32_t ids[CONTEXT];
                prompt[i] = 1 + (i * 23) % 150; /* some in one page, some in three */
                ids_of(i, prompt[i], ids);
                seq[i] = km_sequences_join(b, &err);
                assert_int_equal(km_sequences_read(b, seq[i], ids, (size_t)prompt[i], &err), KM_OK);
            }
            for (int step = 0; step < STEPS; step++) {
                km_sequences_token t[MANY];
                int n = 0;
                for (int i = 0; i < MANY; i++) /* not all in every step, and not in one order */
                    if (i != 3) t[n++] = (km_sequences_token){seq[(i * 5 + step) % MANY], 0};
                for (int i = 0; i < n; i++) {
                    int row = t[i].sequence; /* joined in order: the row's number */
                    t[i].id = token(row, km_sequences_length(b, row));
                }
                assert_int_equal(km_sequences_step(b, t, n, &err), KM_OK);
            }
            for (int i = 0; i < MANY; i += SANITIZED ? 5 : 1) {
                float want[VOCAB];
                alone(ctx, m, caches[k], i, prompt[i],
                      (int)(km_sequences_length(b, seq[i]) - prompt[i]), want);
                same(km_sequences_logits(b, seq[i]), want);
            }
            km_sequences_free(b);
            km_net_free(m);
        }
}

static void small_caches_stay_close_to_exact_ones(void **state) {
    km_ctx *ctx = *state;
    static const struct {
        km_dtype d;
        double bound;
    } kinds[] = {{KM_F16, 0.02}, {KM_BF16, 0.15}, {KM_Q8_0, 0.15}, {KM_Q4_0, 2.5}};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    float want[VOCAB], got[VOCAB];
    alone(ctx, m, KM_F32, 1, 130, 20, want);
    for (int k = 0; k < 4; k++) {
        alone(ctx, m, kinds[k].d, 1, 130, 20, got);
        near(got, want, kinds[k].bound);
        assert_memory_not_equal(got, want, sizeof want);
    }
    km_net_free(m);
}

static void forks_share_a_beginning_and_part_ways(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    km_sequences *b = batch(ctx, m, KM_F16, 3);
    int32_t ids[CONTEXT];
    ids_of(2, 100, ids); /* a whole page and a part of one */
    int one = km_sequences_join(b, &err);
    assert_int_equal(km_sequences_read(b, one, ids, 100, &err), KM_OK);
    int two = km_sequences_fork(b, one, &err);
    same(km_sequences_logits(b, two), km_sequences_logits(b, one));
    assert_int_equal(km_sequences_length(b, two), 100);
    km_sequences_token t[2] = {{one, 5}, {two, 9}};
    for (int i = 0; i < 60; i++) { /* both into the shared page, and beyond it */
        t[0].id = (5 + i) % VOCAB;
        t[1].id = (9 + 2 * i) % VOCAB;
        assert_int_equal(km_sequences_step(b, t, 2, &err), KM_OK);
    }
    for (int k = 0; k < 2; k++) {
        km_sequences *other = batch(ctx, m, KM_F16, 1);
        int s = km_sequences_join(other, &err);
        assert_int_equal(km_sequences_read(other, s, ids, 100, &err), KM_OK);
        for (int i = 0; i < 60; i++)
            assert_int_equal(
                km_sequences_step(other, &(km_sequences_token){s, (k ? 9 + 2 * i : 5 + i) % VOCAB},
                                  1, &err),
                KM_OK);
        same(km_sequences_logits(b, k ? two : one), km_sequences_logits(other, s));
        km_sequences_free(other);
    }
    km_sequences_leave(b, one); /* the shared page is the fork's alone now */
    assert_int_equal(km_sequences_step(b, &t[1], 1, &err), KM_OK);
    assert_int_equal(km_sequences_join(b, &err), one);
    assert_int_not_equal(km_sequences_join(b, &err), -1);
    assert_int_equal(km_sequences_join(b, &err), -1);
    assert_string_equal(err.text, "all 3 sequences of the session are in use");
    km_sequences_free(b);
    km_net_free(m);
}

static void a_rewound_sequence_goes_on_as_if_it_had_never_gone_further(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    int32_t ids[CONTEXT], other[CONTEXT];
    ids_of(3, 200, ids);
    memcpy(other, ids, sizeof ids);
    for (int i = 120; i < 140; i++) other[i] = (ids[i] + 1) % VOCAB;
    km_sequences_options o = km_sequences_defaults();
    o.cache = KM_F32;
    km_sequence *s = km_sequence_open(ctx, m, &o, &err);
    int64_t reused = -1;
    assert_int_equal(km_sequence_prompt(s, ids, 200, &reused, &err), KM_OK);
    assert_int_equal(reused, 0);
    assert_int_equal(km_sequence_match(s, other, 140), 120);
    assert_int_equal(km_sequence_prompt(s, other, 140, &reused, &err), KM_OK);
    assert_int_equal(reused, 120);
    assert_int_equal(km_sequence_length(s), 140);
    assert_memory_equal(km_sequence_tokens(s), other, 140 * sizeof *other);
    km_sequence *fresh = km_sequence_open(ctx, m, &o, &err);
    assert_int_equal(km_sequence_read(fresh, other, 140, &err), KM_OK);
    near(km_sequence_logits(s), km_sequence_logits(fresh), 1e-4);
    /* The same prompt again: its last token is read, for the logits. */
    assert_int_equal(km_sequence_prompt(s, other, 140, &reused, &err), KM_OK);
    assert_int_equal(reused, 139);
    near(km_sequence_logits(s), km_sequence_logits(fresh), 1e-4);
    assert_int_equal(km_sequence_prompt(s, other, CONTEXT + 1, &reused, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "the prompt has 401 tokens and the model's context 400");
    assert_int_equal(km_sequence_length(s), 140);
    km_sequence_free(fresh);
    km_sequence_free(s);
    km_net_free(m);
}

static void a_full_context_is_an_error_unless_shifting_was_asked_for(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    int32_t ids[CONTEXT];
    ids_of(4, 100, ids);
    km_sequences_options o = km_sequences_defaults();
    o.context = 100;
    o.keep = 10;
    for (int shifts = 0; shifts < 2; shifts++) {
        o.shift = shifts;
        km_sequence *s = km_sequence_open(ctx, m, &o, &err);
        assert_int_equal(km_sequence_context(s), 100);
        assert_int_equal(km_sequence_read(s, ids, 100, &err), KM_OK);
        if (shifts) {
            assert_int_equal(km_sequence_next(s, 7, &err), KM_OK);
            assert_int_equal(km_sequence_length(s), 10 + 45 + 1);
            assert_memory_equal(km_sequence_tokens(s), ids, 10 * sizeof *ids);
            assert_memory_equal(km_sequence_tokens(s) + 10, ids + 55, 45 * sizeof *ids);
        } else {
            assert_int_equal(km_sequence_next(s, 7, &err), KM_ERR_RANGE);
            assert_string_equal(err.text,
                                "1 tokens after 100 do not fit the model's context of 100");
            assert_int_equal(km_sequence_length(s), 100);
        }
        km_sequence_free(s);
        err = (km_error){0};
    }
    km_net_free(m);
}

/* Behind a window of all layers pages are given back: the pool holds fewer tokens than the text. */
static void windows_give_their_pages_back(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 40);
    int32_t ids[CONTEXT];
    ids_of(5, 350, ids);
    km_sequences *b = batch(ctx, m, KM_F32, 1);
    int s = km_sequences_join(b, &err);
    assert_int_equal(km_sequences_read(b, s, ids, 200, &err), KM_OK);
    for (int i = 200; i < 350; i++)
        assert_int_equal(km_sequences_step(b, &(km_sequences_token){s, ids[i]}, 1, &err), KM_OK);
    km_no_grad_begin(ctx);
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, 350), ids);
    float *want = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
    km_no_grad_end(ctx);
    near(km_sequences_logits(b, s), want + 349 * VOCAB, 1e-4);
    assert_int_equal(km_sequences_match(b, s, ids, 340), 340); /* its window is still there */
    assert_int_equal(km_sequences_match(b, s, ids, 100), 0);   /* this one's is not */
    km_free(want);
    km_sequences_free(b);
    km_net_free(m);
}

typedef struct seen {
    int calls;
    int64_t last, total, stop_at;
} seen;

static bool watch(void *user, int64_t done, int64_t total) {
    seen *s = user;
    s->calls++;
    assert_true(done > s->last && done <= total);
    s->last = done;
    s->total = total;
    return s->stop_at == 0 || done < s->stop_at;
}

static void a_long_prompt_shows_progress_and_can_be_stopped(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 1,
                   .heads = 2,
                   .kv_heads = 1,
                   .dim = 16,
                   .hidden = 24,
                   .context = 2000,
                   .vocab = VOCAB,
                   .tied = true};
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_int_equal(km_net_init(m, 3), KM_OK);
    static int32_t ids[1300];
    for (int i = 0; i < 1300; i++) ids[i] = token(1, i);
    seen all = {0}, some = {.stop_at = 1000};
    km_sequence *s = km_sequence_new(ctx, m, &err);
    km_sequence_on_progress(s, watch, &all);
    assert_int_equal(km_sequence_read(s, ids, 1300, &err), KM_OK);
    assert_int_equal(all.calls, 3);
    assert_int_equal(all.total, 1300);
    km_sequence_reset(s);
    km_sequence_on_progress(s, watch, &some);
    assert_int_equal(km_sequence_read(s, ids, 1300, &err), KM_ERR_STATE);
    assert_string_equal(err.text, "stopped after 1024 of 1300 tokens");
    assert_int_equal(km_sequence_length(s), 1024);
    assert_null(km_sequence_logits(s));
    km_sequence_free(s);
    km_net_free(m);
}

static void a_step_refuses_what_makes_no_sense(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    km_sequences *b = batch(ctx, m, KM_F16, 2);
    int s = km_sequences_join(b, &err);
    km_sequences_token twice[] = {{s, 1}, {s, 2}}, odd[] = {{s, VOCAB}};
    assert_int_equal(km_sequences_step(b, twice, 2, &err), KM_ERR_STATE);
    err = (km_error){0};
    assert_int_equal(km_sequences_step(b, odd, 1, &err), KM_ERR_RANGE);
    assert_string_equal(err.text, "token 61 is not in the model's vocabulary of 61");
    assert_int_equal(km_sequences_length(b, s), 0);
    km_sequences_free(b);
    km_net_free(m);
}

/* Each allocation in turn is refused: an error, nothing lost, and the next try works. */
static void running_out_of_memory_is_an_error_and_nothing_is_lost(void **state) {
    km_ctx *ctx = *state;
    km_net *m = made(ctx, KM_ARCH_LLAMA, 0);
    int32_t ids[70];
    ids_of(6, 70, ids);
    int refused = 0;
    for (int64_t nth = 0; nth < 400; nth += nth < 60 ? 1 : 17) {
        km_error err = {0};
        km_trim(ctx);
        km_step_end(ctx);
        int64_t live = km_alloc_live();
        km_alloc_fail_nth(nth);
        km_sequence *s = km_sequence_new(ctx, m, &err);
        km_status status = s ? km_sequence_read(s, ids, 70, &err) : err.code;
        for (int i = 0; i < 3 && status == KM_OK; i++) status = km_sequence_next(s, i, &err);
        km_alloc_fail_nth(-1);
        if (status != KM_OK) {
            refused++;
            assert_int_equal(status, KM_ERR_MEMORY);
            assert_true(err.text[0]);
        }
        km_sequence_free(s);
        km_ctx_clear_error(ctx);
        km_step_end(ctx);
        km_trim(ctx);
        if (nth > 80)
            assert_int_equal(km_alloc_live(), live); /* the context's own lists are there */
    }
    assert_true(refused > 40);
    float got[VOCAB];
    alone(ctx, m, KM_F16, 6, 70, 3, got);
    km_net_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("cpu", neighbours_change_no_bit),
        ON("cpu", small_caches_stay_close_to_exact_ones),
        ON("cpu", forks_share_a_beginning_and_part_ways),
        ON("cpu", a_rewound_sequence_goes_on_as_if_it_had_never_gone_further),
        ON("cpu", a_full_context_is_an_error_unless_shifting_was_asked_for),
        ON("cpu", windows_give_their_pages_back),
        ON("cpu", a_long_prompt_shows_progress_and_can_be_stopped),
        ON("cpu", a_step_refuses_what_makes_no_sense),
        ON("cpu", running_out_of_memory_is_an_error_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

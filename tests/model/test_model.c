/* Models as a whole: a first loss as it must be, learning, causality, recomputation, freezing. */
#include "backend/backend.h"
#include "model/small.h"

static double loss_of(km_ctx *ctx, km_net *m) {
    km_tensor *loss = km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                  small_ids(ctx, SMALL_B, SMALL_T, 1));
    double v = km_item(ctx, loss);
    assert_ok(ctx);
    km_step_end(ctx);
    return v;
}

typedef struct trainer {
    km_tensor *p[64], *m[64], *v[64];
    int n;
} trainer;

static trainer trainer_of(km_ctx *ctx, km_net *m) {
    trainer t = {.n = m->params.n};
    assert_true(t.n <= 64);
    for (int i = 0; i < t.n; i++) {
        t.p[i] = m->params.at[i].t;
        t.m[i] = km_keep(ctx, km_zeros(ctx, KM_F32, km_tensor_shape(t.p[i])));
        t.v[i] = km_keep(ctx, km_zeros(ctx, KM_F32, km_tensor_shape(t.p[i])));
    }
    return t;
}

static void trainer_free(trainer *t) {
    for (int i = 0; i < t->n; i++) km_release(t->m[i]), km_release(t->v[i]);
}

static double train_step(km_ctx *ctx, km_net *m, trainer *t, int64_t step) {
    km_tensor *loss = km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                  small_ids(ctx, SMALL_B, SMALL_T, 1));
    km_backward(ctx, loss);
    double v = km_item(ctx, loss);
    km_adamw how = {.size = sizeof(km_adamw),
                    .lr = 1e-2,
                    .beta1 = 0.9,
                    .beta2 = 0.95,
                    .eps = 1e-8,
                    .step = step};
    km_adamw_step(ctx, t->p, t->m, t->v, t->n, &how);
    assert_ok(ctx);
    km_zero_grad(ctx, t->p, t->n);
    km_step_end(ctx);
    return v;
}

static void first_loss_is_that_of_guessing_and_falls(km_ctx *ctx, km_arch arch) {
    km_net *m = small_model(ctx, arch, KM_F32);
    trainer t = trainer_of(ctx, m);
    m->train = true;
    double first = train_step(ctx, m, &t, 1), last = first;
    assert_true(fabs(first - log(SMALL_VOCAB)) < 0.1);
    for (int i = 2; i <= 30; i++) last = train_step(ctx, m, &t, i);
    assert_true(last < 0.5 * first);
    trainer_free(&t);
    km_net_free(m);
}

static void gpt2_starts_at_guessing_and_learns(void **state) {
    first_loss_is_that_of_guessing_and_falls(*state, KM_ARCH_GPT2);
}

static void llama_starts_at_guessing_and_learns(void **state) {
    first_loss_is_that_of_guessing_and_falls(*state, KM_ARCH_LLAMA);
}

/* Logits of all positions after a change of token `at` are bit for bit those before it, up to
 * `at`. */
static void no_token_sees_a_later_one(void **state) {
    km_ctx *ctx = *state;
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        km_net *m = small_model(ctx, arch, KM_F32);
        int32_t ids[SMALL_T];
        for (int i = 0; i < SMALL_T; i++) ids[i] = small_token(0, i);
        float *before = NULL;
        for (int at = SMALL_T; at >= 0; at--) { /* at SMALL_T nothing is changed */
            int32_t was = at < SMALL_T ? ids[at] : 0;
            if (at < SMALL_T) ids[at] = (was + 5) % SMALL_VOCAB;
            km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(1, SMALL_T), ids);
            float *now = small_floats(ctx, km_net_logits(ctx, m, km_net_forward(ctx, m, x, NULL)));
            km_step_end(ctx);
            if (at == SMALL_T) {
                before = now;
                continue;
            }
            ids[at] = was;
            size_t row = sizeof(float) * SMALL_VOCAB;
            assert_memory_equal(before, now, row * (size_t)at);
            for (int later = at; later < SMALL_T; later++)
                assert_true(memcmp(before + later * SMALL_VOCAB, now + later * SMALL_VOCAB, row));
            km_free(now);
        }
        km_free(before);
        km_net_free(m);
    }
}

/* Every gradient with and without recomputation, dropout on, is the same to the last bit. */
static void recomputing_changes_no_bit_of_any_gradient(void **state) {
    km_ctx *ctx = *state;
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        km_net *m = small_model(ctx, arch, KM_F32);
        m->config.dropout = 0.25;
        m->train = true;
        float *want[64];
        double loss[2];
        for (int again = 0; again < 2; again++) {
            m->recompute = again;
            km_seed(ctx, 99);
            km_tensor *l = km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                       small_ids(ctx, SMALL_B, SMALL_T, 1));
            uint64_t draws = ctx->draws;
            km_backward(ctx, l);
            assert_int_equal(ctx->draws, draws);
            loss[again] = km_item(ctx, l);
            for (int i = 0; i < m->params.n; i++) {
                km_tensor *g = km_grad(m->params.at[i].t);
                assert_non_null(g);
                float *got = small_floats(ctx, g);
                if (!again) {
                    want[i] = got;
                    continue;
                }
                assert_memory_equal(want[i], got, sizeof(float) * (size_t)km_tensor_count(g));
                km_free(got);
                km_free(want[i]);
            }
            for (int i = 0; i < m->params.n; i++) km_zero_grad(ctx, &m->params.at[i].t, 1);
            km_step_end(ctx);
        }
        assert_true(loss[0] == loss[1]);
        km_net_free(m);
    }
}

static void recomputing_needs_less_memory(void **state) {
    km_ctx *ctx = *state;
    km_config c = small_config(KM_ARCH_GPT2);
    c.layers = 6;
    km_net *m = km_net_new(ctx, &c, KM_F32);
    km_net_init(m, 1);
    size_t peak[2];
    for (int again = 0; again < 2; again++) {
        m->recompute = again;
        km_stats_reset_peak(ctx);
        km_tensor *l = km_net_loss(ctx, m, small_ids(ctx, 8, 12, 0), small_ids(ctx, 8, 12, 1));
        assert_ok(ctx);
        assert_non_null(l);
        peak[again] = km_ctx_stats(ctx).live_bytes;
        km_step_end(ctx);
    }
    size_t weights = sizeof(float) * (size_t)km_param_elements(&m->params, false);
    assert_true(2 * (peak[1] - weights) < peak[0] - weights);
    km_net_free(m);
}

/* What the tape holds of one layer more, in widths of a token: two sums and their norms, q k v,
 * attention's output, and the MLP's four before and four after the activation; and a little for
 * means and the like. */
static void a_layer_holds_on_to_no_more_than_its_gradient_needs(void **state) {
    km_ctx *ctx = *state;
    size_t live[2];
    for (int i = 0; i < 2; i++) {
        km_config c = small_config(KM_ARCH_GPT2);
        c.layers = 2 + i;
        c.dim = c.context = 64;
        km_net *m = km_net_new(ctx, &c, KM_F32);
        km_net_init(m, 1);
        km_step_end(ctx);
        int32_t ids[4 * 64] = {0};
        km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(4, 64), ids);
        km_tensor *loss = km_net_loss(ctx, m, x, x);
        assert_ok(ctx);
        size_t weights = sizeof(float) * (size_t)km_param_elements(&m->params, false);
        live[i] = km_ctx_stats(ctx).live_bytes - weights;
        km_backward(ctx, loss); /* and that suffices */
        assert_ok(ctx);
        km_step_end(ctx);
        km_net_free(m);
    }
    double widths = (double)(live[1] - live[0]) / (4 * 64 * 64 * sizeof(float));
    if (!(widths >= 16 && widths < 16.25)) print_error("%.3f widths\n", widths);
    assert_true(widths >= 16 && widths < 16.25);
}

/* The same numbers from the same seed on another device, and rounded in another dtype. */
static void first_values_depend_on_seed_and_name_alone(void **state) {
    km_ctx *ctx = *state, *other = km_ctx_new("ref", 1);
    km_net *a = small_model(ctx, KM_ARCH_GPT2, KM_F32),
           *b = small_model(other, KM_ARCH_GPT2, KM_F32);
    km_net *low = small_model(ctx, KM_ARCH_GPT2, KM_BF16);
    for (int i = 0; i < a->params.n; i++) {
        float *x = small_floats(ctx, a->params.at[i].t),
              *y = small_floats(other, b->params.at[i].t);
        float *z = small_floats(ctx, low->params.at[i].t);
        int64_t n = km_tensor_count(a->params.at[i].t);
        assert_memory_equal(x, y, sizeof(float) * (size_t)n);
        for (int64_t k = 0; k < n; k++) assert_true(fabsf(x[k] - z[k]) <= fabsf(x[k]) / 256);
        km_free(x), km_free(y), km_free(z);
    }
    assert_int_equal(km_net_init(b, 8), KM_OK);
    float *x = small_floats(ctx, a->wte.w), *y = small_floats(other, b->wte.w);
    assert_true(memcmp(x, y, sizeof(float) * 16));
    km_free(x), km_free(y);
    km_net_free(a), km_net_free(b), km_net_free(low);
    km_ctx_free(other);
}

static void spread(km_ctx *ctx, km_net *m, const char *name, double sd) {
    km_param *p = km_param_find(&m->params, name);
    assert_non_null(p);
    float *v = small_floats(ctx, p->t);
    double sum = 0, squares = 0, n = (double)km_tensor_count(p->t);
    for (int64_t i = 0; i < km_tensor_count(p->t); i++) sum += v[i], squares += (double)v[i] * v[i];
    assert_true(fabs(sum / n) < 5 * sd / sqrt(n));
    assert_true(fabs(sqrt(squares / n) / sd - 1) < 4 / sqrt(2 * n));
    km_free(v);
}

static void first_values_are_spread_as_in_gpt2(void **state) {
    km_ctx *ctx = *state;
    km_config c = {.arch = KM_ARCH_GPT2,
                   .layers = 1,
                   .heads = 12,
                   .dim = 768,
                   .hidden = 64,
                   .context = 8,
                   .vocab = 99,
                   .tied = true,
                   .bias = true};
    km_net *m = km_net_new(ctx, &c, KM_F32);
    assert_non_null(m);
    assert_int_equal(km_net_init(m, 1), KM_OK);
    spread(ctx, m, "transformer.wte.weight", 0.02);
    spread(ctx, m, "transformer.h.0.attn.c_attn.weight", 0.02);
    spread(ctx, m, "transformer.h.0.mlp.c_proj.weight", 0.02 / sqrt(2));
    km_tensor *bias = km_param_find(&m->params, "transformer.h.0.mlp.c_fc.bias")->t;
    assert_true(engine_element(ctx, bias, 3) == 0);
    assert_true(engine_element(ctx, m->norm.w, 3) == 1);
    km_net_free(m);
}

static void narrow_models_begin_with_larger_weights(void **state) {
    km_ctx *ctx = *state;
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    spread(ctx, m, "transformer.wte.weight", 0.02);
    spread(ctx, m, "transformer.h.1.attn.c_attn.weight", 0.05);
    spread(ctx, m, "transformer.h.1.mlp.c_proj.weight", 0.025); /* 0.05 / sqrt(2 * 2) */
    km_net_free(m);
    km_config c = small_config(KM_ARCH_GPT2);
    c.dim = 96;
    m = km_net_new(ctx, &c, KM_F32);
    assert_non_null(m);
    assert_int_equal(km_net_init(m, 1), KM_OK);
    spread(ctx, m, "transformer.h.1.attn.c_attn.weight", 0.04); /* 0.02 sqrt(384 / 96) */
    km_net_free(m);
}

static void frozen_parameters_get_no_gradient(void **state) {
    km_ctx *ctx = *state;
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    assert_int_equal(km_net_freeze(m, "*.h.0.*,*.wpe.*", true), 13);
    assert_int_equal(km_net_freeze(m, "nothing*", true), 0);
    for (int again = 0; again < 2; again++) {
        m->recompute = again;
        km_backward(ctx, km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                     small_ids(ctx, SMALL_B, SMALL_T, 1)));
        assert_ok(ctx);
        for (int i = 0; i < m->params.n; i++) {
            km_param *p = &m->params.at[i];
            bool frozen = strstr(p->name, ".h.0.") || strstr(p->name, "wpe");
            assert_true(p->frozen == frozen);
            assert_true((km_grad(p->t) == NULL) == frozen);
            km_zero_grad(ctx, &p->t, 1);
        }
        km_step_end(ctx);
    }
    km_net_free(m);
}

/* With everything below the last block frozen, nothing below it is recorded. */
static void recomputing_reaches_parameters_behind_frozen_inputs(void **state) {
    km_ctx *ctx = *state;
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    km_net_freeze(m, "*", true);
    km_net_freeze(m, "*.h.1.mlp.*", false);
    m->recompute = true;
    km_backward(ctx, km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                 small_ids(ctx, SMALL_B, SMALL_T, 1)));
    assert_ok(ctx);
    assert_non_null(km_grad(km_param_find(&m->params, "transformer.h.1.mlp.c_fc.weight")->t));
    assert_null(km_grad(m->wte.w));
    km_step_end(ctx);
    km_net_free(m);
}

/* Rows of the table above the vocabulary change nothing. */
static void padding_of_the_vocabulary_is_never_seen(void **state) {
    km_ctx *ctx = *state;
    double loss[2];
    for (int i = 0; i < 2; i++) {
        km_config c = small_config(KM_ARCH_GPT2);
        c.vocab_pad = i ? 64 : 0;
        km_net *m = km_net_new(ctx, &c, KM_F32);
        km_net_init(m, 3);
        assert_int_equal(km_tensor_dim(m->wte.w, 0), i ? 64 : SMALL_VOCAB);
        loss[i] = loss_of(ctx, m);
        km_tensor *h = km_net_forward(ctx, m, small_ids(ctx, 1, 3, 0), NULL);
        assert_shape(km_net_logits(ctx, m, h), KM_SHAPE(1, 3, SMALL_VOCAB));
        km_step_end(ctx);
        km_net_free(m);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-6);
}

static void wrong_calls_are_refused_in_one_line(void **state) {
    km_ctx *ctx = *state;
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    assert_refused(ctx, km_net_forward(ctx, m, NULL, NULL), KM_ERR_NULL, "model: no ids");
    assert_refused(ctx, km_net_forward(ctx, m, small_ids(ctx, 1, 13, 0), NULL), KM_ERR_RANGE,
                   "model: 13 tokens after 0 do not fit the context of 12");
    assert_refused(ctx, km_net_forward(ctx, m, km_zeros(ctx, KM_I32, KM_SHAPE(4)), NULL),
                   KM_ERR_SHAPE, "model: ids must be [B, T], not [4]");
    km_config bad = small_config(KM_ARCH_GPT2);
    bad.heads = 3;
    assert_refused(ctx, km_net_new(ctx, &bad, KM_F32), KM_ERR_RANGE,
                   "model: dim 16 is no multiple of heads 3");
    bad = small_config(KM_ARCH_GPT2);
    assert_refused(ctx, km_net_new(ctx, &bad, KM_I32), KM_ERR_DTYPE,
                   "model: parameters cannot be i32");
    km_net_free(m);
}

/* Whatever allocation fails, nothing is left behind; the fixture counts. */
static void running_out_of_memory_leaves_nothing_behind(void **state) {
    km_ctx *ctx = *state;
    km_config c = small_config(KM_ARCH_LLAMA);
    for (int64_t n = 0; n < 400; n += 3) {
        km_alloc_fail_nth(n);
        km_net *m = km_net_new(ctx, &c, KM_F32);
        if (m) km_net_init(m, 1);
        km_alloc_fail_nth(-1);
        bool failed = km_ctx_status(ctx) != KM_OK;
        km_ctx_clear_error(ctx);
        km_net_free(m);
        km_step_end(ctx);
        if (!failed && n > 100) break;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(gpt2_starts_at_guessing_and_learns),
        ON_EACH(llama_starts_at_guessing_and_learns),
        ON_EACH(no_token_sees_a_later_one),
        ON_EACH(recomputing_changes_no_bit_of_any_gradient),
        ON("cpu", recomputing_needs_less_memory),
        ON("cpu", a_layer_holds_on_to_no_more_than_its_gradient_needs),
        ON("cpu", first_values_depend_on_seed_and_name_alone),
        ON("cpu", first_values_are_spread_as_in_gpt2),
        ON("cpu", narrow_models_begin_with_larger_weights),
        ON("cpu", frozen_parameters_get_no_gradient),
        ON("cpu", recomputing_reaches_parameters_behind_frozen_inputs),
        ON_EACH(padding_of_the_vocabulary_is_never_seen),
        ON("cpu", wrong_calls_are_refused_in_one_line),
        ON("cpu", running_out_of_memory_leaves_nothing_behind),
    };
    const struct CMUnitTest on_gpu[] = {
        ON("cuda", gpt2_starts_at_guessing_and_learns),
        ON("cuda", llama_starts_at_guessing_and_learns),
        ON("cuda", no_token_sees_a_later_one),
        ON("cuda", recomputing_changes_no_bit_of_any_gradient),
        ON("cuda", first_values_depend_on_seed_and_name_alone),
        ON("cuda", padding_of_the_vocabulary_is_never_seen),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (km_cuda_device_count() > 0)
        failed += cmocka_run_group_tests_name("on a GPU", on_gpu, NULL, NULL);
    return failed;
}

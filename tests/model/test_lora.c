/* Low-rank corrections: they start as nothing, train alone, fold into the weights, and go through
 * files. */
#include "model/lora.h"
#include "model/folder.h"
#include "model/small.h"
#include <stdlib.h>
#include <unistd.h>

static float *logits_of(km_ctx *ctx, km_net *m) {
    km_no_grad_begin(ctx);
    km_tensor *h = km_net_forward(ctx, m, small_ids(ctx, 1, SMALL_T, 0), NULL);
    float *v = small_floats(ctx, km_net_logits(ctx, m, h));
    km_no_grad_end(ctx);
    km_step_end(ctx);
    return v;
}

static double far_apart(const float *a, const float *b) {
    double worst = 0;
    for (int i = 0; i < SMALL_T * SMALL_VOCAB; i++) worst = fmax(worst, fabs((double)a[i] - b[i]));
    return worst;
}

static void step(km_ctx *ctx, km_net *m) {
    km_backward(ctx, km_net_loss(ctx, m, small_ids(ctx, SMALL_B, SMALL_T, 0),
                                 small_ids(ctx, SMALL_B, SMALL_T, 1)));
    for (int i = 0; i < m->params.n; i++) {
        km_param *p = &m->params.at[i];
        assert_true((km_grad(p->t) != NULL) == (strstr(p->name, ".lora_") != NULL));
        km_sgd_step(ctx, &p->t, NULL, 1, &(km_sgd){.size = sizeof(km_sgd), .lr = 0.5});
        km_zero_grad(ctx, &p->t, 1);
    }
    assert_ok(ctx);
    km_step_end(ctx);
}

static void corrections_start_as_nothing_train_alone_and_fold_in(void **state) {
    km_ctx *ctx = *state;
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        km_error err = {0};
        km_net *m = small_model(ctx, arch, KM_F32);
        int before = m->params.n;
        float *plain = logits_of(ctx, m), *weight = small_floats(ctx, m->block[0].mlp.up.w);
        km_lora_config c = {.rank = 3,
                            .alpha = 12,
                            .targets = arch == KM_ARCH_GPT2 ? "c_attn,*.h.1.mlp.*"
                                                            : "q_proj,v_proj,*_proj"};
        assert_int_equal(km_lora_add(m, &c, 11, &err), KM_OK);
        int layers = arch == KM_ARCH_GPT2 ? 2 + 2 : 14;
        assert_int_equal(m->params.n, before + 2 * layers);
        float *same = logits_of(ctx, m);
        assert_true(far_apart(plain, same) < 1e-6);
        m->recompute = true;
        for (int i = 0; i < 3; i++) step(ctx, m);
        float *trained = logits_of(ctx, m);
        assert_true(far_apart(plain, trained) > 1e-4);
        assert_int_equal(km_lora_merge(m, &err), KM_OK);
        assert_int_equal(m->params.n, before);
        for (int i = 0; i < before; i++) assert_false(m->params.at[i].frozen);
        float *merged = logits_of(ctx, m), *after = small_floats(ctx, m->block[0].mlp.up.w);
        assert_true(far_apart(trained, merged) < 1e-5);
        bool touched = memcmp(weight, after, sizeof(float) * 16 * 16) != 0;
        assert_true(touched == (arch == KM_ARCH_LLAMA)); /* gpt2: only layer 1's MLP was a target */
        km_free(plain), km_free(same), km_free(trained), km_free(merged);
        km_free(weight), km_free(after);
        km_net_free(m);
    }
}

static void corrections_go_through_files(void **state) {
    km_ctx *ctx = *state;
    km_error err = {0};
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    km_lora_config c = {.rank = 2};
    assert_int_equal(km_lora_add(m, &c, 3, &err), KM_OK);
    for (int i = 0; i < 2; i++) step(ctx, m);
    assert_int_equal(km_lora_save(m, folder, &err), KM_OK);
    km_net *other = small_model(ctx, KM_ARCH_GPT2, KM_F32); /* the same base */
    assert_int_equal(km_lora_load(other, folder, &err), KM_OK);
    assert_int_equal(other->lora_rank, 2);
    assert_true(other->lora_alpha == 4);
    assert_true(other->wte.w->requires_grad == false);
    float *a = logits_of(ctx, m), *b = logits_of(ctx, other);
    assert_true(far_apart(a, b) == 0);
    km_free(a), km_free(b);
    assert_int_equal(km_lora_load(other, folder, &err), KM_ERR_STATE);
    assert_string_equal(err.text, "lora: the model has corrections already");
    km_net_free(m), km_net_free(other);
}

static void what_does_not_fit_is_refused(void **state) {
    km_ctx *ctx = *state;
    km_net *m = small_model(ctx, KM_ARCH_GPT2, KM_F32);
    static const struct {
        km_lora_config c;
        const char *text;
    } bad[] = {
        {{.rank = 0}, "lora: the rank is 0 and must be in 1 .. 16"},
        {{.rank = 17}, "lora: the rank is 17 and must be in 1 .. 16"},
        {{.rank = 2, .targets = "c_attn,q_proj"}, "lora: no linear layer fits 'q_proj'"},
        {{.rank = 2, .targets = "wte"}, "lora: no linear layer fits 'wte'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        km_error err = {0};
        assert_int_not_equal(km_lora_add(m, &bad[i].c, 1, &err), KM_OK);
        assert_string_equal(err.text, bad[i].text);
        assert_false(m->params.at[0].frozen);
    }
    km_error err = {0};
    assert_int_equal(km_lora_merge(m, &err), KM_ERR_STATE);
    assert_string_equal(err.text, "lora: the model has no corrections");
    km_lora_config c = {.rank = 2};
    err = (km_error){0};
    assert_int_equal(km_lora_add(m, &c, 3, &err), KM_OK);
    assert_int_equal(km_lora_save(m, folder, &err), KM_OK);
    km_net *other = small_model(ctx, KM_ARCH_LLAMA, KM_F32);
    assert_int_equal(km_lora_load(other, folder, &err), KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "4 of the 4 tensors fit no layer of the model"));
    assert_int_equal(other->lora_rank, 0);
    km_config wide = small_config(KM_ARCH_GPT2);
    wide.dim = 32;
    km_net *wider = km_net_new(ctx, &wide, KM_F32);
    err = (km_error){0};
    assert_int_equal(km_lora_load(wider, folder, &err), KM_ERR_SHAPE);
    assert_string_equal(
        err.text, "lora: the tensor 'base_model.model.transformer.h.0.attn.c_attn.lora_A.weight' "
                  "is F32 [2, 16], not [2, 32] of floats");
    km_net_free(m), km_net_free(other), km_net_free(wider);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(corrections_start_as_nothing_train_alone_and_fold_in),
        ON("cpu", corrections_go_through_files),
        ON("cpu", what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

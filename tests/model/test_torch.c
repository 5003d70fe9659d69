/* Models against PyTorch: logits, loss, every gradient, and ten AdamW steps, for a GPT-2 and a
 * Llama that scripts/fixtures/make_models.py made with Hugging Face's transformers in double
 * precision. Errors are relative to the largest element of each tensor. */
#include "backend/backend.h"
#include "format/safetensors.h"
#include "model/files.h"
#include "model/small.h"
#include <stdlib.h>

/* In f32, 1e-5 of the largest element; in bf16, with its eight bits, a mean error (root mean
 * square) of 3% of the tensor's own. */
#define F32_BOUND 1e-5
#define BF16_BOUND 0.03

typedef struct fixture {
    char folder[512];
    km_safetensors *expected;
    km_net *m;
    km_tensor *ids, *targets; /* kept */
} fixture;

static const km_st_tensor *find(const fixture *f, const char *name) {
    const km_st_tensor *t = km_safetensors_find(f->expected, name);
    if (!t) print_error("no '%s' in the fixture\n", name);
    assert_non_null(t);
    return t;
}

static km_tensor *kept(km_ctx *ctx, const fixture *f, const char *name) {
    const km_st_tensor *t = find(f, name);
    return km_keep(ctx, km_from_data(ctx, t->dtype, t->shape, t->data));
}

static fixture open_fixture(km_ctx *ctx, km_arch arch, km_dtype dtype) {
    fixture f = {0};
    char path[600];
    km_error err = {0};
    const char *root = getenv("SRC_DIR");
    snprintf(f.folder, sizeof f.folder, "%s/tests/fixtures/models/%s", root ? root : ".",
             km_arch_name(arch));
    snprintf(path, sizeof path, "%s/expected.safetensors", f.folder);
    f.expected = km_safetensors_open(path, &err);
    if (f.expected) f.m = km_net_load(ctx, f.folder, dtype, &err);
    if (!f.m) print_error("%s\n", err.text);
    assert_non_null(f.m);
    f.ids = kept(ctx, &f, "ids");
    f.targets = kept(ctx, &f, "targets");
    assert_ok(ctx);
    return f;
}

static void close_fixture(fixture *f) {
    km_release(f->ids);
    km_release(f->targets);
    km_net_free(f->m);
    km_safetensors_close(f->expected);
}

typedef struct distance {
    double worst, rms; /* of got - want, relative to the largest and to the mean size of want */
} distance;

static distance compare(const float *got, const float *want, int64_t n) {
    double worst = 0, most = 0, error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        if (!(e <= worst)) worst = e; /* NaN stays */
        most = fmax(most, fabs((double)want[i]));
        error += e * e;
        size += (double)want[i] * want[i];
    }
    return (distance){worst / fmax(most, 1e-30), sqrt(error / fmax(size, 1e-60))};
}

/* Whether t is what the fixture calls `name`; transposed when the file keeps it so. */
static void check(km_ctx *ctx, const fixture *f, const char *name, km_tensor *t, bool turned) {
    const km_st_tensor *want = find(f, name);
    km_no_grad_begin(ctx);
    float *got = small_floats(ctx, turned ? km_transpose(ctx, t, 0, 1) : t);
    km_no_grad_end(ctx);
    assert_int_equal(km_shape_count(want->shape), km_tensor_count(t));
    int64_t n = km_tensor_count(t);
    distance d = compare(got, want->data, n);
    bool ok = f->m->dtype == KM_BF16 ? d.rms <= BF16_BOUND : d.worst <= F32_BOUND;
    if (!ok) print_error("%s: off by %.3g at worst, %.3g on average\n", name, d.worst, d.rms);
    assert_true(ok);
    km_free(got);
}

static void check_all(km_ctx *ctx, fixture *f) {
    km_tensor *h = km_net_forward(ctx, f->m, f->ids, NULL);
    check(ctx, f, "logits", km_net_logits(ctx, f->m, h), false);
    km_step_end(ctx);
    km_tensor *loss = km_net_loss(ctx, f->m, f->ids, f->targets);
    km_backward(ctx, loss);
    check(ctx, f, "loss", loss, false);
    for (int i = 0; i < f->m->params.n; i++) {
        km_param *p = &f->m->params.at[i];
        char name[300];
        snprintf(name, sizeof name, "grad.%s", p->name);
        assert_non_null(km_grad(p->t));
        check(ctx, f, name, km_grad(p->t), p->conv1d);
        km_zero_grad(ctx, &p->t, 1);
    }
    assert_ok(ctx);
    km_step_end(ctx);
}

static void run_check(km_ctx *ctx, km_dtype dtype) {
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        fixture f = open_fixture(ctx, arch, dtype);
        check_all(ctx, &f);
        f.m->recompute = true;
        check_all(ctx, &f);
        close_fixture(&f);
    }
}

static void logits_loss_and_all_gradients_are_those_of_pytorch(void **state) {
    run_check(*state, KM_F32);
}

static void bf16_stays_near_pytorch_in_double(void **state) { run_check(*state, KM_BF16); }

/* Groups as in the fixture: decay on matrices, none on norms and biases. */
static void adamw(km_ctx *ctx, fixture *f, km_tensor **m, km_tensor **v, int64_t step) {
    for (int decay = 0; decay < 2; decay++) {
        km_tensor *p[64], *pm[64], *pv[64];
        int n = 0;
        for (int i = 0; i < f->m->params.n; i++) {
            if (f->m->params.at[i].decay != (decay == 1)) continue;
            p[n] = f->m->params.at[i].t, pm[n] = m[i], pv[n] = v[i];
            n++;
        }
        km_adamw how = {.size = sizeof(km_adamw),
                        .lr = 1e-3,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .weight_decay = decay ? 0.1 : 0,
                        .step = step};
        km_adamw_step(ctx, p, pm, pv, n, &how);
        km_zero_grad(ctx, p, n);
    }
}

static void ten_adamw_steps_follow_pytorch_loss_by_loss(void **state) {
    km_ctx *ctx = *state;
    for (int arch = KM_ARCH_GPT2; arch <= KM_ARCH_LLAMA; arch++) {
        fixture f = open_fixture(ctx, arch, KM_F32);
        const float *want = find(&f, "losses")->data;
        km_tensor *m[64], *v[64];
        for (int i = 0; i < f.m->params.n; i++) {
            km_shape s = km_tensor_shape(f.m->params.at[i].t);
            m[i] = km_keep(ctx, km_zeros(ctx, KM_F32, s));
            v[i] = km_keep(ctx, km_zeros(ctx, KM_F32, s));
        }
        for (int step = 0; step < 10; step++) {
            km_tensor *loss = km_net_loss(ctx, f.m, f.ids, f.targets);
            km_backward(ctx, loss);
            double got = km_item(ctx, loss);
            adamw(ctx, &f, m, v, step + 1);
            assert_ok(ctx);
            km_step_end(ctx);
            if (!(fabs(got - want[step]) <= 2e-5 * want[step]))
                print_error("%s, step %d: %.9g, not %.9g\n", km_arch_name(arch), step, got,
                            want[step]);
            assert_true(fabs(got - want[step]) <= 2e-5 * want[step]);
        }
        for (int i = 0; i < f.m->params.n; i++) km_release(m[i]), km_release(v[i]);
        close_fixture(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(logits_loss_and_all_gradients_are_those_of_pytorch),
        ON_EACH(bf16_stays_near_pytorch_in_double),
        ON_EACH(ten_adamw_steps_follow_pytorch_loss_by_loss),
    };
    const struct CMUnitTest on_gpu[] = {
        ON("cuda", logits_loss_and_all_gradients_are_those_of_pytorch),
        ON("cuda", bf16_stays_near_pytorch_in_double),
        ON("cuda", ten_adamw_steps_follow_pytorch_loss_by_loss),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (km_cuda_device_count() > 0)
        failed += cmocka_run_group_tests_name("on a GPU", on_gpu, NULL, NULL);
    return failed;
}

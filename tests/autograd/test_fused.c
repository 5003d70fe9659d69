/* Ops composed of others: attention over packed heads and the last layer with its loss give what
 * their parts give, values and gradients, whether or not the rows need several pieces. */
#include "tensor/tensor.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static km_tensor *parameter(km_ctx *ctx, km_dtype d, km_shape s, double sd) {
    km_tensor *t = km_keep(ctx, km_normal(ctx, d, s, 0, sd));
    km_require_grad(ctx, t, true);
    return t;
}

typedef struct head_case {
    int heads, kv_heads;
    bool causal;
} head_case;

static km_tensor *packed(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    const head_case *h = user;
    (void)n;
    return km_attention_qkv(ctx, in[0], h->heads, h->kv_heads, h->causal, 0);
}

static km_tensor *in_parts(km_ctx *ctx, km_tensor *qkv, const head_case *h) {
    int64_t batch = km_tensor_dim(qkv, 0), len = km_tensor_dim(qkv, 1);
    int64_t d = km_tensor_dim(qkv, 2) / (h->heads + 2 * h->kv_heads);
    int64_t first[] = {0, h->heads * d, (h->heads + h->kv_heads) * d};
    int many[] = {h->heads, h->kv_heads, h->kv_heads};
    km_tensor *p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = km_narrow(ctx, qkv, 2, first[i], many[i] * d);
        p[i] = km_transpose(ctx, km_reshape(ctx, p[i], KM_SHAPE(batch, len, many[i], d)), 1, 2);
    }
    km_tensor *o = km_attention(ctx, p[0], p[1], p[2], h->causal, 0);
    return km_reshape(ctx, km_transpose(ctx, o, 1, 2), KM_SHAPE(batch, len, h->heads * d));
}

static void packed_attention_has_the_gradient_of_differences(void **state) {
    (void)state;
    const head_case cases[] = {{2, 2, true}, {4, 2, false}, {1, 1, true}};
    km_ctx *ctx = km_ctx_new("ref", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        head_case h = cases[i];
        km_tensor *in = parameter(ctx, KM_F64, KM_SHAPE(2, 5, (h.heads + 2 * h.kv_heads) * 4), 1);
        km_grad_report r = {0};
        km_check_grad(ctx, packed, &h, &in, 1, 1e-6, &r);
        assert_string_equal(km_ctx_error(ctx), "");
        assert_true(r.passed);
        km_release(in);
        km_step_end(ctx);
    }
    km_ctx_free(ctx);
}

static void compare(km_ctx *ctx, km_tensor *a, km_tensor *b, double tolerance) {
    km_tensor *d = km_sub(ctx, km_cast(ctx, a, KM_F32), km_cast(ctx, b, KM_F32));
    double far = km_item(ctx, km_max(ctx, km_abs(ctx, d), NULL, 0, false));
    double size = km_item(ctx, km_max(ctx, km_abs(ctx, km_cast(ctx, a, KM_F32)), NULL, 0, false));
    assert_string_equal(km_ctx_error(ctx), "");
    assert_true(size > 0);
    if (!(far <= tolerance * size)) fail_msg("differs by %g of %g", far, size);
}

static void packed_attention_is_attention_of_the_parts(void **state) {
    (void)state;
    head_case h = {6, 3, true};
    km_ctx *ctx = km_ctx_new("cpu", 2);
    km_tensor *x = parameter(ctx, KM_F32, KM_SHAPE(2, 33, 12 * 16), 1);
    km_tensor *factor = km_normal(ctx, KM_F32, KM_SHAPE(2, 33, 96), 0, 1), *y[2], *g[2];
    for (int i = 0; i < 2; i++) {
        y[i] = i ? in_parts(ctx, x, &h) : packed(ctx, &x, 1, &h);
        km_backward(ctx, km_sum(ctx, km_mul(ctx, y[i], factor), NULL, 0, false));
        g[i] = km_copy(ctx, km_grad(x));
        km_zero_grad(ctx, &x, 1);
    }
    compare(ctx, y[0], y[1], 1e-6);
    compare(ctx, g[0], g[1], 1e-5);
    km_release(x);
    km_ctx_free(ctx);
}

static void packed_attention_refuses_what_does_not_fit(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_tensor *x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(1, 4, 30)));
    assert_null(km_attention_qkv(ctx, x, 4, 4, true, 0));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    assert_null(km_attention_qkv(ctx, x, 4, 3, true, 0));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    assert_null(km_attention_qkv(ctx, x, 0, 0, true, 0));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_SHAPE);
    km_release(x);
    km_ctx_free(ctx);
}

typedef struct loss_case {
    int64_t rows, width, v, classes, ignore;
    km_reduction reduction;
    km_dtype dtype;
    double factor, tolerance;
    km_tensor *targets;
} loss_case;

static void make_targets(km_ctx *ctx, loss_case *c) {
    int32_t *ids = malloc(sizeof *ids * (size_t)c->rows);
    for (int64_t i = 0; i < c->rows; i++)
        ids[i] = c->ignore != KM_NO_IGNORE && i % 5 == 2 ? (int32_t)c->ignore
                                                         : (int32_t)(i * 7919 % c->classes);
    c->targets = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(c->rows), ids));
    free(ids);
}

static km_tensor *joint(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    const loss_case *c = user;
    (void)n;
    km_tensor *l =
        km_linear_cross_entropy(ctx, in[0], in[1], c->targets, c->classes, c->ignore, c->reduction);
    return c->factor == 1 ? l : km_mul_scalar(ctx, l, c->factor);
}

static km_tensor *apart(km_ctx *ctx, km_tensor *const *in, const loss_case *c) {
    km_tensor *logits =
        km_linear(ctx, in[0], km_narrow(ctx, in[1], 0, 0, c->classes), NULL, KM_ACT_NONE);
    km_tensor *l = km_cross_entropy(ctx, logits, c->targets, c->ignore, c->reduction);
    return c->factor == 1 ? l : km_mul_scalar(ctx, l, c->factor);
}

static void the_joint_loss_has_the_gradient_of_differences(void **state) {
    (void)state;
    loss_case cases[] = {{7, 3, 11, 11, -1, KM_MEAN, KM_F64, 1, 0, NULL},
                         {7, 3, 11, 9, KM_NO_IGNORE, KM_MEAN, KM_F64, 2, 0, NULL},
                         {6, 4, 5, 5, 2, KM_SUM, KM_F64, 0.5, 0, NULL}};
    km_ctx *ctx = km_ctx_new("ref", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        loss_case *c = &cases[i];
        km_tensor *in[] = {parameter(ctx, KM_F64, KM_SHAPE(c->rows, c->width), 1),
                           parameter(ctx, KM_F64, KM_SHAPE(c->v, c->width), 1)};
        make_targets(ctx, c);
        km_grad_report r = {0};
        km_check_grad(ctx, joint, c, in, 2, 1e-6, &r);
        assert_string_equal(km_ctx_error(ctx), "");
        if (!r.passed) fail_msg("case %d: %g and %g", (int)i, r.analytic, r.numeric);
        km_release(in[0]);
        km_release(in[1]);
        km_release(c->targets);
        km_step_end(ctx);
    }
    km_ctx_free(ctx);
}

static void the_joint_loss_is_the_loss_of_the_layers(void **state) {
    (void)state;
    loss_case cases[] = {
        {37, 24, 101, 101, -1, KM_MEAN, KM_F32, 1, 1e-5, NULL},
        {37, 24, 128, 101, KM_NO_IGNORE, KM_MEAN, KM_F32, 3, 1e-5, NULL},
        {300, 8, 65536, 65530, -1, KM_MEAN, KM_F32, 1, 1e-5, NULL}, /* two pieces */
        {64, 32, 96, 90, KM_NO_IGNORE, KM_MEAN, KM_BF16, 1, 0.02, NULL},
        {64, 32, 96, 90, KM_NO_IGNORE, KM_MEAN, KM_F16, 1024, 4e-3, NULL},
        {64, 32, 96, 96, -1, KM_SUM, KM_F16, 1, 4e-3, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        loss_case *c = &cases[i];
        km_ctx *ctx = km_ctx_new("cpu", 2);
        km_tensor *in[] = {parameter(ctx, c->dtype, KM_SHAPE(c->rows, c->width), 1),
                           parameter(ctx, c->dtype, KM_SHAPE(c->v, c->width), 0.5)};
        make_targets(ctx, c);
        km_tensor *l[2], *g[2][2];
        for (int k = 0; k < 2; k++) {
            l[k] = k ? apart(ctx, in, c) : joint(ctx, in, 2, c);
            km_backward(ctx, l[k]);
            for (int j = 0; j < 2; j++) g[k][j] = km_copy(ctx, km_grad(in[j]));
            km_zero_grad(ctx, in, 2);
        }
        compare(ctx, l[1], l[0], c->tolerance);
        for (int j = 0; j < 2; j++) compare(ctx, g[1][j], g[0][j], c->tolerance);
        km_release(in[0]);
        km_release(in[1]);
        km_release(c->targets);
        km_ctx_free(ctx);
    }
}

static void the_joint_loss_refuses_what_does_not_fit(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_tensor *x = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(2, 3, 4)));
    km_tensor *w = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(9, 4)));
    km_tensor *t = km_keep(ctx, km_full(ctx, KM_I32, KM_SHAPE(2, 3), 8));
    assert_non_null(km_linear_cross_entropy(ctx, x, w, t, 0, -1, KM_MEAN));
    assert_null(km_linear_cross_entropy(ctx, x, w, t, 8, -1, KM_MEAN)); /* target 8 of 8 classes */
    assert_int_equal(km_ctx_status(ctx), KM_ERR_RANGE);
    km_ctx_clear_error(ctx);
    assert_null(km_linear_cross_entropy(ctx, x, w, t, 10, -1, KM_MEAN));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_RANGE);
    km_ctx_clear_error(ctx);
    assert_null(km_linear_cross_entropy(ctx, w, w, t, 0, -1, KM_MEAN));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    assert_null(km_linear_cross_entropy(ctx, x, NULL, t, 0, -1, KM_MEAN));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_NULL);
    km_release(x);
    km_release(w);
    km_release(t);
    km_ctx_free(ctx);
}

typedef struct mlp_case {
    km_act act;
    bool biased;
} mlp_case;

static km_tensor *mlp(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    const mlp_case *c = user;
    (void)n;
    return km_mlp(ctx, in[0], in[1], c->biased ? in[3] : NULL, c->act, in[2],
                  c->biased ? in[4] : NULL);
}

static km_tensor *two_layers(km_ctx *ctx, km_tensor *const *in, const mlp_case *c) {
    km_tensor *h = km_linear(ctx, in[0], in[1], c->biased ? in[3] : NULL, c->act);
    return km_linear(ctx, h, in[2], c->biased ? in[4] : NULL, KM_ACT_NONE);
}

static void make_mlp(km_ctx *ctx, km_dtype d, int64_t rows, int64_t n, km_tensor *in[5]) {
    in[0] = parameter(ctx, d, KM_SHAPE(2, rows, n), 1);
    in[1] = parameter(ctx, d, KM_SHAPE(4 * n, n), 0.5);
    in[2] = parameter(ctx, d, KM_SHAPE(n + 1, 4 * n), 0.5);
    in[3] = parameter(ctx, d, KM_SHAPE(4 * n), 1);
    in[4] = parameter(ctx, d, KM_SHAPE(n + 1), 1);
}

static void an_mlp_has_the_gradient_of_differences(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("ref", 1);
    for (int act = KM_ACT_NONE; act <= KM_ACT_SILU; act++) {
        mlp_case c = {(km_act)act, act != KM_ACT_GELU_ERF};
        km_tensor *in[5];
        make_mlp(ctx, KM_F64, 3, 2, in);
        km_grad_report r = {0};
        km_check_grad(ctx, mlp, &c, in, c.biased ? 5 : 3, 1e-6, &r);
        assert_string_equal(km_ctx_error(ctx), "");
        if (!r.passed) fail_msg("act %d input %d: %g and %g", act, r.input, r.analytic, r.numeric);
        for (int i = 0; i < 5; i++) km_release(in[i]);
        km_step_end(ctx);
    }
    km_ctx_free(ctx);
}

static void an_mlp_is_two_layers(void **state) {
    (void)state;
    const km_dtype dtypes[] = {KM_F32, KM_BF16};
    for (int t = 0; t < 2; t++) {
        km_ctx *ctx = km_ctx_new("cpu", 2);
        mlp_case c = {KM_ACT_GELU, true};
        km_tensor *in[5], *y[2], *g[2][5];
        make_mlp(ctx, dtypes[t], 33, 40, in);
        for (int k = 0; k < 2; k++) {
            y[k] = k ? two_layers(ctx, in, &c) : mlp(ctx, in, 5, &c);
            km_backward(ctx,
                        km_sum(ctx, km_cast(ctx, km_mul(ctx, y[k], y[k]), KM_F32), NULL, 0, false));
            for (int i = 0; i < 5; i++) g[k][i] = km_copy(ctx, km_grad(in[i]));
            km_zero_grad(ctx, in, 5);
        }
        compare(ctx, y[1], y[0], 1e-6);
        for (int i = 0; i < 5; i++) compare(ctx, g[1][i], g[0][i], t ? 0.02 : 1e-5);
        for (int i = 0; i < 5; i++) km_release(in[i]);
        km_ctx_free(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_attention_has_the_gradient_of_differences),
        cmocka_unit_test(packed_attention_is_attention_of_the_parts),
        cmocka_unit_test(packed_attention_refuses_what_does_not_fit),
        cmocka_unit_test(the_joint_loss_has_the_gradient_of_differences),
        cmocka_unit_test(the_joint_loss_is_the_loss_of_the_layers),
        cmocka_unit_test(the_joint_loss_refuses_what_does_not_fit),
        cmocka_unit_test(an_mlp_has_the_gradient_of_differences),
        cmocka_unit_test(an_mlp_is_two_layers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

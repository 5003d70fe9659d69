/* Layers: gradients by finite differences in f64, agreement of the fast device with the reference,
 * name patterns, and lists of layers. */
#include "nn/nn.h"
#include "support/engine.h"
#include <math.h>

/* Parameters and inputs that are far from zero and from each other. */
static void fill(km_ctx *ctx, km_tensor *t, int64_t salt) {
    int64_t n = km_tensor_count(t);
    double v[1024];
    assert_true(n <= 1024);
    for (int64_t i = 0; i < n; i++) v[i] = 0.6 * sin((double)(i * 7 + salt * 13 + 1)) + 0.05;
    km_scope_begin(ctx);
    km_assign(ctx, t, km_from_data(ctx, KM_F64, km_tensor_shape(t), v));
    km_scope_end(ctx, NULL);
}

typedef struct block_case {
    km_param_list params;
    km_nn_block block;
    km_tensor *positions[2];
    bool delta;
} block_case;

enum { DIM = 8, HEADS = 2, HEAD = 4, LENGTH = 3 };

static km_tensor *rows(km_ctx *ctx, int heads) {
    int32_t at[64];
    for (int i = 0; i < LENGTH * heads; i++) at[i] = i / heads;
    return km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(LENGTH * heads), at));
}

/* A GPT-2 block, or a Llama one with two query heads to one of keys. */
static block_case make_block(km_ctx *ctx, bool llama, km_dtype dtype) {
    block_case c = {0};
    km_nn nn = {ctx, &c.params, .dtype = dtype};
    km_nn_norm_kind kind = llama ? KM_NN_RMS_NORM : KM_NN_LAYER_NORM;
    km_nn_block *b = &c.block;
    b->norm1 = km_nn_norm_new(&nn, kind, DIM, !llama, 1e-5, "norm1");
    b->norm2 = km_nn_norm_new(&nn, kind, DIM, !llama, 1e-5, "norm2");
    b->attention =
        (km_nn_attention){.heads = HEADS, .kv_heads = llama ? 1 : HEADS, .head_dim = HEAD};
    if (llama) {
        c.positions[0] = b->attention.q_rows = rows(ctx, HEADS);
        c.positions[1] = b->attention.k_rows = rows(ctx, 1);
        b->attention.rope_base = 100;
        b->attention.q = km_nn_linear_new(&nn, DIM, DIM, false, "q");
        b->attention.k = km_nn_linear_new(&nn, DIM, HEAD, false, "k");
        b->attention.v = km_nn_linear_new(&nn, DIM, HEAD, false, "v");
        b->mlp.gate = km_nn_linear_new(&nn, DIM, 6, false, "gate");
    } else {
        b->attention.qkv = km_nn_linear_new(&nn, DIM, 3 * DIM, true, "qkv");
    }
    b->attention.proj = km_nn_linear_new(&nn, DIM, DIM, !llama, "proj");
    b->mlp.up = km_nn_linear_new(&nn, DIM, 6, !llama, "up");
    b->mlp.down = km_nn_linear_new(&nn, 6, DIM, !llama, "down");
    for (int i = 0; i < c.params.n; i++) fill(ctx, c.params.at[i].t, i);
    assert_ok(ctx);
    return c;
}

static void free_block(block_case *c) {
    km_param_clear(&c->params);
    km_release(c->positions[0]);
    km_release(c->positions[1]);
}

/* inputs[0]: the residual; [1]: the delta when there is one; the rest parameters, used in place. */
static km_tensor *block_output(km_ctx *ctx, km_tensor *const *inputs, int n, void *user) {
    block_case *c = user;
    (void)n;
    km_tensor *x = inputs[0];
    km_tensor *y = km_nn_block_forward(ctx, &c->block, c->delta ? inputs[1] : NULL, &x, NULL, 0, 0);
    return km_add(ctx, x, km_mul_scalar(ctx, y, 1.5));
}

static void check_block(km_ctx *ctx, bool llama, bool delta) {
    block_case c = make_block(ctx, llama, KM_F64);
    km_tensor *in[32];
    int n = 0, own = 0;
    c.delta = delta;
    for (; own < 1 + delta; own++) {
        in[n++] = engine_parameter(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(2, LENGTH, DIM)));
        fill(ctx, in[own], 50 + own);
    }
    for (int i = 0; i < c.params.n; i++) in[n++] = c.params.at[i].t;
    km_grad_report r;
    km_check_grad(ctx, block_output, &c, in, n, 1e-7, &r);
    assert_ok(ctx);
    if (!r.passed)
        print_error("input %d, element %lld: %.9g by the tape, %.9g by differences\n", r.input,
                    (long long)r.element, r.analytic, r.numeric);
    assert_true(r.passed);
    for (int i = 0; i < own; i++) km_release(in[i]);
    free_block(&c);
}

static void a_gpt2_block_has_the_gradients_of_its_formula(void **state) {
    check_block(*state, false, false);
    check_block(*state, false, true);
}

static void a_llama_block_has_the_gradients_of_its_formula(void **state) {
    check_block(*state, true, false);
    check_block(*state, true, true);
}

/* A linear layer with a correction, as a sequence of two with a norm between them. */
typedef struct row_case {
    km_param_list params;
    km_nn_linear first, second;
    km_nn_norm norm;
} row_case;

static km_tensor *row_output(km_ctx *ctx, km_tensor *const *inputs, int n, void *user) {
    row_case *c = user;
    (void)n;
    km_tensor *x = km_nn_linear_forward(ctx, &c->first, inputs[0], KM_ACT_GELU);
    return km_nn_linear_forward(ctx, &c->second, km_nn_norm_forward(ctx, &c->norm, x), KM_ACT_NONE);
}

static void layers_in_a_row_with_corrections_have_their_gradients(void **state) {
    km_ctx *ctx = *state;
    row_case c = {0};
    km_nn nn = {ctx, &c.params, .dtype = KM_F64};
    c.first = km_nn_linear_new(&nn, 4, 6, true, "first");
    c.norm = km_nn_norm_new(&nn, KM_NN_LAYER_NORM, 6, true, 1e-5, "norm");
    c.second = km_nn_linear_new(&nn, 6, 3, false, "second");
    c.first.lora.a = km_param_add(ctx, &c.params, KM_F64, KM_SHAPE(2, 4), true, "a");
    c.first.lora.b = km_param_add(ctx, &c.params, KM_F64, KM_SHAPE(6, 2), true, "b");
    c.first.lora.scale = 1.25;
    km_tensor *in[16];
    int n = 0;
    in[n++] = engine_parameter(ctx, km_zeros(ctx, KM_F64, KM_SHAPE(5, 4)));
    fill(ctx, in[0], 3);
    for (int i = 0; i < c.params.n; i++) fill(ctx, in[n++] = c.params.at[i].t, i);
    km_grad_report r;
    km_check_grad(ctx, row_output, &c, in, n, 1e-7, &r);
    assert_ok(ctx);
    assert_true(r.passed);
    km_release(in[0]);
    km_param_clear(&c.params);
}

/* y W^T with W + scale B A in place of the layer and its correction. */
static void a_correction_adds_its_product_to_the_weight(void **state) {
    km_ctx *ctx = *state;
    km_param_list params = {0};
    km_nn nn = {ctx, &params, .dtype = KM_F64};
    km_nn_linear l = km_nn_linear_new(&nn, 4, 3, true, "l");
    l.lora.a = km_param_add(ctx, &params, KM_F64, KM_SHAPE(2, 4), true, "a");
    l.lora.b = km_param_add(ctx, &params, KM_F64, KM_SHAPE(3, 2), true, "b");
    l.lora.scale = 0.5;
    for (int i = 0; i < params.n; i++) fill(ctx, params.at[i].t, i);
    km_no_grad_begin(ctx);
    km_tensor *x = km_reshape(ctx, km_arange(ctx, KM_F64, 8, -1, 0.25), KM_SHAPE(2, 4));
    km_tensor *w =
        km_add(ctx, l.w, km_mul_scalar(ctx, km_matmul(ctx, l.lora.b, l.lora.a), l.lora.scale));
    km_tensor *want = km_linear(ctx, x, w, l.b, KM_ACT_SILU);
    km_tensor *got = km_nn_linear_forward(ctx, &l, x, KM_ACT_SILU);
    for (int i = 0; i < 6; i++)
        assert_true(fabs(engine_element(ctx, want, i) - engine_element(ctx, got, i)) < 1e-12);
    km_no_grad_end(ctx);
    km_param_clear(&params);
}

static float *gradients_on(const char *device, bool llama, km_dtype dtype, int64_t *count) {
    km_ctx *ctx = km_ctx_new(device, 2);
    block_case c = make_block(ctx, llama, dtype);
    km_tensor *in = engine_parameter(ctx, km_zeros(ctx, dtype, KM_SHAPE(2, LENGTH, DIM)));
    fill(ctx, in, 9);
    km_tensor *y = block_output(ctx, (km_tensor *[]){in, NULL}, 2, &c);
    km_backward(ctx, km_sum(ctx, km_mul(ctx, y, y), NULL, 0, false));
    assert_ok(ctx);
    *count = km_tensor_count(in);
    for (int i = 0; i < c.params.n; i++) *count += km_tensor_count(c.params.at[i].t);
    float *all = km_alloc(sizeof *all * (size_t)*count), *to = all;
    for (int i = -1; i < c.params.n; i++) {
        km_tensor *g = km_grad(i < 0 ? in : c.params.at[i].t);
        assert_non_null(g);
        for (int64_t k = 0; k < km_tensor_count(g); k++) *to++ = (float)engine_element(ctx, g, k);
    }
    km_release(in);
    free_block(&c);
    km_ctx_free(ctx);
    return all;
}

static void the_cpu_agrees_with_the_reference_on_all_gradients(void **state) {
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        int64_t n, m;
        float *ref = gradients_on("ref", llama, KM_F32, &n);
        float *cpu = gradients_on("cpu", llama, KM_F32, &m);
        assert_int_equal(n, m);
        double most = 0;
        for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)ref[i]));
        for (int64_t i = 0; i < n; i++) assert_true(fabs((double)ref[i] - cpu[i]) <= 2e-6 * most);
        km_free(ref), km_free(cpu);
    }
}

static void patterns_fit_whole_names(void **state) {
    (void)state;
    assert_true(km_name_matches("*", "transformer.h.0.ln_1.weight"));
    assert_true(km_name_matches("*.h.0.*", "transformer.h.0.ln_1.weight"));
    assert_true(km_name_matches("*.h.?.*weight", "transformer.h.0.ln_1.weight"));
    assert_true(km_name_matches("nothing,*.weight", "transformer.h.0.ln_1.weight"));
    assert_true(km_name_matches("a*b*c", "aXbYbZc"));
    assert_false(km_name_matches("*.h.0.*", "transformer.h.10.ln_1.weight"));
    assert_false(km_name_matches("ln_1", "transformer.h.0.ln_1.weight"));
    assert_false(km_name_matches("a*b*c", "aXbYbZ"));
    assert_false(km_name_matches("", "a"));
    assert_false(km_name_matches(",,", "a"));
}

static void dropout_of_nothing_is_the_tensor_itself(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = km_ones(ctx, KM_F32, KM_SHAPE(64));
    assert_ptr_equal(km_nn_dropout(ctx, x, 0), x);
    km_tensor *y = km_nn_dropout(ctx, x, 0.5);
    double sum = 0;
    for (int i = 0; i < 64; i++) sum += engine_element(ctx, y, i);
    assert_true(sum > 32 && sum < 96);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("ref", a_gpt2_block_has_the_gradients_of_its_formula),
        ON("ref", a_llama_block_has_the_gradients_of_its_formula),
        ON("ref", layers_in_a_row_with_corrections_have_their_gradients),
        ON("ref", a_correction_adds_its_product_to_the_weight),
        cmocka_unit_test(the_cpu_agrees_with_the_reference_on_all_gradients),
        cmocka_unit_test(patterns_fit_whole_names),
        ON_EACH(dropout_of_nothing_is_the_tensor_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

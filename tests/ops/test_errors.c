/* Bad input to ops: each error names the op and the shapes, dtypes or numbers, and the context
 * works again once it is cleared. */
#include "support/engine.h"
#include <math.h>

#define REFUSED(call, code, text) assert_refused(ctx, call, code, text)

static km_tensor *f32(km_ctx *ctx, km_shape s) { return km_zeros(ctx, KM_F32, s); }

static void products_that_do_not_fit_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = f32(ctx, KM_SHAPE(1024, 512)), *v = f32(ctx, KM_SHAPE(3));
    km_tensor *s = f32(ctx, KM_SCALAR), *m = f32(ctx, KM_SHAPE(4, 3));
    REFUSED(km_matmul(ctx, a, a), KM_ERR_SHAPE,
            "matmul: inner dimensions differ: [1024, 512] x [1024, 512]");
    REFUSED(km_matmul(ctx, a, v), KM_ERR_SHAPE,
            "matmul: inner dimensions differ: [1024, 512] x [3]");
    REFUSED(km_matmul(ctx, v, m), KM_ERR_SHAPE, "matmul: inner dimensions differ: [3] x [4, 3]");
    REFUSED(km_matmul(ctx, v, f32(ctx, KM_SHAPE(4))), KM_ERR_SHAPE,
            "matmul: inner dimensions differ: [3] x [4]");
    REFUSED(km_matmul(ctx, s, v), KM_ERR_SHAPE, "matmul: a scalar is no matrix: [] x [3]");
    REFUSED(km_matmul(ctx, f32(ctx, KM_SHAPE(2, 3, 4)), f32(ctx, KM_SHAPE(3, 4, 5))), KM_ERR_SHAPE,
            "matmul: batches do not broadcast: [2, 3, 4] x [3, 4, 5]");
    REFUSED(km_linear(ctx, m, f32(ctx, KM_SHAPE(3, 5)), NULL, KM_ACT_NONE), KM_ERR_SHAPE,
            "linear: x is [4, 3], so w must be [out, 3], not [3, 5]");
    REFUSED(km_linear(ctx, m, v, NULL, KM_ACT_NONE), KM_ERR_SHAPE,
            "linear: x is [4, 3], so w must be [out, 3], not [3]");
    REFUSED(km_linear(ctx, m, f32(ctx, KM_SHAPE(5, 3)), v, KM_ACT_NONE), KM_ERR_SHAPE,
            "linear: bias is [3], not [5]");
    REFUSED(km_linear(ctx, m, m, NULL, (km_act)9), KM_ERR_RANGE, "linear: no such activation: 9");
}

static void operands_that_do_not_broadcast_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *a = f32(ctx, KM_SHAPE(2, 3)), *b = f32(ctx, KM_SHAPE(2));
    REFUSED(km_add(ctx, a, b), KM_ERR_SHAPE, "add: shapes do not broadcast: [2, 3] and [2]");
    REFUSED(km_maximum(ctx, b, a), KM_ERR_SHAPE,
            "maximum: shapes do not broadcast: [2] and [2, 3]");
    REFUSED(km_le(ctx, a, b), KM_ERR_SHAPE, "le: shapes do not broadcast: [2, 3] and [2]");
    km_tensor *mask = km_zeros(ctx, KM_BOOL, KM_SHAPE(4));
    REFUSED(km_where(ctx, mask, a, a), KM_ERR_SHAPE,
            "where: shapes do not broadcast: [4] and [2, 3]");
    REFUSED(km_masked_fill(ctx, a, mask, 0), KM_ERR_SHAPE,
            "masked_fill: shapes do not broadcast: [2, 3] and [4]");
}

static void rows_and_weights_must_fit(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2, 3)), *w = f32(ctx, KM_SHAPE(3)),
              *bad = f32(ctx, KM_SHAPE(4));
    km_tensor *s = f32(ctx, KM_SCALAR), *sum = x;
    REFUSED(km_layer_norm(ctx, x, bad, NULL, 1e-5), KM_ERR_SHAPE,
            "layer_norm: weight is [4], not [3]");
    REFUSED(km_layer_norm(ctx, x, w, bad, 1e-5), KM_ERR_SHAPE, "layer_norm: bias is [4], not [3]");
    REFUSED(km_layer_norm(ctx, s, w, NULL, 1e-5), KM_ERR_SHAPE,
            "layer_norm: needs at least one axis, not []");
    REFUSED(km_rms_norm(ctx, x, bad, 1e-5), KM_ERR_SHAPE, "rms_norm: weight is [4], not [3]");
    REFUSED(km_add_layer_norm(ctx, x, w, w, w, 1e-5, &sum), KM_ERR_SHAPE,
            "add_layer_norm: residual is [3], not [2, 3]");
    assert_null(sum);
    REFUSED(km_triu(ctx, w, 0), KM_ERR_SHAPE, "triu: needs a matrix, not [3]");
    REFUSED(km_softmax(ctx, x, 2), KM_ERR_RANGE, "softmax: no axis 2 in [2, 3]");
    REFUSED(km_log_softmax(ctx, s, 0), KM_ERR_RANGE, "log_softmax: no axis 0 in []");
    REFUSED(km_mse(ctx, x, w, KM_MEAN), KM_ERR_SHAPE, "mse: target is [3], not [2, 3]");
    REFUSED(km_bce_with_logits(ctx, x, x, (km_reduction)7), KM_ERR_RANGE,
            "bce_with_logits: no such reduction: 7");
}

static void reductions_name_bad_axes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2, 3));
    REFUSED(km_sum(ctx, x, (int[]){2}, 1, false), KM_ERR_RANGE, "sum: no axis 2 in [2, 3]");
    REFUSED(km_mean(ctx, x, (int[]){0, -2}, 2, false), KM_ERR_RANGE,
            "mean: axis -2 is named twice");
    REFUSED(km_argmax(ctx, x, -3, false), KM_ERR_RANGE, "argmax: no axis -3 in [2, 3]");
    REFUSED(km_sum(ctx, x, NULL, 2, false), KM_ERR_NULL, "sum: no axes given");
    REFUSED(km_var(ctx, x, (int[]){0}, -1, false, 1), KM_ERR_NULL, "var: no axes given");
    REFUSED(km_max(ctx, f32(ctx, KM_SHAPE(2, 0)), NULL, 0, false), KM_ERR_SHAPE,
            "max: nothing to choose from in [2, 0]");
    REFUSED(km_argmax(ctx, f32(ctx, KM_SHAPE(2, 0)), 1, false), KM_ERR_SHAPE,
            "argmax: nothing to choose from in [2, 0]");
    REFUSED(km_logsumexp(ctx, NULL, NULL, 0, false), KM_ERR_NULL, "logsumexp: argument 1 is NULL");
}

static void dtypes_that_do_not_fit_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *f = f32(ctx, KM_SHAPE(2, 2)), *h = km_zeros(ctx, KM_F16, KM_SHAPE(2, 2));
    km_tensor *i = km_zeros(ctx, KM_I32, KM_SHAPE(2, 2)),
              *b = km_zeros(ctx, KM_BOOL, KM_SHAPE(2, 2));
    km_tensor *row = f32(ctx, KM_SHAPE(2));
    REFUSED(km_add(ctx, f, h), KM_ERR_DTYPE, "add: dtypes differ: f32 and f16; use km_cast");
    REFUSED(km_matmul(ctx, h, f), KM_ERR_DTYPE, "matmul: dtypes differ: f16 and f32; use km_cast");
    REFUSED(km_eq(ctx, i, f), KM_ERR_DTYPE, "eq: dtypes differ: i32 and f32; use km_cast");
    REFUSED(km_add(ctx, b, b), KM_ERR_DTYPE,
            "add: dtype bool is not possible here; it takes f32, f16, bf16, f64, i32, i64, u8, i8");
    REFUSED(km_exp(ctx, i), KM_ERR_DTYPE,
            "exp: dtype i32 is not possible here; it takes f32, f16, bf16, f64");
    REFUSED(km_matmul(ctx, i, i), KM_ERR_DTYPE,
            "matmul: dtype i32 is not possible here; it takes f32, f16, bf16, f64");
    REFUSED(km_where(ctx, f, f, f), KM_ERR_DTYPE,
            "where: dtype f32 is not possible here; it takes bool");
    REFUSED(km_where(ctx, b, f, i), KM_ERR_DTYPE, "where: dtypes differ: f32 and i32; use km_cast");
    REFUSED(km_masked_fill(ctx, f, i, 0), KM_ERR_DTYPE,
            "masked_fill: mask of dtype i32 is not possible here; it takes bool");
    REFUSED(km_embedding(ctx, f, row), KM_ERR_DTYPE,
            "embedding: index of dtype f32 is not possible here; it takes i32, i64");
    REFUSED(km_layer_norm(ctx, h, row, NULL, 1e-5), KM_ERR_DTYPE,
            "layer_norm: dtypes differ: f16 and f32; use km_cast");
    REFUSED(km_concat(ctx, (km_tensor *[]){f, i}, 2, 0), KM_ERR_DTYPE,
            "concat: dtypes differ: f32 and i32; use km_cast");
    REFUSED(km_uniform(ctx, KM_I32, KM_SHAPE(2), 0, 1), KM_ERR_DTYPE,
            "uniform: dtype i32 is not possible here; it takes f32, f16, bf16, f64");
    REFUSED(
        km_arange(ctx, KM_BOOL, 2, 0, 1), KM_ERR_DTYPE,
        "arange: dtype bool is not possible here; it takes f32, f16, bf16, f64, i32, i64, u8, i8");
    REFUSED(km_cast(ctx, f, (km_dtype)50), KM_ERR_DTYPE, "cast: no such dtype: 50");
    REFUSED(km_normal(ctx, (km_dtype)50, KM_SHAPE(2), 0, 1), KM_ERR_DTYPE,
            "normal: no such dtype: 50");
    REFUSED(km_cross_entropy(ctx, f, row, -1, KM_MEAN), KM_ERR_DTYPE,
            "cross_entropy: index of dtype f32 is not possible here; it takes i32, i64");
}

static void indices_out_of_range_are_named_with_their_place(void **state) {
    km_ctx *ctx = *state;
    km_tensor *table = f32(ctx, KM_SHAPE(5, 2));
    REFUSED(km_embedding(ctx, table, I32(ctx, KM_SHAPE(2, 2), 0, 4, 5, 9)), KM_ERR_RANGE,
            "embedding: index 5 at position 2 is not in [0, 5)");
    REFUSED(km_embedding(ctx, table, I32(ctx, KM_SCALAR, -1)), KM_ERR_RANGE,
            "embedding: index -1 at position 0 is not in [0, 5)");
    /* Position counts in the index's own order, whatever its strides. */
    km_tensor *ids = km_transpose(ctx, I32(ctx, KM_SHAPE(2, 3), 0, 1, 2, 3, 7, 4), 0, 1);
    REFUSED(km_embedding(ctx, table, ids), KM_ERR_RANGE,
            "embedding: index 7 at position 3 is not in [0, 5)");
    km_tensor *wide = km_from_data(ctx, KM_I64, KM_SHAPE(1), (int64_t[]){1LL << 32});
    REFUSED(km_index_select(ctx, table, 0, wide), KM_ERR_RANGE,
            "index_select: index 4294967296 at position 0 is not in [0, 5)");
    REFUSED(km_gather(ctx, table, 1, I32(ctx, KM_SHAPE(1, 1), 2)), KM_ERR_RANGE,
            "gather: index 2 at position 0 is not in [0, 2)");
    REFUSED(km_scatter_add(ctx, table, 0, I32(ctx, KM_SHAPE(1, 1), 5), f32(ctx, KM_SHAPE(1, 1))),
            KM_ERR_RANGE, "scatter_add: index 5 at position 0 is not in [0, 5)");
    REFUSED(km_cross_entropy(ctx, table, I32(ctx, KM_SHAPE(5), 0, -100, 1, -1, 0), -100, KM_MEAN),
            KM_ERR_RANGE, "cross_entropy: index -1 at position 3 is not in [0, 2)");
    REFUSED(km_embedding(ctx, f32(ctx, KM_SHAPE(0, 2)), I32(ctx, KM_SHAPE(1), 0)), KM_ERR_RANGE,
            "embedding: index 0 at position 0 is not in [0, 0)");
    assert_shape(km_embedding(ctx, table, km_zeros(ctx, KM_I32, KM_SHAPE(0))), KM_SHAPE(0, 2));
}

static void index_shapes_that_do_not_fit_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2, 3)), *list = km_zeros(ctx, KM_I32, KM_SHAPE(2));
    km_tensor *tall = km_zeros(ctx, KM_I32, KM_SHAPE(4, 1)), *s = f32(ctx, KM_SCALAR);
    REFUSED(km_embedding(ctx, list, list), KM_ERR_SHAPE,
            "embedding: the table must be [rows, width], not [2]");
    REFUSED(km_embedding(ctx, x, km_zeros(ctx, KM_I32, KM_SHAPE(1, 1, 1, 1, 1))), KM_ERR_SHAPE,
            "embedding: ids [1, 1, 1, 1, 1] leave no axis for the rows");
    REFUSED(km_gather(ctx, x, 1, list), KM_ERR_SHAPE,
            "gather: index [2] does not fit [2, 3] along axis 1");
    REFUSED(km_gather(ctx, x, 1, tall), KM_ERR_SHAPE,
            "gather: index [4, 1] does not fit [2, 3] along axis 1");
    REFUSED(km_gather(ctx, s, 0, km_zeros(ctx, KM_I32, KM_SCALAR)), KM_ERR_RANGE,
            "gather: no axis 0 in []");
    REFUSED(km_scatter_add(ctx, x, 0, tall, x), KM_ERR_SHAPE,
            "scatter_add: src is [2, 3], not [4, 1]");
    REFUSED(km_index_select(ctx, x, 0, tall), KM_ERR_SHAPE,
            "index_select: the index must be a list, not [4, 1]");
    REFUSED(km_concat(ctx, (km_tensor *[]){x, f32(ctx, KM_SHAPE(2, 4))}, 2, 0), KM_ERR_SHAPE,
            "concat: [2, 3] and [2, 4] do not join along axis 0");
    REFUSED(km_concat(ctx, (km_tensor *[]){x, s}, 2, 0), KM_ERR_SHAPE,
            "concat: [2, 3] and [] do not join along axis 0");
    REFUSED(km_concat(ctx, (km_tensor *[]){s, s}, 2, 0), KM_ERR_RANGE, "concat: no axis 0 in []");
    REFUSED(km_concat(ctx, (km_tensor *[]){x, NULL}, 2, 0), KM_ERR_NULL,
            "concat: argument 2 is NULL");
    REFUSED(km_concat(ctx, NULL, 2, 0), KM_ERR_NULL, "concat: no parts given");
    REFUSED(km_concat(ctx, &x, 0, 0), KM_ERR_NULL, "concat: no parts given");
    REFUSED(km_stack(ctx, (km_tensor *[]){x, f32(ctx, KM_SHAPE(3, 2))}, 2, 0), KM_ERR_SHAPE,
            "stack: [2, 3] and [3, 2] are not of one shape");
    REFUSED(km_stack(ctx, (km_tensor *[]){x, NULL}, 2, 0), KM_ERR_NULL,
            "stack: argument 2 is NULL");
    REFUSED(km_stack(ctx, &x, 1, 3), KM_ERR_RANGE, "stack: no place for an axis at 3 in [2, 3]");
    km_tensor *full = f32(ctx, KM_SHAPE(1, 1, 1, 1, 1));
    REFUSED(km_stack(ctx, &full, 1, 0), KM_ERR_RANGE,
            "stack: no place for an axis at 0 in [1, 1, 1, 1, 1]");
}

static void targets_must_have_one_row_each(void **state) {
    km_ctx *ctx = *state;
    km_tensor *logits = f32(ctx, KM_SHAPE(2, 3, 5));
    REFUSED(km_cross_entropy(ctx, logits, km_zeros(ctx, KM_I32, KM_SHAPE(2, 2)), -1, KM_MEAN),
            KM_ERR_SHAPE, "cross_entropy: logits [2, 3, 5] need one target a row, not [2, 2]");
    REFUSED(km_cross_entropy(ctx, logits, km_zeros(ctx, KM_I32, KM_SHAPE(3, 2)), -1, KM_MEAN),
            KM_ERR_SHAPE, "cross_entropy: logits [2, 3, 5] need one target a row, not [3, 2]");
    REFUSED(km_cross_entropy(ctx, logits, km_zeros(ctx, KM_I32, KM_SHAPE(6)), -1, KM_MEAN),
            KM_ERR_SHAPE, "cross_entropy: logits [2, 3, 5] need one target a row, not [6]");
    REFUSED(km_cross_entropy(ctx, logits, logits, -1, (km_reduction)3), KM_ERR_RANGE,
            "cross_entropy: no such reduction: 3");
}

static void attention_names_its_three_shapes(void **state) {
    km_ctx *ctx = *state;
    km_tensor *q = f32(ctx, KM_SHAPE(1, 4, 2, 8)), *k = f32(ctx, KM_SHAPE(1, 3, 2, 8));
    const char *text = " are not [B, H, Tq, D] and [B, Hkv, Tk, D] with H a multiple of Hkv";
    char want[300];
    snprintf(want, sizeof want, "attention: q %s, k %s, v %s%s", "[1, 4, 2, 8]", "[1, 3, 2, 8]",
             "[1, 3, 2, 8]", text);
    REFUSED(km_attention(ctx, q, k, k, true, 0), KM_ERR_SHAPE, want);
    km_tensor *flat = f32(ctx, KM_SHAPE(4, 2, 8));
    snprintf(want, sizeof want, "attention: q %s, k %s, v %s%s", "[4, 2, 8]", "[4, 2, 8]",
             "[4, 2, 8]", text);
    REFUSED(km_attention(ctx, flat, flat, flat, true, 0), KM_ERR_SHAPE, want);
    REFUSED(km_attention(ctx, q, q, km_zeros(ctx, KM_F16, KM_SHAPE(1, 4, 2, 8)), true, 0),
            KM_ERR_DTYPE, "attention: dtypes differ: f32 and f16; use km_cast");
    REFUSED(km_attention(ctx, q, NULL, q, true, 0), KM_ERR_NULL, "attention: argument 2 is NULL");
}

static void rope_names_what_it_cannot_rotate(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2, 3)), *pos = km_zeros(ctx, KM_I32, KM_SHAPE(2));
    REFUSED(km_rope(ctx, x, pos, KM_ROPE_HALVES, 10000, 0), KM_ERR_RANGE,
            "rope: cannot rotate 3 of the dimensions of [2, 3]");
    REFUSED(km_rope(ctx, x, pos, KM_ROPE_HALVES, 10000, 4), KM_ERR_RANGE,
            "rope: cannot rotate 4 of the dimensions of [2, 3]");
    REFUSED(km_rope(ctx, x, pos, KM_ROPE_HALVES, 10000, -2), KM_ERR_RANGE,
            "rope: cannot rotate -2 of the dimensions of [2, 3]");
    REFUSED(km_rope(ctx, x, pos, KM_ROPE_HALVES, 0, 2), KM_ERR_RANGE,
            "rope: base 0 is not positive");
    REFUSED(km_rope(ctx, x, pos, (km_rope_pairs)5, 10000, 2), KM_ERR_RANGE,
            "rope: no such pair layout: 5");
    REFUSED(km_rope(ctx, x, f32(ctx, KM_SHAPE(2)), KM_ROPE_HALVES, 10000, 2), KM_ERR_DTYPE,
            "rope: positions of dtype f32 is not possible here; it takes i32, i64");
    REFUSED(km_rope(ctx, x, km_zeros(ctx, KM_I32, KM_SHAPE(3)), KM_ROPE_HALVES, 10000, 2),
            KM_ERR_SHAPE, "rope: positions is [3], not [2]");
    REFUSED(km_rope(ctx, f32(ctx, KM_SHAPE(4)), NULL, KM_ROPE_HALVES, 10000, 0), KM_ERR_SHAPE,
            "rope: x must be [..., T, d], not [4]");
}

static void numbers_out_of_range_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2));
    REFUSED(km_dropout(ctx, x, 1), KM_ERR_RANGE, "dropout: probability 1 is not in [0, 1)");
    REFUSED(km_dropout(ctx, x, -0.5), KM_ERR_RANGE, "dropout: probability -0.5 is not in [0, 1)");
    REFUSED(km_dropout(ctx, x, NAN), KM_ERR_RANGE, "dropout: probability nan is not in [0, 1)");
    REFUSED(km_clamp(ctx, x, 1, -1), KM_ERR_RANGE, "clamp: bounds 1 and -1 are not in order");
    REFUSED(km_clamp(ctx, x, NAN, 1), KM_ERR_RANGE, "clamp: bounds nan and 1 are not in order");
}

static void missing_operands_are_named(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(2, 2));
    REFUSED(km_add(ctx, NULL, x), KM_ERR_NULL, "add: argument 1 is NULL");
    REFUSED(km_add(ctx, x, NULL), KM_ERR_NULL, "add: argument 2 is NULL");
    REFUSED(km_where(ctx, NULL, x, x), KM_ERR_NULL, "where: argument 1 is NULL");
    REFUSED(km_neg(ctx, NULL), KM_ERR_NULL, "neg: argument 1 is NULL");
    REFUSED(km_matmul(ctx, x, NULL), KM_ERR_NULL, "matmul: argument 2 is NULL");
    REFUSED(km_matmul(ctx, NULL, x), KM_ERR_NULL, "matmul: argument 1 is NULL");
    REFUSED(km_linear(ctx, x, NULL, NULL, KM_ACT_NONE), KM_ERR_NULL, "linear: argument 2 is NULL");
    REFUSED(km_layer_norm(ctx, x, NULL, NULL, 1e-5), KM_ERR_NULL, "layer_norm: argument 2 is NULL");
    REFUSED(km_add_rms_norm(ctx, x, NULL, x, 1e-5, NULL), KM_ERR_NULL,
            "add_rms_norm: argument 2 is NULL");
    REFUSED(km_softmax(ctx, NULL, 0), KM_ERR_NULL, "softmax: argument 1 is NULL");
    REFUSED(km_gather(ctx, NULL, 0, NULL), KM_ERR_NULL, "gather: argument 1 is NULL");
    REFUSED(km_rope(ctx, NULL, NULL, KM_ROPE_HALVES, 10000, 0), KM_ERR_NULL,
            "rope: argument 1 is NULL");
    REFUSED(km_cross_entropy(ctx, x, NULL, -1, KM_MEAN), KM_ERR_NULL,
            "cross_entropy: argument 2 is NULL");
    REFUSED(km_cast(ctx, NULL, KM_F16), KM_ERR_NULL, "cast: argument 1 is NULL");
    REFUSED(km_dropout(ctx, NULL, 0.1), KM_ERR_NULL, "dropout: argument 1 is NULL");
}

static void a_refused_op_leaves_no_memory_behind(void **state) {
    km_ctx *ctx = *state;
    km_tensor *x = f32(ctx, KM_SHAPE(100, 100)), *y = f32(ctx, KM_SHAPE(3, 7));
    size_t live = km_ctx_stats(ctx).live_bytes;
    km_matmul(ctx, x, y);
    km_ctx_clear_error(ctx);
    km_embedding(ctx, x, I32(ctx, KM_SHAPE(1), 100));
    km_ctx_clear_error(ctx);
    km_layer_norm(ctx, x, y, NULL, 0);
    km_ctx_clear_error(ctx);
    assert_true(km_ctx_stats(ctx).live_bytes <= live + 512); /* the index alone */
    km_step_end(ctx);
    assert_int_equal(km_ctx_stats(ctx).live_bytes, 0);
    x = km_ones(ctx, KM_F32, KM_SHAPE(2, 2));
    assert_elements(ctx, km_matmul(ctx, x, x), 2, 2, 2, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(products_that_do_not_fit_are_named),
        ON_EACH(operands_that_do_not_broadcast_are_named),
        ON("ref", rows_and_weights_must_fit),
        ON("ref", reductions_name_bad_axes),
        ON_EACH(dtypes_that_do_not_fit_are_named),
        ON_EACH(indices_out_of_range_are_named_with_their_place),
        ON("ref", index_shapes_that_do_not_fit_are_named),
        ON("ref", targets_must_have_one_row_each),
        ON("ref", attention_names_its_three_shapes),
        ON("ref", rope_names_what_it_cannot_rotate),
        ON("ref", numbers_out_of_range_are_named),
        ON_EACH(missing_operands_are_named),
        ON_EACH(a_refused_op_leaves_no_memory_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

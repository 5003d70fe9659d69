/* The same random calls on cpu and on ref: every op that takes strides gets them - permuted, sliced
 * with steps, repeated, empty - in every float dtype and in integers, and the results agree. */
#include "support/engine.h"
#include <math.h>
#include <stdlib.h>

static uint64_t dice;
static int roll(int n) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((dice >> 33) % (uint64_t)n);
}

/* Where operands come from, when gradients are wanted. */
typedef struct sources {
    km_tensor *kept[40];
    int n;
} sources;
static sources *recorded; /* NULL: nothing is */

/* A tensor of a shape, its elements small numbers in irregular order, seen through a view that is
 * not contiguous more often than not. */
static km_tensor *operand(km_ctx *ctx, km_dtype dtype, km_shape s) {
    int order[KM_MAX_DIMS], back[KM_MAX_DIMS], n = s.ndim;
    bool repeated[KM_MAX_DIMS] = {0};
    int64_t step[KM_MAX_DIMS], start[KM_MAX_DIMS];
    km_shape made = {n, {0}};
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; i > 0 && roll(3); i--) {
        int j = roll(i + 1), keep = order[i];
        order[i] = order[j];
        order[j] = keep;
    }
    for (int i = 0; i < n; i++) { /* axis order[i] of the result is axis i in memory */
        int64_t size = s.dim[order[i]];
        repeated[i] = size > 0 && roll(8) == 0;
        step[i] = roll(4) ? 1 : 2;
        start[i] = roll(4) ? 0 : 1;
        made.dim[i] = repeated[i] ? 1 : start[i] + size * step[i];
        back[order[i]] = i;
    }
    int64_t count = km_shape_count(made);
    double *v = malloc(sizeof *v * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++) v[i] = (roll(61) - 30) / (dtype == KM_I32 ? 1.0 : 8.0);
    km_tensor *t = km_cast(ctx, km_from_data(ctx, KM_F64, made, v), dtype);
    free(v);
    if (recorded && km_tensor_dtype(t) == KM_F32)
        t = recorded->kept[recorded->n++] = engine_parameter(ctx, t);
    km_shape seen = made;
    for (int i = 0; i < n; i++) {
        if (repeated[i]) {
            seen.dim[i] = s.dim[order[i]];
            continue;
        }
        t = km_slice(ctx, t, i, start[i], made.dim[i], step[i]);
        seen.dim[i] = s.dim[order[i]];
    }
    return km_permute(ctx, km_broadcast(ctx, t, seen), back);
}

static km_shape any_shape(int rank, int largest) {
    km_shape s = {rank, {0}};
    for (int i = 0; i < rank; i++) s.dim[i] = roll(25) ? 1 + roll(largest) : 0;
    return s;
}

/* s with some axes of size 1 and leading ones dropped: it broadcasts to s. */
static km_shape smaller(km_shape s) {
    int drop = s.ndim && roll(3) == 0 ? roll(s.ndim + 1) : 0;
    km_shape r = {s.ndim - drop, {0}};
    for (int i = 0; i < r.ndim; i++) r.dim[i] = roll(4) ? s.dim[i + drop] : 1;
    return r;
}

static km_tensor *binary(km_ctx *ctx, km_dtype d) {
    static km_tensor *(*const ops[])(km_ctx *, km_tensor *, km_tensor *) = {
        km_add, km_sub, km_mul, km_maximum, km_minimum, km_lt, km_eq};
    km_shape s = any_shape(roll(6), 6);
    bool first = roll(2);
    km_tensor *a = operand(ctx, d, first ? s : smaller(s));
    km_tensor *b = operand(ctx, d, first ? smaller(s) : s);
    return ops[roll(7)](ctx, a, b);
}

static km_tensor *unary(km_ctx *ctx, km_dtype d) {
    static km_tensor *(*const ops[])(km_ctx *, km_tensor *) = {
        km_neg, km_abs, km_relu, km_exp, km_tanh, km_sigmoid, km_gelu, km_silu, km_sin};
    km_tensor *x = operand(ctx, d, any_shape(roll(6), 7));
    return ops[roll(d == KM_I32 ? 3 : 9)](ctx, x);
}

static km_tensor *choose(km_ctx *ctx, km_dtype d) {
    km_shape s = any_shape(roll(6), 6);
    km_tensor *x = operand(ctx, d, s), *y = operand(ctx, d, smaller(s));
    km_tensor *mask =
        km_gt(ctx, operand(ctx, KM_F32, smaller(s)), km_zeros(ctx, KM_F32, KM_SCALAR));
    return roll(2) ? km_where(ctx, mask, x, y) : km_masked_fill(ctx, x, mask, 3);
}

static km_tensor *reduction(km_ctx *ctx, km_dtype d) {
    km_shape s = any_shape(roll(6), 7);
    km_tensor *x = operand(ctx, d, s);
    int axes[KM_MAX_DIMS], n = 0;
    for (int i = 0; i < s.ndim; i++)
        if (roll(2)) axes[n++] = roll(2) ? i : i - s.ndim;
    bool keep = roll(2);
    int which = roll(d == KM_I32 ? 1 : 5);
    if (which == 1) return km_mean(ctx, x, axes, n, keep);
    if (which == 2) return km_var(ctx, x, axes, n, keep, 0);
    if (which == 3) return km_logsumexp(ctx, x, axes, n, keep);
    if (which == 4 && km_shape_count(s) > 0) return km_max(ctx, x, axes, n, keep);
    return km_sum(ctx, x, axes, n, keep);
}

static km_tensor *converted(km_ctx *ctx, km_dtype d) {
    static const km_dtype to[] = {KM_F32, KM_F16, KM_BF16, KM_I32, KM_I64, KM_I8, KM_BOOL};
    return km_cast(ctx, operand(ctx, d, any_shape(roll(6), 6)), to[roll(7)]);
}

static km_tensor *product(km_ctx *ctx, km_dtype d) {
    if (d == KM_I32) d = KM_F32;
    int batch = roll(4);
    km_shape lead = any_shape(batch, 3), a = lead, b = smaller(lead);
    int64_t m = roll(9), k = roll(20), n = roll(9);
    a.dim[a.ndim++] = m;
    a.dim[a.ndim++] = k;
    b.dim[b.ndim++] = k;
    b.dim[b.ndim++] = n;
    return km_matmul(ctx, operand(ctx, d, a), operand(ctx, d, b));
}

static km_tensor *rows(km_ctx *ctx, km_dtype d) {
    if (d == KM_I32) d = KM_F32;
    km_shape s = any_shape(1 + roll(4), 9);
    km_tensor *x = operand(ctx, d, s);
    int64_t n = s.dim[s.ndim - 1];
    int which = roll(5);
    if (which == 0) return km_softmax(ctx, x, roll(s.ndim));
    if (which == 1) return km_log_softmax(ctx, x, roll(s.ndim));
    km_tensor *w = operand(ctx, d, KM_SHAPE(n)), *b = operand(ctx, d, KM_SHAPE(n));
    if (which == 2) return km_layer_norm(ctx, x, w, roll(2) ? b : NULL, 0.1);
    if (which == 3) return km_rms_norm(ctx, x, w, 0.1);
    return km_add_rms_norm(ctx, x, operand(ctx, d, s), w, 0.1, NULL);
}

static km_tensor *joined(km_ctx *ctx, km_dtype d) {
    km_shape s = any_shape(1 + roll(5), 5);
    km_tensor *parts[11];
    int n = 1 + roll(11), axis = roll(s.ndim);
    for (int i = 0; i < n; i++) {
        s.dim[axis] = roll(4);
        parts[i] = operand(ctx, d, s);
    }
    return km_concat(ctx, parts, n, axis);
}

static km_tensor *indexed(km_ctx *ctx, km_dtype d) {
    km_shape s = any_shape(1 + roll(3), 6);
    for (int i = 0; i < s.ndim; i++) s.dim[i] += s.dim[i] == 0;
    int axis = roll(s.ndim), n = roll(8);
    km_tensor *x = operand(ctx, d, s);
    int32_t ids[8];
    for (int i = 0; i < n; i++) ids[i] = roll((int)s.dim[axis]);
    km_tensor *list = km_from_data(ctx, KM_I32, KM_SHAPE(n), ids);
    if (roll(2)) return km_index_select(ctx, x, axis, list);
    km_shape line = {s.ndim, {0}}, full = s;
    for (int i = 0; i < s.ndim; i++) line.dim[i] = i == axis ? n : 1;
    full.dim[axis] = n;
    km_tensor *index = km_broadcast(ctx, km_reshape(ctx, list, line), full);
    if (roll(2)) return km_gather(ctx, x, axis, index);
    return km_scatter_add(ctx, x, axis, index, operand(ctx, d, full));
}

static km_tensor *attended(km_ctx *ctx, km_dtype d) {
    if (d == KM_I32) d = KM_F32;
    int64_t b = roll(3), heads = 1 + roll(2), group = 1 + roll(3), tq = roll(5), tk = roll(7);
    int64_t width = roll(4) ? 8 : 1 + roll(5);
    km_tensor *q = operand(ctx, d, KM_SHAPE(b, heads * group, tq, width));
    km_tensor *k = operand(ctx, d, KM_SHAPE(b, heads, tk, width));
    km_tensor *v = operand(ctx, d, KM_SHAPE(b, heads, tk, width));
    if (roll(3) == 0 && width % 2 == 0) q = km_rope(ctx, q, NULL, roll(2), 100, 0);
    return km_attention(ctx, q, k, v, roll(2), 0.2);
}

static km_tensor *loss(km_ctx *ctx, km_dtype d) {
    if (d == KM_I32) d = KM_F32;
    int rows = roll(6), classes = 1 + roll(9);
    km_reduction reduction = roll(2) ? KM_MEAN : KM_SUM;
    km_tensor *x = operand(ctx, d, KM_SHAPE(rows, classes));
    if (roll(3) == 0) return km_mse(ctx, x, operand(ctx, d, KM_SHAPE(rows, classes)), reduction);
    if (roll(3) == 0)
        return km_bce_with_logits(ctx, x, operand(ctx, d, KM_SHAPE(rows, classes)), reduction);
    int64_t targets[6];
    for (int i = 0; i < rows; i++) targets[i] = roll(3) ? roll(classes) : -7;
    km_tensor *t = km_from_data(ctx, KM_I64, KM_SHAPE(rows), targets);
    return km_cross_entropy(ctx, x, t, -7, reduction);
}

static km_tensor *looked_up(
    km_ctx *ctx,
    km_dtype d) { /* exact up to the activation, so that relu turns at the same place */
    if (d == KM_I32) d = KM_F32;
    int words = 1 + roll(5), width = 1 + roll(9), n = roll(7);
    int32_t ids[7];
    for (int i = 0; i < n; i++) ids[i] = roll(words);
    km_tensor *x = km_embedding(ctx, operand(ctx, d, KM_SHAPE(words, width)),
                                km_from_data(ctx, KM_I32, KM_SHAPE(n), ids));
    int out = 1 + roll(6);
    km_tensor *w = operand(ctx, d, KM_SHAPE(out, width)), *b = operand(ctx, d, KM_SHAPE(out));
    x = roll(2) ? km_dropout(ctx, x, 0.5) : km_tril(ctx, x, roll(5) - 2);
    return km_linear(ctx, x, w, roll(3) ? b : NULL, (km_act)roll(5));
}

typedef km_tensor *(*call)(km_ctx *ctx, km_dtype d);
static const struct {
    const char *name;
    call make;
    double slack; /* in units of the dtype's last place */
} calls[] = {{"binary", binary, 2},        {"unary", unary, 8},    {"choose", choose, 0},
             {"reduction", reduction, 16}, {"cast", converted, 0}, {"matmul", product, 64},
             {"rows", rows, 64},           {"concat", joined, 0},  {"index", indexed, 16},
             {"attention", attended, 64},  {"loss", loss, 64},     {"linear", looked_up, 64}};

static const int n_calls = sizeof calls / sizeof calls[0];

/* Elements of two tensors agree to `slack`; both are read as doubles. */
static void compare(const char *what, int round, km_ctx *ref, km_tensor *want, km_ctx *cpu,
                    km_tensor *got, double slack) {
    int64_t n = km_tensor_count(want);
    size_t bytes = sizeof(double) * (size_t)n;
    double *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    assert_shape(got, km_tensor_shape(want));
    km_read(ref, km_cast(ref, want, KM_F64), a, bytes);
    km_read(cpu, km_cast(cpu, got, KM_F64), b, bytes);
    assert_ok(ref);
    assert_ok(cpu);
    for (int64_t i = 0; i < n; i++) {
        if ((isnan(a[i]) && isnan(b[i])) || engine_close_to(a[i], b[i], slack)) continue;
        print_error("round %d, %s: element %lld is %.9g, not %.9g\n", round, what, (long long)i,
                    b[i], a[i]);
        fail();
    }
    free(a);
    free(b);
}

static void the_same_calls_give_the_same_results_on_cpu_and_ref(void **state) {
    static const km_dtype dtypes[] = {KM_F32, KM_F32, KM_F16, KM_BF16, KM_I32};
    static const double last_place[KM_DTYPE_COUNT] = {
        [KM_F32] = 1.2e-7, [KM_F16] = 1e-3, [KM_BF16] = 8e-3}; /* integers agree exactly */
    km_ctx *ref = *state, *cpu = km_ctx_new("cpu", 2);
    int nonempty = 0;
    for (int round = 0; round < 1200; round++) {
        int which = round % n_calls;
        dice = (uint64_t)round * 7919 + 12345;
        roll(2);
        km_dtype d = dtypes[roll(5)];
        uint64_t same = dice;
        km_tensor *want = calls[which].make(ref, d);
        dice = same;
        km_tensor *got = calls[which].make(cpu, d);
        nonempty += km_tensor_count(want) > 0;
        compare(calls[which].name, round, ref, want, cpu, got,
                calls[which].slack * last_place[km_tensor_dtype(want)]);
        km_step_end(ref);
        km_step_end(cpu);
    }
    assert_true(nonempty > 800);
    km_ctx_free(cpu);
}

/* Back from sum(weight * result), if it has a gradient. */
static void back(km_ctx *ctx, km_tensor *y) {
    assert_ok(ctx);
    if (!km_requires_grad(y)) return;
    km_tensor *w = km_sin(ctx, engine_range(ctx, KM_F32, km_tensor_shape(y)));
    km_backward(ctx, km_sum(ctx, km_mul(ctx, km_cast(ctx, y, KM_F32), w), NULL, 0, false));
    assert_ok(ctx);
}

static void the_same_calls_give_the_same_gradients_on_cpu_and_ref(void **state) {
    km_ctx *ref = *state, *cpu = km_ctx_new("cpu", 2);
    int gradients = 0;
    for (int round = 0; round < 800; round++) {
        int which = round % n_calls;
        sources a = {0}, b = {0};
        uint64_t same = dice = (uint64_t)round * 104729 + 777;
        recorded = &a;
        back(ref, calls[which].make(ref, KM_F32));
        dice = same;
        recorded = &b;
        back(cpu, calls[which].make(cpu, KM_F32));
        recorded = NULL;
        assert_int_equal(a.n, b.n);
        for (int i = 0; i < a.n; i++) {
            km_tensor *want = km_grad(a.kept[i]), *got = km_grad(b.kept[i]);
            assert_int_equal(want != NULL, got != NULL);
            if (want) compare(calls[which].name, round, ref, want, cpu, got, 5e-5);
            gradients += want != NULL;
            km_release(a.kept[i]);
            km_release(b.kept[i]);
        }
        km_step_end(ref);
        km_step_end(cpu);
    }
    assert_true(gradients > 1000);
    km_ctx_free(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON("ref", the_same_calls_give_the_same_results_on_cpu_and_ref),
        ON("ref", the_same_calls_give_the_same_gradients_on_cpu_and_ref),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

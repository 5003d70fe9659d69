/* Chains of random views against a model that knows no strides: a list that says, for every
 * element of the view in row-major order, which element of the source it is. */
#include "support/engine.h"
#include <stdlib.h>

#define LARGEST 3000
#define CHAINS 1500

typedef struct model {
    km_shape shape;
    int64_t n;
    int from[LARGEST];
} model;

static uint64_t dice;
static int roll(int n) { /* 0 .. n-1 */
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (int)((dice >> 33) % (uint64_t)n);
}

/* The place of index i in row-major order. */
static int64_t place(km_shape s, const int64_t *i) {
    int64_t at = 0;
    for (int a = 0; a < s.ndim; a++) at = at * s.dim[a] + i[a];
    return at;
}

static void unplace(km_shape s, int64_t at, int64_t *i) {
    for (int a = s.ndim; a-- > 0;) {
        i[a] = at % s.dim[a];
        at /= s.dim[a];
    }
}

/* The view whose element (i...) is element old(i...) of m. */
typedef void (*index_map)(const int64_t *i, int64_t *old, const int64_t *arg, int ndim);

static void remap(model *m, km_shape shape, index_map map, const int64_t *arg) {
    static model out;
    out.shape = shape;
    out.n = km_shape_count(shape);
    assert_true(out.n <= LARGEST);
    for (int64_t e = 0; e < out.n; e++) {
        int64_t i[KM_MAX_DIMS], old[KM_MAX_DIMS] = {0};
        unplace(shape, e, i);
        map(i, old, arg, shape.ndim);
        out.from[e] = m->from[place(m->shape, old)];
    }
    *m = out;
}

static void map_slice(const int64_t *i, int64_t *old, const int64_t *arg, int ndim) {
    for (int a = 0; a < ndim; a++) old[a] = a == arg[0] ? arg[1] + i[a] * arg[2] : i[a];
}

static void map_permute(const int64_t *i, int64_t *old, const int64_t *arg, int ndim) {
    for (int a = 0; a < ndim; a++) old[arg[a]] = i[a];
}

/* arg: axes added in front, then for each old axis whether it was repeated. */
static void map_broadcast(const int64_t *i, int64_t *old, const int64_t *arg, int ndim) {
    for (int a = (int)arg[0]; a < ndim; a++) old[a - arg[0]] = arg[1 + a - arg[0]] ? 0 : i[a];
}

/* ---- One random view of each kind; NULL when the die asks for one that does not fit ---- */

static km_tensor *try_slice(km_ctx *ctx, km_tensor *t, model *m) {
    if (m->shape.ndim == 0) return NULL;
    int axis = roll(m->shape.ndim);
    int64_t size = m->shape.dim[axis], start = roll((int)size + 1);
    int64_t stop = start + roll((int)(size - start) + 1), step = 1 + roll(3);
    int64_t arg[] = {axis, start, step};
    km_shape s = m->shape;
    s.dim[axis] = (stop - start + step - 1) / step;
    remap(m, s, map_slice, arg);
    if (roll(2) && start < size) start -= size; /* the same, told from the end */
    if (roll(2) && stop < size) stop -= size;
    if (roll(2)) axis -= s.ndim;
    if (start >= 0 && stop >= start && step == 1 && roll(2))
        return km_narrow(ctx, t, axis, start, stop - start);
    return km_slice(ctx, t, axis, start, stop, step);
}

static km_tensor *try_select(km_ctx *ctx, km_tensor *t, model *m) {
    if (m->shape.ndim == 0) return NULL;
    int axis = roll(m->shape.ndim);
    int64_t size = m->shape.dim[axis];
    if (size == 0) return NULL;
    int64_t at = roll((int)size), arg[] = {axis, at, 1};
    km_shape s = m->shape;
    s.dim[axis] = 1;
    remap(m, s, map_slice, arg);
    for (int a = axis; a + 1 < s.ndim; a++) m->shape.dim[a] = s.dim[a + 1];
    m->shape.ndim--;
    return km_select(ctx, t, axis, roll(2) ? at : at - size);
}

static km_tensor *try_permute(km_ctx *ctx, km_tensor *t, model *m) {
    int axes[KM_MAX_DIMS], n = m->shape.ndim;
    int64_t arg[KM_MAX_DIMS];
    km_shape s = {n, {0}};
    for (int i = 0; i < n; i++) axes[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = roll(i + 1), keep = axes[i];
        axes[i] = axes[j];
        axes[j] = keep;
    }
    for (int i = 0; i < n; i++) {
        arg[i] = axes[i];
        s.dim[i] = m->shape.dim[axes[i]];
        if (roll(2)) axes[i] -= n;
    }
    remap(m, s, map_permute, arg);
    return km_permute(ctx, t, axes);
}

static km_tensor *try_transpose(km_ctx *ctx, km_tensor *t, model *m) {
    int n = m->shape.ndim;
    if (n == 0) return NULL;
    int a = roll(n), b = roll(n);
    int64_t arg[KM_MAX_DIMS];
    km_shape s = m->shape;
    for (int i = 0; i < n; i++) arg[i] = i == a ? b : i == b ? a : i;
    s.dim[a] = m->shape.dim[b];
    s.dim[b] = m->shape.dim[a];
    remap(m, s, map_permute, arg);
    return km_transpose(ctx, t, a, b - n);
}

/* A reshape keeps the order of elements, so the model's list stays as it is. */
static km_tensor *try_reshape(km_ctx *ctx, km_tensor *t, model *m) {
    km_shape s = {roll(KM_MAX_DIMS) + 1, {0}};
    int64_t left = m->n;
    if (left == 0) {
        for (int i = 0; i < s.ndim; i++) s.dim[i] = roll(4);
        s.dim[roll(s.ndim)] = 0;
    } else {
        for (int i = 0; i + 1 < s.ndim; i++) {
            int64_t d = 1 + roll(6);
            s.dim[i] = left % d ? 1 : d;
            left /= s.dim[i];
        }
        s.dim[s.ndim - 1] = left;
    }
    m->shape = s;
    if (m->n && roll(2)) s.dim[roll(s.ndim)] = -1;
    return km_reshape(ctx, t, s);
}

static km_tensor *try_broadcast(km_ctx *ctx, km_tensor *t, model *m) {
    int lead = roll(KM_MAX_DIMS - m->shape.ndim + 1);
    int64_t arg[1 + KM_MAX_DIMS] = {lead};
    km_shape s = {lead + m->shape.ndim, {0}};
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) {
        int64_t d = i < lead ? 1 : m->shape.dim[i - lead];
        bool repeats = d == 1 && roll(2);
        s.dim[i] = repeats ? roll(4) : i < lead ? 1 + roll(3) : d;
        if (i >= lead) arg[1 + i - lead] = repeats;
        n *= s.dim[i];
    }
    if (n > LARGEST) return NULL;
    remap(m, s, map_broadcast, arg);
    return km_broadcast(ctx, t, s);
}

static km_tensor *try_unsqueeze(km_ctx *ctx, km_tensor *t, model *m) {
    int n = m->shape.ndim, at = roll(n + 1);
    if (n == KM_MAX_DIMS) return NULL;
    for (int i = n; i > at; i--) m->shape.dim[i] = m->shape.dim[i - 1];
    m->shape.dim[at] = 1;
    m->shape.ndim++;
    return km_unsqueeze(ctx, t, roll(2) ? at : at - (n + 1));
}

static km_tensor *try_squeeze(km_ctx *ctx, km_tensor *t, model *m) {
    int n = m->shape.ndim, at = n ? roll(n) : 0;
    if (n == 0 || m->shape.dim[at] != 1) return NULL;
    for (int i = at; i + 1 < n; i++) m->shape.dim[i] = m->shape.dim[i + 1];
    m->shape.ndim--;
    return km_squeeze(ctx, t, roll(2) ? at : at - n);
}

static km_tensor *try_split(km_ctx *ctx, km_tensor *t, model *m) {
    if (m->shape.ndim == 0) return NULL;
    int axis = roll(m->shape.ndim), n = 1 + roll(3), which = roll(n);
    int64_t size = m->shape.dim[axis];
    if (size % n) return NULL;
    int64_t arg[] = {axis, which * (size / n), 1};
    km_shape s = m->shape;
    s.dim[axis] = size / n;
    remap(m, s, map_slice, arg);
    km_tensor *parts[3];
    return km_split(ctx, t, axis, n, parts) == KM_OK ? parts[which] : NULL;
}

static km_tensor *(*const kinds[])(km_ctx *, km_tensor *, model *) = {
    try_slice,   try_slice,     try_select,    try_permute, try_transpose, try_reshape,
    try_reshape, try_broadcast, try_unsqueeze, try_squeeze, try_split};

/* ---- Comparing ---- */

/* What element i of a source counting 0, 1, 2, ... is in a dtype. */
static double counted(km_dtype dtype, int i) {
    return dtype == KM_U8 ? i & 255 : dtype == KM_F16 ? i & 2047 : i;
}

static km_tensor *source(km_ctx *ctx, km_dtype dtype, km_shape shape) {
    int n = (int)km_shape_count(shape);
    double *v = malloc(sizeof *v * (size_t)(n + 1));
    for (int i = 0; i < n; i++) v[i] = counted(dtype, i);
    km_tensor *t = km_cast(ctx, km_from_data(ctx, KM_F64, shape, v), dtype);
    free(v);
    return t;
}

static void compare(km_ctx *ctx, km_tensor *t, const model *m, km_dtype dtype) {
    static double got[LARGEST];
    assert_shape(t, m->shape);
    km_tensor *wide = km_cast(ctx, t, KM_F64);
    assert_int_equal(km_read(ctx, wide, got, sizeof(double) * (size_t)m->n), KM_OK);
    for (int64_t i = 0; i < m->n; i++) assert_true(got[i] == counted(dtype, m->from[i]));
    km_tensor *copy = km_copy(ctx, t);
    assert_true(km_tensor_is_contiguous(copy));
    static uint8_t a[LARGEST * 8], b[LARGEST * 8];
    size_t bytes = (size_t)m->n * km_dtype_size(dtype);
    km_read(ctx, copy, a, bytes);
    km_read(ctx, t, b, bytes);
    assert_memory_equal(a, b, bytes);
}

/* Every element is seen once, so the view can be written through. */
static bool is_injective(const model *m) {
    static uint8_t seen[LARGEST];
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < m->n; i++)
        if (seen[m->from[i]]++) return false;
    return true;
}

/* Writing 1, 2, 3, ... through the view changes just what the model says. */
static void write_through(km_ctx *ctx, km_tensor *base, km_tensor *t, const model *m) {
    static float want[LARGEST], got[LARGEST];
    int64_t n = km_tensor_count(base);
    for (int64_t i = 0; i < n; i++) want[i] = -7;
    for (int64_t i = 0; i < m->n; i++) want[m->from[i]] = (float)(i + 1);
    km_assign(ctx, base, km_full(ctx, KM_F32, KM_SCALAR, -7));
    km_tensor *values = km_arange(ctx, KM_F32, m->n, 1, 1);
    if (roll(2))
        km_assign(ctx, t, km_reshape(ctx, values, m->shape));
    else
        km_write(ctx, t, km_tensor_data(values), (size_t)m->n * sizeof(float));
    km_read(ctx, base, got, (size_t)n * sizeof(float));
    assert_memory_equal(got, want, (size_t)n * sizeof(float));
}

static km_shape any_shape(void) {
    km_shape s = {roll(KM_MAX_DIMS + 1), {0}};
    for (int i = 0; i < s.ndim; i++) s.dim[i] = roll(12) ? 1 + roll(5) : 0;
    return s;
}

static void random_chains_show_what_the_model_says(void **state) {
    static const km_dtype dtypes[] = {KM_F32, KM_F32, KM_I32, KM_F16, KM_U8, KM_I64};
    km_ctx *ctx = *state;
    static model m;
    int writes = 0, empty = 0, copies = 0;
    dice = 42;
    for (int chain = 0; chain < CHAINS; chain++) {
        km_dtype dtype = dtypes[roll(6)];
        m.shape = any_shape();
        m.n = km_shape_count(m.shape);
        if (m.n > LARGEST) continue;
        for (int i = 0; i < m.n; i++) m.from[i] = i;
        km_tensor *base = source(ctx, dtype, m.shape), *t = base;
        int length = 1 + roll(6);
        for (int i = 0; i < length; i++) {
            km_tensor *next = kinds[roll(sizeof kinds / sizeof kinds[0])](ctx, t, &m);
            assert_ok(ctx);
            if (next) t = next;
        }
        compare(ctx, t, &m, dtype);
        empty += m.n == 0;
        copies += t->storage != base->storage;
        if (dtype == KM_F32 && t->storage == base->storage && is_injective(&m)) {
            write_through(ctx, base, t, &m);
            writes++;
        }
        assert_ok(ctx);
        km_step_end(ctx);
    }
    assert_true(writes > CHAINS / 20); /* the dice have tried it all */
    assert_true(empty > CHAINS / 20);
    assert_true(copies > CHAINS / 50);
}

/* Through views, the gradient of sum(w * view) is w, added up where the model says. */
static void gradients_go_back_to_where_the_model_says(void **state) {
    km_ctx *ctx = *state;
    static model m;
    static float want[LARGEST], got[LARGEST];
    dice = 77;
    for (int chain = 0; chain < CHAINS / 5; chain++) {
        m.shape = any_shape();
        m.n = km_shape_count(m.shape);
        if (m.n > LARGEST) continue;
        for (int i = 0; i < m.n; i++) m.from[i] = i;
        int64_t n = m.n;
        km_tensor *p = engine_parameter(ctx, source(ctx, KM_F32, m.shape)), *t = p;
        for (int i = 0; i < 4; i++) {
            km_tensor *next = kinds[roll(sizeof kinds / sizeof kinds[0])](ctx, t, &m);
            if (next) t = next;
        }
        km_tensor *w = km_reshape(ctx, km_arange(ctx, KM_F32, m.n, 1, 1), m.shape);
        km_tensor *loss = km_sum(ctx, km_mul(ctx, t, w), NULL, 0, false);
        assert_int_equal(km_backward(ctx, loss), KM_OK);
        memset(want, 0, sizeof want);
        for (int64_t i = 0; i < m.n; i++) want[m.from[i]] += (float)(i + 1);
        assert_int_equal(km_read(ctx, km_grad(p), got, (size_t)n * sizeof(float)), KM_OK);
        for (int64_t i = 0; i < n; i++) assert_true(engine_close_to(got[i], want[i], 1e-6));
        km_release(p);
        km_step_end(ctx);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_EACH(random_chains_show_what_the_model_says),
        ON_EACH(gradients_go_back_to_where_the_model_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

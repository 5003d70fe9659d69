/* The list of trial calls, family by family. Sizes are small and odd on purpose: fast kernels break
 * at the edges of their blocks. */
#include "ops/cases.h"
#include "backend/control.h"

#define HALVES (KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16))
#define SMALL_INTS (KM_BIT(KM_I32) | KM_BIT(KM_I64) | KM_BIT(KM_U8) | KM_BIT(KM_I8))

typedef struct sink {
    km_case_fn fn;
    void *user;
    bool go;
} sink;

static void put(sink *s, const km_case *c) {
    if (s->go) s->go = s->fn(s->user, c);
}

static km_case_in in(km_shape shape, km_values values, km_case_layout layout) {
    return (km_case_in){.shape = shape, .values = values, .layout = layout, .dtype = -1};
}

static km_case_in typed(km_shape shape, km_values values, km_dtype dtype, int64_t limit) {
    return (km_case_in){.shape = shape, .values = values, .dtype = (int)dtype, .limit = limit};
}

static const km_case_in absent = {.absent = true, .dtype = -1};

/* ---- Fills, copies, casts ---- */

static void fills(sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 2, 5, 31, 1023, 65537};
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        if (d == KM_F64 || !((km_op_get(op)->dtypes >> d) & 1u)) continue;
        for (int i = 0; i < 7; i++) {
            km_case c = {.op = op,
                         .dtypes = KM_BIT(d),
                         .p = {.dtype = (km_dtype)d,
                               .shape = KM_SHAPE(sizes[i]),
                               .f = {d == KM_BOOL ? 1 : 3, 2},
                               .seed = 42,
                               .stream = 7}};
            /* Small integers and halves count exactly only so far. */
            if (op == KM_OP_ARANGE && sizes[i] > (d == KM_U8 || d == KM_I8 ? 31 : 1023) &&
                d != KM_F32 && d != KM_I32 && d != KM_I64)
                continue;
            if (op == KM_OP_UNIFORM) c.p.f[0] = -1.5;
            put(s, &c);
        }
    }
}

static void copies(sink *s, km_op op) {
    const km_case_in shapes[] = {in(KM_SCALAR, 0, 0),
                                 in(KM_SHAPE(0, 3), 0, 0),
                                 in(KM_SHAPE(7), 0, 0),
                                 in(KM_SHAPE(33, 65), 0, KM_L_TURNED),
                                 in(KM_SHAPE(5, 6), 0, KM_L_STEP),
                                 in(KM_SHAPE(2, 3, 4, 5, 3), 0, KM_L_TURNED),
                                 in(KM_SHAPE(6, 130), 0, KM_L_REPEAT),
                                 in(KM_SHAPE(100, 257), 0, KM_L_OFFSET),
                                 in(KM_SHAPE(2, 3, 5, 8), 0, KM_L_HEADS),
                                 in(KM_SHAPE(19), 0, KM_L_BACK),
                                 in(KM_SHAPE(40, 33), 0, KM_L_BACK)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        km_case c = {.op = op, .n_in = 1, .in = {shapes[i]}, .dtypes = KM_ANY & ~KM_BIT(KM_F64)};
        if (op == KM_OP_COPY) {
            put(s, &c);
            continue;
        }
        for (int to = 0; to < KM_PLAIN_COUNT; to++) {
            if (to == KM_F64) continue;
            c.p.dtype = (km_dtype)to;
            c.no_gradient = !km_dtype_is_float((km_dtype)to);
            put(s, &c);
        }
    }
    if (op == KM_OP_CAST)
        for (int to = 0; to < KM_PLAIN_COUNT; to++) {
            if (to == KM_F64) continue;
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {in(KM_SHAPE(300), KM_V_SPECIAL, 0)},
                         .dtypes = HALVES,
                         .no_gradient = true,
                         .p = {.dtype = (km_dtype)to}};
            put(s, &c);
        }
}

/* ---- Elementwise ---- */

static void unaries_of(sink *s, km_op op, km_values values, double exponent) {
    km_case c = {.op = op, .n_in = 1, .dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64)};
    if (op == KM_OP_CLAMP) c.p.f[0] = -0.5, c.p.f[1] = 0.75;
    if (op == KM_OP_ADD_SCALAR || op == KM_OP_MUL_SCALAR) c.p.f[0] = 3;
    if (op == KM_OP_POW_SCALAR) c.p.f[0] = exponent;
    const km_case_in shapes[] = {in(KM_SCALAR, values, 0),
                                 in(KM_SHAPE(0, 3), values, 0),
                                 in(KM_SHAPE(1), values, 0),
                                 in(KM_SHAPE(7), values, 0),
                                 in(KM_SHAPE(33, 65), values, KM_L_TURNED),
                                 in(KM_SHAPE(5, 6), values, KM_L_STEP),
                                 in(KM_SHAPE(4, 9), values, KM_L_REPEAT),
                                 in(KM_SHAPE(2, 3, 4, 2, 3), values, KM_L_TURNED),
                                 in(KM_SHAPE(3, 11), values, KM_L_OFFSET),
                                 in(KM_SHAPE(21, 37), values, KM_L_BACK),
                                 in(KM_SHAPE(100003), values, 0),
                                 in(KM_SHAPE(1203), KM_V_SPECIAL, 0)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        c.in[0] = shapes[i];
        c.no_gradient = shapes[i].values == KM_V_SPECIAL || km_shape_count(shapes[i].shape) > 3000;
        c.dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64);
        if (shapes[i].values == KM_V_SPECIAL) c.dtypes &= HALVES;
        put(s, &c);
    }
}

static void unaries(sink *s, km_op op, km_values values) { unaries_of(s, op, values, 0); }

/* Squares and first powers are computed in ways of their own. */
static void powers(sink *s, km_op op) {
    static const double exponents[] = {2, 1, 0, 0.5, -1.5, 3};
    for (int i = 0; i < 6; i++) unaries_of(s, op, KM_V_POSITIVE, exponents[i]);
}

/* Two operands whose shapes and layouts meet in every way the kernels tell apart. */
static void binaries(sink *s, km_op op, km_values va, km_values vb) {
    const struct {
        km_case_in a, b;
    } pairs[] = {{in(KM_SCALAR, va, 0), in(KM_SCALAR, vb, 0)},
                 {in(KM_SHAPE(17), va, 0), in(KM_SHAPE(17), vb, 0)},
                 {in(KM_SHAPE(5, 7), va, 0), in(KM_SHAPE(7), vb, 0)},
                 {in(KM_SHAPE(7), va, 0), in(KM_SHAPE(5, 7), vb, 0)},
                 {in(KM_SHAPE(5, 1), va, 0), in(KM_SHAPE(1, 7), vb, 0)},
                 {in(KM_SHAPE(3, 1, 4), va, 0), in(KM_SHAPE(2, 1), vb, 0)},
                 {in(KM_SHAPE(2, 3, 2, 2, 5), va, KM_L_TURNED), in(KM_SHAPE(2, 5), vb, 0)},
                 {in(KM_SHAPE(5, 6), va, KM_L_STEP), in(KM_SHAPE(5, 6), vb, KM_L_TURNED)},
                 {in(KM_SHAPE(6, 5), va, 0), in(KM_SCALAR, vb, 0)},
                 {in(KM_SCALAR, va, 0), in(KM_SHAPE(6, 5), vb, KM_L_OFFSET)},
                 {in(KM_SHAPE(0, 4), va, 0), in(KM_SHAPE(1, 4), vb, 0)},
                 {in(KM_SHAPE(3, 8), va, KM_L_REPEAT), in(KM_SHAPE(3, 8), vb, 0)},
                 {in(KM_SHAPE(5, 9), va, KM_L_BACK), in(KM_SHAPE(5, 9), vb, 0)},
                 {in(KM_SHAPE(5, 9), va, KM_L_TURNED), in(KM_SHAPE(9), vb, KM_L_BACK)},
                 {in(KM_SHAPE(50021), va, 0), in(KM_SHAPE(50021), vb, 0)},
                 {in(KM_SHAPE(129, 300), va, 0), in(KM_SHAPE(300), vb, 0)},
                 {in(KM_SHAPE(129, 300), va, 0), in(KM_SHAPE(129, 1), vb, 0)},
                 {in(KM_SHAPE(1203), KM_V_SPECIAL, 0), in(KM_SHAPE(1203), KM_V_SPECIAL, 0)}};
    /* These take a forward result, which has its own range. The others take any x, but an infinite
     * gradient times a slope that underflows is not worth agreeing on. */
    bool of_output = op == KM_OP_SQRT_GRAD || op == KM_OP_RSQRT_GRAD || op == KM_OP_TANH_GRAD ||
                     op == KM_OP_SIGMOID_GRAD;
    bool of_input = op == KM_OP_ABS_GRAD || op == KM_OP_SIN_GRAD || op == KM_OP_COS_GRAD ||
                    op == KM_OP_GELU_GRAD || op == KM_OP_GELU_ERF_GRAD || op == KM_OP_SILU_GRAD;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        km_case c = {.op = op,
                     .n_in = 2,
                     .in = {pairs[i].a, pairs[i].b},
                     .dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64)};
        if (op == KM_OP_CLAMP_GRAD) c.p.f[0] = -0.5, c.p.f[1] = 0.75;
        bool special = pairs[i].a.values == KM_V_SPECIAL;
        if (special) c.dtypes &= HALVES;
        if (special && of_output) c.in[1].values = vb;
        if (special && of_input) c.in[0].values = va;
        if (op == KM_OP_POW) c.dtypes &= ~SMALL_INTS;
        c.no_gradient = special || km_shape_count(pairs[i].a.shape) > 3000;
        put(s, &c);
    }
}

static void chooses(sink *s, km_op op) {
    const struct {
        km_shape cond, a, b;
    } shapes[] = {{KM_SCALAR, KM_SCALAR, KM_SCALAR},
                  {KM_SHAPE(19), KM_SHAPE(19), KM_SHAPE(19)},
                  {KM_SHAPE(5, 1), KM_SHAPE(7), KM_SHAPE(5, 7)},
                  {KM_SHAPE(4, 5), KM_SCALAR, KM_SHAPE(5)},
                  {KM_SHAPE(0, 2), KM_SHAPE(1, 2), KM_SCALAR},
                  {KM_SHAPE(70, 300), KM_SHAPE(70, 300), KM_SHAPE(300)}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        km_case c = {.op = op, .dtypes = KM_ANY & ~KM_BIT(KM_F64)};
        c.no_gradient = i == 5;
        if (op == KM_OP_WHERE) {
            c.n_in = 3;
            c.in[0] = typed(shapes[i].cond, KM_V_BOOL, KM_BOOL, 0);
            c.in[1] = in(shapes[i].a, 0, 0);
            c.in[2] = in(shapes[i].b, 0, 0);
        } else {
            c.n_in = 2;
            c.in[0] = in(shapes[i].a, 0, 0);
            c.in[1] = typed(shapes[i].cond, KM_V_BOOL, KM_BOOL, 0);
            c.p.f[0] = 5;
        }
        put(s, &c);
    }
}

static void triangles(sink *s, km_op op) {
    const km_case_in shapes[] = {in(KM_SHAPE(1, 1), 0, 0),           in(KM_SHAPE(5, 7), 0, 0),
                                 in(KM_SHAPE(7, 5), 0, KM_L_TURNED), in(KM_SHAPE(2, 3, 4, 4), 0, 0),
                                 in(KM_SHAPE(0, 4), 0, 0),           in(KM_SHAPE(65, 130), 0, 0)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int diagonal = -2; diagonal <= 2; diagonal += 2) {
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {shapes[i]},
                         .p = {.n = {diagonal}},
                         .dtypes = KM_ANY & ~KM_BIT(KM_F64),
                         .no_gradient = i == 5};
            put(s, &c);
        }
}

static void dropouts(sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 3, 17, 1024, 33333};
    for (int i = 0; i < 6; i++) {
        km_case c = {.op = op,
                     .n_in = 1,
                     .in = {in(KM_SHAPE(sizes[i]), 0, 0)},
                     .p = {.f = {0.25}, .seed = 5, .stream = 3},
                     .dtypes = HALVES,
                     .no_gradient = sizes[i] > 100};
        put(s, &c);
    }
}

/* ---- Reductions ---- */

static void reductions(sink *s, km_op op) {
    const struct {
        km_case_in x;
        uint32_t axes;
    } list[] = {{in(KM_SCALAR, 0, 0), 0},
                {in(KM_SHAPE(1), 0, 0), 1},
                {in(KM_SHAPE(13), 0, 0), 1},
                {in(KM_SHAPE(5, 7), 0, 0), 1},
                {in(KM_SHAPE(5, 7), 0, 0), 2},
                {in(KM_SHAPE(5, 7), 0, 0), 3},
                {in(KM_SHAPE(33, 65), 0, KM_L_TURNED), 1},
                {in(KM_SHAPE(33, 65), 0, KM_L_TURNED), 2},
                {in(KM_SHAPE(4, 3, 5), 0, 0), 2},
                {in(KM_SHAPE(4, 3, 5), 0, 0), 5},
                {in(KM_SHAPE(2, 3, 4, 3, 2), 0, 0), 21},
                {in(KM_SHAPE(2, 3, 4, 3, 2), 0, KM_L_TURNED), 10},
                {in(KM_SHAPE(6, 5), 0, KM_L_STEP), 1},
                {in(KM_SHAPE(5, 6), 0, KM_L_REPEAT), 3},
                {in(KM_SHAPE(3, 0), 0, 0), 1},
                {in(KM_SHAPE(0, 3), 0, 0), 2},
                {in(KM_SHAPE(300, 257), 0, 0), 1},
                {in(KM_SHAPE(300, 257), 0, 0), 2},
                {in(KM_SHAPE(100003), 0, 0), 1},
                {in(KM_SHAPE(3, 40001), KM_V_OFFSET, 0), 2},
                {in(KM_SHAPE(40001, 3), KM_V_OFFSET, 0), 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        uint32_t axes = list[i].axes;
        if (op == KM_OP_ARGMAX && (axes == 0 || (axes & (axes - 1)))) continue; /* one axis */
        for (int keep = 0; keep < 2; keep++) {
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {list[i].x},
                         .p = {.axes = axes, .keepdim = keep == 1},
                         .dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64)};
            if (op == KM_OP_VAR) c.p.n[0] = keep;
            int64_t count = km_shape_count(list[i].x.shape);
            /* n - correction = 0 gives NaN or infinity: right, but nothing to differentiate. */
            c.no_gradient = count > 3000 || (op == KM_OP_VAR && count <= 1);
            if (op == KM_OP_VAR && count <= 1 && keep) continue;
            if (list[i].x.values == KM_V_OFFSET) c.dtypes &= KM_BIT(KM_F32);
            put(s, &c);
            if (count > 3000) break;
        }
    }
    if (op == KM_OP_MAX || op == KM_OP_ARGMAX || op == KM_OP_LOGSUMEXP) {
        km_case c = {.op = op,
                     .n_in = 1,
                     .in = {in(KM_SHAPE(40, 37), KM_V_SPECIAL, 0)},
                     .p = {.axes = 2},
                     .dtypes = HALVES,
                     .no_gradient = true};
        put(s, &c);
        c.in[0].values = KM_V_LOW;
        put(s, &c);
    }
}

/* ---- Products ---- */

static void matmuls(sink *s, km_op op) {
    static const struct {
        int64_t m, k, n;
    } sizes[] = {{1, 1, 1},      {1, 5, 1},     {1, 33, 17},     {17, 33, 1},
                 {2, 3, 4},      {5, 1, 7},     {15, 16, 17},    {33, 31, 65},
                 {64, 64, 64},   {129, 65, 33}, {0, 4, 3},       {3, 0, 4},
                 {200, 301, 97}, {1, 700, 300}, {1, 1001, 1032}, {128, 256, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int turn = 0; turn < 4; turn++) {
            int64_t m = sizes[i].m, k = sizes[i].k, n = sizes[i].n;
            km_case c = {.op = op,
                         .n_in = 2,
                         .p = {.f = {1, 0}},
                         .dtypes = HALVES,
                         .no_gradient = m * k * n > 1500};
            c.in[0] = in(KM_SHAPE(m, k), 0, turn & 1 ? KM_L_TURNED : KM_L_PLAIN);
            c.in[1] = in(KM_SHAPE(k, n), 0, turn & 2 ? KM_L_TURNED : KM_L_PLAIN);
            put(s, &c);
        }
    const struct {
        km_case_in a, b;
    } batched[] = {{in(KM_SHAPE(3, 4, 5), 0, 0), in(KM_SHAPE(3, 5, 2), 0, 0)},
                   {in(KM_SHAPE(3, 4, 5), 0, 0), in(KM_SHAPE(1, 5, 2), 0, 0)},
                   {in(KM_SHAPE(2, 1, 4, 5), 0, 0), in(KM_SHAPE(1, 3, 5, 2), 0, KM_L_TURNED)},
                   {in(KM_SHAPE(2, 3, 2, 4, 3), 0, KM_L_TURNED), in(KM_SHAPE(2, 3, 2, 3, 4), 0, 0)},
                   {in(KM_SHAPE(4, 6), 0, KM_L_STEP), in(KM_SHAPE(6, 3), 0, KM_L_OFFSET)},
                   {in(KM_SHAPE(2, 3, 5, 8), 0, KM_L_HEADS), in(KM_SHAPE(2, 3, 8, 4), 0, 0)},
                   {in(KM_SHAPE(0, 4, 5), 0, 0), in(KM_SHAPE(1, 5, 2), 0, 0)},
                   {in(KM_SHAPE(8, 65, 33), 0, 0), in(KM_SHAPE(8, 33, 67), 0, KM_L_TURNED)}};
    for (size_t i = 0; i < sizeof batched / sizeof *batched; i++) {
        km_case c = {.op = op,
                     .n_in = 2,
                     .in = {batched[i].a, batched[i].b},
                     .p = {.f = {1, 0}},
                     .dtypes = HALVES,
                     .no_gradient = i == 7};
        put(s, &c);
    }
}

static void linears(sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{1, 1, 1}, {3, 5, 4}, {0, 5, 4}, {7, 33, 65}, {65, 130, 31}, {1, 600, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int act = KM_ACT_NONE; act <= KM_ACT_SILU; act++) {
            int64_t r = sizes[i].rows, n = sizes[i].in, m = sizes[i].out;
            km_case c = {.op = op,
                         .n_in = 3,
                         .p = {.act = (km_act)act},
                         .dtypes = HALVES,
                         .no_gradient = i > 2};
            c.in[0] = in(KM_SHAPE(r, n), 0, 0);
            c.in[1] = in(KM_SHAPE(m, n), 0, act & 1 ? KM_L_TURNED : KM_L_PLAIN);
            c.in[2] = act == KM_ACT_GELU ? absent : in(KM_SHAPE(m), 0, 0);
            put(s, &c);
        }
}

static void linear_gradients(sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{1, 1, 1}, {3, 5, 4}, {0, 5, 4}, {7, 33, 65}, {65, 136, 32}, {257, 64, 128}};
    static const km_act acts[] = {KM_ACT_NONE, KM_ACT_GELU, KM_ACT_GELU_ERF, KM_ACT_SILU};
    bool dx = op == KM_OP_LINEAR_DX;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int act = 0; act < (dx ? 4 : 1); act++)
            for (int sums = 0; sums < 2; sums++) {
                int64_t r = sizes[i].rows, n = sizes[i].in, m = sizes[i].out;
                km_case c = {.op = op,
                             .n_in = dx ? 3 : 2,
                             .dtypes = HALVES,
                             .p = {.act = acts[act], .n = {sums}}};
                c.in[0] = in(KM_SHAPE(r, m), 0, 0);
                c.in[1] = dx ? in(KM_SHAPE(m, n), 0, 0) : in(KM_SHAPE(r, n), 0, 0);
                c.in[2] = acts[act] == KM_ACT_NONE ? absent : in(KM_SHAPE(r, n), 0, 0);
                put(s, &c);
            }
}

/* ---- Weights of a few bits ---- */

static void quants(sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{1, 256, 3}, {2, 512, 65}, {7, 768, 33}, {33, 256, 70},
                 {0, 256, 4}, {3, 96, 5},   {1, 32, 7}};
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int64_t r = sizes[i].rows, n = sizes[i].in, m = sizes[i].out;
            if (n % km_dtype_block((km_dtype)d)) continue;
            km_case c = {.op = op, .dtypes = KM_BIT(KM_F32), .no_gradient = true};
            if (op == KM_OP_QUANT_LINEAR) {
                c.n_in = 3;
                c.dtypes = HALVES & ~KM_BIT(KM_F64);
                c.p.act = (km_act)(i % 5);
                c.in[0] = in(KM_SHAPE(r, n), 0, 0);
                c.in[1] = typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[2] = i % 2 ? absent : in(KM_SHAPE(m), 0, 0);
            } else if (op == KM_OP_QUANT_EMBEDDING) {
                c.n_in = 2;
                c.p.dtype = i % 2 ? KM_F32 : KM_BF16;
                c.in[0] = typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[1] = typed(KM_SHAPE(r), KM_V_INDEX, i % 2 ? KM_I32 : KM_I64, m);
            } else if (op == KM_OP_DEQUANTISE) {
                c.n_in = 1;
                c.p.dtype = i == 1 ? KM_F16 : i == 2 ? KM_BF16 : KM_F32;
                c.in[0] = typed(KM_SHAPE(r, n), KM_V_NORMAL, (km_dtype)d, 0);
            } else {
                c.n_in = 1;
                c.p.dtype = (km_dtype)d;
                c.in[0] = in(KM_SHAPE(r, n), 0, 0);
            }
            put(s, &c);
        }
}

/* Layers of which one may have weights of another kind than the others. */
static void layers_at_once(sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out[3];
    } sizes[] = {{1, 256, {3, 65, 2}},
                 {5, 512, {66, 1, 33}},
                 {17, 768, {32, 70, 16}},
                 {40, 256, {7, 0, 97}},
                 {2, 96, {5, 3, 9}}};
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        if (!(KM_BLOCKS >> d & 1) && !(HALVES >> d & 1)) continue;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            km_case c = {.op = op, .dtypes = HALVES, .no_gradient = true};
            int64_t n = sizes[i].in;
            if (n % km_dtype_block((km_dtype)d)) continue;
            c.in[0] = in(KM_SHAPE(sizes[i].rows, n), 0, 0);
            if (op == KM_OP_LINEARS) {
                int layers = 1 + (int)(((size_t)d + i) % 3);
                c.n_in = 1 + 2 * layers;
                c.p.n[0] = layers;
                for (int l = 0; l < layers; l++) {
                    int64_t m = sizes[i].out[l];
                    km_dtype other = l != 2 ? (km_dtype)d : n % 256 ? KM_Q8_0 : KM_Q6_K;
                    c.in[1 + 2 * l] = typed(KM_SHAPE(m, n), KM_V_NORMAL, other, 0);
                    c.in[2 + 2 * l] = (i + (size_t)l) % 2 ? absent : in(KM_SHAPE(m), 0, 0);
                }
            } else {
                bool joined = i == 1;
                int64_t m = sizes[i].out[0];
                c.n_in = joined ? 2 : 3;
                c.p.act = i % 2 ? KM_ACT_SILU : KM_ACT_GELU;
                c.in[1] = typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[2] = typed(KM_SHAPE(m, n), KM_V_NORMAL, i == 3 ? KM_Q8_0 : (km_dtype)d, 0);
            }
            put(s, &c);
        }
    }
}

/* ---- Rows ---- */

static void softmaxes(sink *s, km_op op, int n_in) {
    const struct {
        km_shape x;
        int axis;
    } list[] = {{KM_SHAPE(1), 0},        {KM_SHAPE(17), 0},        {KM_SHAPE(5, 7), 1},
                {KM_SHAPE(5, 7), 0},     {KM_SHAPE(2, 3, 4), 1},   {KM_SHAPE(0, 4), 1},
                {KM_SHAPE(4, 0), 1},     {KM_SHAPE(33, 257), 1},   {KM_SHAPE(257, 33), 0},
                {KM_SHAPE(5, 1024), 1},  {KM_SHAPE(3, 20011), 1},  {KM_SHAPE(9, 4097), 1},
                {KM_SHAPE(3, 50304), 1}, {KM_SHAPE(300, 16400), 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        km_case c = {.op = op,
                     .n_in = n_in,
                     .p = {.axis = list[i].axis},
                     .dtypes = HALVES,
                     .no_gradient = i > 6};
        /* Wide rows, several to each group of threads that takes them: forward, in f32. */
        if (i == 13 && n_in == 2) continue;
        if (i == 13) c.dtypes = KM_BIT(KM_F32);
        c.in[0] = in(list[i].x, 0, 0);
        c.in[1] = in(list[i].x, op == KM_OP_SOFTMAX_GRAD ? KM_V_UNIT : KM_V_NORMAL, 0);
        put(s, &c);
        if (n_in == 1 && i == 7) {
            c.no_gradient = true;
            c.in[0].values = KM_V_LOW;
            put(s, &c);
            c.in[0].values = KM_V_OFFSET;
            c.dtypes = KM_BIT(KM_F32);
            put(s, &c);
        }
    }
}

static void derive_norm_stats(km_ctx *ctx, const km_case *c, km_tensor **t) {
    bool layer = c->op == KM_OP_LAYER_NORM_GRAD;
    km_tensor *out[KM_MAX_OUTPUTS];
    km_tensor *args[] = {t[1], t[2], NULL};
    km_apply(ctx, layer ? KM_OP_LAYER_NORM : KM_OP_RMS_NORM, args, layer ? 3 : 2, &c->p, out);
    t[3] = out[1];
    if (layer) t[4] = out[2];
}

static void norms(sink *s, km_op op) {
    static const struct {
        int64_t rows, n;
        km_values v;
    } sizes[] = {{1, 1, KM_V_NORMAL},      {3, 7, KM_V_NORMAL},     {5, 16, KM_V_NORMAL},
                 {0, 8, KM_V_NORMAL},      {33, 257, KM_V_NORMAL},  {7, 1024, KM_V_OFFSET},
                 {130, 768, KM_V_NORMAL},  {3, 20011, KM_V_NORMAL}, {5, 50304, KM_V_NORMAL},
                 {150, 16400, KM_V_OFFSET}};
    bool plain = op == KM_OP_LAYER_NORM || op == KM_OP_RMS_NORM;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int option = 0; option < 2; option++) {
            km_shape x = KM_SHAPE(sizes[i].rows, sizes[i].n), w = KM_SHAPE(sizes[i].n);
            km_case_in xi = in(x, sizes[i].v, 0), wi = in(w, 0, 0), stat = in(w, KM_V_DERIVED, 0);
            if (i > 7 && !plain) continue;
            km_case_in bias = option ? absent : wi, dsum = option ? absent : in(x, 0, 0);
            km_case c = {.op = op, .p = {.f = {1e-5}}, .dtypes = HALVES, .no_gradient = i > 3};
            /* One element a row has no spread: its gradient is all rounding. */
            if (sizes[i].n == 1) c.no_gradient = true;
            if (sizes[i].v == KM_V_OFFSET) c.dtypes = KM_BIT(KM_F32);
            if (op == KM_OP_LAYER_NORM)
                c.n_in = 3, c.in[0] = xi, c.in[1] = wi, c.in[2] = bias;
            else if (op == KM_OP_RMS_NORM)
                c.n_in = 2, c.in[0] = xi, c.in[1] = wi;
            else if (op == KM_OP_ADD_LAYER_NORM)
                c.n_in = 4, c.in[0] = xi, c.in[1] = in(x, 0, 0), c.in[2] = wi, c.in[3] = bias;
            else if (op == KM_OP_ADD_RMS_NORM)
                c.n_in = 3, c.in[0] = xi, c.in[1] = in(x, 0, 0), c.in[2] = wi;
            else if (op == KM_OP_LAYER_NORM_GRAD)
                c.n_in = 6, c.in[0] = in(x, 0, 0), c.in[1] = xi, c.in[2] = wi, c.in[3] = stat,
                c.in[4] = stat, c.in[5] = dsum, c.derive = derive_norm_stats;
            else
                c.n_in = 5, c.in[0] = in(x, 0, 0), c.in[1] = xi, c.in[2] = wi, c.in[3] = stat,
                c.in[4] = dsum, c.derive = derive_norm_stats;
            put(s, &c);
        }
}

/* ---- Indexing ---- */

static void embeddings(sink *s, km_op op) {
    static const struct {
        int64_t v, c, n;
    } sizes[] = {{1, 1, 1},     {7, 5, 3},       {4, 3, 20},     {5, 4, 0},
                 {65, 33, 130}, {300, 129, 700}, {40, 64, 3000}, {70000, 8, 100}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int wide = 0; wide < 2; wide++) {
            int64_t v = sizes[i].v, w = sizes[i].c, n = sizes[i].n;
            km_case c = {.op = op, .n_in = 2, .dtypes = HALVES, .no_gradient = i > 3};
            bool back = op == KM_OP_EMBEDDING_GRAD;
            c.in[0] = in(back ? KM_SHAPE(2, n, w) : KM_SHAPE(v, w), 0, 0);
            c.in[1] = typed(KM_SHAPE(2, n), KM_V_INDEX, wide ? KM_I64 : KM_I32, v);
            if (back) c.p.n[0] = v;
            put(s, &c);
        }
}

static void gathers(sink *s, km_op op) {
    const struct {
        km_shape x, index;
        int axis;
    } list[] = {{KM_SHAPE(5), KM_SHAPE(9), 0},
                {KM_SHAPE(4, 6), KM_SHAPE(4, 3), 1},
                {KM_SHAPE(4, 6), KM_SHAPE(7, 6), 0},
                {KM_SHAPE(4, 6), KM_SHAPE(2, 9), 1},
                {KM_SHAPE(3, 4, 5), KM_SHAPE(3, 6, 5), 1},
                {KM_SHAPE(4, 6), KM_SHAPE(4, 0), 1},
                {KM_SHAPE(65, 130), KM_SHAPE(65, 300), 1},
                {KM_SHAPE(5, 6, 7), KM_SHAPE(3, 8, 4), 1},
                {KM_SHAPE(5, 6, 7), KM_SHAPE(9, 2, 7), 0},
                {KM_SHAPE(9000), KM_SHAPE(7000), 0}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        int64_t limit = list[i].x.dim[list[i].axis];
        km_case c = {.op = op,
                     .p = {.axis = list[i].axis},
                     .no_gradient = i == 6 || i == 9,
                     .dtypes = (KM_FLOATS & ~KM_BIT(KM_F64)) | SMALL_INTS};
        km_dtype wide = i & 1 ? KM_I32 : KM_I64;
        c.in[0] = in(list[i].x, 0, i == 1 ? KM_L_TURNED : KM_L_PLAIN);
        if (op == KM_OP_INDEX_SELECT) {
            c.n_in = 2;
            c.in[1] = typed(KM_SHAPE(list[i].index.dim[list[i].axis]), KM_V_INDEX, wide, limit);
        } else {
            c.n_in = op == KM_OP_GATHER ? 2 : 3;
            c.in[1] = typed(list[i].index, KM_V_INDEX, wide, limit);
            c.in[2] = in(list[i].index, 0, 0);
        }
        if (op != KM_OP_SCATTER_ADD) c.dtypes |= KM_BIT(KM_BOOL);
        put(s, &c);
    }
}

/* Room for all that could be picked (zeros fill the rest), and for fewer than are. */
static void masks(sink *s, km_op op) {
    static const km_shape shapes[] = {{0, {0}},       {1, {0}},        {1, {1}},
                                      {1, {9}},       {2, {5, 7}},     {3, {4, 0, 3}},
                                      {3, {2, 3, 4}}, {2, {33, 1000}}, {1, {70001}}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int less = 0; less < 2; less++) {
            int64_t n = km_shape_count(shapes[i]), room = less ? n / 4 : n;
            km_case c = {.op = op,
                         .n_in = 2,
                         .p = {.n = {room}},
                         .no_gradient = n > 3000,
                         .dtypes = KM_ANY & ~KM_BIT(KM_F64)};
            km_case_layout layout = i == 4 ? KM_L_TURNED : i == 6 ? KM_L_BACK : KM_L_PLAIN;
            c.in[0] = in(shapes[i], op == KM_OP_NONZERO ? KM_V_BOOL : KM_V_NORMAL, layout);
            c.in[1] = typed(shapes[i], KM_V_BOOL, KM_BOOL, 0);
            c.in[2] = in(KM_SHAPE(room), 0, 0);
            if (op == KM_OP_NONZERO) c.n_in = 1;
            if (op == KM_OP_MASKED_SCATTER) { /* the rule counts on a src that is long enough */
                c.n_in = 3;
                c.no_gradient |= less;
            }
            put(s, &c);
        }
}

/* Lines of every length that a kernel treats in a way of its own; equals and NaN among them. */
static void orders(sink *s, km_op op) {
    const struct {
        km_shape x;
        int axis;
        int64_t k;
        km_values values;
    } list[] = {{KM_SHAPE(1), 0, 1, 0},
                {KM_SHAPE(17), 0, 17, 0},
                {KM_SHAPE(5, 7), 1, 3, 0},
                {KM_SHAPE(5, 7), 0, 5, 0},
                {KM_SHAPE(2, 3, 4), 1, 2, 0},
                {KM_SHAPE(0, 4), 1, 4, 0},
                {KM_SHAPE(4, 0), 1, 0, 0},
                {KM_SHAPE(3, 1000), 1, 1000, 0},
                {KM_SHAPE(3, 1000), 1, 40, KM_V_SPECIAL},
                {KM_SHAPE(2, 5000), 1, 900, KM_V_SPECIAL},
                {KM_SHAPE(300, 9), 0, 300, KM_V_LOW}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int flip = 0; flip < 2; flip++) {
            km_case c = {.op = op,
                         .n_in = 1,
                         .p = {.axis = list[i].axis, .n = {list[i].k, flip}},
                         .dtypes = (KM_FLOATS & ~KM_BIT(KM_F64)) | SMALL_INTS,
                         .no_gradient = i > 6};
            km_values values = list[i].values;
            if (op == KM_OP_CUMSUM) { /* nothing to agree on once a sum is NaN or infinite */
                c.p.n[0] = flip;
                c.p.n[1] = 0;
                values = KM_V_NORMAL;
            } else {
                c.dtypes |= KM_BIT(KM_BOOL);
            }
            if (values) c.dtypes &= HALVES;
            c.in[0] = in(list[i].x, values, i == 2 ? KM_L_TURNED : KM_L_PLAIN);
            put(s, &c);
        }
}

static void one_hots(sink *s, km_op op) {
    static const km_shape shapes[] = {{0, {0}}, {1, {0}}, {1, {7}}, {3, {2, 3, 4}}};
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < KM_PLAIN_COUNT; d++) {
            if (d == KM_F64) continue;
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {typed(shapes[i], KM_V_INDEX, d & 1 ? KM_I32 : KM_I64, 5)},
                         .p = {.n = {5}, .dtype = (km_dtype)d},
                         .dtypes = KM_BIT(KM_I32)};
            put(s, &c);
        }
}

static void concats(sink *s, km_op op) {
    const struct {
        km_case_in a, b, c;
        int axis;
    } list[] = {
        {in(KM_SHAPE(3), 0, 0), in(KM_SHAPE(1), 0, 0), in(KM_SHAPE(5), 0, 0), 0},
        {in(KM_SHAPE(2, 3), 0, 0), in(KM_SHAPE(2, 4), 0, KM_L_TURNED), in(KM_SHAPE(2, 1), 0, 0), 1},
        {in(KM_SHAPE(2, 3), 0, KM_L_STEP), in(KM_SHAPE(0, 3), 0, 0), in(KM_SHAPE(4, 3), 0, 0), 0},
        {in(KM_SHAPE(2, 3, 4), 0, 0), in(KM_SHAPE(2, 5, 4), 0, KM_L_REPEAT),
         in(KM_SHAPE(2, 1, 4), 0, 0), 1},
        {in(KM_SHAPE(64, 100), 0, 0), in(KM_SHAPE(64, 130), 0, 0), in(KM_SHAPE(64, 7), 0, 0), 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        km_case c = {.op = op,
                     .n_in = 3,
                     .in = {list[i].a, list[i].b, list[i].c},
                     .p = {.axis = list[i].axis},
                     .dtypes = KM_ANY & ~KM_BIT(KM_F64),
                     .no_gradient = i == 4};
        put(s, &c);
    }
}

/* ---- Transformers ---- */

static void ropes(sink *s, km_op op) {
    const struct {
        km_shape x;
        int64_t dims;
    } list[] = {{KM_SHAPE(3, 4), 4},          {KM_SHAPE(2, 3, 8), 8},
                {KM_SHAPE(2, 3, 8), 4},       {KM_SHAPE(2, 2, 5, 6), 6},
                {KM_SHAPE(0, 4), 4},          {KM_SHAPE(2, 3, 65, 64), 64},
                {KM_SHAPE(1, 4, 33, 80), 32}, {KM_SHAPE(2, 40, 16), 16},
                {KM_SHAPE(3, 9, 8), 4}}; /* the last two: divided */
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        for (int pairs = 0; pairs < 2; pairs++)
            for (int inverse = 0; inverse < 2; inverse++) {
                km_shape x = list[i].x;
                bool divided = i > 6; /* frequencies, by numbers of their own */
                km_case c = {.op = op,
                             .n_in = divided ? 3 : 2,
                             .dtypes = HALVES,
                             .no_gradient = i > 4,
                             .p = {.n = {list[i].dims, pairs, inverse}, .f = {10000}}};
                if (divided) c.in[2] = typed(KM_SHAPE(list[i].dims / 2), KM_V_POSITIVE, KM_F32, 0);
                c.in[0] = in(x, 0, x.ndim == 4 ? KM_L_HEADS : KM_L_PLAIN);
                c.in[1] = inverse ? absent
                                  : typed(KM_SHAPE(x.dim[x.ndim - 2]), KM_V_INDEX,
                                          pairs ? KM_I32 : KM_I64, 4000);
                put(s, &c);
            }
}

static void derive_attention(km_ctx *ctx, const km_case *c, km_tensor **t) {
    km_tensor *out[KM_MAX_OUTPUTS], *args[] = {t[1], t[2], t[3]};
    km_apply(ctx, KM_OP_ATTENTION, args, 3, &c->p, out);
    t[4] = out[0];
    t[5] = out[1];
}

static void attentions(sink *s, km_op op) {
    static const struct {
        int64_t b, h, hkv, tq, tk, d;
    } sizes[] = {{1, 1, 1, 1, 1, 1},       {1, 2, 2, 3, 3, 4},     {2, 4, 2, 3, 5, 4},
                 {1, 2, 1, 5, 3, 2},       {1, 2, 2, 0, 3, 4},     {1, 3, 3, 17, 17, 16},
                 {2, 4, 2, 65, 65, 64},    {1, 2, 1, 33, 130, 80}, {1, 2, 2, 70, 70, 96},
                 {1, 4, 1, 129, 129, 128}, {1, 2, 2, 1, 200, 64},  {1, 1, 1, 9, 40, 33}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) {
            int64_t b = sizes[i].b, h = sizes[i].h, g = sizes[i].hkv, d = sizes[i].d;
            km_case_layout l = form & 2 ? KM_L_HEADS : KM_L_PLAIN;
            km_case c = {.op = op, .n_in = 3, .dtypes = HALVES, .no_gradient = i > 4};
            c.p.causal = form & 1;
            c.p.f[0] = 0.125 + 0.5 / (double)d;
            km_case_in q = in(KM_SHAPE(b, h, sizes[i].tq, d), 0, l);
            km_case_in kv = in(KM_SHAPE(b, g, sizes[i].tk, d), 0, l);
            if (op == KM_OP_ATTENTION) {
                c.in[0] = q, c.in[1] = kv, c.in[2] = kv;
            } else {
                c.n_in = 6;
                c.in[0] = q, c.in[1] = q, c.in[2] = kv, c.in[3] = kv;
                c.in[4] = in(q.shape, KM_V_DERIVED, 0), c.in[5] = in(q.shape, KM_V_DERIVED, 0);
                c.derive = derive_attention;
            }
            put(s, &c);
        }
}

/* ---- Losses ---- */

static void derive_lse(km_ctx *ctx, const km_case *c, km_tensor **t) {
    km_tensor *out[KM_MAX_OUTPUTS], *args[] = {t[1], t[2]};
    km_apply(ctx, KM_OP_CROSS_ENTROPY, args, 2, &c->p, out);
    t[3] = out[1];
}

static void cross_entropies(sink *s, km_op op) {
    static const struct {
        int64_t rows, v;
    } sizes[] = {{1, 1},     {3, 5},     {7, 17},    {33, 257},
                 {65, 1000}, {5, 50257}, {5, 50304}, {140, 40960}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) {
            int64_t rows = sizes[i].rows, v = sizes[i].v;
            bool sum = form & 1, fused = form & 2;
            km_case c = {.op = op, .dtypes = HALVES, .no_gradient = i > 2};
            if (fused && op == KM_OP_CROSS_ENTROPY_GRAD) break;
            if (i == 7 && form != 2) continue;
            c.p.n[2] = fused;
            c.p.n[0] = sizes[i].rows > 2 ? 2 : -100; /* so that some rows are ignored */
            c.p.n[1] = sum ? KM_SUM : KM_MEAN;
            km_case_in x = in(KM_SHAPE(rows, v), 0, 0);
            km_case_in t = typed(KM_SHAPE(rows), KM_V_INDEX, sum ? KM_I32 : KM_I64, v);
            if (op == KM_OP_CROSS_ENTROPY) {
                c.n_in = 2, c.in[0] = x, c.in[1] = t;
            } else {
                c.n_in = 4;
                c.in[0] = typed(KM_SCALAR, KM_V_POSITIVE, KM_F32, 0);
                c.in[1] = x, c.in[2] = t, c.in[3] = in(KM_SHAPE(rows), KM_V_DERIVED, 0);
                c.derive = derive_lse;
            }
            put(s, &c);
        }
}

static void pair_losses(sink *s, km_op op) {
    const km_case_in shapes[] = {in(KM_SCALAR, 0, 0), in(KM_SHAPE(7), 0, 0),
                                 in(KM_SHAPE(5, 6), 0, KM_L_TURNED), in(KM_SHAPE(20011), 0, 0),
                                 in(KM_SHAPE(300, 70), 0, 0)};
    bool back = op == KM_OP_MSE_GRAD || op == KM_OP_BCE_GRAD;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int sum = 0; sum < 2; sum++) {
            km_case c = {.op = op, .n_in = back ? 3 : 2, .dtypes = HALVES, .no_gradient = i > 2};
            c.p.n[1] = sum ? KM_SUM : KM_MEAN;
            km_case_in *x = c.in;
            if (back) *x++ = typed(KM_SCALAR, KM_V_POSITIVE, KM_F32, 0);
            x[0] = shapes[i];
            x[1] = in(shapes[i].shape, KM_V_UNIT, 0);
            put(s, &c);
        }
}

/* ---- Optimisers ---- */

/* A control in the last place: for all tensors alike, for each its own, or one that says no. */
enum { CONTROL_PLAIN = 1, CONTROL_TENSORS, CONTROL_SKIP };

static void derive_control(km_ctx *ctx, const km_case *c, km_tensor **t) {
    float f[KM_CONTROL_TENSORS + 6] = {
        [KM_CONTROL_LR] = 0.01f,         [KM_CONTROL_SCALE1] = 1.7f,
        [KM_CONTROL_SCALE2] = 3.1f,      [KM_CONTROL_GRAD] = 0.125f,
        [KM_CONTROL_LOSS] = 8,           [KM_CONTROL_TENSORS + 4] = 0.5f,
        [KM_CONTROL_TENSORS + 5] = 0.25f};
    int at = c->n_in - 1;
    int64_t kind = c->in[at].limit;
    if (kind == CONTROL_SKIP) f[KM_CONTROL_SKIP] = 1, f[KM_CONTROL_GRAD] = 0;
    t[at] = km_to(ctx,
                  km_from_data(ctx, KM_F32,
                               KM_SHAPE(KM_CONTROL_TENSORS + (kind == CONTROL_TENSORS ? 6 : 0)), f),
                  "ref");
}

static void optimisers(sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 3, 31, 4097, 20011};
    for (int i = 0; i < 6; i++)
        for (int form = 0; form < 9; form++) {
            bool master = form >= 3 && form != 5, wide = form == 4 || form == 5;
            int control = form < 6 ? 0 : form - 5;
            km_case_in x = in(KM_SHAPE(sizes[i]), 0, 0);
            km_case_in g = wide ? typed(x.shape, KM_V_NORMAL, KM_F32, 0) : x;
            km_case_in m = typed(x.shape, KM_V_NORMAL, KM_F32, 0);
            km_case_in v = typed(x.shape, KM_V_POSITIVE, KM_F32, 0), w = master ? m : absent;
            km_case_in last = typed(KM_SHAPE(1), KM_V_DERIVED, KM_F32, control);
            km_case c = {.op = op, .dtypes = HALVES};
            if (op == KM_OP_SGD) {
                bool still = form == 2 || form == 4; /* without momentum */
                km_case_in list[] = {x, g, still ? absent : m, w, last};
                for (int k = 0; k < 5; k++) c.in[k] = list[k];
                c.n_in = form == 2 ? 2 : 4;
                c.p = (km_params){.f = {0.1, still ? 0 : 0.9, 0.01}, .n = {form % 3 == 1, 0, 2}};
            } else {
                km_case_in list[] = {x, g, m, v, w, last};
                for (int k = 0; k < 6; k++) c.in[k] = list[k];
                c.n_in = form < 3 ? 4 : 5;
                c.p = (km_params){.f = {1e-2, 0.9, 0.95, 1e-8, 0.1},
                                  .n = {1 + form * 50, form != 1, 2}};
            }
            if (control) {
                c.n_in++;
                c.derive = derive_control;
            }
            put(s, &c);
        }
}

static void sumsqs(sink *s, km_op op) {
    static const int64_t sizes[][4] = {
        {0, 1, 0, 7}, {3, 16384, 16383, 5}, {16385, 40000, 8, 64}, {0, 0, 0, 0}};
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < 3; form++) {
            km_case c = {.op = op, .n_in = form == 2 ? 1 : 4, .dtypes = HALVES};
            for (int k = 0; k < c.n_in; k++)
                c.in[k] = form == 1 && k % 2 ? typed(KM_SHAPE(sizes[i][k]), KM_V_NORMAL, KM_BF16, 0)
                                             : in(KM_SHAPE(sizes[i][k]), KM_V_NORMAL, 0);
            put(s, &c);
        }
}

/* What came before: in the middle of a run, or just before the loss scale doubles. */
static void derive_step(km_ctx *ctx, const km_case *c, km_tensor **t) {
    bool late = c->in[2].limit == 1;
    float f[KM_CONTROL_TENSORS + 4] = {
        [KM_CONTROL_STEPS] = late ? 99 : 0,  [KM_CONTROL_SKIPS] = late ? 2 : 0,
        [KM_CONTROL_LOSS] = late ? 1024 : 1, [KM_CONTROL_GOOD] = late ? 9 : 0,
        [KM_CONTROL_TENSORS + 1] = 0.1f,     [KM_CONTROL_TENSORS + 2] = 1};
    t[2] = km_to(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(KM_CONTROL_TENSORS + 4), f), "ref");
}

static void controls(sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 33, 5000};
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < 6; form++) {
            km_case c = {.op = op, .n_in = 3, .dtypes = KM_BIT(KM_F32), .derive = derive_step};
            bool bad = form >= 4; /* infinities and NaN among the sums */
            c.in[0] = in(KM_SHAPE(sizes[i]), bad && i ? KM_V_SPECIAL : KM_V_POSITIVE, 0);
            c.in[1] = in(KM_SHAPE(KM_KNOBS), KM_V_POSITIVE, 0);
            c.in[2] = typed(KM_SHAPE(1), KM_V_DERIVED, KM_F32, form & 1);
            c.p = (km_params){.f = {form & 2 ? 0.5 : 0, 0.9, 0.95}, .n = {form < 2 ? 0 : 10}};
            put(s, &c);
        }
}

/* Whole numbers make every distance exact, so that ties are ties on every device. */
static void nearests(sink *s, km_op op) {
    static const int64_t sizes[][3] = {
        {0, 3, 4},      {1, 1, 1},     {5, 1, 3},      {7, 19, 1},      {33, 5, 2},
        {130, 65, 16},  {97, 257, 33}, {256, 128, 64}, {300, 130, 200}, {65, 1000, 12},
        {40, 300, 784}, {9, 70, 1500}, {2000, 96, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 3; form++) {
            km_case c = {.op = op, .n_in = 2, .dtypes = HALVES, .no_gradient = true};
            km_values v = form == 2 ? KM_V_OFFSET : form == 1 ? KM_V_BOOL : KM_V_NORMAL;
            if (form == 2) c.dtypes = KM_BIT(KM_F32);
            c.in[0] = in(KM_SHAPE(sizes[i][0], sizes[i][2]), v, i % 3 == 2 ? KM_L_OFFSET : 0);
            c.in[1] = typed(KM_SHAPE(sizes[i][1], sizes[i][2]), v, KM_F32, 0);
            put(s, &c);
        }
}

static void cells(sink *s, km_op op) {
    static const int64_t sizes[][3] = {{0, 3, 4},     {1, 1, 1},      {5, 1, 3},     {7, 19, 1},
                                       {33, 5, 2},    {130, 65, 16},  {97, 257, 33}, {3000, 3, 64},
                                       {5000, 1, 20}, {40, 300, 784}, {2000, 96, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) {
            int64_t n = sizes[i][0], k = sizes[i][1];
            km_case c = {
                .op = op, .n_in = 4, .dtypes = HALVES, .no_gradient = true, .p = {.n = {k}}};
            c.in[0] = in(KM_SHAPE(n, sizes[i][2]), KM_V_NORMAL, 0);
            c.in[1] = typed(KM_SHAPE(n), KM_V_INDEX, KM_I32, k + (form == 3)); /* one beyond */
            c.in[2] = form & 1 ? typed(KM_SHAPE(n), KM_V_UNIT, KM_F32, 0) : absent;
            c.in[3] = form & 2 ? typed(KM_SHAPE(n), KM_V_POSITIVE, KM_F32, 0) : absent;
            put(s, &c);
        }
}

void km_cases_each(km_op op, km_case_fn fn, void *user) {
    sink s = {fn, user, true};
    switch (op) {
    case KM_OP_FULL:
    case KM_OP_ARANGE:
    case KM_OP_UNIFORM:
    case KM_OP_NORMAL: fills(&s, op); break;
    case KM_OP_COPY:
    case KM_OP_CAST: copies(&s, op); break;
    case KM_OP_ADD:
    case KM_OP_SUB:
    case KM_OP_MUL:
    case KM_OP_MAXIMUM:
    case KM_OP_MINIMUM:
    case KM_OP_EQ:
    case KM_OP_NE:
    case KM_OP_LT:
    case KM_OP_LE:
    case KM_OP_GT:
    case KM_OP_GE:
    case KM_OP_ABS_GRAD:
    case KM_OP_SIN_GRAD:
    case KM_OP_COS_GRAD:
    case KM_OP_RELU_GRAD:
    case KM_OP_GELU_GRAD:
    case KM_OP_GELU_ERF_GRAD:
    case KM_OP_SILU_GRAD:
    case KM_OP_CLAMP_GRAD: binaries(&s, op, KM_V_NORMAL, KM_V_NORMAL); break;
    case KM_OP_DIV: binaries(&s, op, KM_V_NORMAL, KM_V_NONZERO); break;
    case KM_OP_POW: binaries(&s, op, KM_V_POSITIVE, KM_V_NORMAL); break;
    case KM_OP_SQRT_GRAD:
    case KM_OP_RSQRT_GRAD: binaries(&s, op, KM_V_NORMAL, KM_V_POSITIVE); break;
    case KM_OP_TANH_GRAD:
    case KM_OP_SIGMOID_GRAD: binaries(&s, op, KM_V_NORMAL, KM_V_UNIT); break;
    case KM_OP_SQRT:
    case KM_OP_RSQRT:
    case KM_OP_LOG: unaries(&s, op, KM_V_POSITIVE); break;
    case KM_OP_NEG:
    case KM_OP_ABS:
    case KM_OP_EXP:
    case KM_OP_SIN:
    case KM_OP_COS:
    case KM_OP_TANH:
    case KM_OP_SIGMOID:
    case KM_OP_RELU:
    case KM_OP_GELU:
    case KM_OP_GELU_ERF:
    case KM_OP_SILU:
    case KM_OP_CLAMP:
    case KM_OP_ADD_SCALAR:
    case KM_OP_MUL_SCALAR: unaries(&s, op, KM_V_NORMAL); break;
    case KM_OP_POW_SCALAR: powers(&s, op); break;
    case KM_OP_WHERE:
    case KM_OP_MASKED_FILL: chooses(&s, op); break;
    case KM_OP_TRIU:
    case KM_OP_TRIL: triangles(&s, op); break;
    case KM_OP_DROPOUT: dropouts(&s, op); break;
    case KM_OP_SUM:
    case KM_OP_MEAN:
    case KM_OP_MAX:
    case KM_OP_VAR:
    case KM_OP_LOGSUMEXP:
    case KM_OP_SUMSQ:
    case KM_OP_ARGMAX: reductions(&s, op); break;
    case KM_OP_MATMUL: matmuls(&s, op); break;
    case KM_OP_LINEAR: linears(&s, op); break;
    case KM_OP_DEQUANTISE:
    case KM_OP_QUANTISE:
    case KM_OP_QUANT_LINEAR:
    case KM_OP_QUANT_EMBEDDING:
        quants(&s, op);
        if (s.go) km_cases_one_row(op, fn, user);
        break;
    case KM_OP_LINEARS:
    case KM_OP_GATED:
        layers_at_once(&s, op);
        if (s.go) km_cases_one_row(op, fn, user);
        break;
    case KM_OP_LINEAR_DX:
    case KM_OP_LINEAR_DW: linear_gradients(&s, op); break;
    case KM_OP_SOFTMAX:
    case KM_OP_LOG_SOFTMAX: softmaxes(&s, op, 1); break;
    case KM_OP_SOFTMAX_GRAD:
    case KM_OP_LOG_SOFTMAX_GRAD: softmaxes(&s, op, 2); break;
    case KM_OP_LAYER_NORM:
    case KM_OP_RMS_NORM:
    case KM_OP_ADD_LAYER_NORM:
    case KM_OP_ADD_RMS_NORM:
    case KM_OP_LAYER_NORM_GRAD:
    case KM_OP_RMS_NORM_GRAD: norms(&s, op); break;
    case KM_OP_EMBEDDING:
    case KM_OP_EMBEDDING_GRAD: embeddings(&s, op); break;
    case KM_OP_GATHER:
    case KM_OP_SCATTER_ADD:
    case KM_OP_SCATTER:
    case KM_OP_INDEX_SELECT: gathers(&s, op); break;
    case KM_OP_MASKED_SELECT:
    case KM_OP_MASKED_SCATTER:
    case KM_OP_NONZERO: masks(&s, op); break;
    case KM_OP_CONCAT: concats(&s, op); break;
    case KM_OP_SORT:
    case KM_OP_CUMSUM: orders(&s, op); break;
    case KM_OP_ONE_HOT: one_hots(&s, op); break;
    case KM_OP_ROPE: ropes(&s, op); break;
    case KM_OP_ATTENTION:
    case KM_OP_ATTENTION_GRAD: attentions(&s, op); break;
    case KM_OP_ATTEND: km_cases_attend(fn, user); break;
    case KM_OP_SAMPLE: km_cases_sample(fn, user); break;
    case KM_OP_NEAREST: nearests(&s, op); break;
    case KM_OP_CELL_SUMS: cells(&s, op); break;
    case KM_OP_SCAN_CODES: km_cases_scan_codes(fn, user); break;
    case KM_OP_ENCODE_LEVELS: km_cases_encode_levels(fn, user); break;
    case KM_OP_ENCODE_TRELLIS: km_cases_encode_trellis(fn, user); break;
    case KM_OP_CROSS_ENTROPY:
    case KM_OP_CROSS_ENTROPY_GRAD: cross_entropies(&s, op); break;
    case KM_OP_MSE:
    case KM_OP_BCE:
    case KM_OP_MSE_GRAD:
    case KM_OP_BCE_GRAD: pair_losses(&s, op); break;
    case KM_OP_SGD:
    case KM_OP_ADAMW: optimisers(&s, op); break;
    case KM_OP_SUMSQ_CHUNKS: sumsqs(&s, op); break;
    case KM_OP_OPTIM_CONTROL: controls(&s, op); break;
    case KM_OP_SLICE:
    case KM_OP_PERMUTE:
    case KM_OP_RESHAPE:
    case KM_OP_BROADCAST:
    case KM_OP_ATTENTION_QKV:
    case KM_OP_LINEAR_CROSS_ENTROPY:
    case KM_OP_MLP:
    case KM_OP_CUSTOM:
    case KM_OP_COUNT: break; /* views have no kernels; tests/ops checks them */
    }
}

/* Trial calls for fills, copies and elementwise ops. */
#include "ops/cases_put.h"

/* ---- Fills, copies, casts ---- */

void km_cases_fills(km_case_sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 2, 5, 31, 1023, 65537};
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        if (d == KM_F64 || !((km_op_get(op)->dtypes >> d) & 1u)) continue;
        for (int i = 0; i < 7; i++) {
            km_case c = {.op = op,
                         .dtypes = KM_BIT(d),
                         .p = {.dtype = (km_dtype)d,
                               .shape = KM_SHAPE(sizes[i]),
                               .f = {[KM_F_LO] = d == KM_BOOL ? 1 : 3, [KM_F_HI] = 2},
                               .seed = 42,
                               .stream = 7}};
            /* Small integers and halves count exactly only so far. */
            if (op == KM_OP_ARANGE && sizes[i] > (d == KM_U8 || d == KM_I8 ? 31 : 1023) &&
                d != KM_F32 && d != KM_I32 && d != KM_I64)
                continue;
            if (op == KM_OP_UNIFORM) c.p.f[KM_F_LO] = -1.5;
            km_case_put(s, &c);
        }
    }
}

void km_cases_copies(km_case_sink *s, km_op op) {
    const km_case_in shapes[] = {km_case_input(KM_SCALAR, 0, 0),
                                 km_case_input(KM_SHAPE(0, 3), 0, 0),
                                 km_case_input(KM_SHAPE(7), 0, 0),
                                 km_case_input(KM_SHAPE(33, 65), 0, KM_L_TURNED),
                                 km_case_input(KM_SHAPE(5, 6), 0, KM_L_STEP),
                                 km_case_input(KM_SHAPE(2, 3, 4, 5, 3), 0, KM_L_TURNED),
                                 km_case_input(KM_SHAPE(6, 130), 0, KM_L_REPEAT),
                                 km_case_input(KM_SHAPE(100, 257), 0, KM_L_OFFSET),
                                 km_case_input(KM_SHAPE(2, 3, 5, 8), 0, KM_L_HEADS),
                                 km_case_input(KM_SHAPE(19), 0, KM_L_BACK),
                                 km_case_input(KM_SHAPE(40, 33), 0, KM_L_BACK)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        km_case c = {.op = op, .n_in = 1, .in = {shapes[i]}, .dtypes = KM_ANY & ~KM_BIT(KM_F64)};
        if (op == KM_OP_COPY) {
            km_case_put(s, &c);
            continue;
        }
        for (int to = 0; to < KM_PLAIN_COUNT; to++) {
            if (to == KM_F64) continue;
            c.p.dtype = (km_dtype)to;
            c.no_gradient = !km_dtype_is_float((km_dtype)to);
            km_case_put(s, &c);
        }
    }
    if (op == KM_OP_CAST)
        for (int to = 0; to < KM_PLAIN_COUNT; to++) {
            if (to == KM_F64) continue;
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {km_case_input(KM_SHAPE(300), KM_V_SPECIAL, 0)},
                         .dtypes = KM_CASE_HALVES,
                         .no_gradient = true,
                         .p = {.dtype = (km_dtype)to}};
            km_case_put(s, &c);
        }
}

/* ---- Elementwise ---- */

static void unaries_of(km_case_sink *s, km_op op, km_values values, double exponent) {
    km_case c = {.op = op, .n_in = 1, .dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64)};
    if (op == KM_OP_CLAMP) c.p.f[KM_F_LO] = -0.5, c.p.f[KM_F_HI] = 0.75;
    if (op == KM_OP_ADD_SCALAR || op == KM_OP_MUL_SCALAR) c.p.f[KM_F_VALUE] = 3;
    if (op == KM_OP_POW_SCALAR) c.p.f[KM_F_VALUE] = exponent;
    const km_case_in shapes[] = {km_case_input(KM_SCALAR, values, 0),
                                 km_case_input(KM_SHAPE(0, 3), values, 0),
                                 km_case_input(KM_SHAPE(1), values, 0),
                                 km_case_input(KM_SHAPE(7), values, 0),
                                 km_case_input(KM_SHAPE(33, 65), values, KM_L_TURNED),
                                 km_case_input(KM_SHAPE(5, 6), values, KM_L_STEP),
                                 km_case_input(KM_SHAPE(4, 9), values, KM_L_REPEAT),
                                 km_case_input(KM_SHAPE(2, 3, 4, 2, 3), values, KM_L_TURNED),
                                 km_case_input(KM_SHAPE(3, 11), values, KM_L_OFFSET),
                                 km_case_input(KM_SHAPE(21, 37), values, KM_L_BACK),
                                 km_case_input(KM_SHAPE(100003), values, 0),
                                 km_case_input(KM_SHAPE(1203), KM_V_SPECIAL, 0)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        c.in[0] = shapes[i];
        c.no_gradient = shapes[i].values == KM_V_SPECIAL || km_shape_count(shapes[i].shape) > 3000;
        c.dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64);
        if (shapes[i].values == KM_V_SPECIAL) c.dtypes &= KM_CASE_HALVES;
        km_case_put(s, &c);
    }
}

void km_cases_unaries(km_case_sink *s, km_op op, km_values values) { unaries_of(s, op, values, 0); }

/* Squares and first powers are computed in ways of their own. */
void km_cases_powers(km_case_sink *s, km_op op) {
    static const double exponents[] = {2, 1, 0, 0.5, -1.5, 3};
    for (int i = 0; i < 6; i++) unaries_of(s, op, KM_V_POSITIVE, exponents[i]);
}

/* Two operands whose shapes and layouts meet in every way the kernels tell apart. */
void km_cases_binaries(km_case_sink *s, km_op op, km_values va, km_values vb) {
    const struct {
        km_case_in a, b;
    } pairs[] = {
        {km_case_input(KM_SCALAR, va, 0), km_case_input(KM_SCALAR, vb, 0)},
        {km_case_input(KM_SHAPE(17), va, 0), km_case_input(KM_SHAPE(17), vb, 0)},
        {km_case_input(KM_SHAPE(5, 7), va, 0), km_case_input(KM_SHAPE(7), vb, 0)},
        {km_case_input(KM_SHAPE(7), va, 0), km_case_input(KM_SHAPE(5, 7), vb, 0)},
        {km_case_input(KM_SHAPE(5, 1), va, 0), km_case_input(KM_SHAPE(1, 7), vb, 0)},
        {km_case_input(KM_SHAPE(3, 1, 4), va, 0), km_case_input(KM_SHAPE(2, 1), vb, 0)},
        {km_case_input(KM_SHAPE(2, 3, 2, 2, 5), va, KM_L_TURNED),
         km_case_input(KM_SHAPE(2, 5), vb, 0)},
        {km_case_input(KM_SHAPE(5, 6), va, KM_L_STEP),
         km_case_input(KM_SHAPE(5, 6), vb, KM_L_TURNED)},
        {km_case_input(KM_SHAPE(6, 5), va, 0), km_case_input(KM_SCALAR, vb, 0)},
        {km_case_input(KM_SCALAR, va, 0), km_case_input(KM_SHAPE(6, 5), vb, KM_L_OFFSET)},
        {km_case_input(KM_SHAPE(0, 4), va, 0), km_case_input(KM_SHAPE(1, 4), vb, 0)},
        {km_case_input(KM_SHAPE(3, 8), va, KM_L_REPEAT), km_case_input(KM_SHAPE(3, 8), vb, 0)},
        {km_case_input(KM_SHAPE(5, 9), va, KM_L_BACK), km_case_input(KM_SHAPE(5, 9), vb, 0)},
        {km_case_input(KM_SHAPE(5, 9), va, KM_L_TURNED), km_case_input(KM_SHAPE(9), vb, KM_L_BACK)},
        {km_case_input(KM_SHAPE(50021), va, 0), km_case_input(KM_SHAPE(50021), vb, 0)},
        {km_case_input(KM_SHAPE(129, 300), va, 0), km_case_input(KM_SHAPE(300), vb, 0)},
        {km_case_input(KM_SHAPE(129, 300), va, 0), km_case_input(KM_SHAPE(129, 1), vb, 0)},
        {km_case_input(KM_SHAPE(1203), KM_V_SPECIAL, 0),
         km_case_input(KM_SHAPE(1203), KM_V_SPECIAL, 0)}};
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
        if (op == KM_OP_CLAMP_GRAD) c.p.f[KM_F_LO] = -0.5, c.p.f[KM_F_HI] = 0.75;
        bool special = pairs[i].a.values == KM_V_SPECIAL;
        if (special) c.dtypes &= KM_CASE_HALVES;
        if (special && of_output) c.in[1].values = vb;
        if (special && of_input) c.in[0].values = va;
        if (op == KM_OP_POW) c.dtypes &= ~KM_CASE_SMALL_INTS;
        c.no_gradient = special || km_shape_count(pairs[i].a.shape) > 3000;
        km_case_put(s, &c);
    }
}

void km_cases_chooses(km_case_sink *s, km_op op) {
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
            c.in[0] = km_case_typed(shapes[i].cond, KM_V_BOOL, KM_BOOL, 0);
            c.in[1] = km_case_input(shapes[i].a, 0, 0);
            c.in[2] = km_case_input(shapes[i].b, 0, 0);
        } else {
            c.n_in = 2;
            c.in[0] = km_case_input(shapes[i].a, 0, 0);
            c.in[1] = km_case_typed(shapes[i].cond, KM_V_BOOL, KM_BOOL, 0);
            c.p.f[KM_F_VALUE] = 5;
        }
        km_case_put(s, &c);
    }
}

void km_cases_triangles(km_case_sink *s, km_op op) {
    const km_case_in shapes[] = {
        km_case_input(KM_SHAPE(1, 1), 0, 0),           km_case_input(KM_SHAPE(5, 7), 0, 0),
        km_case_input(KM_SHAPE(7, 5), 0, KM_L_TURNED), km_case_input(KM_SHAPE(2, 3, 4, 4), 0, 0),
        km_case_input(KM_SHAPE(0, 4), 0, 0),           km_case_input(KM_SHAPE(65, 130), 0, 0)};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int diagonal = -2; diagonal <= 2; diagonal += 2) {
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {shapes[i]},
                         .p = {.n = {[KM_N_DIAGONAL] = diagonal}},
                         .dtypes = KM_ANY & ~KM_BIT(KM_F64),
                         .no_gradient = i == 5};
            km_case_put(s, &c);
        }
}

void km_cases_dropouts(km_case_sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 3, 17, 1024, 33333};
    for (int i = 0; i < 6; i++) {
        km_case c = {.op = op,
                     .n_in = 1,
                     .in = {km_case_input(KM_SHAPE(sizes[i]), 0, 0)},
                     .p = {.f = {[KM_F_DROP] = 0.25}, .seed = 5, .stream = 3},
                     .dtypes = KM_CASE_HALVES,
                     .no_gradient = sizes[i] > 100};
        km_case_put(s, &c);
    }
}

/* Trial calls for reductions, matrix products and layers, quantised ones too. */
#include "ops/cases_put.h"

/* ---- Reductions ---- */

void km_cases_reductions(km_case_sink *s, km_op op) {
    const struct {
        km_case_in x;
        uint32_t axes;
    } list[] = {{km_case_input(KM_SCALAR, 0, 0), 0},
                {km_case_input(KM_SHAPE(1), 0, 0), 1},
                {km_case_input(KM_SHAPE(13), 0, 0), 1},
                {km_case_input(KM_SHAPE(5, 7), 0, 0), 1},
                {km_case_input(KM_SHAPE(5, 7), 0, 0), 2},
                {km_case_input(KM_SHAPE(5, 7), 0, 0), 3},
                {km_case_input(KM_SHAPE(33, 65), 0, KM_L_TURNED), 1},
                {km_case_input(KM_SHAPE(33, 65), 0, KM_L_TURNED), 2},
                {km_case_input(KM_SHAPE(4, 3, 5), 0, 0), 2},
                {km_case_input(KM_SHAPE(4, 3, 5), 0, 0), 5},
                {km_case_input(KM_SHAPE(2, 3, 4, 3, 2), 0, 0), 21},
                {km_case_input(KM_SHAPE(2, 3, 4, 3, 2), 0, KM_L_TURNED), 10},
                {km_case_input(KM_SHAPE(6, 5), 0, KM_L_STEP), 1},
                {km_case_input(KM_SHAPE(5, 6), 0, KM_L_REPEAT), 3},
                {km_case_input(KM_SHAPE(3, 0), 0, 0), 1},
                {km_case_input(KM_SHAPE(0, 3), 0, 0), 2},
                {km_case_input(KM_SHAPE(300, 257), 0, 0), 1},
                {km_case_input(KM_SHAPE(300, 257), 0, 0), 2},
                {km_case_input(KM_SHAPE(100003), 0, 0), 1},
                {km_case_input(KM_SHAPE(3, 40001), KM_V_OFFSET, 0), 2},
                {km_case_input(KM_SHAPE(40001, 3), KM_V_OFFSET, 0), 1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        uint32_t axes = list[i].axes;
        if (op == KM_OP_ARGMAX && (axes == 0 || (axes & (axes - 1)))) continue; /* one axis */
        for (int keep = 0; keep < 2; keep++) {
            km_case c = {.op = op,
                         .n_in = 1,
                         .in = {list[i].x},
                         .p = {.axes = axes, .keepdim = keep == 1},
                         .dtypes = km_op_get(op)->dtypes & ~KM_BIT(KM_F64)};
            if (op == KM_OP_VAR) c.p.n[KM_N_CORRECTION] = keep;
            int64_t count = km_shape_count(list[i].x.shape);
            /* n - correction = 0 gives NaN or infinity: right, but nothing to differentiate. */
            c.no_gradient = count > 3000 || (op == KM_OP_VAR && count <= 1);
            if (op == KM_OP_VAR && count <= 1 && keep) continue;
            if (list[i].x.values == KM_V_OFFSET) c.dtypes &= KM_BIT(KM_F32);
            km_case_put(s, &c);
            if (count > 3000) break;
        }
    }
    if (op == KM_OP_MAX || op == KM_OP_ARGMAX || op == KM_OP_LOGSUMEXP) {
        km_case c = {.op = op,
                     .n_in = 1,
                     .in = {km_case_input(KM_SHAPE(40, 37), KM_V_SPECIAL, 0)},
                     .p = {.axes = 2},
                     .dtypes = KM_CASE_HALVES,
                     .no_gradient = true};
        km_case_put(s, &c);
        c.in[0].values = KM_V_LOW;
        km_case_put(s, &c);
    }
}

/* ---- Products ---- */

void km_cases_matmuls(km_case_sink *s, km_op op) {
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
                         .p = {.f = {[KM_F_ALPHA] = 1}},
                         .dtypes = KM_CASE_HALVES,
                         .no_gradient = m * k * n > 1500};
            c.in[0] = km_case_input(KM_SHAPE(m, k), 0, turn & 1 ? KM_L_TURNED : KM_L_PLAIN);
            c.in[1] = km_case_input(KM_SHAPE(k, n), 0, turn & 2 ? KM_L_TURNED : KM_L_PLAIN);
            km_case_put(s, &c);
        }
    const struct {
        km_case_in a, b;
    } batched[] = {{km_case_input(KM_SHAPE(3, 4, 5), 0, 0), km_case_input(KM_SHAPE(3, 5, 2), 0, 0)},
                   {km_case_input(KM_SHAPE(3, 4, 5), 0, 0), km_case_input(KM_SHAPE(1, 5, 2), 0, 0)},
                   {km_case_input(KM_SHAPE(2, 1, 4, 5), 0, 0),
                    km_case_input(KM_SHAPE(1, 3, 5, 2), 0, KM_L_TURNED)},
                   {km_case_input(KM_SHAPE(2, 3, 2, 4, 3), 0, KM_L_TURNED),
                    km_case_input(KM_SHAPE(2, 3, 2, 3, 4), 0, 0)},
                   {km_case_input(KM_SHAPE(4, 6), 0, KM_L_STEP),
                    km_case_input(KM_SHAPE(6, 3), 0, KM_L_OFFSET)},
                   {km_case_input(KM_SHAPE(2, 3, 5, 8), 0, KM_L_HEADS),
                    km_case_input(KM_SHAPE(2, 3, 8, 4), 0, 0)},
                   {km_case_input(KM_SHAPE(0, 4, 5), 0, 0), km_case_input(KM_SHAPE(1, 5, 2), 0, 0)},
                   {km_case_input(KM_SHAPE(8, 65, 33), 0, 0),
                    km_case_input(KM_SHAPE(8, 33, 67), 0, KM_L_TURNED)}};
    for (size_t i = 0; i < sizeof batched / sizeof *batched; i++) {
        km_case c = {.op = op,
                     .n_in = 2,
                     .in = {batched[i].a, batched[i].b},
                     .p = {.f = {[KM_F_ALPHA] = 1}},
                     .dtypes = KM_CASE_HALVES,
                     .no_gradient = i == 7};
        km_case_put(s, &c);
    }
}

void km_cases_linears(km_case_sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{1, 1, 1}, {3, 5, 4}, {0, 5, 4}, {7, 33, 65}, {65, 130, 31}, {1, 600, 257}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int act = KM_ACT_NONE; act <= KM_ACT_SILU; act++) {
            int64_t r = sizes[i].rows, n = sizes[i].in, m = sizes[i].out;
            km_case c = {.op = op,
                         .n_in = 3,
                         .p = {.act = (km_act)act},
                         .dtypes = KM_CASE_HALVES,
                         .no_gradient = i > 2};
            c.in[0] = km_case_input(KM_SHAPE(r, n), 0, 0);
            c.in[1] = km_case_input(KM_SHAPE(m, n), 0, act & 1 ? KM_L_TURNED : KM_L_PLAIN);
            c.in[2] = act == KM_ACT_GELU ? KM_CASE_ABSENT : km_case_input(KM_SHAPE(m), 0, 0);
            km_case_put(s, &c);
        }
}

void km_cases_linear_gradients(km_case_sink *s, km_op op) {
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
                             .dtypes = KM_CASE_HALVES,
                             .p = {.act = acts[act], .n = {[KM_N_BOTH] = sums}}};
                c.in[0] = km_case_input(KM_SHAPE(r, m), 0, 0);
                c.in[1] =
                    dx ? km_case_input(KM_SHAPE(m, n), 0, 0) : km_case_input(KM_SHAPE(r, n), 0, 0);
                c.in[2] =
                    acts[act] == KM_ACT_NONE ? KM_CASE_ABSENT : km_case_input(KM_SHAPE(r, n), 0, 0);
                km_case_put(s, &c);
            }
}

/* ---- Weights of a few bits ---- */

void km_cases_quants(km_case_sink *s, km_op op) {
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
                c.dtypes = KM_CASE_HALVES & ~KM_BIT(KM_F64);
                c.p.act = (km_act)(i % 5);
                c.in[0] = km_case_input(KM_SHAPE(r, n), 0, 0);
                c.in[1] = km_case_typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[2] = i % 2 ? KM_CASE_ABSENT : km_case_input(KM_SHAPE(m), 0, 0);
            } else if (op == KM_OP_QUANT_EMBEDDING) {
                c.n_in = 2;
                c.p.dtype = i % 2 ? KM_F32 : KM_BF16;
                c.in[0] = km_case_typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[1] = km_case_typed(KM_SHAPE(r), KM_V_INDEX, i % 2 ? KM_I32 : KM_I64, m);
            } else if (op == KM_OP_DEQUANTISE) {
                c.n_in = 1;
                c.p.dtype = i == 1 ? KM_F16 : i == 2 ? KM_BF16 : KM_F32;
                c.in[0] = km_case_typed(KM_SHAPE(r, n), KM_V_NORMAL, (km_dtype)d, 0);
            } else {
                c.n_in = 1;
                c.p.dtype = (km_dtype)d;
                c.in[0] = km_case_input(KM_SHAPE(r, n), 0, 0);
            }
            km_case_put(s, &c);
        }
}

/* Layers of which one may have weights of another kind than the others. */
void km_cases_layers_at_once(km_case_sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out[3];
    } sizes[] = {{1, 256, {3, 65, 2}},
                 {5, 512, {66, 1, 33}},
                 {17, 768, {32, 70, 16}},
                 {40, 256, {7, 0, 97}},
                 {2, 96, {5, 3, 9}}};
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        if (!(KM_BLOCKS >> d & 1) && !(KM_CASE_HALVES >> d & 1)) continue;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            km_case c = {.op = op, .dtypes = KM_CASE_HALVES, .no_gradient = true};
            int64_t n = sizes[i].in;
            if (n % km_dtype_block((km_dtype)d)) continue;
            c.in[0] = km_case_input(KM_SHAPE(sizes[i].rows, n), 0, 0);
            if (op == KM_OP_LINEARS) {
                int layers = 1 + (int)(((size_t)d + i) % 3);
                c.n_in = 1 + 2 * layers;
                c.p.n[KM_N_LAYERS] = layers;
                for (int l = 0; l < layers; l++) {
                    int64_t m = sizes[i].out[l];
                    km_dtype other = l != 2 ? (km_dtype)d : n % 256 ? KM_Q8_0 : KM_Q6_K;
                    c.in[1 + 2 * l] = km_case_typed(KM_SHAPE(m, n), KM_V_NORMAL, other, 0);
                    c.in[2 + 2 * l] =
                        (i + (size_t)l) % 2 ? KM_CASE_ABSENT : km_case_input(KM_SHAPE(m), 0, 0);
                }
            } else {
                bool joined = i == 1;
                int64_t m = sizes[i].out[0];
                c.n_in = joined ? 2 : 3;
                c.p.act = i % 2 ? KM_ACT_SILU : KM_ACT_GELU;
                c.in[1] = km_case_typed(KM_SHAPE(m, n), KM_V_NORMAL, (km_dtype)d, 0);
                c.in[2] =
                    km_case_typed(KM_SHAPE(m, n), KM_V_NORMAL, i == 3 ? KM_Q8_0 : (km_dtype)d, 0);
            }
            km_case_put(s, &c);
        }
    }
}

/* Mixes in which many numbers are 0, as those of rows without an adapter are. */
static void derive_mix(km_ctx *ctx, const km_case *c, km_tensor **in) {
    km_lane *lane = km_ctx_lane(ctx, km_ref_device());
    in[2] = km_tensor_new(ctx, lane, "case", KM_F32, c->in[2].shape);
    float *v = in[2] ? km_tensor_ptr(in[2]) : NULL;
    for (int64_t i = 0; v && i < km_shape_count(c->in[2].shape); i++)
        v[i] = i % 3 == 0 ? 0.0f : 0.25f * (float)(i % 7) - 0.5f;
}

void km_cases_low_ranks(km_case_sink *s, km_op op) {
    static const struct {
        int64_t rows, in, out, slots, ranks;
    } sizes[] = {{1, 1, 1, 1, 1}, {1, 33, 17, 3, 8},     {5, 64, 65, 4, 13}, {3, 7, 0, 2, 3},
                 {0, 5, 4, 2, 3}, {40, 130, 600, 5, 21}, {2, 600, 33, 9, 4}, {17, 256, 1030, 2, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t n = sizes[i].rows, slots = sizes[i].slots, ranks = sizes[i].ranks;
        km_case c = {.op = op,
                     .n_in = 6,
                     .dtypes = KM_BIT(KM_F32),
                     .no_gradient = true,
                     .derive = derive_mix};
        c.in[0] = km_case_input(KM_SHAPE(n, sizes[i].out), 0, 0);
        c.in[1] = km_case_input(KM_SHAPE(n, sizes[i].in), 0, 0);
        c.in[2] = km_case_input(KM_SHAPE(n, slots), KM_V_DERIVED, 0);
        /* one slot more than there are: its terms are left out */
        c.in[3] = km_case_typed(KM_SHAPE(ranks), KM_V_INDEX, KM_I32, slots + 1);
        c.in[4] = km_case_input(KM_SHAPE(ranks, sizes[i].in), 0, 0);
        c.in[5] = km_case_input(KM_SHAPE(ranks, sizes[i].out), 0, 0);
        km_case_put(s, &c);
    }
}

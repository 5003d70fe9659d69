/* Trial calls for softmax and norms. */
#include "ops/cases_put.h"

/* ---- Rows ---- */

void km_cases_softmaxes(km_case_sink *s, km_op op, int n_in) {
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
                     .dtypes = KM_CASE_HALVES,
                     .no_gradient = i > 6};
        /* Wide rows, several to each group of threads that takes them: forward, in f32. */
        if (i == 13 && n_in == 2) continue;
        if (i == 13) c.dtypes = KM_BIT(KM_F32);
        c.in[0] = km_case_input(list[i].x, 0, 0);
        c.in[1] = km_case_input(list[i].x, op == KM_OP_SOFTMAX_GRAD ? KM_V_UNIT : KM_V_NORMAL, 0);
        km_case_put(s, &c);
        if (n_in == 1 && i == 7) {
            c.no_gradient = true;
            c.in[0].values = KM_V_LOW;
            km_case_put(s, &c);
            c.in[0].values = KM_V_OFFSET;
            c.dtypes = KM_BIT(KM_F32);
            km_case_put(s, &c);
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

void km_cases_norms(km_case_sink *s, km_op op) {
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
            km_case_in xi = km_case_input(x, sizes[i].v, 0), wi = km_case_input(w, 0, 0),
                       stat = km_case_input(w, KM_V_DERIVED, 0);
            if (i > 7 && !plain) continue;
            km_case_in bias = option ? KM_CASE_ABSENT : wi,
                       dsum = option ? KM_CASE_ABSENT : km_case_input(x, 0, 0);
            km_case c = {.op = op,
                         .p = {.f = {[KM_F_EPS] = 1e-5}},
                         .dtypes = KM_CASE_HALVES,
                         .no_gradient = i > 3};
            /* One element a row has no spread: its gradient is all rounding. */
            if (sizes[i].n == 1) c.no_gradient = true;
            if (sizes[i].v == KM_V_OFFSET) c.dtypes = KM_BIT(KM_F32);
            if (op == KM_OP_LAYER_NORM)
                c.n_in = 3, c.in[0] = xi, c.in[1] = wi, c.in[2] = bias;
            else if (op == KM_OP_RMS_NORM)
                c.n_in = 2, c.in[0] = xi, c.in[1] = wi;
            else if (op == KM_OP_ADD_LAYER_NORM)
                c.n_in = 4, c.in[0] = xi, c.in[1] = km_case_input(x, 0, 0), c.in[2] = wi,
                c.in[3] = bias;
            else if (op == KM_OP_ADD_RMS_NORM)
                c.n_in = 3, c.in[0] = xi, c.in[1] = km_case_input(x, 0, 0), c.in[2] = wi;
            else if (op == KM_OP_LAYER_NORM_GRAD)
                c.n_in = 6, c.in[0] = km_case_input(x, 0, 0), c.in[1] = xi, c.in[2] = wi,
                c.in[3] = stat, c.in[4] = stat, c.in[5] = dsum, c.derive = derive_norm_stats;
            else
                c.n_in = 5, c.in[0] = km_case_input(x, 0, 0), c.in[1] = xi, c.in[2] = wi,
                c.in[3] = stat, c.in[4] = dsum, c.derive = derive_norm_stats;
            km_case_put(s, &c);
        }
}

/* Trial calls for losses and optimisers. */
#include "backend/control.h"
#include "ops/cases_put.h"

/* ---- Losses ---- */

static void derive_lse(km_ctx *ctx, const km_case *c, km_tensor **t) {
    km_tensor *out[KM_MAX_OUTPUTS], *args[] = {t[1], t[2]};
    km_apply(ctx, KM_OP_CROSS_ENTROPY, args, 2, &c->p, out);
    t[3] = out[1];
}

void km_cases_cross_entropies(km_case_sink *s, km_op op) {
    static const struct {
        int64_t rows, v;
    } sizes[] = {{1, 1},     {3, 5},     {7, 17},    {33, 257},
                 {65, 1000}, {5, 50257}, {5, 50304}, {140, 40960}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) {
            int64_t rows = sizes[i].rows, v = sizes[i].v;
            bool sum = form & 1, fused = form & 2;
            km_case c = {.op = op, .dtypes = KM_CASE_HALVES, .no_gradient = i > 2};
            if (fused && op == KM_OP_CROSS_ENTROPY_GRAD) break;
            if (i == 7 && form != 2) continue;
            c.p.n[KM_N_WITH_GRADIENT] = fused;
            c.p.n[KM_N_IGNORE] = sizes[i].rows > 2 ? 2 : -100; /* so that some rows are ignored */
            c.p.n[KM_N_REDUCTION] = sum ? KM_SUM : KM_MEAN;
            km_case_in x = km_case_input(KM_SHAPE(rows, v), 0, 0);
            km_case_in t = km_case_typed(KM_SHAPE(rows), KM_V_INDEX, sum ? KM_I32 : KM_I64, v);
            if (op == KM_OP_CROSS_ENTROPY) {
                c.n_in = 2, c.in[0] = x, c.in[1] = t;
            } else {
                c.n_in = 4;
                c.in[0] = km_case_typed(KM_SCALAR, KM_V_POSITIVE, KM_F32, 0);
                c.in[1] = x, c.in[2] = t, c.in[3] = km_case_input(KM_SHAPE(rows), KM_V_DERIVED, 0);
                c.derive = derive_lse;
            }
            km_case_put(s, &c);
        }
}

void km_cases_pair_losses(km_case_sink *s, km_op op) {
    const km_case_in shapes[] = {km_case_input(KM_SCALAR, 0, 0), km_case_input(KM_SHAPE(7), 0, 0),
                                 km_case_input(KM_SHAPE(5, 6), 0, KM_L_TURNED),
                                 km_case_input(KM_SHAPE(20011), 0, 0),
                                 km_case_input(KM_SHAPE(300, 70), 0, 0)};
    bool back = op == KM_OP_MSE_GRAD || op == KM_OP_BCE_GRAD;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int sum = 0; sum < 2; sum++) {
            km_case c = {
                .op = op, .n_in = back ? 3 : 2, .dtypes = KM_CASE_HALVES, .no_gradient = i > 2};
            c.p.n[KM_N_REDUCTION] = sum ? KM_SUM : KM_MEAN;
            km_case_in *x = c.in;
            if (back) *x++ = km_case_typed(KM_SCALAR, KM_V_POSITIVE, KM_F32, 0);
            x[0] = shapes[i];
            x[1] = km_case_input(shapes[i].shape, KM_V_UNIT, 0);
            km_case_put(s, &c);
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

void km_cases_optimisers(km_case_sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 3, 31, 4097, 20011};
    for (int i = 0; i < 6; i++)
        for (int form = 0; form < 9; form++) {
            bool master = form >= 3 && form != 5, wide = form == 4 || form == 5;
            int control = form < 6 ? 0 : form - 5;
            km_case_in x = km_case_input(KM_SHAPE(sizes[i]), 0, 0);
            km_case_in g = wide ? km_case_typed(x.shape, KM_V_NORMAL, KM_F32, 0) : x;
            km_case_in m = km_case_typed(x.shape, KM_V_NORMAL, KM_F32, 0);
            km_case_in v = km_case_typed(x.shape, KM_V_POSITIVE, KM_F32, 0),
                       w = master ? m : KM_CASE_ABSENT;
            km_case_in last = km_case_typed(KM_SHAPE(1), KM_V_DERIVED, KM_F32, control);
            km_case c = {.op = op, .dtypes = KM_CASE_HALVES};
            if (op == KM_OP_SGD) {
                bool still = form == 2 || form == 4; /* without momentum */
                km_case_in list[] = {x, g, still ? KM_CASE_ABSENT : m, w, last};
                for (int k = 0; k < 5; k++) c.in[k] = list[k];
                c.n_in = form == 2 ? 2 : 4;
                c.p = (km_params){.f = {[KM_F_LR] = 0.1,
                                        [KM_F_MOMENTUM] = still ? 0 : 0.9,
                                        [KM_F_SGD_DECAY] = 0.01},
                                  .n = {[KM_N_NESTEROV] = form % 3 == 1, [KM_N_FIRST] = 2}};
            } else {
                km_case_in list[] = {x, g, m, v, w, last};
                for (int k = 0; k < 6; k++) c.in[k] = list[k];
                c.n_in = form < 3 ? 4 : 5;
                c.p = (km_params){.f = {[KM_F_LR] = 1e-2,
                                        [KM_F_BETA1] = 0.9,
                                        [KM_F_BETA2] = 0.95,
                                        [KM_F_ADAM_EPS] = 1e-8,
                                        [KM_F_ADAM_DECAY] = 0.1},
                                  .n = {[KM_N_STEP] = 1 + form * 50,
                                        [KM_N_DECOUPLED] = form != 1,
                                        [KM_N_FIRST] = 2}};
            }
            if (control) {
                c.n_in++;
                c.derive = derive_control;
            }
            km_case_put(s, &c);
        }
}

void km_cases_sumsqs(km_case_sink *s, km_op op) {
    static const int64_t sizes[][4] = {
        {0, 1, 0, 7}, {3, 16384, 16383, 5}, {16385, 40000, 8, 64}, {0, 0, 0, 0}};
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < 3; form++) {
            km_case c = {.op = op, .n_in = form == 2 ? 1 : 4, .dtypes = KM_CASE_HALVES};
            for (int k = 0; k < c.n_in; k++)
                c.in[k] = form == 1 && k % 2
                              ? km_case_typed(KM_SHAPE(sizes[i][k]), KM_V_NORMAL, KM_BF16, 0)
                              : km_case_input(KM_SHAPE(sizes[i][k]), KM_V_NORMAL, 0);
            km_case_put(s, &c);
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

void km_cases_controls(km_case_sink *s, km_op op) {
    static const int64_t sizes[] = {0, 1, 33, 5000};
    for (int i = 0; i < 4; i++)
        for (int form = 0; form < 6; form++) {
            km_case c = {.op = op, .n_in = 3, .dtypes = KM_BIT(KM_F32), .derive = derive_step};
            bool bad = form >= 4; /* infinities and NaN among the sums */
            c.in[0] = km_case_input(KM_SHAPE(sizes[i]), bad && i ? KM_V_SPECIAL : KM_V_POSITIVE, 0);
            c.in[1] = km_case_input(KM_SHAPE(KM_KNOBS), KM_V_POSITIVE, 0);
            c.in[2] = km_case_typed(KM_SHAPE(1), KM_V_DERIVED, KM_F32, form & 1);
            c.p = (km_params){
                .f =
                    {[KM_F_MAX_NORM] = form & 2 ? 0.5 : 0, [KM_F_BETA1] = 0.9, [KM_F_BETA2] = 0.95},
                .n = {[KM_N_GROWTH] = form < 2 ? 0 : 10}};
            km_case_put(s, &c);
        }
}

/* Trial calls for rotations and attention. */
#include "ops/cases_put.h"

/* ---- Transformers ---- */

void km_cases_ropes(km_case_sink *s, km_op op) {
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
                             .dtypes = KM_CASE_HALVES,
                             .no_gradient = i > 4,
                             .p = {.n = {[KM_N_ROPE_DIMS] = list[i].dims,
                                         [KM_N_ROPE_PAIRS] = pairs,
                                         [KM_N_ROPE_INVERSE] = inverse},
                                   .f = {[KM_F_ROPE_BASE] = 10000}}};
                if (divided)
                    c.in[2] = km_case_typed(KM_SHAPE(list[i].dims / 2), KM_V_POSITIVE, KM_F32, 0);
                c.in[0] = km_case_input(x, 0, x.ndim == 4 ? KM_L_HEADS : KM_L_PLAIN);
                c.in[1] = inverse ? KM_CASE_ABSENT
                                  : km_case_typed(KM_SHAPE(x.dim[x.ndim - 2]), KM_V_INDEX,
                                                  pairs ? KM_I32 : KM_I64, 4000);
                km_case_put(s, &c);
            }
}

static void derive_attention(km_ctx *ctx, const km_case *c, km_tensor **t) {
    km_tensor *out[KM_MAX_OUTPUTS], *args[] = {t[1], t[2], t[3]};
    km_apply(ctx, KM_OP_ATTENTION, args, 3, &c->p, out);
    t[4] = out[0];
    t[5] = out[1];
}

void km_cases_attentions(km_case_sink *s, km_op op) {
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
            km_case c = {.op = op, .n_in = 3, .dtypes = KM_CASE_HALVES, .no_gradient = i > 4};
            c.p.causal = form & 1;
            c.p.f[KM_F_SCALE] = 0.125 + 0.5 / (double)d;
            km_case_in q = km_case_input(KM_SHAPE(b, h, sizes[i].tq, d), 0, l);
            km_case_in kv = km_case_input(KM_SHAPE(b, g, sizes[i].tk, d), 0, l);
            if (op == KM_OP_ATTENTION) {
                c.in[0] = q, c.in[1] = kv, c.in[2] = kv;
            } else {
                c.n_in = 6;
                c.in[0] = q, c.in[1] = q, c.in[2] = kv, c.in[3] = kv;
                c.in[4] = km_case_input(q.shape, KM_V_DERIVED, 0),
                c.in[5] = km_case_input(q.shape, KM_V_DERIVED, 0);
                c.derive = derive_attention;
            }
            km_case_put(s, &c);
        }
}

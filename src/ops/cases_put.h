/* What the lists of trial calls share, one file to a family of ops (cases_*.c). */
#ifndef KM_OPS_CASES_PUT_H
#define KM_OPS_CASES_PUT_H
#include "ops/cases.h"

#define KM_CASE_HALVES (KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16))
#define KM_CASE_SMALL_INTS (KM_BIT(KM_I32) | KM_BIT(KM_I64) | KM_BIT(KM_U8) | KM_BIT(KM_I8))
#define KM_CASE_ABSENT ((km_case_in){.absent = true, .dtype = -1}) /* an optional input */

typedef struct km_case_sink { /* where cases go, until somebody has seen enough */
    km_case_fn fn;
    void *user;
    bool go;
} km_case_sink;

static inline void km_case_put(km_case_sink *s, const km_case *c) {
    if (s->go) s->go = s->fn(s->user, c);
}

static inline km_case_in km_case_input(km_shape shape, km_values values, km_case_layout layout) {
    return (km_case_in){.shape = shape, .values = values, .layout = layout, .dtype = -1};
}

static inline km_case_in km_case_typed(km_shape shape, km_values values, km_dtype dtype,
                                       int64_t limit) {
    return (km_case_in){.shape = shape, .values = values, .dtype = (int)dtype, .limit = limit};
}

/* Those of one op each, in a fixed order. */
void km_cases_fills(km_case_sink *s, km_op op);
void km_cases_copies(km_case_sink *s, km_op op);
void km_cases_unaries(km_case_sink *s, km_op op, km_values values);
void km_cases_powers(km_case_sink *s, km_op op);
void km_cases_binaries(km_case_sink *s, km_op op, km_values va, km_values vb);
void km_cases_chooses(km_case_sink *s, km_op op);
void km_cases_triangles(km_case_sink *s, km_op op);
void km_cases_dropouts(km_case_sink *s, km_op op);
void km_cases_reductions(km_case_sink *s, km_op op);
void km_cases_matmuls(km_case_sink *s, km_op op);
void km_cases_linears(km_case_sink *s, km_op op);
void km_cases_linear_gradients(km_case_sink *s, km_op op);
void km_cases_quants(km_case_sink *s, km_op op);
void km_cases_layers_at_once(km_case_sink *s, km_op op);
void km_cases_low_ranks(km_case_sink *s, km_op op);
void km_cases_softmaxes(km_case_sink *s, km_op op, int n_in);
void km_cases_norms(km_case_sink *s, km_op op);
void km_cases_embeddings(km_case_sink *s, km_op op);
void km_cases_gathers(km_case_sink *s, km_op op);
void km_cases_masks(km_case_sink *s, km_op op);
void km_cases_orders(km_case_sink *s, km_op op);
void km_cases_one_hots(km_case_sink *s, km_op op);
void km_cases_concats(km_case_sink *s, km_op op);
void km_cases_ropes(km_case_sink *s, km_op op);
void km_cases_attentions(km_case_sink *s, km_op op);
void km_cases_cross_entropies(km_case_sink *s, km_op op);
void km_cases_pair_losses(km_case_sink *s, km_op op);
void km_cases_optimisers(km_case_sink *s, km_op op);
void km_cases_sumsqs(km_case_sink *s, km_op op);
void km_cases_controls(km_case_sink *s, km_op op);
void km_cases_nearests(km_case_sink *s, km_op op);
void km_cases_cells(km_case_sink *s, km_op op);

#endif

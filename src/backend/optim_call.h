/* An optimiser call taken apart: which inputs and outputs belong to which tensor. Shared by the
 * backends' host sides. */
#ifndef KM_BACKEND_OPTIM_CALL_H
#define KM_BACKEND_OPTIM_CALL_H
#include "backend/backend.h"
#include "backend/control.h"

/* One tensor and its state; those that are absent are NULL. */
typedef struct km_optim_part {
    const km_tensor *p, *g, *m, *v, *w;
    const km_tensor *p_out, *m_out, *v_out, *w_out;
    int index; /* counted from 0 */
} km_optim_part;

typedef struct km_optim_parts {
    const km_call *c;
    int index, out; /* of the next tensor */
} km_optim_parts;

static inline int km_optim_each(km_op op) { return op == KM_OP_ADAMW ? 5 : 4; }

/* NULL when the settings are the call's own. */
static inline const km_tensor *km_optim_control(const km_call *c) {
    int each = km_optim_each(c->op);
    return c->n_in > each && c->n_in % each == 1 ? c->in[c->n_in - 1] : NULL;
}

static inline bool km_optim_next(km_optim_parts *s, km_optim_part *part) {
    const km_call *c = s->c;
    int each = km_optim_each(c->op), v = c->op == KM_OP_ADAMW, at = s->index * each;
    int count = c->n_in < each ? 1 : c->n_in / each;
    const km_tensor *t[5] = {0};
    if (s->index >= count) return false;
    for (int i = 0; i < each && at + i < c->n_in; i++) t[i] = c->in[at + i];
    *part = (km_optim_part){
        .p = t[0], .g = t[1], .m = t[2], .v = v ? t[3] : NULL, .w = t[3 + v], .index = s->index++};
    part->p_out = c->out[s->out++];
    if (part->m) part->m_out = c->out[s->out++];
    if (part->v) part->v_out = c->out[s->out++];
    if (part->w) part->w_out = c->out[s->out++];
    return true;
}

#endif

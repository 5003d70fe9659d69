/* The optimiser's state as named tensors: out to host memory and back in. With several ranks each
 * holds a part; reading puts the parts together on every rank. */
#include "base/alloc.h"
#include "comm/comm.h"
#include "nn/optim_impl.h"
#include "nn/reducer.h"
#include "ops/op.h"
#include <stdio.h>
#include <string.h>

static const char *const kinds[KM_STATES] = {"m", "v", "w"};

static bool add_name(km_optimizer *o, const char *kind, const char *name) {
    size_t size = strlen(kind) + strlen(name) + sizeof "optim..";
    char *text = km_alloc(size);
    if (!text) return false;
    snprintf(text, size, "optim.%s%s%s", kind, *name ? "." : "", name);
    o->name[o->n_names++] = text;
    return true;
}

/* m of all parameters, then v, then w, then the control. */
km_status km_optimizer_name_states(km_ctx *ctx, km_optimizer *o) {
    o->name = km_calloc((size_t)o->n * KM_STATES + 1, sizeof *o->name);
    bool ok = o->name != NULL;
    for (int k = 0; k < KM_STATES && ok; k++)
        for (int i = 0; i < o->n && ok; i++)
            if (km_optimizer_has(o, i, k)) ok = add_name(o, kinds[k], o->param[i]->name);
    ok = ok && add_name(o, "control", "");
    return ok ? KM_OK : km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
}

/* Which parameter and kind state `index` is; -1 for the control. */
static int locate(const km_optimizer *o, int index, int *kind) {
    for (int k = 0; k < KM_STATES; k++)
        for (int i = 0; i < o->n; i++)
            if (km_optimizer_has(o, i, k) && index-- == 0) {
                *kind = k;
                return i;
            }
    return -1;
}

int km_optimizer_states(const km_optimizer *o) { return o->n_names; }

km_optim_state km_optimizer_state(const km_optimizer *o, int i) {
    int kind = 0, param = locate(o, i, &kind);
    return (km_optim_state){o->name[i],
                            param < 0 ? KM_SHAPE(KM_CONTROL_TENSORS) : o->param[param]->t->shape};
}

int km_optimizer_find_state(const km_optimizer *o, const char *name) {
    for (int i = 0; i < o->n_names; i++)
        if (strcmp(o->name[i], name) == 0) return i;
    return -1;
}

km_status km_optimizer_read_state(km_ctx *ctx, km_optimizer *o, int i, float *dst) {
    int kind = 0, param = locate(o, i, &kind);
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (param < 0) return km_read(ctx, o->head, dst, KM_CONTROL_TENSORS * sizeof *dst);
    for (int k = 0; k < o->n_pieces && !km_failed(ctx); k++) {
        const km_optim_piece *p = &o->piece[k];
        if (p->param != param) continue;
        km_tensor view = km_flat_view(o->state[kind], p->at[kind], p->count);
        km_read(ctx, &view, dst + p->first, (size_t)p->count * sizeof *dst);
    }
    return o->reducer ? km_reducer_join(ctx, o->reducer, param, dst) : km_ctx_status(ctx);
}

km_status km_optimizer_write_state(km_ctx *ctx, km_optimizer *o, int i, const float *src) {
    int kind = 0, param = locate(o, i, &kind);
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (param < 0) {
        float f[KM_CONTROL_TENSORS];
        memcpy(f, src, sizeof f);
        if (!(o->how.loss_scale > 0)) f[KM_CONTROL_LOSS] = 1; /* this run scales no loss */
        return km_write(ctx, o->head, f, sizeof f);
    }
    for (int k = 0; k < o->n_pieces && !km_failed(ctx); k++) {
        const km_optim_piece *p = &o->piece[k];
        if (p->param != param) continue;
        km_tensor view = km_flat_view(o->state[kind], p->at[kind], p->count);
        km_write(ctx, &view, src + p->first, (size_t)p->count * sizeof *src);
    }
    return km_ctx_status(ctx);
}

km_status km_optimizer_adopt(km_ctx *ctx, km_optimizer *o) {
    for (int k = 0; k < o->n_pieces && !km_failed(ctx); k++) {
        const km_optim_piece *p = &o->piece[k];
        if (p->at[KM_STATE_W] < 0) continue;
        km_tensor from = km_flat_view(o->param[p->param]->t, p->first, p->count), *in = &from;
        km_tensor to = km_flat_view(o->state[KM_STATE_W], p->at[KM_STATE_W], p->count);
        km_params how = {.dtype = KM_F32};
        km_apply_into(ctx, KM_OP_CAST, &in, 1, &how, &to);
    }
    return km_ctx_status(ctx);
}

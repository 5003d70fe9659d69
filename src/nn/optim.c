/* The optimiser: parameters cut into the pieces that this rank updates, their state in a few flat
 * tensors, and a step of four launches: sums of squares, control, update, and for several ranks the
 * exchange before and after. */
#include "nn/optim_impl.h"
#include "base/alloc.h"
#include "base/sized.h"
#include "comm/comm.h"
#include "nn/reducer.h"
#include "ops/op.h"
#include <math.h>
#include <string.h>

km_status km_optim_defaults_sized(km_optim_settings *out, size_t size) {
    km_optim_settings own = {.size = sizeof(km_optim_settings),
                             .kind = KM_OPTIM_ADAMW,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .momentum = 0.9,
                             .weight_decay = 0.1,
                             .max_norm = 1};
    return KM_HAND_OUT(out, size, &own, km_optim_settings);
}

/* ---- Making one ---- */

static km_status check_settings(km_ctx *ctx, const km_optim_settings *h) {
    bool adam = h->kind != KM_OPTIM_SGD;
    if (adam && !(h->beta1 >= 0 && h->beta1 < 1 && h->beta2 >= 0 && h->beta2 < 1))
        return km_fail(ctx, KM_ERR_RANGE, "optimizer: beta1 %g and beta2 %g must be in [0, 1)",
                       h->beta1, h->beta2);
    if (adam && !(h->eps >= 0)) return km_fail(ctx, KM_ERR_RANGE, "optimizer: eps %g", h->eps);
    if (!adam && !(h->momentum >= 0 && h->momentum < 1))
        return km_fail(ctx, KM_ERR_RANGE, "optimizer: momentum %g must be in [0, 1)", h->momentum);
    if (!(h->weight_decay >= 0) || !(h->max_norm >= 0) || h->growth_every < 0)
        return km_fail(ctx, KM_ERR_RANGE,
                       "optimizer: weight decay, largest norm and growth cannot be negative");
    if (h->loss_scale != 0 &&
        !(h->loss_scale >= (double)KM_LOSS_SCALE_MIN && h->loss_scale <= (double)KM_LOSS_SCALE_MAX))
        return km_fail(ctx, KM_ERR_RANGE, "optimizer: a loss scale of %g", h->loss_scale);
    return KM_OK;
}

bool km_optimizer_has(const km_optimizer *o, int i, int kind) {
    bool sgd = o->how.kind == KM_OPTIM_SGD;
    switch (kind) {
    case KM_STATE_M: return !sgd || o->how.momentum > 0;
    case KM_STATE_V: return !sgd;
    default: return !o->how.no_master && o->param[i]->t->dtype != KM_F32;
    }
}

km_tensor km_flat_view(const km_tensor *t, int64_t first, int64_t count) {
    return (km_tensor){.ctx = t->ctx,
                       .storage = t->storage,
                       .dtype = t->dtype,
                       .shape = KM_SHAPE(count),
                       .stride = {1},
                       .offset = t->offset + first};
}

/* Those that are not frozen, grouped by dtype so that each group is one launch. */
static km_status take_params(km_ctx *ctx, km_optimizer *o, const km_param_list *list) {
    static const km_dtype dtypes[] = {KM_BF16, KM_F16, KM_F32};
    o->param = km_calloc((size_t)list->n + 1, sizeof *o->param);
    if (!o->param) return km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
    for (int i = 0; i < list->n; i++) {
        const km_param *p = &list->at[i];
        if (km_require_grad(ctx, p->t, !p->frozen) != KM_OK) return km_ctx_status(ctx);
        bool known = p->t->dtype == KM_F32 || p->t->dtype == KM_F16 || p->t->dtype == KM_BF16;
        if (!p->frozen && (!known || !km_is_contiguous(p->t)))
            return km_fail(ctx, KM_ERR_DTYPE,
                           "optimizer: parameter %.200s must be contiguous and f32, f16 or bf16",
                           p->name);
    }
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < list->n; i++)
            if (!list->at[i].frozen && list->at[i].t->dtype == dtypes[d])
                o->param[o->n++] = &list->at[i];
    if (o->n == 0) return km_fail(ctx, KM_ERR_RANGE, "optimizer: every parameter is frozen");
    return KM_OK;
}

/* Whole parameters for one rank; what the reducer says for several. */
static km_status cut_pieces(km_ctx *ctx, km_optimizer *o) {
    int most = o->reducer ? km_reducer_pieces(o->reducer) : o->n;
    o->piece = km_calloc((size_t)most + 1, sizeof *o->piece);
    o->in = km_calloc((size_t)most * 5 + 2, sizeof *o->in);
    o->out = km_calloc((size_t)most * 4 + 1, sizeof *o->out);
    if (!o->piece || !o->in || !o->out)
        return km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
    for (int i = 0; i < most; i++) {
        km_optim_piece *p = &o->piece[o->n_pieces];
        p->param = i;
        if (o->reducer)
            p->param = km_reducer_piece(o->reducer, i, &p->first, &p->count);
        else
            p->count = km_shape_count(o->param[i]->t->shape);
        if (p->count > 0) o->n_pieces++;
    }
    return KM_OK;
}

static km_tensor *keep_zeros(km_ctx *ctx, int64_t count) {
    return km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(count)));
}

static km_status make_state(km_ctx *ctx, km_optimizer *o) {
    for (int kind = 0; kind < KM_STATES; kind++) {
        int64_t count = 0;
        for (int i = 0; i < o->n_pieces; i++) {
            km_optim_piece *p = &o->piece[i];
            p->at[kind] = km_optimizer_has(o, p->param, kind) ? count : -1;
            if (p->at[kind] >= 0) count += (p->count + 15) / 16 * 16; /* so that each is aligned */
        }
        if (count) o->state[kind] = keep_zeros(ctx, count);
    }
    return km_ctx_status(ctx);
}

/* The numbers on the device, and two windows on them. */
static km_status make_control(km_ctx *ctx, km_optimizer *o) {
    int64_t count = KM_CONTROL_TENSORS + 2 * (int64_t)o->n_pieces;
    float *f = km_calloc((size_t)count, sizeof *f);
    if (!f) return km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
    f[KM_CONTROL_LOSS] = o->how.loss_scale > 0 ? (float)o->how.loss_scale : 1;
    for (int i = 0; i < o->n_pieces; i++) {
        f[KM_CONTROL_TENSORS + 2 * i] = 1;
        f[KM_CONTROL_TENSORS + 2 * i + 1] =
            o->param[o->piece[i].param]->decay ? (float)o->how.weight_decay : 0;
    }
    o->control = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(count), f));
    km_free(f);
    o->head = km_keep(ctx, km_narrow(ctx, o->control, 0, 0, KM_CONTROL_TENSORS));
    o->loss_scale = km_keep(ctx, km_select(ctx, o->control, 0, KM_CONTROL_LOSS));
    o->knobs = keep_zeros(ctx, KM_KNOBS);
    return km_ctx_status(ctx);
}

km_optimizer *km_optimizer_new(km_ctx *ctx, const km_param_list *params,
                               const km_optim_settings *settings) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    km_optim_settings how = km_optim_defaults();
    if (km_take_sized(&how, sizeof how, settings, "km_optim_settings", &ctx->error) != KM_OK)
        return NULL;
    return km_optimizer_new_ranks(ctx, params, &how, NULL);
}

km_status km_optimizer_check(km_ctx *ctx, const km_optimizer *o) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!o) return km_fail(ctx, KM_ERR_NULL, "optimizer: there is none");
    if (!km_handle_is(o, KM_HANDLE_OPTIMIZER))
        return km_fail(ctx, KM_ERR_STATE, "optimizer: this is no open one");
    if (o->ctx != ctx) return km_fail(ctx, KM_ERR_STATE, "optimizer: of another context");
    return KM_OK;
}

km_optimizer *km_optimizer_new_ranks(km_ctx *ctx, const km_param_list *params,
                                     const km_optim_settings *how, struct km_comm *comm) {
    if (km_failed(ctx)) return NULL;
    if (!params) {
        km_fail(ctx, KM_ERR_NULL, "optimizer: a list of parameters is needed");
        return NULL;
    }
    for (int i = 0; i < params->n; i++)
        if (params->at[i].t->ctx != ctx) {
            km_fail(ctx, KM_ERR_STATE, "optimizer: parameter %.100s is of another context",
                    params->at[i].name);
            return NULL;
        }
    if (check_settings(ctx, how) != KM_OK) return NULL;
    km_optimizer *o = km_calloc(1, sizeof *o);
    if (!o) {
        km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
        return NULL;
    }
    int mark = ctx->n_step;
    km_handle_add(&o->handle, KM_HANDLE_OPTIMIZER);
    o->ctx = ctx;
    o->how = *how;
    if (how->loss_scale > 0 && how->growth_every == 0) o->how.growth_every = 2000;
    if (how->loss_scale == 0) o->how.growth_every = 0;
    o->comm = comm;
    o->list = (km_param_list *)(uintptr_t)params; /* only its count of users changes */
    km_param_list_use(o->list);
    if (take_params(ctx, o, params) == KM_OK && !km_comm_alone(comm))
        o->reducer = km_reducer_new(ctx, o->param, o->n, comm);
    if (!km_failed(ctx) && cut_pieces(ctx, o) == KM_OK && make_state(ctx, o) == KM_OK &&
        make_control(ctx, o) == KM_OK && km_optimizer_name_states(ctx, o) == KM_OK)
        km_optimizer_adopt(ctx, o);
    km_step_drop(ctx, mark, NULL, 0);
    if (!km_failed(ctx)) return o;
    km_optimizer_free(o);
    return NULL;
}

void km_optimizer_free(km_optimizer *o) {
    if (!km_handle_is(o, KM_HANDLE_OPTIMIZER)) return;
    KM_INSIDE(in);
    if (km_try_enter(&in, o->ctx, KM_HANDLE_CONTEXT) == KM_ENTRY_BUSY) {
        km_public_fail(KM_ERR_STATE, "optimizer: another thread is using its context");
        return;
    }
    if (!km_handle_remove(o, KM_HANDLE_OPTIMIZER)) return;
    for (int k = 0; k < KM_STATES; k++) km_release(o->state[k]);
    km_release(o->knobs);
    km_release(o->head);
    km_release(o->loss_scale);
    km_release(o->control);
    km_reducer_free(o->reducer);
    for (int i = 0; i < o->n_names; i++) km_free(o->name[i]);
    km_free(o->name);
    km_free(o->param);
    km_free(o->piece);
    km_free(o->in);
    km_free(o->out);
    km_param_list_unuse(o->list);
    km_free(o);
}

/* ---- A step ---- */

km_status km_optimizer_set(km_ctx *ctx, km_optimizer *o, double lr, int accumulate) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_optimizer_check(ctx, o) != KM_OK) return km_ctx_status(ctx);
    if (!(lr >= 0) || !isfinite(lr) || accumulate < 1)
        return km_fail(ctx, KM_ERR_RANGE, "optimizer: learning rate %g, %d backward passes", lr,
                       accumulate);
    int ranks = km_comm_size(o->comm);
    float knob[KM_KNOBS] = {
        [KM_KNOB_LR] = (float)lr, [KM_KNOB_GRAD] = (float)(1.0 / ((double)ranks * accumulate))};
    if (memcmp(knob, o->knob, sizeof knob) == 0) return KM_OK;
    memcpy(o->knob, knob, sizeof knob);
    return km_write(ctx, o->knobs, knob, sizeof knob);
}

km_tensor *km_optimizer_scale_loss(km_ctx *ctx, km_optimizer *o, km_tensor *loss) {
    KM_CTX_CALL(ctx, NULL);
    if (km_optimizer_check(ctx, o) != KM_OK) return NULL;
    return o->how.loss_scale > 0 ? km_mul(ctx, loss, o->loss_scale) : loss;
}

void km_optimizer_last_backward(km_ctx *ctx, km_optimizer *o) {
    if (o->reducer && !km_failed(ctx)) km_reducer_arm(ctx, o->reducer);
}

void km_optimizer_zero_grad(km_ctx *ctx, km_optimizer *o) {
    KM_CTX_CALL(ctx, );
    if (!km_handle_is(o, KM_HANDLE_OPTIMIZER) || o->ctx != ctx) { /* else also where it failed */
        km_optimizer_check(ctx, o);
        return;
    }
    for (int i = 0; i < o->n; i++) km_zero_grad(ctx, &o->param[i]->t, 1);
}

bool km_optimizer_capturable(const km_optimizer *o) {
    return !o->reducer || km_comm_capturable(o->comm);
}

/* The piece's views of what it is about to change. False when there is no gradient. */
static bool aim(km_optimizer *o, km_optim_piece *p) {
    km_tensor *t = o->param[p->param]->t, *g = km_grad(t);
    if (o->reducer) {
        if (!km_reducer_gradient(o->reducer, p->param, p->first, p->count, &p->g)) return false;
    } else {
        if (!g) return false;
        p->g = km_flat_view(g, p->first, p->count);
    }
    p->p = km_flat_view(t, p->first, p->count);
    for (int k = 0; k < KM_STATES; k++)
        if (p->at[k] >= 0) p->s[k] = km_flat_view(o->state[k], p->at[k], p->count);
    return true;
}

/* The norm of all gradients, and what follows from it, into the control. */
static km_status control_step(km_ctx *ctx, km_optimizer *o) {
    int n = 0;
    for (int i = 0; i < o->n_pieces; i++)
        if (aim(o, &o->piece[i])) o->in[n++] = &o->piece[i].g;
    if (n == 0 && !o->reducer)
        return km_fail(ctx, KM_ERR_STATE, "optimizer: no parameter has a gradient");
    km_tensor *sums = n ? km_apply(ctx, KM_OP_SUMSQ_CHUNKS, o->in, n, NULL, NULL)
                        : km_zeros(ctx, KM_F32, KM_SHAPE(1));
    if (o->reducer) sums = km_reducer_sums(ctx, o->reducer, sums);
    if (!sums) return km_ctx_status(ctx);
    bool adam = o->how.kind != KM_OPTIM_SGD;
    km_params p = {.f = {[KM_F_MAX_NORM] = o->how.max_norm,
                         [KM_F_BETA1] = adam ? o->how.beta1 : 0,
                         [KM_F_BETA2] = adam ? o->how.beta2 : 0},
                   .n = {[KM_N_GROWTH] = o->how.growth_every}};
    km_tensor *in[] = {sums, o->knobs, o->control};
    return km_apply_into(ctx, KM_OP_OPTIM_CONTROL, in, 3, &p, o->control);
}

/* Pieces first .. end - 1, which share their dtypes, in one launch. */
static km_status update(km_ctx *ctx, km_optimizer *o, int first, int end) {
    bool sgd = o->how.kind == KM_OPTIM_SGD;
    int n_in = 0, n_out = 0;
    const km_optim_settings *h = &o->how;
    for (int i = first; i < end; i++) {
        km_optim_piece *p = &o->piece[i];
        o->in[n_in++] = &p->p;
        o->in[n_in++] = &p->g;
        o->out[n_out++] = &p->p;
        for (int k = 0; k < KM_STATES; k++) {
            if (sgd && k == KM_STATE_V) continue;
            o->in[n_in++] = p->at[k] >= 0 ? &p->s[k] : NULL;
            if (p->at[k] >= 0) o->out[n_out++] = &p->s[k];
        }
        p->p.storage->version++;
    }
    o->in[n_in++] = o->control;
    km_params how = {
        .f = {[KM_F_BETA1] = h->beta1, [KM_F_BETA2] = h->beta2, [KM_F_ADAM_EPS] = h->eps},
        .n = {[KM_N_STEP] = 1, [KM_N_DECOUPLED] = h->kind == KM_OPTIM_ADAMW, [KM_N_FIRST] = first}};
    if (sgd)
        how = (km_params){.f = {[KM_F_MOMENTUM] = h->momentum},
                          .n = {[KM_N_NESTEROV] = h->nesterov, [KM_N_FIRST] = first}};
    return km_run(ctx, sgd ? KM_OP_SGD : KM_OP_ADAMW, o->in, n_in, &how, o->out, n_out);
}

km_status km_optimizer_step(km_ctx *ctx, km_optimizer *o) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_optimizer_check(ctx, o) != KM_OK) return km_ctx_status(ctx);
    int mark = ctx->n_step;
    ctx->no_grad++;
    if (o->reducer) km_reducer_finish(ctx, o->reducer);
    if (!km_failed(ctx)) control_step(ctx, o);
    int first = 0;
    for (int i = 0; i <= o->n_pieces && !km_failed(ctx); i++) {
        bool there = i < o->n_pieces && aim(o, &o->piece[i]);
        const km_optim_piece *p = &o->piece[i], *q = &o->piece[first];
        if (there && i > first && p->p.dtype == q->p.dtype && p->g.dtype == q->g.dtype) continue;
        if (i > first) update(ctx, o, first, i);
        first = there ? i : i + 1;
    }
    if (o->reducer && !km_failed(ctx)) km_reducer_share(ctx, o->reducer);
    ctx->no_grad--;
    km_step_drop(ctx, mark, NULL, 0);
    return km_ctx_status(ctx);
}

km_status km_optimizer_report(km_ctx *ctx, km_optimizer *o, km_optim_report *to) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    float f[KM_CONTROL_TENSORS];
    if (km_optimizer_check(ctx, o) != KM_OK) return km_ctx_status(ctx);
    if (!to) return km_fail(ctx, KM_ERR_NULL, "optimizer: no report to fill");
    if (km_check_sized(to, sizeof *to, "km_optim_report", &ctx->error) != KM_OK)
        return km_ctx_status(ctx);
    if (km_read(ctx, o->head, f, sizeof f) != KM_OK) return km_ctx_status(ctx);
    km_optim_report r = {.lr = (double)f[KM_CONTROL_LR],
                         .norm = (double)f[KM_CONTROL_NORM],
                         .skipped = f[KM_CONTROL_SKIP] != 0,
                         .steps = (int64_t)f[KM_CONTROL_STEPS],
                         .skips = (int64_t)f[KM_CONTROL_SKIPS],
                         .loss_scale = (double)f[KM_CONTROL_LOSS]};
    km_give_sized(to, &r, sizeof r);
    return KM_OK;
}

int64_t km_optimizer_trained(const km_optimizer *o) {
    int64_t n = 0;
    for (int i = 0; i < o->n; i++) n += km_shape_count(o->param[i]->t->shape);
    return n;
}

size_t km_optimizer_state_bytes(const km_optimizer *o) {
    size_t n = 0;
    for (int k = 0; k < KM_STATES; k++)
        if (o->state[k]) n += (size_t)km_shape_count(o->state[k]->shape) * 4;
    return n;
}

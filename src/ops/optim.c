/* Optimiser steps. As ops of the table they make new tensors, which is how they are verified; the
 * public calls run the same kernels in place, on all parameters at once. */
#include "backend/control.h"
#include "base/sized.h"
#include "ops/families.h"
#include "ops/op.h"
#include "tensor/profile.h"

static km_dtype state_dtype(km_dtype d) { return d == KM_F64 ? KM_F64 : KM_F32; }

static km_status check_state(km_ctx *ctx, const char *name, const char *arg, const km_tensor *p,
                             const km_tensor *state) {
    if (km_want_dtype(ctx, name, arg, state, KM_BIT(state_dtype(p->dtype))) != KM_OK)
        return ctx->error.code;
    return km_want_shape(ctx, name, arg, state, p->shape);
}

static km_status infer_part(km_ctx *ctx, const char *name, km_tensor *const *t, int states,
                            km_outputs *out) {
    static const char *const args[] = {"m", "v", "w"};
    uint32_t grads = KM_BIT(t[0]->dtype) | (t[0]->dtype == KM_F64 ? 0 : KM_BIT(KM_F32));
    if (km_want_dtype(ctx, name, "gradient", t[1], grads) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "gradient", t[1], t[0]->shape) != KM_OK) return ctx->error.code;
    *out = (km_outputs){.n = 1, .dtype = {t[0]->dtype}, .shape = {t[0]->shape}};
    for (int i = 0; i < states; i++) {
        const km_tensor *state = t[2 + i];
        if (!state) continue;
        const char *arg = args[states == 2 && i == 1 ? 2 : i];
        if (check_state(ctx, name, arg, t[0], state) != KM_OK) return ctx->error.code;
        out->dtype[out->n] = state->dtype;
        out->shape[out->n++] = t[0]->shape;
    }
    return KM_OK;
}

/* One tensor: p, g, the states, w?, control?. */
static km_status infer(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in, int each,
                       const km_params *p, km_outputs *out) {
    km_tensor *t[5] = {0};
    for (int i = 0; i < each && i < n_in; i++) t[i] = in[i];
    if (n_in > each && in[each]) {
        const km_tensor *control = in[each];
        if (km_want_dtype(ctx, name, "control", control, KM_BIT(KM_F32)) != KM_OK)
            return ctx->error.code;
        int64_t n = control->shape.dim[0], need = KM_CONTROL_TENSORS + 2 * (p->n[KM_N_FIRST] + 1);
        if (control->shape.ndim != 1 || (n != KM_CONTROL_TENSORS && n < need))
            return km_fail(ctx, KM_ERR_SHAPE, "%s: the control is too short", name);
    }
    return infer_part(ctx, name, t, each - 2, out);
}

static km_status infer_sgd(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                           const km_params *p, km_outputs *out) {
    return infer(ctx, name, in, n_in, 4, p, out);
}

static km_status infer_adamw(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    if (p->n[KM_N_STEP] < 1)
        return km_fail(ctx, KM_ERR_RANGE, "%s: step %lld; they count from 1", name,
                       (long long)p->n[KM_N_STEP]);
    return infer(ctx, name, in, n_in, 5, p, out);
}

static km_status infer_sumsq_chunks(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                                    const km_params *p, km_outputs *out) {
    int64_t chunks = 0;
    for (int i = 0; i < n_in; i++) {
        if (km_want_dtype(ctx, name, NULL, in[i], KM_FLOATS) != KM_OK) return ctx->error.code;
        chunks += (km_shape_count(in[i]->shape) + KM_SUMSQ_CHUNK - 1) / KM_SUMSQ_CHUNK;
    }
    *out = (km_outputs){.n = 1, .dtype = {state_dtype(in[0]->dtype)}, .shape = {KM_SHAPE(chunks)}};
    return KM_OK;
}

static km_status infer_control(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                               const km_params *p, km_outputs *out) {
    static const char *const args[] = {"sums", "knobs", "control"};
    for (int i = 0; i < 3; i++) {
        if (km_want_dtype(ctx, name, args[i], in[i], KM_BIT(KM_F32)) != KM_OK)
            return ctx->error.code;
        if (in[i]->shape.ndim != 1)
            return km_fail(ctx, KM_ERR_SHAPE, "%s: %s must have one dimension", name, args[i]);
    }
    if (in[1]->shape.dim[0] < KM_KNOBS || in[2]->shape.dim[0] < KM_CONTROL_TENSORS)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the knobs or the control are too short", name);
    *out = (km_outputs){.n = 1, .dtype = {KM_F32}, .shape = {in[2]->shape}};
    return KM_OK;
}

void km_rows_optim(km_op_row *t) {
    t[KM_OP_SGD] = (km_op_row){.formula = "m = momentum m + g; p -= lr m",
                               .min_in = 2,
                               .max_in = 5,
                               .dtypes = KM_FLOATS,
                               .flags = KM_OP_IN_PLACE,
                               .infer = infer_sgd,
                               .tol = KM_TOL_SUM};
    t[KM_OP_ADAMW] = (km_op_row){.formula = "p -= lr (m^ / (sqrt(v^) + eps) + decay p)",
                                 .min_in = 4,
                                 .max_in = 6,
                                 .dtypes = KM_FLOATS,
                                 .flags = KM_OP_IN_PLACE,
                                 .infer = infer_adamw,
                                 .tol = KM_TOL_SUM};
    t[KM_OP_SUMSQ_CHUNKS] = (km_op_row){.formula = "sums of x^2, by chunks of many tensors",
                                        .min_in = 1,
                                        .max_in = -1,
                                        .dtypes = KM_FLOATS,
                                        .infer = infer_sumsq_chunks,
                                        .tol = KM_TOL_SUM};
    t[KM_OP_OPTIM_CONTROL] = (km_op_row){.formula = "norm, clip factor and loss scale of a step",
                                         .min_in = 3,
                                         .max_in = 3,
                                         .dtypes = KM_BIT(KM_F32),
                                         .flags = KM_OP_IN_PLACE,
                                         .infer = infer_control,
                                         .tol = KM_TOL_TRANS};
}

/* ---- Public ---- */

/* p with its gradient, its `n_states` states, and then perhaps a master weight. */
static km_status check_parameter(km_ctx *ctx, const char *name, int i, const km_tensor *p,
                                 km_tensor *const *states, int n_states, const km_tensor *master,
                                 const km_device *device) {
    if (!p->kept || !km_is_contiguous(p) || !km_is_contiguous(p->grad))
        return km_fail(ctx, KM_ERR_STATE, "%s: parameter %d is not a kept contiguous tensor", name,
                       i + 1);
    bool here = km_tensor_dev(p) == device;
    for (int k = 0; k <= n_states; k++) {
        const km_tensor *state = k < n_states ? states[k] : master;
        if (k == n_states && !state) break;
        if (!state || !state->kept || !state->storage || !km_is_contiguous(state))
            return km_fail(ctx, KM_ERR_NULL, "%s: parameter %d has no kept contiguous state", name,
                           i + 1);
        if (check_state(ctx, name, "state", p, state) != KM_OK) return ctx->error.code;
        here &= km_tensor_dev(state) == device;
    }
    if (!here)
        return km_fail(ctx, KM_ERR_DEVICE, "%s: parameters and state must all be on %s", name,
                       device->name);
    return KM_OK;
}

/* Gathers (p, g, states, master) of every parameter with a gradient, one dtype at a time, and runs
 * the kernel on them in place. */
static km_status step_all(km_ctx *ctx, km_op op, km_tensor *const *parameters,
                          km_tensor *const *const *states, int n_states, km_tensor *const *master,
                          int n, const km_params *how) {
    const char *name = km_op_name(op);
    int slots = op == KM_OP_SGD ? 1 : 2; /* of states */
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!parameters && n > 0) return km_fail(ctx, KM_ERR_NULL, "%s: no parameters", name);
    size_t room = sizeof(km_tensor *) * (size_t)(n > 0 ? n : 1);
    km_tensor **in = km_arena_alloc(&ctx->arena, room * (size_t)(slots + 3));
    km_tensor **out = km_arena_alloc(&ctx->arena, room * (size_t)(slots + 2));
    if (!in || !out) return km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", name);
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        int n_in = 0, n_out = 0;
        for (int i = 0; i < n; i++) {
            km_tensor *p = parameters[i], *g = km_grad(p), *state[3] = {0};
            if (!g || (int)p->dtype != d) continue;
            for (int k = 0; k < n_states; k++) state[k] = states[k] ? states[k][i] : NULL;
            km_tensor *w = state[slots] = master ? master[i] : NULL;
            if (check_parameter(ctx, name, i, p, state, n_states, w, ctx->lanes[0]->device) !=
                KM_OK)
                return ctx->error.code;
            in[n_in++] = p;
            in[n_in++] = g;
            out[n_out++] = p;
            for (int k = 0; k <= slots; k++) {
                in[n_in++] = state[k];
                if (state[k]) out[n_out++] = state[k];
            }
        }
        if (!n_in) continue;
        km_profile_op(ctx, name);
        km_status s = km_run(ctx, op, in, n_in, how, out, n_out);
        for (int k = 0; k < n_out; k++) out[k]->storage->version++;
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

km_status km_sgd_defaults_sized(km_sgd *out, size_t size) {
    km_sgd own = {.size = sizeof(km_sgd), .lr = 0.01};
    return KM_HAND_OUT(out, size, &own, km_sgd);
}

km_status km_adamw_defaults_sized(km_adamw *out, size_t size) {
    km_adamw own = {.size = sizeof(km_adamw),
                    .lr = 1e-3,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .eps = 1e-8,
                    .weight_decay = 0.01,
                    .step = 1};
    return KM_HAND_OUT(out, size, &own, km_adamw);
}

km_status km_sgd_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m, int n,
                      const km_sgd *given) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!given) return km_fail(ctx, KM_ERR_NULL, "sgd: no settings");
    km_sgd own = km_sgd_defaults(), *how = &own;
    if (km_take_sized(&own, sizeof own, given, "km_sgd", &ctx->error) != KM_OK)
        return ctx->error.code;
    if (!m && how->momentum != 0)
        return km_fail(ctx, KM_ERR_NULL, "sgd: momentum needs a state to keep it in");
    km_params p = {.f = {[KM_F_LR] = how->lr,
                         [KM_F_MOMENTUM] = how->momentum,
                         [KM_F_SGD_DECAY] = how->weight_decay},
                   .n = {[KM_N_NESTEROV] = how->nesterov}};
    return step_all(ctx, KM_OP_SGD, parameters, &m, m ? 1 : 0, how->master, n, &p);
}

km_status km_adamw_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m,
                        km_tensor *const *v, int n, const km_adamw *given) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!given || !m || !v)
        return km_fail(ctx, KM_ERR_NULL, "adamw: settings and state are needed");
    km_adamw own = km_adamw_defaults(), *how = &own;
    if (km_take_sized(&own, sizeof own, given, "km_adamw", &ctx->error) != KM_OK)
        return ctx->error.code;
    if (how->step < 1)
        return km_fail(ctx, KM_ERR_RANGE, "adamw: step %lld; they count from 1",
                       (long long)how->step);
    km_params p = {.f = {[KM_F_LR] = how->lr,
                         [KM_F_BETA1] = how->beta1,
                         [KM_F_BETA2] = how->beta2,
                         [KM_F_ADAM_EPS] = how->eps,
                         [KM_F_ADAM_DECAY] = how->weight_decay},
                   .n = {[KM_N_STEP] = how->step, [KM_N_DECOUPLED] = !how->coupled}};
    km_tensor *const *states[] = {m, v};
    return step_all(ctx, KM_OP_ADAMW, parameters, states, 2, how->master, n, &p);
}

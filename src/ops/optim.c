/* Optimiser steps. As ops of the table they make new tensors, which is how they are verified; the
 * public calls run the same kernels in place, on all parameters at once. */
#include "ops/families.h"
#include "ops/run.h"

static km_dtype state_dtype(km_dtype d) { return d == KM_F64 ? KM_F64 : KM_F32; }

static km_status check_state(km_ctx *ctx, const char *name, const char *arg, const km_tensor *p,
                             const km_tensor *state) {
    if (km_want_dtype(ctx, name, arg, state, KM_BIT(state_dtype(p->dtype))) != KM_OK)
        return ctx->error.code;
    return km_want_shape(ctx, name, arg, state, p->shape);
}

/* One group: p, g, then `states` of them (sgd's may be absent). */
static km_status infer(km_ctx *ctx, const char *name, km_tensor *const *in, int states,
                       km_outputs *out) {
    static const char *const args[] = {"m", "v"};
    if (km_want_same_dtype(ctx, name, in[0], in[1]) != KM_OK) return ctx->error.code;
    if (km_want_shape(ctx, name, "gradient", in[1], in[0]->shape) != KM_OK) return ctx->error.code;
    *out = (km_outputs){.n = 1, .dtype = {in[0]->dtype}, .shape = {in[0]->shape}};
    for (int i = 0; i < states; i++) {
        if (!in[2 + i]) continue;
        if (check_state(ctx, name, args[i], in[0], in[2 + i]) != KM_OK) return ctx->error.code;
        out->dtype[out->n] = in[2 + i]->dtype;
        out->shape[out->n++] = in[0]->shape;
    }
    return KM_OK;
}

static km_status infer_sgd(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                           const km_params *p, km_outputs *out) {
    return infer(ctx, name, in, n_in > 2 ? 1 : 0, out);
}

static km_status infer_adamw(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                             const km_params *p, km_outputs *out) {
    if (p->n[0] < 1)
        return km_fail(ctx, KM_ERR_RANGE, "%s: step %lld; they count from 1", name,
                       (long long)p->n[0]);
    return infer(ctx, name, in, 2, out);
}

void km_rows_optim(km_op_row *t) {
    t[KM_OP_SGD] = (km_op_row){.formula = "m = momentum m + g; p -= lr m", .min_in = 2, .max_in = 3,
                               .dtypes = KM_FLOATS, .infer = infer_sgd, .tol = KM_TOL_SUM};
    t[KM_OP_ADAMW] = (km_op_row){.formula = "p -= lr (m^ / (sqrt(v^) + eps) + decay p)", .min_in = 4,
                                 .max_in = 4, .dtypes = KM_FLOATS, .infer = infer_adamw,
                                 .tol = KM_TOL_SUM};
}

/* ---- Public ---- */

static km_status check_parameter(km_ctx *ctx, const char *name, int i, const km_tensor *p,
                                 km_tensor *const *states, int n_states, const km_device *device) {
    if (!p->kept || !km_is_contiguous(p) || !km_is_contiguous(p->grad))
        return km_fail(ctx, KM_ERR_STATE, "%s: parameter %d is not a kept contiguous tensor", name,
                       i + 1);
    for (int k = 0; k < n_states; k++) {
        if (!states[k] || !states[k]->kept || !states[k]->storage || !km_is_contiguous(states[k]))
            return km_fail(ctx, KM_ERR_NULL, "%s: parameter %d has no kept contiguous state", name,
                           i + 1);
        if (check_state(ctx, name, "state", p, states[k]) != KM_OK) return ctx->error.code;
        if (km_tensor_dev(states[k]) != device) break;
    }
    bool here = km_tensor_dev(p) == device;
    for (int k = 0; k < n_states; k++) here &= km_tensor_dev(states[k]) == device;
    if (!here)
        return km_fail(ctx, KM_ERR_DEVICE, "%s: parameters and state must all be on %s", name,
                       device->name);
    return KM_OK;
}

/* Gathers (p, g, states) of every parameter with a gradient, one dtype at a time, and runs the
 * kernel on them in place. */
static km_status step_all(km_ctx *ctx, km_op op, km_tensor *const *parameters,
                          km_tensor *const *const *states, int n_states, int n, const km_params *how) {
    const char *name = km_op_name(op);
    int each = 2 + (op == KM_OP_SGD ? 1 : 2), made = 1 + (each - 2);
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!parameters && n > 0) return km_fail(ctx, KM_ERR_NULL, "%s: no parameters", name);
    size_t room = sizeof(km_tensor *) * (size_t)(n > 0 ? n : 1);
    km_tensor **in = km_arena_alloc(&ctx->arena, room * (size_t)each);
    km_tensor **out = km_arena_alloc(&ctx->arena, room * (size_t)made);
    if (!in || !out) return km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", name);
    for (int d = 0; d < KM_DTYPE_COUNT; d++) {
        int n_in = 0, n_out = 0;
        for (int i = 0; i < n; i++) {
            km_tensor *p = parameters[i], *g = km_grad(p), *state[2] = {0};
            if (!g || (int)p->dtype != d) continue;
            for (int k = 0; k < n_states; k++) state[k] = states[k] ? states[k][i] : NULL;
            if (check_parameter(ctx, name, i, p, state, n_states, ctx->lanes[0]->device) != KM_OK)
                return ctx->error.code;
            in[n_in++] = p;
            in[n_in++] = g;
            out[n_out++] = p;
            for (int k = 0; k < each - 2; k++) in[n_in++] = out[n_out++] = state[k];
        }
        if (!n_in) continue;
        km_status s = km_run(ctx, op, in, n_in, how, out, n_out);
        for (int k = 0; k < n_out; k++)
            if (out[k]) out[k]->storage->version++;
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

km_status km_sgd_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m, int n,
                      const km_sgd *how) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!how) return km_fail(ctx, KM_ERR_NULL, "sgd: no settings");
    if (!m && how->momentum != 0)
        return km_fail(ctx, KM_ERR_NULL, "sgd: momentum needs a state to keep it in");
    km_params p = {.f = {how->lr, how->momentum, how->weight_decay}, .n = {how->nesterov}};
    return step_all(ctx, KM_OP_SGD, parameters, &m, m ? 1 : 0, n, &p);
}

km_status km_adamw_step(km_ctx *ctx, km_tensor *const *parameters, km_tensor *const *m,
                        km_tensor *const *v, int n, const km_adamw *how) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!how || !m || !v) return km_fail(ctx, KM_ERR_NULL, "adamw: settings and state are needed");
    if (how->step < 1)
        return km_fail(ctx, KM_ERR_RANGE, "adamw: step %lld; they count from 1", (long long)how->step);
    km_params p = {.f = {how->lr, how->beta1, how->beta2, how->eps, how->weight_decay},
                   .n = {how->step, !how->coupled}};
    km_tensor *const *states[] = {m, v};
    return step_all(ctx, KM_OP_ADAMW, parameters, states, 2, n, &p);
}

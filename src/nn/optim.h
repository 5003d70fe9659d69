/* Optimisers: parameters in groups, their state, and a step that never reads back.
 *
 *     km_optimizer *o = km_optimizer_new(ctx, &model->params, &how);
 *     for (step ...) {
 *         km_optimizer_set(ctx, o, lr, accumulate);           // outside a captured step
 *         for (i < accumulate) {                              // this part can be captured
 *             if (i == accumulate - 1) km_optimizer_last_backward(ctx, o);
 *             km_backward(ctx, km_optimizer_scale_loss(ctx, o, loss));
 *         }
 *         km_optimizer_step(ctx, o);
 *         km_optimizer_zero_grad(ctx, o);
 *         ...
 *         km_optimizer_report(ctx, o, &r);                    // when the loss is read: waits
 *     }
 *
 * Norm, clip factor, loss scale, bias corrections and the count of steps all live in a small
 * tensor on the device (backend/control.h), so a step captured in a graph can be replayed: only the
 * learning rate is written from outside. A step whose gradient norm is not finite changes no
 * parameter and no state; it is counted, and halves the loss scale where there is one.
 *
 * With several ranks the gradients are summed over them while the backward pass still
 * runs, each rank keeps and updates its part of the state (ZeRO-1), and the parameters are put
 * together again. All ranks must make the same calls. */
#ifndef KM_NN_OPTIM_H
#define KM_NN_OPTIM_H
#include "nn/param.h"

struct km_comm;

/* Makes the state of all parameters in the list that are not frozen (nn/param.h); the list and its
 * names must outlive the optimiser. The settings are copied. With several ranks (comm; NULL: one) the
 * parameters move into common memory (their handles stay) and take rank 0's values. NULL with the
 * context's error set. */
km_optimizer *km_optimizer_new_ranks(km_ctx *ctx, const km_param_list *params,
                                     const km_optim_settings *how, struct km_comm *comm);
/* The next km_backward is the last before the step: gradients may be reduced as they get ready. */
void km_optimizer_last_backward(km_ctx *ctx, km_optimizer *o);
/* Whether a step can be captured in a graph (always, but for ranks that talk through the host). */
bool km_optimizer_capturable(const km_optimizer *o);
/* The optimiser is there and of this context; else the context fails. */
km_status km_optimizer_check(km_ctx *ctx, const km_optimizer *o);

int64_t km_optimizer_trained(const km_optimizer *o);    /* elements that are not frozen */
size_t km_optimizer_state_bytes(const km_optimizer *o); /* on this rank */

/* ---- The state, for checkpoints: named f32 tensors, in a fixed order ----
 * optim.m.NAME, optim.v.NAME, optim.w.NAME (f32 weights behind 16-bit parameters), and optim.control
 * (steps, skips, loss scale). Complete on every rank: reading gathers, so all ranks must call. */
typedef struct km_optim_state {
    const char *name; /* valid until the optimiser is freed */
    km_shape shape;
} km_optim_state;

int km_optimizer_states(const km_optimizer *o);
km_optim_state km_optimizer_state(const km_optimizer *o, int i);
int km_optimizer_find_state(const km_optimizer *o, const char *name); /* -1: none */
km_status km_optimizer_read_state(km_ctx *ctx, km_optimizer *o, int i, float *dst);
km_status km_optimizer_write_state(km_ctx *ctx, km_optimizer *o, int i, const float *src);
/* The f32 weights again from the parameters, after those were overwritten from outside. */
km_status km_optimizer_adopt(km_ctx *ctx, km_optimizer *o);

/* ---- Learning-rate schedules (kermes.h): a function of the step, so that a resumed run sees the same ---- */

km_status km_schedule_check(const km_schedule *s, km_error *err);
/* By name: "constant", "linear", "cosine", "wsd"; false when there is none of that name. */
bool km_schedule_named(const char *name, km_schedule_kind *kind);

#endif

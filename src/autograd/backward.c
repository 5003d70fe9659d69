/* The backward pass: the tape walked from the loss to its beginning. Each rule runs in a scope of
 * its own, so a gradient lives only from the rule that makes it to the rule that uses it, and what
 * the forward pass saved for a rule is freed as soon as that rule has run. */
#include "autograd/ready.h"
#include "ops/op.h"

/* Data that a rule will read must still be what the forward pass saw. */
static km_status check_saved(km_ctx *ctx, const km_node *n) {
    const km_op_row *row = km_op_get(n->op);
    const char *name = n->custom ? n->custom->name : row->name;
    for (int i = 0; i < n->n_in; i++) {
        if (km_saves_in(n, i) && n->in[i]->storage->version != n->version[i])
            return km_fail(ctx, KM_ERR_STATE,
                           "backward: input %d of %s was changed after %s used it", i + 1, name,
                           name);
    }
    for (int i = 0; i < n->n_out; i++)
        if (km_saves_out(n, i) && n->out[i]->storage->version != n->out_version[i])
            return km_fail(ctx, KM_ERR_STATE,
                           "backward: the output of %s was changed after %s made it", name, name);
    return KM_OK;
}

static void run_rule(km_ctx *ctx, km_node *n) {
    int mark = ctx->n_step;
    if (check_saved(ctx, n) != KM_OK) return;
    /* Held once more while the rule runs, so that nobody downstream takes them over. */
    km_storage *held[KM_MAX_OUTPUTS] = {0};
    int n_out = n->n_out;
    for (int i = 0; i < n_out; i++)
        if (n->grad[i]) km_storage_retain(held[i] = n->grad[i]->storage);
    ctx->grad_of = n->custom ? n->custom->name : km_op_name(n->op);
    uint64_t steps = ctx->steps;
    km_op_get(n->op)->grad(ctx, n);
    ctx->grad_of = NULL;
    for (int i = 0; i < n_out; i++)
        if (held[i]) km_storage_release(ctx, held[i]);
    if (ctx->steps != steps) return; /* a rule of the user's ended the step: all of it is gone */
    km_node_release(ctx, n);
    km_step_drop(ctx, mark, NULL, 0);
}

/* A rule may count on the gradient of its first output, unless its row says otherwise. */
static km_status fill_missing(km_ctx *ctx, km_node *n) {
    if (n->grad[0] || km_op_get(n->op)->flags & KM_OP_ANY_GRADIENT) return KM_OK;
    km_tensor *y = n->out[0];
    km_tensor *zero = km_fill_on(ctx, km_tensor_dev(y), y->dtype, y->shape, 0);
    if (!zero) return ctx->error.code;
    km_storage_retain(zero->storage);
    n->grad[0] = zero;
    return KM_OK;
}

/* ---- Who is ready when ---- */

void km_on_gradient(km_ctx *ctx, km_ready_fn fn, void *user) {
    ctx->ready = fn;
    ctx->ready_user = user;
}

static bool is_parameter(const km_tensor *t) {
    return t && t->kept && t->requires_grad && !t->node;
}

static void mark_last_uses(km_node *last) {
    for (km_node *n = last; n; n = n->prev)
        for (int i = 0; i < n->n_in; i++)
            if (is_parameter(n->in[i])) n->in[i]->last_use = n;
}

static void tell_ready(km_ctx *ctx, const km_node *n) {
    for (int i = 0; i < n->n_in && !km_failed(ctx); i++) {
        km_tensor *t = n->in[i];
        if (!is_parameter(t) || t->last_use != n) continue;
        t->last_use = NULL;
        ctx->ready(ctx->ready_user, ctx, t);
    }
}

km_status km_backward(km_ctx *ctx, km_tensor *loss) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    char text[KM_SHAPE_TEXT];
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!loss) return km_fail(ctx, KM_ERR_NULL, "backward: no loss");
    if (loss->ctx != ctx)
        return km_fail(ctx, KM_ERR_STATE, "backward: the loss belongs to another context");
    if (km_shape_count(loss->shape) != 1)
        return km_fail(ctx, KM_ERR_SHAPE, "backward: the loss must have one element, not %s",
                       km_shape_text(text, loss->shape));
    if (!loss->requires_grad || !loss->node)
        return km_fail(ctx, KM_ERR_STATE, "backward: the loss does not depend on any parameter");
    if (loss->node->done) return km_fail(ctx, KM_ERR_STATE, "backward: already done for this loss");
    if (!loss->storage->data)
        return km_fail(ctx, KM_ERR_STATE, "backward: the loss was freed when its scope ended");
    bool tell = ctx->ready && ctx->backwards == 0;
    if (tell) mark_last_uses(loss->node);
    ctx->no_grad++;
    ctx->backwards++;
    int mark = ctx->n_step;
    km_tensor *one = km_fill_on(ctx, km_tensor_dev(loss), loss->dtype, loss->shape, 1);
    if (one) one->is_one = true;
    km_grad_add(ctx, loss, one);
    km_step_drop(ctx, mark, NULL, 0);
    for (km_node *n = loss->node; n && !km_failed(ctx); n = n->prev) {
        bool reached = false;
        for (int i = 0; i < n->n_out; i++) reached |= n->grad[i] != NULL;
        if (!reached) {
            if (tell) tell_ready(ctx, n);
            continue;
        }
        if (n->done) {
            km_fail(ctx, KM_ERR_STATE, "backward: %s was already back-propagated in this step",
                    km_op_name(n->op));
            break;
        }
        mark = ctx->n_step;
        uint64_t steps = ctx->steps;
        if (fill_missing(ctx, n) == KM_OK) run_rule(ctx, n);
        if (ctx->steps != steps) break;
        if (tell) tell_ready(ctx, n);
        km_step_drop(ctx, mark, NULL, 0);
    }
    ctx->backwards--;
    ctx->no_grad--;
    return km_ctx_status(ctx);
}

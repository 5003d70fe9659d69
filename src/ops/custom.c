/* Ops of the user's own. Their functions are not trusted: what they return may be anybody's
 * tensor, and must neither be tied to the tape twice nor become a gradient that shares memory. */
#include "ops/families.h"
#include <stdio.h>

/* Whether the user's function left the step, and with it inputs and tape, as it was. */
static bool same_step(km_ctx *ctx, const char *name, const char *what, uint64_t steps) {
    if (km_failed(ctx)) return false;
    if (ctx->steps == steps) return true;
    km_fail(ctx, KM_ERR_STATE, "%s: %s ended the step that it is part of", name, what);
    return false;
}

/* Whether t, which the user's function returned as `what`, can be used. */
static bool sound(km_ctx *ctx, const char *name, const char *what, const km_tensor *t) {
    if (t->ctx == ctx && t->storage && t->storage->data) return true;
    km_fail(ctx, KM_ERR_STATE,
            t->ctx == ctx ? "%s: %s was freed (released, or made in a scope that has ended)"
                          : "%s: %s belongs to another context",
            name, what);
    return false;
}

static void add_gradient(km_ctx *ctx, km_node *n, int i, km_tensor *g) {
    char what[48], a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    const char *name = n->custom->name;
    km_tensor *x = n->in[i];
    snprintf(what, sizeof what, "the gradient of input %d", i + 1);
    if (!sound(ctx, name, what, g)) return;
    if (!km_shape_equal(g->shape, x->shape)) {
        km_fail(ctx, KM_ERR_SHAPE, "%s: %s is %s, not %s", name, what, km_shape_text(a, g->shape),
                km_shape_text(b, x->shape));
        return;
    }
    if (km_tensor_dev(g) != km_tensor_dev(x)) {
        km_fail(ctx, KM_ERR_DEVICE, "%s: %s is on %s, not on %s", name, what,
                km_tensor_dev(g)->name, km_tensor_dev(x)->name);
        return;
    }
    km_grad_add(ctx, x, g->kept ? km_copy(ctx, g) : g);
}

static void grad_custom(km_ctx *ctx, km_node *n) {
    km_tensor **grads = km_arena_alloc(&ctx->arena, sizeof *grads * (size_t)(n->n_in + 1));
    if (!grads) {
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", n->custom->name);
        return;
    }
    const char *name = n->custom->name;
    uint64_t steps = ctx->steps;
    n->custom->backward(ctx, n->in, n->n_in, n->out[0], n->grad[0], grads, n->custom->user);
    if (!same_step(ctx, name, "backward", steps)) return;
    for (int i = 0; i < n->n_in && !km_failed(ctx); i++)
        if (grads[i] && km_needs(n, i)) add_gradient(ctx, n, i, grads[i]);
}

void km_rows_custom(km_op_row *t) {
    t[KM_OP_CUSTOM] = (km_op_row){.formula = "the user's own",
                                  .max_in = -1,
                                  .dtypes = KM_ANY,
                                  .flags = KM_OP_VIEW,
                                  .grad = grad_custom,
                                  .save_in = ~0u,
                                  .save_out = 1};
}

/* A tensor that is not new (an input, a kept one, another op's result) is returned as a view. */
static km_tensor *own(km_ctx *ctx, km_tensor *y, km_tensor *const *inputs, int n) {
    bool fresh = !y->kept && !y->node;
    for (int i = 0; i < n; i++) fresh &= y != inputs[i];
    return fresh ? y : km_detach(ctx, y);
}

km_tensor *km_custom(km_ctx *ctx, const km_custom_op *op, km_tensor *const *inputs, int n) {
    KM_CTX_CALL(ctx, NULL);
    if (km_failed(ctx)) return NULL;
    if (!op || !op->forward || !op->name) {
        km_fail(ctx, KM_ERR_NULL, "custom: an op needs a name and a forward function");
        return NULL;
    }
    if (n < 0 || (n && !inputs)) {
        km_fail(ctx, KM_ERR_NULL, "%s: no inputs given", op->name);
        return NULL;
    }
    for (int i = 0; i < n; i++)
        if (km_want_input(ctx, op->name, i, inputs[i]) != KM_OK) return NULL;
    uint64_t steps = ctx->steps;
    ctx->no_grad++;
    km_tensor *y = op->forward(ctx, inputs, n, op->user);
    ctx->no_grad--;
    if (!same_step(ctx, op->name, "forward", steps)) return NULL;
    if (!y) {
        km_fail(ctx, KM_ERR_NULL, "%s: forward returned no tensor", op->name);
        return NULL;
    }
    if (!sound(ctx, op->name, "the result of forward", y)) return NULL;
    y = own(ctx, y, inputs, n);
    if (!y || !op->backward || !km_recording(ctx, inputs, n)) return y;
    km_custom_op *mine = km_arena_alloc(&ctx->arena, sizeof *mine);
    if (!mine) {
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", op->name);
        return NULL;
    }
    *mine = *op;
    km_record(ctx, KM_OP_CUSTOM, inputs, n, &(km_params){0}, &y, 1, mine);
    return km_failed(ctx) ? NULL : y;
}

/* Recording: which calls, with which operands, and the gradients on their way back to them. The
 * backward pass itself is autograd/backward.c. */
#include "ops/op.h"
#include "base/alloc.h"

bool km_recording(const km_ctx *ctx, km_tensor *const *in, int n_in) {
    if (ctx->no_grad) return false;
    for (int i = 0; i < n_in; i++)
        if (in[i] && in[i]->requires_grad) return true;
    return false;
}

void km_no_grad_begin(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (km_ctx_is(ctx)) ctx->no_grad++;
}

void km_no_grad_end(km_ctx *ctx) {
    KM_CTX_CALL(ctx, );
    if (!km_ctx_is(ctx)) return;
    if (ctx->no_grad == 0)
        km_fail(ctx, KM_ERR_STATE, "no_grad: ended without a begin");
    else
        ctx->no_grad--;
}

static void tape_reset(km_ctx *ctx) {
    for (km_node *n = ctx->tape; n; n = n->prev) km_node_release(ctx, n);
    ctx->tape = NULL;
}

/* A kept constant may be released, or, being a gradient, get another storage, before the backward
 * pass. Nothing flows into it, so the tape takes a view of what it is now. */
static km_tensor *as_it_is_now(km_ctx *ctx, km_tensor *t) {
    if (!t || !t->kept || t->requires_grad) return t;
    return km_tensor_view(ctx, t, t->shape, t->stride, t->offset);
}

void km_record(km_ctx *ctx, km_op op, km_tensor *const *in, int n_in, const km_params *p,
               km_tensor *const *out, int n_out, const km_custom_op *custom) {
    const km_op_row *row = km_op_get(op);
    km_node *n = km_arena_alloc(&ctx->arena, sizeof *n);
    km_tensor **ins = km_arena_alloc(&ctx->arena, sizeof *ins * (size_t)(n_in + 1));
    unsigned *version = km_arena_alloc(&ctx->arena, sizeof *version * (size_t)(n_in + 1));
    if (!n || !ins || !version) {
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory for the tape", row->name);
        return;
    }
    for (int i = 0; i < n_in; i++) {
        ins[i] = as_it_is_now(ctx, in[i]);
        if (in[i] && !ins[i]) return;
    }
    *n = (km_node){.prev = ctx->tape,
                   .op = op,
                   .n_in = n_in,
                   .n_out = n_out,
                   .in = ins,
                   .version = version,
                   .p = *p,
                   .custom = custom,
                   .save_in = row->save_in,
                   .save_out = row->save_out};
    if (row->saves) row->saves(n);
    for (int i = 0; i < n_in; i++) {
        if (!in[i]) continue;
        version[i] = in[i]->storage->version;
        if (km_saves_in(n, i)) km_storage_retain(in[i]->storage);
    }
    for (int i = 0; i < n_out; i++) {
        n->out[i] = out[i];
        n->out_version[i] = out[i]->storage->version;
        if (km_saves_out(n, i)) km_storage_retain(out[i]->storage);
        if (!km_dtype_is_float(out[i]->dtype)) continue;
        out[i]->requires_grad = true;
        out[i]->node = n;
        out[i]->node_output = i;
    }
    ctx->tape = n;
    ctx->tape_reset = tape_reset;
}

void km_node_release(km_ctx *ctx, km_node *n) {
    for (int i = 0; i < n->n_out; i++) {
        if (n->grad[i]) km_storage_release(ctx, n->grad[i]->storage);
        n->grad[i] = NULL;
    }
    if (n->done) return;
    n->done = true;
    for (int i = 0; i < n->n_in; i++)
        if (km_saves_in(n, i)) km_storage_release(ctx, n->in[i]->storage);
    for (int i = 0; i < n->n_out; i++)
        if (km_saves_out(n, i)) km_storage_release(ctx, n->out[i]->storage);
}

/* ---- Gradients on their way ---- */

km_tensor *km_sum_to(km_ctx *ctx, km_tensor *g, km_shape shape) {
    if (!g || km_shape_equal(g->shape, shape)) return g;
    int axes[KM_MAX_DIMS], n = 0, lead = g->shape.ndim - shape.ndim;
    for (int i = 0; i < g->shape.ndim; i++)
        if (i < lead || (shape.dim[i - lead] == 1 && g->shape.dim[i] != 1)) axes[n++] = i;
    if (n) g = km_sum(ctx, g, axes, n, true);
    return km_reshape(ctx, g, shape);
}

/* Only one holder: it may be changed in place. */
static bool is_ours(const km_tensor *g) {
    return g->storage->refs == 1 && !g->storage->give_back && km_is_contiguous(g) &&
           (size_t)km_shape_count(g->shape) * km_dtype_size(g->dtype) == g->storage->bytes;
}

static void add_in_place(km_ctx *ctx, km_tensor *into, km_tensor *g) {
    into->is_one = false;
    km_tensor *in[] = {into, g};
    km_apply_into(ctx, KM_OP_ADD, in, 2, NULL, into);
}

/* Makes g the gradient held for `input`, in place of what was there. A parameter's is a kept tensor
 * whose struct outlives the step; an intermediate's hangs on its node. */
static km_tensor *hold(km_ctx *ctx, km_tensor *input, km_tensor *g) {
    km_tensor **slot = input->node ? &input->node->grad[input->node_output] : &input->grad;
    if (!input->node && !*slot) {
        *slot = km_calloc(1, sizeof **slot);
        if (!*slot) {
            km_fail(ctx, KM_ERR_MEMORY, "backward: out of memory");
            return NULL;
        }
    }
    km_storage_retain(g->storage);
    if (*slot && (*slot)->storage) km_storage_release(ctx, (*slot)->storage);
    if (input->node) {
        *slot = g;
    } else {
        **slot = *g;
        (*slot)->kept = true;
        (*slot)->node = NULL;
        (*slot)->requires_grad = false;
    }
    return *slot;
}

static km_tensor *held(const km_tensor *input) {
    km_tensor *g = input->node ? input->node->grad[input->node_output] : input->grad;
    return g && g->storage ? g : NULL;
}

bool km_grad_held(const km_tensor *input) { return held(input) != NULL; }

void km_grad_add(km_ctx *ctx, km_tensor *input, km_tensor *g) {
    if (!input || !input->requires_grad || !g || km_failed(ctx)) return;
    g = km_sum_to(ctx, g, input->shape);
    if (g && g->dtype != input->dtype) g = km_cast(ctx, g, input->dtype);
    if (!g) return;
    km_tensor *have = held(input);
    if (have && is_ours(have)) {
        add_in_place(ctx, have, g);
        return;
    }
    if (have)
        g = km_add(ctx, have, g);
    else if (!input->node && !is_ours(g))
        g = km_copy(ctx, g); /* a parameter's gradient must not share memory with the step's */
    if (g) hold(ctx, input, g);
}

km_tensor *km_grad_buffer(km_ctx *ctx, km_tensor *input) {
    if (km_failed(ctx)) return NULL;
    km_tensor *have = held(input);
    if (have && is_ours(have)) return have;
    km_tensor *own = have ? km_copy(ctx, have)
                          : km_fill_on(ctx, km_tensor_dev(input), input->dtype, input->shape, 0);
    return own ? hold(ctx, input, own) : NULL;
}

km_tensor *km_grad(km_tensor *t) {
    return t && t->kept && t->grad && t->grad->storage ? t->grad : NULL;
}

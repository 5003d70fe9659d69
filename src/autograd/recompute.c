/* A recorded piece that runs again in the backward pass, on a tape of its own. The piece's inputs
 * stand on that tape as outputs of a node that is never walked, where their gradients gather; the
 * tape ends in an op that hands the gradients of the outer tape to the piece's outputs. */
#include "autograd/recompute.h"
#include "ops/op.h"
#include <string.h>

typedef struct recomputed {
    km_recompute_fn fn;
    void *user;
    int n_out;
    uint64_t seed, draws; /* where the random sequence stood */
} recomputed;

/* ---- The op at the end of the inner tape ---- */

static km_tensor *nothing(km_ctx *ctx, km_tensor *const *inputs, int n, void *user) {
    (void)n, (void)user;
    return km_fill_on(ctx, km_tensor_dev(inputs[0]), KM_F32, KM_SCALAR, 0);
}

static void hand_over(km_ctx *ctx, km_tensor *const *inputs, int n, km_tensor *output,
                      km_tensor *grad_output, km_tensor **grads, void *user) {
    const km_node *outer = user;
    (void)ctx, (void)inputs, (void)output, (void)grad_output;
    for (int i = 0; i < n; i++) grads[i] = outer->grad[i];
}

/* ---- The piece itself ---- */

/* A stand-in for an input, whose gradient gathers in slot i of `gate`. */
static km_tensor *stand_in(km_ctx *ctx, km_tensor *x, km_node *gate, int i) {
    km_tensor *v = km_tensor_view(ctx, x, x->shape, x->stride, x->offset);
    if (!v || !x->requires_grad) return v;
    v->requires_grad = true;
    v->node = gate;
    v->node_output = i;
    return v;
}

/* fn once more, recorded on an empty tape; returns the end of that tape. */
static km_tensor *run_again(km_ctx *ctx, const recomputed *p, km_tensor *const *in,
                            km_node *outer) {
    km_tensor *out[KM_MAX_OUTPUTS] = {0};
    uint64_t seed = ctx->seed, draws = ctx->draws;
    int depth = ctx->no_grad;
    ctx->seed = p->seed;
    ctx->draws = p->draws;
    ctx->no_grad = 0;
    p->fn(ctx, p->user, in, out);
    ctx->seed = seed;
    ctx->draws = draws;
    km_custom_op end = {"recompute", nothing, hand_over, outer};
    km_tensor *last = km_failed(ctx) ? NULL : km_custom(ctx, &end, out, p->n_out);
    ctx->no_grad = depth;
    return last;
}

static void back(km_ctx *ctx, km_tensor *const *inputs, int n, km_tensor *output,
                 km_tensor *grad_output, km_tensor **grads, void *user) {
    km_node *outer = output->node, *tape = ctx->tape;
    km_node *gate = km_arena_alloc(&ctx->arena, sizeof *gate);
    km_tensor *in[KM_MAX_OUTPUTS];
    (void)grad_output;
    if (!gate) {
        km_fail(ctx, KM_ERR_MEMORY, "recompute: out of memory");
        return;
    }
    for (int i = 0; i < n; i++) {
        grads[i] = NULL; /* given below, since what the gate holds must be let go after */
        in[i] = stand_in(ctx, inputs[i], gate, i);
        if (!in[i]) return;
    }
    ctx->tape = NULL;
    km_tensor *last = run_again(ctx, user, in, outer);
    if (last && last->requires_grad) km_backward(ctx, last);
    for (km_node *node = ctx->tape; node; node = node->prev) km_node_release(ctx, node);
    ctx->tape = tape;
    for (int i = 0; i < n; i++) {
        if (!gate->grad[i]) continue;
        km_grad_add(ctx, inputs[i], gate->grad[i]);
        km_storage_release(ctx, gate->grad[i]->storage);
    }
}

km_status km_recompute(km_ctx *ctx, km_recompute_fn fn, const void *user, size_t user_bytes,
                       bool trains, km_tensor *const *in, int n_in, km_tensor **out, int n_out) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (n_in < 1 || n_in > KM_MAX_OUTPUTS || n_out < 1 || n_out > KM_MAX_OUTPUTS)
        return km_fail(ctx, KM_ERR_RANGE, "recompute: %d inputs and %d outputs are too many or few",
                       n_in, n_out);
    bool record = trains ? ctx->no_grad == 0 : km_recording(ctx, in, n_in);
    recomputed now = {fn, NULL, n_out, ctx->seed, ctx->draws};
    int mark = ctx->n_step;
    ctx->no_grad++;
    fn(ctx, user, in, out);
    ctx->no_grad--;
    if (km_failed(ctx)) return ctx->error.code;
    km_step_drop(ctx, mark, out, n_out);
    if (!record) return KM_OK;
    recomputed *p = km_arena_alloc(&ctx->arena, sizeof *p);
    km_custom_op *op = km_arena_alloc(&ctx->arena, sizeof *op);
    now.user = km_arena_alloc(&ctx->arena, user_bytes ? user_bytes : 1);
    if (!p || !op || !now.user) return km_fail(ctx, KM_ERR_MEMORY, "recompute: out of memory");
    if (user_bytes) memcpy(now.user, user, user_bytes);
    *p = now;
    *op = (km_custom_op){"recompute", NULL, back, p};
    km_record(ctx, KM_OP_CUSTOM, in, n_in, &(km_params){0}, out, n_out, op);
    return km_ctx_status(ctx);
}

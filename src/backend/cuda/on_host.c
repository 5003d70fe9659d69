/* Held-back work that the GPU could not start, done by the CPU. */
#include "backend/cuda/on_host.h"
#include "base/log.h"

enum { MOST = 4 };

static size_t bytes_of(const km_cuda_operand *o) {
    return (size_t)km_dtype_bytes(o->dtype, km_shape_count(o->shape));
}

static km_status run(km_ctx *ctx, km_device *device, const km_call *c) {
    km_kernel k = device->backend->kernel[c->op];
    km_status s = k ? k(ctx, c) : KM_ERR_UNSUPPORTED;
    return s == KM_ERR_UNSUPPORTED && device->fallback ? run(ctx, device->fallback, c) : s;
}

static km_status copy_and_run(km_lane *lane, km_op op, const km_params *p,
                              const km_cuda_operand *in, int n_in, const km_cuda_operand *out,
                              int n_out) {
    km_ctx *ctx = lane->ctx;
    km_lane *host = km_ctx_lane(ctx, lane->device->fallback);
    km_tensor *from[MOST], *to[MOST];
    if (!host) return ctx->error.code;
    for (int i = 0; i < n_in; i++) {
        from[i] = km_tensor_new(ctx, host, km_op_name(op), in[i].dtype, in[i].shape);
        if (!from[i] || lane->device->ops->download(lane, km_tensor_ptr(from[i]), in[i].at,
                                                    bytes_of(&in[i])) != KM_OK)
            return ctx->error.code;
    }
    for (int i = 0; i < n_out; i++) {
        to[i] = km_tensor_new(ctx, host, km_op_name(op), out[i].dtype, out[i].shape);
        if (!to[i]) return ctx->error.code;
    }
    km_call c = {.op = op, .n_in = n_in, .n_out = n_out, .in = from, .out = to, .p = p};
    km_status s = run(ctx, lane->device->fallback, &c);
    for (int i = 0; i < n_out && s == KM_OK; i++)
        s = lane->device->ops->upload(lane, out[i].at, km_tensor_ptr(to[i]), bytes_of(&out[i]));
    return s;
}

km_status km_cuda_on_host(km_lane *lane, km_status failed, km_op op, const km_params *p,
                          const km_cuda_operand *in, int n_in, const km_cuda_operand *out,
                          int n_out) {
    static atomic_bool said[KM_OP_COUNT];
    km_ctx *ctx = lane->ctx;
    if ((failed != KM_ERR_GPU && failed != KM_ERR_MEMORY) || ctx->no_fallback ||
        atomic_load(&km_cuda_dev_of(lane)->lost))
        return failed;
    km_error why = ctx->error;
    ctx->error = (km_error){0};
    if (!atomic_exchange(&said[op], true))
        km_note(KM_LOG_WARN, "%s failed on %s (%s); using %s", km_op_name(op), lane->device->name,
                why.text, lane->device->fallback->name);
    ctx->fallbacks++;
    ctx->failed_kernels++;
    int mark = ctx->n_step;
    km_status s = copy_and_run(lane, op, p, in, n_in, out, n_out);
    km_step_drop(ctx, mark, NULL, 0);
    if (s != KM_OK) ctx->error = why;
    return s;
}

/* What chains of elementwise ops gain on a GPU: some programs of layers and their gradients, with
 * chains and with single ops, each captured as a graph and replayed. Prints one JSON object a line:
 * name, microseconds with chains, microseconds with single ops, and the rate with chains if inputs
 * were read and the result written once.
 *
 * usage: gpu_chain DEVICE [substring of the names to run] */
#include "ops/op.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct program {
    const char *name;
    km_tensor *(*run)(km_ctx *ctx, km_tensor *const *in);
    int inputs;
    km_dtype dtype;
    int64_t n;
    km_tensor *in[4]; /* kept */
} program;

static km_tensor *swiglu(km_ctx *ctx, km_tensor *const *in) {
    return km_mul(ctx, km_silu(ctx, in[0]), in[1]);
}
/* What reaches the gate of swiglu: dy, gate, up. */
static km_tensor *swiglu_grad(km_ctx *ctx, km_tensor *const *in) {
    km_tensor *pair[2] = {km_mul(ctx, in[0], in[2]), in[1]};
    return km_apply(ctx, KM_OP_SILU_GRAD, pair, 2, NULL, NULL);
}
static km_tensor *gated_sum(km_ctx *ctx, km_tensor *const *in) {
    km_tensor *gate = km_sigmoid(ctx, km_add(ctx, in[0], in[1]));
    return km_add(ctx, km_mul(ctx, gate, in[2]), in[3]);
}
static km_tensor *eight(km_ctx *ctx, km_tensor *const *in) {
    km_tensor *x = km_gelu(ctx, km_add_scalar(ctx, km_mul_scalar(ctx, in[0], 0.5), 1));
    x = km_mul(ctx, km_tanh(ctx, x), in[1]);
    return km_neg(ctx, km_relu(ctx, km_clamp(ctx, x, -2, 2)));
}

enum { RUNS = 10 };

static void step(km_ctx *ctx, void *user) {
    program *p = user;
    for (int i = 0; i < RUNS; i++) {
        km_scope_begin(ctx);
        km_scope_end(ctx, p->run(ctx, p->in));
    }
}

static double microseconds(const char *device, program *p, bool chains) {
    setenv("KERMES_FUSE", chains ? "1" : "0", 1);
    km_ctx *ctx = km_ctx_new(device, 0);
    unsetenv("KERMES_FUSE");
    if (!ctx) return -1;
    for (int i = 0; i < p->inputs; i++)
        p->in[i] =
            km_keep(ctx, km_cast(ctx, km_normal(ctx, KM_F32, KM_SHAPE(p->n), 0, 1), p->dtype));
    km_step_end(ctx);
    km_graph *graph = NULL;
    double best = 1e30;
    for (int round = 0; round < 8; round++) {
        km_sync(ctx);
        double begin = km_now();
        for (int i = 0; i < 5; i++) {
            km_graph_run(ctx, &graph, 1, step, p);
            km_step_end(ctx);
        }
        km_sync(ctx);
        double each = (km_now() - begin) / (5 * RUNS) * 1e6;
        if (round > 1 && each < best) best = each;
    }
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s: %s\n", p->name, km_ctx_error(ctx));
        best = -1;
    }
    km_graph_free(graph);
    for (int i = 0; i < p->inputs; i++) km_release(p->in[i]);
    km_ctx_free(ctx);
    return best;
}

int main(int argc, char **argv) {
    const int64_t large = 64 << 20, small = 256 << 10;
    program list[] = {{"swiglu bf16 64M", swiglu, 2, KM_BF16, large, {0}},
                      {"swiglu gradient bf16 64M", swiglu_grad, 3, KM_BF16, large, {0}},
                      {"gated sum f32 64M", gated_sum, 4, KM_F32, large, {0}},
                      {"eight ops f32 64M", eight, 2, KM_F32, large, {0}},
                      {"swiglu bf16 256K", swiglu, 2, KM_BF16, small, {0}},
                      {"eight ops f32 256K", eight, 2, KM_F32, small, {0}}};
    if (argc < 2) {
        fprintf(stderr, "usage: gpu_chain DEVICE [substring]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        program *p = &list[i];
        if (argc > 2 && !strstr(p->name, argv[2])) continue;
        double with = microseconds(argv[1], p, true), without = microseconds(argv[1], p, false);
        if (with < 0 || without < 0) return 1;
        double bytes = (double)(p->inputs + 1) * (double)p->n * (double)km_dtype_size(p->dtype);
        printf(
            "{\"name\": \"%s\", \"chain_us\": %.2f, \"single_us\": %.2f, \"rate\": %.3f, \"unit\": \"TB/s\"}\n",
            p->name, with, without, bytes / with * 1e-6);
        fflush(stdout);
    }
    return 0;
}

/* The pieces of a GPT-2 training step on a GPU, each by itself, with the alternatives that fused
 * kernels compete with. Prints one JSON object a line: name, microseconds, rate, unit.
 *
 * usage: bench_gpu_pieces DEVICE [batch of 1024 tokens, default 64] [substring] */
#include "ops/op.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 6 };

typedef struct piece {
    const char *name;
    km_op op;
    km_shape in[INPUTS];
    int n_in;
    km_params p;
    double flops, bytes; /* of one run */
} piece;

static const char *only = "";
static km_ctx *ctx;

static void measure(const piece *w) {
    km_tensor *in[INPUTS] = {0}, *out[KM_MAX_OUTPUTS];
    if (!strstr(w->name, only)) return;
    for (int i = 0; i < w->n_in; i++) {
        if (w->in[i].ndim == 0) continue;
        bool ids = (w->op == KM_OP_CROSS_ENTROPY || w->op == KM_OP_EMBEDDING ||
                    w->op == KM_OP_EMBEDDING_GRAD) &&
                   i == 1;
        bool f32 = (w->op == KM_OP_LAYER_NORM_GRAD && (i == 3 || i == 4)) ||
                   (w->op == KM_OP_ADAMW && i > 1);
        km_tensor *t =
            ids ? km_cast(ctx, km_uniform(ctx, KM_F32, w->in[i], 0, 50256), KM_I32)
                : km_cast(ctx, km_normal(ctx, KM_F32, w->in[i], 0, 0.5), f32 ? KM_F32 : KM_BF16);
        if (f32) t = km_abs(ctx, t);
        in[i] = km_keep(ctx, t);
        km_step_end(ctx);
    }
    double best = 1e9;
    for (int round = 0; round < 4; round++) {
        int reps = round ? 8 : 2;
        km_sync(ctx);
        double t = km_now();
        for (int i = 0; i < reps; i++) {
            km_scope_begin(ctx);
            km_apply(ctx, w->op, in, w->n_in, &w->p, out);
            km_scope_end(ctx, NULL);
        }
        km_sync(ctx);
        t = (km_now() - t) / reps;
        if (round && t < best) best = t;
    }
    if (km_ctx_status(ctx) != KM_OK)
        fprintf(stderr, "%s: %s\n", w->name, km_ctx_error(ctx));
    else
        printf("{\"name\": \"%s\", \"us\": %.1f, \"rate\": %.4g, \"unit\": \"%s\"}\n", w->name,
               best * 1e6, (w->flops ? w->flops : w->bytes) / best / 1e12,
               w->flops ? "TFLOP/s" : "TB/s");
    fflush(stdout);
    km_ctx_clear_error(ctx);
    for (int i = 0; i < INPUTS; i++) km_release(in[i]);
    km_step_end(ctx);
}

/* Attention over packed heads, forward and back. */
static void measure_attention(int64_t batch) {
    if (!strstr("attention", only)) return;
    km_tensor *x = km_keep(
        ctx, km_cast(ctx, km_normal(ctx, KM_F32, KM_SHAPE(batch, 1024, 2304), 0, 1), KM_BF16));
    km_step_end(ctx);
    for (int back = 0; back < 2; back++) {
        double best = 1e9;
        km_require_grad(ctx, x, back);
        for (int round = 0; round < 5; round++) {
            km_tensor *y = km_attention_qkv(ctx, x, 12, 12, true, 0);
            km_tensor *one = back ? km_sum(ctx, km_cast(ctx, y, KM_F32), NULL, 0, false) : NULL;
            km_sync(ctx);
            double t = km_now();
            if (back)
                km_backward(ctx, one);
            else
                for (int i = 0; i < 4; i++) km_attention_qkv(ctx, x, 12, 12, true, 0);
            km_sync(ctx);
            t = (km_now() - t) / (back ? 1 : 4);
            if (round && t < best) best = t;
            km_zero_grad(ctx, &x, 1);
            km_step_end(ctx);
        }
        double flops = 2.0 * (double)batch * 12 * 1024 * 1024 * 64 * (back ? 2.5 : 1);
        printf(
            "{\"name\": \"attention %s\", \"us\": %.1f, \"rate\": %.4g, \"unit\": \"TFLOP/s\"}\n",
            back ? "backward (with the sum's)" : "forward", best * 1e6, flops / best / 1e12);
    }
    km_release(x);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_gpu_pieces DEVICE [batch] [substring]\n");
        return 2;
    }
    ctx = km_ctx_new(argv[1], 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    int64_t b = argc > 2 ? atoll(argv[2]) : 64, r = b * 1024, c = 768, f = 3072, v = 50304,
            part = 8192;
    if (argc > 3) only = argv[3];
#define S(...) KM_SHAPE(__VA_ARGS__)
#define FL(m, n, k) 2.0 * (double)(m) * (double)(n) * (double)(k)
#define BY(x) (double)(x)
#define FORWARD(label, in_, out_, act_, keep)                                                      \
    {                                                                                              \
        label, KM_OP_LINEAR, {S(r, in_), S(out_, in_), S(out_)}, 3,                                \
            {.act = act_, .n = {[KM_N_BOTH] = keep}}, FL(r, in_, out_), 0                          \
    }
#define DX(label, in_, out_)                                                                       \
    { label, KM_OP_LINEAR_DX, {S(r, out_), S(out_, in_)}, 2, {0}, FL(r, in_, out_), 0 }
#define DW(label, in_, out_, sums)                                                                 \
    {                                                                                              \
        label, KM_OP_LINEAR_DW, {S(r, out_), S(r, in_)}, 2, {.n = {[KM_N_BOTH] = sums}},           \
            FL(r, in_, out_), 0                                                                    \
    }
    const piece list[] = {
        FORWARD("forward qkv", c, 3 * c, KM_ACT_NONE, 0),
        FORWARD("forward proj", c, c, KM_ACT_NONE, 0),
        FORWARD("forward up", c, f, KM_ACT_NONE, 0),
        FORWARD("forward up, gelu", c, f, KM_ACT_GELU, 0),
        FORWARD("forward up, gelu, kept", c, f, KM_ACT_GELU, 1),
        FORWARD("forward down", f, c, KM_ACT_NONE, 0),
        DX("dx qkv", c, 3 * c),
        DX("dx proj", c, c),
        DX("dx up", c, f),
        DX("dx down", f, c),
        {"dx down, slope",
         KM_OP_LINEAR_DX,
         {S(r, c), S(c, f), S(r, f)},
         3,
         {.act = KM_ACT_GELU},
         FL(r, c, f),
         0},
        {"dx down, slope, sums",
         KM_OP_LINEAR_DX,
         {S(r, c), S(c, f), S(r, f)},
         3,
         {.act = KM_ACT_GELU, .n = {[KM_N_BOTH] = 1}},
         FL(r, c, f),
         0},
        DW("dw qkv", c, 3 * c, 0),
        DW("dw qkv, sums", c, 3 * c, 1),
        DW("dw proj", c, c, 0),
        DW("dw proj, sums", c, c, 1),
        DW("dw up", c, f, 0),
        DW("dw up, sums", c, f, 1),
        DW("dw down", f, c, 0),
        DW("dw down, sums", f, c, 1),
        {"gelu", KM_OP_GELU, {S(r, f)}, 1, {0}, 0, BY(r * f * 4)},
        {"gelu_grad", KM_OP_GELU_GRAD, {S(r, f), S(r, f)}, 2, {0}, 0, BY(r * f * 6)},
        {"sum 768", KM_OP_SUM, {S(r, c)}, 1, {.axes = 1}, 0, BY(r * c * 2)},
        {"sum 2304", KM_OP_SUM, {S(r, 3 * c)}, 1, {.axes = 1}, 0, BY(r * c * 6)},
        {"sum 3072", KM_OP_SUM, {S(r, f)}, 1, {.axes = 1}, 0, BY(r * f * 2)},
        {"add_layer_norm",
         KM_OP_ADD_LAYER_NORM,
         {S(r, c), S(r, c), S(c), S(c)},
         4,
         {.f = {[KM_F_EPS] = 1e-5}},
         0,
         BY(r * c * 8)},
        {"layer_norm_grad",
         KM_OP_LAYER_NORM_GRAD,
         {S(r, c), S(r, c), S(c), S(r), S(r), S(r, c)},
         6,
         {.f = {[KM_F_EPS] = 1e-5}},
         0,
         BY(r * c * 8)},
        {"embedding", KM_OP_EMBEDDING, {S(v, c), S(r)}, 2, {0}, 0, BY(r * c * 4)},
        {"embedding_grad",
         KM_OP_EMBEDDING_GRAD,
         {S(r, c), S(r)},
         2,
         {.n = {[KM_N_TABLE_ROWS] = v}},
         0,
         BY(r * c * 2 + v * c * 2)},
        {"head forward", KM_OP_LINEAR, {S(part, c), S(v, c)}, 2, {0}, FL(part, c, v), 0},
        {"head cross_entropy",
         KM_OP_CROSS_ENTROPY,
         {S(part, v), S(part)},
         2,
         {.n = {[KM_N_IGNORE] = -100, [KM_N_REDUCTION] = KM_SUM, [KM_N_WITH_GRADIENT] = 1}},
         0,
         BY(part * v * 4)},
        {"head dx", KM_OP_LINEAR_DX, {S(part, v), S(v, c)}, 2, {0}, FL(part, c, v), 0},
        {"head dw", KM_OP_LINEAR_DW, {S(part, v), S(part, c)}, 2, {0}, FL(part, c, v), 0},
        {"add", KM_OP_ADD, {S(r, c), S(r, c)}, 2, {0}, 0, BY(r * c * 6)},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) measure(&list[i]);
    measure_attention(b);
    int status = km_ctx_status(ctx) == KM_OK ? 0 : 1;
    km_ctx_free(ctx);
    return status;
}

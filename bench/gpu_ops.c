/* The table of GPU figures: each piece of work is captured as a graph of several runs and replayed,
 * so that launches cost next to nothing, as in a real training or decoding loop. Prints one JSON
 * object a line: name, microseconds of one run, rate, unit. bench/torch_ops.py prints the same names
 * for PyTorch; scripts/gpu-check runs both and puts them side by side.
 *
 * usage: bench_gpu_ops DEVICE [substring of the names to run | "matmul f32 MxKxN"] */
#include "ops/op.h"
#include "base/clock.h"
#include <stdio.h>
#include <string.h>

enum { INPUTS = 6 };

typedef struct work {
    const char *name, *unit;
    double amount; /* bytes or operations of one run */
    void (*run)(km_ctx *ctx, struct work *w);
    km_dtype dtype;
    int64_t dim[5];
    km_op op;
    km_tensor *in[INPUTS]; /* kept */
    int n_in;
    int turns; /* matrices to go through, one a run, so that the L2 does not serve them; 0 for one */
    int repeat, at;
} work;

static km_tensor *make(km_ctx *ctx, km_dtype d, km_shape s) {
    return km_keep(ctx, km_cast(ctx, km_normal(ctx, KM_F32, s, 0, 1), d));
}

static void run_op(km_ctx *ctx, work *w) {
    km_params p = {.f = {[KM_F_ALPHA] = 1}};
    if (w->op == KM_OP_SUM) p.axes = 1;
    if (w->op == KM_OP_LAYER_NORM || w->op == KM_OP_RMS_NORM) p.f[KM_F_EPS] = 1e-5;
    if (w->op == KM_OP_SOFTMAX) p.axis = 1;
    if (w->op == KM_OP_CROSS_ENTROPY)
        p = (km_params){
            .n = {[KM_N_IGNORE] = -100, [KM_N_REDUCTION] = KM_MEAN, [KM_N_WITH_GRADIENT] = 1}};
    if (w->op == KM_OP_ATTENTION || w->op == KM_OP_ATTENTION_GRAD)
        p = (km_params){.causal = true,
                        .f = {[KM_F_SCALE] = w->dim[4] == 64 ? 0.125 : 0.08838834764831845}};
    km_apply(ctx, w->op, w->in, w->n_in, &p, NULL);
}

/* a against one matrix after the other. */
static void run_turns(km_ctx *ctx, work *w) {
    km_tensor *in[2] = {w->in[0], w->in[1 + w->at++ % w->turns]};
    km_params p = {.f = {[KM_F_ALPHA] = 1}};
    km_apply(ctx, w->op, in, 2, &p, NULL);
}

static void step(km_ctx *ctx, void *user) {
    work *w = user;
    for (int i = 0; i < w->repeat; i++) {
        km_scope_begin(ctx);
        w->run(ctx, w);
        km_scope_end(ctx, NULL);
    }
}

static bool measure(km_ctx *ctx, work *w) {
    km_graph *g = NULL;
    double best = 1e9;
    for (int i = 0; i < 3; i++) km_graph_run(ctx, &g, 1, step, w);
    km_sync(ctx);
    double t = km_now();
    km_graph_run(ctx, &g, 1, step, w);
    km_sync(ctx);
    int rounds = (int)(0.02 / (km_now() - t)) + 3;
    for (int k = 0; k < 7 && km_ctx_status(ctx) == KM_OK; k++) {
        km_sync(ctx);
        t = km_now();
        for (int i = 0; i < rounds; i++) km_graph_run(ctx, &g, 1, step, w);
        km_sync(ctx);
        double each = (km_now() - t) / rounds / w->repeat;
        if (each < best) best = each;
    }
    km_graph_free(g);
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s: %s\n", w->name, km_ctx_error(ctx));
        return false;
    }
    printf("{\"name\": \"%s\", \"us\": %.4g, \"rate\": %.5g, \"unit\": \"%s\"}\n", w->name,
           best * 1e6, w->amount / best / 1e12, w->unit);
    fflush(stdout);
    return true;
}

/* Inputs for a piece of work. dim: rows, columns, ... as the op takes them. */
static void prepare(km_ctx *ctx, work *w) {
    const int64_t *d = w->dim;
    km_seed(ctx, 1);
    switch (w->op) {
    case KM_OP_MATMUL:
        w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[0], d[1]));
        do w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[1], d[2]));
        while (w->n_in <= w->turns);
        break;
    case KM_OP_LAYER_NORM:
    case KM_OP_RMS_NORM:
        w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[0], d[1]));
        w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[1]));
        if (w->op == KM_OP_LAYER_NORM) w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[1]));
        break;
    case KM_OP_CROSS_ENTROPY: {
        w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[0], d[1]));
        km_tensor *t = km_arange(ctx, KM_I32, d[0], 0, 3);
        w->in[w->n_in++] = km_keep(ctx, t);
        break;
    }
    case KM_OP_ATTENTION:
    case KM_OP_ATTENTION_GRAD: {
        km_tensor *out[KM_MAX_OUTPUTS], *qkv[3];
        for (int i = 0; i < 3; i++) { /* heads side by side, as a linear layer leaves them */
            km_tensor *x = km_cast(
                ctx, km_normal(ctx, KM_F32, KM_SHAPE(d[0], d[2], d[1], d[4]), 0, 1), w->dtype);
            x = km_transpose(ctx, x, 1, 2);
            qkv[i] = km_keep(ctx, d[3] ? x : km_copy(ctx, x)); /* or apart, each of its own */
        }
        if (w->op == KM_OP_ATTENTION) {
            for (int i = 0; i < 3; i++) w->in[w->n_in++] = qkv[i];
            break;
        }
        km_params p = {.causal = true,
                       .f = {[KM_F_SCALE] = d[4] == 64 ? 0.125 : 0.08838834764831845}};
        km_apply(ctx, KM_OP_ATTENTION, qkv, 3, &p, out);
        w->in[0] = km_keep(ctx, km_copy(ctx, out[0]));
        for (int i = 0; i < 3; i++) w->in[1 + i] = qkv[i];
        w->in[4] = out[0] ? km_keep(ctx, out[0]) : NULL;
        w->in[5] = out[1] ? km_keep(ctx, out[1]) : NULL;
        w->n_in = 6;
        break;
    }
    case KM_OP_SOFTMAX: w->in[w->n_in++] = make(ctx, w->dtype, KM_SHAPE(d[0], d[1])); break;
    case KM_OP_ADD:
    case KM_OP_MUL: w->in[1] = make(ctx, w->dtype, KM_SHAPE(d[0])); w->n_in++; /* fallthrough */
    default: w->in[0] = make(ctx, w->dtype, KM_SHAPE(d[0])); w->n_in++;
    }
    km_step_end(ctx);
}

#define K 1024LL
#define M (1024LL * 1024)
#define MAT(label, d, n)                                                                           \
    { label, "TFLOP/s", 2.0 * (n) * (n) * (n), run_op, d, {n, n, n}, .op = KM_OP_MATMUL }
#define MAP(label, o, n, streams)                                                                  \
    { label, "TB/s", 4.0 * (streams) * (n), run_op, KM_F32, {n}, .op = o }
#define ROWS(label, o, d, r, c)                                                                    \
    { label, "TB/s", ((d) == KM_F32 ? 8.0 : 4.0) * (r) * (c), run_op, d, {r, c}, .op = o }
#define APART(label, o, times, b, h, t, d)                                                         \
    {                                                                                              \
        label, "TFLOP/s", 2.0 * (times) * (b) * (h) * (t) * (t) * (d), run_op, KM_BF16,            \
            {b, h, t, 0, d}, .op = o                                                               \
    }
#define ATT(label, o, times, b, h, t, d)                                                           \
    {                                                                                              \
        label, "TFLOP/s", 2.0 * (times) * (b) * (h) * (t) * (t) * (d), run_op, KM_BF16,            \
            {b, h, t, t, d}, .op = o                                                               \
    }

static work list[] = {
    MAT("matmul f32 1024", KM_F32, 1024),
    MAT("matmul f32 4096", KM_F32, 4096),
    MAT("matmul bf16 1024", KM_BF16, 1024),
    MAT("matmul bf16 4096", KM_BF16, 4096),
    MAT("matmul bf16 8192", KM_BF16, 8192),
    {"matmul f32 1x4096x4096",
     "TB/s",
     4.0 * 4096 * 4096,
     run_op,
     KM_F32,
     {1, 4096, 4096},
     .op = KM_OP_MATMUL},
    {"matmul f32 1x4096x4096, 5 matrices in turn",
     "TB/s",
     4.0 * 4096 * 4096,
     run_turns,
     KM_F32,
     {1, 4096, 4096},
     .op = KM_OP_MATMUL,
     .turns = 5},
    MAP("add f32 256K", KM_OP_ADD, 256 * K, 3),
    MAP("mul f32 256K", KM_OP_MUL, 256 * K, 3),
    MAP("relu f32 256K", KM_OP_RELU, 256 * K, 2),
    MAP("gelu f32 256K", KM_OP_GELU, 256 * K, 2),
    MAP("exp f32 256K", KM_OP_EXP, 256 * K, 2),
    MAP("add f32 64M", KM_OP_ADD, 64 * M, 3),
    MAP("mul f32 64M", KM_OP_MUL, 64 * M, 3),
    MAP("relu f32 64M", KM_OP_RELU, 64 * M, 2),
    MAP("gelu f32 64M", KM_OP_GELU, 64 * M, 2),
    MAP("exp f32 64M", KM_OP_EXP, 64 * M, 2),
    MAP("sum f32 1M", KM_OP_SUM, M, 1),
    MAP("sum f32 64M", KM_OP_SUM, 64 * M, 1),
    ROWS("softmax f32 8192x4096", KM_OP_SOFTMAX, KM_F32, 8192, 4096),
    ROWS("layer_norm f32 8192x4096", KM_OP_LAYER_NORM, KM_F32, 8192, 4096),
    ROWS("rms_norm f32 8192x4096", KM_OP_RMS_NORM, KM_F32, 8192, 4096),
    ROWS("softmax f32 16384x50304", KM_OP_SOFTMAX, KM_F32, 16384, 50304),
    ROWS("layer_norm f32 16384x50304", KM_OP_LAYER_NORM, KM_F32, 16384, 50304),
    ROWS("rms_norm f32 16384x50304", KM_OP_RMS_NORM, KM_F32, 16384, 50304),
    ROWS("cross_entropy+grad bf16 16384x50304", KM_OP_CROSS_ENTROPY, KM_BF16, 16384, 50304),
    ATT("attention forward bf16 B16 H12 T1024 D64", KM_OP_ATTENTION, 1.0, 16, 12, 1024, 64),
    ATT("attention backward bf16 B16 H12 T1024 D64", KM_OP_ATTENTION_GRAD, 2.5, 16, 12, 1024, 64),
    ATT("attention forward bf16 B4 H16 T4096 D128", KM_OP_ATTENTION, 1.0, 4, 16, 4096, 128),
    ATT("attention backward bf16 B4 H16 T4096 D128", KM_OP_ATTENTION_GRAD, 2.5, 4, 16, 4096, 128),
    APART("attention forward bf16 B16 H12 T1024 D64, heads apart", KM_OP_ATTENTION, 1.0, 16, 12,
          1024, 64),
    APART("attention backward bf16 B16 H12 T1024 D64, heads apart", KM_OP_ATTENTION_GRAD, 2.5, 16,
          12, 1024, 64),
    APART("attention forward bf16 B4 H16 T4096 D128, heads apart", KM_OP_ATTENTION, 1.0, 4, 16,
          4096, 128),
    APART("attention backward bf16 B4 H16 T4096 D128, heads apart", KM_OP_ATTENTION_GRAD, 2.5, 4,
          16, 4096, 128),
};

/* Any product by its sizes: "matmul bf16 1x4096x11008". */
static bool parse_product(const char *text, work *w) {
    long long m, k, n;
    char dtype[8];
    if (sscanf(text, "matmul %7s %lldx%lldx%lld", dtype, &m, &k, &n) != 4) return false;
    km_dtype d = !strcmp(dtype, "bf16") ? KM_BF16 : !strcmp(dtype, "f16") ? KM_F16 : KM_F32;
    *w = (work){text,      "TFLOP/s",         2.0 * (double)m * (double)k * (double)n, run_op, d,
                {m, k, n}, .op = KM_OP_MATMUL};
    if (m == 1) w->unit = "TB/s", w->amount = (d == KM_F32 ? 4.0 : 2.0) * (double)k * (double)n;
    return m > 0 && k > 0 && n > 0;
}

static bool measure_one(const char *device, work *w) {
    km_ctx *ctx = km_ctx_new(device, 0);
    if (!ctx) {
        fprintf(stderr, "%s\n", km_last_error());
        return false;
    }
    w->repeat = w->amount < 1e8 ? 50 : w->amount < 2e10 ? 10 : 3;
    prepare(ctx, w);
    bool ok = measure(ctx, w);
    for (int k = 0; k < INPUTS; k++) km_release(w->in[k]);
    km_ctx_free(ctx);
    return ok;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_gpu_ops DEVICE [substring]\n");
        return 2;
    }
    const char *only = argc > 2 ? argv[2] : "";
    bool ok = true;
    int found = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (!strstr(list[i].name, only)) continue;
        found++;
        ok &= measure_one(argv[1], &list[i]);
    }
    work own;
    if (!found && parse_product(only, &own)) ok = measure_one(argv[1], &own);
    return ok ? 0 : 1;
}

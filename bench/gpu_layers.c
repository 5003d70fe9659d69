/* The ops of a running model's step on a GPU, over weights of random bytes in the shape of a
 * well-known model: a whole step captured as a graph, then each kind of op by itself, and matrices
 * of every type. Prints one JSON object a line.
 *
 * usage: bench_gpu_layers DEVICE [rows, default 1; or several: 1,2,4] [position, default 512]
 *                         [a part of the shapes' names, or "types"] [layers at most] */
#include "ops/infer.h"
#include "base/clock.h"
#include "ops/op.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *name;
    int64_t dim, heads, kv_heads, d, hidden, layers, vocab;
    km_dtype most, some, head; /* `some`: values and half of the down projections */
} shape;

static shape shapes[] = {
    {"qwen2.5-3b q4_k_m", 2048, 16, 2, 128, 11008, 36, 151936, KM_Q4_K, KM_Q6_K, KM_Q6_K},
    {"llama-3.2-1b bf16", 2048, 32, 8, 64, 8192, 16, 128256, KM_BF16, KM_BF16, KM_BF16},
    {"llama-3.1-8b q4_k_m", 4096, 32, 8, 128, 14336, 32, 128256, KM_Q4_K, KM_Q6_K, KM_Q6_K},
    {"llama-3.1-8b q8_0", 4096, 32, 8, 128, 14336, 32, 128256, KM_Q8_0, KM_Q8_0, KM_Q8_0},
    {"qwen2.5-3b bf16", 2048, 16, 2, 128, 11008, 36, 151936, KM_BF16, KM_BF16, KM_BF16},
    {"llama-3.1-8b bf16", 4096, 32, 8, 128, 14336, 32, 128256, KM_BF16, KM_BF16, KM_BF16},
};

typedef struct layer {
    km_tensor *norm[2], *qkv[3], *o, *gate, *up, *down, *cache[2];
} layer;

typedef struct model {
    const shape *s;
    layer *l;
    km_tensor *norm, *head, *x, *rows, *table;
    double bytes, cache_bytes;
    int64_t n; /* rows of x */
} model;

static km_ctx *ctx;

/* Bytes that make small finite numbers in every type: the same megabyte again and again. */
static km_tensor *weight(model *m, km_dtype d, int64_t out, int64_t in) {
    static unsigned char some[1 << 20];
    size_t bytes = (size_t)km_dtype_bytes(d, out * in);
    unsigned char *data = malloc(bytes);
    unsigned state = 12345;
    for (size_t i = 0; i < sizeof some; i++) {
        unsigned char r = (unsigned char)((state = state * 1103515245u + 12345u) >> 16);
        /* of plain numbers the upper byte: a sign and an exponent */
        some[i] = d >= KM_PLAIN_COUNT ? r & 0x1f : i % 2 == 0 ? r : (r & 0x80) | 0x3c;
    }
    for (size_t i = 0; data && i < bytes; i += sizeof some)
        memcpy(data + i, some, bytes - i < sizeof some ? bytes - i : sizeof some);
    km_tensor *t = km_keep(ctx, km_from_data(ctx, d, KM_SHAPE(out, in), data));
    free(data);
    km_settle(ctx, t);
    km_step_end(ctx);
    if (m) m->bytes += (double)bytes;
    return t;
}

static km_tensor *ones(int64_t n) { return km_keep(ctx, km_ones(ctx, KM_F32, KM_SHAPE(n))); }

static void build(model *m, shape *s, int64_t layers) {
    if (s->layers > layers) s->layers = layers;
    *m = (model){.s = s, .l = calloc((size_t)s->layers, sizeof *m->l)};
    for (int64_t i = 0; i < s->layers; i++) {
        layer *l = &m->l[i];
        int64_t kv = s->kv_heads * s->d, q = s->heads * s->d;
        km_dtype some = i % 2 ? s->some : s->most;
        l->norm[0] = ones(s->dim), l->norm[1] = ones(s->dim);
        l->qkv[0] = weight(m, s->most, q, s->dim);
        l->qkv[1] = weight(m, s->most, kv, s->dim);
        l->qkv[2] = weight(m, some, kv, s->dim);
        l->o = weight(m, s->most, s->dim, q);
        l->gate = weight(m, s->most, s->hidden, s->dim);
        l->up = weight(m, s->most, s->hidden, s->dim);
        l->down = weight(m, some, s->dim, s->hidden);
    }
    m->norm = ones(s->dim);
    m->head = weight(m, s->head, s->vocab, s->dim);
}

/* n rows of x and their caches: one sequence of n tokens when n > 64, else n that stand at `position`. */
static void begin(model *m, int64_t n, int64_t position) {
    const shape *s = m->s;
    bool prompt = n > 64;
    int64_t pages = ((prompt ? n : position) + KM_KV_PAGE) / KM_KV_PAGE + 1;
    int64_t sequences = prompt ? 1 : n;
    m->n = n;
    m->cache_bytes = 2.0 * 2 * (double)(s->kv_heads * s->d * position * sequences * s->layers);
    for (int64_t i = 0; i < s->layers; i++)
        for (int c = 0; c < 2; c++) {
            m->l[i].cache[c] =
                km_keep(ctx, km_zeros(ctx, KM_F16,
                                      KM_SHAPE(pages * sequences, s->kv_heads, KM_KV_PAGE, s->d)));
            km_step_end(ctx);
        }
    m->x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, s->dim), 0, 1));
    int32_t *rows = calloc((size_t)(2 * n), sizeof *rows),
            *table = calloc((size_t)(sequences * pages), sizeof *table);
    for (int64_t i = 0; i < n; i++) {
        rows[2 * i] = prompt ? 0 : (int32_t)i;
        rows[2 * i + 1] = (int32_t)(prompt ? i : position);
    }
    for (int64_t i = 0; i < sequences * pages; i++) table[i] = (int32_t)i;
    m->rows = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(n, 2), rows));
    m->table = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(sequences, pages), table));
    free(rows);
    free(table);
    km_step_end(ctx);
}

static void end(model *m) {
    for (int64_t i = 0; i < m->s->layers; i++)
        for (int c = 0; c < 2; c++) km_release(m->l[i].cache[c]);
    km_tensor *all[] = {m->x, m->rows, m->table};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) km_release(all[k]);
    km_step_end(ctx);
    km_mempool_trim(&ctx->lanes[0]->pool);
}

static void drop(model *m) {
    for (int64_t i = 0; i < m->s->layers; i++) {
        layer *l = &m->l[i];
        km_tensor *all[] = {l->norm[0], l->norm[1], l->qkv[0], l->qkv[1], l->qkv[2],
                            l->o,       l->gate,    l->up,     l->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) km_release(all[k]);
    }
    km_release(m->norm);
    km_release(m->head);
    free(m->l);
    km_step_end(ctx);
    km_mempool_trim(&ctx->lanes[0]->pool);
}

static km_tensor *linear(km_ctx *c, km_tensor *x, km_tensor *w) {
    km_tensor *y = NULL;
    km_linears(c, x, &w, NULL, 1, &y);
    return y;
}

static void step(km_ctx *c, void *user) {
    const model *m = user;
    const shape *s = m->s;
    km_attend_spec spec = {.heads = (int)s->heads,
                           .kv_heads = (int)s->kv_heads,
                           .scale = 0.1,
                           .rope_base = 10000,
                           .pairs = KM_ROPE_HALVES};
    km_no_grad_begin(c);
    km_tensor *x = m->x, *delta = NULL;
    for (int64_t i = 0; i < s->layers; i++) {
        const layer *l = &m->l[i];
        km_tensor *qkv[3];
        km_tensor *h = delta ? km_add_rms_norm(c, delta, x, l->norm[0], 1e-5, &x)
                             : km_rms_norm(c, x, l->norm[0], 1e-5);
        km_linears(c, h, l->qkv, NULL, 3, qkv);
        h = km_attend(c, &spec, qkv[0], qkv[1], qkv[2], l->cache[0], l->cache[1], m->rows,
                      m->table);
        h = linear(c, h, l->o);
        h = km_add_rms_norm(c, h, x, l->norm[1], 1e-5, &x);
        h = km_gated(c, h, l->gate, l->up, KM_ACT_SILU);
        delta = linear(c, h, l->down);
    }
    km_tensor *h = km_add_rms_norm(c, delta, x, m->norm, 1e-5, &x);
    if (m->n > 64) h = km_narrow(c, h, 0, m->n - 1, 1);
    linear(c, h, m->head);
    km_no_grad_end(c);
}

typedef struct times {
    double seconds[KM_OP_COUNT];
    int count[KM_OP_COUNT];
} times;

static void note(void *user, const km_call *c, double seconds) {
    times *t = user;
    t->seconds[c->op] += seconds;
    t->count[c->op]++;
}

static void measure(model *m, int64_t n, int64_t position, double bandwidth) {
    const shape *s = m->s;
    km_graph *graph = NULL;
    begin(m, n, position);
    double best = 1e9;
    for (int round = 0; round < 6; round++) {
        int reps = round < 2 ? 1 : 16;
        km_sync(ctx);
        double t = km_now();
        for (int i = 0; i < reps; i++) km_graph_run(ctx, &graph, 1, step, m);
        km_sync(ctx);
        t = (km_now() - t) / reps;
        if (round > 1 && t < best) best = t;
    }
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s: %s\n", s->name, km_ctx_error(ctx));
        exit(1);
    }
    printf("{\"name\": \"%s\", \"rows\": %lld, \"us\": %.1f, \"tokens_per_s\": %.1f, "
           "\"bytes\": %.4g, \"of_limit\": %.3f",
           s->name, (long long)n, best * 1e6, (double)n / best, m->bytes + m->cache_bytes,
           (m->bytes + m->cache_bytes) / best / bandwidth);
    km_graph_free(graph);
    times t = {{0}, {0}};
    ctx->timed = note, ctx->timed_user = &t;
    step(ctx, m);
    km_step_end(ctx);
    ctx->timed = NULL;
    for (int i = 0; i < KM_OP_COUNT; i++)
        if (t.count[i])
            printf(", \"%s\": \"%d x %.1f us\"", km_op_name((km_op)i), t.count[i],
                   t.seconds[i] / t.count[i] * 1e6);
    printf("}\n");
    fflush(stdout);
    end(m);
}

/* One matrix of each type: microseconds and bytes a second, in a graph of many. */
typedef struct matrices {
    km_tensor *w[8], *x;
} matrices;

static void products(km_ctx *c, void *user) {
    const matrices *m = user;
    km_no_grad_begin(c);
    for (int i = 0; i < 8; i++) linear(c, m->x, m->w[i]);
    km_no_grad_end(c);
}

static void each_type(int64_t n, int64_t out, int64_t in) {
    for (km_dtype d = KM_PLAIN_COUNT; d < KM_DTYPE_COUNT; d = (km_dtype)(d + 1)) {
        matrices m;
        km_graph *graph = NULL;
        for (int i = 0; i < 8; i++) m.w[i] = weight(NULL, d, out, in);
        m.x = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, in), 0, 1));
        double best = 1e9;
        for (int round = 0; round < 5; round++) {
            km_sync(ctx);
            double t = km_now();
            for (int i = 0; i < 8; i++) km_graph_run(ctx, &graph, 1, products, &m);
            km_sync(ctx);
            t = (km_now() - t) / 64;
            if (round > 1 && t < best) best = t;
        }
        double bytes = (double)km_dtype_bytes(d, out * in);
        printf("{\"name\": \"%s\", \"rows\": %lld, \"us\": %.2f, \"TB_per_s\": %.3f, "
               "\"TFLOP_per_s\": %.1f}\n",
               km_dtype_name(d), (long long)n, best * 1e6, bytes / best / 1e12,
               2.0 * (double)(n * out * in) / best / 1e12);
        fflush(stdout);
        km_graph_free(graph);
        for (int i = 0; i < 8; i++) km_release(m.w[i]);
        km_release(m.x);
        km_step_end(ctx);
    }
}

/* The numbers of a list, at most 16. */
static int numbers(const char *text, int64_t *to) {
    int n = 0;
    for (char *end; *text && n < 16; text = *end ? end + 1 : end) to[n++] = strtoll(text, &end, 10);
    return n;
}

int main(int argc, char **argv) {
    int64_t rows[16] = {1}, position = argc > 3 ? atoll(argv[3]) : 512;
    int counts = argc > 2 ? numbers(argv[2], rows) : 1;
    const char *only = argc > 4 ? argv[4] : "";
    ctx = argc > 1 ? km_ctx_new(argv[1], 0) : NULL;
    if (!ctx) {
        fprintf(stderr, "usage: gpu_layers DEVICE [rows] [position] [substring]: %s\n",
                km_last_error());
        return 1;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        model m;
        if (!strstr(shapes[i].name, only)) continue;
        build(&m, &shapes[i], argc > 5 ? atoll(argv[5]) : INT32_MAX);
        for (int r = 0; r < counts; r++) measure(&m, rows[r], position, 4.24e12);
        drop(&m);
    }
    for (int r = 0; r < counts && (!*only || strcmp(only, "types") == 0); r++)
        each_type(rows[r], 11008, 4096);
    km_ctx_free(ctx);
    return 0;
}

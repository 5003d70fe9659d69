/* Attention over the paged cache by itself: a graph of layers, each with a cache of its own, for many
 * mixes of rows, contexts, heads and cache types. One JSON object a line: microseconds a layer, bytes of
 * keys and values a second, and how far that is from the floor: the keys and values of each sequence
 * once from memory, or the products at what tensor cores give, whichever takes longer.
 *
 * usage: gpu_attend DEVICE [substring of the names to run] [GB/s of memory, default 4240] */
#include "base/clock.h"
#include "ops/infer.h"
#include "ops/op.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* `singles` sequences with one row each after `context` tokens, and `chunks` sequences of which
 * `length` rows come after `before` tokens. */
typedef struct mix {
    const char *name;
    int64_t singles, context, chunks, length, before;
    int64_t heads, kv_heads, d;
    km_dtype cache;
} mix;

#define QWEN_3B 16, 2, 128
#define LLAMA_8B 32, 8, 128
#define LLAMA_1B 32, 8, 64

static const mix mixes[] = {
    {"one 512", 1, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"one 4096", 1, 4096, 0, 0, 0, QWEN_3B, KM_F16},
    {"one 16384", 1, 16384, 0, 0, 0, QWEN_3B, KM_F16},
    {"one 32000", 1, 32000, 0, 0, 0, QWEN_3B, KM_F16},
    {"one 32000 bf16", 1, 32000, 0, 0, 0, QWEN_3B, KM_BF16},
    {"one 32000 q8_0", 1, 32000, 0, 0, 0, QWEN_3B, KM_Q8_0},
    {"one 32000 q4_0", 1, 32000, 0, 0, 0, QWEN_3B, KM_Q4_0},
    {"one 512 8b", 1, 512, 0, 0, 0, LLAMA_8B, KM_F16},
    {"one 16384 8b", 1, 16384, 0, 0, 0, LLAMA_8B, KM_F16},
    {"one 16384 1b", 1, 16384, 0, 0, 0, LLAMA_1B, KM_F16},
    {"two 512", 2, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"4 of 512", 4, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"8 of 512", 8, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"16 of 512", 16, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"16 of 512 8b", 16, 512, 0, 0, 0, LLAMA_8B, KM_F16},
    {"8 of 16384", 8, 16384, 0, 0, 0, QWEN_3B, KM_F16},
    {"64 of 512", 64, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"64 of 512 bf16", 64, 512, 0, 0, 0, QWEN_3B, KM_BF16},
    {"64 of 512 q8_0", 64, 512, 0, 0, 0, QWEN_3B, KM_Q8_0},
    {"64 of 512 q4_0", 64, 512, 0, 0, 0, QWEN_3B, KM_Q4_0},
    {"128 of 512", 128, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"256 of 512", 256, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"512 of 512", 512, 512, 0, 0, 0, QWEN_3B, KM_F16},
    {"64 of 512 8b", 64, 512, 0, 0, 0, LLAMA_8B, KM_F16},
    {"256 of 512 8b", 256, 512, 0, 0, 0, LLAMA_8B, KM_F16},
    {"256 of 512 1b", 256, 512, 0, 0, 0, LLAMA_1B, KM_F16},
    {"draft 5 after 512", 0, 0, 1, 5, 512, QWEN_3B, KM_F16},
    {"draft 5 after 16384", 0, 0, 1, 5, 16384, QWEN_3B, KM_F16},
    {"prompt 512", 0, 0, 1, 512, 0, QWEN_3B, KM_F16},
    {"prompt 1024 after 3072", 0, 0, 1, 1024, 3072, QWEN_3B, KM_F16},
    {"prompt 512 after 31488", 0, 0, 1, 512, 31488, QWEN_3B, KM_F16},
    {"prompt 512 after 31488 q8_0", 0, 0, 1, 512, 31488, QWEN_3B, KM_Q8_0},
    {"prompt 1024 after 3072 8b", 0, 0, 1, 1024, 3072, LLAMA_8B, KM_F16},
    {"prompt 1024 after 3072 1b", 0, 0, 1, 1024, 3072, LLAMA_1B, KM_F16},
    {"64 of 512, prompt 448 after 2048", 64, 512, 1, 448, 2048, QWEN_3B, KM_F16},
    {"63 of 512, one 32000", 63, 512, 1, 1, 32000, QWEN_3B, KM_F16},
};

enum { MOST_LAYERS = 24 };
static km_ctx *ctx;

typedef struct work {
    const mix *m;
    int layers;
    km_tensor *cache[MOST_LAYERS][2], *q, *k, *v, *rows, *table;
} work;

static int64_t rows_of(const mix *m) { return m->singles + m->chunks * m->length; }

/* Random elements; of block types random codes under small scales. */
static km_tensor *cache(const mix *m, int64_t pages) {
    km_shape s = KM_SHAPE(pages, m->kv_heads, KM_KV_PAGE, m->d);
    if (!km_dtype_is_block(m->cache)) return km_keep(ctx, km_normal(ctx, m->cache, s, 0, 1));
    size_t bytes = (size_t)km_dtype_bytes(m->cache, km_shape_count(s));
    unsigned char *data = malloc(bytes);
    unsigned state = 12345, each = (unsigned)km_dtype_bytes(m->cache, 32);
    for (size_t i = 0; data && i < bytes; i++) {
        unsigned char byte = (unsigned char)((state = state * 1103515245u + 12345u) >> 16);
        data[i] = i % each < 2 ? byte & 0x1f : byte;
    }
    km_tensor *t = km_keep(ctx, km_from_data(ctx, m->cache, s, data));
    free(data);
    km_settle(ctx, t);
    return t;
}

/* Chunks first, then single rows, as a mixed step has them. */
static void build(work *w, const mix *m) {
    int64_t n = rows_of(m), sequences = m->singles + m->chunks;
    int64_t longest =
        m->before + m->length > m->context + 1 ? m->before + m->length : m->context + 1;
    int64_t most = (longest + KM_KV_PAGE - 1) / KM_KV_PAGE, pages = 0;
    int32_t *rows = calloc((size_t)(2 * n), sizeof *rows),
            *table = calloc((size_t)(sequences * most), sizeof *table);
    if (!rows || !table) exit(1);
    for (int64_t s = 0, r = 0; s < sequences; s++) {
        bool chunk = s < m->chunks;
        int64_t first = chunk ? m->before : m->context, count = chunk ? m->length : 1;
        for (int64_t i = 0; i < count; i++, r++)
            rows[2 * r] = (int32_t)s, rows[2 * r + 1] = (int32_t)(first + i);
        int64_t own = (first + count + KM_KV_PAGE - 1) / KM_KV_PAGE;
        for (int64_t i = 0; i < most; i++)
            table[s * most + i] = i < own ? (int32_t)(pages + i) : -1;
        pages += own;
    }
    double each = 2.0 * (double)km_dtype_bytes(m->cache, pages * m->kv_heads * KM_KV_PAGE * m->d);
    *w = (work){.m = m, .layers = each * MOST_LAYERS > 6e9 ? (int)(6e9 / each) + 1 : MOST_LAYERS};
    for (int i = 0; i < w->layers; i++)
        for (int c = 0; c < 2; c++) w->cache[i][c] = cache(m, pages);
    w->q = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, m->heads * m->d), 0, 1));
    w->k = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, m->kv_heads * m->d), 0, 1));
    w->v = km_keep(ctx, km_normal(ctx, KM_F32, KM_SHAPE(n, m->kv_heads * m->d), 0, 1));
    w->rows = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(n, 2), rows));
    w->table = km_keep(ctx, km_from_data(ctx, KM_I32, KM_SHAPE(sequences, most), table));
    free(rows);
    free(table);
    km_step_end(ctx);
}

static void drop(work *w) {
    for (int i = 0; i < w->layers; i++) km_release(w->cache[i][0]), km_release(w->cache[i][1]);
    km_tensor *all[] = {w->q, w->k, w->v, w->rows, w->table};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    km_step_end(ctx);
    km_mempool_trim(&ctx->lanes[0]->pool);
}

static void step(km_ctx *c, void *user) {
    const work *w = user;
    km_attend_spec spec = {.heads = (int)w->m->heads,
                           .kv_heads = (int)w->m->kv_heads,
                           .scale = 0.1,
                           .rope_base = 10000,
                           .pairs = KM_ROPE_HALVES};
    km_no_grad_begin(c);
    km_tensor *x = w->q; /* each layer's queries are what the layer before gave */
    for (int i = 0; i < w->layers; i++)
        x = km_attend(c, &spec, x, w->k, w->v, w->cache[i][0], w->cache[i][1], w->rows, w->table);
    km_no_grad_end(c);
}

static void measure(const mix *m, double bandwidth) {
    work w;
    km_graph *graph = NULL;
    build(&w, m);
    double best = 1e9;
    for (int round = 0; round < 6; round++) {
        int reps = round < 2 ? 1 : 4;
        km_sync(ctx);
        double t = km_now();
        for (int i = 0; i < reps; i++) km_graph_run(ctx, &graph, 1, step, &w);
        km_sync(ctx);
        t = (km_now() - t) / reps / w.layers;
        if (round > 1 && t < best) best = t;
    }
    if (km_ctx_status(ctx) != KM_OK) {
        fprintf(stderr, "%s: %s\n", m->name, km_ctx_error(ctx));
        exit(1);
    }
    /* What a chunk's rows see: the triangle, and all that came before. */
    double keys =
        (double)m->chunks * (double)m->length * ((double)m->before + ((double)m->length + 1) / 2);
    keys += (double)(m->singles * (m->context + 1));
    double tokens = (double)(m->singles * (m->context + 1) + m->chunks * (m->before + m->length));
    double bytes = 2 * tokens * (double)(m->kv_heads * km_dtype_bytes(m->cache, m->d));
    double operations = 4 * keys * (double)(m->heads * m->d);
    double floor = bytes / bandwidth, products = operations / 800e12;
    if (products > floor) floor = products;
    printf(
        "{\"name\": \"%s\", \"rows\": %lld, \"heads\": %lld, \"kv_heads\": %lld, \"d\": %lld, "
        "\"cache\": \"%s\", \"us\": %.2f, \"floor_us\": %.2f, \"of_floor\": %.3f, \"GB_per_s\": %.0f, "
        "\"TFLOP_per_s\": %.1f}\n",
        m->name, (long long)rows_of(m), (long long)m->heads, (long long)m->kv_heads,
        (long long)m->d, km_dtype_name(m->cache), best * 1e6, floor * 1e6, floor / best,
        bytes / best / 1e9, operations / best / 1e12);
    fflush(stdout);
    km_graph_free(graph);
    drop(&w);
}

int main(int argc, char **argv) {
    const char *only = argc > 2 ? argv[2] : "";
    double bandwidth = argc > 3 ? atof(argv[3]) * 1e9 : 4240e9;
    ctx = argc > 1 ? km_ctx_new(argv[1], 0) : NULL;
    if (!ctx) {
        fprintf(stderr, "usage: gpu_attend DEVICE [substring] [GB/s]: %s\n", km_last_error());
        return 1;
    }
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (strstr(mixes[i].name, only)) measure(&mixes[i], bandwidth);
    km_ctx_free(ctx);
    return 0;
}

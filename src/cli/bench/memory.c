/* The memory of one training step, op by op: recorded by km_profile_begin and km_profile_end in a
 * step that is warm, so that what is seen is what every later step does. */
#include "base/alloc.h"
#include "cli/bench/bench.h"
#include "report/json.h"
#include <stdlib.h>
#include <string.h>

static const km_net_size full_size = {
    .layers = 6, .width = 384, .heads = 6, .vocabulary = 65, .batch = 4, .tokens = 256};
static const km_net_size quick_size = {
    .layers = 2, .width = 128, .heads = 2, .vocabulary = 65, .batch = 2, .tokens = 64};

const km_net_size *km_bench_model_size(const km_bench *b) {
    return b->quick || km_bench_is_ref(b) ? &quick_size : &full_size;
}

/* ---- Who holds the most at the peak ---- */

typedef struct holder {
    const char *op, *grad_of;
    int64_t bytes, buffers;
} holder;

static bool same(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

static int by_bytes(const void *a, const void *b) {
    int64_t x = ((const holder *)a)->bytes, y = ((const holder *)b)->bytes;
    return (x < y) - (x > y);
}

/* What each op holds after event `last`, the largest first. NULL when out of memory. */
static holder *holders_at(const km_memory_event *e, size_t last, int *n) {
    holder *h = km_calloc(last + 1, sizeof *h);
    *n = 0;
    if (!h) return NULL;
    for (size_t i = 0; i <= last; i++) {
        int k = 0;
        while (k < *n && !(same(h[k].op, e[i].op) && same(h[k].grad_of, e[i].grad_of))) k++;
        if (k == *n) h[(*n)++] = (holder){.op = e[i].op, .grad_of = e[i].grad_of};
        h[k].bytes += e[i].bytes;
        h[k].buffers += e[i].bytes > 0 ? 1 : -1;
    }
    qsort(h, (size_t)*n, sizeof *h, by_bytes);
    while (*n > 0 && h[*n - 1].bytes <= 0) --*n;
    return h;
}

static size_t peak_of(const km_memory_event *e, size_t n) {
    size_t peak = 0;
    for (size_t i = 1; i < n; i++)
        if (e[i].live > e[peak].live) peak = i;
    return peak;
}

/* ---- As JSON ---- */

static json_t *name_or_null(const char *s) { return s ? km_json_text(s) : json_null(); }

static json_t *timeline(const km_memory_event *e, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(
            list, json_pack("{s:I, s:o, s:o, s:I, s:I}", "index", (json_int_t)e[i].index, "op",
                            km_json_text(e[i].op), "gradient_of", name_or_null(e[i].grad_of),
                            "bytes", (json_int_t)e[i].bytes, "live", (json_int_t)e[i].live));
    return list;
}

static json_t *at_peak(const km_memory_event *e, size_t peak) {
    int n;
    holder *h = holders_at(e, peak, &n);
    json_t *list = h ? json_array() : NULL;
    for (int i = 0; i < n; i++)
        json_array_append_new(list,
                              json_pack("{s:o, s:o, s:I, s:I}", "op", km_json_text(h[i].op),
                                        "gradient_of", name_or_null(h[i].grad_of), "buffers",
                                        (json_int_t)h[i].buffers, "bytes", (json_int_t)h[i].bytes));
    km_free(h);
    return list;
}

static json_t *profile_json(const km_bench *b, const km_bench_model *m, const km_memory_event *e,
                            size_t n) {
    const km_net_size *s = km_bench_model_size(b);
    size_t peak = peak_of(e, n);
    bool held = n > 0 && strcmp(e[0].op, "before") == 0;
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "device",
        km_bench_engine(b), "layers", s->layers, "width", s->width, "heads", s->heads, "vocabulary",
        s->vocabulary, "batch", s->batch, "tokens", s->tokens, "parameters",
        km_json_count(km_bench_model_parameters(m)), "ops", (json_int_t)(n ? e[n - 1].index : 0),
        "before_bytes", (json_int_t)(held ? e[0].bytes : 0), "peak_bytes",
        (json_int_t)(n ? e[peak].live : 0), "peak_index", (json_int_t)(n ? e[peak].index : 0),
        "peak_op", n ? km_json_text(e[peak].op) : json_null(), "at_peak",
        n ? at_peak(e, peak) : json_array(), "timeline", timeline(e, n));
}

/* ---- Measuring ---- */

bool km_bench_memory(km_bench *b) {
    km_ctx *ctx = b->device ? b->device : b->cpu;
    km_progress_step(&b->progress, b->done++, "memory of a step");
    km_trim(ctx);
    km_bench_model *m = km_bench_model_new(ctx, km_bench_model_size(b));
    if (m) {
        km_bench_model_step(ctx, m);
        km_profile_begin(ctx);
        km_bench_model_step(ctx, m);
        size_t n;
        const km_memory_event *e = km_profile_end(ctx, &n);
        if (e) b->memory = profile_json(b, m, e, n);
        km_bench_model_free(ctx, m);
    }
    if (km_ctx_status(ctx) == KM_OK && b->memory) return true;
    km_error_set(&b->error, KM_ERR_MEMORY, "memory of a step: %s",
                 km_ctx_status(ctx) ? km_ctx_error(ctx) : "out of memory");
    return false;
}

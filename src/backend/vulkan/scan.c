/* Scans of codes: rows are decoded some at a time (shaders/scan_decode.comp), their distances to all
 * queries are taken (scan_gaps.comp), and each query's nearest are chosen (scan_select.comp). */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define DISTANCES (INT64_C(1) << 24) /* that are held at once; of one query all are */
#define DECODED (INT64_C(1) << 24)   /* elements of rows that are held at once */
#define QUERIES 32                   /* of a workgroup, and rows, as in shaders/gaps.glsl */
#define ROWS 64

enum { QUERY, CODES, SCALE, CELL, PLACE, AMP, TABLES, CENTRE, RATE, WINDOWS, INPUTS };

typedef struct scan {
    km_lane *lane;
    const km_tensor *in[INPUTS];
    km_tensor *y, *lost, *dists;
    int64_t queries, n, d, k, chunk;
    bool product;
    float loss;
} scan;

static km_status decode(const scan *s, int64_t first, int64_t n) {
    struct {
        uint64_t codes, scales, cells, places, amps, tables, centres, rates, windows, y, lost;
        uint32_t first, n, d, stride, n_cells;
        float loss;
    } push = {.codes = km_vulkan_at(s->in[CODES]),
              .scales = km_vulkan_at(s->in[SCALE]),
              .cells = km_vulkan_at(s->in[CELL]),
              .places = km_vulkan_at(s->in[PLACE]),
              .amps = km_vulkan_at(s->in[AMP]),
              .tables = km_vulkan_at(s->in[TABLES]),
              .centres = km_vulkan_at(s->in[CENTRE]),
              .rates = km_vulkan_at(s->in[RATE]),
              .windows = km_vulkan_at(s->in[WINDOWS]),
              .y = km_vulkan_at(s->y),
              .lost = km_vulkan_at(s->lost),
              .first = (uint32_t)first,
              .n = (uint32_t)n,
              .d = (uint32_t)s->d,
              .stride = (uint32_t)s->in[CODES]->shape.dim[1],
              .n_cells = (uint32_t)s->in[CENTRE]->shape.dim[0],
              .loss = s->product ? 0 : s->loss};
    uint32_t spec[] = {s->in[RATE] != NULL};
    return km_vulkan_launch(s->lane, "scan_decode", spec, 1, &push, sizeof push,
                            km_groups_for(km_ceil_div(n * s->d, KM_VULKAN_THREADS)),
                            (double)(n * s->d) * 30);
}

static km_status distances(const scan *s, int64_t query, int64_t queries, int64_t first,
                           int64_t n) {
    struct {
        uint64_t queries, y, lost, o;
        uint32_t n_queries, n, d, row, first;
    } push = {.queries = km_vulkan_at(s->in[QUERY]) + (uint64_t)(query * s->d) * sizeof(float),
              .y = km_vulkan_at(s->y),
              .lost = km_vulkan_at(s->lost),
              .o = km_vulkan_at(s->dists),
              .n_queries = (uint32_t)queries,
              .n = (uint32_t)n,
              .d = (uint32_t)s->d,
              .row = (uint32_t)s->n,
              .first = (uint32_t)first};
    uint32_t spec[] = {s->product};
    int64_t across = km_ceil_div(queries, QUERIES), down = km_ceil_div(n, ROWS);
    return km_vulkan_launch(
        s->lane, "scan_gaps", spec, 1, &push, sizeof push, KM_GROUPS(across, down),
        (double)(across * QUERIES) * (double)(down * ROWS) * (double)(s->d + 16));
}

static km_status choose(const scan *s, const km_call *c, int64_t query, int64_t queries) {
    struct {
        uint64_t dists, ids, nearest;
        uint32_t queries, n, k;
    } push = {.dists = km_vulkan_at(s->dists),
              .ids = km_vulkan_at(c->out[0]) + (uint64_t)(query * s->k) * 4,
              .nearest = km_vulkan_at(c->out[1]) + (uint64_t)(query * s->k) * 4,
              .queries = (uint32_t)queries,
              .n = (uint32_t)s->n,
              .k = (uint32_t)s->k};
    return km_vulkan_launch(s->lane, "scan_select", NULL, 0, &push, sizeof push,
                            km_groups_for(queries), (double)queries * ((double)s->n * 80 + 5e4));
}

static km_status run_scan(km_ctx *ctx, const km_call *c) {
    scan s = {.lane = km_vulkan_lane(c),
              .queries = c->in[QUERY]->shape.dim[0],
              .d = c->in[QUERY]->shape.dim[1],
              .n = c->in[CODES]->shape.dim[0],
              .k = c->p->n[KM_N_NEAREST],
              .product = c->p->n[KM_N_PRODUCT] != 0,
              .loss = (float)c->p->f[KM_F_LOST]};
    int64_t chunk = c->p->n[KM_N_CHUNK], stride = c->in[CODES]->shape.dim[1];
    if (s.d == 0 || s.n * stride >= KM_VULKAN_MOST || s.n >= KM_VULKAN_MOST ||
        s.queries * s.d >= KM_VULKAN_MOST || s.queries * s.k >= KM_VULKAN_MOST ||
        km_shape_count(c->in[CENTRE]->shape) >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if (s.queries == 0) return KM_OK;
    for (int i = 0; i < c->n_in; i++) s.in[i] = c->in[i];
    s.chunk = km_clamp64(DECODED / s.d / ROWS * ROWS, ROWS, 65535 * ROWS);
    if (chunk > 0) s.chunk = km_min64(s.chunk, chunk);
    s.chunk = km_max64(1, km_min64(s.chunk, s.n));
    int64_t at_once = km_clamp64(DISTANCES / km_max64(1, s.n), 1, s.queries);
    s.y = km_tensor_new(ctx, s.lane, "scan_codes", KM_F32, KM_SHAPE(s.chunk * s.d));
    s.lost = km_tensor_new(ctx, s.lane, "scan_codes", KM_F32, KM_SHAPE(s.chunk));
    s.dists = km_tensor_new(ctx, s.lane, "scan_codes", KM_F32, KM_SHAPE(at_once * s.n + 1));
    if (!s.y || !s.lost || !s.dists) return ctx->error.code;
    km_status status = KM_OK;
    for (int64_t q = 0; q < s.queries && status == KM_OK; q += at_once) {
        int64_t some = km_min64(at_once, s.queries - q);
        for (int64_t r = 0; r < s.n && status == KM_OK; r += s.chunk) {
            int64_t n = km_min64(s.chunk, s.n - r);
            status = decode(&s, r, n);
            if (status == KM_OK) status = distances(&s, q, some, r, n);
        }
        if (status == KM_OK) status = choose(&s, c, q, some);
    }
    return status;
}

void km_vulkan_register_scan(km_kernel *table) { table[KM_OP_SCAN_CODES] = run_scan; }

/* Scans of codes on the GPU (kernels/scan_args.h tells how). A sample of the rows gives each query a
 * first limit, then chunks of rows are decoded and multiplied with all queries; nothing is read by the
 * host. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/kernels/vector/scan_args.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/modules.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

#define ONE(module_, name_)                                                                        \
    { .module = module_, .name = name_, .waits = true }
static km_cuda_kernel begin = ONE("scan", "scan_begin"), reach = ONE("scan", "scan_reach"),
                      queries = ONE("scan", "scan_queries"), choose = ONE("scan", "scan_select");
static km_cuda_kernel decode[] = {ONE("scan", "scan_decode"), ONE("scan", "scan_decode_trellis")};
static km_cuda_kernel finish[] = {ONE("scan", "scan_finish"), ONE("scan", "scan_finish_trellis")};
static km_cuda_kernel mma[] = {ONE("scan", "scan_mma"), ONE("scan", "scan_mma_sample")};
#define TWO(name_)                                                                                 \
    { ONE("scan_hopper", name_), ONE("scan_hopper", name_ "_sample") }
static km_cuda_kernel hopper[][2] = {TWO("scan_hopper_6"), TWO("scan_hopper_8"),
                                     TWO("scan_hopper_many")};

#define CHUNK_BYTES ((int64_t)128 << 20) /* of decoded rows */
#define MOST_COLUMNS 65536

enum { QUERY, CODES, SCALE, CELL, PLACE, AMP, TABLES, CENTRE, RATE, WINDOWS };

static int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

static void *cut(char **at, int64_t bytes) {
    void *p = *at;
    *at += up(bytes, 1024);
    return p;
}

static int64_t place_scratch(km_scan_args *a, int64_t batch, int64_t chunk, char *at) {
    char *first = at;
    int64_t padded = up(batch, KM_SCAN_QUERIES), wide = a->slices * (int64_t)KM_SCAN_DEPTH * 2;
    a->reach = cut(&at, 2 * sizeof *a->reach);
    a->factor = cut(&at, padded * (int64_t)sizeof(float));
    a->limit = cut(&at, padded * (int64_t)sizeof(float));
    a->count = cut(&at, batch * (int64_t)sizeof(uint32_t));
    a->over = cut(&at, batch * (int64_t)sizeof(uint32_t));
    a->list = cut(&at, batch * KM_SCAN_LIST * (int64_t)sizeof *a->list);
    a->query_tiles = cut(&at, padded * wide);
    a->add = cut(&at, chunk * (int64_t)sizeof(float));
    a->row_tiles = cut(&at, chunk * wide);
    return at - first;
}

/* One pass over rows: decoded, multiplied, and the lists cut. */
static km_status pass(km_lane *lane, km_scan_args *a, int64_t first, int64_t rows, int64_t step,
                      bool sample) {
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    a->first = first, a->rows = rows, a->step = step, a->sample = sample;
    a->tiles = (int32_t)km_ceil_div(rows, KM_SCAN_ROWS);
    int blocks = (int)km_ceil_div(a->queries, KM_SCAN_QUERIES);
    km_status s = km_cuda_launch1(lane, &decode[a->rate != NULL],
                                  KM_DIM(a->tiles * (KM_SCAN_ROWS / 32)), KM_DIM(256), 0, a);
    if (s != KM_OK) return s;
    if (dev->cc == 90 && km_cuda_has_module("scan_hopper")) {
        int parts = dev->sms / blocks > 0 ? dev->sms / blocks : 1;
        km_cuda_kernel *k = hopper[a->slices <= 6 ? 0 : a->slices <= KM_SCAN_RESIDENT ? 1 : 2];
        s = km_cuda_launch1(lane, &k[sample], KM_DIM(a->tiles < parts ? a->tiles : parts, blocks),
                            KM_DIM(KM_SCAN_THREADS), (unsigned)KM_SCAN_SHARED(a->slices), a);
    } else {
        int parts = 2 * dev->sms / blocks > 0 ? 2 * dev->sms / blocks : 1;
        s = km_cuda_launch1(lane, &mma[sample],
                            KM_DIM(4 * a->tiles < parts ? 4 * a->tiles : parts, blocks),
                            KM_DIM(256), 3 * (16384 + 8192), a);
    }
    if (s == KM_OK) s = km_cuda_launch1(lane, &choose, KM_DIM(a->queries), KM_DIM(256), 0, a);
    return s;
}

/* Chunks of equal size, each of whole tiles to every block. */
static int64_t chunk_rows(const km_cuda_dev *dev, int64_t n, int slices, int64_t batch,
                          int64_t asked) {
    int64_t unit = KM_SCAN_ROWS, most = CHUNK_BYTES / (slices * (int64_t)KM_SCAN_DEPTH * 2);
    if (asked > 0) return up(asked, unit);
    int64_t parts = dev->sms / km_ceil_div(batch, KM_SCAN_QUERIES);
    if (parts > 1 && most >= 4 * unit * parts) unit *= parts;
    int64_t chunks = km_ceil_div(n, most / unit > 0 ? most / unit * unit : unit);
    int64_t rows = up(km_ceil_div(n, chunks > 0 ? chunks : 1), unit), all = up(n, KM_SCAN_ROWS);
    return rows < all ? rows : all;
}

static km_status run_batch(km_lane *lane, km_scan_args *a, int64_t chunk) {
    int64_t padded = up(a->queries, KM_SCAN_QUERIES);
    int64_t sample = a->n < KM_SCAN_SAMPLE ? a->n : KM_SCAN_SAMPLE;
    km_status s = km_cuda_launch1(lane, &queries, KM_DIM(padded / 8), KM_DIM(256), 0, a);
    if (sample > chunk) sample = chunk;
    if (!a->exact && s == KM_OK && a->n > KM_SCAN_LIST)
        s = pass(lane, a, 0, sample, a->n / sample, true);
    for (int64_t i = 0; !a->exact && s == KM_OK && i < a->n; i += chunk)
        s = pass(lane, a, i, a->n - i < chunk ? a->n - i : chunk, 1, false);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &finish[a->rate != NULL], KM_DIM(a->queries), KM_DIM(256), 0, a);
    return s;
}

static km_status run_scan(km_ctx *ctx, const km_call *c) {
    km_lane *lane = km_cuda_lane(c);
    int64_t all = c->in[QUERY]->shape.dim[0], d = c->in[QUERY]->shape.dim[1],
            k = c->p->n[KM_N_NEAREST];
    int64_t n = c->in[CODES]->shape.dim[0], batch = all < KM_SCAN_BATCH ? all : KM_SCAN_BATCH;
    if (d > MOST_COLUMNS || k + 16 + k / 8 > KM_SCAN_KEEP) return KM_ERR_UNSUPPORTED;
    if (all == 0) return KM_OK;
    /* Rows may be lent: then they come over now, and those of the next call are sent for. */
    const void *codes = km_cuda_bytes_of(lane, c->in[CODES]), *scale = NULL, *cell = NULL;
    if (codes) scale = km_cuda_bytes_of(lane, c->in[SCALE]);
    if (scale) cell = km_cuda_bytes_of(lane, c->in[CELL]);
    if (km_failed(ctx)) return ctx->error.code;
    km_scan_args a = {.codes = codes,
                      .scale = scale,
                      .cell = cell,
                      .place = km_tensor_ptr(c->in[PLACE]),
                      .amp = km_tensor_ptr(c->in[AMP]),
                      .tables = km_tensor_ptr(c->in[TABLES]),
                      .centre = km_tensor_ptr(c->in[CENTRE]),
                      .stride = c->in[CODES]->shape.dim[1],
                      .n = n,
                      .d = (int32_t)d,
                      .cells = (int32_t)c->in[CENTRE]->shape.dim[0],
                      .slices = (int32_t)km_ceil_div(d, KM_SCAN_DEPTH),
                      .k = (int32_t)k,
                      .keep = (int32_t)(k + 16 + k / 8),
                      .product = c->p->n[KM_N_PRODUCT] != 0,
                      .exact = c->p->n[KM_N_EXACT] != 0,
                      .lost = (float)c->p->f[KM_F_LOST]};
    a.aligned = d % 8 == 0 && km_cuda_aligned(a.centre, 16);
    if (c->n_in > RATE) {
        a.rate = km_tensor_ptr(c->in[RATE]);
        a.windows = km_tensor_ptr(c->in[WINDOWS]);
    }
    if (!km_cuda_aligned(a.codes, 4)) return KM_ERR_UNSUPPORTED;
    int64_t chunk = chunk_rows(km_cuda_dev_of(lane), n, a.slices, batch, c->p->n[KM_N_CHUNK]);
    size_t cap;
    char *room = km_cuda_scratch(lane, (size_t)place_scratch(&a, batch, chunk, NULL), &cap);
    if (!room) return ctx->error.code;
    place_scratch(&a, batch, chunk, room);
    km_status s = km_cuda_launch1(lane, &begin, KM_DIM(1), KM_DIM(256), 0, &a);
    int64_t blocks = km_ceil_div(a.cells * d, 1024);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &reach, KM_DIM(blocks < 264 ? blocks : 264), KM_DIM(256), 0, &a);
    for (int64_t q = 0; s == KM_OK && q < all; q += batch) {
        a.queries = (int32_t)(all - q < batch ? all - q : batch);
        a.query = (const float *)km_tensor_ptr(c->in[QUERY]) + q * d;
        a.id = (int32_t *)km_tensor_ptr(c->out[0]) + q * k;
        a.dist = (float *)km_tensor_ptr(c->out[1]) + q * k;
        s = run_batch(lane, &a, chunk);
    }
    km_cuda_scratch_free(lane, room, cap);
    return s;
}

void km_cuda_register_scan(km_kernel *table) { table[KM_OP_SCAN_CODES] = run_scan; }

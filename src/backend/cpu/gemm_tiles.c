/* How a product of bf16 is shared out for tiles, or for pairs where there are none. Columns of b are laid out by all threads, as many as
 * stay in the last cache; then threads take blocks of c, each of them whole: a block's sums are added
 * up over stretches of k, in order, so neither threads nor blocks change a bit. */
#include "backend/cpu/gemm_tiles.h"
#include "backend/cpu/cpu.h"
#include "base/util.h"
#include <string.h>

#ifdef KM_ISA_ONLY_BASE
static const km_gemm_tiles *tiles_now(void) { return NULL; }
#else
extern const km_gemm_tiles km_gemm_tiles_amx, km_gemm_tiles_avx512bf16;
static const km_gemm_tiles *tiles_now(void) {
#ifndef KM_WITHOUT_AMX
    if (km_gemm_isa() == KM_ISA_AMX) return &km_gemm_tiles_amx;
#endif
#ifndef KM_WITHOUT_AVX512BF16
    if (km_gemm_isa() == KM_ISA_AVX512 && km_cpu_info()->avx512_bf16)
        return &km_gemm_tiles_avx512bf16;
#endif
    return NULL;
}
#endif

const char *km_gemm_tiles_name(void) {
    if (!tiles_now()) return NULL;
    return km_gemm_isa() == KM_ISA_AMX ? "tiles (AMX)" : "pairs (AVX-512 BF16)";
}

#define BLOCK_ROWS 256    /* of c, in multiples of 32; fewer where threads would have none */
#define BLOCK_COLS 128    /* likewise */
#define STRETCH_DEPTHS 16 /* tiles of k at a time: 32 columns of them fit the nearest cache */
#define LAID_BYTES (4 * 1024 * 1024) /* of b laid out at a time */
#define LEAST_WORK (64.0 * 64 * 64)

bool km_gemm_tiles_suit(const km_gemm *g) {
    if (g->a.dtype != KM_BF16 || g->b.dtype != KM_BF16) return false;
    if (g->batch_dims || g->slope || g->col_sums || g->row_sums) return false;
    return tiles_now() && g->m > KM_FEW_ROWS && g->n >= 16 && g->k >= 32 &&
           (double)g->m * (double)g->n * (double)g->k >= LEAST_WORK;
}

typedef struct tile_job {
    const km_gemm *g;
    const km_gemm_tiles *tiles;
    const km_gemm_kernels *kern;
    int64_t depths;       /* tiles along k */
    int64_t rows, cols;   /* tiles along m; along n, of the columns that are laid out */
    int64_t first, count; /* of these columns */
    bool a_lies;          /* rows of a are read where they are, but for the last few */
    uint16_t *a;          /* laid out: (rows, depths, 16, 32), or only the last row of tiles */
    uint16_t *b;          /* (cols, depths, 16, 16, 2) */
    float *sums;          /* a block for each thread */
    int64_t block_rows, block_cols, down;
} tile_job;

static bool a_turned(const km_gemm *g) { return g->a.col != 1; }
static bool b_turned(const km_gemm *g) { return g->b.col != 1; }

/* ---- Laying out ---- */

static void lay_b(void *arg, int64_t begin, int64_t end, int worker) {
    const tile_job *j = arg;
    const km_gemm *g = j->g;
    bool turned = b_turned(g);
    int64_t ld = turned ? g->b.col : g->b.row;
    (void)worker;
    for (int64_t c = begin; c < end; c++)
        for (int64_t k = 0; k < j->depths; k++) {
            int64_t col = j->first + 16 * c, p = k * KM_TILE_DEPTH;
            const uint16_t *src = (const uint16_t *)g->b.data + p * g->b.row + col * g->b.col;
            j->tiles->pack_b(j->b + (c * j->depths + k) * 512, src, ld, turned,
                             km_min64(g->k - p, KM_TILE_DEPTH), km_min64(j->count - 16 * c, 16));
        }
}

static void lay_a_row(const tile_job *j, int64_t r, uint16_t *to) {
    const km_gemm *g = j->g;
    bool turned = a_turned(g);
    int64_t ld = turned ? g->a.col : g->a.row;
    for (int64_t k = 0; k < j->depths; k++) {
        int64_t row = 16 * r, p = k * KM_TILE_DEPTH;
        const uint16_t *src = (const uint16_t *)g->a.data + row * g->a.row + p * g->a.col;
        j->tiles->pack_a(to + k * 512, src, ld, turned, km_min64(g->m - row, 16),
                         km_min64(g->k - p, KM_TILE_DEPTH));
    }
}

static void lay_a(void *arg, int64_t begin, int64_t end, int worker) {
    const tile_job *j = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) lay_a_row(j, r, j->a + r * j->depths * 512);
}

static km_tile_rows rows_at(const tile_job *j, int64_t r, int64_t depth) {
    const km_gemm *g = j->g;
    if (j->a_lies && (r < j->rows - 1 || g->m % 16 == 0)) {
        const uint16_t *at =
            (const uint16_t *)g->a.data + 16 * r * g->a.row + depth * KM_TILE_DEPTH;
        return (km_tile_rows){(const char *)at, 2 * g->a.row, 2 * KM_TILE_DEPTH};
    }
    const uint16_t *at = j->a + ((j->a_lies ? 0 : r * j->depths) + depth) * 512;
    return (km_tile_rows){(const char *)at, 64, 1024};
}

/* ---- Blocks of c ---- */

/* Rows and columns of tiles [r, r1) and [c, c1): their sums, 16 * BLOCK_COLS / 16 floats apart. */
static void sum_block(const tile_job *j, int64_t r, int64_t r1, int64_t c, int64_t c1, float *sums,
                      int64_t ld) {
    for (int64_t k = 0; k < j->depths; k += STRETCH_DEPTHS)
        for (int64_t y = c; y < c1; y += 2)
            for (int64_t x = r; x < r1; x += 2) {
                int rows = x + 1 < r1 ? 2 : 1, cols = y + 1 < c1 ? 2 : 1;
                km_tile_rows a[2] = {rows_at(j, x, k)};
                if (rows == 2) a[1] = rows_at(j, x + 1, k);
                j->tiles->multiply(a, rows, j->b + (y * j->depths + k) * 512, j->depths * 1024,
                                   cols, km_min64(j->depths - k, STRETCH_DEPTHS), k > 0,
                                   sums + 16 * (x - r) * ld + 16 * (y - c), ld);
            }
}

static void end_block(const tile_job *j, int64_t row, int64_t rows, int64_t col, int64_t cols,
                      float *sums, int64_t ld) {
    const km_gemm *g = j->g;
    int64_t size = (int64_t)km_dtype_size(g->end.dtype), at = row * g->ldc + col;
    km_finish end = g->end;
    if (g->alpha != 1)
        for (int64_t i = 0; i < rows * ld; i++) sums[i] *= g->alpha;
    if (end.bias) end.bias = (const char *)end.bias + col * size;
    j->kern->finish(&end, sums, ld, (char *)g->c + at * size,
                    g->pre ? (char *)g->pre + at * size : NULL, g->ldc, rows, cols);
}

static void run_tile_blocks(void *arg, int64_t begin, int64_t end, int worker) {
    const tile_job *j = arg;
    float *sums = j->sums + (size_t)worker * BLOCK_ROWS * BLOCK_COLS;
    j->tiles->begin();
    for (int64_t i = begin; i < end; i++) {
        int64_t r = i % j->down * j->block_rows, c = i / j->down * j->block_cols;
        int64_t r1 = km_min64(r + j->block_rows, j->rows),
                c1 = km_min64(c + j->block_cols, j->cols);
        sum_block(j, r, r1, c, c1, sums, BLOCK_COLS);
        end_block(j, 16 * r, km_min64(16 * r1, j->g->m) - 16 * r, j->first + 16 * c,
                  km_min64(16 * c1, j->count) - 16 * c, sums, BLOCK_COLS);
    }
    j->tiles->end();
}

/* Blocks small enough that each thread has some of them to the end. */
static void cut_tile_blocks(tile_job *j, int threads) {
    j->block_rows = BLOCK_ROWS / 16;
    j->block_cols = BLOCK_COLS / 16;
    while (km_ceil_div(j->rows, j->block_rows) * km_ceil_div(j->cols, j->block_cols) <
               4 * (int64_t)threads &&
           j->block_rows > 2)
        j->block_rows /= 2;
    j->down = km_ceil_div(j->rows, j->block_rows);
}

km_status km_gemm_tiles_run(km_ctx *ctx, const km_gemm *g) {
    tile_job j = {.g = g,
                  .tiles = tiles_now(),
                  .kern = km_gemm_kernels_of(km_gemm_isa()),
                  .depths = km_ceil_div(g->k, KM_TILE_DEPTH),
                  .rows = km_ceil_div(g->m, 16),
                  .a_lies = !a_turned(g) && g->k % KM_TILE_DEPTH == 0};
    int threads = km_threads_count(ctx->threads);
    int64_t tile_cols = km_ceil_div(g->n, 16), at_once = LAID_BYTES / (j.depths * 1024) / 2 * 2;
    if (at_once < 2) at_once = 2;
    if (at_once > tile_cols) at_once = tile_cols;
    int64_t a_rows = j.a_lies ? (g->m % 16 ? 1 : 0) : j.rows;
    size_t for_a = (size_t)(a_rows * j.depths) * 1024, for_b = (size_t)(at_once * j.depths) * 1024;
    size_t for_sums = (size_t)threads * BLOCK_ROWS * BLOCK_COLS * sizeof(float);
    char *scratch = km_ctx_scratch(ctx, for_a + for_b + for_sums + 64);
    if (!scratch) return KM_ERR_MEMORY;
    scratch += (64 - (uintptr_t)scratch % 64) % 64;
    j.b = (uint16_t *)(void *)scratch;
    j.a = (uint16_t *)(void *)(scratch + for_b);
    j.sums = (float *)(void *)(scratch + for_b + for_a);
    if (j.a_lies && a_rows)
        lay_a_row(&j, j.rows - 1, j.a);
    else if (a_rows)
        km_threads_for(ctx->threads, j.rows, km_ceil_div(j.rows, 8 * threads), lay_a, &j);
    for (int64_t at = 0; at < tile_cols; at += at_once) {
        j.first = 16 * at;
        j.cols = km_min64(at_once, tile_cols - at);
        j.count = km_min64(16 * j.cols, g->n - j.first);
        km_threads_for(ctx->threads, j.cols, km_ceil_div(j.cols, 8 * threads), lay_b, &j);
        cut_tile_blocks(&j, threads);
        km_threads_for(ctx->threads, j.down * km_ceil_div(j.cols, j.block_cols), 1, run_tile_blocks,
                       &j);
    }
    return KM_OK;
}

/* How a product is shared out: which way it is computed, into how many blocks of c it is cut, and
 * which thread's scratch each block works in. */
#include "backend/cpu/gemm.h"
#include "backend/cpu/blas.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm_block.h"
#include "backend/cpu/gemm_tiles.h"
#include "base/util.h"
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- Choosing kernels ---- */

extern const km_gemm_kernels km_gemm_kernels_base;
#ifndef KM_ISA_ONLY_BASE
extern const km_gemm_kernels KM_OF_AVX2(km_gemm_kernels), KM_OF_AVX512(km_gemm_kernels);
#endif

static km_isa chosen_isa;
static km_gemm_blas chosen_blas;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void) { chosen_isa = km_cpu_isa(); }

const km_gemm_kernels *km_gemm_kernels_of(km_isa isa) {
    if (isa > km_cpu_isa()) return NULL;
#ifdef KM_ISA_ONLY_BASE
    return &km_gemm_kernels_base;
#else
    static const km_gemm_kernels *const tables[KM_ISA_COUNT] = {
        &km_gemm_kernels_base, &KM_OF_AVX2(km_gemm_kernels), &KM_OF_AVX512(km_gemm_kernels),
        &KM_OF_AVX512(km_gemm_kernels)};
    return tables[isa];
#endif
}

bool km_gemm_choose(km_isa isa, km_gemm_blas blas) {
    pthread_once(&once, choose);
    if (!km_gemm_kernels_of(isa)) return false;
    if (blas == KM_GEMM_BLAS_ALWAYS && !km_blas_available()) return false;
    chosen_isa = isa;
    chosen_blas = blas;
    return true;
}

km_isa km_gemm_isa(void) {
    pthread_once(&once, choose);
    return chosen_isa;
}

/* ---- The product in its simplest form ---- */

/* Gives unused strides a value, so that col == 1 tells how the matrix lies and the other stride is
 * a leading dimension that OpenBLAS accepts. */
static void settle(km_mat *x, int64_t rows, int64_t cols) {
    if (cols <= 1) x->col = 1;
    if (rows <= 1) x->row = 1;
    if (x->col == 1 && x->row < cols) x->row = cols;
}

static void drop_batch_axis(km_gemm *g, int d) {
    g->batch_dims--;
    for (int i = d; i < g->batch_dims; i++) {
        g->batch[i] = g->batch[i + 1];
        g->a_step[i] = g->a_step[i + 1];
        g->b_step[i] = g->b_step[i + 1];
        g->c_step[i] = g->c_step[i + 1];
    }
}

/* Many products with the same b are one product with more rows, when these rows lie evenly. */
static void fold_batches(km_gemm *g) {
    for (int d = g->batch_dims - 1; d >= 0; d--) {
        if (g->batch[d] == 1) {
            drop_batch_axis(g, d);
        } else if (d == g->batch_dims - 1 && g->b_step[d] == 0 && g->a.col == 1 &&
                   g->a_step[d] == g->m * g->a.row && g->c_step[d] == g->m * g->ldc) {
            g->m *= g->batch[d];
            drop_batch_axis(g, d);
        }
    }
}

/* ---- The plan ---- */

typedef enum way { WAY_GEMV, WAY_BLAS, WAY_PACK } way;

typedef struct gemm_plan {
    const km_gemm *g;
    const km_gemm_kernels *kern;
    way way;
    bool turned; /* for WAY_GEMV */
    km_gemm_cut cut;
    int64_t rows, cols;   /* of a block; the last ones may be smaller */
    int64_t down, across; /* blocks of one c */
    int64_t batches;
    int64_t splits, depth; /* parts of k, and how long one is; batches is 1 if more */
    float *partial;        /* what the parts after the first give: c, and sums of rows */
    size_t partial_floats; /* of one part */
    bool once;             /* a thread may keep b packed from block to block */
    float *sums;           /* of c's columns: (units of rows, n) */
    float *scratch;
    size_t floats; /* of scratch, for each thread */
} gemm_plan;

/* Before a thread's scratch: which columns of b it holds. */
typedef struct held {
    _Alignas(64) int64_t columns; /* block number, without rows, or -1 */
} held;
#define HELD (sizeof(held) / sizeof(float))

/* Rows whose column sums are taken together: as many as a block keeps at hand. */
static int64_t unit_rows(const gemm_plan *p) { return KM_GEMM_MC * p->kern->mr; }

static int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static bool blas_can(const km_gemm *g) {
    int64_t sizes = g->m | g->n | g->k | g->a.row | g->a.col | g->b.row | g->b.col | g->ldc;
    return g->a.dtype == KM_F32 && g->b.dtype == KM_F32 && g->end.dtype == KM_F32 && g->k > 0 &&
           sizes <= INT_MAX;
}

/* Our own tiles are faster than OpenBLAS (0.3.21) with AVX-512, by 1.1 to 1.7 times, and for small
 * products with AVX2; elsewhere OpenBLAS is as fast or faster. A library that the user names is
 * used for all. */
#define BLAS_FROM (256.0 * 256 * 256)

static bool blas_better(const km_gemm *g) {
    if (chosen_blas != KM_GEMM_BLAS_AUTO) return chosen_blas == KM_GEMM_BLAS_ALWAYS;
    if (km_blas_wished()) return true;
    if (chosen_isa == KM_ISA_BASE) return true;
    return chosen_isa == KM_ISA_AVX2 && (double)g->m * (double)g->n * (double)g->k >= BLAS_FROM;
}

/* As blas_better says it. */
const char *km_gemm_served(void) {
    static _Thread_local char text[160];
    bool here = km_blas_available() && chosen_blas != KM_GEMM_BLAS_NEVER;
    bool all = here && (chosen_blas == KM_GEMM_BLAS_ALWAYS || km_blas_wished());
    km_isa isa = km_gemm_isa();
    const char *bf16 = km_gemm_tiles_name(), *own = km_isa_name(isa);
    if (all || (here && isa == KM_ISA_BASE))
        snprintf(text, sizeof text, "%s", km_blas_name());
    else if (here && isa == KM_ISA_AVX2)
        snprintf(text, sizeof text, "%s from 256 x 256 x 256 on, own kernels (%s) below",
                 km_blas_name(), own);
    else
        snprintf(text, sizeof text, "own kernels (%s)", isa == KM_ISA_AMX ? "avx512" : own);
    size_t n = strlen(text);
    if (bf16) snprintf(text + n, sizeof text - n, "; bf16: %s", bf16);
    return text;
}

static way choose_way(const km_gemm *g) {
    if (km_gemv_suits(g)) return WAY_GEMV;
    return blas_can(g) && blas_better(g) && km_blas_available() ? WAY_BLAS : WAY_PACK;
}

bool km_gemm_sums(const km_gemm *g) {
    bool plain = g->a.dtype == KM_F32 && g->b.dtype == KM_F32 && g->end.dtype == KM_F32 &&
                 g->batch_dims == 0;
    return plain && g->m > 0 && g->n > 0 && choose_way(g) == WAY_PACK &&
           (!g->row_sums || (g->a.col != 1 && g->k > 1));
}

/* How many threads are worth waking: a thread takes about as long to come as these multiply-adds
 * (or, for a product that only reads, these weights) take. */
#define WORK_PER_THREAD 400000.0
#define READS_PER_THREAD 32768.0

static int64_t useful_threads(const gemm_plan *p, int threads) {
    const km_gemm *g = p->g;
    double items = (double)p->batches * (double)g->m * (double)g->n * (double)g->k;
    double unit = WORK_PER_THREAD;
    if (p->way == WAY_GEMV) {
        items /= (double)km_min64(g->m, g->n);
        unit = READS_PER_THREAD;
    }
    double n = items / unit;
    return n >= threads ? threads : n < 1 ? 1 : (int64_t)n;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* Multiply-adds that take as long as packing one element. */
#define PACKING 16.0

/* How long one block takes, in multiply-adds per step of k, when c is cut `down` by `across`. */
static double block_time(const gemm_plan *p, int64_t down, int64_t across) {
    const km_gemm *g = p->g;
    double rows = (double)up((g->m + down - 1) / down, p->kern->mr);
    double cols = (double)up((g->n + across - 1) / across, p->kern->nr);
    bool a_packed = p->way == WAY_BLAS || g->a.dtype != KM_F32 || g->a.col != 1;
    return rows * cols + PACKING * (cols + (a_packed ? rows : 0));
}

/* More blocks than there are threads let the faster thread do more, as one is that other programs
 * leave alone. They must be worth handing out, and a thread must not have to pack b for each. */
#define BLOCKS_EACH 8
#define WORK_PER_BLOCK 600000.0
#define ROWS_PER_BLOCK 42
#define BLOCKS_WORTH_PACKING 4
#define COLUMNS_PER_BLOCK 256 /* each block lays its rows of a out anew */
#define ROWS_EACH 96          /* fewer rows to a thread are not worth packing all of b for */

/* How one part of k would be cut for all rows; *whole: with all of b packed at once. */
static km_gemm_cut cut_of_part(const gemm_plan *p, bool *whole) {
    km_gemm g = *p->g;
    g.k = p->depth;
    km_gemm_cut cut = km_gemm_cut_for(&g, p->kern, g.m);
    *whole = km_gemm_packs_once(&g, &cut);
    return cut;
}

static bool packs_once(const gemm_plan *p) {
    bool whole;
    cut_of_part(p, &whole);
    return whole;
}

static int64_t refine(const gemm_plan *p, int64_t down) {
    const km_gemm *g = p->g;
    bool whole;
    km_gemm_cut cut = cut_of_part(p, &whole);
    if (!whole) return down;
    double work = (double)g->m / (double)down * (double)g->n * (double)p->depth;
    int64_t each = km_min64((int64_t)(work / WORK_PER_BLOCK), g->m / down / ROWS_PER_BLOCK);
    /* Who takes a block of another part of k packs b anew, unless it is read as it lies. */
    if (p->splits > 1 && !cut.b_lies && each < BLOCKS_WORTH_PACKING) return down;
    return each < 1 ? down : down * km_min64(each, BLOCKS_EACH);
}

/* Few rows of many columns: each block packs columns of its own. */
static int64_t refine_across(const gemm_plan *p, int64_t across) {
    int64_t each = p->g->n / across / COLUMNS_PER_BLOCK;
    return each < 1 ? across : across * km_min64(each, BLOCKS_EACH);
}

/* A gradient of weights sums over many rows of two activations. Each thread then does best with the
 * rows it made itself, all of c for its own part of k, though the parts are to be added up. How k
 * is parted depends on sizes alone, and so do the bits. */
#define SPLITS 2
#define SPLIT_FROM 512          /* rows */
#define SPLIT_MOST (256 * 1024) /* elements of c */

static void split_sum(gemm_plan *p) {
    const km_gemm *g = p->g;
    bool f32 = g->a.dtype == KM_F32 && g->b.dtype == KM_F32 && g->end.dtype == KM_F32;
    bool plain = !g->end.bias && g->end.act == KM_ACT_NONE && !g->pre && !g->slope;
    bool split = p->way == WAY_PACK && p->batches == 1 && f32 && plain && g->a.col != 1 &&
                 g->b.col == 1 && g->k >= SPLIT_FROM && g->m * g->n <= SPLIT_MOST;
    p->splits = split ? SPLITS : 1;
    p->depth = split ? up(km_ceil_div(g->k, SPLITS), 8) : g->k;
    p->partial_floats = split ? (size_t)up(g->m * g->n + g->m, 16) : 0;
}

/* Cuts c so that each thread gets the same number of blocks, of the shape that is done first. */
static void cut_blocks(gemm_plan *p, int64_t threads) {
    const km_gemm *g = p->g;
    int64_t unit_m = p->kern->mr, unit_n = p->kern->nr, best = 1;
    int64_t same = p->batches * p->splits; /* products of the same size */
    int64_t parts = same >= 4 * threads ? 1 : threads / gcd(same, threads);
    if (p->way == WAY_GEMV) { /* only the outputs are cut, in whole cache lines */
        unit_m = p->turned ? 16 : g->m;
        unit_n = p->turned ? g->n : 16;
        best = p->turned ? parts : 1;
    } else if (p->way == WAY_PACK && packs_once(p) && g->m >= parts * ROWS_EACH) {
        best = parts; /* rows alone: b may be packed by each, and blocks can be refined */
    } else {
        for (int64_t down = 2; down <= parts; down++)
            if (parts % down == 0 &&
                block_time(p, down, parts / down) < block_time(p, best, parts / best))
                best = down;
    }
    int64_t across = parts / best;
    if (p->way == WAY_PACK && parts * p->splits > 1 && threads > 1 && across == 1) {
        int64_t finer = refine(p, best);
        if (finer == best && p->splits > 1) across = refine_across(p, across);
        best = finer;
    }
    if (g->col_sums) unit_m = unit_rows(p); /* the same sums however it is cut */
    p->rows = km_min64(g->m, up((g->m + best - 1) / best, unit_m));
    p->cols = km_min64(g->n, up((g->n + across - 1) / across, unit_n));
    p->down = (g->m + p->rows - 1) / p->rows;
    p->across = (g->n + p->cols - 1) / p->cols;
}

/* ---- Blocks ---- */

static const void *shift(const void *p, km_dtype d, int64_t i) {
    return (const char *)p + i * (int64_t)km_dtype_size(d);
}

/* Makes g, the block at (i, j), the sum over part s of k. */
static void take_split(const gemm_plan *p, km_gemm *g, int64_t i, int64_t j, int64_t s) {
    int64_t first = s * p->depth;
    g->a.data = (const float *)g->a.data + first * g->a.col;
    g->b.data = (const float *)g->b.data + first * g->b.row;
    g->k = km_min64(p->depth, g->k - first);
    if (s == 0) return;
    float *partial = p->partial + (size_t)(s - 1) * p->partial_floats;
    if (g->row_sums) g->row_sums = partial + p->g->m * p->g->n + i;
    g->c = partial + i * p->g->n + j;
    g->ldc = p->g->n;
    g->end.beta = 0;
}

/* Block `index` as a product of its own. */
static km_gemm part_of(const gemm_plan *p, int64_t index) {
    km_gemm g = *p->g;
    int64_t j = index / p->down % p->across * p->cols, i = index % p->down * p->rows;
    int64_t batch = p->splits > 1 ? 0 : index / (p->across * p->down);
    int64_t a = i * g.a.row, b = j * g.b.col, c = i * g.ldc + j;
    for (int d = g.batch_dims - 1; d >= 0; d--) {
        int64_t at = batch % g.batch[d];
        batch /= g.batch[d];
        a += at * g.a_step[d];
        b += at * g.b_step[d];
        c += at * g.c_step[d];
    }
    km_dtype out = g.end.dtype;
    g.a.data = shift(g.a.data, g.a.dtype, a);
    g.b.data = shift(g.b.data, g.b.dtype, b);
    g.c = (void *)shift(g.c, out, c);
    if (g.pre) g.pre = (void *)shift(g.pre, out, c);
    if (g.end.bias) g.end.bias = shift(g.end.bias, out, j);
    if (g.slope) g.slope += c;
    if (g.col_sums) g.col_sums = p->sums + i / unit_rows(p) * g.n + j;
    if (g.row_sums) g.row_sums = j == 0 ? g.row_sums + i : NULL;
    if (p->splits > 1) take_split(p, &g, i, j, index / (p->across * p->down));
    g.m = km_min64(p->rows, g.m - i);
    g.n = km_min64(p->cols, g.n - j);
    g.batch_dims = 0;
    return g;
}

/* Rows of c that OpenBLAS computes before bias and activation pass over them: few enough to be in
 * the cache still, enough to be worth packing b for. */
#define BLAS_ROWS 256

static void run_blas(const gemm_plan *p, const km_gemm *g) {
    bool ta = g->a.col != 1, tb = g->b.col != 1;
    bool plain = !g->end.bias && g->end.act == KM_ACT_NONE && !g->pre;
    int64_t lda = ta ? g->a.col : g->a.row, ldb = tb ? g->b.col : g->b.row;
    int64_t step = plain ? g->m : BLAS_ROWS;
    km_finish end = g->end;
    end.beta = 0;
    for (int64_t i = 0; i < g->m; i += step) {
        int64_t rows = km_min64(step, g->m - i);
        const float *a = (const float *)g->a.data + i * g->a.row;
        float *c = (float *)g->c + i * g->ldc;
        km_blas_sgemm(ta, tb, rows, g->n, g->k, g->alpha, a, lda, g->b.data, ldb, g->end.beta, c,
                      g->ldc);
        if (!plain) {
            float *pre = g->pre ? (float *)g->pre + i * g->ldc : NULL;
            p->kern->finish(&end, c, g->ldc, c, pre, g->ldc, rows, g->n);
        }
    }
}

static void run_blocks(void *arg, int64_t begin, int64_t end, int worker) {
    const gemm_plan *p = arg;
    float *scratch = p->scratch + (size_t)worker * p->floats;
    held *h = (held *)scratch;
    for (int64_t i = begin; i < end; i++) {
        km_gemm g = part_of(p, i);
        switch (p->way) {
        case WAY_GEMV: km_gemv_block(&g, p->kern, p->turned, scratch); break;
        case WAY_BLAS: run_blas(p, &g); break;
        case WAY_PACK:
            km_gemm_block(&g, p->kern, &p->cut, p->g->n, p->once && h->columns == i / p->down,
                          scratch + HELD);
            h->columns = i / p->down;
            break;
        }
    }
}

/* Rows begin .. end - 1 of the parts, added to the first. */
static void add_parts(void *arg, int64_t begin, int64_t end, int worker) {
    const gemm_plan *p = arg;
    const km_gemm *g = p->g;
    (void)worker;
    for (int64_t s = 1; s < p->splits; s++) {
        const float *part = p->partial + (size_t)(s - 1) * p->partial_floats;
        for (int64_t i = begin; i < end; i++) {
            float *c = (float *)g->c + i * g->ldc;
            for (int64_t j = 0; j < g->n; j++) c[j] += part[i * g->n + j];
            if (g->row_sums) g->row_sums[i] += part[g->m * g->n + i];
        }
    }
}

static void add_units(float *out, const float *sums, int64_t units, int64_t n) {
    memcpy(out, sums, sizeof *out * (size_t)n);
    for (int64_t i = 1; i < units; i++)
        for (int64_t j = 0; j < n; j++) out[j] += sums[i * n + j];
}

km_status km_gemm_run(km_ctx *ctx, const km_gemm *given) {
    km_gemm simple = *given, *g = &simple;
    settle(&g->a, g->m, g->k);
    settle(&g->b, g->k, g->n);
    fold_batches(g);
    gemm_plan p = {.g = g, .kern = km_gemm_kernels_of(km_gemm_isa()), .batches = 1};
    for (int d = 0; d < g->batch_dims; d++) p.batches *= g->batch[d];
    if (p.batches == 0 || g->m == 0 || g->n == 0) return KM_OK;
    if (km_gemm_tiles_suit(g)) return km_gemm_tiles_run(ctx, g);
    p.way = choose_way(g);
    p.turned = km_gemv_turned(g);
    int64_t threads = useful_threads(&p, km_threads_count(ctx->threads));
    split_sum(&p);
    cut_blocks(&p, threads);

    int64_t total = p.batches * p.splits * p.down * p.across;
    int64_t grain = total / (threads * 8);
    if (grain < 1) grain = 1;
    p.sums = g->col_sums; /* for a first block that knows of them */
    km_gemm first = part_of(&p, 0);
    int64_t meets = packs_once(&p) ? km_ceil_div(g->m, threads) : first.m;
    p.cut = km_gemm_cut_for(&first, p.kern, meets > first.m ? meets : first.m);
    if (p.way == WAY_GEMV) p.floats = km_gemv_floats(&first, p.turned);
    if (p.way == WAY_PACK) p.floats = p.cut.floats + HELD;
    p.once = p.way == WAY_PACK && km_gemm_packs_once(&first, &p.cut);
    int64_t units = g->col_sums ? (g->m + unit_rows(&p) - 1) / unit_rows(&p) : 0;
    if (p.floats) {
        size_t workers = threads == 1 ? 1 : (size_t)km_threads_count(ctx->threads);
        size_t sums = (size_t)up(units * g->n, 16);
        size_t partial = (size_t)(p.splits - 1) * p.partial_floats;
        p.sums = km_ctx_scratch(ctx, sizeof(float) * (p.floats * workers + sums + partial));
        if (!p.sums) return KM_ERR_MEMORY;
        p.partial = p.sums + sums;
        p.scratch = p.partial + partial;
        for (size_t i = 0; i < workers && p.way == WAY_PACK; i++)
            ((held *)(p.scratch + i * p.floats))->columns = -1;
    }
    if (threads == 1)
        run_blocks(&p, 0, total, 0);
    else
        km_threads_for(ctx->threads, total, grain, run_blocks, &p);
    if (p.splits > 1 && threads == 1)
        add_parts(&p, 0, g->m, 0);
    else if (p.splits > 1)
        km_threads_for(ctx->threads, g->m, km_ceil_div(g->m, 8), add_parts, &p);
    if (units) add_units(g->col_sums, p.sums, units, g->n);
    return KM_OK;
}

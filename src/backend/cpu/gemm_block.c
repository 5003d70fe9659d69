/* The packing GEMM. b is packed a block of (kc, nc) at a time; for each mc rows of a, every panel
 * of b meets them in turn while both are in the caches. a is read where it lies when it is rows of
 * f32, and laid out by tiles when it lies by columns. */
#include "backend/cpu/gemm_block.h"
#include "base/util.h"
#include <string.h>

static int64_t up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
/* The largest even share of `whole`, at most `most`, in steps of `unit`. */
static int64_t share(int64_t whole, int64_t most, int64_t unit) {
    if (whole <= most) return whole > 0 ? whole : 1;
    return up(km_ceil_div(whole, km_ceil_div(whole, most)), unit);
}

#define END_TILES 2 /* tiles of rows between the sums and what becomes of them */

static bool narrow(km_dtype d) { return d != KM_F32; }

/* How far apart the rows of a copy of a lie: not a power of two, which would crowd a few sets of
 * the caches. */
static int64_t a_stride(int64_t depth) { return up(depth, 16) + 16; }

/* f32 serves as it lies where copying would not pay: a by rows always, by columns when all of it is
 * near; b by rows, when few rows of a meet it, all of it is near, or it fits the second cache in
 * whole lines and not so many rows meet it that the packed one's even stride tells. Rows that lie
 * further apart than this crowd a few sets of the caches. */
#define NEAR (128 * 128)
#define FITS (200 * 1024)
#define APART 768
#define FEW_ROWS 48
#define SOME_ROWS 512

static bool a_direct(const km_gemm *g) {
    return g->a.dtype == KM_F32 && (g->a.col == 1 || (g->m * g->k <= NEAR / 2 && !g->row_sums));
}

static bool b_direct(const km_gemm *g, int64_t meets) {
    if (g->b.dtype != KM_F32 || g->b.col != 1) return false;
    bool lines = (uintptr_t)g->b.data % 64 == 0 && g->b.row % 16 == 0 && g->b.row <= APART;
    return meets <= FEW_ROWS || g->k * g->n <= NEAR ||
           (lines && meets <= SOME_ROWS && g->k * g->n <= FITS);
}

km_gemm_cut km_gemm_cut_for(const km_gemm *g, const km_gemm_kernels *kern, int64_t meets) {
    km_gemm_cut c = {0};
    c.b_lies = b_direct(g, meets);
    c.kc = share(g->k, 768, 8);
    c.nc = share(g->n, 1024, kern->nr);
    c.mc = share(g->m, KM_GEMM_MC * kern->mr, kern->mr);
    if (g->col_sums) c.mc = KM_GEMM_MC * kern->mr; /* however c is cut */
    c.mb = g->m;
    size_t floats = 0;
    c.b_at = floats;
    floats += (size_t)c.kc * (size_t)up(c.nc, kern->nr);
    c.a_at = floats;
    if (!a_direct(g) && g->a.col == 1)
        floats += (size_t)(c.mc * a_stride(c.kc));
    else if (!a_direct(g))
        floats += (size_t)(km_ceil_div(c.mc, kern->mr) * km_laid_step(c.kc));
    c.c_at = floats;
    if (c.kc >= g->k) {
        floats += (size_t)(END_TILES * kern->mr * kern->nr);
    } else if (narrow(g->end.dtype)) {
        c.nc = share(g->n, 512, kern->nr);
        c.mb = share(g->m, 1024, c.mc);
        floats += (size_t)c.mb * (size_t)up(c.nc, kern->nr);
    }
    c.floats = (floats + 15) & ~(size_t)15;
    return c;
}

bool km_gemm_packs_once(const km_gemm *g, const km_gemm_cut *cut) {
    return g->k <= cut->kc && g->n <= cut->nc;
}

static void *at(const void *p, km_dtype d, int64_t i) {
    return (char *)p + i * (int64_t)km_dtype_size(d);
}

typedef struct gemm_block {
    const km_gemm *g;
    const km_gemm_kernels *kern;
    const km_gemm_cut *cut;
    float *scratch;
    int64_t j, cols, p, depth; /* the block of b in hand */
    int64_t i, rows;           /* and the rows of a */
    const float *a;            /* these rows, f32, from column p on */
    int64_t a_row, a_col;
    bool laid;        /* by tiles */
    int64_t sum_i;    /* the first row in the f32 sums of a 16-bit c */
    bool first, last; /* of the steps along k */
    int64_t sums_ld;
} gemm_block;

static const float *b_panel(const gemm_block *b, int64_t j, int64_t *ld) {
    const km_gemm *g = b->g;
    int64_t nr = b->kern->nr;
    if (b->cut->b_lies && b->cols - j >= nr) {
        *ld = g->b.row;
        return (const float *)g->b.data + b->p * g->b.row + b->j + j;
    }
    *ld = nr;
    return b->scratch + b->cut->b_at + j * b->depth;
}

static void pack_b(const gemm_block *b) {
    const km_gemm *g = b->g;
    const km_gemm_kernels *kern = b->kern;
    int64_t skip = b->cut->b_lies ? b->cols / kern->nr * kern->nr : 0;
    if (skip == b->cols) return;
    const void *src = at(g->b.data, g->b.dtype, b->p * g->b.row + (b->j + skip) * g->b.col);
    float *dst = b->scratch + b->cut->b_at + skip * b->depth;
    if (g->b.col == 1)
        kern->pack(dst, src, g->b.dtype, g->b.row, b->depth, b->cols - skip);
    else
        kern->pack_turned(dst, src, g->b.dtype, g->b.col, b->depth, b->cols - skip);
}

static void take_a(gemm_block *b) {
    const km_gemm *g = b->g;
    const void *src = at(g->a.data, g->a.dtype, b->i * g->a.row + b->p * g->a.col);
    float *dst = b->scratch + b->cut->a_at;
    int64_t ld = a_stride(b->depth);
    b->a = dst;
    b->a_row = ld;
    b->a_col = 1;
    b->laid = false;
    if (a_direct(g)) {
        b->a = src;
        b->a_row = g->a.row;
        b->a_col = g->a.col;
    } else if (g->a.col == 1) {
        b->kern->widen(dst, ld, src, g->a.dtype, g->a.row, b->rows, b->depth);
    } else {
        float *sums = b->j == 0 && g->row_sums ? g->row_sums + b->i : NULL;
        if (sums && b->first) memset(sums, 0, sizeof *sums * (size_t)b->rows);
        b->kern->lay(dst, src, g->a.dtype, g->a.col, b->depth, b->rows, sums);
        b->laid = true;
    }
}

/* Whether more than the sum goes into c. */
static bool has_end(const km_gemm *g) {
    return narrow(g->end.dtype) || g->end.bias || g->end.act != KM_ACT_NONE || g->pre;
}

/* What the tile adds by itself as it stores. */
static bool ends_in_tile(const gemm_block *b) {
    const km_gemm *g = b->g;
    return b->first && b->last && !b->laid && g->end.bias && g->end.dtype == KM_F32 &&
           g->end.act == KM_ACT_NONE && !g->pre;
}

/* `rows` rows of the block from row r on, columns j .. j + cols: into sum. */
static void multiply(const gemm_block *b, int64_t r, int64_t rows, int64_t j, int64_t cols,
                     float *sum, int64_t ld, float beta, const float *bias) {
    const km_gemm *g = b->g;
    int64_t ldb, ld_next, nr = b->kern->nr;
    const float *panel = b_panel(b, j, &ldb);
    const float *next = j + nr < b->cols ? b_panel(b, j + nr, &ld_next) : NULL;
    if (next && ld_next != ldb) next = NULL;                 /* the last one, packed apart */
    if (r > 0 || km_gemm_packs_once(g, b->cut)) next = NULL; /* near enough; rather a */
    if (b->laid)
        b->kern->panel_laid(rows, cols, b->depth, b->a + r / b->kern->mr * km_laid_step(b->depth),
                            panel, ldb, next, sum, ld, g->alpha, beta);
    else
        b->kern->panel_biased(rows, cols, b->depth, b->a + r * b->a_row, b->a_row, b->a_col, panel,
                              ldb, next, bias, sum, ld, g->alpha, beta);
}

/* What becomes of finished sums: rows from row r on, columns j .. j + cols. */
static void end_rows(const gemm_block *b, int64_t r, int64_t rows, int64_t j, int64_t cols,
                     const float *sum, int64_t ld, float beta) {
    const km_gemm *g = b->g;
    km_finish end = g->end;
    int64_t c_at = (b->i + r) * g->ldc + b->j + j;
    void *out = at(g->c, end.dtype, c_at);
    if (g->slope) {
        float *sums = g->col_sums;
        if (sums) sums += b->i / b->cut->mc * b->sums_ld + b->j + j;
        if (sums && r == 0) memset(sums, 0, sizeof *sums * (size_t)cols);
        b->kern->slope(end.act, sum, ld, g->slope + c_at, out, g->ldc, rows, cols, sums);
        return;
    }
    end.beta = beta;
    if (end.bias) end.bias = at(end.bias, end.dtype, b->j + j);
    b->kern->finish(&end, sum, ld, out, g->pre ? at(g->pre, end.dtype, c_at) : NULL, g->ldc, rows,
                    cols);
}

/* Rows i .. i + rows of c, columns j .. j + cols of the block: the panel's product and, after the
 * last step of k, what becomes of it. */
static void strip(const gemm_block *b, int64_t j, int64_t cols) {
    const km_gemm *g = b->g;
    int64_t nr = b->kern->nr;
    float *scratch = b->scratch + b->cut->c_at;
    if (ends_in_tile(b)) {
        float *out = (float *)g->c + b->i * g->ldc + b->j + j;
        const float *bias = (const float *)g->end.bias + b->j + j;
        multiply(b, 0, b->rows, j, cols, out, g->ldc, g->end.beta, bias);
    } else if (b->first && b->last && has_end(g)) {
        /* few rows at a time, which stay in the first cache */
        for (int64_t r = 0, step = END_TILES * b->kern->mr; r < b->rows; r += step) {
            int64_t rows = km_min64(step, b->rows - r);
            multiply(b, r, rows, j, cols, scratch, nr, 0, NULL);
            end_rows(b, r, rows, j, cols, scratch, nr, g->end.beta);
        }
    } else if (narrow(g->end.dtype)) {
        int64_t ld = up(b->cut->nc, nr);
        float *sum = scratch + (b->i - b->sum_i) * ld + j;
        multiply(b, 0, b->rows, j, cols, sum, ld, b->first ? 0 : 1, NULL);
        if (b->last) end_rows(b, 0, b->rows, j, cols, sum, ld, g->end.beta);
    } else {
        float *sum = (float *)g->c + b->i * g->ldc + b->j + j;
        multiply(b, 0, b->rows, j, cols, sum, g->ldc, b->first ? g->end.beta : 1, NULL);
        if (b->last && has_end(g)) end_rows(b, 0, b->rows, j, cols, sum, g->ldc, 0);
    }
}

void km_gemm_block(const km_gemm *g, const km_gemm_kernels *kern, const km_gemm_cut *cut,
                   int64_t sums_ld, bool b_packed, float *scratch) {
    gemm_block b = {.g = g, .kern = kern, .cut = cut, .scratch = scratch, .sums_ld = sums_ld};
    for (b.j = 0; b.j < g->n; b.j += cut->nc) {
        b.cols = km_min64(cut->nc, g->n - b.j);
        for (b.sum_i = 0; b.sum_i < g->m; b.sum_i += cut->mb) {
            int64_t end = km_min64(g->m, b.sum_i + cut->mb);
            b.p = 0;
            do { /* once even for k = 0: beta and bias still apply */
                b.depth = km_min64(cut->kc, g->k - b.p);
                b.first = b.p == 0;
                b.last = b.p + b.depth >= g->k;
                if (!b_packed) pack_b(&b);
                for (b.i = b.sum_i; b.i < end; b.i += cut->mc) {
                    b.rows = km_min64(cut->mc, end - b.i);
                    take_a(&b);
                    for (int64_t j = 0; j < b.cols; j += kern->nr)
                        strip(&b, j, km_min64(kern->nr, b.cols - j));
                }
                b.p += b.depth;
            } while (b.p < g->k);
        }
    }
}

/* Layers with weights in blocks (and, beside them, floats of another width than x): QUANT_LINEAR,
 * LINEARS and GATED. Few rows of x stream the weights past x; many rows take the weights sixteen
 * outputs at a time, unpacked into a thread's cache. Threads share out strips of outputs; the bits
 * of a result depend neither on the strips nor on the other rows. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/quant_kernels.h"
#include "backend/cpu/rows_tail.h"
#include "base/alloc.h"

#define STRIP KM_QUANT_OUTS /* outputs; of a gated layer half as many of each */
#define CHUNK_BYTES 65536 /* of weights that a thread takes at a time, at most, when rows are few */
#define FEW_AT_ONCE 4     /* rows that a thread encodes */
#define STRETCH 2         /* steps unpacked at a time: a panel of them fits the nearest cache */

/* Outputs y = act(x w^T + b), or with up: act(x w^T) * (x up^T). */
typedef struct quant_part {
    const km_tensor *w, *up, *b, *y;
    int64_t from, up_from; /* the rows of w and up that give output 0 */
    int64_t outs, strip;   /* of outputs to a strip */
    int64_t first, strips; /* among those of all parts */
    km_act act;
} quant_part;

typedef struct quant_job {
    quant_part part[3];
    int n;
    const km_tensor *x;
    int64_t rows, in, steps;
    int64_t alone;    /* rows up to which each is computed by itself (km_rows_alone) */
    const float *xf;  /* x as floats (rows, in) */
    float *xf_room;   /* where they are put, when x is of another dtype */
    km_quant_x *xq;   /* (rows, steps); NULL when no weight is in blocks, or x is in words */
    km_quant_low *xl; /* their second planes; NULL: 8 bits */
    char *xw;         /* in words (tiles, steps), where rows are many; or NULL */
    char *xt;         /* for products by tiles (tiles, steps); or NULL */
    const km_quant_tiles *tiles;
    int64_t group;                 /* strips that a thread works on together */
    int64_t row_parts, part_tiles; /* all rows are cut into so many parts, of so many tiles */
    size_t panel;                  /* bytes of a panel */
    char *room;                    /* of each thread `each` bytes */
    size_t each;
    const km_quant_kernels *k;
    const km_gemm_kernels *fk;
} quant_job;

/* The kernels for many rows take it. */
static bool in_blocks(const quant_part *p) {
    return km_dtype_is_block(p->w->dtype) && (!p->up || p->up->dtype == p->w->dtype);
}

/* Each row by itself: bits are those of a row alone. */
static bool few(const quant_job *j) { return j->rows <= j->alone; }

/* Enough rows for weights to be taken apart before they meet x. */
static bool several(const quant_job *j) { return j->rows > KM_FEW_ROWS; }

static const uint8_t *row_at(const km_tensor *w, int64_t row) {
    return (const uint8_t *)km_tensor_ptr(w) + km_dtype_bytes(w->dtype, row * w->shape.dim[1]);
}

static void *element_at(const km_tensor *t, int64_t i) {
    return (char *)km_tensor_ptr(t) + i * (int64_t)km_dtype_size(t->dtype);
}

/* ---- x ---- */

static void encode_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        if (j->xf_room)
            km_simd_lanes()->load[km_float_slot(j->x->dtype)](j->xf_room + r * j->in,
                                                              element_at(j->x, r * j->in), j->in);
        const float *x = j->xf + r * j->in;
        if (j->xq)
            j->k->encode(x, j->in, j->xq + r * j->steps, j->xl ? j->xl + r * j->steps : NULL);
    }
}

static char *tile_at(const quant_job *j, int64_t tile, int64_t step) {
    return j->xw + (size_t)(tile * j->steps + step) * j->k->word_bytes;
}

static void encode_tiles(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    int64_t each = j->k->word_rows;
    for (int64_t t = begin; t < end; t++) {
        int64_t r = t * each, rows = j->rows - r < each ? j->rows - r : each;
        encode_rows(arg, r, r + rows, worker); /* to floats */
        j->k->encode_words(j->xf + r * j->in, j->in, rows, tile_at(j, t, 0));
    }
}

/* ---- The end of a strip ---- */

/* v and, where there is an up, u: (rows, ld) sums of outputs o to o + outs - 1, rows from `first` on. */
static void finish(const quant_job *j, const quant_part *p, int64_t first, int64_t rows, float *v,
                   const float *u, int64_t ld, int64_t o, int64_t outs) {
    km_finish end = {.act = p->act, .dtype = p->y->dtype};
    void *out = element_at(p->y, first * p->outs + o);
    if (p->up) { /* it has no bias */
        km_finish gate = {.act = p->act, .dtype = KM_F32};
        j->fk->finish(&gate, v, ld, v, NULL, ld, rows, outs);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < outs; i++) v[r * ld + i] *= u[r * ld + i];
        end.act = KM_ACT_NONE;
    }
    if (p->b) end.bias = element_at(p->b, o);
    j->fk->finish(&end, v, ld, out, NULL, p->outs, rows, outs);
}

static const quant_part *part_of(const quant_job *j, int64_t strip) {
    const quant_part *p = j->part;
    while (strip >= p->first + p->strips) p++;
    return p;
}

/* ---- Few rows ---- */

static void few_rows(const quant_job *j, const km_tensor *w, int64_t row, int64_t outs, char *room,
                     float *y) {
    if (!km_dtype_is_block(w->dtype)) {
        j->k->few_floats(w->dtype, row_at(w, row), j->in, outs, j->xf, j->in, j->rows, y, STRIP);
        return;
    }
    km_quant_rows x = {j->xq, j->xl, j->steps, j->rows, j->steps};
    int64_t bytes = km_dtype_bytes(w->dtype, j->in);
    const uint8_t *at = row_at(w, row), *end = row_at(w, w->shape.dim[0]);
    if (several(j)) {
        const uint8_t *next = row + outs + STRIP <= w->shape.dim[0] ? at + outs * bytes : NULL;
        km_quant_apart *apart = (void *)room;
        j->k->take_apart(w->dtype, at, end, bytes, j->in, outs, apart);
        j->k->meet(w->dtype, apart, j->in, outs, &x, next, bytes, y, STRIP);
        return;
    }
    j->k->few(w->dtype, at, end, bytes, j->in, outs, &x, y, STRIP);
}

static void few_strips(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    char *room = j->room + (size_t)worker * j->each; /* a strip taken apart, then its sums */
    float *v = (float *)(void *)(room + j->panel), *u = v + j->rows * STRIP;
    for (int64_t s = begin; s < end; s++) {
        const quant_part *p = part_of(j, s);
        int64_t o = (s - p->first) * p->strip;
        int64_t outs = p->outs - o < p->strip ? p->outs - o : p->strip;
        few_rows(j, p->w, p->from + o, outs, room, v);
        if (p->up) few_rows(j, p->up, p->up_from + o, outs, room, u);
        finish(j, p, 0, j->rows, v, u, STRIP, o, outs);
    }
}

/* ---- Many rows ---- */

/* `outs` rows of w from `row` on, as outputs `first` on of a panel. */
static void unpack(const quant_job *j, const km_tensor *w, int64_t row, int64_t outs, int64_t step,
                   int64_t n, int first, void *panel) {
    const uint8_t *at = row_at(w, row) + km_dtype_bytes(w->dtype, step * KM_QUANT_STEP);
    int64_t bytes = km_dtype_bytes(w->dtype, j->in);
    if (j->xw)
        j->k->unpack_words(w->dtype, at, bytes, n, first, (int)outs, panel);
    else
        j->k->unpack(w->dtype, at, bytes, n, first, (int)outs, panel);
}

/* All rows of x, n elements from a step on, times a panel. */
static void multiply(const quant_job *j, const km_tensor *w, int64_t step, int64_t n,
                     const void *panel, float *y) {
    if (j->xw) {
        j->k->tile_words(panel, tile_at(j, 0, step), j->steps, j->rows, n, step > 0, y, STRIP);
        return;
    }
    km_quant_rows x = {j->xq + step, j->xl ? j->xl + step : NULL, j->steps, j->rows,
                       km_ceil_div(n, KM_QUANT_STEP)};
    j->k->tile(w->dtype, panel, &x, step > 0, y, STRIP);
}

static void many_strips(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    char *room = j->room + (size_t)worker * j->each;
    float *y = (float *)(void *)(room + STRETCH * j->panel); /* (rows, KM_QUANT_OUTS) */
    for (int64_t s = begin; s < end; s++) {
        const quant_part *p = part_of(j, s);
        int64_t o = (s - p->first) * p->strip;
        int64_t outs = p->outs - o < p->strip ? p->outs - o : p->strip;
        for (int64_t at = 0; at < j->steps; at += STRETCH) {
            int64_t n = j->in - at * KM_QUANT_STEP;
            if (n > STRETCH * KM_QUANT_STEP) n = STRETCH * KM_QUANT_STEP;
            unpack(j, p->w, p->from + o, outs, at, n, 0, room);
            if (p->up) unpack(j, p->up, p->up_from + o, outs, at, n, STRIP / 2, room);
            multiply(j, p->w, at, n, room, y);
        }
        finish(j, p, 0, j->rows, y, y + STRIP / 2, STRIP, o, outs);
    }
}

/* ---- Many rows, by tiles ---- */

#define TILE_STRIP KM_QUANT_TILE_OUTS
#define SLAB 2               /* steps of x that pass by a group of strips before the next ones do */
#define GROUP 8              /* strips of a group at most */
#define GROUP_NEAR 4         /* where all of x is near: results are written side by side */
#define X_NEAR (1024 * 1024) /* bytes of x that stay in a core's cache */
#define PART_TILES 8         /* rows fewer than these are not worth unpacking weights for */

static char *x_tiles_at(const quant_job *j, int64_t tile, int64_t step) {
    return j->xt + (size_t)(tile * j->steps + step) * j->tiles->x_bytes;
}

static void encode_x_tiles(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    for (int64_t t = begin; t < end; t++) {
        int64_t r = t * KM_QUANT_TILE_ROWS, rows = j->rows - r;
        if (rows > KM_QUANT_TILE_ROWS) rows = KM_QUANT_TILE_ROWS;
        encode_rows(arg, r, r + rows, worker); /* to floats */
        j->tiles->encode(j->xf + r * j->in, j->in, rows, x_tiles_at(j, t, 0));
    }
}

/* Outputs of a strip: `outs` of them from o on. */
typedef struct quant_strip {
    const quant_part *p;
    int64_t o, outs;
} quant_strip;

static quant_strip place_of(const quant_job *j, int64_t strip) {
    const quant_part *p = part_of(j, strip);
    int64_t o = (strip - p->first) * p->strip;
    return (quant_strip){p, o, p->outs - o < p->strip ? p->outs - o : p->strip};
}

/* Step `at` of a strip times `tiles` tiles of x from `tile` on, added to its sums. */
static void tiled_step(const quant_job *j, quant_strip s, int64_t at, int64_t tile, int64_t tiles,
                       void *panel, float *sums) {
    const quant_part *p = s.p;
    int64_t n = j->in - at * KM_QUANT_STEP, bytes = km_dtype_bytes(p->w->dtype, j->in);
    int64_t skip = km_dtype_bytes(p->w->dtype, at * KM_QUANT_STEP);
    if (n > KM_QUANT_STEP) n = KM_QUANT_STEP;
    j->tiles->unpack(p->w->dtype, row_at(p->w, p->from + s.o) + skip, bytes, n, 0, (int)s.outs,
                     panel);
    if (p->up)
        j->tiles->unpack(p->up->dtype, row_at(p->up, p->up_from + s.o) + skip, bytes, n,
                         TILE_STRIP / 2, (int)s.outs, panel);
    j->tiles->multiply(panel, x_tiles_at(j, tile, at), j->steps, tiles, n, at > 0, sums);
}

static void end_tiled(const quant_job *j, quant_strip s, int64_t first, int64_t rows,
                      const float *sums, float *room) {
    const quant_part *p = s.p;
    if (!p->up && !p->b && p->act == KM_ACT_NONE && p->y->dtype == KM_F32 && s.outs == TILE_STRIP) {
        j->tiles->turn(sums, rows, element_at(p->y, first * p->outs + s.o), p->outs);
        return;
    }
    j->tiles->turn(sums, rows, room, TILE_STRIP);
    finish(j, p, first, rows, room, room + TILE_STRIP / 2, TILE_STRIP, s.o, s.outs);
}

/* Groups of strips, of each as many parts of the rows as there are. A slab of x stays near while all
 * strips of a group pass by. */
static void tiled_groups(void *arg, int64_t begin, int64_t end, int worker) {
    const quant_job *j = arg;
    char *panel = j->room + (size_t)worker * j->each;
    int64_t strips = j->part[j->n - 1].first + j->part[j->n - 1].strips;
    int64_t floats = j->part_tiles * KM_QUANT_TILE_ROWS * TILE_STRIP;
    float *sums = (float *)(void *)(panel + j->tiles->panel_bytes); /* (group, tiles, strip, 16) */
    for (int64_t i = begin; i < end; i++) {
        int64_t from = i / j->row_parts * j->group, to = from + j->group;
        int64_t tile = i % j->row_parts * j->part_tiles, first = tile * KM_QUANT_TILE_ROWS;
        int64_t rows = j->rows - first, most = j->part_tiles * KM_QUANT_TILE_ROWS;
        if (rows <= 0) continue;
        if (rows > most) rows = most;
        if (to > strips) to = strips;
        for (int64_t slab = 0; slab < j->steps; slab += SLAB)
            for (int64_t s = from; s < to; s++)
                for (int64_t at = slab; at < slab + SLAB && at < j->steps; at++)
                    tiled_step(j, place_of(j, s), at, tile, km_ceil_div(rows, KM_QUANT_TILE_ROWS),
                               panel, sums + (s - from) * floats);
        for (int64_t r = 0; r < rows; r += KM_QUANT_TILE_ROWS)
            for (int64_t s = from; s < to; s++)
                end_tiled(j, place_of(j, s), first + r,
                          rows - r < KM_QUANT_TILE_ROWS ? rows - r : KM_QUANT_TILE_ROWS,
                          sums + (s - from) * floats + r * TILE_STRIP, sums + j->group * floats);
    }
}

/* Strips go in groups where x is too large to stay in a core's cache, but each thread is to have some
 * to the end. Where strips are too few for that, rows are parted, and each part unpacks the weights
 * for itself. Nothing of this changes a bit. */
static int64_t cut_tiles(quant_job *j, int threads) {
    int64_t total = 0, tiles = km_ceil_div(j->rows, KM_QUANT_TILE_ROWS), parts = 1;
    for (int i = 0; i < j->n; i++) {
        quant_part *p = &j->part[i];
        p->strip = p->up ? TILE_STRIP / 2 : TILE_STRIP;
        p->first = total;
        p->strips = in_blocks(p) ? km_ceil_div(p->outs, p->strip) : 0;
        total += p->strips;
    }
    while (total * parts < 2 * threads && tiles / (parts + 1) >= PART_TILES) parts++;
    j->part_tiles = km_ceil_div(tiles, parts);
    j->row_parts = parts;
    int64_t most = total / (4 * threads);
    bool far = (size_t)(j->part_tiles * j->steps) * j->tiles->x_bytes > X_NEAR;
    int64_t group = far ? GROUP : GROUP_NEAR;
    j->group = most < 1 ? 1 : most < group ? most : group;
    return total;
}

static km_status run_tiles(km_ctx *ctx, quant_job *j, int64_t strips) {
    int64_t tiles = km_ceil_div(j->rows, KM_QUANT_TILE_ROWS);
    bool convert = j->x->dtype != KM_F32;
    size_t for_floats = convert ? ((size_t)(j->rows * j->in) * sizeof(float) + 63) / 64 * 64 : 0;
    size_t for_x = (size_t)(tiles * j->steps) * j->tiles->x_bytes;
    size_t threads = (size_t)km_threads_count(ctx->threads);
    size_t sums = (size_t)(j->part_tiles * KM_QUANT_TILE_ROWS * TILE_STRIP) * sizeof(float);
    j->each = j->tiles->panel_bytes + (size_t)(j->group + 1) * sums;
    char *scratch = km_ctx_scratch(ctx, for_floats + for_x + threads * j->each + 64);
    if (!scratch) return KM_ERR_MEMORY;
    scratch += (64 - (uintptr_t)scratch % 64) % 64;
    j->xf_room = convert ? (float *)(void *)scratch : NULL;
    j->xf = convert ? j->xf_room : km_tensor_ptr(j->x);
    j->xt = scratch + for_floats;
    j->room = j->xt + for_x;
    km_threads_for(ctx->threads, tiles, 1, encode_x_tiles, j);
    km_threads_for(ctx->threads, km_ceil_div(strips, j->group) * j->row_parts, 1, tiled_groups, j);
    return KM_OK;
}

/* ---- Floats against many rows: the product engine's work ---- */

static km_status float_part(km_ctx *ctx, const quant_job *j, const quant_part *p) {
    km_gemm g = {
        .m = j->rows,
        .n = p->outs,
        .k = j->in,
        .a = {km_tensor_ptr(j->x), j->x->dtype, j->in, 1},
        .b = {row_at(p->w, p->from), p->w->dtype, 1, j->in},
        .c = km_tensor_ptr(p->y),
        .ldc = p->outs,
        .alpha = 1,
        .end = {.bias = p->b ? km_tensor_ptr(p->b) : NULL, .act = p->act, .dtype = p->y->dtype},
    };
    return km_gemm_run(ctx, &g);
}

/* ---- A call ---- */

/* The strips of the parts that the kernels here take, in order. */
static int64_t cut(quant_job *j) {
    int64_t total = 0;
    for (int i = 0; i < j->n; i++) {
        quant_part *p = &j->part[i];
        p->strip = !few(j) && p->up ? STRIP / 2 : STRIP;
        p->first = total;
        p->strips = few(j) || in_blocks(p) ? km_ceil_div(p->outs, p->strip) : 0;
        total += p->strips;
    }
    return total;
}

static int64_t bytes_of(const quant_job *j) {
    int64_t bytes = 0;
    for (int i = 0; i < j->n; i++)
        bytes +=
            km_dtype_bytes(j->part[i].w->dtype, j->part[i].outs * j->in) * (j->part[i].up ? 2 : 1);
    return bytes;
}

/* Weights are read straight from their blocks, or as floats when rows are few. */
static km_status run_strips(km_ctx *ctx, quant_job *j, int64_t strips) {
    bool convert = j->x->dtype != KM_F32, blocks = false;
    for (int i = 0; i < j->n; i++) {
        const quant_part *p = &j->part[i];
        if (p->strips) blocks |= km_dtype_is_block(p->w->dtype);
        if (p->strips && p->up) blocks |= km_dtype_is_block(p->up->dtype);
    }
    size_t for_floats = convert ? ((size_t)(j->rows * j->in) * sizeof(float) + 63) / 64 * 64 : 0;
    bool fine = ctx->activations != 8, words = fine && !few(j) && j->k->tile_words;
    int64_t tiles = words ? km_ceil_div(j->rows, j->k->word_rows) : 0;
    size_t steps = blocks ? (size_t)j->steps : 0, rows = (size_t)j->rows;
    size_t for_x = words ? (size_t)tiles * steps * j->k->word_bytes : rows * steps * sizeof *j->xq;
    size_t for_low = fine && !words ? rows * steps * sizeof *j->xl : 0;
    size_t threads = (size_t)km_threads_count(ctx->threads);
    j->panel = words ? sizeof(km_quant_word_panel) : sizeof(km_quant_panel);
    j->each = STRETCH * j->panel + (rows + 3) * STRIP * sizeof(float);
    if (few(j)) {
        j->panel = several(j) ? STRIP * steps * sizeof(km_quant_apart) : 0;
        j->each = j->panel + 2 * rows * STRIP * sizeof(float);
    }
    char *scratch = km_ctx_scratch(ctx, for_floats + for_x + for_low + threads * j->each + 64);
    if (!scratch) return KM_ERR_MEMORY;
    scratch += (64 - (uintptr_t)scratch % 64) % 64;
    j->xf_room = convert ? (float *)(void *)scratch : NULL;
    j->xf = convert ? j->xf_room : km_tensor_ptr(j->x);
    j->xw = blocks && words ? scratch + for_floats : NULL;
    j->xq = blocks && !words ? (void *)(scratch + for_floats) : NULL;
    j->xl = for_low ? (void *)(scratch + for_floats + for_x) : NULL;
    j->room = scratch + for_floats + for_x + for_low;
    if (few(j)) {
        km_threads_for(ctx->threads, j->rows, FEW_AT_ONCE, encode_rows, j);
        /* Several chunks to a thread, so that one that is held up does not hold up the others. */
        int64_t chunk = bytes_of(j) / (8 * km_threads_count(ctx->threads));
        int64_t each = bytes_of(j) / strips + 1, grain;
        grain = several(j) ? 1 : (chunk < CHUNK_BYTES ? chunk : CHUNK_BYTES) / each;
        km_threads_for(ctx->threads, strips, grain > 0 ? grain : 1, few_strips, j);
    } else {
        if (words)
            km_threads_for(ctx->threads, tiles, 1, encode_tiles, j);
        else
            km_threads_for(ctx->threads, j->rows, 16, encode_rows, j);
        km_threads_for(ctx->threads, strips, 1, many_strips, j);
    }
    return KM_OK;
}

static km_status run(km_ctx *ctx, quant_job *j) {
    km_status s = KM_OK;
    j->rows = j->x->shape.dim[0];
    j->in = j->x->shape.dim[1];
    j->alone = km_rows_alone(ctx);
    j->steps = km_ceil_div(j->in, KM_QUANT_STEP);
    j->k = km_quant_kernels_now();
    j->fk = km_gemm_kernels_of(j->k->floats);
    if (j->rows == 0) return KM_OK;
    j->tiles = few(j) ? NULL : j->k->tiles;
    int64_t strips = j->tiles ? cut_tiles(j, km_threads_count(ctx->threads)) : cut(j);
    for (int i = 0; i < j->n && s == KM_OK; i++)
        if (!j->part[i].strips && j->part[i].outs) s = float_part(ctx, j, &j->part[i]);
    if (s != KM_OK || !strips) return s;
    return j->tiles ? run_tiles(ctx, j, strips) : run_strips(ctx, j, strips);
}

static const km_tensor *optional(const km_call *c, int i) { return i < c->n_in ? c->in[i] : NULL; }

km_status km_cpu_quant_linear(km_ctx *ctx, const km_call *c) {
    km_status split;
    if (km_cpu_rows_split(ctx, c, 1, km_cpu_quant_linear, &split)) return split;
    quant_job j = {.x = c->in[0],
                   .n = 1,
                   .part = {{.w = c->in[1],
                             .b = optional(c, 2),
                             .y = c->out[0],
                             .act = c->p->act,
                             .outs = c->in[1]->shape.dim[0]}}};
    return run(ctx, &j);
}

km_status km_cpu_linears(km_ctx *ctx, const km_call *c) {
    km_status split;
    if (km_cpu_rows_split(ctx, c, 1, km_cpu_linears, &split)) return split;
    quant_job j = {.x = c->in[0], .n = c->n_out};
    for (int i = 0; i < j.n; i++)
        j.part[i] = (quant_part){.w = c->in[1 + 2 * i],
                                 .b = optional(c, 2 + 2 * i),
                                 .y = c->out[i],
                                 .outs = c->in[1 + 2 * i]->shape.dim[0]};
    return run(ctx, &j);
}

/* As two layers and their product: many rows against weights that are not of one block type. */
static km_status gated_apart(km_ctx *ctx, const km_tensor *x, quant_part p) {
    int64_t count = km_shape_count(p.y->shape), size = (int64_t)km_dtype_size(p.y->dtype);
    km_storage hold = {.data = km_alloc((size_t)(count * size) + 1)};
    if (!hold.data) return km_fail(ctx, KM_ERR_MEMORY, "gated: out of memory");
    km_tensor u = *p.y;
    u.storage = &hold;
    u.offset = 0;
    quant_job gate = {.x = x, .n = 1, .part = {{.w = p.w, .y = p.y, .act = p.act, .outs = p.outs}}};
    quant_job up = {
        .x = x, .n = 1, .part = {{.w = p.up, .from = p.up_from, .y = &u, .outs = p.outs}}};
    km_status s = run(ctx, &gate);
    if (s == KM_OK) s = run(ctx, &up);
    const km_lanes *lanes = km_simd_lanes();
    int slot = km_float_slot(p.y->dtype);
    float a[256], b[256];
    for (int64_t i = 0; i < count && s == KM_OK; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;
        lanes->load[slot](a, element_at(p.y, i), n);
        lanes->load[slot](b, element_at(&u, i), n);
        for (int64_t k = 0; k < n; k++) a[k] *= b[k];
        lanes->store[slot](element_at(p.y, i), a, n);
    }
    km_free(hold.data);
    return s;
}

km_status km_cpu_gated(km_ctx *ctx, const km_call *c) {
    km_status split;
    if (km_cpu_rows_split(ctx, c, 1, km_cpu_gated, &split)) return split;
    const km_tensor *up = optional(c, 2);
    int64_t outs = c->out[0]->shape.dim[1];
    quant_job j = {.x = c->in[0],
                   .n = 1,
                   .part = {{.w = c->in[1],
                             .up = up ? up : c->in[1],
                             .up_from = up ? 0 : outs,
                             .y = c->out[0],
                             .act = c->p->act,
                             .outs = outs}}};
    if (c->in[0]->shape.dim[0] > km_rows_alone(ctx) && !in_blocks(&j.part[0]))
        return gated_apart(ctx, c->in[0], j.part[0]);
    return run(ctx, &j);
}

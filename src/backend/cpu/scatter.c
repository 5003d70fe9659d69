/* Placing by index: scatter puts, scatter_add adds. The result begins as a copy of x. Each of its
 * elements is written by one thread, in the order of the indices, so the bits are the same in every
 * run and for any number of threads: threads share out lines, which never meet, and where there are
 * few lines they share out the places of a line, each passing over the indices of others. 16-bit
 * floats are summed in f32 and rounded once. */
#include "backend/cpu/kernels.h"
#include "backend/cpu/lanes.h"
#include "backend/cpu/lines.h"
#include <string.h>

#define COLS 128          /* of a unit of work */
#define SUMS (1 << 16)    /* f32 sums that a unit holds at most, for 16-bit floats: a slice of L2 */
#define LEAST_PLACES 4096 /* of a part of a line */

typedef struct scatter_job {
    km_axis_lines l;
    char *out;       /* like x */
    const char *src; /* like ids */
    const void *ids;
    bool wide;
    km_dtype dtype;
    int64_t size;
    int64_t cols, col_blocks; /* columns of a unit */
    int64_t places, parts;    /* places along the axis of a unit */
    float *sums;              /* (threads, places, cols), for 16-bit floats */
} scatter_job;

/* One unit: of the lines from x on, `cols` of them, the places from lo to hi. */
typedef struct unit {
    int64_t x, i, cols, lo, hi;
} unit;

/* out[place] OP= src over the unit, T being what an element is moved or added as. to + (place - lo)
 * * step + column is where it goes. */
#define PLACE(name, T, OP)                                                                         \
    static inline __attribute__((always_inline)) void name##_ids(                                  \
        const scatter_job *j, const unit *u, T *to, int64_t step, bool wide) {                     \
        const T *src = (const T *)(const void *)j->src;                                            \
        uint64_t many = (uint64_t)(u->hi - u->lo);                                                 \
        for (int64_t k = 0; k < j->l.m; k++) {                                                     \
            int64_t from = u->i + k * j->l.i_axis;                                                 \
            for (int64_t c = 0; c < u->cols; c++) {                                                \
                uint64_t at = (uint64_t)km_index_at(j->ids, wide, from + c) - (uint64_t)u->lo;     \
                if (at < many) to[(int64_t)at * step + c] OP src[from + c];                        \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    static void name(const scatter_job *j, const unit *u, void *to, int64_t step) {                \
        if (j->wide)                                                                               \
            name##_ids(j, u, to, step, true);                                                      \
        else                                                                                       \
            name##_ids(j, u, to, step, false);                                                     \
    }
PLACE(put_1, uint8_t, =)
PLACE(put_2, uint16_t, =)
PLACE(put_4, uint32_t, =)
PLACE(put_8, uint64_t, =)
PLACE(add_f32, float, +=)
PLACE(add_f64, double, +=)
PLACE(add_1, uint8_t, +=)
PLACE(add_4, uint32_t, +=)
PLACE(add_8, uint64_t, +=)

/* 16-bit floats: the unit's places as f32, added to, and rounded. */
static void add_halves(const scatter_job *j, const unit *u, float *sums) {
    const km_lanes *lanes = km_simd_lanes();
    int slot = km_float_slot(j->dtype);
    for (int64_t p = u->lo; p < u->hi; p++)
        lanes->load[slot](sums + (p - u->lo) * u->cols, j->out + (u->x + p * j->l.x_axis) * 2,
                          u->cols);
    const uint16_t *src = (const uint16_t *)(const void *)j->src;
    uint64_t many = (uint64_t)(u->hi - u->lo);
    for (int64_t k = 0; k < j->l.m; k++) {
        int64_t from = u->i + k * j->l.i_axis;
        for (int64_t c = 0; c < u->cols; c++) {
            uint64_t at = (uint64_t)km_index_at(j->ids, j->wide, from + c) - (uint64_t)u->lo;
            uint16_t bits = src[from + c];
            if (at < many)
                sums[(int64_t)at * u->cols + c] +=
                    slot == KM_SLOT_F16 ? km_f16_to_f32(bits) : km_bf16_to_f32(bits);
        }
    }
    for (int64_t p = u->lo; p < u->hi; p++)
        lanes->store[slot](j->out + (u->x + p * j->l.x_axis) * 2, sums + (p - u->lo) * u->cols,
                           u->cols);
}

static void do_unit(const scatter_job *j, const unit *u, bool adds, int worker) {
    void *to = j->out + (u->x + u->lo * j->l.x_axis) * j->size;
    int64_t step = j->l.x_axis;
    if (adds && j->sums) {
        add_halves(j, u, j->sums + worker * j->places * j->cols);
        return;
    }
    if (adds && km_dtype_is_float(j->dtype)) {
        (j->dtype == KM_F32 ? add_f32 : add_f64)(j, u, to, step);
        return;
    }
    switch (j->size) {
    case 1: (adds ? add_1 : put_1)(j, u, to, step); break;
    case 2: put_2(j, u, to, step); break; /* there are no integers of 16 bits */
    case 4: (adds ? add_4 : put_4)(j, u, to, step); break;
    default: (adds ? add_8 : put_8)(j, u, to, step); break;
    }
}

static void scatter_units(const scatter_job *j, int64_t begin, int64_t end, bool adds, int worker) {
    for (int64_t e = begin; e < end; e++) {
        int64_t part = e % j->parts, rest = e / j->parts;
        int64_t col = rest % j->col_blocks * j->cols;
        km_line_at row = km_axis_lines_seek(&j->l, rest / j->col_blocks);
        unit u = {.x = row.x + col, .i = row.i + col, .lo = part * j->places};
        u.cols = j->l.cols - col < j->cols ? j->l.cols - col : j->cols;
        u.hi = j->l.n - u.lo < j->places ? j->l.n : u.lo + j->places;
        do_unit(j, &u, adds, worker);
    }
}

static void put_range(void *arg, int64_t begin, int64_t end, int worker) {
    scatter_units(arg, begin, end, false, worker);
}
static void add_range(void *arg, int64_t begin, int64_t end, int worker) {
    scatter_units(arg, begin, end, true, worker);
}

typedef struct scatter_copy {
    char *to;
    const char *from;
} scatter_copy;

static void copy_range(void *arg, int64_t begin, int64_t end, int worker) {
    const scatter_copy *j = arg;
    (void)worker;
    memcpy(j->to + begin, j->from + begin, (size_t)(end - begin));
}

/* Units of about the same work: columns, and where that leaves few units, parts of the lines. How
 * they are cut changes no bit, since a place belongs to one of them. */
static void cut(scatter_job *j, int threads, bool halves) {
    const km_axis_lines *l = &j->l;
    j->cols = l->cols < COLS ? l->cols : COLS;
    j->places = l->n;
    if (halves) {
        while (j->cols > 16 && j->cols * j->places > SUMS) j->cols = (j->cols + 1) / 2;
        if (j->cols * j->places > SUMS) j->places = SUMS / j->cols;
    }
    j->col_blocks = km_ceil_div(l->cols, j->cols);
    int64_t units = l->rows * j->col_blocks, wanted = 2 * (int64_t)threads;
    if (threads > 1 && units < threads && l->n >= 2 * LEAST_PLACES) {
        int64_t places = km_ceil_div(l->n, km_ceil_div(wanted, units));
        if (places < LEAST_PLACES) places = LEAST_PLACES;
        if (places < j->places) j->places = places;
    }
    j->parts = km_ceil_div(l->n, j->places);
}

km_status km_cpu_scatter(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *ids = c->in[1], *src = c->in[2];
    bool adds = c->op == KM_OP_SCATTER_ADD, halves = x->dtype == KM_F16 || x->dtype == KM_BF16;
    int64_t size = (int64_t)km_dtype_size(x->dtype), bytes = km_shape_count(x->shape) * size;
    scatter_job j = {.l = km_axis_lines_make(x, ids, c->p->axis),
                     .out = km_tensor_ptr(c->out[0]),
                     .src = km_tensor_ptr(src),
                     .ids = km_tensor_ptr(ids),
                     .wide = ids->dtype == KM_I64,
                     .dtype = x->dtype,
                     .size = size};
    if (bytes == 0) return KM_OK;
    scatter_copy copy = {j.out, km_tensor_ptr(x)};
    km_threads_for(ctx->threads, bytes, 1 << 20, copy_range, &copy);
    if (km_shape_count(ids->shape) == 0) return KM_OK;
    int threads = km_threads_count(ctx->threads);
    cut(&j, threads, adds && halves);
    if (adds && halves) {
        j.sums = km_ctx_scratch(ctx, (size_t)(threads * j.places * j.cols) * sizeof *j.sums);
        if (!j.sums) return KM_ERR_MEMORY;
    }
    km_threads_for(ctx->threads, j.l.rows * j.col_blocks * j.parts,
                   km_grain((j.l.m + (j.sums ? j.places : 0)) * j.cols * (size + 4)),
                   adds ? add_range : put_range, &j);
    return KM_OK;
}

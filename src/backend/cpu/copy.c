/* copy and cast. Same dtype: long runs, or tiles where the two sides run along different axes (a
 * transpose). f32 to and from 16-bit floats in one vectorised pass. The rest: cast.h. */
#include "backend/cpu/cast.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/simd/convert.h"
#include "backend/cpu/walk.h"

#define TILE 64 /* elements on a side of a transposed tile */

typedef struct copy_job {
    km_dtype to, from;
    int64_t so, sx;
    bool stream;
} copy_job;

static void copy_run(void *arg, char *const *ptr, int64_t n) {
    const copy_job *j = arg;
    bool plain = j->so == 1 && j->sx == 1;
    const km_convert_rows *rows = km_simd_convert();
    if (plain && j->stream && j->to == j->from && (n * (int64_t)km_dtype_size(j->to)) % 4 == 0 &&
        (uintptr_t)ptr[0] % 4 == 0)
        rows->copy((float *)ptr[0], (const float *)ptr[1], n * (int64_t)km_dtype_size(j->to) / 4,
                   true);
    else if (plain && j->from == KM_F16 && j->to == KM_F32)
        rows->from_f16((float *)ptr[0], (const uint16_t *)ptr[1], n, j->stream);
    else if (plain && j->from == KM_BF16 && j->to == KM_F32)
        rows->from_bf16((float *)ptr[0], (const uint16_t *)ptr[1], n, j->stream);
    else if (plain && j->from == KM_F32 && j->to == KM_F16)
        rows->to_f16((uint16_t *)ptr[0], (const float *)ptr[1], n, j->stream);
    else if (plain && j->from == KM_F32 && j->to == KM_BF16)
        rows->to_bf16((uint16_t *)ptr[0], (const float *)ptr[1], n, j->stream);
    else
        km_cast_run(j->to, ptr[0], j->so, j->from, ptr[1], j->sx, n);
}

/* ---- Transposes ---- */

/* out walks its axis `inner` with stride 1, x its axis `across`; one matrix for each index of the
 * others. */
typedef struct transpose_job {
    const km_iter *it;
    int across;
    int64_t down, wide, strips; /* sizes of the two axes; strips of TILE rows along `across` */
    bool stream;
} transpose_job;

#define TRANSPOSE(T)                                                                               \
    static void transpose_##T(T *out, int64_t so, const T *x, int64_t sx, int64_t down,            \
                              int64_t wide) {                                                      \
        T tile[TILE][TILE];                                                                        \
        for (int64_t k = 0; k < wide; k += TILE) {                                                 \
            int64_t w = wide - k < TILE ? wide - k : TILE;                                         \
            for (int64_t c = 0; c < w; c++)                                                        \
                for (int64_t r = 0; r < down; r++) tile[r][c] = x[(k + c) * sx + r];               \
            for (int64_t r = 0; r < down; r++)                                                     \
                memcpy(out + r * so + k, tile[r], (size_t)w * sizeof(T));                          \
        }                                                                                          \
    }
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint64_t)

static void transpose_strips(void *arg, int64_t begin, int64_t end, int worker) {
    const transpose_job *j = arg;
    const km_iter *it = j->it;
    int last = it->ndim - 1;
    int64_t so = it->stride[0][j->across], sx = it->stride[1][last];
    (void)worker;
    for (int64_t s = begin; s < end; s++) {
        int64_t row = s % j->strips * TILE, rest = s / j->strips;
        char *out = it->base[0], *x = it->base[1];
        int64_t size = (int64_t)it->size[0];
        for (int a = last - 1; a >= 0; a--) {
            if (a == j->across) continue;
            int64_t i = rest % it->dim[a];
            rest /= it->dim[a];
            out += i * it->stride[0][a] * size;
            x += i * it->stride[1][a] * size;
        }
        out += row * so * size;
        x += row * size;
        int64_t down = j->down - row < TILE ? j->down - row : TILE;
        void *o = out;
        const void *v = x;
        switch (size) {
        case 1: transpose_uint8_t(o, so, v, sx, down, j->wide); break;
        case 2: transpose_uint16_t(o, so, v, sx, down, j->wide); break;
        case 4: km_simd_convert()->transpose(o, so, v, sx, down, j->wide, j->stream); break;
        default: transpose_uint64_t(o, so, v, sx, down, j->wide); break;
        }
    }
    km_cpu_fence();
}

/* Copies by tiles if that is what the strides ask for. */
static bool transpose(km_ctx *ctx, const km_iter *it, bool stream) {
    int last = it->ndim - 1, across = -1;
    if (it->stride[0][last] != 1 || it->stride[1][last] == 1) return false;
    for (int a = 0; a < last; a++)
        if (it->stride[1][a] == 1) across = a;
    if (across < 0 || it->dim[across] < 8 || it->dim[last] < 8) return false;
    transpose_job j = {.it = it,
                       .across = across,
                       .down = it->dim[across],
                       .wide = it->dim[last],
                       .strips = (it->dim[across] + TILE - 1) / TILE,
                       .stream = stream};
    int64_t strips = it->rows / j.down * j.strips;
    km_threads_for(ctx->threads, strips, km_cpu_grain(ctx, strips, j.wide * TILE * 5),
                   transpose_strips, &j);
    return true;
}

static km_status copy(km_ctx *ctx, const km_call *c) {
    const km_tensor *out = c->out[0], *x = c->in[0];
    km_iter it;
    km_iter_init(&it, 2, (const km_tensor *[]){out, x});
    if (it.rows * it.dim[it.ndim - 1] == 0) return KM_OK;
    bool stream = km_cpu_streams(km_shape_count(out->shape) * (int64_t)it.size[0]);
    if (out->dtype == x->dtype && transpose(ctx, &it, stream)) return KM_OK;
    copy_job j = {
        .to = out->dtype,
        .from = x->dtype,
        .so = it.stride[0][it.ndim - 1],
        .sx = it.stride[1][it.ndim - 1],
        .stream = stream && it.dim[it.ndim - 1] >= 1024, /* short runs do better in the cache */
    };
    km_cpu_walk(ctx, &it, 2, copy_run, &j);
    return KM_OK;
}

void km_cpu_register_copy(km_kernel *k) { k[KM_OP_COPY] = k[KM_OP_CAST] = copy; }

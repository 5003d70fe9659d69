/* Elements from one layout and dtype into another. Rows are copied whole, from another place when a
 * head's rows are in another order; a matrix that is transposed is walked by blocks of rows, so
 * that what is read lies together. */
#include "model/layout.h"
#include "tensor/dtype.h"
#include <math.h>
#include <string.h>

#define BLOCK 16 /* rows of a transposed matrix at a time */

typedef struct layout_job {
    const uint8_t *src;
    km_dtype from, as;
    size_t in, out; /* bytes of an element */
    bool overflow;  /* f16 could not hold one */
} layout_job;

static float load(km_dtype d, const uint8_t *p) {
    uint16_t h;
    switch (d) {
    case KM_F16: memcpy(&h, p, 2); return km_f16_to_f32(h);
    case KM_BF16: memcpy(&h, p, 2); return km_bf16_to_f32(h);
    case KM_F64: {
        double v;
        memcpy(&v, p, 8);
        return (float)v;
    }
    default: {
        float v;
        memcpy(&v, p, 4);
        return v;
    }
    }
}

static void store(layout_job *j, float v, uint8_t *p) {
    uint16_t h;
    if (j->as == KM_F32) {
        memcpy(p, &v, 4);
    } else {
        h = j->as == KM_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
        j->overflow = j->overflow || (j->as == KM_F16 && (h & 0x7fff) == 0x7c00 && isfinite(v));
        memcpy(p, &h, 2);
    }
}

/* n elements from `at` on, lying together. */
static void copy_run(layout_job *j, size_t at, size_t n, uint8_t *dst) {
    const uint8_t *p = j->src + at * j->in;
    if (j->from == j->as) {
        memcpy(dst, p, n * j->in);
        return;
    }
    for (size_t i = 0; i < n; i++) store(j, load(j->from, p + i * j->in), dst + i * j->out);
}

static void copy_one(layout_job *j, size_t at, uint8_t *dst) {
    if (j->from == j->as)
        memcpy(dst, j->src + at * j->in, j->in);
    else
        store(j, load(j->from, j->src + at * j->in), dst);
}

/* Row `g` of GGUF's order is row rope_row(g) of Hugging Face's, and the other way round. */
static size_t rope_row(size_t g, size_t head, bool to_gguf) {
    size_t h = g / head, x = g % head, half = head / 2;
    return h * head + (to_gguf ? x % 2 * half + x / 2 : x % half * 2 + x / half);
}

/* (rows, columns) as written; the source has the transpose, (columns, rows). */
static void copy_transposed(layout_job *j, size_t rows, size_t columns, size_t first, size_t n,
                            uint8_t *dst) {
    for (size_t done = 0; done < n;) {
        size_t e = first + done, i = e / columns, k = e % columns;
        if (k == 0 && n - done >= BLOCK * columns) {
            for (size_t c = 0; c < columns; c++)
                for (size_t b = 0; b < BLOCK; b++)
                    copy_one(j, c * rows + i + b, dst + (done + b * columns + c) * j->out);
            done += BLOCK * columns;
        } else {
            size_t run = columns - k < n - done ? columns - k : n - done;
            for (size_t c = 0; c < run; c++)
                copy_one(j, (k + c) * rows + i, dst + (done + c) * j->out);
            done += run;
        }
    }
}

km_status km_layout_copy(const km_layout_row *r, const km_stored *s, km_store from, km_store to,
                         km_dtype as, size_t first, size_t n, void *dst, km_error *err) {
    layout_job j = {s->data, s->dtype, as, km_dtype_size(s->dtype), km_dtype_size(as), false};
    km_shape shape = km_layout_shape(r, to);
    size_t columns = (size_t)(shape.ndim == 2 ? shape.dim[1] : 1);
    if (!s->data) {
        memset(dst, 0, n * j.out);
    } else if (r->conv1d && from != to) {
        copy_transposed(&j, (size_t)shape.dim[0], columns, first, n, dst);
    } else if (r->rope_heads && from != to) {
        size_t head = (size_t)(shape.dim[0] / r->rope_heads);
        for (size_t done = 0; done < n;) {
            size_t e = first + done, i = e / columns, k = e % columns;
            size_t run = columns - k < n - done ? columns - k : n - done;
            size_t row = rope_row(i, head, to == KM_STORE_GGUF);
            copy_run(&j, row * columns + k, run, (uint8_t *)dst + done * j.out);
            done += run;
        }
    } else {
        copy_run(&j, first, n, dst);
    }
    if (j.overflow)
        return km_error_set(err, KM_ERR_RANGE,
                            "tensor '%s' holds numbers that f16 cannot; convert to bf16 or f32",
                            r->name);
    return KM_OK;
}

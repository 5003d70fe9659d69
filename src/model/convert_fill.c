/* The elements of a conversion: from the source's type and order into the target's, on all cores.
 * A piece is cut into runs of elements; each is brought into floats (unless it can be copied as it
 * is) and encoded. */
#include "base/alloc.h"
#include "base/guard.h"
#include "model/convert_job.h"
#include "tensor/dtype.h"
#include "tensor/quant.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define RUN 16384  /* elements that a thread takes at a time: whole blocks of every type */
#define MARGIN 256 /* a block of the source may begin before a run and end after it */
#define ROUND ((int64_t)1 << 21) /* elements between two reports of progress */

km_status km_convert_fill_open(km_convert_job *j, km_error *err) {
    j->threads = km_threads_new(j->o->threads);
    size_t n = (size_t)km_threads_count(j->threads) * (RUN + 2 * MARGIN);
    j->scratch = j->threads ? km_alloc(n * sizeof *j->scratch) : NULL;
    if (j->scratch) return KM_OK;
    return km_no_memory(err);
}

void km_convert_fill_close(km_convert_job *j) {
    km_threads_free(j->threads);
    km_free(j->scratch);
    km_free(j->whole);
}

typedef struct convert_work {
    const km_convert_item *it;
    km_stored from; /* the item's, or the whole of it as floats */
    int64_t first;  /* element of the tensor that dst begins with */
    uint8_t *dst;
    atomic_int status;
} convert_work;

/* Elements [first, first + n) as floats, which need not lie at the start of x. */
static const float *floats_of(const convert_work *w, int64_t first, int64_t n, float *x) {
    const km_convert_item *it = w->it;
    if (!km_dtype_is_block(w->from.dtype)) {
        km_layout_copy(it->row, &w->from, it->job->from, it->job->to, KM_F32, (size_t)first,
                       (size_t)n, x, NULL);
        return x;
    }
    int64_t block = km_dtype_block(w->from.dtype), size = (int64_t)km_dtype_size(w->from.dtype);
    int64_t begin = first / block * block, end = (first + n + block - 1) / block * block;
    const uint8_t *src = w->from.data;
    km_dequantise(w->from.dtype, src + begin / block * size, end - begin, x);
    return x + (first - begin);
}

/* Encodes n floats that begin at element `first` of the tensor. */
static void encode(const km_convert_item *it, const float *x, int64_t first, int64_t n,
                   uint8_t *dst) {
    int64_t in = it->row->shape.dim[it->row->shape.ndim - 1];
    for (int64_t done = 0; done < n;) {
        int64_t column = (first + done) % in, run = in - column < n - done ? in - column : n - done;
        const float *importance = it->importance ? it->importance + column : NULL;
        km_quantise(it->dtype, x + done, importance, run, dst + km_dtype_bytes(it->dtype, done));
        done += run;
    }
}

static void do_runs(void *arg, int64_t begin, int64_t end, int worker) {
    convert_work *w = arg;
    const km_convert_item *it = w->it;
    float *x = it->job->scratch + (size_t)worker * (RUN + 2 * MARGIN);
    int64_t first = w->first + begin, n = end - begin;
    uint8_t *dst = w->dst + km_dtype_bytes(it->dtype, begin);
    km_status s = KM_OK;
    if (!km_dtype_is_block(it->dtype) && !km_dtype_is_block(w->from.dtype)) {
        s = km_layout_copy(it->row, &w->from, it->job->from, it->job->to, it->dtype, (size_t)first,
                           (size_t)n, dst, NULL);
    } else {
        const float *v = floats_of(w, first, n, x);
        for (int64_t i = 0; i < n && s == KM_OK; i++)
            if (!isfinite(v[i])) s = KM_ERR_FORMAT;
        km_stored plain = {KM_F32, v};
        if (s == KM_OK && km_dtype_is_block(it->dtype))
            encode(it, v, first, n, dst);
        else if (s == KM_OK)
            s = km_layout_copy(it->row, &plain, KM_STORE_GGUF, KM_STORE_GGUF, it->dtype, 0,
                               (size_t)n, dst, NULL);
    }
    if (s != KM_OK) atomic_store(&w->status, s);
}

/* Where elements change places, blocks are decoded first, all of them. */
static km_status decode_whole(const km_convert_item *it, km_stored *from, km_error *err) {
    km_convert_job *j = it->job;
    int64_t n = 1;
    for (int d = 0; d < it->row->shape.ndim; d++) n *= it->row->shape.dim[d];
    if (j->whole_of != it) {
        km_free(j->whole);
        j->whole_of = NULL;
        j->whole = km_alloc((size_t)n * sizeof *j->whole);
        if (!j->whole) return km_no_memory(err);
        km_dequantise(it->stored->dtype, it->stored->data, n, j->whole);
        j->whole_of = it;
    }
    *from = (km_stored){KM_F32, j->whole};
    return KM_OK;
}

static km_status say(const km_convert_item *it, km_status s, km_error *err) {
    const char *name = it->job->to == KM_STORE_GGUF ? it->row->gguf : it->row->name;
    if (s == KM_ERR_RANGE)
        return km_error_set(err, s,
                            "tensor '%s' holds numbers that f16 cannot; convert to bf16 "
                            "or f32",
                            name);
    if (s == KM_ERR_FORMAT)
        return km_error_set(err, s, "tensor '%s' holds numbers that are not finite", name);
    return s == KM_OK ? s : km_error_set(err, s, "tensor '%s' cannot be converted", name);
}

km_status km_convert_fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    km_convert_item *it = user;
    km_convert_job *j = it->job;
    int64_t block = km_dtype_block(it->dtype), size = (int64_t)km_dtype_size(it->dtype);
    int64_t first = (int64_t)offset / size * block, n = (int64_t)bytes / size * block;
    convert_work w = {.it = it, .from = *it->stored};
    km_status s = KM_OK;
    bool moves = j->from != j->to && it->row->shape.ndim == 2;
    if (km_dtype_is_block(w.from.dtype) && moves) s = decode_whole(it, &w.from, err);
    if (s != KM_OK) return s;
    if (it->dtype == w.from.dtype && km_dtype_is_block(it->dtype)) {
        memcpy(dst, (const uint8_t *)w.from.data + offset, bytes);
        j->done += bytes;
        if (j->o->progress) j->o->progress(j->o->user, j->done, j->total);
        n = 0;
    }
    for (int64_t at = 0; at < n && s == KM_OK; at += ROUND) {
        int64_t some = n - at < ROUND ? n - at : ROUND;
        w.first = first + at;
        w.dst = (uint8_t *)dst + km_dtype_bytes(it->dtype, at);
        km_threads_for(j->threads, some, RUN, do_runs, &w);
        s = say(it, (km_status)atomic_load(&w.status), err);
        j->done += (uint64_t)km_dtype_bytes(it->dtype, some);
        if (j->o->progress) j->o->progress(j->o->user, j->done, j->total);
    }
    return s == KM_OK ? km_guard_check_at(it->stored->data, err) : s;
}

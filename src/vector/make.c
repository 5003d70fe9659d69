/* Building an index from a file: a sample teaches the frame, then blocks are encoded one after the
 * other and sorted by cell through a temporary file. */
#include "vector/make_impl.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "tensor/dtype.h"
#include "vector/learn.h"
#include "vector/spill.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THRIFTY ((size_t)1 << 30) /* budgets below this are worth slower memory */

enum {
    MEASURED = 20000, /* vectors whose error is worked out */
    TIES = 32,        /* neighbours of a held-out query that are known, */
    CROWD = 64,       /* and where recall is asked for */
    GROWTHS = 6       /* times that codes are made longer, at most */
};
#define CROWD_MEMORY 0.15 /* of the budget */
#define SHORT 0.002       /* of the recall asked for that is let go */

void km_part_path(char *out, size_t size, const char *path, int rank) {
    const char *dot = strrchr(path, '.'), *slash = strrchr(path, '/');
    int stem = dot && dot > (slash ? slash + 1 : path) ? (int)(dot - path) : (int)strlen(path);
    snprintf(out, size, "%.*s-%d%s", stem, path, rank, path + stem);
}

/* ---- The sample ---- */

static km_status refuse_row(const km_build_work *m, int64_t row, const float *x, km_error *err) {
    char why[KM_TROUBLE_TEXT];
    return km_error_set(
        err, KM_ERR_RANGE, "'%s': vector %lld %s (--skip-bad leaves such vectors out)",
        km_input_name(m->in), (long long)row, km_row_trouble(why, x, m->dim, m->o->metric));
}

/* Rows spread evenly, each at random in its stretch of the file; in runs, so that reading is quick.
 * Returns how many are in `out`, or -1. */
static int64_t read_sample(km_build_work *m, int64_t wanted, float *out, km_error *err) {
    int64_t n = 0;
    if (wanted >= m->rows) {
        for (int64_t at = 0; at < m->rows; at += 65536) {
            int64_t k = m->rows - at < 65536 ? m->rows - at : 65536;
            if (km_input_read(m->in, m->first + at, k, out + at * m->dim, err) != KM_OK) return -1;
        }
        n = m->rows;
    } else {
        int64_t run = wanted > 4096 ? 16 : 1, runs = wanted / run;
        for (int64_t i = 0; i < runs; i++) {
            int64_t lo = (int64_t)((double)i * (double)m->rows / (double)runs);
            int64_t hi = (int64_t)((double)(i + 1) * (double)m->rows / (double)runs) - run;
            uint32_t r = km_philox(m->o->seed, 77, (uint64_t)(m->first + i)).v[0];
            int64_t at = lo + (hi > lo ? (int64_t)r % (hi - lo + 1) : 0);
            if (at + run > m->rows) at = m->rows - run;
            if (km_input_read(m->in, m->first + at, run, out + n * m->dim, err) != KM_OK) return -1;
            int64_t bad = m->o->skip_bad
                              ? -1
                              : km_first_unfit_row(out + n * m->dim, run, m->dim, m->o->metric);
            if (bad >= 0) {
                refuse_row(m, m->first + at + bad, out + (n + bad) * m->dim, err);
                return -1;
            }
            n += run;
            if (i % 1024 == 0 && !km_tell(m->o, "reading", i, runs)) {
                km_stopped(err);
                return -1;
            }
        }
    }
    int64_t good = 0; /* close the gaps of bad rows */
    for (int64_t i = 0; i < n; i++) {
        if (km_first_unfit_row(out + i * m->dim, 1, m->dim, m->o->metric) == 0) {
            if (m->o->skip_bad) continue;
            refuse_row(m, m->first + i, out + i * m->dim, err);
            return -1;
        }
        if (good != i) memmove(out + good * m->dim, out + i * m->dim, 4 * (size_t)m->dim);
        good++;
    }
    return good;
}

/* Held-out queries, the same on every rank; where recall is asked for, their neighbours too, before
 * anything is learnt: of ranks the first one looks for them. */
static km_status hold_out(km_build_work *m, km_error *err) {
    bool asked = m->o->recall > 0;
    if (m->held) return KM_OK;
    km_input *from = m->o->queries ? km_input_open(m->o->queries, NULL, err) : NULL;
    if (m->o->queries && !from) return err->code;
    int64_t most = from ? km_input_rows(from) : KM_HELDOUT_QUERIES;
    m->held = km_heldout_new(m->ctx, m->in, from, m->o->metric, most < 100000 ? most : 100000,
                             asked ? CROWD : TIES, err);
    km_input_close(from);
    m->known = asked;
    if (!m->held || !asked || km_comm_rank(m->comm)) return err->code;
    km_status s = km_heldout_feed_all(m->held, m->in, m->o, err);
    if (s == KM_OK)
        s = km_crowd_read(m->held, m->in, CROWD_MEMORY * (double)m->memory, &m->crowd, err);
    return s;
}

static km_index *learn(km_build_work *m, km_error *err) {
    int64_t wanted = km_learn_sample(m->o, m->total, m->dim, 0.6 * (double)m->memory);
    int64_t share = (wanted + km_comm_size(m->comm) - 1) / km_comm_size(m->comm);
    if (share > m->rows) share = m->rows;
    size_t bytes = sizeof(float) * (size_t)(share * m->dim + 1);
    float *sample = km_alloc_aligned(bytes);
    int64_t n = sample ? read_sample(m, share, sample, err) : -1;
    if (n >= 0 && hold_out(m, err) != KM_OK) n = -1;
    km_index *x = NULL;
    if (!sample) km_no_memory_for(err, "a sample of %lld vectors", (long long)share);
    double left[2] = {n < 0 ? 1 : 0, n > 0 ? (double)n : 0}; /* all ranks go on, or none */
    if (m->comm && km_comm_size(m->comm) > 1 && km_comm_sum(m->comm, left, 2, err) != KM_OK) n = -1;
    if (n >= 0 && left[0] > 0) {
        km_error_set(err, KM_ERR_STATE, "another rank failed");
    } else if (n >= 0 && left[1] == 0) {
        km_error_set(err, KM_ERR_RANGE, "'%s': no vector is finite", km_input_name(m->in));
    } else if (n >= 0) {
        km_learn l = {.ctx = m->ctx,
                      .comm = m->comm,
                      .options = m->o,
                      .sample = sample,
                      .n = n,
                      .dim = m->dim,
                      .total = m->total,
                      .dtype = km_input_layout(m->in)->dtype,
                      .held = m->held,
                      .crowd = m->crowd.n ? &m->crowd : NULL};
        x = km_index_learn(&l, err);
    }
    if (sample) km_free_aligned(sample, bytes);
    km_trim(m->ctx);
    km_alloc_trim();
    return x;
}

/* ---- All vectors ---- */

/* Leaves bad rows out, or refuses them; returns how many are left, or -1. */
static int64_t sift(km_build_work *m, float *rows, uint64_t *ids, uint64_t *number, int64_t at,
                    int64_t n, km_error *err) {
    int64_t good = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = m->first + at + i;
        if (km_first_unfit_row(rows + i * m->dim, 1, m->dim, m->o->metric) == 0) {
            if (!m->o->skip_bad) {
                refuse_row(m, row, rows + i * m->dim, err);
                return -1;
            }
            if (m->made->skipped++ == 0) m->made->first_skipped = row;
            continue;
        }
        if (good != i)
            memmove(rows + good * m->dim, rows + i * m->dim, sizeof *rows * (size_t)m->dim);
        number[good] = (uint64_t)row;
        ids[good++] = m->ids ? m->ids[row] : (uint64_t)row;
    }
    return good;
}

static km_status encode_all(km_build_work *m, const km_index *x, km_spill *spill, km_error *err) {
    /* Rows, residuals, a copy on the device, codes. */
    double each = 4.0 * 3.2 * (double)m->dim + (double)(x->code_bytes + x->vector_bytes) + 32;
    int64_t block = (int64_t)(0.25 * (double)m->memory / each);
    block = block > 32768 ? 32768 : block < 1 ? 1 : block;
    if (block > m->rows) block = m->rows;
    km_index_encoder *e = km_index_encoder_new(m->ctx, x, block, err);
    if (!e) return err->code;
    float *rows = km_alloc(sizeof *rows * (size_t)(block * m->dim));
    uint64_t *ids = km_alloc(sizeof *ids * (size_t)block * 2), *number = ids + block;
    km_status s = rows && ids ? KM_OK : km_no_memory_for(err, "%lld vectors", (long long)block);
    for (int64_t at = 0; s == KM_OK && at < m->rows; at += block) {
        int64_t n = m->rows - at < block ? m->rows - at : block;
        if (!km_tell(m->o, "encoding", at, m->rows)) s = km_stopped(err);
        if (s == KM_OK) s = km_input_read(m->in, m->first + at, n, rows, err);
        int64_t good = s == KM_OK ? sift(m, rows, ids, number, at, n, err) : 0;
        if (good < 0) s = err->code;
        if (s != KM_OK || good == 0) continue;
        km_encoded got;
        bool measured = m->measured < MEASURED;
        s = km_index_encoder_run(e, rows, good, measured, &got, err);
        if (s == KM_OK) s = km_spill_put(spill, ids, &got, good, err);
        if (s == KM_OK && m->held && !m->known)
            s = km_heldout_feed(m->held, rows, number, good, err);
        m->energy += got.energy;
        if (measured) {
            m->lost += got.lost;
            m->measured += (double)good;
        }
    }
    km_free(rows);
    km_free(ids);
    km_index_encoder_free(e);
    km_trim(m->ctx);
    km_alloc_trim();
    return s;
}

static void fill_meta(const km_build_work *m, km_index *x) {
    static const char *const modes[] = {"fast", "dense", "anchors-only"};
    json_object_set_new(x->meta, "kermes", json_string(km_version()));
    json_object_set_new(x->meta, "settings",
                        json_pack("{s:I, s:f, s:f, s:f, s:s, s:I}", "anchors",
                                  (json_int_t)m->o->anchors, "bytes", m->o->bytes, "ratio",
                                  m->o->ratio, "recall", m->o->recall, "mode", modes[m->o->mode],
                                  "memory", (json_int_t)km_memory_budget(m->o)));
    json_t *measured = json_object_get(x->meta, "measured");
    if (measured && m->measured > 0)
        json_object_set_new(measured, "mse", json_real(m->lost / m->measured));
    json_t *source = json_string(km_input_name(m->in)); /* NULL when it is no UTF-8 */
    if (source) json_object_set_new(x->meta, "source", source);
}

static km_status write_file(km_build_work *m, km_index *x, km_spill *spill, const char *path,
                            bool passing, uint64_t *bytes, uint64_t *hash, km_error *err) {
    int64_t rows = km_spill_rows(spill);
    x->energy = rows ? m->energy / (double)rows : 0;
    uint64_t next = m->ids ? 0 : (uint64_t)m->total;
    if (m->ids && rows) next = km_spill_largest_id(spill) + 1;
    fill_meta(m, x);
    int bits = km_id_bits(km_spill_largest_id(spill));
    km_kmx_head h = km_index_head(x, rows, 0, next, bits);
    if (!km_tell(m->o, "writing", 0, 1)) return km_stopped(err);
    km_kmx_writer *w = km_kmx_create(path, &h, err);
    if (!w) return err->code;
    if (passing) km_kmx_passing(w);
    km_status s = km_index_put_frame(x, w, err);
    if (s == KM_OK) s = km_spill_write(spill, w, bits, m->memory / 2, err);
    if (s == KM_OK) return km_kmx_commit(w, bytes, hash, err);
    km_kmx_abort(w);
    return s;
}

/* ---- Recall ---- */

/* Of the index in `path`, told in its META by writing it again to `final`. */
static km_status measure_file(km_build_work *m, const char *path, const char *final,
                              uint64_t *bytes, uint64_t *hash, km_error *err) {
    km_told_recall *told = &m->made->recall;
    km_index *x = km_index_load(path, err);
    unlink(path); /* it stays mapped */
    if (!x) return err->code;
    if (!m->known) km_heldout_settle(m->held);
    m->known = true;
    km_status s = km_tell(m->o, "recall", 0, 1) ? KM_OK : km_stopped(err);
    if (s == KM_OK) s = km_heldout_measure(m->held, x, m->ids, m->ctx->threads, told, err);
    if (s == KM_OK && isfinite(told->recall)) {
        json_t *measured = json_object_get(x->meta, "measured");
        json_t *recall = km_told_recall_json(told);
        json_object_update(measured, recall);
        json_decref(recall);
    }
    if (s == KM_OK) s = km_index_store(x, final, false, bytes, hash, err);
    km_index_close(x);
    return s;
}

/* ---- A file ---- */

/* Codes of all rows, sorted, as the file `path`. */
static km_status make_file(km_build_work *m, km_index *x, const char *path, uint64_t *bytes,
                           km_rank_part *own, km_error *err) {
    km_spill *spill = km_spill_new(x, path, err);
    km_status s = spill ? encode_all(m, x, spill, err) : err->code;
    bool measured = m->held && km_comm_size(m->comm) == 1;
    char first[PATH_MAX + 16];
    snprintf(first, sizeof first, measured ? "%s.%ld~" : "%s", path, (long)getpid());
    if (s == KM_OK) s = write_file(m, x, spill, first, measured, bytes, &own->hash, err);
    own->rows = spill ? km_spill_rows(spill) : 0;
    km_spill_free(spill);
    if (s == KM_OK && measured) s = measure_file(m, first, path, bytes, &own->hash, err);
    return s;
}

static km_status check_ids(const uint64_t *ids, int64_t n, km_error *err) {
    uint64_t *copy = km_alloc(sizeof *copy * (size_t)n);
    if (!copy) return km_no_memory_for(err, "the ids");
    memcpy(copy, ids, sizeof *copy * (size_t)n);
    qsort(copy, (size_t)n, sizeof *copy, km_by_id);
    km_status s = KM_OK;
    for (int64_t i = 1; s == KM_OK && i < n; i++)
        if (copy[i] == copy[i - 1])
            s = km_error_set(err, KM_ERR_RANGE, "id %" PRIu64 " is given twice", copy[i]);
    if (s == KM_OK && copy[n - 1] == KM_NO_ID)
        s = km_error_set(err, KM_ERR_RANGE, "%" PRIu64 " cannot be an id", KM_NO_ID);
    km_free(copy);
    return s;
}

/* Bytes of codes that may reach the recall asked for, where these do not; 0: they do, or nothing will. */
static double longer_code(const km_build_work *m, const km_index *x, const km_index_options *o) {
    double got = m->made->recall.recall, size = (double)x->code_bytes;
    if (!(o->recall > 0) || !(got < o->recall - SHORT) || size > (double)m->dim) return 0;
    double by = 0.5 * ((1 - got) / (1 - o->recall) - 1);
    return fmin(ceil(size * (1 + fmax(0.04, fmin(0.5, by)))), (double)m->dim + 1);
}

km_status km_index_make(km_ctx *ctx, km_comm *comm, km_input *in, const uint64_t *ids,
                        const char *path, const km_index_options *o, km_made *made, km_error *err) {
    int size = km_comm_size(comm), rank = km_comm_rank(comm);
    int64_t total = km_input_rows(in);
    km_build_work m = {.ctx = ctx,
                       .comm = comm,
                       .in = in,
                       .ids = ids,
                       .o = o,
                       .total = total,
                       .dim = km_input_dim(in),
                       .made = made};
    *made = (km_made){.first_skipped = -1, .recall = {.recall = NAN}, .dim = m.dim};
    km_status s = km_index_check_options(o, total, m.dim, err);
    if (s == KM_OK && ids) s = check_ids(ids, total, err);
    if (s == KM_OK && total < size)
        s = km_error_set(err, KM_ERR_RANGE, "%lld vectors for %d ranks", (long long)total, size);
    double least = km_memory_least(o, m.dim), budget = km_memory_budget(o);
    if (s == KM_OK && budget < least)
        s = km_error_set(
            err, KM_ERR_RANGE,
            "a budget of %.0f MiB; vectors of %lld dimensions%s take at least %.0f MiB",
            floor(budget / 1048576), (long long)m.dim, o->anchors ? " and as many anchors" : "",
            ceil(least / 1048576));
    if (s != KM_OK) return s; /* the same on every rank */
    m.memory = (size_t)(budget - km_memory_fixed(m.dim));
    /* Held-out queries, twice, their neighbours, and products with a block of rows, twice. */
    m.memory -= (size_t)fmin(0.4 * (double)m.memory, 1000 * (8.0 * (double)m.dim + 800) + 6e6);
    m.first = (int64_t)((double)total * rank / size);
    m.rows = (rank == size - 1 ? total : (int64_t)((double)total * (rank + 1) / size)) - m.first;
    char own_path[PATH_MAX];
    if (size > 1)
        km_part_path(own_path, sizeof own_path, path, rank);
    else
        snprintf(own_path, sizeof own_path, "%s", path);
    km_alloc_thrifty(budget < THRIFTY);
    uint64_t bytes = 0;
    km_rank_part own = {0};
    km_index *x = NULL;
    km_index_options longer = *o;
    for (int grown = 0;; grown++) {
        x = learn(&m, err);
        s = x ? make_file(&m, x, own_path, &bytes, &own, err) : err->code;
        if (size > 1) s = km_ranks_agree(comm, s, err);
        if (size > 1 && s == KM_OK) s = km_ranks_recall(&m, own_path, err);
        double next = s == KM_OK && grown < GROWTHS ? longer_code(&m, x, o) : 0;
        if (next == 0) break;
        km_note(KM_LOG_INFO, "recall@10 is %.3f with codes of %zu bytes: %g bytes are tried",
                made->recall.recall, x->code_bytes, next);
        km_index_close(x);
        longer.recall = 0;
        longer.bytes = next;
        m.o = &longer;
        m.energy = m.lost = m.measured = 0;
        made->skipped = 0;
        made->first_skipped = -1;
    }
    m.o = o;
    s = km_ranks_join(&m, path, s, own, (double)bytes, err);
    if (s == KM_OK && x) {
        json_t *measured = json_object_get(x->meta, "measured");
        made->anchors = x->cells;
        made->code_bytes = x->code_bytes;
        made->energy = made->rows ? m.energy / (double)made->rows : 0;
        made->mse = m.measured > 0 ? m.lost / m.measured : 0;
        made->rounds = (int)json_integer_value(json_object_get(measured, "rounds"));
    }
    km_heldout_free(m.held);
    km_crowd_free(&m.crowd);
    km_index_close(x);
    km_alloc_thrifty(false);
    return s;
}

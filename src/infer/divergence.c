/* Saved predictions and the distance from them. A row keeps log-probabilities in 16-bit steps of
 * half a thousandth of a nat, down to 32 nats below the likeliest token; what is less likely counts
 * as that unlikely, which even for all tokens of a large vocabulary together is next to nothing. */
#include "infer/divergence.h"
#include "base/alloc.h"
#include "base/file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 32.0 /* nats */
#define STEPS 65535.0
static const char magic[8] = "KMLOGIT1";

typedef struct logits_head {
    char magic[8];
    int64_t vocab, context, rows;
    uint64_t text;
} logits_head;

static uint64_t hash(uint64_t h, const void *data, size_t n) { /* FNV-1a */
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

km_logits_about km_logits_of(const km_net *m, const km_ids *ids, const km_windows *o) {
    uint64_t h = hash(0xcbf29ce484222325u, ids->data, ids->len * sizeof *ids->data);
    h = hash(h, &o->bos, sizeof o->bos);
    if (o->stride) h = hash(h, &o->stride, sizeof o->stride);
    return (km_logits_about){.vocab = m->config.vocab,
                             .context = o->context,
                             .rows = km_windows_count(ids, o),
                             .text = h};
}

/* log of the sum of e^x */
static double log_sum(const float *x, int64_t n, float *most) {
    double sum = 0;
    *most = x[0];
    for (int64_t i = 1; i < n; i++) *most = x[i] > *most ? x[i] : *most;
    for (int64_t i = 0; i < n; i++) sum += exp((double)x[i] - *most);
    return *most + log(sum);
}

/* ---- Saving ---- */

struct km_logits_writer {
    km_writer *w;
    km_logits_about about;
    int64_t rows;
    uint16_t *row;
};

km_logits_writer *km_logits_create(const char *path, const km_logits_about *about, km_error *err) {
    km_logits_writer *w = km_calloc(1, sizeof *w);
    if (w) w->row = km_alloc((size_t)about->vocab * sizeof *w->row);
    if (!w || !w->row) {
        km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
        km_logits_abort(w);
        return NULL;
    }
    logits_head h = {
        .vocab = about->vocab, .context = about->context, .rows = about->rows, .text = about->text};
    memcpy(h.magic, magic, sizeof magic);
    w->about = *about;
    w->w = km_writer_open(path, err);
    if (!w->w) {
        km_logits_abort(w);
        return NULL;
    }
    km_writer_put(w->w, &h, sizeof h);
    return w;
}

km_status km_logits_put(void *writer, const float *logits, int32_t came, km_error *err) {
    km_logits_writer *w = writer;
    int64_t n = w->about.vocab;
    float most;
    double total = log_sum(logits, n, &most);
    float top = (float)(most - total); /* log p of the likeliest */
    for (int64_t i = 0; i < n; i++) {
        double below = ((double)most - logits[i]) / DEPTH;
        w->row[i] = (uint16_t)lrint((1 - (below < 1 ? below : 1)) * STEPS);
    }
    w->rows++;
    km_writer_put(w->w, &top, sizeof top);
    km_writer_put(w->w, &came, sizeof came);
    /* A failed write sticks to the writer and comes out of the commit. */
    (void)err;
    km_writer_put(w->w, w->row, (size_t)n * sizeof *w->row);
    return KM_OK;
}

km_status km_logits_commit(km_logits_writer *w, km_error *err) {
    km_status s = KM_OK;
    if (w->rows != w->about.rows)
        s = km_error_set(err, KM_ERR_STATE, "%lld of %lld predictions were made",
                         (long long)w->rows, (long long)w->about.rows);
    if (s == KM_OK) {
        s = km_writer_commit(w->w, err);
        w->w = NULL;
    }
    km_logits_abort(w);
    return s;
}

void km_logits_abort(km_logits_writer *w) {
    if (!w) return;
    km_writer_abort(w->w);
    km_free(w->row);
    km_free(w);
}

/* ---- Comparing ---- */

struct km_comparison {
    km_map map;
    logits_head about;
    const uint8_t *at;
    int64_t rows, same;
    double loss, saved_loss, squares, p;
    double *kl; /* of each row */
};

static size_t row_bytes(int64_t vocab) { return 8 + (size_t)vocab * sizeof(uint16_t); }

static km_status check(const km_comparison *c, const char *path, const km_logits_about *about,
                       km_error *err) {
    const logits_head *h = &c->about;
    if (c->map.size < sizeof *h || memcmp(h->magic, magic, sizeof magic) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' holds no saved predictions", path);
    if (h->vocab != about->vocab)
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%s' was saved by a model of %lld tokens, and this one has %lld", path,
                            (long long)h->vocab, (long long)about->vocab);
    if (h->rows != about->rows || h->context != about->context || h->text != about->text)
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%s' was saved from another text, in other windows, or with another "
                            "tokenizer",
                            path);
    if ((c->map.size - sizeof *h) / row_bytes(h->vocab) != (size_t)h->rows ||
        (c->map.size - sizeof *h) % row_bytes(h->vocab) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is cut off", path);
    return KM_OK;
}

km_comparison *km_compare_open(const char *path, const km_logits_about *about, km_error *err) {
    km_comparison *c = km_calloc(1, sizeof *c);
    if (!c) {
        km_no_memory(err);
        return NULL;
    }
    km_status s = km_map_open(&c->map, path, err);
    if (s == KM_OK && c->map.size >= sizeof c->about)
        memcpy(&c->about, c->map.data, sizeof c->about);
    if (s == KM_OK) s = check(c, path, about, err);
    if (s == KM_OK) {
        c->at = c->map.data + sizeof c->about;
        c->kl = km_calloc((size_t)c->about.rows, sizeof *c->kl);
        if (!c->kl) s = km_no_memory(err);
    }
    if (s == KM_OK) return c;
    km_compare_close(c);
    return NULL;
}

void km_compare_close(km_comparison *c) {
    if (!c) return;
    km_map_close(&c->map);
    km_free(c->kl);
    km_free(c);
}

km_status km_compare_row(void *comparison, const float *logits, int32_t came, km_error *err) {
    km_comparison *c = comparison;
    int64_t n = c->about.vocab, top = 0, saved_top = 0;
    float first, most;
    int32_t saved_came;
    if (c->rows >= c->about.rows)
        return km_error_set(err, KM_ERR_STATE, "more rows than were saved");
    memcpy(&first, c->at, sizeof first);
    memcpy(&saved_came, c->at + 4, sizeof saved_came);
    const uint8_t *codes = c->at + 8;
    if (saved_came != came || came < 0 || came >= n)
        return km_error_set(err, KM_ERR_FORMAT, "the saved predictions are of another token");
    double total = log_sum(logits, n, &most), kl = 0, sum = 0, at_came = 0;
    uint16_t highest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, codes + 2 * i, 2);
        double lp = first - (1 - code / STEPS) * DEPTH, p = exp(lp);
        sum += p;
        kl += p * (lp - (logits[i] - total));
        if (code > highest) highest = code, saved_top = i;
        if (logits[i] > logits[top]) top = i;
        if (i == came) at_came = lp;
    }
    /* What was cut off below made the saved row sum to a little more than 1. */
    kl = kl / sum - log(sum);
    double mine = logits[came] - total, saved = at_came - log(sum);
    double apart = exp(mine) - exp(saved);
    c->kl[c->rows++] = kl;
    c->same += top == saved_top;
    c->loss -= mine;
    c->saved_loss -= saved;
    c->squares += kl * kl;
    c->p += apart * apart;
    c->at += row_bytes(n);
    return KM_OK;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at(const double *sorted, int64_t n, double share) {
    return sorted[(int64_t)(share * (double)(n - 1) + 0.5)];
}

km_status km_compare_result(km_comparison *c, km_divergence *out, km_error *err) {
    int64_t n = c->rows;
    if (n == 0 || n != c->about.rows)
        return km_error_set(err, KM_ERR_STATE, "%lld of %lld predictions were made", (long long)n,
                            (long long)c->about.rows);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += c->kl[i];
    double mean = sum / (double)n, spread = c->squares / (double)n - mean * mean;
    qsort(c->kl, (size_t)n, sizeof *c->kl, by_size);
    *out = (km_divergence){.tokens = n,
                           .mean = mean,
                           .error = n > 1 && spread > 0 ? sqrt(spread / (double)(n - 1)) : 0,
                           .least = c->kl[0],
                           .median = at(c->kl, n, 0.5),
                           .most = c->kl[n - 1],
                           .p90 = at(c->kl, n, 0.9),
                           .p95 = at(c->kl, n, 0.95),
                           .p99 = at(c->kl, n, 0.99),
                           .p999 = at(c->kl, n, 0.999),
                           .same_top = (double)c->same / (double)n,
                           .loss = c->loss / (double)n,
                           .saved_loss = c->saved_loss / (double)n,
                           .rms_p = sqrt(c->p / (double)n)};
    return KM_OK;
}

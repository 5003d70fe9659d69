/* Counting in parallel: the texts are cut into parts of fixed size where a piece is sure to begin,
 * each thread counts into a table of its own, and the tables are added up. */
#include "token/count.h"
#include "base/alloc.h"
#include "token/scan.h"
#include "base/utf8.h"
#include <stdatomic.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#define PART ((size_t)1 << 20)
#define BATCH 32
#define LONGEST ((size_t)1 << 30) /* a longer piece is nothing to learn from */

typedef struct counting {
    const km_span *texts;
    size_t n;
    int64_t *first;   /* by text: the number of its first part; n + 1 of them */
    km_pieces *table; /* by worker */
    _Atomic bool failed;
} counting;

/* ---- The table ---- */

static bool grow(km_pieces *p) {
    size_t size = p->size ? 2 * p->size : 1 << 14;
    km_counted_piece *slot = km_calloc(size, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i < p->size; i++) {
        if (!p->slot[i].count) continue;
        size_t k = p->slot[i].hash & (size - 1);
        while (slot[k].count) k = (k + 1) & (size - 1);
        slot[k] = p->slot[i];
    }
    km_free(p->slot);
    p->slot = slot;
    p->size = size;
    return true;
}

/* Adds the count of e to the piece of its text. */
static bool add(km_pieces *p, const km_counted_piece *e) {
    if (2 * p->used >= p->size && !grow(p)) return false;
    size_t k = e->hash & (p->size - 1);
    for (; p->slot[k].count; k = (k + 1) & (p->size - 1)) {
        km_counted_piece *known = &p->slot[k];
        if (known->hash == e->hash && known->len == e->len && known->start == e->start &&
            (e->len <= 8 || memcmp(known->text + 8, e->text + 8, e->len - 8) == 0)) {
            known->count += e->count;
            return true;
        }
    }
    p->slot[k] = *e;
    p->used++;
    return true;
}

static km_counted_piece piece_of(const char *text, size_t n) {
    km_counted_piece e = {.text = text, .len = (uint32_t)n, .count = 1};
    if (n >= 8)
        memcpy(&e.start, text, 8);
    else
        for (size_t i = 0; i < n; i++) e.start |= (uint64_t)(unsigned char)text[i] << (8 * i);
    e.hash = (uint32_t)XXH3_64bits(text, n);
    return e;
}

void km_pieces_free(km_pieces *p) {
    km_free(p->slot);
    *p = (km_pieces){0};
}

/* ---- Parts ---- */

/* The first place from `at` on where GPT-2's pattern begins a piece whatever stands around it:
 * before a space behind something that is none, or before what follows a line end. */
static size_t sure_border(const km_span *text, size_t at) {
    const char *s = text->data;
    if (at == 0) return 0;
    for (; at < text->bytes; at++) {
        unsigned char before = (unsigned char)s[at - 1], here = (unsigned char)s[at];
        if (here == ' ' && before > ' ' && before < 0x7F) return at;
        if (before == '\n' && here > ' ' && here < 0x7F) return at;
    }
    return text->bytes;
}

/* Pieces are added a few at a time: the table is larger than the caches, so the places of the
 * next ones are fetched while these are worked on. */
typedef struct batch {
    km_counted_piece piece[BATCH];
    int n;
} batch;

static bool add_batch(km_pieces *table, batch *b) {
    bool ok = true;
    for (int i = 0; ok && i < b->n; i++) ok = add(table, &b->piece[i]);
    b->n = 0;
    return ok;
}

/* Counts the pieces that begin in [begin, end) of one text. */
static bool count_part(km_pieces *table, const km_span *text, size_t begin, size_t end) {
    /* The pattern looks one character ahead; the border is in front of an ASCII one. */
    size_t seen = end < text->bytes ? end + 1 : end;
    batch b = {.n = 0};
    for (size_t at = begin; at < end;) {
        const char *s = text->data + at;
        size_t valid = km_utf8_valid(s, seen - at);
        for (size_t from = 0, to; from < valid && at + from < end; from = to) {
            to = km_scan_gpt2(s, valid, from);
            if (to - from > LONGEST) continue;
            km_counted_piece *e = &b.piece[b.n++];
            *e = piece_of(s + from, to - from);
            if (table->size) __builtin_prefetch(&table->slot[e->hash & (table->size - 1)], 1);
            if (b.n == BATCH && !add_batch(table, &b)) return false;
        }
        at += valid;
        at += at < end ? km_utf8_invalid(text->data + at, seen - at) : 0;
    }
    return add_batch(table, &b);
}

static size_t text_of_part(const counting *c, int64_t part) {
    size_t lo = 0, hi = c->n - 1;
    while (lo < hi) {
        size_t middle = (lo + hi + 1) / 2;
        if (c->first[middle] <= part)
            lo = middle;
        else
            hi = middle - 1;
    }
    return lo;
}

static void count_parts(void *arg, int64_t begin, int64_t end, int worker) {
    counting *c = arg;
    for (int64_t part = begin; part < end; part++) {
        size_t i = text_of_part(c, part);
        const km_span *text = &c->texts[i];
        size_t at = (size_t)(part - c->first[i]) * PART;
        size_t from = sure_border(text, at);
        size_t to = text->bytes - at > PART ? sure_border(text, at + PART) : text->bytes;
        if (!count_part(&c->table[worker], text, from, to)) atomic_store(&c->failed, true);
    }
}

/* ---- All ---- */

static bool add_up(km_pieces *tables, int n, km_pieces *out) {
    *out = tables[0];
    tables[0] = (km_pieces){0};
    for (int w = 1; w < n; w++) {
        for (size_t i = 0; i < tables[w].size; i++) {
            const km_counted_piece *e = &tables[w].slot[i];
            if (e->count && !add(out, e)) return false;
        }
        km_pieces_free(&tables[w]);
    }
    size_t made = 0;
    for (size_t i = 0; i < out->size; i++)
        if (out->slot[i].count) out->slot[made++] = out->slot[i];
    return true;
}

typedef struct round_job {
    counting *c;
    int64_t offset;
} round_job;

static void count_round(void *arg, int64_t begin, int64_t end, int worker) {
    const round_job *r = arg;
    count_parts(r->c, r->offset + begin, r->offset + end, worker);
}

km_status km_count_pieces(const km_span *texts, size_t n, km_threads *threads,
                          km_token_progress progress, void *user, km_pieces *out, km_error *err) {
    int workers = km_threads_count(threads);
    counting c = {.texts = texts, .n = n};
    c.first = km_alloc((n + 1) * sizeof *c.first);
    c.table = km_calloc((size_t)workers, sizeof *c.table);
    bool ok = c.first && c.table;
    int64_t parts = 0;
    for (size_t i = 0; ok && i < n; i++) {
        c.first[i] = parts;
        parts += (int64_t)((texts[i].bytes + PART - 1) / PART);
    }
    /* In rounds, so that progress can be told and the work be stopped. */
    int64_t round = 16 * workers;
    bool stop = false;
    for (int64_t at = 0; ok && !stop && at < parts; at += round) {
        int64_t count = parts - at < round ? parts - at : round;
        km_threads_for(threads, count, 1, count_round, &(round_job){&c, at});
        ok = !atomic_load(&c.failed);
        if (ok && progress)
            stop = !progress(user, "counting", (at + count) * (int64_t)PART, parts * (int64_t)PART);
    }
    if (ok && !stop) ok = add_up(c.table, workers, out);
    for (int w = 0; c.table && w < workers; w++) km_pieces_free(&c.table[w]);
    km_free(c.table);
    km_free(c.first);
    if (stop) return km_error_set(err, KM_ERR_STATE, "stopped while counting");
    if (ok) return KM_OK;
    km_pieces_free(out);
    return km_error_set(err, KM_ERR_MEMORY, "out of memory while counting the words of a text");
}

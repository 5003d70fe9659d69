/* Sorting rows by cell with a file. A record is u64 id, u32 cell, code, vector. Taking out reads the
 * whole file once for as many cells as fit into memory: cells are counted when rows are put in, so
 * the place of each record is known. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "vector/spill.h"
#include "base/alloc.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD = 12 };
#define BUFFER ((size_t)4 << 20)

struct km_spill {
    const km_index *x;
    int fd;
    char *shown;
    size_t record, filled;
    uint64_t bytes;  /* in the file */
    uint8_t *buffer; /* whole records */
    size_t room;
    uint64_t *counts; /* (cells) */
    uint64_t largest;
    int64_t rows;
};

static int open_hidden(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 1,
                 slash ? path : ".") >= PATH_MAX - 32)
        return -1;
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    strcat(folder, slash ? ".kermes-XXXXXX" : "/.kermes-XXXXXX");
    fd = mkostemp(folder, O_CLOEXEC);
    if (fd >= 0) unlink(folder);
    return fd;
}

km_spill *km_spill_new(const km_index *x, const char *path, km_error *err) {
    km_spill *s = km_calloc(1, sizeof *s);
    if (s) {
        s->fd = -1;
        s->x = x;
        s->record = HEAD + x->code_bytes + x->vector_bytes;
        s->room = s->record > BUFFER ? s->record : BUFFER / s->record * s->record;
        s->shown = km_strdup(path);
        s->buffer = km_alloc(s->room);
        s->counts = km_calloc((size_t)x->cells, sizeof *s->counts);
    }
    if (!s || !s->shown || !s->buffer || !s->counts) {
        km_error_set(err, KM_ERR_MEMORY, "no memory to sort the vectors");
        km_spill_free(s);
        return NULL;
    }
    s->fd = open_hidden(path);
    if (s->fd >= 0) return s;
    km_error_set(err, KM_ERR_FILE, "cannot write a temporary file beside '%s': %s", path,
                 strerror(errno));
    km_spill_free(s);
    return NULL;
}

void km_spill_free(km_spill *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    km_free(s->shown);
    km_free(s->buffer);
    km_free(s->counts);
    km_free(s);
}

int64_t km_spill_rows(const km_spill *s) { return s->rows; }
uint64_t km_spill_largest_id(const km_spill *s) { return s->largest; }

static km_status flush(km_spill *s, km_error *err) {
    size_t done = 0;
    while (done < s->filled) {
        ssize_t n = pwrite(s->fd, s->buffer + done, s->filled - done, (off_t)s->bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return km_error_set(err, KM_ERR_FILE, "cannot write a temporary file beside '%s': %s",
                                s->shown, strerror(n < 0 ? errno : ENOSPC));
        done += (size_t)n;
        s->bytes += (uint64_t)n;
    }
    s->filled = 0;
    return KM_OK;
}

km_status km_spill_put(km_spill *s, const uint64_t *ids, const km_encoded *e, int64_t n,
                       km_error *err) {
    size_t code = s->x->code_bytes, vector = s->x->vector_bytes;
    for (int64_t i = 0; i < n; i++) {
        if (s->filled + s->record > s->room) {
            km_status status = flush(s, err);
            if (status != KM_OK) return status;
        }
        uint8_t *p = s->buffer + s->filled;
        uint32_t cell = (uint32_t)e->cell[i];
        memcpy(p, &ids[i], 8);
        memcpy(p + 8, &cell, 4);
        if (code) memcpy(p + HEAD, e->codes + (size_t)i * code, code);
        if (vector) memcpy(p + HEAD + code, e->vectors + (size_t)i * vector, vector);
        s->filled += s->record;
        s->counts[cell]++;
        if (ids[i] > s->largest) s->largest = ids[i];
    }
    s->rows += n;
    return KM_OK;
}

/* Bytes [from, from + size) of the records of cells [a, b), in the order of cells, to out: `rows` of
 * them behind the first `skip`. */
static km_status gather(km_spill *s, int64_t a, int64_t b, uint64_t skip, uint64_t rows,
                        size_t from, size_t size, uint64_t *next, uint8_t *out, km_error *err) {
    uint64_t at = 0;
    for (int64_t c = a; c < b; c++) {
        next[c] = at;
        at += s->counts[c];
    }
    for (uint64_t done = 0; done < s->bytes;) {
        size_t n = s->bytes - done < s->room ? (size_t)(s->bytes - done) : s->room, got = 0;
        while (got < n) {
            ssize_t r = pread(s->fd, s->buffer + got, n - got, (off_t)(done + got));
            if (r < 0 && errno == EINTR) continue;
            if (r <= 0)
                return km_error_set(err, KM_ERR_FILE, "cannot read the temporary file of '%s': %s",
                                    s->shown, r < 0 ? strerror(errno) : "it became shorter");
            got += (size_t)r;
        }
        for (const uint8_t *p = s->buffer; p < s->buffer + n; p += s->record) {
            uint32_t cell;
            memcpy(&cell, p + 8, 4);
            if (cell < a || cell >= b) continue;
            uint64_t place = next[cell]++ - skip; /* wraps around before the first */
            if (place < rows) memcpy(out + place * size, p + from, size);
        }
        done += n;
    }
    return KM_OK;
}

typedef struct writing {
    km_spill *s;
    km_kmx_writer *w;
    uint64_t *next; /* (cells) */
    uint8_t *out, *packed;
    int id_bits;
    uint8_t *ids; /* a piece of packed ids */
    int64_t n_ids;
} writing;

enum { PIECE = 4096 }; /* ids that are put at once: whole bytes, whatever their bits */

static void put_ids(writing *v, const uint8_t *ids, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id;
        memcpy(&id, ids + 8 * i, 8);
        km_id_put(v->ids, v->n_ids++, v->id_bits, id);
        if (v->n_ids < PIECE) continue;
        km_kmx_put(v->w, v->ids, (size_t)PIECE * (size_t)v->id_bits / 8);
        memset(v->ids, 0, km_id_bytes(PIECE, 64));
        v->n_ids = 0;
    }
}

/* Cells [a, b), or `rows` of one cell. */
static void put_codes(writing *v, int64_t a, int64_t b, uint64_t rows) {
    const km_index *x = v->s->x;
    const uint8_t *p = v->out;
    for (int64_t c = a; c < b; c++) {
        uint64_t n = b == a + 1 ? rows : v->s->counts[c];
        km_coder_pack(x->coder, p, (int64_t)n, v->packed);
        km_kmx_put(v->w, v->packed, (size_t)n * x->code_bytes);
        p += (size_t)n * x->code_bytes;
    }
}

static km_status write_section(writing *v, km_kmx_section section, size_t from, size_t size,
                               size_t memory, km_error *err) {
    km_spill *s = v->s;
    km_kmx_begin(v->w, section);
    bool codes = section == KM_KMX_CODES;
    size_t spare = codes ? 2 : 1; /* codes stand there packed, too, a cell at a time */
    for (int64_t a = 0, b; a < s->x->cells; a = b) {
        uint64_t rows = 0, most = 0;
        for (b = a; b < s->x->cells; b++) { /* as many cells as fit, at least one */
            uint64_t more = s->counts[b] > most ? s->counts[b] : most;
            if (b > a && (rows + s->counts[b] + (spare - 1) * more) * size > memory) break;
            rows += s->counts[b];
            most = more;
        }
        if (rows == 0) continue;
        /* A cell that does not fit comes in pieces, in whole blocks of codes. */
        uint64_t piece = rows, block = codes ? (uint64_t)km_coder_block_rows(s->x->coder) : 1;
        if (b == a + 1 && rows * size * spare > memory) {
            piece = memory / (size * spare) / block * block;
            piece = most = piece < block ? block : piece;
        }
        v->out = km_alloc((size_t)piece * size);
        v->packed = codes ? km_alloc((size_t)most * size) : NULL;
        km_status status = KM_OK;
        if (!v->out || (codes && !v->packed))
            status = km_error_set(err, KM_ERR_MEMORY, "no memory to sort the vectors");
        for (uint64_t at = 0; status == KM_OK && at < rows; at += piece) {
            uint64_t n = rows - at < piece ? rows - at : piece;
            status = gather(s, a, b, at, n, from, size, v->next, v->out, err);
            if (status != KM_OK) break;
            if (codes) put_codes(v, a, b, n);
            if (section == KM_KMX_IDS) put_ids(v, v->out, n);
            if (section == KM_KMX_VECTORS) km_kmx_put(v->w, v->out, (size_t)n * size);
        }
        km_free(v->out);
        km_free(v->packed);
        if (status != KM_OK) return status;
    }
    return KM_OK;
}

km_status km_spill_write(km_spill *s, km_kmx_writer *w, int id_bits, size_t memory, km_error *err) {
    size_t code = s->x->code_bytes, vector = s->x->vector_bytes;
    km_status status = flush(s, err);
    if (status != KM_OK) return status;
    writing v = {.s = s, .w = w, .id_bits = id_bits};
    v.next = km_alloc(sizeof *v.next * (size_t)s->x->cells);
    v.ids = km_calloc(km_id_bytes(PIECE, 64), 1);
    if (!v.next || !v.ids)
        status = km_error_set(err, KM_ERR_MEMORY, "no memory to sort the vectors");
    if (status == KM_OK) {
        uint64_t at = 0;
        km_kmx_begin(w, KM_KMX_CELLS);
        km_kmx_put(w, &at, 8);
        for (int64_t c = 0; c < s->x->cells; c++) {
            at += s->counts[c];
            km_kmx_put(w, &at, 8);
        }
        if (code) status = write_section(&v, KM_KMX_CODES, HEAD, code, memory, err);
    }
    if (status == KM_OK) status = write_section(&v, KM_KMX_IDS, 0, 8, memory, err);
    if (status == KM_OK) km_kmx_put(w, v.ids, ((size_t)v.n_ids * (size_t)id_bits + 7) / 8 + 8);
    if (status == KM_OK && vector)
        status = write_section(&v, KM_KMX_VECTORS, HEAD + code, vector, memory, err);
    km_free(v.next);
    km_free(v.ids);
    return status;
}

/* Token files: see tokens.h for what they are and docs/formats/tokens.md for every byte. The
 * table stands at the end, so that a text of any length is written in one pass. */
#include "train/tokens.h"
#include "base/alloc.h"
#include "report/json.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { VERSION = 1, ALIGN = 64, MAX_SECTIONS = 16, MAX_META = 64 << 20 };
static const char magic[8] = {'K', 'M', 'T', 'O', 'K', 'E', 'N', 'S'};

typedef struct tokens_header { /* at byte 0 */
    char magic[8];
    uint32_t version, width;
    uint8_t zero[48];
} tokens_header;

typedef struct section { /* a row of the table */
    char name[8];        /* NUL-padded */
    uint64_t offset, bytes, hash;
} section;

typedef struct trailer { /* the last 64 bytes */
    uint64_t table, n_sections, table_hash, file_bytes;
    uint8_t zero[24];
    char magic[8];
} trailer;

_Static_assert(sizeof(tokens_header) == 64 && sizeof(section) == 32 && sizeof(trailer) == 64,
               "the format's sizes");

/* ---- Reading ---- */

bool km_tokens_is(const char *path) {
    char start[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    bool is = read(fd, start, sizeof start) == sizeof start && memcmp(start, magic, 8) == 0;
    close(fd);
    return is;
}

static km_status damaged(const char *path, const char *what, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT, "'%s' is damaged: %s; delete it, and it is made anew",
                        path, what);
}

/* The named section's row, checked to lie inside the file and to have its checksum. */
static km_status find_section(const km_tokens *t, const section *table, uint64_t n,
                              const char *name, section *out, const char *path, km_error *err) {
    char padded[8] = {0}, text[96];
    memcpy(padded, name, strlen(name));
    for (uint64_t i = 0; i < n; i++) {
        if (memcmp(table[i].name, padded, 8) != 0) continue;
        *out = table[i];
        if (out->offset % ALIGN || out->offset > t->map.size ||
            out->bytes > t->map.size - out->offset) {
            snprintf(text, sizeof text, "section %s reaches beyond the file", name);
            return damaged(path, text, err);
        }
        if (XXH3_64bits(t->map.data + out->offset, out->bytes) != out->hash) {
            snprintf(text, sizeof text, "the checksum of section %s is wrong", name);
            return damaged(path, text, err);
        }
        return KM_OK;
    }
    snprintf(text, sizeof text, "there is no section %s", name);
    return damaged(path, text, err);
}

static bool hex_member(const json_t *o, const char *key, uint64_t *out) {
    const char *s = json_string_value(json_object_get(o, key));
    char *end = NULL;
    if (!s || strlen(s) != 16) return false;
    *out = strtoull(s, &end, 16);
    return !*end;
}

static bool parse_source(const json_t *o, km_tokens_source *s) {
    const char *path = json_string_value(json_object_get(o, "path"));
    json_t *bytes = json_object_get(o, "bytes"), *mtime = json_object_get(o, "mtime_ns");
    if (!path || !json_is_integer(bytes) || !json_is_integer(mtime)) return false;
    s->bytes = (uint64_t)json_integer_value(bytes);
    s->mtime = json_integer_value(mtime);
    return hex_member(o, "xxh3", &s->hash) && (s->path = km_strdup(path));
}

static bool parse_meta(const void *data, size_t bytes, km_tokens_meta *m) {
    json_t *o = json_loadb(data, bytes, JSON_REJECT_DUPLICATES, NULL);
    json_t *files = json_object_get(o, "files");
    json_t *vocab = json_object_get(o, "vocab");
    bool ok =
        json_is_integer(vocab) && json_is_array(files) && hex_member(o, "tokenizer", &m->tokenizer);
    size_t n = json_array_size(files);
    m->vocab = json_integer_value(vocab);
    m->special = json_is_true(json_object_get(o, "special"));
    ok = ok && m->vocab > 0 && m->vocab <= INT32_MAX &&
         (m->sources = km_calloc(n ? n : 1, sizeof *m->sources));
    for (size_t i = 0; ok && i < n; i++)
        ok = parse_source(json_array_get(files, i), &m->sources[m->n_sources++]);
    json_decref(o);
    return ok;
}

static km_status check(km_tokens *t, const char *path, km_error *err) {
    tokens_header h;
    trailer end;
    if (t->map.size < sizeof h + sizeof end || memcmp(t->map.data, magic, 8) != 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is not a token file of Kermes", path);
    memcpy(&h, t->map.data, sizeof h);
    if (h.version != VERSION)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' has version %u of the token format, and this Kermes reads %d",
                            path, h.version, VERSION);
    memcpy(&end, t->map.data + t->map.size - sizeof end, sizeof end);
    if (memcmp(end.magic, magic, 8) != 0 || end.file_bytes != t->map.size)
        return damaged(path, "its end is missing", err);
    if (h.width != 2 && h.width != 4) return damaged(path, "tokens of a strange width", err);
    uint64_t room = t->map.size - sizeof end;
    if (end.n_sections > MAX_SECTIONS || end.table % ALIGN || end.table > room ||
        end.n_sections * sizeof(section) > room - end.table)
        return damaged(path, "its section table is out of place", err);
    const section *table = (const section *)(const void *)(t->map.data + end.table);
    if (XXH3_64bits(table, end.n_sections * sizeof *table) != end.table_hash)
        return damaged(path, "the checksum of its section table is wrong", err);
    section tokens, meta;
    km_status s = find_section(t, table, end.n_sections, "META", &meta, path, err);
    if (s == KM_OK) s = find_section(t, table, end.n_sections, "TOKENS", &tokens, path, err);
    if (s != KM_OK) return s;
    if (tokens.bytes % h.width) return damaged(path, "half a token at the end", err);
    if (meta.bytes > MAX_META || !parse_meta(t->map.data + meta.offset, meta.bytes, &t->meta))
        return damaged(path, "its description cannot be read", err);
    t->width = (int)h.width;
    t->data = t->map.data + tokens.offset;
    t->count = (int64_t)(tokens.bytes / h.width);
    return KM_OK;
}

km_status km_tokens_open(km_tokens *t, const char *path, km_error *err) {
    *t = (km_tokens){0};
    km_status s = km_map_open(&t->map, path, err);
    if (s == KM_OK) s = check(t, path, err);
    if (km_map_check(&t->map, err) != KM_OK) s = KM_ERR_FILE;
    if (s != KM_OK) km_tokens_close(t);
    return s;
}

void km_tokens_meta_clear(km_tokens_meta *m) {
    for (int i = 0; i < m->n_sources; i++) km_free(m->sources[i].path);
    km_free(m->sources);
    *m = (km_tokens_meta){0};
}

void km_tokens_close(km_tokens *t) {
    km_map_close(&t->map);
    km_tokens_meta_clear(&t->meta);
    *t = (km_tokens){0};
}

void km_tokens_get(const km_tokens *t, int64_t at, int64_t n, int32_t *out) {
    if (t->width == 2) {
        const uint16_t *from = (const uint16_t *)t->data + at;
        for (int64_t i = 0; i < n; i++) out[i] = from[i];
    } else {
        memcpy(out, (const uint32_t *)t->data + at, (size_t)n * sizeof *out);
    }
}

/* ---- Writing ---- */

struct km_tokens_writer {
    km_writer *file;
    int64_t vocab;
    int width;
    XXH3_state_t *hash; /* of the tokens so far */
    uint64_t bytes;
};

static km_status pad(km_writer *w) {
    static const uint8_t zero[ALIGN];
    return km_writer_put(w, zero, (ALIGN - km_writer_offset(w) % ALIGN) % ALIGN);
}

km_tokens_writer *km_tokens_create(const char *path, int64_t vocab, km_error *err) {
    km_tokens_writer *w = km_calloc(1, sizeof *w);
    if (w) w->hash = XXH3_createState();
    if (!w || !w->hash) {
        km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
        km_tokens_abort(w);
        return NULL;
    }
    w->vocab = vocab;
    w->width = vocab <= 65536 ? 2 : 4;
    w->file = km_writer_open(path, err);
    if (!w->file) {
        km_tokens_abort(w);
        return NULL;
    }
    XXH3_64bits_reset(w->hash);
    tokens_header h = {.version = VERSION, .width = (uint32_t)w->width};
    memcpy(h.magic, magic, sizeof magic);
    km_writer_put(w->file, &h, sizeof h); /* a failure sticks until commit */
    return w;
}

km_status km_tokens_put(km_tokens_writer *w, const int32_t *ids, size_t n, km_error *err) {
    uint32_t piece[4096];
    km_status s = KM_OK;
    for (size_t at = 0; at < n && s == KM_OK; at += 4096) {
        size_t k = n - at < 4096 ? n - at : 4096, bytes = k * (size_t)w->width;
        uint32_t wrong = 0;
        for (size_t i = 0; i < k; i++) {
            uint32_t id = (uint32_t)ids[at + i];
            wrong |= id >= (uint32_t)w->vocab;
            if (w->width == 2)
                ((uint16_t *)piece)[i] = (uint16_t)id;
            else
                piece[i] = id;
        }
        if (wrong)
            return km_error_set(err, KM_ERR_RANGE,
                                "the tokenizer gave a token outside its vocabulary of %" PRId64,
                                w->vocab);
        XXH3_64bits_update(w->hash, piece, bytes);
        w->bytes += bytes;
        s = km_writer_put(w->file, piece, bytes);
    }
    return s; /* what it was comes out at commit */
}

static json_t *hex(uint64_t v) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    return json_string(text);
}

static json_t *meta_json(const km_tokens_meta *m, int64_t count) {
    json_t *files = json_array();
    for (int i = 0; i < m->n_sources; i++) {
        const km_tokens_source *s = &m->sources[i];
        json_array_append_new(files,
                              json_pack("{s:o, s:I, s:I, s:o}", "path", km_json_text(s->path),
                                        "bytes", (json_int_t)s->bytes, "mtime_ns",
                                        (json_int_t)s->mtime, "xxh3", hex(s->hash)));
    }
    return json_pack("{s:s, s:o, s:I, s:I, s:b, s:o}", "kermes", km_version(), "tokenizer",
                     hex(m->tokenizer), "vocab", (json_int_t)m->vocab, "count", (json_int_t)count,
                     "special", m->special, "files", files);
}

km_status km_tokens_commit(km_tokens_writer *w, const km_tokens_meta *meta, km_error *err) {
    section table[2] = {{.name = "TOKENS"}, {.name = "META"}};
    table[0].offset = sizeof(tokens_header);
    table[0].bytes = w->bytes;
    table[0].hash = XXH3_64bits_digest(w->hash);
    json_t *o = meta_json(meta, (int64_t)(w->bytes / (uint64_t)w->width));
    char *text = json_dumps(o, JSON_INDENT(1));
    json_decref(o);
    km_status s = KM_OK;
    if (!text) {
        s = km_no_memory_for(err, "a token file's description");
        km_tokens_abort(w);
        return s;
    }
    km_writer *f = w->file;
    pad(f);
    table[1].offset = km_writer_offset(f);
    table[1].bytes = strlen(text);
    table[1].hash = XXH3_64bits(text, strlen(text));
    km_writer_put(f, text, strlen(text));
    free(text);
    pad(f);
    trailer end = {.table = km_writer_offset(f),
                   .n_sections = 2,
                   .table_hash = XXH3_64bits(table, sizeof table)};
    memcpy(end.magic, magic, sizeof magic);
    km_writer_put(f, table, sizeof table);
    pad(f);
    end.file_bytes = km_writer_offset(f) + sizeof end;
    km_writer_put(f, &end, sizeof end);
    w->file = NULL;
    s = km_writer_commit(f, err);
    km_tokens_abort(w);
    return s;
}

void km_tokens_abort(km_tokens_writer *w) {
    if (!w) return;
    km_writer_abort(w->file);
    XXH3_freeState(w->hash);
    km_free(w);
}

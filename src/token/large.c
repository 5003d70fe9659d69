/* Encoding a large text on several threads, with the ids of one. Each thread starts at a place of
 * its own as if a piece began there, and notes the first borders it meets. Afterwards the parts
 * are joined from the left: where a part has come to is nearly always a border that the next one
 * met too, and from a common border on both go the same way, for how text is cut depends only on
 * what follows. Where it is not, the text is encoded on until they agree. */
#include "base/alloc.h"
#include "base/threads.h"
#include "token/encode.h"
#include "base/utf8.h"
#include <string.h>

#define PART ((size_t)256 << 10)
#define MARKS 256
#define SEEK 4096          /* bytes searched for a good place to start at */
#define WINDOW (64u << 20) /* text that is changed before it is cut is taken in windows of this */
#define FLUSH ((size_t)1 << 20)

typedef struct text_part {
    km_encoder e;
    km_encode_cut cut;
    struct km_encode_mark mark[MARKS];
    km_ids ids;
    km_error err;
    const char *begin, *limit;
    km_status status; /* with cut.stop NULL: it is not known how this part ends */
} text_part;

typedef struct large_job {
    km_encoder e; /* first, so that one is the other */
    km_ids ids;   /* joined and not yet given away */
    km_threads *threads;
    text_part *parts;
    int n_parts;
    const char *text, *end; /* what the parts are of */
    km_ids_sink sink;
    void *sink_user;
    km_token_progress progress;
    void *user;
    size_t done, total;
    size_t part; /* bytes of one */
} large_job;

/* ---- May it be done at all? ---- */

/* Whether what a pattern matches depends on nothing before the match, and little behind it. */
static bool looks_nearby(const char *p) {
    if (strstr(p, "(?<") || strstr(p, "(?=") || strstr(p, "\\b") || strstr(p, "\\B") ||
        strstr(p, "\\G") || strstr(p, "\\A") || strstr(p, "\\K"))
        return false;
    for (const char *at = p; (at = strstr(at, "(?!")); at++)
        if (strncmp(at, "(?!\\S)", 6) != 0) return false;
    for (const char *at = p; (at = strchr(at, '^')); at++)
        if (at == p || (at[-1] != '[' && at[-1] != '\\')) {
            /* A plain character inside of a class is fine; an anchor is not. */
            const char *open = at;
            while (open > p && *open != '[' && *open != ']') open--;
            if (*open != '[') return false;
        }
    return true;
}

static bool patterns_look_nearby(const json_t *v) {
    const char *key;
    json_t *member;
    size_t i;
    if (json_is_array(v)) {
        json_array_foreach(v, i, member) {
            if (!patterns_look_nearby(member)) return false;
        }
        return true;
    }
    if (!json_is_object(v)) return true;
    json_object_foreach((json_t *)(uintptr_t)v, key, member) {
        if (strcmp(key, "Regex") == 0 && json_is_string(member)) {
            if (!looks_nearby(json_string_value(member))) return false;
        } else if (!patterns_look_nearby(member)) {
            return false;
        }
    }
    return true;
}

static bool can_be_cut(const km_token *t) {
    if (t->n_split == 0) return t->border != KM_BORDER_NONE;
    for (int i = 0; i < t->n_split; i++)
        if (t->split[i].kind != KM_SPLIT_ISOLATED && t->split[i].kind != KM_SPLIT_REMOVED)
            return false;
    return patterns_look_nearby(t->pre_tokenizer);
}

/* ---- Parts ---- */

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* A place near `at` where a piece probably begins: after a line, before a word. */
static const char *good_start(const char *at, const char *end) {
    const char *last = end - at > SEEK ? at + SEEK : end;
    for (const char *p = at + 1; p < last; p++)
        if (p[-1] == '\n' && !is_blank(*p) && !km_utf8_continues(*p)) return p;
    for (const char *p = at + 1; p < last; p++)
        if (*p == ' ' && !is_blank(p[-1])) return p;
    while (at < end && km_utf8_continues(*at)) at++;
    return at;
}

/* Encodes from `begin` to the first border at `limit` or later, showing the patterns no more than
 * `slack` bytes behind that. Without a stop, what came out says nothing. */
static km_status encode_within(km_encoder *e, const char *begin, const char *limit, size_t slack,
                               const char *end) {
    const char *cap = (size_t)(end - limit) > slack ? limit + slack : end;
    while (cap < end && km_utf8_continues(*cap)) cap++;
    e->cut->limit = limit;
    e->cut->stop = NULL;
    km_status s = km_encode_split(e, begin, (size_t)(cap - begin));
    if (s == KM_OK && !e->cut->stop && cap == end) e->cut->stop = end;
    return s;
}

/* The same for sure, however far a piece reaches: from *at, which moves on to the border. */
static km_status encode_on(large_job *j, const char **at, const char *limit) {
    km_encode_cut cut = {0};
    km_status s = KM_OK;
    size_t ids = j->ids.len;
    j->e.cut = &cut;
    for (size_t slack = j->part / 4 + 64; s == KM_OK && !cut.stop; slack *= 8) {
        j->ids.len = ids;
        s = encode_within(&j->e, *at, limit, slack, j->end);
    }
    j->e.cut = NULL;
    if (s == KM_OK) *at = cut.stop;
    return s;
}

static void run_parts(void *arg, int64_t begin, int64_t end, int worker) {
    (void)worker;
    large_job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        text_part *p = &j->parts[i];
        p->e = j->e;
        p->e.large = NULL;
        p->e.out = &p->ids;
        p->e.err = &p->err;
        p->e.cut = &p->cut;
        p->ids.len = 0;
        p->err = (km_error){0};
        p->cut = (km_encode_cut){.mark = p->mark, .room = MARKS};
        p->e.s = km_scratch_take(j->e.t, &p->err);
        p->status =
            p->e.s ? encode_within(&p->e, p->begin, p->limit, j->part / 4, j->end) : KM_ERR_MEMORY;
        if (p->e.s) km_scratch_give(j->e.t, p->e.s);
    }
}

static km_status give(large_job *j, bool all) {
    if (j->ids.len == 0 || (!all && j->ids.len < FLUSH)) return KM_OK;
    km_status s = j->sink(j->sink_user, j->ids.data, j->ids.len, j->e.err);
    j->ids.len = 0;
    return s;
}

/* ---- Joining ---- */

static const struct km_encode_mark *mark_from(const text_part *p, const char *at) {
    for (int i = 0; i < p->cut.n_marks; i++)
        if (p->mark[i].at >= at) return &p->mark[i];
    return NULL;
}

/* Joins part p to what ends at *at, which moves on to where p ended. */
static km_status join(large_job *j, const text_part *p, const char **at) {
    if (p->limit <= *at && p->begin < *at) return KM_OK; /* all of it is done already */
    if (p->status == KM_OK && !p->cut.stop) return encode_on(j, at, p->limit);
    const struct km_encode_mark *m;
    while ((m = mark_from(p, *at)) && m->at != *at) {
        km_status s = encode_on(j, at, m->at);
        if (s != KM_OK) return s;
    }
    if (!m) return *at < p->limit ? encode_on(j, at, p->limit) : KM_OK;
    /* Only from a common border on is an error of that thread one of the text. */
    if (p->status != KM_OK) return km_error_set(j->e.err, p->status, "%s", p->err.text);
    *at = p->cut.stop;
    return km_ids_put(&j->ids, p->ids.data + m->ids, p->ids.len - m->ids, j->e.err);
}

static km_status report(large_job *j, size_t done) {
    if (j->progress && !j->progress(j->user, "encoding", (int64_t)done, (int64_t)j->total))
        return km_error_set(j->e.err, KM_ERR_STATE, "stopped while encoding");
    return KM_OK;
}

static km_status encode_round(large_job *j, const char **at) {
    int n = 0;
    const char *begin = *at;
    for (; n < j->n_parts && begin < j->end; n++) {
        const char *limit =
            (size_t)(j->end - begin) > j->part ? good_start(begin + j->part, j->end) : j->end;
        j->parts[n].begin = begin;
        j->parts[n].limit = limit;
        begin = limit;
    }
    km_threads_for(j->threads, n, 1, run_parts, j);
    km_status s = KM_OK;
    for (int i = 0; s == KM_OK && i < n; i++) s = join(j, &j->parts[i], at);
    return s == KM_OK ? give(j, false) : s;
}

static km_status encode_in_parts(km_encoder *e, const char *text, size_t n) {
    large_job *j = (large_job *)(void *)e;
    if (n < 2 * j->part) {
        km_status s = km_encode_split(e, text, n);
        return s == KM_OK ? give(j, false) : s;
    }
    j->text = text;
    j->end = text + n;
    size_t before = j->done;
    km_status s = KM_OK;
    for (const char *at = text; s == KM_OK && at < j->end;) {
        s = encode_round(j, &at);
        if (s == KM_OK) s = report(j, before + (size_t)(at - text));
    }
    return s;
}

/* ---- The call ---- */

/* A text that is changed before it is cut is copied; in windows, where their borders are safe:
 * before a space, when no token and no piece reaches across one. */
static size_t window_of(const km_token *t, const char *text, size_t n) {
    bool spaces =
        t->border == KM_BORDER_SPACE || (t->n_split && t->split[0].kind == KM_SPLIT_REMOVED &&
                                         !t->split[0].invert && t->model == KM_MODEL_WORDPIECE);
    if (t->n_normal == 0 || t->normalized.count || !spaces || n <= WINDOW) return n;
    for (size_t i = WINDOW; i + 1 < n; i++)
        if (text[i] == ' ' && (unsigned char)text[i - 1] < 0x80 && !is_blank(text[i - 1]) &&
            (unsigned char)text[i + 1] < 0x80)
            return i;
    return n;
}

static km_status encode_stretches(large_job *j, const char *text, size_t n) {
    const km_token *t = j->e.t;
    bool special = j->e.flags & KM_TOKEN_PARSE_SPECIAL;
    km_text_place place = KM_PLACE_TEXT;
    km_status s = KM_OK;
    for (size_t at = 0; s == KM_OK && at < n;) {
        size_t begin = n, end = n;
        int32_t found = km_finder_next(&t->raw, t, text, n, at, special, &begin, &end);
        if (found < 0) begin = end = n;
        while (s == KM_OK && at < begin) {
            size_t length = window_of(t, text + at, begin - at);
            s = km_encode_stretch(&j->e, place, text + at, length);
            at += length;
            place = KM_PLACE_INSIDE;
            j->done = at;
            if (s == KM_OK) s = report(j, at);
        }
        if (s == KM_OK && found >= 0) s = km_put_id(&j->e, t->added[found].id);
        if (s == KM_OK) s = give(j, false);
        place = KM_PLACE_SEGMENT;
        at = end;
    }
    return s;
}

static km_status put_around(large_job *j, const int32_t *ids, int n) {
    return j->e.flags & KM_TOKEN_ADD_SPECIAL ? km_ids_put(&j->ids, ids, (size_t)n, j->e.err)
                                             : KM_OK;
}

static km_status start_threads(large_job *j, int threads) {
    j->threads = km_threads_new(threads);
    j->n_parts = 8 * km_threads_count(j->threads);
    j->parts = km_calloc((size_t)j->n_parts, sizeof *j->parts);
    return j->parts ? KM_OK : km_error_set(j->e.err, KM_ERR_MEMORY, "out of memory while encoding");
}

km_status km_token_encode_large(const km_token *t, const char *text, size_t bytes,
                                const km_encode_options *options, km_ids_sink sink, void *user,
                                km_error *err) {
    static const km_encode_options none = {0};
    if (!options) options = &none;
    if (!t || !sink || (!text && bytes)) return km_error_set(err, KM_ERR_NULL, "no text to encode");
    km_error own = {0};
    large_job j = {
        .e = {.t = t, .origin = text, .origin_bytes = bytes, .flags = options->flags, .err = &own},
        .sink = sink,
        .sink_user = user,
        .progress = options->progress,
        .user = options->user,
        .total = bytes,
        .part = options->part ? options->part : PART};
    j.e.out = &j.ids;
    j.e.s = km_scratch_take(t, &own);
    km_status s = j.e.s ? KM_OK : KM_ERR_MEMORY;
    if (s == KM_OK && bytes >= 2 * j.part && can_be_cut(t)) {
        s = start_threads(&j, options->threads);
        j.e.large = encode_in_parts;
    }
    if (s == KM_OK) s = put_around(&j, t->prefix, t->n_prefix);
    if (s == KM_OK) s = encode_stretches(&j, text, bytes);
    if (s == KM_OK) s = put_around(&j, t->suffix, t->n_suffix);
    if (s == KM_OK) s = give(&j, true);
    for (int i = 0; i < j.n_parts && j.parts; i++) km_ids_free(&j.parts[i].ids);
    km_free(j.parts);
    km_threads_free(j.threads);
    km_ids_free(&j.ids);
    if (j.e.s) km_scratch_give(t, j.e.s);
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", own.text);
}

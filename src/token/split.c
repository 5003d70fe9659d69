/* Cutting text into pieces by the pre-tokeniser's steps. Each step cuts what the one before it
 * left; the last pieces go to the model at once, so nothing is listed in between. */
#include "token/encode.h"
#include "base/utf8.h"
#include <string.h>

#define SPACE "\xE2\x96\x81" /* U+2581, SentencePiece's space */

size_t km_border_next(const km_token *t, const char *text, size_t n, size_t from) {
    if (t->border == KM_BORDER_NONE || from >= n) return n;
    if (t->border == KM_BORDER_CHAR) {
        while (from < n && km_utf8_continues(text[from])) from++;
        return from;
    }
    /* A mark that does not follow another one. */
    for (const char *at = text + from; (at = memmem(at, (size_t)(text + n - at), SPACE, 3)); at++)
        if (at > text && !(at - text >= 3 && memcmp(at - 3, SPACE, 3) == 0))
            return (size_t)(at - text);
    return n;
}

/* Notes a border; true when this is the place to stop. */
static bool at_border(km_encoder *e, const char *at) {
    km_encode_cut *c = e->cut;
    if (!c) return false;
    if (at >= c->limit) {
        c->stop = at;
        return true;
    }
    if (c->n_marks < c->room) {
        c->mark[c->n_marks].at = at;
        c->mark[c->n_marks++].ids = e->out->len;
    }
    return false;
}

static bool stopped(const km_encoder *e) { return e->cut && e->cut->stop; }

static km_status encode_borders(km_encoder *e, const char *text, size_t n) {
    km_status s = KM_OK;
    for (size_t at = 0, end; s == KM_OK && at < n; at = end) {
        if (at_border(e, text + at)) return KM_OK;
        end = at + 1;
        if (e->t->border == KM_BORDER_CHAR) /* any border will do: the one asked for, or the end */
            end = e->cut && (size_t)(e->cut->limit - text) < n ? (size_t)(e->cut->limit - text) : n;
        end = km_border_next(e->t, text, n, end);
        s = km_encode_piece(e, text + at, end - at);
    }
    return s;
}

static km_status encode_step(km_encoder *e, int step, bool open, const char *text, size_t n);

/* The pieces of one step, as they come: whether they match, and one held back for steps that put
 * neighbours together. */
typedef struct split_pieces {
    km_encoder *e;
    int step;
    bool open; /* what encloses them is matched by no step, so that one may start within it */
    const char *text;
    km_split_kind kind;
    size_t begin, end; /* held; empty: nothing is */
    bool match;        /* what is held matches */
} split_pieces;

static km_status pass_on(const split_pieces *p, size_t begin, size_t end, bool match) {
    if (begin == end) return KM_OK;
    return encode_step(p->e, p->step + 1, p->open && !match, p->text + begin, end - begin);
}

static km_status hold(split_pieces *p, size_t begin, size_t end, bool match) {
    size_t old_begin = p->begin, old_end = p->end;
    p->begin = begin;
    p->end = end;
    p->match = match;
    return pass_on(p, old_begin, old_end, true);
}

static km_status take(split_pieces *p, size_t begin, size_t end, bool match) {
    if (begin == end) return KM_OK;
    bool held = p->end > p->begin;
    switch (p->kind) {
    case KM_SPLIT_ISOLATED: return pass_on(p, begin, end, match);
    case KM_SPLIT_REMOVED: return match ? KM_OK : pass_on(p, begin, end, match);
    case KM_SPLIT_PREVIOUS:
        if (!match || !held || p->match) return hold(p, begin, end, match);
        p->end = end;
        p->match = true;
        return KM_OK;
    case KM_SPLIT_NEXT:
        if (match || !held || !p->match) return hold(p, begin, end, match);
        p->end = end;
        p->match = false;
        return KM_OK;
    case KM_SPLIT_CONTIGUOUS:
        if (!held || match != p->match) return hold(p, begin, end, match);
        p->end = end;
        return KM_OK;
    }
    return KM_OK;
}

static km_status encode_step(km_encoder *e, int step, bool open, const char *text, size_t n) {
    if (step == e->t->n_split) return km_encode_piece(e, text, n);
    const km_split_step *how = &e->t->split[step];
    split_pieces p = {.e = e, .step = step, .open = open, .text = text, .kind = how->kind};
    bool borders = open && step + 1 == e->t->n_split;
    km_status s = KM_OK;
    size_t done = 0, from = 0, begin, end;
    while (s == KM_OK && from < n) {
        if (borders && done == from && at_border(e, text + done)) return KM_OK;
        int found =
            km_pattern_find(how->pattern, e->s->matcher, text, n, from, &begin, &end, e->err);
        if (found < 0) return e->err ? e->err->code : KM_ERR_UNSUPPORTED;
        if (!found) break;
        s = take(&p, done, begin, how->invert);
        if (stopped(e)) return s;
        if (s == KM_OK) s = take(&p, begin, end, !how->invert);
        done = end;
        from = begin == end ? end + (end < n ? (size_t)km_utf8_length(text[end]) : 1) : end;
    }
    if (s == KM_OK) s = take(&p, done, n, how->invert);
    return s == KM_OK ? pass_on(&p, p.begin, p.end, true) : s;
}

km_status km_encode_split(km_encoder *e, const char *text, size_t n) {
    return e->t->n_split ? encode_step(e, 0, true, text, n) : encode_borders(e, text, n);
}

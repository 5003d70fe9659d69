/* Each stop is followed by an automaton of its own (Knuth, Morris, Pratt): its state says how many
 * of the last bytes are a beginning of it. The longest of these beginnings is what is held back. */
#include "infer/stop.h"
#include "base/alloc.h"
#include <string.h>

typedef struct one {
    char *text;
    size_t length;
    size_t *back; /* (length) after a mismatch at i, the shorter beginning that still fits */
    size_t at;    /* bytes that fit so far */
} one;

struct km_stop {
    one *stops;
    size_t n;
    km_text held;
    int which;
};

static bool begin(one *o, const char *text) {
    o->length = strlen(text);
    o->text = km_strdup(text);
    o->back = km_alloc(sizeof *o->back * o->length);
    if (!o->text || !o->back) return false;
    size_t k = 0;
    o->back[0] = 0;
    for (size_t i = 1; i < o->length; i++) {
        while (k > 0 && text[i] != text[k]) k = o->back[k - 1];
        if (text[i] == text[k]) k++;
        o->back[i] = k;
    }
    return true;
}

km_stop *km_stop_new(const char *const *texts, size_t n, km_error *err) {
    km_stop *s = km_calloc(1, sizeof *s);
    if (!s || !(s->stops = km_calloc(n ? n : 1, sizeof *s->stops))) goto memory;
    s->which = -1;
    for (; s->n < n; s->n++) {
        if (!texts[s->n][0]) {
            km_error_set(err, KM_ERR_RANGE, "a text to stop at must not be empty");
            km_stop_free(s);
            return NULL;
        }
        if (!begin(&s->stops[s->n], texts[s->n])) {
            s->n++;
            goto memory;
        }
    }
    return s;
memory:
    km_error_set(err, KM_ERR_MEMORY, "stop: out of memory");
    km_stop_free(s);
    return NULL;
}

void km_stop_free(km_stop *s) {
    if (!s) return;
    for (size_t i = 0; s->stops && i < s->n; i++) {
        km_free(s->stops[i].text);
        km_free(s->stops[i].back);
    }
    km_free(s->stops);
    km_text_free(&s->held);
    km_free(s);
}

void km_stop_reset(km_stop *s) {
    for (size_t i = 0; i < s->n; i++) s->stops[i].at = 0;
    s->held.len = 0;
    s->which = -1;
}

/* Goes on by a byte; true when the stop is complete. */
static bool step(one *o, char c) {
    while (o->at > 0 && c != o->text[o->at]) o->at = o->back[o->at - 1];
    if (c == o->text[o->at]) o->at++;
    return o->at == o->length;
}

bool km_stop_put(km_stop *s, const char *text, size_t bytes, km_text *out) {
    if (s->which >= 0) return true;
    for (size_t i = 0; i < bytes; i++) {
        size_t end = s->held.len + i + 1; /* of what came so far, held and new */
        for (size_t k = 0; k < s->n; k++) {
            if (!step(&s->stops[k], text[i])) continue;
            size_t show = end - s->stops[k].length;
            size_t old = show < s->held.len ? show : s->held.len;
            km_text_put(out, km_text_str(&s->held), old);
            km_text_put(out, text, show - old);
            s->held.len = 0;
            s->which = (int)k;
            return true;
        }
    }
    size_t hold = 0;
    for (size_t k = 0; k < s->n; k++)
        if (s->stops[k].at > hold) hold = s->stops[k].at;
    km_text_put(&s->held, text, bytes);
    if (!km_text_ok(&s->held)) { /* better shown too early than never */
        km_text_put(out, text, bytes);
        return false;
    }
    size_t show = s->held.len - hold;
    km_text_put(out, km_text_str(&s->held), show);
    memmove(s->held.data, s->held.data + show, hold);
    s->held.len = hold;
    return false;
}

void km_stop_end(km_stop *s, km_text *out) {
    km_text_put(out, km_text_str(&s->held), s->held.len);
    s->held.len = 0;
}

int km_stop_which(const km_stop *s) { return s->which; }

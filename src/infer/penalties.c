/* Penalties touch only the tokens that were said, so their cost does not grow with the vocabulary.
 * DRY's repetitions come from one pass over the history read backwards (the Z function: how far the
 * text from each place on agrees with its beginning). */
#include "infer/penalties.h"
#include "base/alloc.h"
#include <math.h>
#include <string.h>

#define MOST ((size_t)1 << 20) /* tokens looked back at, at most */

km_status km_said_begin(km_said *h, const km_sampling *s, int64_t vocab, const uint64_t *breaks,
                        km_error *err) {
    *h = (km_said){.vocab = vocab};
    bool repeat = s->repeat_penalty != 0 && s->repeat_penalty != 1;
    h->counts =
        (repeat || s->frequency_penalty != 0 || s->presence_penalty != 0) && s->repeat_last != 0;
    h->dry = s->dry_multiplier > 0;
    h->window =
        s->repeat_last < 0 || (uint64_t)s->repeat_last > MOST ? MOST : (size_t)s->repeat_last;
    size_t n = (size_t)vocab, words = (n + 63) / 64;
    if (h->counts) h->count = km_calloc(n, sizeof *h->count);
    if (h->dry) h->longest = km_calloc(n, sizeof *h->longest);
    if (h->dry && breaks && (h->breaks = km_alloc(words * sizeof *breaks)))
        memcpy(h->breaks, breaks, words * sizeof *breaks);
    if ((h->counts && !h->count) || (h->dry && (!h->longest || (breaks && !h->breaks))))
        return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    return KM_OK;
}

void km_said_end(km_said *h) {
    km_free(h->ids);
    km_free(h->count);
    km_free(h->longest);
    km_free(h->match);
    km_free(h->breaks);
    *h = (km_said){0};
}

void km_said_reset(km_said *h) {
    for (size_t i = 0; h->counts && i < h->n; i++) h->count[h->ids[i]] = 0;
    h->n = h->in_window = 0;
}

static km_status reserve(km_said *h, size_t n, km_error *err) {
    if (n <= h->cap) return KM_OK;
    size_t cap = h->cap ? h->cap : 256;
    while (cap < n) cap *= 2;
    int32_t *ids = km_realloc(h->ids, cap * sizeof *ids);
    if (ids) h->ids = ids;
    int32_t *match = h->dry ? km_realloc(h->match, cap * sizeof *match) : NULL;
    if (match) h->match = match;
    if (!ids || (h->dry && !match))
        return km_error_set(err, KM_ERR_MEMORY, "sampling: out of memory");
    h->cap = cap;
    return KM_OK;
}

km_status km_said_add(km_said *h, const int32_t *ids, size_t n, km_error *err) {
    if (!h->counts && !h->dry) return KM_OK;
    for (size_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        if (id < 0 || id >= h->vocab) continue;
        if (h->n == 2 * MOST) {
            memmove(h->ids, h->ids + MOST, MOST * sizeof *h->ids);
            h->n = MOST;
        }
        km_status s = reserve(h, h->n + 1, err);
        if (s != KM_OK) return s;
        h->ids[h->n++] = id;
        if (!h->counts) continue;
        h->count[id]++;
        if (h->in_window < h->window)
            h->in_window++;
        else
            h->count[h->ids[h->n - 1 - h->window]]--;
    }
    return KM_OK;
}

static void penalise_counts(km_said *h, const km_sampling *s, float *logits) {
    double repeat = s->repeat_penalty != 0 ? s->repeat_penalty : 1;
    size_t first = h->n - h->in_window;
    /* each token once: its count is turned round when it is met, and back afterwards */
    for (size_t i = first; i < h->n; i++) {
        int32_t id = h->ids[i], n = h->count[id];
        if (n < 0) continue;
        double x = logits[id];
        x = x > 0 ? x / repeat : x * repeat;
        logits[id] = (float)(x - n * s->frequency_penalty - s->presence_penalty);
        h->count[id] = -n;
    }
    for (size_t i = first; i < h->n; i++)
        if (h->count[h->ids[i]] < 0) h->count[h->ids[i]] *= -1;
}

static bool is_break(const km_said *h, int32_t id) {
    return h->breaks && (h->breaks[id / 64] >> (id % 64) & 1);
}

/* match[i]: how many tokens the text that ends i before the end has in common with the text's own
 * end. */
static void find_matches(const int32_t *end, size_t n, int32_t *match) {
    size_t from = 0, to = 0; /* the stretch [from, to) is known to repeat the beginning */
    match[0] = 0;
    for (size_t i = 1; i < n; i++) {
        size_t k = i < to ? (size_t)match[i - from] : 0;
        if (k > to - i && i < to) k = to - i;
        while (i + k < n && end[-(ptrdiff_t)k] == end[-(ptrdiff_t)(i + k)]) k++;
        match[i] = (int32_t)k;
        if (i + k > to) from = i, to = i + k;
    }
}

static void penalise_repetitions(km_said *h, const km_sampling *s, float *logits) {
    size_t n = h->n < MOST ? h->n : MOST;
    const int32_t *end = h->ids + h->n - 1; /* read backwards */
    size_t reach = 0;                       /* tokens since the last break */
    while (reach < n && !is_break(h, end[-(ptrdiff_t)reach])) reach++;
    if (reach == 0 || (int64_t)reach < s->dry_allowed_length) return;
    find_matches(end, n, h->match);
    for (size_t i = 1; i < n; i++) {
        int32_t follower = end[-(ptrdiff_t)(i - 1)];
        int32_t k = (size_t)h->match[i] < reach ? h->match[i] : (int32_t)reach;
        if (k > h->longest[follower]) h->longest[follower] = k;
    }
    for (size_t i = 1; i < n; i++) {
        int32_t id = end[-(ptrdiff_t)(i - 1)], k = h->longest[id];
        h->longest[id] = 0;
        if (k == 0 || k < s->dry_allowed_length || is_break(h, id)) continue;
        double much = s->dry_multiplier * pow(s->dry_base, (double)(k - s->dry_allowed_length));
        logits[id] -= (float)(much < 1e30 ? much : 1e30);
    }
}

void km_said_penalise(km_said *h, const km_sampling *s, float *logits) {
    if (h->n == 0) return;
    if (h->counts) penalise_counts(h, s, logits);
    if (h->dry) penalise_repetitions(h, s, logits);
}

/* Training byte-level BPE. The distinct pieces of the text lie in one array of symbols, one after
 * the other. A token of several bytes stands at its first byte, with its length at the last, so
 * neighbours on both sides are found without links. Each pair knows where it occurs; merging it
 * visits those places only, and makes the lists of the pairs that arise. So all merges together
 * cost as much as there are bytes, however long a piece is.
 *
 * The next pair is the most frequent one, of equals the one with the smallest ids. It comes from a
 * heap whose counts may be too high: a pair that lost some since goes back with its true count. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/hash.h"
#include "token/count.h"
#include "token/internal.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define BORDER INT32_MAX /* between pieces */
#define DEAD INT32_MIN   /* inside of a token */

typedef struct token_pair {
    int32_t left, right;
    int64_t count;
    uint32_t *place; /* where it occurs or once did, ascending */
    uint32_t n;
    bool own; /* place is its own block */
} token_pair;

typedef struct heap_entry { /* of the heap */
    int64_t count;
    int32_t left, right;
    uint32_t pair;
} heap_entry;

typedef struct count_run { /* pieces of one count lie together */
    uint32_t begin;
    int64_t count;
} count_run;

typedef struct near_pair { /* a pair that a merge makes: a place, and the neighbour there */
    int32_t other;
    uint32_t at;
} near_pair;

typedef struct bpe_trainer {
    int32_t *symbol; /* by byte: a token, DEAD, -length at the last byte of a token, or BORDER */
    uint32_t n;
    uint32_t *initial; /* the places of pairs of bytes */
    count_run *runs;
    size_t n_runs;
    uint32_t *length; /* by token, in bytes */
    int32_t tokens, vocab;
    token_pair *pairs;
    uint32_t n_pairs, room_pairs;
    uint32_t *slot; /* of pairs; UINT32_MAX: empty */
    uint32_t mask;
    heap_entry *heap;
    size_t heap_n, heap_room;
    /* Of the merge at work, for neighbours on the left (0) and on the right (1), by token: what
     * the old pairs lost, what the new ones won, and in which merge that was last touched. */
    int64_t *lost[2], *won[2];
    int32_t *stamp[2], *touched[2];
    int32_t n_touched[2];
    near_pair *arisen[2]; /* left and right neighbours of the new token */
    size_t n_arisen[2], room_arisen[2];
    uint32_t *fill; /* by token: how many places, then the pair whose list is being written */
    km_vocab texts;
    km_hash by_text; /* tokens by their texts */
} bpe_trainer;

/* ---- The heap ---- */

static bool above(const heap_entry *a, const heap_entry *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static bool heap_put(bpe_trainer *t, heap_entry e) {
    if (!km_array_reserve(&t->heap, &t->heap_room, t->heap_n + 1)) return false;
    size_t i = t->heap_n++;
    for (; i > 0 && above(&e, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
    return true;
}

static void heap_sink(bpe_trainer *t, heap_entry e) { /* from the top */
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->heap_n; i = child) {
        if (child + 1 < t->heap_n && above(&t->heap[child + 1], &t->heap[child])) child++;
        if (!above(&t->heap[child], &e)) break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = e;
}

static void heap_drop(bpe_trainer *t) {
    if (--t->heap_n) heap_sink(t, t->heap[t->heap_n]);
}

/* ---- Pairs ---- */

static uint32_t find_slot(const bpe_trainer *t, int32_t left, int32_t right) {
    uint32_t i = km_pair_hash(left, right) & t->mask;
    while (t->slot[i] != UINT32_MAX &&
           (t->pairs[t->slot[i]].left != left || t->pairs[t->slot[i]].right != right))
        i = (i + 1) & t->mask;
    return i;
}

static token_pair *find_pair(const bpe_trainer *t, int32_t left, int32_t right) {
    uint32_t i = t->slot[find_slot(t, left, right)];
    return i == UINT32_MAX ? NULL : &t->pairs[i];
}

static bool room_for_pair(bpe_trainer *t) {
    if (!km_array_reserve(&t->pairs, &t->room_pairs, t->n_pairs + 1)) return false;
    if (t->slot && 2 * (t->n_pairs + 1) <= t->mask) return true;
    uint32_t size = t->slot ? 2 * (t->mask + 1) : 1 << 15;
    uint32_t *slot = km_alloc(size * sizeof *slot);
    if (!slot) return false;
    memset(slot, 0xFF, size * sizeof *slot);
    km_free(t->slot);
    t->slot = slot;
    t->mask = size - 1;
    for (uint32_t i = 0; i < t->n_pairs; i++)
        slot[find_slot(t, t->pairs[i].left, t->pairs[i].right)] = i;
    return true;
}

/* A new pair, and its entry in the heap. Takes over place, if it is its own. */
static bool add_pair(bpe_trainer *t, token_pair p) {
    if (!room_for_pair(t) || !heap_put(t, (heap_entry){p.count, p.left, p.right, t->n_pairs})) {
        if (p.own) km_free(p.place);
        return false;
    }
    t->slot[find_slot(t, p.left, p.right)] = t->n_pairs;
    t->pairs[t->n_pairs++] = p;
    return true;
}

/* ---- The start ---- */

static int by_count_down(const void *a, const void *b) {
    int64_t x = ((const km_counted_piece *)a)->count, y = ((const km_counted_piece *)b)->count;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Lays out the pieces, the most frequent first. Those of one byte have no pairs. */
static km_status lay_out(bpe_trainer *t, km_pieces *p, km_error *err) {
    size_t bytes = 1;
    for (size_t i = 0; i < p->used; i++)
        if (p->slot[i].len > 1) bytes += p->slot[i].len + 1;
    if (bytes >= (size_t)1 << 31)
        return km_error_set(err, KM_ERR_RANGE,
                            "the distinct words of the text take %zu bytes; 2 GiB is the limit",
                            bytes);
    qsort(p->slot, p->used, sizeof *p->slot, by_count_down);
    int32_t id_of[256];
    for (int i = 0; i < 256; i++) id_of[km_byte_order[i]] = i;
    size_t runs = 0;
    for (size_t i = 0; i < p->used; i++) runs += i == 0 || p->slot[i].count != p->slot[i - 1].count;
    t->runs = km_alloc((runs + 1) * sizeof *t->runs);
    t->symbol = km_alloc(bytes * sizeof *t->symbol);
    if (!t->symbol || !t->runs) return km_no_memory_for(err, "%zu bytes of words", bytes);
    t->symbol[t->n++] = BORDER;
    for (size_t i = 0; i < p->used; i++) {
        if (p->slot[i].len < 2) continue;
        if (t->n_runs == 0 || t->runs[t->n_runs - 1].count != p->slot[i].count)
            t->runs[t->n_runs++] = (count_run){t->n, p->slot[i].count};
        for (uint32_t k = 0; k < p->slot[i].len; k++)
            t->symbol[t->n++] = id_of[(unsigned char)p->slot[i].text[k]];
        t->symbol[t->n++] = BORDER;
    }
    return KM_OK;
}

/* How often the piece at this place occurs; *r is the run of the last one asked for. */
static int64_t weight(const bpe_trainer *t, uint32_t at, size_t *r) {
    size_t lo = *r, hi = t->n_runs - 1;
    if (lo < hi && t->runs[lo + 1].begin <= at) {
        lo++;
        while (lo < hi) {
            size_t middle = (lo + hi + 1) / 2;
            if (t->runs[middle].begin <= at)
                lo = middle;
            else
                hi = middle - 1;
        }
    }
    *r = lo;
    return t->runs[lo].count;
}

/* The pairs of bytes with their places, sorted by counting them first. */
static bool first_pairs(bpe_trainer *t) {
    uint32_t *at = km_calloc(65537, sizeof *at);
    int64_t *count = km_calloc(65536, sizeof *count);
    bool ok = at && count;
    size_t r = 0;
    for (uint32_t i = 1; ok && i + 1 < t->n; i++) {
        if (t->symbol[i] == BORDER || t->symbol[i + 1] == BORDER) continue;
        while (r + 1 < t->n_runs && t->runs[r + 1].begin <= i) r++;
        uint32_t key = (uint32_t)t->symbol[i] << 8 | (uint32_t)t->symbol[i + 1];
        at[key + 1]++;
        count[key] += t->runs[r].count;
    }
    for (uint32_t k = 0; ok && k < 65536; k++) at[k + 1] += at[k];
    if (ok) t->initial = km_alloc((size_t)at[65536] * sizeof *t->initial + 1);
    ok = ok && t->initial;
    for (uint32_t k = 0; ok && k < 65536; k++)
        if (count[k])
            ok = add_pair(t, (token_pair){(int32_t)(k >> 8), (int32_t)(k & 255), count[k],
                                          t->initial + at[k], at[k + 1] - at[k], false});
    for (uint32_t i = 1; ok && i + 1 < t->n; i++) {
        if (t->symbol[i] == BORDER || t->symbol[i + 1] == BORDER) continue;
        t->initial[at[(uint32_t)t->symbol[i] << 8 | (uint32_t)t->symbol[i + 1]]++] = i;
    }
    km_free(at);
    km_free(count);
    return ok;
}

/* ---- Merging one pair ---- */

static void touch(bpe_trainer *t, int side, int32_t other, int32_t made) {
    if (t->stamp[side][other] == made) return;
    t->stamp[side][other] = made;
    t->touched[side][t->n_touched[side]++] = other;
}

static bool arise(bpe_trainer *t, int side, int32_t other, uint32_t at) {
    if (!km_array_reserve(&t->arisen[side], &t->room_arisen[side], t->n_arisen[side] + 1))
        return false;
    t->arisen[side][t->n_arisen[side]++] = (near_pair){other, at};
    return true;
}

/* The pairs that a merge made get their lists; those that it broke lose their counts. */
static bool settle(bpe_trainer *t, const token_pair *merged, int32_t made) {
    for (int side = 0; side < 2; side++) {
        /* How many places each neighbour has, then the places in their order. */
        for (size_t i = 0; i < t->n_arisen[side]; i++) t->fill[t->arisen[side][i].other]++;
        for (int32_t i = 0; i < t->n_touched[side]; i++) {
            int32_t other = t->touched[side][i];
            token_pair *old =
                side ? find_pair(t, merged->right, other) : find_pair(t, other, merged->left);
            if (old) old->count -= t->lost[side][other];
            int64_t won = t->won[side][other];
            uint32_t n = t->fill[other];
            t->lost[side][other] = t->won[side][other] = 0;
            t->fill[other] = UINT32_MAX;
            if (won <= 0) continue;
            uint32_t *place = km_alloc(n * sizeof *place);
            t->fill[other] = t->n_pairs; /* the pair whose list is being written */
            if (!place || !add_pair(t, (token_pair){side ? made : other, side ? other : made, won,
                                                    place, 0, true}))
                return false;
        }
        for (size_t i = 0; i < t->n_arisen[side]; i++) {
            uint32_t p = t->fill[t->arisen[side][i].other];
            if (p != UINT32_MAX) t->pairs[p].place[t->pairs[p].n++] = t->arisen[side][i].at;
        }
        for (int32_t i = 0; i < t->n_touched[side]; i++) t->fill[t->touched[side][i]] = 0;
        t->n_touched[side] = 0;
        t->n_arisen[side] = 0;
    }
    return true;
}

/* Makes token `made` of the pair wherever that still occurs. Where merges stand side by side, the
 * second finds the first as its neighbour, which has counted (made, a) for what is (made, made). */
static bool merge_pair(bpe_trainer *t, uint32_t index, int32_t made) {
    const token_pair merged = t->pairs[index];
    const int32_t a = merged.left, b = merged.right;
    const uint32_t len_a = t->length[a], len = len_a + t->length[b];
    int32_t *s = t->symbol;
    size_t r = 0;
    uint32_t last = 0; /* the end of the merge before this one */
    t->length[made] = len;
    for (uint32_t i = 0; i < merged.n; i++) {
        uint32_t at = merged.place[i], behind = at + len;
        if (s[at] != a || s[at + len_a] != b) continue; /* gone since */
        int64_t w = weight(t, at, &r);
        int32_t before = s[at - 1], next = s[behind];
        uint32_t before_at = before < 0 ? at - (uint32_t)-before : at - 1;
        if (before < 0) before = s[before_at];
        s[at] = made;
        if (t->length[b] > 1) s[at + len_a] = DEAD;
        s[behind - 1] = -(int32_t)len;
        if (before != BORDER) {
            touch(t, 0, before, made);
            if (at == last)
                t->won[1][a] -= w;
            else
                t->lost[0][before] += w;
            t->won[0][before] += w;
            if (!arise(t, 0, before, before_at)) return false;
        }
        if (next != BORDER) {
            touch(t, 1, next, made);
            t->lost[1][next] += w;
            t->won[1][next] += w;
            if (!arise(t, 1, next, at)) return false;
        }
        last = behind;
    }
    if (merged.own) km_free(merged.place);
    t->pairs[index].place = NULL;
    t->pairs[index].n = 0;
    t->pairs[index].count = 0;
    return settle(t, &merged, made);
}

/* ---- The merges, one by one ---- */

/* The text of the pair as a new token; false when there is a token of that text already. */
static km_status put_text(bpe_trainer *t, const token_pair *p, bool *is_new, km_error *err) {
    size_t n_left, n_right;
    km_text text = {0};
    const char *left = km_vocab_text(&t->texts, p->left, &n_left);
    km_text_put(&text, left, n_left);
    const char *right = km_vocab_text(&t->texts, p->right, &n_right);
    km_text_put(&text, right, n_right);
    km_status s = km_text_ok(&text) ? KM_OK : KM_ERR_MEMORY;
    uint32_t hash = km_hash_bytes(km_text_str(&text), text.len), other;
    *is_new = true;
    for (size_t step = 0; s == KM_OK && *is_new &&
                          (other = km_hash_next(&t->by_text, hash, &step)) != KM_HASH_NONE;) {
        size_t n;
        const char *known = km_vocab_text(&t->texts, (int32_t)other, &n);
        *is_new = n != text.len || memcmp(known, text.data, n) != 0;
    }
    if (s == KM_OK && *is_new && !km_hash_put(&t->by_text, hash, (uint32_t)t->tokens))
        s = KM_ERR_MEMORY;
    if (s == KM_OK && *is_new) s = km_vocab_put(&t->texts, t->tokens, text.data, text.len, err);
    km_text_free(&text);
    return s == KM_ERR_MEMORY ? km_error_set(err, s, "out of memory while merging") : s;
}

static km_status merge_all(bpe_trainer *t, int64_t min_count, km_token_progress progress,
                           void *user, km_merges *merges, km_error *err) {
    while (t->tokens < t->vocab && t->heap_n) {
        heap_entry e = t->heap[0];
        const token_pair p = t->pairs[e.pair];
        if (e.count != p.count) { /* it lost some since it was put there */
            e.count = p.count;
            if (p.count > 0)
                heap_sink(t, e);
            else
                heap_drop(t);
            continue;
        }
        if (p.count < min_count) break;
        heap_drop(t);
        bool is_new;
        km_status s = put_text(t, &p, &is_new, err);
        if (s != KM_OK) return s;
        if (!is_new) continue; /* made of other parts already; one way to a token is enough */
        s = km_merges_put(merges, p.left, p.right, t->tokens, err);
        if (s != KM_OK) return s;
        if (!merge_pair(t, e.pair, t->tokens))
            return km_error_set(err, KM_ERR_MEMORY, "out of memory while merging");
        t->tokens++;
        if (progress && t->tokens % 64 == 0 &&
            !progress(user, "merging", t->tokens - 256, t->vocab - 256))
            return km_error_set(err, KM_ERR_STATE, "stopped while merging");
    }
    return KM_OK;
}

/* ---- The call ---- */

static bool make_room(bpe_trainer *t) {
    size_t n = (size_t)t->vocab;
    t->length = km_alloc(n * sizeof *t->length);
    t->fill = km_calloc(n, sizeof *t->fill);
    bool ok = t->length && t->fill;
    for (int side = 0; side < 2; side++) {
        t->lost[side] = km_calloc(n, sizeof(int64_t));
        t->won[side] = km_calloc(n, sizeof(int64_t));
        t->stamp[side] = km_calloc(n, sizeof(int32_t)); /* no merge makes token 0 */
        t->touched[side] = km_alloc(n * sizeof(int32_t));
        ok = ok && t->lost[side] && t->won[side] && t->stamp[side] && t->touched[side];
    }
    if (!ok) return false;
    for (int i = 0; i < 256; i++) {
        char byte = (char)km_byte_order[i];
        if (km_vocab_put(&t->texts, i, &byte, 1, NULL) != KM_OK) return false;
        if (!km_hash_put(&t->by_text, km_hash_bytes(&byte, 1), (uint32_t)i)) return false;
        t->length[i] = 1;
    }
    t->tokens = 256;
    return true;
}

static void trainer_free(bpe_trainer *t) {
    for (uint32_t i = 0; i < t->n_pairs; i++)
        if (t->pairs[i].own) km_free(t->pairs[i].place);
    for (int side = 0; side < 2; side++) {
        km_free(t->lost[side]);
        km_free(t->won[side]);
        km_free(t->stamp[side]);
        km_free(t->touched[side]);
        km_free(t->arisen[side]);
    }
    km_free(t->symbol);
    km_free(t->initial);
    km_free(t->runs);
    km_free(t->length);
    km_free(t->pairs);
    km_free(t->slot);
    km_free(t->heap);
    km_free(t->fill);
    km_hash_free(&t->by_text);
    km_vocab_free(&t->texts);
}

/* The tokenizer of what was learnt: bytes, merges, special tokens. */
static km_status build(km_token *made, const bpe_trainer *t, const km_bpe_options *o,
                       km_error *err) {
    km_status s = km_token_byte_sections(made, true, err);
    for (int32_t id = 0; s == KM_OK && id < t->tokens; id++) {
        size_t n;
        const char *text = km_vocab_text(&t->texts, id, &n);
        s = km_token_put(made, id, text, n, KM_MARK_MODEL, err);
    }
    for (size_t i = 0; s == KM_OK && i < o->n_special; i++) {
        int32_t id = t->tokens + (int32_t)i;
        s = km_token_put(made, id, o->special[i], strlen(o->special[i]),
                         KM_MARK_ADDED | KM_MARK_SPECIAL | KM_MARK_LITERAL, err);
        if (s == KM_OK) s = km_token_put_added(made, &(km_added){.id = id}, err);
        if (strcmp(o->special[i], KM_TOKEN_END) == 0) made->eos = id;
    }
    return s == KM_OK ? km_token_finish(made, "bpe", err) : s;
}

static km_status check(const km_span *texts, size_t n, const km_bpe_options *o, km_error *err) {
    if (!o || (!texts && n) || (!o->special && o->n_special))
        return km_error_set(err, KM_ERR_NULL, "no text or no options to train a tokenizer with");
    if (o->vocab > KM_VOCAB_MAX || o->vocab < 256 || (size_t)o->vocab - 256 < o->n_special)
        return km_error_set(err, KM_ERR_RANGE,
                            "a vocabulary of %lld tokens; it takes %zu at least and %d at most",
                            (long long)o->vocab, 256 + o->n_special, KM_VOCAB_MAX);
    for (size_t i = 0; i < o->n_special; i++) {
        size_t length = o->special[i] ? strlen(o->special[i]) : 0;
        if (length == 0 || km_utf8_valid(o->special[i], length) != length)
            return km_error_set(err, KM_ERR_RANGE, "special token %zu is empty or not UTF-8", i);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->special[i], o->special[k]) == 0)
                return km_error_set(err, KM_ERR_RANGE, "special token '%.60s' is given twice",
                                    o->special[i]);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) bytes |= texts[i].bytes;
    return bytes ? KM_OK
                 : km_error_set(err, KM_ERR_RANGE, "an empty text teaches a tokenizer nothing");
}

km_token *km_token_train_bpe(const km_span *texts, size_t n, const km_bpe_options *options,
                             km_error *err) {
    if (check(texts, n, options, err) != KM_OK) return NULL;
    bpe_trainer t = {.vocab = (int32_t)(options->vocab - (int64_t)options->n_special)};
    km_pieces pieces = {0};
    km_threads *threads = km_threads_new(options->threads);
    km_token *made = km_token_new("bpe", KM_MODEL_BPE, err);
    km_status s = made ? KM_OK : KM_ERR_MEMORY;
    if (s == KM_OK)
        s = km_count_pieces(texts, n, threads, options->progress, options->user, &pieces, err);
    km_threads_free(threads);
    if (s == KM_OK) s = lay_out(&t, &pieces, err);
    km_pieces_free(&pieces);
    if (s == KM_OK && (!make_room(&t) || !first_pairs(&t)))
        s = km_error_set(err, KM_ERR_MEMORY, "out of memory while merging");
    if (s == KM_OK)
        s = merge_all(&t, options->min_count > 0 ? options->min_count : 2, options->progress,
                      options->user, &made->merges, err);
    if (s == KM_OK) s = build(made, &t, options, err);
    trainer_free(&t);
    if (s == KM_OK) return made;
    km_token_free(made);
    return NULL;
}

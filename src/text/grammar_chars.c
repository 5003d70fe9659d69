/* Sets of characters as automata over bytes. UTF-8 puts the high bits first, so a range of code
 * points becomes a tree of byte ranges; equal parts of it are one node. */
#include "base/alloc.h"
#include "base/array.h"
#include "text/grammar_rules.h"
#include <stdlib.h>
#include <string.h>

/* The node with these ways out, made if there is none yet. */
static km_status intern(km_char_nodes *k, const uint16_t next[256], uint16_t *node, km_error *err) {
    uint32_t hash = km_hash_bytes(next, sizeof *k->next), number;
    for (size_t step = 0; (number = km_hash_next(&k->table, hash, &step)) != KM_HASH_NONE;)
        if (memcmp(k->next[number], next, sizeof *k->next) == 0) {
            *node = (uint16_t)number;
            return KM_OK;
        }
    if (k->n >= KM_GRAMMAR_NODES)
        return km_error_set(err, KM_ERR_RANGE,
                            "the grammar has too many different sets of characters");
    if (!km_array_reserve(&k->next, &k->cap, k->n + 1) ||
        !km_hash_put(&k->table, hash, (uint32_t)k->n))
        return km_no_memory_for(err, "a grammar");
    memcpy(k->next[k->n], next, sizeof *k->next);
    *node = (uint16_t)k->n++;
    return KM_OK;
}

km_status km_char_nodes_begin(km_char_nodes *k, km_error *err) {
    static const uint16_t nowhere[256] = {0};
    *k = (km_char_nodes){0};
    k->next = km_alloc(16 * sizeof *k->next);
    if (!k->next) return km_no_memory_for(err, "a grammar");
    k->cap = 16;
    k->n = 2; /* DEAD and DONE, which are not found by their ways out */
    memcpy(k->next[KM_NODE_DEAD], nowhere, sizeof nowhere);
    memcpy(k->next[KM_NODE_DONE], nowhere, sizeof nowhere);
    return KM_OK;
}

void km_char_nodes_free(km_char_nodes *k) {
    km_free(k->next);
    km_hash_free(&k->table);
    *k = (km_char_nodes){0};
}

/* The node that reads the last `more` bytes of characters whose first bytes are read: those of the
 * ranges that lie in base .. base + 64^more - 1. */
static km_status tail(km_char_nodes *k, const km_char_range *r, size_t n, uint32_t base, int more,
                      uint16_t *node, km_error *err) {
    uint32_t last = base + ((uint32_t)1 << 6 * more) - 1;
    while (n && r->hi < base) r++, n--;
    while (n && r[n - 1].lo > last) n--;
    *node = KM_NODE_DEAD;
    if (n == 0) return KM_OK;
    *node = KM_NODE_DONE;
    if (more == 0) return KM_OK;
    uint16_t next[256] = {0};
    uint32_t width = (uint32_t)1 << 6 * (more - 1);
    for (uint32_t i = 0; i < 64; i++) {
        bool whole =
            n == 1 && i && r->lo <= base + (i - 1) * width && r->hi >= base + (i + 1) * width - 1;
        if (whole) { /* as the one before, which was whole too */
            next[0x80 + i] = next[0x80 + i - 1];
            continue;
        }
        km_status status = tail(k, r, n, base + i * width, more - 1, &next[0x80 + i], err);
        if (status != KM_OK) return status;
    }
    return intern(k, next, node, err);
}

static int by_low(const void *a, const void *b) {
    const km_char_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

/* Sorted, without overlap. */
static size_t tidy(km_char_range *r, size_t n) {
    if (n > 1) qsort(r, n, sizeof *r, by_low);
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (out && r[i].lo <= r[out - 1].hi + 1) {
            if (r[i].hi > r[out - 1].hi) r[out - 1].hi = r[i].hi;
        } else {
            r[out++] = r[i];
        }
    }
    return out;
}

/* Drops what lies below `least`: longer forms of it are not valid. */
static size_t clip(km_char_range *r, size_t n, uint32_t least) {
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (r[i].hi < least) continue;
        r[out] = r[i];
        if (r[out].lo < least) r[out].lo = least;
        out++;
    }
    return out;
}

static km_status first_bytes(km_char_nodes *k, km_char_range *r, size_t n, uint16_t *node,
                             km_error *err) {
    uint16_t next[256] = {0};
    km_status status = KM_OK;
    for (uint32_t b = 0; b < 0x80; b++)
        for (size_t i = 0; i < n; i++)
            if (r[i].lo <= b && b <= r[i].hi) next[b] = KM_NODE_DONE;
    for (uint32_t b = 0xc2; b <= 0xf4 && status == KM_OK; b++) {
        int more = b < 0xe0 ? 1 : b < 0xf0 ? 2 : 3;
        n = clip(r, n, more == 1 ? 0x80 : more == 2 ? 0x800 : 0x10000);
        uint32_t base = (b & (more == 1 ? 0x1fu : more == 2 ? 0x0fu : 0x07u)) << 6 * more;
        status = tail(k, r, n, base, more, &next[b], err);
    }
    return status == KM_OK ? intern(k, next, node, err) : status;
}

km_status km_char_nodes_class(km_char_nodes *k, km_char_range *ranges, size_t n, bool negated,
                              uint16_t *node, km_error *err) {
    n = tidy(ranges, n);
    km_char_range *all = km_alloc((n + 3) * 3 * sizeof *all);
    if (!all) return km_no_memory_for(err, "a grammar");
    size_t count = 0;
    uint32_t from = 0;
    for (size_t i = 0; i <= n && negated; i++) {
        uint32_t end = i < n ? ranges[i].lo : 0x110000;
        if (end > from) all[count++] = (km_char_range){from, end - 1};
        if (i < n) from = ranges[i].hi + 1;
    }
    if (!negated && n) memcpy(all, ranges, n * sizeof *all);
    if (!negated) count = n;
    km_char_range *valid = all + n + 3; /* without the surrogates, which UTF-8 does not have */
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        km_char_range low = all[i], high = all[i];
        if (low.hi > 0xd7ff) low.hi = 0xd7ff;
        if (high.lo < 0xe000) high.lo = 0xe000;
        if (low.lo <= low.hi) valid[kept++] = low;
        if (high.lo <= high.hi) valid[kept++] = high;
    }
    km_status status = first_bytes(k, valid, kept, node, err);
    km_free(all);
    return status;
}

km_status km_grammar_compress(km_grammar *g, km_error *err) {
    const km_char_nodes *k = &g->nodes;
    int representative[256];
    g->n_classes = 0;
    for (int b = 0; b < 256; b++) {
        int c = 0;
        for (; c < g->n_classes; c++) {
            size_t i = 2;
            while (i < k->n && k->next[i][b] == k->next[i][representative[c]]) i++;
            if (i == k->n) break;
        }
        if (c == g->n_classes) representative[g->n_classes++] = b;
        g->class_of[b] = (uint8_t)c;
    }
    g->n_nodes = k->n;
    g->step = km_alloc(k->n * (size_t)g->n_classes * sizeof *g->step);
    if (!g->step) return km_no_memory_for(err, "a grammar");
    for (size_t i = 0; i < k->n; i++)
        for (int c = 0; c < g->n_classes; c++)
            g->step[i * (size_t)g->n_classes + (size_t)c] = k->next[i][representative[c]];
    km_char_nodes_free(&g->nodes);
    return KM_OK;
}

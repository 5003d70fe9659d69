/* Builds the tree of a vocabulary. */
#include "text/grammar_trie.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

#define MAX_TOKEN 1000 /* bytes; longer tokens never match */

int km_trie_group(uint8_t c) {
    /* What grammars tell apart has a group of its own: every sign. Letters and digits go by the
     * usual ranges. */
    if (c >= '1' && c <= '9') return 0;
    if (c == '0') return 1;
    if (c >= 'a' && c <= 'f') return 2;
    if (c >= 'g' && c <= 'z') return 3;
    if (c >= 'A' && c <= 'F') return 4;
    if (c >= 'G' && c <= 'Z') return 5;
    if (c == '\n') return 6;
    if (c == '\t') return 7;
    if (c == '\r') return 8;
    if (c < 32) return 9;
    if (c == 127) return 10;
    /* space to / are 11 to 26, : to @ 27 to 33, [ to ` 34 to 39, { to ~ 40 to 43 */
    return c < '0' ? 11 + c - ' ' : c < 'A' ? 27 + c - ':' : c < 'a' ? 34 + c - '[' : 40 + c - '{';
}

typedef struct token_entry {
    const char *text;
    uint32_t bytes;
    int32_t id;
} token_entry;

static int by_bytes(const void *a, const void *b) {
    const token_entry *x = a, *y = b;
    uint32_t n = x->bytes < y->bytes ? x->bytes : y->bytes;
    int c = memcmp(x->text, y->text, n);
    if (c) return c;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool add_node(km_trie *t, km_trie_node node) {
    if (!km_array_reserve(&t->nodes, &t->cap, t->n + 2)) return false;
    t->nodes[t->n++] = node;
    return true;
}

static void mark(km_trie_node *node, uint64_t groups, uint32_t characters) {
    node->groups |= groups;
    if (characters > 255) characters = 255;
    if (node->height < characters) node->height = (uint8_t)characters;
}

/* Marks on each node of a token's path what comes after it. */
static void mark_path(km_trie *t, const uint32_t *path, const token_entry *e) {
    uint64_t groups = 0;
    uint32_t characters = 0;
    for (uint32_t i = e->bytes; i-- > 0; characters++) {
        mark(&t->nodes[path[i]], groups, characters); /* of the bytes after i */
        uint8_t c = (uint8_t)e->text[i];
        if (c < 0x80) {
            groups |= (uint64_t)1 << km_trie_group(c);
            continue;
        }
        /* Back over a character: whole from its first byte on, pieces when seen from inside. */
        uint32_t first = i, cp;
        while (first > 0 && i - first < 3 && km_utf8_continues(e->text[first])) first--;
        int length = km_utf8_read(e->text + first, e->bytes - first, &cp);
        bool whole = length > 1 && first + (uint32_t)length == i + 1;
        for (uint32_t k = first; whole && k < i; k++)
            mark(&t->nodes[path[k]], groups | (uint64_t)1 << KM_GROUP_PIECES, characters + 1);
        groups |= (uint64_t)1 << (whole ? KM_GROUP_WHOLE : KM_GROUP_PIECES);
        if (whole) i = first;
    }
}

static bool build(km_trie *t, const token_entry *entries, size_t n, uint32_t *path) {
    uint32_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        const token_entry *e = &entries[i];
        uint32_t common = 0;
        while (i && common < e->bytes && common < entries[i - 1].bytes &&
               e->text[common] == entries[i - 1].text[common])
            common++;
        while (depth > common) t->nodes[path[--depth]].end = (uint32_t)t->n;
        for (; depth < e->bytes; depth++) {
            int before = depth ? t->nodes[path[depth - 1]].before : 0;
            before += before < 255 && !km_utf8_continues(e->text[depth]);
            path[depth] = (uint32_t)t->n;
            if (!add_node(t, (km_trie_node){.byte = (uint8_t)e->text[depth],
                                            .depth = (uint16_t)(depth + 1),
                                            .before = (uint8_t)before,
                                            .first = (uint32_t)i}))
                return false;
        }
        if ((int)e->bytes > t->max_depth) t->max_depth = (int)e->bytes;
        mark_path(t, path, e);
        t->chars[i] = t->nodes[path[e->bytes - 1]].before;
        t->ids[i] = e->id;
        t->all[e->id / 64] |= (uint64_t)1 << e->id % 64;
    }
    while (depth > 0) t->nodes[path[--depth]].end = (uint32_t)t->n;
    if (!add_node(t, (km_trie_node){.first = (uint32_t)n})) return false;
    t->n--; /* the sentinel is not one of them */
    t->n_ids = n;
    return true;
}

static bool copy_texts(km_trie *t, const km_span *texts, int64_t n, token_entry *entries,
                       size_t *used) {
    size_t total = 0;
    for (int64_t i = 0; i < n; i++) total += texts[i].bytes <= MAX_TOKEN ? texts[i].bytes : 0;
    if (total > UINT32_MAX) return false;
    t->at = km_calloc((size_t)n + 1, sizeof *t->at);
    t->length = km_calloc((size_t)n + 1, sizeof *t->length);
    t->bytes = km_alloc(total + 1);
    if (!t->at || !t->length || !t->bytes) return false;
    total = *used = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!texts[i].bytes || texts[i].bytes > MAX_TOKEN) continue;
        t->at[i] = (uint32_t)total;
        t->length[i] = (uint32_t)texts[i].bytes;
        memcpy(t->bytes + total, texts[i].data, texts[i].bytes);
        entries[(*used)++] = (token_entry){t->bytes + total, t->length[i], (int32_t)i};
        total += texts[i].bytes;
    }
    return true;
}

km_trie *km_trie_of(const km_span *texts, int64_t n, const int32_t *ends, size_t n_ends,
                    km_error *err) {
    if (n < 0 || n > INT32_MAX || (n && !texts)) {
        km_error_set(err, KM_ERR_RANGE, "a vocabulary of %lld tokens is not possible",
                     (long long)n);
        return NULL;
    }
    km_trie *t = km_calloc(1, sizeof *t);
    token_entry *entries = km_alloc(((size_t)n + 1) * sizeof *entries);
    uint32_t *path = km_alloc((MAX_TOKEN + 1) * sizeof *path);
    size_t used = 0;
    bool ok = t && entries && path;
    if (ok) {
        t->vocab = n;
        t->ids = km_alloc(((size_t)n + 1) * sizeof *t->ids);
        t->ends = km_alloc((n_ends + 1) * sizeof *t->ends);
        for (size_t i = 0; t->ends && i < n_ends; i++)
            if (ends[i] >= 0 && ends[i] < n) t->ends[t->n_ends++] = ends[i];
        t->chars = km_alloc((size_t)n + 1);
        t->all = km_calloc((size_t)n / 64 + 1, sizeof *t->all);
        ok = t->ids && t->ends && t->chars && t->all && copy_texts(t, texts, n, entries, &used);
    }
    if (ok) {
        qsort(entries, used, sizeof *entries, by_bytes);
        ok = build(t, entries, used, path);
    }
    km_free(entries);
    km_free(path);
    if (ok) return t;
    km_trie_free(t);
    km_error_set(err, KM_ERR_MEMORY, "cannot sort a vocabulary: out of memory");
    return NULL;
}

km_trie *km_trie_new(const km_token *token, km_error *err) {
    int64_t n = token ? km_token_vocab(token) : 0;
    km_span *texts = km_calloc((size_t)n + 1, sizeof *texts);
    int32_t *ends = km_alloc(((size_t)n + 1) * sizeof *ends);
    size_t n_ends = 0;
    km_trie *t = NULL;
    if (!texts || !ends) {
        km_error_set(err, KM_ERR_MEMORY, "cannot sort a vocabulary: out of memory");
    } else {
        for (int32_t id = 0; id < n; id++) {
            if (km_token_is_end(token, id))
                ends[n_ends++] = id;
            else if (!km_token_is_special(token, id))
                texts[id].data = km_token_text(token, id, &texts[id].bytes);
            if (!texts[id].data) texts[id].bytes = 0;
        }
        t = km_trie_of(texts, n, ends, n_ends, err);
    }
    km_free(texts);
    km_free(ends);
    return t;
}

void km_trie_free(km_trie *t) {
    if (!t) return;
    km_free(t->nodes);
    km_free(t->ids);
    km_free(t->chars);
    km_free(t->all);
    km_free(t->at);
    km_free(t->length);
    km_free(t->bytes);
    km_free(t->ends);
    km_free(t);
}

int64_t km_trie_vocab(const km_trie *t) { return t ? t->vocab : 0; }

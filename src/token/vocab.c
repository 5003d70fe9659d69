/* Token texts in one block, found through a hash table. */
#include "token/vocab.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/shown.h"
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static km_status grow(km_vocab *v, int32_t count, size_t bytes, km_error *err) {
    if (!km_array_reserve(&v->item, &v->room_items, count))
        return km_no_memory_for(err, "a vocabulary");
    if (bytes >= KM_VOCAB_HOLE / 2 - v->used)
        return km_error_set(err, KM_ERR_RANGE, "a vocabulary of more than 2 GiB");
    if (!km_array_reserve(&v->block, &v->room, v->used + bytes))
        return km_no_memory_for(err, "a vocabulary");
    return KM_OK;
}

km_status km_vocab_put(km_vocab *v, int64_t id, const char *text, size_t n, km_error *err) {
    char shown[KM_SHOWN];
    if (id < 0 || id >= KM_VOCAB_MAX)
        return km_error_set(err, KM_ERR_FORMAT, "token '%s' has id %lld; ids are 0 to %d",
                            km_shown_bytes(shown, text, n), (long long)id, KM_VOCAB_MAX - 1);
    if (km_vocab_has(v, id)) {
        char other[KM_SHOWN];
        return km_error_set(err, KM_ERR_FORMAT, "id %lld is given twice, to '%s' and to '%s'",
                            (long long)id,
                            km_shown_bytes(other, v->block + v->item[id].at, v->item[id].len),
                            km_shown_bytes(shown, text, n));
    }
    km_status s = grow(v, (int32_t)(id < v->count ? v->count : id + 1), n, err);
    if (s != KM_OK) return s;
    for (; v->count <= id; v->count++) v->item[v->count] = (km_vocab_item){KM_VOCAB_HOLE, 0};
    v->item[id] = (km_vocab_item){(uint32_t)v->used, (uint32_t)n};
    if (n) memcpy(v->block + v->used, text, n);
    v->used += n;
    return KM_OK;
}

static uint32_t hash(const char *text, size_t n) { return (uint32_t)XXH3_64bits(text, n); }

static bool equal(const km_vocab *v, int32_t id, const char *text, size_t n) {
    return v->item[id].len == n && memcmp(v->block + v->item[id].at, text, n) == 0;
}

km_status km_vocab_index(km_vocab *v, const bool *listed, km_error *err) {
    uint32_t size = 16;
    while (size < 2 * (uint32_t)v->count) size *= 2;
    km_free(v->slot);
    v->slot = km_alloc(size * sizeof *v->slot);
    if (!v->slot) return km_no_memory_for(err, "a vocabulary");
    memset(v->slot, 0xFF, size * sizeof *v->slot);
    v->mask = size - 1;
    for (int32_t id = 0; id < v->count; id++) {
        if (v->item[id].at == KM_VOCAB_HOLE || (listed && !listed[id])) continue;
        size_t n;
        const char *text = km_vocab_text(v, id, &n);
        uint32_t i = hash(text, n) & v->mask;
        while (v->slot[i] >= 0 && !equal(v, v->slot[i], text, n)) i = (i + 1) & v->mask;
        v->slot[i] = id;
    }
    return KM_OK;
}

int32_t km_vocab_find(const km_vocab *v, const char *text, size_t n) {
    if (!v->slot) return -1;
    uint32_t i = hash(text, n) & v->mask;
    while (v->slot[i] >= 0 && !equal(v, v->slot[i], text, n)) i = (i + 1) & v->mask;
    return v->slot[i];
}

void km_vocab_free(km_vocab *v) {
    km_free(v->block);
    km_free(v->item);
    km_free(v->slot);
    *v = (km_vocab){0};
}

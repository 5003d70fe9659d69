/* Handles: a hash table of addresses. Looking up never reads what an address points to. A thread remembers
 * the last one of each kind that it found, which holds until some handle is removed: so the usual call
 * takes no lock. */
#include "base/handle.h"
#include <pthread.h>
#include <stdatomic.h>

#define BUCKETS 1024
static km_handle *buckets[BUCKETS];
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ullong removals; /* so far */

typedef struct found_handle {
    const void *at;
    unsigned long long removals; /* when it was found */
} found_handle;
static _Thread_local found_handle found[KM_HANDLE_KINDS];

static km_handle **bucket_of(const void *h) {
    uint64_t x = (uint64_t)(uintptr_t)h >> 4;
    return &buckets[x * UINT64_C(0x9E3779B97F4A7C15) >> 54];
}

void km_handle_add(km_handle *h, km_handle_kind kind) {
    km_handle **b = bucket_of(h);
    pthread_mutex_lock(&handles_lock);
    *h = (km_handle){.next = *b, .kind = kind};
    *b = h;
    pthread_mutex_unlock(&handles_lock);
}

/* The place that points to it; it is among those there, or the last one. */
static km_handle **place_of(const void *h) {
    km_handle **at = bucket_of(h);
    while (*at && (const void *)*at != h) at = &(*at)->next;
    return at;
}

bool km_handle_remove(void *h, km_handle_kind kind) {
    if (!h) return false;
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool there = *at && (*at)->kind == kind;
    if (there) {
        *at = (*at)->next;
        atomic_fetch_add(&removals, 1);
    }
    pthread_mutex_unlock(&handles_lock);
    return there;
}

bool km_handle_is(const void *h, km_handle_kind kind) {
    found_handle *f = &found[kind];
    if (!h) return false;
    if (f->at == h && f->removals == atomic_load_explicit(&removals, memory_order_acquire))
        return true;
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool is = *at && (*at)->kind == kind;
    if (is) *f = (found_handle){h, atomic_load(&removals)};
    pthread_mutex_unlock(&handles_lock);
    return is;
}

bool km_handle_open(const char *call, const void *h, km_handle_kind kind) {
    static const char *const name[] = {
#define KM_HANDLE_NAME(name, text) text,
        KM_HANDLE_LIST(KM_HANDLE_NAME)
#undef KM_HANDLE_NAME
    };
    if (km_handle_is(h, kind)) return true;
    if (h)
        km_public_fail(KM_ERR_STATE, "%s: this is no open %s", call, name[kind]);
    else
        km_public_fail(KM_ERR_NULL, "%s: no %s given", call, name[kind]);
    return false;
}

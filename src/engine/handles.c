/* Handles: a hash table of addresses. Looking up never reads what an address points to. */
#include "engine/engine.h"

#define BUCKETS 1024
static km_handle *buckets[BUCKETS];
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;

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

bool km_handle_remove(km_handle *h, km_handle_kind kind) {
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool there = *at && (*at)->kind == kind;
    if (there) *at = h->next;
    pthread_mutex_unlock(&handles_lock);
    return there;
}

bool km_handle_is(const void *h, km_handle_kind kind) {
    if (!h) return false;
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool is = *at && (*at)->kind == kind;
    pthread_mutex_unlock(&handles_lock);
    return is;
}

/* Handles: a hash table of addresses. Looking up never reads what an address points to. A thread remembers
 * some that it found, which holds until some handle is removed: so the usual call takes no lock.
 *
 * Entering writes into the object, which another thread may be about to free: the bucket is pinned first
 * and looked up then, and who removes waits for pins that came before it. */
#include "base/handle.h"
#include <pthread.h>
#include <sched.h>

#define BUCKET_BITS 10
#define FOUND_BITS 3
enum { ALONE = -1, GONE = -2 }; /* of km_handle.inside */

static km_handle *buckets[1 << BUCKET_BITS];
static atomic_int pins[1 << BUCKET_BITS];
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_ullong removals; /* so far */

typedef struct found_handle {
    const void *at;
    km_handle_kind kind;
    unsigned long long removals; /* when it was found */
} found_handle;
static _Thread_local found_handle found[1 << FOUND_BITS][2]; /* the later one first */
static _Thread_local km_inside *innermost;

static const char *const name[] = {
#define KM_HANDLE_NAME(name, text) text,
    KM_HANDLE_LIST(KM_HANDLE_NAME)
#undef KM_HANDLE_NAME
};

static unsigned bucket_of(const void *h) {
    uint64_t x = (uint64_t)(uintptr_t)h >> 4;
    return (unsigned)(x * UINT64_C(0x9E3779B97F4A7C15) >> (64 - BUCKET_BITS));
}

void km_handle_add(km_handle *h, km_handle_kind kind) {
    km_handle **b = &buckets[bucket_of(h)];
    pthread_mutex_lock(&handles_lock);
    h->next = *b;
    h->kind = kind;
    atomic_init(&h->inside, 0);
    *b = h;
    pthread_mutex_unlock(&handles_lock);
}

/* The place that points to it; it is among those there, or the last one. The table is locked. */
static km_handle **place_of(const void *h) {
    km_handle **at = &buckets[bucket_of(h)];
    while (*at && (const void *)*at != h) at = &(*at)->next;
    return at;
}

/* Takes it out and unlocks the table; whoever found it before has looked by the end. */
static void take_out(km_handle **at) {
    atomic_int *pinned = &pins[bucket_of(*at)];
    *at = (*at)->next;
    atomic_fetch_add(&removals, 1);
    pthread_mutex_unlock(&handles_lock);
    while (atomic_load(pinned) > 0) sched_yield();
}

bool km_handle_remove(void *h, km_handle_kind kind) {
    if (!h) return false;
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool there = *at && (*at)->kind == kind;
    if (there)
        take_out(at);
    else
        pthread_mutex_unlock(&handles_lock);
    return there;
}

bool km_handle_is(const void *h, km_handle_kind kind) {
    if (!h) return false;
    found_handle *f = found[bucket_of(h) >> (BUCKET_BITS - FOUND_BITS)];
    unsigned long long now = atomic_load(&removals);
    for (int i = 0; i < 2; i++)
        if (f[i].at == h && f[i].kind == kind && f[i].removals == now) return true;
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool is = *at && (*at)->kind == kind;
    if (is) {
        f[1] = f[0];
        f[0] = (found_handle){h, kind, atomic_load(&removals)};
    }
    pthread_mutex_unlock(&handles_lock);
    return is;
}

static bool refuse(const char *call, const void *h, km_handle_kind kind) {
    if (h)
        km_public_fail(KM_ERR_STATE, "%s: this is no open %s", call, name[kind]);
    else
        km_public_fail(KM_ERR_NULL, "%s: no %s given", call, name[kind]);
    return false;
}

bool km_handle_open(const char *call, const void *h, km_handle_kind kind) {
    return km_handle_is(h, kind) || refuse(call, h, kind);
}

void km_handle_pin(const void *h) { atomic_fetch_add(&pins[bucket_of(h)], 1); }
void km_handle_unpin(const void *h) { atomic_fetch_sub(&pins[bucket_of(h)], 1); }

/* ---- Being held ---- */

bool km_hold(km_holding *held, const char *call, const void *h, km_handle_kind kind, size_t users,
             void (*drop)(void *object)) {
    km_handle_pin(h);
    bool open = km_handle_is(h, kind);
    if (open) {
        char *object = (char *)(uintptr_t)h; /* calls that only ask get a const one */
        atomic_fetch_add((atomic_int *)(void *)(object + users), 1);
        *held = (km_holding){object, drop};
    }
    km_handle_unpin(h);
    return open || refuse(call, h, kind);
}

void km_let_go(km_holding *held) {
    if (held->object) held->drop(held->object);
}

/* ---- Being inside ---- */

static km_inside *mine(const void *h) {
    km_inside *i = innermost;
    while (i && (const void *)i->at != h) i = i->outer;
    return i;
}

bool km_is_inside(const void *h) { return h && mine(h); }

static km_entry enter(km_inside *in, const void *h, km_handle_kind kind, bool shared) {
    if (!h) return KM_ENTRY_CLOSED;
    if (innermost && mine(h)) return km_handle_is(h, kind) ? KM_ENTERED : KM_ENTRY_CLOSED;
    km_handle *at = (km_handle *)(uintptr_t)h; /* calls that only ask get a const one */
    km_entry e = KM_ENTRY_CLOSED;
    km_handle_pin(h);
    if (km_handle_is(h, kind)) {
        int n = 0;
        if (shared) n = atomic_load_explicit(&at->inside, memory_order_relaxed);
        while (n >= 0 &&
               !atomic_compare_exchange_weak_explicit(&at->inside, &n, shared ? n + 1 : ALONE,
                                                      memory_order_acquire, memory_order_relaxed))
            if (!shared && n != 0) break;
        e = n == 0 || (shared && n > 0) ? KM_ENTERED : n == GONE ? KM_ENTRY_CLOSED : KM_ENTRY_BUSY;
    }
    km_handle_unpin(h);
    if (e == KM_ENTERED) {
        *in = (km_inside){.at = at, .shared = shared, .outer = innermost};
        innermost = in;
    }
    return e;
}

static bool told(km_entry e, const char *call, const void *h, km_handle_kind kind) {
    if (e == KM_ENTERED) return true;
    if (e == KM_ENTRY_CLOSED) return refuse(call, h, kind);
    km_public_fail(KM_ERR_STATE, "%s: another thread is using this %s", call, name[kind]);
    return false;
}

km_entry km_try_enter(km_inside *in, const void *h, km_handle_kind kind) {
    return enter(in, h, kind, false);
}

bool km_enter(km_inside *in, const char *call, const void *h, km_handle_kind kind) {
    return told(enter(in, h, kind, false), call, h, kind);
}

bool km_enter_shared(km_inside *in, const char *call, const void *h, km_handle_kind kind) {
    return told(enter(in, h, kind, true), call, h, kind);
}

void km_leave(km_inside *in) {
    km_handle *h = in->at;
    if (!h) return;
    km_inside **at = &innermost; /* nearly always the first */
    while (*at != in) at = &(*at)->outer;
    *at = in->outer;
    in->at = NULL;
    if (in->drop)
        in->drop(h);
    else if (in->shared)
        atomic_fetch_sub_explicit(&h->inside, 1, memory_order_release);
    else
        atomic_store_explicit(&h->inside, 0, memory_order_release);
}

void km_handle_free(const char *call, void *h, km_handle_kind kind, void (*drop)(void *object)) {
    if (!h) return;
    km_inside *i = mine(h);
    pthread_mutex_lock(&handles_lock);
    km_handle **at = place_of(h);
    bool there = *at && (*at)->kind == kind;
    int n = !i ? 0 : i->shared ? 1 : ALONE;
    if (there && atomic_compare_exchange_strong(&(*at)->inside, &n, GONE)) {
        take_out(at);
        if (i)
            i->drop = drop;
        else
            drop(h);
        return;
    }
    pthread_mutex_unlock(&handles_lock);
    if (there) told(KM_ENTRY_BUSY, call, h, kind);
}

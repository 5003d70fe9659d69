/* Weights on their way from the host. A slot is a piece of pinned memory, a piece of the GPU's and
 * two events: `arrived` follows the copy, and `used` is recorded just before the slot is filled
 * again, when all work that reads it has been put on the lane's stream. */
#include "backend/cuda/feed.h"
#include "backend/cuda/lane.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/guard.h"

typedef struct slot {
    const void *data; /* of the host, that is here or on its way; NULL: nothing */
    size_t bytes, cap;
    char *pinned;
    km_cu_ptr device;
    km_cu_event arrived, used;
    bool pending;   /* a copy out of the pinned memory may not have ended */
    uint64_t stamp; /* when it was last asked for */
} slot;

typedef struct weight {
    const void *data;
    size_t bytes;
} weight;

typedef struct km_cuda_feed {
    km_cu_stream copies;
    slot slot[KM_FEED_SLOTS];
    weight *order;    /* as they were first used */
    int n, cap, next; /* next: in the order, the one that is expected */
    uint64_t clock, ahead, late;
} feed;

static feed *feed_of(const km_lane *lane) { return km_cuda_queue_of(lane)->feed; }

/* ---- Opening and closing ---- */

void km_cuda_feed_close(km_lane *lane) {
    feed *f = feed_of(lane);
    const km_cu_api *api = km_cuda_api();
    if (!f) return;
    if (f->copies) api->stream_sync(f->copies);
    for (int i = 0; i < KM_FEED_SLOTS; i++) {
        slot *s = &f->slot[i];
        if (s->arrived) api->event_destroy(s->arrived);
        if (s->used) api->event_destroy(s->used);
        if (s->pinned) api->host_free(s->pinned);
        if (s->device) api->mem_free(s->device);
    }
    if (f->copies) api->stream_destroy(f->copies);
    km_free(f->order);
    km_free(f);
    km_cuda_queue_of(lane)->feed = NULL;
}

km_status km_cuda_feed_lend(km_lane *lane) {
    feed *f = feed_of(lane);
    if (f) {
        f->n = f->next = 0;
        for (int i = 0; i < KM_FEED_SLOTS; i++) f->slot[i].data = NULL;
        return KM_OK;
    }
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    f = km_calloc(1, sizeof *f);
    if (!f) return km_fail(lane->ctx, KM_ERR_MEMORY, "%s: out of memory", lane->device->name);
    km_cuda_queue_of(lane)->feed = f;
    km_cu_result r = KM_CU(stream_create, &f->copies, KM_CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < KM_FEED_SLOTS && r == KM_CU_OK; i++) {
        r = KM_CU(event_create, &f->slot[i].arrived, KM_CU_EVENT_NO_TIMING);
        if (r == KM_CU_OK) r = KM_CU(event_create, &f->slot[i].used, KM_CU_EVENT_NO_TIMING);
    }
    if (r == KM_CU_OK) return KM_OK;
    km_cuda_feed_close(lane);
    return km_cuda_fail(lane, r, "opening a stream of copies");
}

void km_cuda_feed_counts(const km_lane *lane, uint64_t *ahead, uint64_t *late) {
    const feed *f = feed_of(lane);
    *ahead = f ? f->ahead : 0;
    *late = f ? f->late : 0;
}

/* ---- Slots ---- */

static slot *slot_with(feed *f, const void *data, size_t bytes) {
    for (int i = 0; i < KM_FEED_SLOTS; i++)
        if (f->slot[i].data == data && f->slot[i].bytes == bytes) return &f->slot[i];
    return NULL;
}

static slot *oldest(feed *f) {
    slot *s = &f->slot[0];
    for (int i = 1; i < KM_FEED_SLOTS; i++)
        if (f->slot[i].stamp < s->stamp) s = &f->slot[i];
    return s;
}

/* Room for so many bytes. Nobody may be reading what was there. */
static km_cu_result make_room(km_lane *lane, feed *f, slot *s, size_t bytes) {
    if (bytes <= s->cap) return KM_CU_OK;
    km_cu_result r = KM_CU(stream_sync, f->copies);
    if (r == KM_CU_OK) r = KM_CU(stream_sync, km_cuda_stream(lane));
    if (r == KM_CU_OK && s->pinned) r = KM_CU(host_free, s->pinned);
    if (r == KM_CU_OK && s->device) r = KM_CU(mem_free, s->device);
    if (r != KM_CU_OK) return r;
    void *pinned = NULL;
    s->pinned = NULL, s->device = 0, s->cap = 0;
    r = KM_CU(host_alloc, &pinned, bytes, 0);
    s->pinned = pinned;
    if (r == KM_CU_OK) r = KM_CU(mem_alloc, &s->device, bytes);
    if (r == KM_CU_OK) s->cap = bytes;
    return r;
}

/* Sends for a weight. What the slot holds is used by nothing but work that is on the stream. */
static km_status load(km_lane *lane, feed *f, slot *s, weight w) {
    km_cu_result r = s->pending ? KM_CU(event_sync, s->arrived) : KM_CU_OK;
    s->data = NULL;
    s->pending = false;
    if (r == KM_CU_OK) r = make_room(lane, f, s, w.bytes);
    if (r == KM_CU_OK) {
        km_cuda_copy_host(lane, s->pinned, w.data, w.bytes);
        km_error gone = {0};
        if (km_guard_check_at(w.data, &gone) != KM_OK)
            return km_fail(lane->ctx, gone.code, "%s", gone.text);
        r = KM_CU(event_record, s->used, km_cuda_stream(lane));
    }
    if (r == KM_CU_OK) r = KM_CU(stream_wait, f->copies, s->used, 0);
    if (r == KM_CU_OK) r = KM_CU(copy_in, s->device, s->pinned, w.bytes, f->copies);
    if (r == KM_CU_OK) r = KM_CU(event_record, s->arrived, f->copies);
    if (r != KM_CU_OK) return km_cuda_fail(lane, r, "bringing weights over");
    s->data = w.data;
    s->bytes = w.bytes;
    s->pending = true;
    s->stamp = ++f->clock;
    return KM_OK;
}

/* ---- Order ---- */

/* Takes note of what was asked for, and says in *w what will be next; false: nobody knows yet. */
static bool follow(feed *f, weight now, weight *w) {
    int i = f->next;
    if (i >= f->n || f->order[i].data != now.data)
        for (i = 0; i < f->n && f->order[i].data != now.data; i++) {}
    if (i == f->n) { /* seen for the first time */
        if (!km_array_reserve(&f->order, &f->cap, f->n + 1))
            return false; /* not sent ahead, then */
        f->order[f->n++] = now;
        f->next = f->n;
        return false;
    }
    f->next = (i + 1) % f->n;
    *w = f->order[f->next];
    return true;
}

const void *km_cuda_feed_get(km_lane *lane, const void *data, size_t bytes) {
    if (km_cuda_queue_of(lane)->capturing) {
        km_fail(lane->ctx, KM_ERR_STATE, "%s: weights of the host cannot be part of a graph",
                lane->device->name);
        return NULL;
    }
    if (!feed_of(lane) && km_cuda_feed_lend(lane) != KM_OK) return NULL;
    if (km_cuda_ready(lane) != KM_OK) return NULL;
    feed *f = feed_of(lane);
    weight now = {data, bytes}, next;
    slot *s = slot_with(f, data, bytes);
    if (s) {
        f->ahead++;
        s->stamp = ++f->clock;
    } else {
        f->late++;
        s = oldest(f);
        if (load(lane, f, s, now) != KM_OK) return NULL;
    }
    km_cu_result r = KM_CU(stream_wait, km_cuda_stream(lane), s->arrived, 0);
    if (r != KM_CU_OK) {
        km_cuda_fail(lane, r, "waiting for weights");
        return NULL;
    }
    if (follow(f, now, &next) && !slot_with(f, next.data, next.bytes) &&
        load(lane, f, oldest(f), next) != KM_OK)
        return NULL;
    return (const void *)(uintptr_t)s->device;
}

/* The second level of the prefix cache: what is dropped from the KV cache goes to files, in main memory
 * (/dev/shm) or in a folder on disk, and comes back when a prompt begins with it. Bringing it back takes
 * milliseconds where reading it again takes seconds. The least recently used go first; all of it goes
 * with the server. */
#include "serve/scheduler/internal.h"
#include "base/alloc.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORTH_A_FILE = 64 }; /* tokens */

struct km_shelved {
    int32_t *ids;
    size_t n, bytes;
    uint64_t domain, variant, used, number;
    km_shelved *next;
};

static void path_of(const km_scheduler *s, const km_shelved *e, char *out, size_t size) {
    snprintf(out, size, "%s/%llu", s->shelf.folder, (unsigned long long)e->number);
}

km_status km_shelf_open(km_scheduler *s, km_error *err) {
    const char *in = s->o.shelf_folder ? s->o.shelf_folder : "/dev/shm";
    if (s->o.shelf_bytes == 0) return KM_OK;
    size_t n = strlen(in) + sizeof "/kermes-XXXXXX";
    char *folder = km_alloc(n);
    if (!folder) return km_no_memory(err);
    snprintf(folder, n, "%s/kermes-XXXXXX", in);
    if (mkdtemp(folder)) {
        s->shelf.folder = folder;
        return KM_OK;
    }
    km_free(folder);
    return km_error_set(err, KM_ERR_FILE, "cannot keep a cache in '%.200s': %s", in,
                        strerror(errno));
}

/* Takes it off the shelf; *at is its place in the list. */
static void discard(km_scheduler *s, km_shelved **at) {
    km_shelved *e = *at;
    char path[4200];
    path_of(s, e, path, sizeof path);
    unlink(path);
    *at = e->next;
    s->shelf.bytes -= e->bytes;
    s->shelf.n--;
    km_free(e->ids);
    km_free(e);
}

void km_shelf_clear(km_scheduler *s) {
    while (s->shelf.first) discard(s, &s->shelf.first);
}

void km_shelf_close(km_scheduler *s) {
    if (!s->shelf.folder) return;
    km_shelf_clear(s);
    rmdir(s->shelf.folder);
    km_free(s->shelf.folder);
    s->shelf.folder = NULL;
}

static bool discard_oldest(km_scheduler *s) {
    km_shelved **oldest = NULL;
    for (km_shelved **at = &s->shelf.first; *at; at = &(*at)->next)
        if (!oldest || (*at)->used < (*oldest)->used) oldest = at;
    if (oldest) discard(s, oldest);
    return oldest != NULL;
}

void km_shelf_put(km_scheduler *s, int i) {
    const km_slot *slot = &s->slots[i];
    struct stat st;
    char path[4200];
    if (!s->shelf.folder || slot->n < WORTH_A_FILE) return;
    km_shelved *e = km_calloc(1, sizeof *e);
    int32_t *ids = km_alloc(slot->n * sizeof *ids);
    if (e) {
        *e = (km_shelved){.n = slot->n,
                          .domain = slot->domain,
                          .variant = slot->variant,
                          .used = slot->used,
                          .number = ++s->shelf.numbers};
        path_of(s, e, path, sizeof path);
    }
    /* One that cannot be kept, for want of memory or disk, is read again when it is needed. */
    if (!e || !ids || km_batch_save(s->batch, i, path) != KM_OK || stat(path, &st) != 0) {
        if (e) unlink(path);
        km_free(ids);
        km_free(e);
        return;
    }
    memcpy(ids, slot->ids, slot->n * sizeof *ids);
    e->ids = ids;
    e->bytes = (size_t)st.st_size;
    e->next = s->shelf.first;
    s->shelf.first = e;
    s->shelf.bytes += e->bytes;
    s->shelf.n++;
    while (s->shelf.bytes > s->o.shelf_bytes && discard_oldest(s)) {}
}

/* A sequence with what the file holds, kept as if it had ended just now; -1: it cannot be had. how: of a task
 * with the same adapters. */
static int bring_back(km_scheduler *s, km_shelved **at, const km_generation *how) {
    km_shelved *e = *at;
    char path[4200];
    int i = km_batch_join(s->batch);
    if (i < 0 && km_prefix_evict(s, -1)) i = km_batch_join(s->batch);
    km_slot *slot = i >= 0 ? km_slot_at(s, i) : NULL;
    path_of(s, e, path, sizeof path);
    if (!slot || km_batch_set_adapters(s->batch, i, how->adapters, how->n_adapters) != KM_OK ||
        km_batch_restore(s->batch, i, path) != KM_OK) {
        if (i >= 0) km_batch_leave(s->batch, i);
        return -1;
    }
    *slot = (km_slot){.state = KM_SLOT_KEPT,
                      .ids = e->ids,
                      .n = e->n,
                      .domain = e->domain,
                      .variant = e->variant,
                      .used = ++s->clock};
    e->ids = NULL;
    return i;
}

int km_shelf_take(km_scheduler *s, const km_task *t, size_t *length) {
    km_shelved *best = NULL;
    size_t most = *length + WORTH_A_FILE - 1;
    for (km_shelved *e = s->shelf.first; e; e = e->next) {
        if (e->domain != t->domain || e->variant != t->variant) continue;
        size_t n = km_common_tokens(t->ids, t->n_ids, e->ids, e->n);
        if (n > most) best = e, most = n;
    }
    if (!best) return -1;
    km_batch_state b = km_batch_describe(s->batch);
    int64_t pages = b.page_tokens > 0 ? (int64_t)best->n / b.page_tokens + 2 : 0;
    while (b.pages > 0 && b.pages_free < pages + km_pages_promised(s, &b)) {
        uint64_t number = best->number;
        if (!km_prefix_evict(s, -1)) return -1; /* no room: it is read again, in its turn */
        b = km_batch_describe(s->batch);
        for (best = s->shelf.first; best && best->number != number;) best = best->next;
        if (!best) return -1; /* it had to make room on the shelf */
    }
    /* Evicting for a sequence may change the shelf, so the place is looked up last. */
    uint64_t number = best->number;
    km_shelved **at = &s->shelf.first;
    while (*at && (*at)->number != number) at = &(*at)->next;
    int i = *at ? bring_back(s, at, t->how) : -1;
    for (at = &s->shelf.first; *at && (*at)->number != number;) at = &(*at)->next;
    if (*at) discard(s, at); /* also where it could not be read */
    if (i >= 0) *length = most;
    pthread_mutex_lock(&s->lock);
    s->counts.brought_back += i >= 0;
    pthread_mutex_unlock(&s->lock);
    return i;
}

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
    km_radix_node *leaf;
    size_t bytes;
    uint64_t number; /* its file's name */
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

/* Takes it off the shelf. */
static void discard(km_scheduler *s, km_shelved *e) {
    char path[4200];
    path_of(s, e, path, sizeof path);
    unlink(path);
    if (e->leaf) km_radix_remove(&s->shelf.tree, e->leaf);
    s->shelf.bytes -= e->bytes;
    s->shelf.n--;
    km_free(e);
}

static bool discard_oldest(km_scheduler *s) {
    km_radix_node *leaf = km_radix_oldest(&s->shelf.tree, NULL, NULL);
    if (leaf) discard(s, leaf->holder);
    return leaf != NULL;
}

void km_shelf_clear(km_scheduler *s) {
    while (discard_oldest(s)) {}
}

void km_shelf_close(km_scheduler *s) {
    if (!s->shelf.folder) return;
    km_shelf_clear(s);
    km_radix_free(&s->shelf.tree);
    rmdir(s->shelf.folder);
    km_free(s->shelf.folder);
    s->shelf.folder = NULL;
}

/* Puts it into the tree; false: out of memory, or it is there already as the beginning of another. */
static bool place(km_scheduler *s, km_shelved *e, int i) {
    const km_slot *slot = &s->slots[i];
    int32_t *ids = km_alloc(slot->n * sizeof *ids);
    km_radix_key k = {slot->domain, slot->variant, ids, slot->n};
    void *displaced = NULL;
    bool covered;
    if (ids && km_batch_tokens(s->batch, i, ids, slot->n) == (int64_t)slot->n)
        e->leaf = km_radix_add(&s->shelf.tree, &k, e, &covered, &displaced);
    km_free(ids);
    if (displaced) {
        ((km_shelved *)displaced)->leaf = NULL;
        discard(s, displaced);
    }
    return e->leaf != NULL;
}

void km_shelf_put(km_scheduler *s, int i) {
    struct stat st;
    char path[4200];
    if (!s->shelf.folder || s->slots[i].n < WORTH_A_FILE) return;
    km_shelved *e = km_calloc(1, sizeof *e);
    if (!e || !place(s, e, i)) {
        km_free(e);
        return;
    }
    e->number = ++s->shelf.numbers;
    s->shelf.n++;
    path_of(s, e, path, sizeof path);
    /* One that cannot be kept, for want of memory or disk, is read again when it is needed. */
    if (km_batch_save(s->batch, i, path) != KM_OK || stat(path, &st) != 0) {
        discard(s, e);
        return;
    }
    e->bytes = (size_t)st.st_size;
    s->shelf.bytes += e->bytes;
    while (s->shelf.bytes > s->o.shelf_bytes && discard_oldest(s)) {}
}

/* What the file holds becomes an empty sequence's, which is kept as if it had ended just now. */
static bool bring_back(km_scheduler *s, const km_shelved *e, const km_task *t, int i) {
    char path[4200];
    path_of(s, e, path, sizeof path);
    if (km_batch_set_adapters(s->batch, i, t->how->adapters, t->how->n_adapters) != KM_OK ||
        km_batch_restore(s->batch, i, path) != KM_OK) {
        km_prefix_drop(s, i);
        return false;
    }
    s->slots[i] = (km_slot){.state = KM_SLOT_RUNNING, .domain = t->domain, .variant = t->variant};
    km_prefix_keep(s, i);
    return true;
}

/* The entry that begins as the task's prompt for much more than `length` tokens; NULL: none. */
static km_shelved *look_up(km_scheduler *s, const km_task *t, size_t length) {
    km_radix_key k = {t->domain, t->variant, t->ids, t->n_ids};
    size_t n;
    km_radix_node *node = km_radix_find(&s->shelf.tree, &k, &n);
    return node && n >= length + WORTH_A_FILE ? km_radix_holder(node) : NULL;
}

/* A sequence for the entry, and pages; -1: there is no room, so that it is read again, in its turn. */
static int make_place(km_scheduler *s, const km_shelved *e) {
    km_batch_state b = km_batch_describe(s->batch);
    int64_t pages = b.page_tokens > 0 ? (int64_t)e->leaf->end / b.page_tokens + 2 : 0;
    /* From here on e may be gone: what leaves the cache takes places on the shelf. */
    while (b.pages > 0 && b.pages_free < pages + km_pages_promised(s, &b)) {
        if (!km_prefix_shrink(s, NULL)) return -1;
        b = km_batch_describe(s->batch);
    }
    int i = km_batch_join(s->batch);
    while (i < 0 && km_prefix_evict(s, NULL)) i = km_batch_join(s->batch);
    return i;
}

bool km_shelf_take(km_scheduler *s, const km_task *t, size_t length) {
    km_shelved *e = look_up(s, t, length);
    if (!e) return false;
    uint64_t number = e->number;
    km_radix_use(&s->shelf.tree, e->leaf, e->leaf->end); /* the last to make room there */
    int i = make_place(s, e);
    if (i < 0) return true;
    e = look_up(s, t, length);
    bool there = e && e->number == number, back = there && bring_back(s, e, t, i);
    if (!there) km_prefix_drop(s, i);
    e = look_up(s, t, length);
    if (e && e->number == number) discard(s, e); /* also where it could not be read */
    pthread_mutex_lock(&s->lock);
    s->counts.brought_back += back;
    pthread_mutex_unlock(&s->lock);
    return true;
}

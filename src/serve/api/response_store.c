/* Answers of /v1/responses by their ids: a list from the most to the least recently used one. */
#include "serve/api/response_store.h"
#include "base/alloc.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct km_stored_response {
    char id[64];
    uint64_t key;
    km_kept_response r;
    size_t bytes;
    struct km_stored_response *prev, *next;
} km_stored_response;

struct km_response_store {
    pthread_mutex_t lock;
    size_t most, limit, n, bytes;
    km_stored_response *first, *last;
};

km_response_store *km_response_store_new(size_t most, size_t bytes) {
    km_response_store *s = km_calloc(1, sizeof *s);
    if (!s) return NULL;
    s->most = most;
    s->limit = bytes;
    pthread_mutex_init(&s->lock, NULL);
    return s;
}

void km_kept_response_free(km_kept_response *r) {
    km_free(r->response);
    km_free(r->input);
    km_free(r->talk);
    *r = (km_kept_response){0};
}

static char *copy(const char *text) {
    size_t n = strlen(text) + 1;
    char *c = km_alloc(n);
    return c ? memcpy(c, text, n) : NULL;
}

static bool copy_response(km_kept_response *to, const km_kept_response *from) {
    *to = (km_kept_response){copy(from->response), copy(from->input), copy(from->talk)};
    if (to->response && to->input && to->talk) return true;
    km_kept_response_free(to);
    return false;
}

static void unlink_one(km_response_store *s, km_stored_response *e) {
    *(e->prev ? &e->prev->next : &s->first) = e->next;
    *(e->next ? &e->next->prev : &s->last) = e->prev;
    e->prev = e->next = NULL;
}

static void put_first(km_response_store *s, km_stored_response *e) {
    e->next = s->first;
    if (s->first)
        s->first->prev = e;
    else
        s->last = e;
    s->first = e;
}

static void drop(km_response_store *s, km_stored_response *e) {
    unlink_one(s, e);
    s->n--;
    s->bytes -= e->bytes;
    km_kept_response_free(&e->r);
    km_free(e);
}

static km_stored_response *find(km_response_store *s, uint64_t key, const char *id) {
    for (km_stored_response *e = s->first; e; e = e->next)
        if (e->key == key && strcmp(e->id, id) == 0) return e;
    return NULL;
}

void km_response_store_free(km_response_store *s) {
    if (!s) return;
    while (s->first) drop(s, s->first);
    pthread_mutex_destroy(&s->lock);
    km_free(s);
}

void km_response_store_put(km_response_store *s, uint64_t key, const char *id,
                           const km_kept_response *r) {
    size_t bytes = strlen(r->response) + strlen(r->input) + strlen(r->talk);
    km_stored_response *e =
        bytes <= s->limit && s->most && strlen(id) < sizeof e->id ? km_calloc(1, sizeof *e) : NULL;
    if (!e) return;
    if (!copy_response(&e->r, r)) {
        km_free(e);
        return;
    }
    snprintf(e->id, sizeof e->id, "%s", id);
    e->key = key;
    e->bytes = bytes;
    pthread_mutex_lock(&s->lock);
    while (s->n && (s->n >= s->most || s->bytes + bytes > s->limit)) drop(s, s->last);
    put_first(s, e);
    s->n++;
    s->bytes += bytes;
    pthread_mutex_unlock(&s->lock);
}

bool km_response_store_get(km_response_store *s, uint64_t key, const char *id,
                           km_kept_response *out) {
    pthread_mutex_lock(&s->lock);
    km_stored_response *e = find(s, key, id);
    if (e) {
        unlink_one(s, e);
        put_first(s, e);
    }
    bool ok = e && copy_response(out, &e->r);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

bool km_response_store_delete(km_response_store *s, uint64_t key, const char *id) {
    pthread_mutex_lock(&s->lock);
    km_stored_response *e = find(s, key, id);
    if (e) drop(s, e);
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

/* Models that come up when they are asked for and go when they are idle or another one needs their memory.
 * Loading and ending take a thread each, so that nobody else waits for them. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/log.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 2 }; /* seconds that a model waits for memory before others get no new calls */

static bool post(void *user, void (*fn)(void *arg), void *arg) {
    return km_http_post(((km_serve *)user)->http, fn, arg);
}

static bool now(void *user, bool (*fn)(void *arg), void *arg) {
    return km_http_try(((km_serve *)user)->http, fn, arg);
}

/* ---- Opening and closing, in any thread ---- */

static bool go_on_loading(void *user, uint64_t done, uint64_t total) {
    (void)done;
    (void)total;
    km_serve *s = user;
    pthread_mutex_lock(&s->lock);
    bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return !stop;
}

static void close_parts(km_served *m) {
    km_scheduler_stop(m->scheduler);
    km_scheduler_free(m->scheduler);
    m->scheduler = NULL;
    km_free(m->special);
    m->special = NULL;
    m->n_special = 0;
    memset(m->special_first, 0, sizeof m->special_first);
    km_model_close(m->model);
    m->model = NULL;
}

km_model *km_served_load(km_serve *s, const char *path) {
    km_model_options o = s->o.model;
    o.progress = go_on_loading;
    o.user = s;
    return km_model_open(*path ? path : NULL, &o);
}

km_status km_served_open(km_served *m, km_error *err) {
    km_serve *s = m->serve;
    bool ok = m->model || (m->model = km_served_load(s, m->path));
    for (size_t i = 0; ok && i < m->n_adapters; i++)
        ok = km_model_add_adapter(m->model, &m->adapters[i]) == KM_OK;
    if (!ok) {
        km_error_set(err, km_last_status(), "%s", km_last_error());
        close_parts(m);
        return err->code;
    }
    m->info.vocab = km_model_describe(m->model).vocab;
    km_scheduler_options k = {.parallel = s->o.parallel,
                              .kept = s->o.kept,
                              .queue = s->o.queue,
                              .context = s->o.context,
                              .memory = s->o.cache_memory,
                              .chunk = s->o.chunk,
                              .exact = s->o.reproducible,
                              .shelf_bytes = s->o.shelf_bytes,
                              .shelf_folder = s->o.shelf_folder,
                              .reserve = s->o.reserve,
                              .post = post,
                              .on_events = km_call_on_events,
                              .now = now,
                              .can_now = km_call_can_now,
                              .user = s};
    if (km_guard_open(m, err) == KM_OK) m->scheduler = km_scheduler_new(m->model, &k, err);
    if (m->scheduler) return KM_OK;
    close_parts(m);
    return err->code;
}

/* ---- Threads ---- */

static void end_thread(km_served *m) {
    if (m->threaded) pthread_join(m->thread, NULL);
    m->threaded = false;
}

static bool is_stopping(km_serve *s) { return !go_on_loading(s, 0, 0); }

static void take_turns(km_serve *s);

void km_served_up(km_served *m) {
    km_model_info i = km_model_describe(m->model);
    m->state = KM_SERVED_UP;
    m->used = km_now();
    m->info.context = i.context;
    m->info.has_template = i.has_template;
    m->info.can_embed = i.can_embed;
    m->info.can_rank = i.can_rank;
    snprintf(m->devices, sizeof m->devices, "%s", i.devices ? i.devices : "");
}

/* Every call that waits for the model fails with it, and nobody else. */
static void fail_waiting(km_served *m, int status, const char *why) {
    for (km_api_call *c = m->serve->calls, *next; c; c = next) {
        next = c->next;
        if (!c->waiting || c->served != m) continue;
        c->waiting = false;
        km_call_refuse(c, status, "model", "the model '%.100s' cannot be loaded: %s", m->name, why);
        km_call_fail(c);
    }
    m->wanted = 0;
}

static void loaded(void *arg) {
    km_served *m = arg;
    km_serve *s = m->serve;
    if (is_stopping(s)) return;
    end_thread(m);
    if (m->model) {
        km_served_up(m);
        km_note(KM_LOG_INFO, "%s is loaded", m->name);
    } else {
        m->state = KM_SERVED_DOWN;
        km_note(KM_LOG_WARN, "%s cannot be loaded: %s", m->name, m->err.text);
        fail_waiting(m, m->err.code == KM_ERR_MEMORY ? 503 : 500, m->err.text);
    }
    take_turns(s);
}

static void *load(void *arg) {
    km_served *m = arg;
    pthread_setname_np(pthread_self(), "km-load");
    km_served_open(m, &m->err);
    while (!post(m->serve, loaded, m)) usleep(2000);
    return NULL;
}

static void closed(void *arg) {
    km_served *m = arg;
    if (is_stopping(m->serve)) return;
    end_thread(m);
    m->state = KM_SERVED_DOWN;
    km_note(KM_LOG_INFO, "%s is unloaded", m->name);
    take_turns(m->serve);
}

static void *end(void *arg) {
    km_served *m = arg;
    pthread_setname_np(pthread_self(), "km-unload");
    close_parts(m);
    while (!post(m->serve, closed, m)) usleep(2000);
    return NULL;
}

static void add_counts(km_scheduler_counts *to, const km_scheduler_counts *c) {
    to->steps += c->steps;
    to->prompt_tokens += c->prompt_tokens;
    to->reused_tokens += c->reused_tokens;
    to->tokens += c->tokens;
    to->finished += c->finished;
    to->cancelled += c->cancelled;
    to->failed += c->failed;
    to->set_aside += c->set_aside;
    to->evicted += c->evicted;
    to->evicted_tokens += c->evicted_tokens;
    to->nodes += c->nodes;
    to->brought_back += c->brought_back;
    to->busy += c->busy;
}

static void unload(km_served *m) {
    km_scheduler_counts last = km_scheduler_count(m->scheduler);
    add_counts(&m->past, &last);
    m->state = KM_SERVED_CLOSING;
    m->threaded = pthread_create(&m->thread, NULL, end, m) == 0;
    if (m->threaded) return;
    close_parts(m);
    m->state = KM_SERVED_DOWN;
}

/* ---- Memory ---- */

static int64_t memory_used(const km_serve *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n_served; i++)
        if (s->served[i]->state != KM_SERVED_DOWN) n += s->served[i]->need;
    return n;
}

/* Idle models go, the least recently used first, until there is room; false: not yet. */
static bool make_room(km_serve *s, const km_served *m) {
    int64_t most = (int64_t)s->o.memory, used = memory_used(s), freed = 0;
    if (most == 0 || used + m->need <= most) return true;
    for (int i = 0; i < s->n_served; i++)
        if (s->served[i]->state == KM_SERVED_CLOSING) freed += s->served[i]->need;
    while (used - freed + m->need > most) {
        km_served *oldest = NULL;
        for (int i = 0; i < s->n_served; i++) {
            km_served *o = s->served[i];
            if (o->state == KM_SERVED_UP && o->users == 0 && (!oldest || o->used < oldest->used))
                oldest = o;
        }
        if (!oldest) return false;
        freed += oldest->need;
        unload(oldest);
    }
    return memory_used(s) + m->need <= most; /* those that close are not gone yet */
}

static void want(km_served *m) {
    km_serve *s = m->serve;
    double now = km_now();
    if (m->state != KM_SERVED_DOWN) return;
    if (m->wanted == 0) m->wanted = now;
    if (s->o.memory && m->need > (int64_t)s->o.memory) {
        char why[160];
        snprintf(why, sizeof why, "it needs %lld MB with its cache, and --memory is %lld MB",
                 (long long)(m->need >> 20), (long long)(s->o.memory >> 20));
        fail_waiting(m, 503, why);
        return;
    }
    if (!make_room(s, m)) {
        if (!s->starved && now - m->wanted > PATIENCE) s->starved = m;
        return;
    }
    if (s->starved == m) s->starved = NULL;
    m->err = (km_error){0};
    m->state = KM_SERVED_LOADING;
    s->loads++;
    m->threaded = pthread_create(&m->thread, NULL, load, m) == 0;
    if (m->threaded) return;
    m->state = KM_SERVED_DOWN;
    fail_waiting(m, 503, "no thread can be started");
}

/* ---- Calls ---- */

static void go_on(km_api_call *c) {
    c->waiting = false;
    c->using = true;
    c->served->users++;
    c->served->wanted = 0;
    km_call_enqueue(c);
}

/* While one model waits for memory in vain, the others get no new calls, so that one of them falls idle. */
static bool is_held(const km_served *m) { return m->serve->starved && m->serve->starved != m; }

static void take_turns(km_serve *s) {
    for (km_api_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        if (c->waiting && c->served->state == KM_SERVED_UP && !is_held(c->served)) go_on(c);
    }
    /* Who has waited longest comes first. */
    for (int round = 0; round < s->n_served; round++) {
        km_served *first = NULL;
        for (int i = 0; i < s->n_served; i++) {
            km_served *m = s->served[i];
            bool waits = false;
            for (km_api_call *c = s->calls; c && !waits; c = c->next)
                waits = c->waiting && c->served == m;
            if (!waits && m->wanted > 0) {
                m->wanted = 0;
                if (s->starved == m) s->starved = NULL;
            }
            if (waits && m->state == KM_SERVED_DOWN && (!first || m->wanted < first->wanted))
                first = m;
        }
        if (!first) return;
        want(first);
        if (first->state == KM_SERVED_DOWN) return; /* it goes on waiting, and all behind it */
    }
}

void km_served_route(km_api_call *c) {
    km_serve *s = c->serve;
    json_t *name = json_object_get(c->request, "model");
    if (c->request && c->dialect->needs_model && !c->dialect->needs_model(c)) {
        c->served = s->served[0];
        c->detached = true;
        km_call_enqueue(c);
        return;
    }
    if (!name) name = json_object_get(c->request, "name"); /* Ollama's older clients */
    if (!c->served) c->served = km_served_find(s, json_string_value(name));
    if (!c->served) {
        km_call_refuse(c, 404, "model", "there is no model '%.100s' here; /v1/models lists them",
                       json_string_value(name));
        km_call_fail(c);
        return;
    }
    if (!km_key_may_use_some(c->key.number ? &c->key : NULL, c->served)) {
        km_call_refuse(c, 403, "model", "this key may not use the model '%.100s'", c->served->name);
        km_call_fail(c);
        return;
    }
    if (c->served->state == KM_SERVED_UP && !is_held(c->served)) {
        go_on(c);
        return;
    }
    c->waiting = true;
    want(c->served);
}

static void turns(void *serve) {
    if (!is_stopping(serve)) take_turns(serve);
}

void km_served_leave(km_api_call *c) {
    if (!c->using) return;
    c->using = false;
    c->served->users--;
    c->served->used = km_now();
    if (c->has_keep_alive && (c->serve->n_served > 1 || c->serve->o.folder))
        c->served->keep_alive = c->keep_alive;
    for (int i = 0; i < c->serve->n_served && c->served->users == 0; i++)
        if (c->serve->served[i]->wanted > 0) {
            km_http_post(c->serve->http, turns, c->serve); /* or at the next tick */
            return;
        }
}

void km_served_tick(km_serve *s) {
    double now = km_now();
    if (s->draining) return;
    for (int i = 0; i < s->n_served; i++) {
        km_served *m = s->served[i];
        if (m->state == KM_SERVED_UP && m->users == 0 && m->keep_alive >= 0 && m->wanted == 0 &&
            now - m->used >= m->keep_alive)
            unload(m);
    }
    take_turns(s);
}

/* ---- The server's end ---- */

void km_served_stop(km_serve *s) {
    for (int i = 0; i < s->n_served; i++) {
        end_thread(s->served[i]);
        km_scheduler_stop(s->served[i]->scheduler);
    }
}

void km_served_free(km_serve *s) {
    for (int i = 0; i < s->n_served; i++) close_parts(s->served[i]);
}

km_scheduler_counts km_served_counts(km_serve *s) {
    km_scheduler_counts all = {0};
    for (int i = 0; i < s->n_served; i++) {
        const km_served *m = s->served[i];
        add_counts(&all, &m->past);
        if (m->state != KM_SERVED_UP) continue;
        km_scheduler_counts c = km_scheduler_count(m->scheduler);
        add_counts(&all, &c);
        all.queued += c.queued;
        all.running += c.running;
        all.reading += c.reading;
        all.kept += c.kept;
        all.paused += c.paused;
        all.shelved += c.shelved;
        all.shelf_bytes += c.shelf_bytes;
        all.pages += c.pages;
        all.pages_free += c.pages_free;
        all.page_tokens = c.page_tokens;
        if (c.context > all.context) all.context = c.context;
    }
    return all;
}

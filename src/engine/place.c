/* Opening a model's weights where there is room for them: the devices asked for, and the plan of
 * their memory. */
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/log.h"
#include "engine/engine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Which devices ---- */

/* The names between the commas. */
static km_status devices_of(const char *list, km_open_split *out, km_error *err) {
    out->n = 0;
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof out->device[0])
            return km_error_set(err, KM_ERR_RANGE,
                                "devices are names with commas between them, not '%.60s'", list);
        if (out->n == KM_MAX_PARTS)
            return km_error_set(err, KM_ERR_RANGE, "devices: %d at most", KM_MAX_PARTS);
        memcpy(out->device[out->n], at, n);
        out->device[out->n++][n] = 0;
        at += n;
        if (!*at) return KM_OK;
    }
}

km_status km_placing_check(const km_placing *w, km_error *err) {
    km_open_split split;
    if (w->activations && w->activations != 8 && w->activations != 16)
        return km_error_set(err, KM_ERR_RANGE, "activations of 8 or 16 bits, not %d",
                            w->activations);
    if (w->gpu_layers < KM_GPU_LAYERS_UNSAID || w->gpu_layers > 100000)
        return km_error_set(err, KM_ERR_RANGE, "%lld layers for the GPU", (long long)w->gpu_layers);
    if (w->threads < 0 || w->threads > 4096)
        return km_error_set(err, KM_ERR_RANGE, "%d threads; 0 (one per core) to 4096 are possible",
                            w->threads);
    return w->devices ? devices_of(w->devices, &split, err) : KM_OK;
}

/* The devices by their own names; one that is not there is an error. */
static km_status resolve(const km_placing *where, km_open_split *out, km_error *err) {
    *out = (km_open_split){0};
    km_status s = devices_of(where->devices ? where->devices : where->device, out, err);
    for (int i = 0; i < out->n && s == KM_OK; i++) {
        km_device *d = km_device_find(out->device[i], err);
        if (!d) return err->code;
        snprintf(out->device[i], sizeof out->device[i], "%s", d->name);
    }
    return s;
}

/* ---- The plan ---- */

static void tell_plan(const km_weighed *w, int64_t context, const km_memory_plan *p) {
    km_text told = {0};
    km_memory_tell(p, &told);
    km_note(KM_LOG_INFO, "memory on %s", km_text_str(&told));
    km_text_free(&told);
    if (!context && p->context < w->config.context)
        km_note(KM_LOG_INFO, "the context is %lld tokens, the longest that fits, not %lld",
                (long long)p->context, (long long)w->config.context);
}

km_status km_placing_plan(const km_weighed *w, const km_placing *where, int64_t context,
                          int64_t sequences, km_dtype cache, km_memory_plan *out, km_error *err) {
    km_memory_ask ask = {.context = context,
                         .sequences = sequences,
                         .cache = cache,
                         .gpu_layers = where->gpu_layers,
                         .memory = (double)where->memory};
    km_status s = resolve(where, &ask.split, err);
    if (s == KM_OK) s = km_memory_plan_make(w, &ask, out, err);
    if (s == KM_OK && (km_memory_on_gpu(out) || ask.split.n > 1)) tell_plan(w, context, out);
    return s;
}

/* Whether another plan has the same layers in the same places, and no shorter context. */
static bool as_good(const km_memory_plan *a, const km_memory_plan *b) {
    bool same = a->n == b->n && b->context >= a->context;
    for (int i = 0; i < a->n && same; i++)
        same = a->part[i].first == b->part[i].first && a->part[i].last == b->part[i].last &&
               a->part[i].streamed == b->part[i].streamed;
    return same;
}

/* Where nobody said how many sessions there will be: as many as cost neither layers nor context. */
static int64_t sequences_that_fit(const km_weighed *w, const km_memory_ask *one,
                                  const km_memory_plan *plan) {
    for (int64_t n = 16; n > 1; n /= 2) {
        km_memory_ask ask = *one;
        km_memory_plan p;
        ask.sequences = n;
        ask.context = plan->context;
        if (km_memory_plan_make(w, &ask, &p, &(km_error){0}) == KM_OK && as_good(plan, &p))
            return n;
    }
    return 1;
}

static km_status make_plan(km_model *m, km_ground *g, const km_placing *where, km_error *err) {
    km_weighed w;
    km_status s = km_weigh(m->path, &m->open, &w, err);
    if (s != KM_OK) return s;
    int64_t sequences = m->how.sequences ? m->how.sequences : 1;
    s = km_placing_plan(&w, where, m->open.context, sequences, m->how.cache, &g->plan, err);
    if (s == KM_OK && !m->how.sequences) {
        km_memory_ask ask = {.cache = m->how.cache,
                             .gpu_layers = where->gpu_layers,
                             .memory = (double)where->memory};
        if (resolve(where, &ask.split, err) == KM_OK)
            m->how.sequences = sequences_that_fit(&w, &ask, &g->plan);
    }
    km_weighed_free(&w);
    g->planned = s == KM_OK;
    return s;
}

/* ---- Grounds ---- */

static km_ground *new_ground(km_error *err) {
    km_ground *g = km_calloc(1, sizeof *g);
    if (!g) km_no_memory_for(err, "a model");
    if (g) atomic_store(&g->users, 1);
    return g;
}

km_ground *km_ground_hold(km_model *m) {
    pthread_mutex_lock(&m->lock);
    km_ground *g = m->ground;
    if (g) atomic_fetch_add(&g->users, 1);
    pthread_mutex_unlock(&m->lock);
    return g;
}

void km_ground_drop(km_ground *g) {
    if (!g || atomic_fetch_sub(&g->users, 1) > 1) return;
    km_sequences_free(g->pool);
    km_net_free(g->net);
    km_comm_close(g->comm);
    km_ctx_free(g->ctx);
    km_free(g);
}

/* Half of the memory there is may be set aside for what sessions hold; it is taken as they grow. */
static int64_t sequences_on_host(const km_config *c, const km_cache_options *each) {
    double most = 0.5 * (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGE_SIZE);
    for (int64_t n = 16; n > 1; n /= 2) {
        km_cache_options o = *each;
        o.sequences = n;
        if ((double)km_cache_bytes(c, &o) <= most) return n;
    }
    return 1;
}

km_sequences *km_ground_pool(km_model *m, km_ground *g, km_error *err) {
    if (g->pool) return g->pool;
    const km_config *c = &g->net->config;
    km_cache_options each = {.dtype = m->how.cache, .sequences = 1, .context = c->context};
    km_sequences_options o = km_sequences_defaults();
    o.cache = m->how.cache;
    o.sequences = m->how.sequences ? m->how.sequences : sequences_on_host(c, &each);
    o.gate = &m->gate;
    g->pool = km_sequences_new(g->ctx, g->net, &o, err);
    if (!g->pool) km_ctx_clear_error(g->ctx);
    return g->pool;
}

/* ---- Opening ---- */

static km_status open_on(km_model *m, km_ground *g, const char *device, const km_open_split *split,
                         km_error *err) {
    km_open_options how = m->open;
    g->ctx = km_ctx_new(device, m->how.threads);
    if (!g->ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (m->how.activations) km_ctx_set_activations(g->ctx, m->how.activations);
    how.split = split;
    how.progress = m->how.progress;
    how.user = m->how.user;
    g->net = km_net_open(g->ctx, m->path, &how, err);
    if (!g->net) {
        km_ctx_free(g->ctx);
        g->ctx = NULL;
        return err->code;
    }
    km_net_devices(g->net, g->devices, sizeof g->devices);
    return KM_OK;
}

/* Whether the caller leaves any choice but the CPU with the mapped file. */
static bool only_cpu(const km_placing *where) {
    if (where->devices || where->gpu_layers != KM_GPU_LAYERS_UNSAID) return false;
    km_device *d = km_device_find(where->device, &(km_error){0});
    return d && strcmp(d->name, "cpu") == 0;
}

static km_status place(km_model *m, km_ground *g, const km_placing *where, km_error *err) {
    if (only_cpu(where)) return open_on(m, g, "cpu", NULL, err);
    int64_t asked = m->open.context;
    km_status s = make_plan(m, g, where, err);
    if (s != KM_OK) return s;
    if (g->plan.context > 0) m->open.context = g->plan.context;
    km_open_split split = km_memory_split(&g->plan);
    s = open_on(m, g, split.device[0], &split, err);
    bool chosen = strcmp(where->device, "auto") != 0 || where->devices ||
                  where->gpu_layers != KM_GPU_LAYERS_UNSAID;
    if (s == KM_OK || chosen ||
        (s != KM_ERR_GPU && s != KM_ERR_DEVICE && s != KM_ERR_MEMORY && s != KM_ERR_UNSUPPORTED))
        return s;
    /* auto never fails for want of a device */
    km_note(KM_LOG_WARN, "%s; going on with the CPU", err->text);
    *err = (km_error){0};
    m->open.context = asked;
    g->planned = false;
    return open_on(m, g, "cpu", NULL, err);
}

km_status km_place_model(km_model *m, const km_placing *where, km_error *err) {
    km_ground *g = new_ground(err);
    if (!g) return err->code;
    km_status s = place(m, g, where, err);
    if (s == KM_OK)
        m->ground = g;
    else
        km_ground_drop(g);
    return s;
}

km_status km_place_on_cpu(km_model *m, km_ground **out, km_error *err) {
    km_ground *g = new_ground(err);
    if (!g) return err->code;
    m->how.progress = NULL; /* of the opening alone */
    km_status s = open_on(m, g, "cpu", NULL, err);
    if (s == KM_OK)
        *out = g;
    else
        km_ground_drop(g);
    return s;
}

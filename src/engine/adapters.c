/* Adapters of a model: low-rank corrections (LoRA) that run beside its weights. Each has a slot of the
 * net, which nobody else gets as long as somebody has tokens that were read with it; so two mixes are
 * the same if their slots and scales are. The list is guarded by the model's lock; who changes slots of
 * the net has a turn at its gate. */
#include "model/adapters.h"
#include "base/alloc.h"
#include "engine/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Names ---- */

/* The last part of a path, without slashes behind it and without ".gguf". */
static char *name_of(const char *path) {
    size_t n = strlen(path), from, bytes;
    while (n > 1 && path[n - 1] == '/') n--;
    for (from = n; from > 0 && path[from - 1] != '/';) from--;
    bytes = n - from;
    if (bytes > 5 && strncmp(path + n - 5, ".gguf", 5) == 0) bytes -= 5;
    char *name = km_alloc(bytes + 1);
    if (!name) return NULL;
    memcpy(name, path + from, bytes);
    name[bytes] = 0;
    return name;
}

/* The slot of the adapter that is called or lies so; -1: none. The model is locked. */
static int find(const km_model *m, const char *name, const char *path) {
    for (int i = 0; i < KM_ADAPTER_SLOTS; i++) {
        const km_held_adapter *a = &m->adapter[i];
        if (!a->name || a->removed) continue;
        if (name ? strcmp(a->name, name) == 0
                 : path && (strcmp(a->path, path) == 0 || strcmp(a->name, path) == 0))
            return i;
    }
    return -1;
}

static void forget(km_held_adapter *a) {
    km_free(a->name);
    km_free(a->path);
    *a = (km_held_adapter){0};
}

void km_adapters_close(km_model *m) {
    for (int i = 0; i < KM_ADAPTER_SLOTS; i++) forget(&m->adapter[i]);
}

/* ---- Coming and going ---- */

/* Gives back the slots of those that were removed and that nobody uses any more; by who has a turn. */
static void collect(km_model *m) {
    for (int i = 0; i < KM_ADAPTER_SLOTS; i++) {
        km_held_adapter *a = &m->adapter[i];
        pthread_mutex_lock(&m->lock);
        bool gone = a->name && a->removed && a->users == 0;
        pthread_mutex_unlock(&m->lock);
        if (!gone || km_adapter_unload(m->ground->net, i, NULL) != KM_OK) continue;
        pthread_mutex_lock(&m->lock);
        forget(a);
        pthread_mutex_unlock(&m->lock);
    }
}

/* A slot for the adapter, -1 with *err set; the model is locked. */
static int free_slot(const km_model *m, const km_held_adapter *a, km_error *err) {
    int slot = -1, on = 0;
    for (int i = KM_ADAPTER_SLOTS - 1; i >= 0; i--) {
        const km_held_adapter *h = &m->adapter[i];
        if (!h->name)
            slot = i;
        else
            on += !h->off && !h->removed;
    }
    if (find(m, a->name, NULL) >= 0)
        km_error_set(err, KM_ERR_STATE, "the model has an adapter '%.80s' already", a->name);
    else if (slot < 0)
        km_error_set(err, KM_ERR_RANGE, "a model has up to %d adapters", KM_ADAPTER_SLOTS);
    else if (!a->off && on == KM_MIX_MOST)
        km_error_set(err, KM_ERR_RANGE, "up to %d adapters are used at once; open others `off`",
                     KM_MIX_MOST);
    return err->code == KM_OK ? slot : -1;
}

/* In a turn at the model. */
static km_status add(km_model *m, const km_adapter *given, km_error *err) {
    if (!given->path || !*given->path)
        return km_error_set(err, KM_ERR_NULL, "an adapter without a path");
    if (!isfinite(given->scale) || !isfinite((float)given->scale))
        return km_error_set(err, KM_ERR_RANGE, "the scale of adapter '%.80s' is no number",
                            given->path);
    if (given->name && !*given->name)
        return km_error_set(err, KM_ERR_RANGE, "adapter '%.80s' has an empty name", given->path);
    km_held_adapter a = {.name = given->name ? km_strdup(given->name) : name_of(given->path),
                         .path = km_strdup(given->path),
                         .scale = given->scale != 0 ? given->scale : 1,
                         .off = given->off};
    if (!a.name || !a.path) km_no_memory_for(err, "an adapter");
    collect(m);
    pthread_mutex_lock(&m->lock);
    int slot = err->code == KM_OK ? free_slot(m, &a, err) : -1;
    pthread_mutex_unlock(&m->lock);
    if (slot >= 0 && km_adapter_load(m->ground->net, slot, a.path, err) == KM_OK) {
        pthread_mutex_lock(&m->lock);
        m->adapter[slot] = a;
        pthread_mutex_unlock(&m->lock);
        return KM_OK;
    }
    forget(&a);
    return err->code;
}

km_status km_adapters_open(km_model *m, const km_adapter *adapters, size_t n, km_error *err) {
    if (n > KM_ADAPTER_SLOTS)
        return km_error_set(err, KM_ERR_RANGE, "%zu adapters; a model has up to %d", n,
                            KM_ADAPTER_SLOTS);
    for (size_t i = 0; i < n; i++)
        if (add(m, &adapters[i], err) != KM_OK) return err->code;
    return KM_OK;
}

km_status km_adapters_again(km_model *m, km_net *net, km_error *err) {
    for (int i = 0; i < KM_ADAPTER_SLOTS; i++)
        if (m->adapter[i].name && km_adapter_load(net, i, m->adapter[i].path, err) != KM_OK)
            return err->code;
    return KM_OK;
}

km_status km_model_add_adapter(km_model *m, const km_adapter *adapter) {
    km_error err = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_add_adapter", m, true)) return km_last_status();
    if (!adapter) return km_public_fail(KM_ERR_NULL, "km_model_add_adapter: no adapter given");
    int turn = km_gate_enter(&m->gate, 1);
    add(m, adapter, &err);
    km_gate_leave(&m->gate, turn);
    return km_told(&err);
}

km_status km_model_remove_adapter(km_model *m, const char *name) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_remove_adapter", m, true)) return km_last_status();
    if (!name) return km_public_fail(KM_ERR_NULL, "km_model_remove_adapter: no name given");
    int turn = km_gate_enter(&m->gate, 1);
    pthread_mutex_lock(&m->lock);
    int slot = find(m, NULL, name);
    if (slot >= 0) m->adapter[slot].removed = true;
    pthread_mutex_unlock(&m->lock);
    collect(m);
    km_gate_leave(&m->gate, turn);
    if (slot >= 0) return km_told(&(km_error){0});
    return km_public_fail(KM_ERR_RANGE, "km_model_remove_adapter: the model has no adapter '%.80s'",
                          name);
}

char *km_model_adapters_json(km_model *m) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_adapters_json", m, false)) return NULL;
    json_t *all = json_array();
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < KM_ADAPTER_SLOTS; i++) {
        const km_held_adapter *a = &m->adapter[i];
        if (a->name && !a->removed)
            json_array_append_new(all, json_pack("{s:s, s:s, s:f, s:b}", "name", a->name, "path",
                                                 a->path, "scale", a->scale, "off", a->off));
    }
    pthread_mutex_unlock(&m->lock);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL, *own = text ? km_strdup(text) : NULL;
    free(text);
    json_decref(all);
    if (!own) km_public_fail(KM_ERR_MEMORY, "km_model_adapters_json: out of memory");
    return own;
}

/* ---- Mixes ---- */

/* Puts an adapter into its place among the slots; false: it is there already. */
static bool put(km_adapter_mix *mix, int slot, double scale) {
    int at = mix->n;
    for (int i = 0; i < mix->n; i++)
        if (mix->slot[i] == slot) return false;
    while (at > 0 && mix->slot[at - 1] > slot) {
        mix->slot[at] = mix->slot[at - 1];
        mix->scale[at] = mix->scale[at - 1];
        at--;
    }
    mix->slot[at] = slot;
    mix->scale[at] = (float)scale;
    mix->n++;
    return true;
}

static km_status choose(const km_model *m, const km_adapter *c, km_adapter_mix *mix,
                        km_error *err) {
    if (!c->name && !c->path)
        return km_error_set(err, KM_ERR_NULL, "an adapter without a name or a path");
    const char *shown = c->name ? c->name : c->path;
    int slot = find(m, c->name, c->path);
    if (slot < 0) return km_error_set(err, KM_ERR_RANGE, "the model has no adapter '%.80s'", shown);
    double scale = c->scale != 0 ? c->scale : m->adapter[slot].scale;
    if (!isfinite(scale) || !isfinite((float)scale))
        return km_error_set(err, KM_ERR_RANGE, "the scale of adapter '%.80s' is no number", shown);
    if (!put(mix, slot, scale))
        return km_error_set(err, KM_ERR_RANGE, "adapter '%.80s' is chosen twice", shown);
    return KM_OK;
}

km_status km_adapters_mix(km_model *m, const km_adapter *chosen, int64_t n, km_adapter_mix *out,
                          km_error *err) {
    km_adapter_mix mix = {0};
    km_status s = KM_OK;
    if (n < -1 || n > KM_MIX_MOST)
        return km_error_set(err, KM_ERR_RANGE, "%lld adapters; up to %d are possible at once",
                            (long long)n, KM_MIX_MOST);
    if (n > 0 && !chosen)
        return km_error_set(err, KM_ERR_NULL, "%lld adapters, and none given", (long long)n);
    pthread_mutex_lock(&m->lock);
    for (int64_t i = 0; i < n && s == KM_OK; i++) s = choose(m, &chosen[i], &mix, err);
    for (int i = 0; i < KM_ADAPTER_SLOTS && n < 0; i++) {
        const km_held_adapter *a = &m->adapter[i];
        if (a->name && !a->removed && !a->off) put(&mix, i, a->scale);
    }
    for (int i = 0; i < mix.n && s == KM_OK; i++) m->adapter[mix.slot[i]].users++;
    pthread_mutex_unlock(&m->lock);
    if (s == KM_OK) *out = mix;
    return s;
}

void km_adapters_hold(km_model *m, const km_adapter_mix *mix) {
    if (mix->n == 0) return;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < mix->n; i++) m->adapter[mix->slot[i]].users++;
    pthread_mutex_unlock(&m->lock);
}

void km_adapters_drop(km_model *m, km_adapter_mix *mix) {
    if (mix->n == 0) return;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < mix->n; i++) m->adapter[mix->slot[i]].users--;
    pthread_mutex_unlock(&m->lock);
    *mix = (km_adapter_mix){0};
}

/* A model that the ranks of mpirun hold together: each rank's device, its share, and who says what
 * went wrong. */
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "engine/engine.h"
#include "infer/follow.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* What each rank says, a number, in the order of the ranks; NULL with *err set. The caller frees
 * it. */
static double *from_all(km_model *m, double own, km_error *err) {
    int size = km_comm_size(m->comm);
    double *all = km_calloc((size_t)size, sizeof *all);
    if (!all) {
        km_no_memory(err);
        return NULL;
    }
    all[km_comm_rank(m->comm)] = own;
    if (km_comm_sum(m->comm, all, size, err) == KM_OK) return all;
    km_free(all);
    return NULL;
}

/* A failure of one rank is one of all; the first that failed tells of it. */
static km_status agree(km_model *m, km_status s, km_error *err) {
    int size = km_comm_size(m->comm), rank = km_comm_rank(m->comm), first = 0;
    km_error trouble = {0};
    double *failed = from_all(m, s != KM_OK, &trouble);
    if (!failed) return km_error_set(err, trouble.code, "%s", trouble.text);
    while (first < size && failed[first] == 0) first++;
    km_free(failed);
    if (first == size || first == rank) return s;
    *err = (km_error){0};
    return km_error_set(err, KM_ERR_PEER, "rank %d failed", first);
}

/* The shortest context of those that fit on the ranks. */
static km_status shortest(km_model *m, int64_t *context, km_error *err) {
    double *all = from_all(m, (double)*context, err);
    for (int i = 0; all && i < km_comm_size(m->comm); i++)
        if (all[i] > 0 && (*context <= 0 || all[i] < (double)*context)) *context = (int64_t)all[i];
    km_free(all);
    return all ? KM_OK : err->code;
}

/* A number for the file: its size, its beginning, where it describes itself, and its end. */
static double print_of(const km_map *map) {
    size_t some = map->size < 1 << 16 ? map->size : 1 << 16;
    uint64_t hash = XXH3_64bits_withSeed(map->data, some, map->size);
    hash = XXH3_64bits_withSeed((const char *)map->data + map->size - some, some, hash);
    return (double)(hash >> 12);
}

/* Ranks of several machines may have several files of one name. */
static km_status same_file(km_model *m, km_error *err) {
    km_map map = {0};
    km_error ignored = {0}; /* what cannot be opened is told when the model is */
    double own = 0;
    if (km_map_open(&map, m->path, &ignored) == KM_OK && map.size > 0) own = print_of(&map);
    km_map_close(&map);
    double *all = from_all(m, own, err);
    if (!all) return err->code;
    int other = 0;
    for (int i = km_comm_size(m->comm) - 1; i > 0; i--)
        if (all[i] != all[0] && all[i] != 0 && all[0] != 0) other = i;
    km_free(all);
    if (!other) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "rank %d has another %s than rank 0", other, m->path);
}

/* Each rank of a machine takes a GPU of its own, unless one was named, and its part of the cores. */
static km_status open_device(km_model *m, km_ground *g, const km_placing *where, km_error *err) {
    int here = km_comm_env_local_size(), cores = km_cpu_count(), threads = where->threads;
    char own[24];
    if (threads == 0 && here > 1 && cores == sysconf(_SC_NPROCESSORS_ONLN))
        threads = cores / here > 0 ? cores / here : 1;
    snprintf(own, sizeof own, "cuda:%d", km_comm_env_local_rank());
    bool any = km_device_any_gpu(where->device);
    if (any) g->ctx = km_ctx_new(own, threads);
    if (!g->ctx && (!any || strcmp(where->device, "auto") == 0))
        g->ctx = km_ctx_new(where->device, threads);
    m->how.threads = threads;
    if (!g->ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (where->activations) km_ctx_set_activations(g->ctx, where->activations);
    return KM_OK;
}

/* On a GPU: whether the share fits, and with which context. */
static km_status make_plan(km_model *m, km_ground *g, const km_placing *where, km_error *err) {
    km_weighed w;
    km_placing own = *where;
    own.device = km_ctx_device(g->ctx);
    if (!m->how.sequences) m->how.sequences = 1;
    if (g->ctx->device->host) return KM_OK;
    km_status s = km_weigh(m->path, &m->open, &w, err);
    if (s != KM_OK) return s;
    s = km_placing_plan(&w, &own, m->open.context, m->how.sequences, m->how.cache, &g->plan, err);
    km_weighed_free(&w);
    if (s == KM_OK && (g->plan.n > 1 || g->plan.part[0].streamed > 0))
        s = km_error_set(err, KM_ERR_MEMORY,
                         "a share of the model does not fit on %s; more ranks have smaller ones",
                         own.device);
    g->planned = s == KM_OK;
    return s;
}

static km_status load(km_model *m, km_ground *g, km_error *err) {
    km_open_options how = m->open;
    how.progress = m->how.progress;
    how.user = m->how.user;
    g->net = km_net_open(g->ctx, m->path, &how, err);
    return g->net ? KM_OK : err->code;
}

static km_status share(km_model *m, km_ground *g, const km_placing *where, const char *comm,
                       km_error *err) {
    km_status s = open_device(m, g, where, err);
    m->met = true;
    /* Without a device a rank still has to say so: on the CPU it can. */
    if (!g->ctx && !(g->ctx = km_ctx_new("cpu", 1))) return s;
    km_error trouble = {0};
    m->comm = g->comm = km_comm_open(comm ? comm : "auto", g->ctx, &trouble);
    if (!m->comm) return s == KM_OK ? km_error_set(err, trouble.code, "%s", trouble.text) : s;
    m->open.comm = m->comm;
    if (s == KM_OK) s = make_plan(m, g, where, err);
    s = agree(m, s, err);
    int64_t context = g->planned ? g->plan.context : m->open.context;
    if (s == KM_OK) s = shortest(m, &context, err);
    if (s == KM_OK) s = agree(m, same_file(m, err), err);
    if (s != KM_OK) return s;
    m->open.context = context;
    s = agree(m, load(m, g, err), err);
    if (s != KM_OK) return s;
    snprintf(g->devices, sizeof g->devices, "%s, %d ranks", km_ctx_device(g->ctx),
             km_comm_size(m->comm));
    if (km_comm_rank(m->comm) == 0)
        km_note(KM_LOG_INFO, "%d ranks share the model over %s", km_comm_size(m->comm),
                km_comm_name(m->comm));
    return KM_OK;
}

km_status km_share_model(km_model *m, const km_placing *where, const char *comm, km_error *err) {
    if (km_comm_env_size() < 2) {
        km_note(KM_LOG_INFO,
                "there is one rank, which gets all of the model; mpirun -n N starts more");
        return km_place_model(m, where, err);
    }
    km_ground *g = km_calloc(1, sizeof *g);
    if (!g) return km_no_memory_for(err, "a model");
    atomic_store(&g->users, 1);
    km_status s = share(m, g, where, comm, err);
    if (s == KM_OK) {
        m->ground = g;
        return KM_OK;
    }
    m->comm = NULL;
    km_ground_drop(g);
    return s;
}

km_status km_share_failed(km_model *m, km_status s, const char *comm, km_error *err) {
    if (m->met || km_comm_env_size() < 2) return s;
    km_error trouble = {0};
    km_ctx *ctx = km_ctx_new("cpu", 1);
    m->comm = ctx ? km_comm_open(comm ? comm : "auto", ctx, &trouble) : NULL;
    if (m->comm) s = agree(m, s, err);
    km_comm_close(m->comm);
    m->comm = NULL;
    km_ctx_free(ctx);
    return s;
}

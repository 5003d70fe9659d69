/* A model that the ranks of mpirun hold together: each rank's device, its share, and who says what
 * went wrong. */
#include "backend/backend.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "infer/follow.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static bool asked(const km_cli_where *where) {
    return where->split && strcmp(where->split, "tensor") == 0;
}

bool km_cli_shares(const km_cli_where *where) {
    static bool told; /* a draft's model is opened after the model */
    if (!asked(where)) {
        if (!told && km_comm_env_size() > 1 && km_comm_env_rank() == 0)
            km_note(KM_LOG_WARN,
                    "mpirun started %d ranks, and each runs the whole model; kermes run --split "
                    "tensor shares it",
                    km_comm_env_size());
        told = true;
        return false;
    }
    told = true;
    if (km_comm_env_size() > 1) return true;
    km_note(KM_LOG_INFO, "there is one rank, which gets all of the model; mpirun -n N starts more");
    return false;
}

bool km_cli_silent(const km_cli_where *where) { return asked(where) && km_comm_env_rank() != 0; }

bool km_cli_follows(const km_cli_model *m) { return m->comm && km_comm_rank(m->comm) != 0; }

int km_cli_follow(km_cli_model *m) {
    km_error err = {0};
    int code = KM_EXIT_OK;
    if (km_follow(m->model, &err) != KM_OK) {
        if (!km_failed(m->ctx)) km_fail(m->ctx, err.code, "%s", err.text); /* ends the others too */
        code = km_cli_fail("rank %d: %s", km_comm_rank(m->comm), err.text);
    }
    km_cli_model_close(m);
    return code;
}

int km_cli_model_fail(const km_cli_model *m, const km_error *err) {
    return m->silent ? KM_EXIT_FAILED : km_cli_fail("%s", err->text);
}

/* What each rank says, a number, in the order of the ranks; NULL with *err set. The caller frees
 * it. */
static double *from_all(km_cli_model *m, double own, km_error *err) {
    int size = km_comm_size(m->comm);
    double *all = calloc((size_t)size, sizeof *all);
    if (!all) {
        km_no_memory(err);
        return NULL;
    }
    all[km_comm_rank(m->comm)] = own;
    if (km_comm_sum(m->comm, all, size, err) == KM_OK) return all;
    free(all);
    return NULL;
}

/* A failure of one rank is one of all; the first that failed tells of it. */
static km_status agree(km_cli_model *m, km_status s, km_error *err) {
    int size = km_comm_size(m->comm), rank = km_comm_rank(m->comm), first = 0;
    km_error trouble = {0};
    double *failed = from_all(m, s != KM_OK, &trouble);
    if (!failed) return km_error_set(err, trouble.code, "%s", trouble.text);
    while (first < size && failed[first] == 0) first++;
    free(failed);
    m->silent = first < size && first != rank;
    if (first == size || s != KM_OK) return s;
    return km_error_set(err, KM_ERR_STATE, "rank %d failed", first);
}

/* The shortest context of those that fit on the ranks. */
static km_status shortest(km_cli_model *m, int64_t *context, km_error *err) {
    double *all = from_all(m, (double)*context, err);
    for (int i = 0; all && i < km_comm_size(m->comm); i++)
        if (all[i] > 0 && (*context <= 0 || all[i] < (double)*context)) *context = (int64_t)all[i];
    free(all);
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
static km_status same_file(km_cli_model *m, km_error *err) {
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
    free(all);
    if (!other) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "rank %d has another %s than rank 0", other, m->path);
}

/* Each rank of a machine takes a GPU of its own, unless one was named, and its part of the cores. */
static km_status open_device(km_cli_model *m, const km_common *common, km_error *err) {
    int here = km_comm_env_local_size(), cores = km_cpu_count();
    char own[24];
    if (m->threads == 0 && here > 1 && cores == sysconf(_SC_NPROCESSORS_ONLN))
        m->threads = cores / here > 0 ? cores / here : 1;
    snprintf(own, sizeof own, "cuda:%d", km_comm_env_local_rank());
    bool any = km_device_any_gpu(common->device);
    if (any) m->ctx = km_ctx_new(own, m->threads);
    if (!m->ctx && (!any || strcmp(common->device, "auto") == 0))
        m->ctx = km_ctx_new(common->device, m->threads);
    if (!m->ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (m->activations) km_ctx_set_activations(m->ctx, m->activations);
    return KM_OK;
}

/* On a GPU: whether the share fits, and with which context. */
static km_status make_plan(km_cli_model *m, const km_common *common, km_dtype cache,
                           int64_t sequences, km_error *err) {
    km_weighed w;
    km_common own = *common;
    own.device = km_ctx_device(m->ctx);
    if (m->ctx->device->host) return KM_OK;
    km_status s = km_weigh(m->path, &m->how, &w, err);
    if (s != KM_OK) return s;
    s = km_cli_plan(&w, &own, &(km_cli_where){0}, m->how.context, sequences, cache, &m->plan, err);
    km_weighed_free(&w);
    if (s == KM_OK && (m->plan.n > 1 || m->plan.part[0].streamed > 0))
        s = km_error_set(err, KM_ERR_MEMORY,
                         "a share of the model does not fit on %s; more ranks have smaller ones",
                         own.device);
    m->planned = s == KM_OK;
    return s;
}

static km_status load(km_cli_model *m, const km_common *common, km_error *err) {
    km_open_options how = m->how;
    km_progress bar;
    bool shown = !m->ctx->device->host;
    if (shown) km_progress_begin(&bar, "loading", "MiB", 1, common->quiet || m->silent);
    if (shown) how.progress = km_cli_loading, how.user = &bar;
    m->model = km_net_open(m->ctx, m->path, &how, err);
    if (shown) km_progress_end(&bar);
    return m->model ? KM_OK : err->code;
}

km_status km_cli_model_share(km_cli_model *m, const km_common *common, const km_cli_where *where,
                             km_dtype cache, int64_t sequences, km_error *err) {
    km_status s = open_device(m, common, err);
    /* Without a device a rank still has to say so: on the CPU it can. */
    if (!m->ctx && !(m->ctx = km_ctx_new("cpu", 1))) return s;
    km_error trouble = {0};
    m->comm = km_comm_open(where->comm ? where->comm : "auto", m->ctx, &trouble);
    if (!m->comm) return s == KM_OK ? km_error_set(err, trouble.code, "%s", trouble.text) : s;
    m->how.comm = m->comm;
    if (s == KM_OK) s = make_plan(m, common, cache, sequences, err);
    s = agree(m, s, err);
    int64_t context = m->planned ? m->plan.context : m->how.context;
    if (s == KM_OK) s = shortest(m, &context, err);
    if (s == KM_OK) s = agree(m, same_file(m, err), err);
    if (s != KM_OK) return s;
    m->how.context = context;
    s = agree(m, load(m, common, err), err);
    if (s != KM_OK) return s;
    snprintf(m->devices, sizeof m->devices, "%s, %d ranks", km_ctx_device(m->ctx),
             km_comm_size(m->comm));
    km_note(KM_LOG_INFO, "%d ranks share the model over %s", km_comm_size(m->comm),
            km_comm_name(m->comm));
    return KM_OK;
}

/* A model that the ranks of mpirun hold together: each rank's device, its share, and who says what
 * went wrong. */
#include "base/cpu.h"
#include "base/log.h"
#include "base/progress.h"
#include "cli/use_model.h"
#include "infer/follow.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* A failure of one rank is one of all; the first that failed tells of it. */
static km_status agree(km_cli_model *m, km_status s, km_error *err) {
    int size = km_comm_size(m->comm), rank = km_comm_rank(m->comm), first = 0;
    double *failed = calloc((size_t)size, sizeof *failed);
    if (!failed) return km_error_set(err, KM_ERR_MEMORY, "out of memory");
    failed[rank] = s != KM_OK;
    km_error trouble = {0};
    km_status sent = km_comm_sum(m->comm, failed, size, &trouble);
    while (first < size && failed[first] == 0) first++;
    free(failed);
    if (sent != KM_OK) return km_error_set(err, sent, "%s", trouble.text);
    m->silent = first < size && first != rank;
    if (first == size || s != KM_OK) return s;
    return km_error_set(err, KM_ERR_STATE, "rank %d failed", first);
}

/* The shortest context of those that fit on the ranks. */
static km_status shortest(km_cli_model *m, int64_t *context, km_error *err) {
    int size = km_comm_size(m->comm);
    double *all = calloc((size_t)size, sizeof *all);
    if (!all) return km_error_set(err, KM_ERR_MEMORY, "out of memory");
    all[km_comm_rank(m->comm)] = (double)*context;
    km_status s = km_comm_sum(m->comm, all, size, err);
    for (int i = 0; i < size && s == KM_OK; i++)
        if (all[i] > 0 && (*context <= 0 || all[i] < (double)*context)) *context = (int64_t)all[i];
    free(all);
    return s;
}

/* Each rank of a machine takes a GPU of its own, unless one was named, and its part of the cores. */
static km_status open_device(km_cli_model *m, const km_common *common, km_error *err) {
    static const char *const any[] = {"auto", "gpu", "cuda"};
    int here = km_comm_env_local_size(), cores = km_cpu_count();
    char own[24];
    if (m->threads == 0 && here > 1 && cores == sysconf(_SC_NPROCESSORS_ONLN))
        m->threads = cores / here > 0 ? cores / here : 1;
    snprintf(own, sizeof own, "cuda:%d", km_comm_env_local_rank());
    for (int i = 0; i < 3 && !m->ctx; i++)
        if (strcmp(common->device, any[i]) == 0) m->ctx = km_ctx_new(own, m->threads);
    if (!m->ctx && strcmp(common->device, "gpu") != 0 && strcmp(common->device, "cuda") != 0)
        m->ctx = km_ctx_new(common->device, m->threads);
    return m->ctx ? KM_OK : km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
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
    if (s == KM_OK && m->plan.n > 1)
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
    m->model = km_model_open(m->ctx, m->path, &how, err);
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

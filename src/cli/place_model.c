/* Opening a model where there is room for it: the devices asked for, the plan of their memory, and
 * a bar while weights go there. */
#include "backend/backend.h"
#include "base/log.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "report/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which devices ---- */

static km_status layers_of(const char *text, int64_t *out, km_error *err) {
    *out = KM_GPU_LAYERS_UNSAID;
    if (!text) return KM_OK;
    *out = KM_GPU_LAYERS_AUTO;
    if (strcmp(text, "auto") == 0) return KM_OK;
    char *end = NULL;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n > 100000)
        return km_error_set(err, KM_ERR_RANGE, "--gpu-layers takes a number or auto, not '%.40s'",
                            text);
    *out = n;
    return KM_OK;
}

/* The names between the commas. */
static km_status devices_of(const char *list, km_open_split *out, km_error *err) {
    out->n = 0;
    for (const char *at = list;; at++) {
        size_t n = strcspn(at, ",");
        if (n == 0 || n >= sizeof out->device[0])
            return km_error_set(err, KM_ERR_RANGE,
                                "--devices takes names with commas between them, not '%.60s'",
                                list);
        if (out->n == KM_MAX_PARTS)
            return km_error_set(err, KM_ERR_RANGE, "--devices takes %d at most", KM_MAX_PARTS);
        memcpy(out->device[out->n], at, n);
        out->device[out->n++][n] = 0;
        at += n;
        if (!*at) return KM_OK;
    }
}

km_status km_cli_where_check(const km_cli_where *w, km_error *err) {
    int64_t layers;
    km_open_split split;
    km_status s = layers_of(w->gpu_layers, &layers, err);
    if (s == KM_OK && w->split && strcmp(w->split, "layers") && strcmp(w->split, "tensor"))
        s = km_error_set(err, KM_ERR_RANGE, "--split takes layers or tensor, not '%.40s'",
                         w->split);
    bool tensor = w->split && strcmp(w->split, "tensor") == 0;
    if (s == KM_OK && tensor && (w->devices || w->gpu_layers))
        s = km_error_set(err, KM_ERR_RANGE,
                         "--split tensor gives every rank a device; --%s splits by layers",
                         w->devices ? "devices" : "gpu-layers");
    if (s == KM_OK && w->activations && w->activations != 8 && w->activations != 16)
        s = km_error_set(err, KM_ERR_RANGE, "--activations takes 8 or 16, not %lld",
                         (long long)w->activations);
    if (s == KM_OK && w->comm && !tensor)
        s = km_error_set(err, KM_ERR_RANGE, "--comm is for ranks: add --split tensor");
    return s == KM_OK && w->devices ? devices_of(w->devices, &split, err) : s;
}

/* The devices by their own names; one that is not there is an error. */
static km_status resolve(const km_common *common, const km_cli_where *where, km_open_split *out,
                         km_error *err) {
    *out = (km_open_split){0};
    km_status s = devices_of(where->devices ? where->devices : common->device, out, err);
    for (int i = 0; i < out->n && s == KM_OK; i++) {
        km_device *d = km_device_find(out->device[i], err);
        if (!d) return err->code;
        snprintf(out->device[i], sizeof out->device[i], "%s", d->name);
    }
    return s;
}

/* ---- The plan ---- */

km_status km_cli_plan(const km_weighed *w, const km_common *common, const km_cli_where *where,
                      int64_t context, int64_t sequences, km_dtype cache, km_memory_plan *out,
                      km_error *err) {
    km_memory_ask ask = {.context = context, .sequences = sequences, .cache = cache};
    km_status s = resolve(common, where, &ask.split, err);
    if (s == KM_OK) s = layers_of(where->gpu_layers, &ask.gpu_layers, err);
    if (s == KM_OK) s = km_memory_plan_make(w, &ask, out, err);
    if (s != KM_OK || !(km_memory_on_gpu(out) || ask.split.n > 1)) return s;
    km_text told = {0};
    km_memory_tell(out, &told);
    km_note(KM_LOG_INFO, "memory on %s", km_text_str(&told));
    km_text_free(&told);
    if (!context && out->context < w->config.context)
        km_note(KM_LOG_INFO, "the context is %lld tokens, the longest that fits, not %lld",
                (long long)out->context, (long long)w->config.context);
    return s;
}

void km_cli_context_told(int64_t asked, int64_t models) {
    if (asked > models)
        km_note(KM_LOG_WARN,
                "--context %lld is beyond the model's context of %lld tokens, which is used",
                (long long)asked, (long long)models);
}

json_t *km_cli_plan_json(const km_memory_plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n; i++) {
        const km_memory_part *a = &p->part[i];
        json_array_append_new(
            list,
            json_pack("{s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o}", "device", a->device,
                      "first_layer", a->first, "layers", a->last - a->first, "streamed_layers",
                      a->streamed, "weights_bytes", km_json_count(a->weights), "streamed_bytes",
                      km_json_count(a->streamed_weights), "cache_bytes", km_json_count(a->cache),
                      "scratch_bytes", km_json_count(a->scratch), "free_bytes",
                      km_json_count(a->room)));
    }
    return list;
}

/* ---- Opening ---- */

bool km_cli_loading(void *user, uint64_t done, uint64_t total) {
    km_progress *bar = user;
    bar->total = (int64_t)(total >> 20) + 1;
    km_progress_step(bar, (int64_t)(done >> 20), NULL);
    return true;
}

/* Whether the line leaves any choice but the CPU with the mapped file. */
static bool only_cpu(const km_common *common, const km_cli_where *where) {
    if (where->devices || where->gpu_layers) return false;
    km_device *d = km_device_find(common->device, &(km_error){0});
    return d && strcmp(d->name, "cpu") == 0;
}

static km_status make_plan(km_cli_model *m, const km_common *common, const km_cli_where *where,
                           km_dtype cache, int64_t sequences, km_error *err) {
    km_weighed w;
    km_status s = km_weigh(m->path, &m->how, &w, err);
    if (s != KM_OK) return s;
    s = km_cli_plan(&w, common, where, m->how.context, sequences, cache, &m->plan, err);
    km_weighed_free(&w);
    m->planned = s == KM_OK;
    return s;
}

static km_status open_on(km_cli_model *m, const char *device, const km_open_split *split,
                         km_progress *bar, km_error *err) {
    km_open_options how = m->how;
    m->ctx = km_ctx_new(device, m->threads);
    if (!m->ctx) return km_error_set(err, KM_ERR_DEVICE, "%s", km_last_error());
    if (m->activations) km_ctx_set_activations(m->ctx, m->activations);
    how.split = split;
    if (bar) how.progress = km_cli_loading, how.user = bar;
    m->model = km_net_open(m->ctx, m->path, &how, err);
    if (!m->model) {
        km_ctx_free(m->ctx);
        m->ctx = NULL;
        return err->code;
    }
    km_net_devices(m->model, m->devices, sizeof m->devices);
    return KM_OK;
}

km_status km_cli_model_open_at(km_cli_model *m, const char *given, const char *tokenizer,
                               const km_common *common, const km_cli_where *where, km_dtype cache,
                               int64_t sequences, const km_open_options *how, km_error *err) {
    km_status s = km_cli_model_find(m, given, tokenizer, err);
    m->silent = km_cli_silent(where);
    if (s != KM_OK) return s;
    m->how = *how;
    m->context = how->context;
    m->threads = (int)common->threads;
    m->activations = (int)where->activations;
    const char *fault = getenv("KERMES_FAULT_STEP"); /* for tests: that step fails */
    if (fault) km_plan_fail_at(strtoll(fault, NULL, 10));
    if (km_cli_shares(where)) return km_cli_model_share(m, common, where, cache, sequences, err);
    if (only_cpu(common, where)) return open_on(m, "cpu", NULL, NULL, err);
    if ((s = make_plan(m, common, where, cache, sequences, err)) != KM_OK) return s;
    if (m->plan.context > 0) m->how.context = m->plan.context;
    km_open_split split = km_memory_split(&m->plan);
    km_progress bar;
    km_progress_begin(&bar, "loading", "MiB", 1, common->quiet);
    s = open_on(m, split.device[0], &split, &bar, err);
    km_progress_end(&bar);
    if (s == KM_OK || strcmp(common->device, "auto") != 0 || where->devices || where->gpu_layers ||
        (s != KM_ERR_GPU && s != KM_ERR_DEVICE && s != KM_ERR_MEMORY && s != KM_ERR_UNSUPPORTED))
        return s;
    /* auto never fails for want of a device */
    km_note(KM_LOG_WARN, "%s; going on with the CPU", err->text);
    *err = (km_error){0};
    m->how.context = m->context;
    m->planned = false;
    return open_on(m, "cpu", NULL, NULL, err);
}

km_status km_cli_model_to_cpu(km_cli_model *m, km_error *err) {
    km_net_free(m->model);
    km_ctx_free(m->ctx);
    m->model = NULL;
    m->ctx = NULL;
    return open_on(m, "cpu", NULL, NULL, err);
}

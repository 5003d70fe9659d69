/* Checkpoints of named parameters: one safetensors file with the parameters under their names, the
 * optimiser's state under optim.*, and the count of steps in its metadata. */
#include "base/alloc.h"
#include "format/safetensors.h"
#include "nn/optim.h"
#include "nn/optim_impl.h"
#include "ops/op.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"adamw", "adam", "sgd"};

static km_status usable(km_ctx *ctx, const char *path, const km_param_list *params,
                        const km_optimizer *o, const char *what) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!path || !params) return km_fail(ctx, KM_ERR_NULL, "%s: an argument is missing", what);
    for (int i = 0; i < params->n; i++)
        if (params->at[i].t->ctx != ctx)
            return km_fail(ctx, KM_ERR_STATE, "%s: parameter %.100s is of another context", what,
                           params->at[i].name);
    if (!o) return KM_OK;
    if (km_optimizer_check(ctx, o) != KM_OK) return km_ctx_status(ctx);
    return o->list == params
               ? KM_OK
               : km_fail(ctx, KM_ERR_STATE, "%s: the optimiser is of another list", what);
}

/* ---- Writing ---- */

/* Bytes of a parameter, wherever it is (km_fill_fn). */
static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    km_tensor *t = user;
    km_lane *lane = t->storage->lane;
    km_status s =
        lane->device->ops->download(lane, dst, (const char *)km_tensor_ptr(t) + offset, bytes);
    return s == KM_OK ? KM_OK : km_error_set(err, s, "%s", km_ctx_error(t->ctx));
}

/* The optimiser's state on the host, one after another; *at[i]: that of state i. */
static float *read_state(km_ctx *ctx, km_optimizer *o, float **at) {
    size_t total = 0;
    int n = km_optimizer_states(o);
    for (int i = 0; i < n; i++) total += (size_t)km_shape_count(km_optimizer_state(o, i).shape);
    float *all = km_alloc(sizeof *all * (total + 1)), *next = all;
    if (!all) {
        km_fail(ctx, KM_ERR_MEMORY, "param_list_save: out of memory");
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        at[i] = next;
        if (km_optimizer_read_state(ctx, o, i, next) != KM_OK) {
            km_free(all);
            return NULL;
        }
        next += km_shape_count(km_optimizer_state(o, i).shape);
    }
    return all;
}

km_status km_param_list_save(km_ctx *ctx, const char *path, const km_param_list *params,
                             km_optimizer *o, int64_t step) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (usable(ctx, path, params, o, "param_list_save") != KM_OK) return km_ctx_status(ctx);
    if (step < 0) return km_fail(ctx, KM_ERR_RANGE, "param_list_save: step %lld", (long long)step);
    int states = o ? km_optimizer_states(o) : 0, n = 0;
    km_st_item *items = km_calloc((size_t)(params->n + states) + 1, sizeof *items);
    float **at = km_calloc((size_t)states + 1, sizeof *at), *all = NULL;
    if (!items || !at) km_fail(ctx, KM_ERR_MEMORY, "param_list_save: out of memory");
    if (o && !km_failed(ctx)) all = read_state(ctx, o, at);
    if (!km_failed(ctx)) km_sync(ctx);
    for (int i = 0; i < params->n && !km_failed(ctx); i++) {
        const km_param *p = &params->at[i];
        if (strncmp(p->name, "optim.", 6) == 0)
            km_fail(ctx, KM_ERR_RANGE,
                    "param_list_save: '%.100s': names beginning with optim. are "
                    "the optimiser's",
                    p->name);
        else
            items[n++] = (km_st_item){.name = p->name,
                                      .dtype = p->t->dtype,
                                      .shape = p->t->shape,
                                      .data = km_tensor_data(p->t),
                                      .fill = fill,
                                      .user = p->t};
    }
    for (int i = 0; i < states && !km_failed(ctx); i++) {
        km_optim_state s = km_optimizer_state(o, i);
        items[n++] = (km_st_item){.name = s.name, .dtype = KM_F32, .shape = s.shape, .data = at[i]};
    }
    char count[32];
    snprintf(count, sizeof count, "%lld", (long long)step);
    const km_st_pair meta[] = {{"format", "kermes-parameters"},
                               {"kermes", km_version()},
                               {"step", count},
                               {"optimizer", o ? kinds[o->how.kind] : "none"}};
    km_error err = {0};
    if (!km_failed(ctx) && km_safetensors_write(path, items, n, meta, 4, &err) != KM_OK)
        km_fail(ctx, err.code, "param_list_save: %s", err.text);
    km_free(items);
    km_free(at);
    km_free(all);
    return km_ctx_status(ctx);
}

/* ---- Reading ---- */

static km_status same(const km_safetensors *f, const char *path, const char *name, km_dtype dtype,
                      km_shape shape, km_error *err) {
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    const km_st_tensor *t = km_safetensors_find(f, name);
    if (!t) return km_error_set(err, KM_ERR_FORMAT, "'%s' has no '%.100s'", path, name);
    if (t->dtype != dtype || !km_shape_equal(t->shape, shape))
        return km_error_set(err, KM_ERR_SHAPE,
                            "'%.100s' is %s of %s in '%s', and should be %s of %s", name,
                            km_shape_text(a, t->shape), t->type, path, km_shape_text(b, shape),
                            km_dtype_name(dtype));
    return KM_OK;
}

/* All that is to be loaded is there, of the right shape, before anything is changed. */
static km_status check_file(const km_safetensors *f, const char *path, const km_param_list *params,
                            const km_optimizer *o, int64_t *step, km_error *err) {
    const char *count = km_safetensors_meta(f, "step"), *kind = km_safetensors_meta(f, "optimizer");
    char *end = NULL;
    errno = 0;
    *step = count ? strtoll(count, &end, 10) : 0;
    if (!count || !kind || end == count || *end || errno || *step < 0)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' is no checkpoint of parameters", path);
    if (o && strcmp(kind, kinds[o->how.kind]) != 0)
        return km_error_set(err, KM_ERR_STATE, "'%s' has the state of %s, and the optimiser is %s",
                            path, strcmp(kind, "none") == 0 ? "no optimiser" : kind,
                            kinds[o->how.kind]);
    km_status s = KM_OK;
    for (int i = 0; i < params->n && s == KM_OK; i++)
        s = same(f, path, params->at[i].name, params->at[i].t->dtype, params->at[i].t->shape, err);
    for (int i = 0; o && i < km_optimizer_states(o) && s == KM_OK; i++) {
        km_optim_state state = km_optimizer_state(o, i);
        s = same(f, path, state.name, KM_F32, state.shape, err);
    }
    return s;
}

km_status km_param_list_load(km_ctx *ctx, const char *path, km_param_list *params, km_optimizer *o,
                             int64_t *step) {
    KM_CTX_CALL(ctx, km_ctx_missing(ctx));
    if (usable(ctx, path, params, o, "param_list_load") != KM_OK) return km_ctx_status(ctx);
    km_error err = {0};
    int64_t count = 0;
    km_safetensors *f = km_safetensors_open(path, &err);
    if (f) check_file(f, path, params, o, &count, &err);
    if (err.code != KM_OK) km_fail(ctx, err.code, "param_list_load: %s", err.text);
    for (int i = 0; i < params->n && !km_failed(ctx); i++) {
        const km_st_tensor *t = km_safetensors_find(f, params->at[i].name);
        km_write(ctx, params->at[i].t, t->data, t->bytes);
    }
    for (int i = 0; o && i < km_optimizer_states(o) && !km_failed(ctx); i++) {
        const km_st_tensor *t = km_safetensors_find(f, km_optimizer_state(o, i).name);
        float *copy = t->aligned ? NULL : km_alloc(t->bytes + 1);
        if (!t->aligned && !copy) {
            km_fail(ctx, KM_ERR_MEMORY, "param_list_load: out of memory");
            break;
        }
        if (copy) memcpy(copy, t->data, t->bytes);
        km_optimizer_write_state(ctx, o, i, copy ? copy : t->data);
        km_free(copy);
    }
    km_safetensors_close(f);
    if (step && !km_failed(ctx)) *step = count;
    return km_ctx_status(ctx);
}

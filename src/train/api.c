/* The public calls on training runs: settings from structs and JSON, arguments checked, errors told. */
#include "base/alloc.h"
#include "base/sized.h"
#include "comm/comm.h"
#include "base/json_read.h"
#include "train/checkpoint.h"
#include "train/demo.h"
#include "train/train.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static km_status told(km_error *err) {
    if (err->code != KM_OK) km_last_error_set(err);
    return err->code;
}

const km_setting *km_train_setting(int i) {
    int n = 0;
    while (km_train_table[n].name) n++;
    return i >= 0 && i < n ? &km_train_table[i] : NULL;
}

/* ---- Settings from JSON, whose values own the texts ---- */

/* The values that settings point into: s->held is a JSON array of them. */
static km_status hold(km_train_settings *s, json_t *value, km_error *err) {
    if (!s->held) s->held = json_array();
    if (s->held && json_array_append((json_t *)s->held, value) == 0) return KM_OK;
    return km_error_set(err, KM_ERR_MEMORY, "out of memory for settings");
}

static km_status usable(const km_train_settings *s, km_error *err) {
    if (!s) return km_error_set(err, KM_ERR_NULL, "no settings of a training run");
    if (s->size != sizeof *s) /* it is filled in place, so all of it must be there */
        return km_error_set(err, KM_ERR_RANGE,
                            "km_train_settings has a size of %zu, not %zu: take it from "
                            "km_train_defaults()",
                            s->size, sizeof *s);
    return KM_OK;
}

/* *s over what o says, which it then holds. o may be NULL, with *err set. */
static km_status overlay(km_train_settings *s, json_t *o, bool call, const char *shown,
                         km_error *err) {
    json_t *inner = json_object_get(o, "settings"); /* a run.json serves, too */
    km_train_settings next = *s;
    if (o && km_train_from_json(&next, inner ? inner : o, call, shown, err) == KM_OK &&
        hold(&next, o, err) == KM_OK)
        *s = next;
    else
        s->held = next.held; /* an array that was made is the caller's to free */
    json_decref(o);
    return err->code;
}

static km_status read_text(km_train_settings *s, const char *json, size_t bytes, bool call,
                           const char *shown, km_error *err) {
    if (usable(s, err) != KM_OK) return err->code;
    if (!json) return km_error_set(err, KM_ERR_NULL, "no JSON with settings");
    if (!shown) shown = "the settings";
    return overlay(s, km_json_parse(json, bytes, shown, err), call, shown, err);
}

km_status km_train_read_json(km_train_settings *s, const char *json, size_t bytes,
                             const char *shown) {
    km_error err = {0};
    read_text(s, json, bytes, false, shown, &err);
    return told(&err);
}

km_status km_train_read_file(km_train_settings *s, const char *path) {
    km_error err = {0};
    if (usable(s, &err) == KM_OK && !path)
        km_error_set(&err, KM_ERR_NULL, "no path to a file of settings");
    if (err.code == KM_OK) overlay(s, km_json_load(path, &err), false, path, &err);
    return told(&err);
}

km_status km_train_read_run(km_train_settings *s, const char *out) {
    km_error err = {0};
    if (usable(s, &err) != KM_OK) return told(&err);
    if (!out) {
        km_error_set(&err, KM_ERR_NULL, "no folder of a training run");
        return told(&err);
    }
    json_t *run = NULL;
    km_train_settings next = *s;
    if (km_train_stored(out, &next, &run, &err) == KM_OK && hold(&next, run, &err) == KM_OK)
        *s = next;
    else
        s->held = next.held;
    json_decref(run);
    return told(&err);
}

void km_train_settings_free(km_train_settings *s) {
    if (!s || s->size != sizeof *s) return;
    json_decref(s->held);
    s->held = NULL;
}

/* Numbers are in the range that the table says, or as the defaults have them. */
static km_status check_ranges(const km_train_settings *s, const km_train_settings *plain,
                              km_error *err) {
    for (const km_setting *r = km_train_table; r->name; r++) {
        const char *mine = (const char *)s + r->offset, *own = (const char *)plain + r->offset;
        double v, d;
        if (r->kind == KM_SETTING_INT) {
            v = (double)*(const int64_t *)(const void *)mine;
            d = (double)*(const int64_t *)(const void *)own;
        } else if (r->kind == KM_SETTING_NUMBER) {
            v = *(const double *)(const void *)mine;
            d = *(const double *)(const void *)own;
        } else {
            continue;
        }
        if (v == d || (r->lo == 0 && r->hi == 0 && !isnan(v)) || (v >= r->lo && v <= r->hi))
            continue;
        return km_error_set(err, KM_ERR_RANGE, "%s is %g, and must be between %.10g and %.10g",
                            r->name, v, r->lo, r->hi);
    }
    return KM_OK;
}

/* What the caller gave, as this library has it; texts that are missing have their defaults, as a struct
 * of zeros would not. */
static km_status take(const km_train_settings *given, km_train_settings *own, km_error *err) {
    *own = km_train_defaults();
    const km_train_settings plain = *own;
    if (!given) return km_error_set(err, KM_ERR_NULL, "no settings of a training run");
    km_status s = km_take_sized(own, sizeof *own, given, "km_train_settings", err);
    if (s != KM_OK) return s;
    if (own->data.n < 0 || own->data.n > KM_TRAIN_MAX_DATA)
        return km_error_set(err, KM_ERR_RANGE, "%d texts; at most %d are possible", own->data.n,
                            KM_TRAIN_MAX_DATA);
    for (int i = 0; i < own->data.n; i++)
        if (!own->data.at[i]) return km_error_set(err, KM_ERR_NULL, "text %d has no path", i + 1);
    const char **texts[] = {&own->model, &own->schedule, &own->optimizer,
                            &own->dtype, &own->device,   &own->comm};
    const char *const defaults[] = {plain.model, plain.schedule, plain.optimizer,
                                    plain.dtype, plain.device,   plain.comm};
    for (int i = 0; i < 6; i++)
        if (!*texts[i]) *texts[i] = defaults[i];
    return check_ranges(own, &plain, err);
}

/* ---- Runs ---- */

/* With `resume`, settings that belong to the run must be as they were. */
static km_status check_resumed(const km_train_settings *s, km_error *err) {
    json_t *run = NULL;
    km_train_settings stored = km_train_defaults();
    if (!s->resume || !s->out) return KM_OK; /* told by what follows */
    km_status status = km_train_stored(s->out, &stored, &run, err);
    if (status == KM_OK) status = km_train_same_run(s, &stored, err);
    json_decref(run);
    return status;
}

km_status km_train_check(const km_train_settings *s) {
    km_error err = {0};
    km_train_settings own;
    if (take(s, &own, &err) == KM_OK && check_resumed(&own, &err) == KM_OK)
        km_train_settings_check(&own, &err);
    return told(&err);
}

km_status km_train(const km_train_settings *s, const km_train_hooks *hooks,
                   km_train_result *result) {
    km_error err = {0};
    km_train_settings own;
    km_train_hooks told_to = {.size = sizeof told_to};
    km_train_result r = {.size = sizeof r, .tells = true};
    if (take(s, &own, &err) == KM_OK &&
        km_take_sized(&told_to, sizeof told_to, hooks, "km_train_hooks", &err) == KM_OK &&
        km_check_sized(result, sizeof *result, "km_train_result", &err) == KM_OK &&
        check_resumed(&own, &err) == KM_OK)
        km_train_run(&own, &told_to, &r, &err);
    km_give_sized(result, &r, sizeof r);
    return told(&err);
}

km_status km_train_json(const char *settings, const km_train_hooks *hooks,
                        km_train_result *result) {
    km_error err = {0};
    km_train_settings s = km_train_defaults();
    size_t bytes = settings ? strlen(settings) : 0;
    read_text(&s, settings, bytes, true, NULL, &err);
    if (err.code == KM_OK && s.resume && s.out) { /* the run's own, under what the text says */
        km_train_settings under = km_train_defaults();
        json_t *run = NULL;
        if (km_train_stored(s.out, &under, &run, &err) == KM_OK && hold(&under, run, &err) == KM_OK)
            read_text(&under, settings, bytes, true, NULL, &err);
        json_decref(run);
        km_train_settings_free(&s);
        s = under;
    }
    km_status status = err.code == KM_OK ? km_train(&s, hooks, result) : told(&err);
    km_train_settings_free(&s);
    return status;
}

km_status km_train_demo_text(const char *path, uint64_t seed, size_t bytes) {
    km_error err = {0};
    char folder[PATH_MAX];
    if (!path || strlen(path) >= sizeof folder) {
        km_error_set(&err, path ? KM_ERR_RANGE : KM_ERR_NULL,
                     "no path for a text to be written to");
        return told(&err);
    }
    strcpy(folder, path);
    char *slash = strrchr(folder, '/');
    if (slash && slash != folder) {
        *slash = 0;
        if (km_folder_make(folder, &err) != KM_OK) return told(&err);
    }
    if ((uint64_t)bytes > (uint64_t)1 << 40)
        km_error_set(&err, KM_ERR_RANGE, "%zu bytes are too much for a text to try", bytes);
    else
        km_demo_write(path, seed, bytes, &err);
    return told(&err);
}

int km_rank(void) { return km_comm_env_rank(); }

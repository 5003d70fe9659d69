/* The log of a run as lines of JSON. */
#include "train/history.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/file.h"
#include "report/json.h"
#include <errno.h>
#include <math.h>
#include <string.h>

static km_status remember(km_train_history *h, const km_train_point *p, km_error *err) {
    if (!km_array_reserve(&h->at, &h->cap, h->n + 1)) return km_no_memory_for(err, "the log");
    h->at[h->n++] = *p;
    return KM_OK;
}

static double member(const json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Lines up to `step` into memory and, as they are, into the new file. The last line of a killed
 * run may be cut short; it and whatever is no line of ours is dropped. */
static km_status cut_back(km_train_history *h, int64_t step, km_error *err) {
    km_map old;
    km_error ignored = {0};
    if (km_map_open(&old, h->path, &ignored) != KM_OK) return KM_OK; /* none yet */
    km_writer *w = km_writer_open(h->path, err);
    km_status s = w ? KM_OK : KM_ERR_FILE;
    const char *at = (const char *)old.data, *end = at + old.size;
    while (s == KM_OK && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) break;
        json_t *o = json_loadb(at, (size_t)(stop - at), 0, NULL);
        json_t *number = json_object_get(o, "step");
        if (json_is_integer(number) && json_integer_value(number) <= step) {
            km_train_point p = {.step = json_integer_value(number),
                                .train_loss = member(o, "train_loss"),
                                .val_loss = member(o, "val_loss"),
                                .lr = member(o, "lr"),
                                .norm = member(o, "grad_norm"),
                                .tokens_per_s = member(o, "tokens_per_s"),
                                .mfu = member(o, "mfu"),
                                .seconds = member(o, "seconds")};
            s = remember(h, &p, err);
            km_writer_put(w, at, (size_t)(stop - at + 1));
        }
        json_decref(o);
        at = stop + 1;
    }
    s = km_map_done(&old, s, err);
    if (s == KM_OK) return km_writer_commit(w, err);
    km_writer_abort(w);
    return s;
}

km_status km_history_open(km_train_history *h, const char *path, int64_t step, km_error *err) {
    *h = (km_train_history){.path = km_strdup(path)};
    if (!h->path) return km_no_memory_for(err, "the log");
    km_status s = step >= 0 ? cut_back(h, step, err) : KM_OK;
    if (s == KM_OK) {
        h->file = fopen(path, step >= 0 ? "ae" : "we");
        if (!h->file)
            s = km_error_set(err, KM_ERR_FILE, "cannot write '%s': %s", path, strerror(errno));
    }
    if (s != KM_OK) km_history_close(h);
    return s;
}

static void put(json_t *o, const char *key, double v, int digits) {
    if (!isnan(v)) json_object_set_new(o, key, km_json_number(v, digits));
}

km_status km_history_add(km_train_history *h, const km_train_point *p, const km_train_status *s,
                         km_error *err) {
    km_status status = remember(h, p, err);
    if (status != KM_OK) return status;
    json_t *o = json_object();
    json_object_set_new(o, "step", json_integer(p->step));
    /* Nine digits tell any two f32 losses apart. */
    put(o, "train_loss", p->train_loss, 9);
    put(o, "val_loss", p->val_loss, 9);
    put(o, "lr", p->lr, 9);
    put(o, "grad_norm", p->norm, 9);
    put(o, "tokens_per_s", p->tokens_per_s, 4);
    put(o, "mfu", p->mfu, 4);
    put(o, "seconds", p->seconds, 7);
    if (s->skipped) json_object_set_new(o, "skipped", json_integer(s->skipped));
    if (s->loss_scale != 1) put(o, "loss_scale", s->loss_scale, 9);
    char *line = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (!line) return km_no_memory_for(err, "the log");
    errno = 0;
    bool ok = fputs(line, h->file) >= 0 && fputc('\n', h->file) != EOF && fflush(h->file) == 0;
    free(line);
    if (ok) return KM_OK;
    return km_error_set(err, KM_ERR_FILE, "cannot write '%s': %s", h->path,
                        strerror(errno ? errno : EIO));
}

void km_history_close(km_train_history *h) {
    if (h->file) fclose(h->file);
    km_free(h->path);
    km_free(h->at);
    *h = (km_train_history){0};
}

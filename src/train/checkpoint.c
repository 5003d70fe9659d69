/* Saving and loading checkpoints. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train/checkpoint.h"
#include "backend/cpu/gemm.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/json_read.h"
#include "base/log.h"
#include "model/files.h"
#include "model/lora.h"
#include "report/json.h"
#include "tensor/device.h"
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { FORMAT = 1 };

static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                    "optimizer.safetensors"};
enum { N_FILES = sizeof files / sizeof *files };

static void step_path(char path[PATH_MAX], const char *out, int64_t step) {
    char name[40];
    snprintf(name, sizeof name, "step-%" PRId64, step);
    km_folder_join(path, out, name);
}

/* ---- The optimiser's file: its state, and parameters that the model's file lacks ---- */

/* Padding of the vocabulary and corrections (LoRA) are no part of a Hugging Face folder. */
static bool correction(const km_param *p) { return strstr(p->name, ".lora_"); }

static bool apart(const km_net *m, const km_param *p) {
    bool table = p->t == m->wte.w || p->t == m->head.w;
    return correction(p) || (table && km_config_rows(&m->config) != m->config.vocab);
}

static bool corrected(const km_net *m) {
    for (int i = 0; i < m->params.n; i++)
        if (correction(&m->params.at[i])) return true;
    return false;
}

typedef struct saved_piece {
    const km_checkpoint_parts *parts;
    const km_param *param; /* or, when NULL, */
    int state;             /* of the optimiser */
    char *name;            /* of a parameter here: "model." and its name */
    char **buffer;         /* shared: what is being written, whole */
    int *read;             /* shared: how many states were read so far */
} saved_piece;

static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    saved_piece *x = user;
    const km_checkpoint_parts *p = x->parts;
    km_status s = KM_OK;
    if (offset == 0 && x->param) {
        km_tensor *t = x->param->t;
        s = km_read(p->ctx, t, *x->buffer,
                    (size_t)km_tensor_count(t) * km_dtype_size(km_tensor_dtype(t)));
    } else if (offset == 0) {
        ++*x->read;
        s = km_optimizer_read_state(p->ctx, p->optimizer, x->state, (float *)(void *)*x->buffer);
    }
    if (s != KM_OK) return km_error_set(err, s, "%s", km_ctx_error(p->ctx));
    memcpy(dst, *x->buffer + offset, bytes);
    return KM_OK;
}

typedef struct saved_pieces {
    km_st_item *item;
    saved_piece *at;
    int n, states;
    size_t largest; /* bytes */
} saved_pieces;

static void add_piece(saved_pieces *all, saved_piece x, const char *name, km_dtype dtype,
                      km_shape shape) {
    all->at[all->n] = x;
    all->item[all->n] = (km_st_item){
        .name = name, .dtype = dtype, .shape = shape, .fill = fill, .user = &all->at[all->n]};
    size_t bytes = (size_t)km_shape_count(shape) * km_dtype_size(dtype);
    if (bytes > all->largest) all->largest = bytes;
    all->n++;
}

static void free_pieces(saved_pieces *all) {
    for (int i = 0; all->at && i < all->n; i++) km_free(all->at[i].name);
    km_free(all->at);
    km_free(all->item);
}

static km_status list_pieces(saved_pieces *all, const km_checkpoint_parts *p, char **buffer,
                             int *read, km_error *err) {
    int states = km_optimizer_states(p->optimizer);
    size_t most = (size_t)(states + p->model->params.n);
    *all = (saved_pieces){.item = km_calloc(most, sizeof *all->item),
                          .at = km_calloc(most, sizeof *all->at),
                          .states = states,
                          .largest = 1};
    if (!all->item || !all->at) return km_no_memory_for(err, "the checkpoint");
    for (int i = 0; i < states; i++) {
        km_optim_state s = km_optimizer_state(p->optimizer, i);
        add_piece(all, (saved_piece){p, NULL, i, NULL, buffer, read}, s.name, KM_F32, s.shape);
    }
    for (int i = 0; i < p->model->params.n; i++) {
        const km_param *param = &p->model->params.at[i];
        if (!apart(p->model, param)) continue;
        size_t size = strlen(param->name) + sizeof "model.";
        char *name = km_alloc(size);
        if (!name) return km_no_memory_for(err, "the checkpoint");
        snprintf(name, size, "model.%s", param->name);
        add_piece(all, (saved_piece){p, param, -1, name, buffer, read}, name,
                  km_tensor_dtype(param->t), km_tensor_shape(param->t));
    }
    return KM_OK;
}

/* path NULL: nothing is written, but what other ranks wait for happens. */
static km_status save_optimizer(const char *path, const km_checkpoint_parts *p, km_error *err) {
    saved_pieces all;
    char *buffer = NULL;
    int read = 0;
    km_status s = list_pieces(&all, p, &buffer, &read, err);
    if (s == KM_OK && !(buffer = km_alloc_aligned(all.largest)))
        s = km_no_memory_for(err, "the checkpoint");
    if (s == KM_OK && path) s = km_safetensors_write(path, all.item, all.n, NULL, 0, err);
    /* Reading gathers, so every rank reads all, also after a failure. */
    while (p->ranks > 1 && buffer && read < all.states)
        km_optimizer_read_state(p->ctx, p->optimizer, read++, (float *)(void *)buffer);
    if (buffer) km_free_aligned(buffer, all.largest);
    free_pieces(&all);
    return s;
}

static km_status load_piece(const saved_piece *x, const void *data, size_t bytes) {
    const km_checkpoint_parts *p = x->parts;
    if (x->param) return km_write(p->ctx, x->param->t, data, bytes);
    return km_optimizer_write_state(p->ctx, p->optimizer, x->state, data);
}

static km_status load_optimizer(const char *path, const km_checkpoint_parts *p, km_error *err) {
    saved_pieces all;
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return KM_ERR_FORMAT;
    km_status s = list_pieces(&all, p, NULL, NULL, err);
    if (s == KM_OK && km_safetensors_count(f) != all.n)
        s = km_error_set(err, KM_ERR_FORMAT,
                         "'%s' is of another optimiser or model: it has %d tensors, not %d", path,
                         km_safetensors_count(f), all.n);
    for (int i = 0; i < all.n && s == KM_OK; i++) {
        const km_st_item *item = &all.item[i];
        const km_st_tensor *t = km_safetensors_find(f, item->name);
        if (!t || t->dtype != item->dtype || !km_shape_equal(t->shape, item->shape))
            s = km_error_set(err, KM_ERR_FORMAT, "'%s' does not fit: %s is %s", path, item->name,
                             t ? "of another shape or dtype" : "missing");
        else if (load_piece(&all.at[i], t->data, t->bytes) != KM_OK)
            s = km_error_set(err, km_ctx_status(p->ctx), "%s", km_ctx_error(p->ctx));
    }
    free_pieces(&all);
    km_safetensors_close(f);
    return s;
}

/* ---- The state's file ---- */

static json_t *hex(uint64_t v) {
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    return json_string(text);
}

static json_t *real(double v) { return isfinite(v) ? json_real(v) : json_null(); }

static km_status hash_file(const char *path, uint64_t *bytes, uint64_t *hash, km_error *err) {
    km_map m;
    km_status s = km_map_open(&m, path, err);
    if (s != KM_OK) return s;
    *bytes = m.size;
    *hash = XXH3_64bits(m.data, m.size);
    return km_map_done(&m, KM_OK, err);
}

/* The checksum of an object: of its text with the keys in order. */
static bool hash_object(const json_t *o, uint64_t *hash) {
    char *text = json_dumps(o, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return false;
    *hash = XXH3_64bits(text, strlen(text));
    free(text);
    return true;
}

static json_t *state_json(const km_train_state *s) {
    json_t *losses = json_array();
    for (int i = 0; i < s->n_losses; i++) json_array_append_new(losses, real(s->losses[i]));
    return json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}",
                     "kermes", km_version(), "format", FORMAT, "step", (json_int_t)s->step, "data",
                     hex(s->data), "tokenizer", hex(s->tokenizer), "best_val", real(s->best_val),
                     "best_step", (json_int_t)s->best_step, "bad_evals", (json_int_t)s->bad_evals,
                     "evaluated", (json_int_t)s->evaluated, "train_loss", real(s->train_loss),
                     "val_loss", real(s->val_loss), "seconds", real(s->seconds), "tokens",
                     real(s->tokens), "losses", losses);
}

static km_status save_state(const char *folder, const km_train_state *state, bool on_host,
                            km_error *err) {
    char path[PATH_MAX];
    km_status s = KM_OK;
    json_t *o = state_json(state), *list = json_array();
    if (on_host) json_object_set_new(o, "products", json_string(km_gemm_served()));
    for (int i = 0; i < N_FILES && s == KM_OK; i++) {
        uint64_t bytes, hash;
        km_folder_join(path, folder, files[i]);
        s = hash_file(path, &bytes, &hash, err);
        if (s == KM_OK)
            json_array_append_new(list, json_pack("{s:s, s:I, s:o}", "name", files[i], "bytes",
                                                  (json_int_t)bytes, "xxh3", hex(hash)));
    }
    json_object_set_new(o, "files", list);
    uint64_t check;
    char *text = NULL;
    if (s == KM_OK && hash_object(o, &check)) {
        json_object_set_new(o, "xxh3", hex(check));
        text = json_dumps(o, JSON_INDENT(1));
    }
    json_decref(o);
    if (s == KM_OK && !text) s = km_no_memory_for(err, "the checkpoint");
    km_folder_join(path, folder, "state.json");
    km_writer *w = s == KM_OK ? km_writer_open(path, err) : NULL;
    if (s == KM_OK && !w) s = KM_ERR_FILE;
    if (w) km_writer_printf(w, "%s\n", text);
    if (w) s = km_writer_commit(w, err);
    free(text);
    return s;
}

static km_status damaged(const char *folder, const char *what, km_error *err) {
    return km_error_set(err, KM_ERR_FORMAT,
                        "the checkpoint '%s' is damaged: %s; remove that folder to go on from the "
                        "one before",
                        folder, what);
}

static double number(const json_t *o, const char *key) {
    json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static uint64_t hex_number(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? strtoull(s, NULL, 16) : 0;
}

static km_status check_files(const char *folder, const json_t *list, km_error *err) {
    char path[PATH_MAX], text[96];
    if (json_array_size(list) != N_FILES) return damaged(folder, "state.json lists no files", err);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(o, "name"));
        uint64_t bytes, hash;
        km_error why = {0};
        if (!name || strcmp(name, files[i]) != 0)
            return damaged(folder, "state.json lists other files", err);
        km_folder_join(path, folder, name);
        if (hash_file(path, &bytes, &hash, &why) != KM_OK)
            snprintf(text, sizeof text, "%s is missing", name);
        else if ((json_int_t)bytes != json_integer_value(json_object_get(o, "bytes")))
            snprintf(text, sizeof text, "%s has another size than was written", name);
        else if (hash != hex_number(o, "xxh3"))
            snprintf(text, sizeof text, "the checksum of %s is wrong", name);
        else
            continue;
        return damaged(folder, text, err);
    }
    return KM_OK;
}

static km_status read_state(const json_t *o, km_train_state *s, km_error *err) {
    json_t *losses = json_object_get(o, "losses");
    size_t n = json_array_size(losses);
    *s = (km_train_state){.step = json_integer_value(json_object_get(o, "step")),
                          .data = hex_number(o, "data"),
                          .tokenizer = hex_number(o, "tokenizer"),
                          .best_val = number(o, "best_val"),
                          .best_step = json_integer_value(json_object_get(o, "best_step")),
                          .bad_evals = json_integer_value(json_object_get(o, "bad_evals")),
                          .evaluated = json_integer_value(json_object_get(o, "evaluated")),
                          .train_loss = number(o, "train_loss"),
                          .val_loss = number(o, "val_loss"),
                          .seconds = number(o, "seconds"),
                          .tokens = number(o, "tokens"),
                          .losses = km_alloc((n + 1) * sizeof(float))};
    if (!s->losses) return km_no_memory_for(err, "the checkpoint");
    for (; s->n_losses < (int)n; s->n_losses++) {
        json_t *v = json_array_get(losses, (size_t)s->n_losses);
        s->losses[s->n_losses] = json_is_number(v) ? (float)json_number_value(v) : NAN;
    }
    return KM_OK;
}

km_status km_checkpoint_open(const char *out, int64_t step, km_train_state *state, km_error *err) {
    char folder[PATH_MAX], path[PATH_MAX];
    km_error why = {0};
    uint64_t check;
    step_path(folder, out, step);
    km_folder_join(path, folder, "state.json");
    *state = (km_train_state){0};
    json_t *o = km_json_load(path, &why);
    if (!o)
        return km_error_set(err, KM_ERR_FORMAT,
                            "'%s' is no checkpoint of Kermes, or a damaged one: %.200s", folder,
                            why.text);
    km_status s = KM_OK;
    if (json_integer_value(json_object_get(o, "format")) != FORMAT) {
        s = km_error_set(err, KM_ERR_FORMAT,
                         "'%s' is no checkpoint that this version of Kermes can read", folder);
    } else {
        uint64_t said = hex_number(o, "xxh3");
        json_object_del(o, "xxh3");
        if (!hash_object(o, &check) || check != said ||
            json_integer_value(json_object_get(o, "step")) != step)
            s = damaged(folder, "the checksum of state.json is wrong", err);
    }
    if (s == KM_OK) s = check_files(folder, json_object_get(o, "files"), err);
    if (s == KM_OK) s = read_state(o, state, err);
    const char *products = json_string_value(json_object_get(o, "products"));
    if (s == KM_OK && products && strcmp(products, km_gemm_served()) != 0)
        km_note(KM_LOG_WARN,
                "the run so far had its products from other kernels (%s), so losses may differ in "
                "their last digits from those of a run that was not interrupted",
                products);
    json_decref(o);
    return s;
}

/* ---- Whole folders ---- */

static km_status save_model(const char *folder, const km_checkpoint_parts *p, bool adapter,
                            km_error *err) {
    char path[PATH_MAX];
    km_status s = km_folder_make(folder, err);
    if (s == KM_OK)
        s = adapter ? km_lora_save(p->model, folder, err) : km_net_save(p->model, folder, err);
    km_folder_join(path, folder, "tokenizer.json");
    return s == KM_OK ? km_token_save(p->token, path, err) : s;
}

km_status km_checkpoint_save(const char *out, const km_checkpoint_parts *p,
                             const km_train_state *state, km_error *err) {
    char folder[PATH_MAX], temp[PATH_MAX], path[PATH_MAX];
    step_path(folder, out, state->step);
    km_folder_temp(temp, folder);
    km_folder_join(path, temp, "optimizer.safetensors");
    if (p->rank != 0) return save_optimizer(NULL, p, err);
    km_folder_remove(temp);
    km_status s = save_model(temp, p, false, err);
    km_status t = save_optimizer(s == KM_OK ? path : NULL, p, err);
    if (s == KM_OK) s = t;
    if (s == KM_OK) s = save_state(temp, state, p->model->ctx->device->host, err);
    if (s == KM_OK) return km_folder_publish(temp, folder, err);
    km_folder_remove(temp);
    return s;
}

km_status km_checkpoint_load(const char *out, int64_t step, const km_checkpoint_parts *p,
                             km_error *err) {
    char folder[PATH_MAX], path[PATH_MAX];
    step_path(folder, out, step);
    km_status s = KM_OK;
    if (!corrected(p->model)) { /* else the weights are frozen, and came from here already */
        km_folder_join(path, folder, "model.safetensors");
        km_safetensors *f = km_safetensors_open(path, err);
        if (!f) return KM_ERR_FORMAT;
        s = km_net_read(p->model, f, err);
        km_safetensors_close(f);
    }
    km_folder_join(path, folder, "optimizer.safetensors");
    return s == KM_OK ? load_optimizer(path, p, err) : s;
}

km_status km_net_export(const char *path, const km_checkpoint_parts *p, bool adapter,
                        km_error *err) {
    char temp[PATH_MAX];
    if (p->rank != 0) return KM_OK;
    km_folder_temp(temp, path);
    km_folder_remove(temp);
    km_status s = save_model(temp, p, adapter, err);
    if (s == KM_OK) return km_folder_publish(temp, path, err);
    km_folder_remove(temp);
    return s;
}

/* The step in a name "step-N"; -1 for other names. */
static int64_t step_of(const char *name) {
    char *end;
    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
    long long n = strtoll(name + 5, &end, 10);
    return *end ? -1 : n;
}

int64_t km_checkpoint_latest(const char *out) {
    int64_t latest = -1;
    DIR *d = opendir(out);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));)
        if (step_of(e->d_name) > latest) latest = step_of(e->d_name);
    closedir(d);
    return latest;
}

/* The lowest step; *n receives how many there are. */
static int64_t lowest(const char *out, int64_t *n) {
    int64_t low = -1;
    DIR *d = opendir(out);
    *n = 0;
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step = step_of(e->d_name);
        if (step < 0) continue;
        ++*n;
        if (low < 0 || step < low) low = step;
    }
    closedir(d);
    return low;
}

void km_checkpoint_prune(const char *out, int64_t keep) {
    char path[PATH_MAX], temp[PATH_MAX];
    int64_t n, step;
    while ((step = lowest(out, &n)) >= 0 && n > keep) {
        step_path(path, out, step);
        km_folder_temp(temp, path);
        /* Under another name first: half a checkpoint must not look like one. */
        if (rename(path, temp) != 0) return;
        km_folder_remove(temp);
    }
}

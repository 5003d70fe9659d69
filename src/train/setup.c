/* Setting up a run: its folder, tokenizer, text, model and optimiser, new or from a checkpoint.
 * Nothing is written to the folder but cached tokens until all of it has worked out. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "backend/backend.h"
#include "base/alloc.h"
#include "base/json_read.h"
#include "model/files.h"
#include "model/lora.h"
#include "report/json.h"
#include "train/trainer.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

void km_trainer_path(const km_trainer *t, char out[PATH_MAX], const char *name) {
    km_folder_join(out, t->s->out, name);
}

void km_trainer_tell(km_trainer *t, km_train_event e, const char *text) {
    if (t->hooks && t->hooks->event && t->rank == 0)
        t->hooks->event(t->hooks->user, e, &t->result->status, text);
}

km_checkpoint_parts km_trainer_parts(km_trainer *t) {
    return (km_checkpoint_parts){.ctx = t->ctx,
                                 .model = t->model,
                                 .optimizer = t->optimizer,
                                 .token = t->token,
                                 .rank = t->rank,
                                 .ranks = t->ranks};
}

km_status km_trainer_agree(km_trainer *t, km_status s) {
    struct {
        km_status status;
        char text[KM_ERROR_TEXT];
    } said = {.status = s};
    if (t->ranks == 1) return s;
    double failed = s != KM_OK;
    if (s != KM_OK) snprintf(said.text, sizeof said.text, "%s", t->err->text);
    km_status sent = km_comm_sum(t->comm, &failed, 1, t->err);
    if (sent != KM_OK || failed == 0) return sent;
    sent = km_comm_broadcast(t->comm, 0, &said, sizeof said, t->err);
    if (sent != KM_OK) return sent;
    t->result->tells = t->rank == 0 || (s != KM_OK && said.status == KM_OK);
    if (s != KM_OK) return s;
    if (said.status == KM_OK) return km_error_set(t->err, KM_ERR_STATE, "another rank failed");
    return km_error_set(t->err, said.status, "%s", said.text);
}

static km_status ctx_failed(km_trainer *t) {
    return km_error_set(t->err, km_ctx_status(t->ctx), "%s", km_ctx_error(t->ctx));
}

/* ---- The folder ---- */

/* A new run takes only a folder in which nothing of a run lies; its cache may. */
static km_status check_unused(km_trainer *t) {
    static const char *const names[] = {"run.json", "log.jsonl",   "tokenizer.json",
                                        "model",    "report.html", "best"};
    char path[PATH_MAX];
    km_trainer_path(t, path, "run.json");
    int64_t step = km_checkpoint_latest(t->s->out);
    if (access(path, F_OK) == 0)
        return km_error_set(t->err, KM_ERR_STATE,
                            "'%s' holds a run already%s: go on with it by --resume, or choose "
                            "another --out",
                            t->s->out, step < 0 ? ", without a checkpoint yet" : "");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        km_trainer_path(t, path, names[i]);
        if (access(path, F_OK) == 0 || step >= 0)
            return km_error_set(t->err, KM_ERR_STATE,
                                "'%s' holds something else already (%s); choose another --out",
                                t->s->out, step >= 0 ? "a checkpoint" : names[i]);
    }
    return KM_OK;
}

/* Two runs in one folder would write over each other. */
static km_status lock_folder(km_trainer *t) {
    char path[PATH_MAX];
    km_trainer_path(t, path, ".lock");
    t->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (t->lock < 0)
        return km_error_set(t->err, KM_ERR_FILE, "cannot write in '%s': %s", t->s->out,
                            strerror(errno));
    if (flock(t->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return km_error_set(t->err, KM_ERR_STATE, "another process is training in '%s'", t->s->out);
    return KM_OK;
}

static km_status prepare_folder(km_trainer *t) {
    char path[PATH_MAX];
    if (strlen(t->s->out) > PATH_MAX - 200)
        return km_error_set(t->err, KM_ERR_RANGE, "--out: the name is too long");
    if (t->s->resume) {
        km_trainer_path(t, path, "run.json");
        if (access(path, F_OK) != 0)
            return km_error_set(t->err, KM_ERR_FILE, "no run to resume in '%s'", t->s->out);
    } else {
        km_status s = check_unused(t);
        t->made = access(t->s->out, F_OK) != 0;
        if (s == KM_OK) s = km_folder_make(t->s->out, t->err);
        if (s != KM_OK) return s;
    }
    km_status s = lock_folder(t);
    if (s != KM_OK) return s;
    km_folder_sweep(t->s->out);
    km_trainer_path(t, path, "cache");
    s = km_folder_make(path, t->err);
    if (s == KM_OK) km_folder_sweep(path);
    return s == KM_OK && t->s->cache ? km_folder_make(t->s->cache, t->err) : s;
}

/* run.json, the mark of a run; from here on the folder is taken. */
km_status km_trainer_write_run(km_trainer *t, int64_t finished) {
    char path[PATH_MAX];
    km_trainer_path(t, path, "run.json");
    json_t *settings = km_train_to_json(t->s);
    if (!settings)
        return km_error_set(t->err, KM_ERR_FORMAT,
                            "a file name is not UTF-8, which run.json "
                            "cannot hold");
    json_t *o = json_pack("{s:s, s:o}", "kermes", km_version(), "settings", settings);
    if (finished >= 0) json_object_set_new(o, "finished", json_integer(finished));
    char *text = json_dumps(o, JSON_INDENT(2));
    json_decref(o);
    if (!text) return km_no_memory_for(t->err, "'%s'", path);
    km_writer *w = km_writer_open(path, t->err);
    km_status s = w ? KM_OK : KM_ERR_FILE;
    if (w) km_writer_printf(w, "%s\n", text);
    if (w) s = km_writer_commit(w, t->err);
    free(text);
    return s;
}

/* A run that never began leaves no trace: a folder without run.json goes if it is empty. */
static void leave_folder(km_trainer *t) {
    char path[PATH_MAX];
    if (t->lock < 0) return;
    km_trainer_path(t, path, "run.json");
    if (access(path, F_OK) != 0) {
        km_trainer_path(t, path, ".lock");
        unlink(path);
        km_trainer_path(t, path, "cache");
        rmdir(path);
        if (t->made) rmdir(t->s->out);
    }
    close(t->lock);
}

/* ---- Tokenizer and text ---- */

static bool prepare_progress(void *user, const char *stage, int64_t done, int64_t total) {
    km_trainer *t = user;
    t->result->status.step = done;
    t->result->status.steps = total;
    km_trainer_tell(t, KM_TRAIN_PREPARE, stage);
    return !(t->hooks && t->hooks->stop && t->hooks->stop(t->hooks->user));
}

static km_token *learn_tokenizer(km_trainer *t, const char *kind) {
    const km_text_source *sources = t->sources;
    size_t n = 0, at = 0;
    for (int i = 0; i < t->s->data.n; i++) {
        n += (size_t)sources[i].n_files;
        if (sources[i].tokenised) {
            km_error_set(t->err, KM_ERR_STATE,
                         "'%s' is tokenised already; name its tokenizer with --tokenizer FILE",
                         sources[i].path);
            return NULL;
        }
    }
    km_span *spans = km_calloc(n, sizeof *spans);
    if (!spans) {
        km_no_memory_for(t->err, "the list of texts");
        return NULL;
    }
    for (int i = 0; i < t->s->data.n; i++)
        for (int k = 0; k < sources[i].n_files; k++)
            spans[at++] = (km_span){(const char *)sources[i].files[k].text.data,
                                    sources[i].files[k].text.size};
    static const char *const special[] = {KM_TOKEN_END};
    km_bpe_options how = {.vocab = strncmp(kind, "bpe:", 4) == 0 ? strtol(kind + 4, NULL, 10) : 0,
                          .threads = (int)t->s->threads,
                          .special = special,
                          .n_special = 1,
                          .progress = prepare_progress,
                          .user = t};
    km_token *token = strcmp(kind, "char") == 0 ? km_token_chars(spans, n, t->err)
                                                : km_token_train_bpe(spans, n, &how, t->err);
    km_free(spans);
    return token;
}

static km_status make_tokenizer(km_trainer *t) {
    char path[PATH_MAX];
    const char *kind = t->s->tokenizer ? t->s->tokenizer : t->s->init ? t->s->init : "char";
    km_status s = KM_OK;
    km_trainer_path(t, path, "tokenizer.json");
    bool text = strcmp(kind, "bytes") != 0;
    if (text) s = km_sources_check_utf8(t->sources, t->s->data.n, t->err);
    if (s != KM_OK) return s;
    if (t->s->resume && access(path, F_OK) == 0)
        t->token = km_token_load(path, t->err);
    else if (!text)
        t->token = km_token_bytes(t->err);
    else if (strcmp(kind, "char") == 0 || strncmp(kind, "bpe:", 4) == 0)
        t->token = learn_tokenizer(t, kind);
    else
        t->token = km_token_load(kind, t->err);
    return t->token ? KM_OK : t->err->code;
}

/* Rank 0 makes it; the others read what it wrote. */
static km_status get_tokenizer(km_trainer *t) {
    char path[PATH_MAX];
    km_trainer_path(t, path, "cache/tokenizer.json");
    km_status s = t->rank == 0 ? make_tokenizer(t) : KM_OK;
    if (t->ranks == 1) return s;
    if (s == KM_OK && t->rank == 0) s = km_token_save(t->token, path, t->err);
    s = km_trainer_agree(t, s);
    if (s == KM_OK && t->rank != 0) t->token = km_token_load(path, t->err);
    return s != KM_OK || t->token ? s : t->err->code;
}

static km_status open_data(km_trainer *t) {
    char cache[PATH_MAX];
    km_trainer_path(t, cache, "cache");
    km_dataset_options o = {.cache = t->s->cache ? t->s->cache : cache,
                            .val = t->s->val,
                            .special = t->s->special,
                            .threads = (int)t->s->threads,
                            .context = t->context,
                            .progress = prepare_progress,
                            .user = t};
    /* Rank 0 makes the tokens; the others then find them in the cache. */
    km_status s = KM_OK;
    if (t->rank == 0) s = km_dataset_open(&t->data, t->sources, t->s->data.n, t->token, &o, t->err);
    s = km_trainer_agree(t, s);
    if (s == KM_OK && t->rank != 0)
        s = km_dataset_open(&t->data, t->sources, t->s->data.n, t->token, &o, t->err);
    t->sampler =
        (km_window_sampler){.data = &t->data, .seed = (uint64_t)t->s->seed, .context = t->context};
    return s;
}

/* ---- The model ---- */

/* Where weights that are not random come from: the run's own checkpoint once there is one, so that
 * the folder of --init may be gone by then. false: from nowhere. */
static bool weights_folder(const km_trainer *t, char path[PATH_MAX]) {
    char name[40];
    if (!t->s->init) return false;
    snprintf(name, sizeof name, "step-%" PRId64, t->from);
    if (t->from >= 0) {
        km_trainer_path(t, path, name);
        return true;
    }
    km_folder_join(path, t->s->init, "model/config.json"); /* a run's folder stands for its model */
    bool run = access(path, F_OK) == 0;
    if (run)
        km_folder_join(path, t->s->init, "model");
    else
        snprintf(path, PATH_MAX, "%s", t->s->init);
    return true;
}

static km_status get_config(km_trainer *t) {
    char folder[PATH_MAX];
    int64_t vocab = km_token_vocab(t->token);
    bool given = weights_folder(t, folder);
    km_status s = given ? km_config_load(&t->config, folder, t->err)
                        : km_train_config(t->s, &t->config, t->err);
    if (s != KM_OK) return s;
    if (given && vocab > t->config.vocab)
        return km_error_set(t->err, KM_ERR_RANGE,
                            "the tokenizer has %" PRId64 " tokens, and the model in '%s' knows "
                            "only %" PRId64,
                            vocab, folder, t->config.vocab);
    if (!given) t->config.vocab = vocab;
    t->context = t->s->context ? t->s->context : t->config.context;
    if (t->context > t->config.context)
        return km_error_set(t->err, KM_ERR_RANGE,
                            "--context %" PRId64 " is more than the %" PRId64 " of the model in "
                            "'%s'",
                            t->context, t->config.context, folder);
    return km_config_complete(&t->config, t->err);
}

static km_status new_model(km_trainer *t) {
    char folder[PATH_MAX];
    km_dtype dtype = km_train_dtype(t->s);
    if (weights_folder(t, folder)) {
        t->model = km_net_load(t->ctx, folder, dtype, t->err);
        if (!t->model) return t->err->code;
        if (t->s->dropout >= 0) t->model->config.dropout = t->s->dropout;
        return KM_OK;
    }
    t->model = km_net_new(t->ctx, &t->config, dtype);
    if (!t->model || km_net_init(t->model, (uint64_t)t->s->seed) != KM_OK) return ctx_failed(t);
    return KM_OK;
}

/* Which parameters are trained. */
static km_status choose_trained(km_trainer *t) {
    const km_train_settings *o = t->s;
    if (o->lora_rank) {
        km_lora_config c = {
            .rank = (int)o->lora_rank, .alpha = o->lora_alpha, .targets = o->lora_targets};
        return km_lora_add(t->model, &c, (uint64_t)o->seed, t->err);
    }
    if (o->freeze && km_net_freeze(t->model, o->freeze, true) == 0)
        return km_error_set(t->err, KM_ERR_RANGE,
                            "--freeze '%s' fits no parameter; they have names such as %s",
                            o->freeze, t->model->params.at[0].name);
    if (km_param_elements(&t->model->params, true) == 0)
        return km_error_set(t->err, KM_ERR_RANGE, "--freeze '%s' leaves nothing to train",
                            o->freeze);
    return KM_OK;
}

static km_status make_model(km_trainer *t) {
    km_status s = new_model(t);
    if (s == KM_OK) s = choose_trained(t);
    if (s != KM_OK) return s;
    t->model->recompute = t->s->recompute;
    km_optim_settings how = km_train_optim(t->s);
    t->optimizer = km_optimizer_new_ranks(t->ctx, &t->model->params, &how, t->comm);
    return t->optimizer ? KM_OK : ctx_failed(t);
}

/* ---- Going on ---- */

/* Whether nothing is left to do. A run may also have been killed between its last checkpoint and
 * its last file; run.json knows. */
static bool finished(const km_trainer *t) {
    char path[PATH_MAX];
    km_error ignored = {0};
    km_trainer_path(t, path, "run.json");
    json_t *run = km_json_load(path, &ignored);
    json_t *at = json_object_get(run, "finished");
    bool written = json_is_integer(at) && json_integer_value(at) == t->state.step;
    json_decref(run);
    bool worn_out = t->s->patience && t->state.bad_evals >= t->s->patience;
    return written && (t->state.step >= t->s->steps || worn_out);
}

static km_status load_state(km_trainer *t, int64_t step) {
    km_train_state *state = &t->state;
    km_status s = km_checkpoint_open(t->s->out, step, state, t->err);
    if (s != KM_OK) return s;
    if (state->tokenizer != km_token_hash(t->token))
        return km_error_set(t->err, KM_ERR_STATE,
                            "'%s/step-%" PRId64 "' was trained with another tokenizer than the "
                            "run's",
                            t->s->out, step);
    if (state->data != km_dataset_hash(&t->data))
        return km_error_set(t->err, KM_ERR_STATE,
                            "the text has changed since '%s/step-%" PRId64 "' was saved; a new "
                            "run can start from it: --init %s/step-%" PRId64 " --out ANOTHER",
                            t->s->out, step, t->s->out, step);
    if (finished(t))
        return km_error_set(
            t->err, KM_ERR_STATE, "the run in '%s' ended after %" PRId64 " steps; %s goes on",
            t->s->out, step, step >= t->s->steps ? "a larger --steps" : "a larger --patience or 0");
    km_checkpoint_parts parts = km_trainer_parts(t);
    return km_checkpoint_load(t->s->out, step, &parts, t->err);
}

static km_status begin_or_resume(km_trainer *t) {
    char path[PATH_MAX];
    int64_t step = t->from;
    km_train_state *state = &t->state;
    *state = (km_train_state){.best_val = NAN, .train_loss = NAN, .val_loss = NAN, .evaluated = -1};
    t->saved = step;
    km_status s = step >= 0 ? load_state(t, step) : KM_OK;
    if (s != KM_OK) return s;
    state->tokenizer = km_token_hash(t->token);
    state->data = km_dataset_hash(&t->data);
    float *losses =
        km_realloc(state->losses, (size_t)(t->s->log_every + state->n_losses) * sizeof *losses);
    if (!losses) return km_no_memory_for(t->err, "the losses");
    state->losses = losses;
    if (t->rank == 0) {
        s = km_trainer_write_run(t, -1);
        km_trainer_path(t, path, "tokenizer.json");
        if (s == KM_OK) s = km_token_save(t->token, path, t->err);
        km_trainer_path(t, path, "log.jsonl");
        if (s == KM_OK) s = km_history_open(&t->history, path, step, t->err);
    }
    return km_trainer_agree(t, s);
}

/* ---- All of it ---- */

static km_status open_stepper(km_trainer *t) {
    km_stepper_options o = {.batch = t->s->batch,
                            .context = t->context,
                            .accumulate = (int)t->s->accumulate,
                            .ring = (int)t->s->log_every,
                            .overfit = t->s->overfit_batch,
                            .no_graph = t->s->no_graph,
                            .seed = (uint64_t)t->s->seed,
                            .rank = t->rank,
                            .ranks = t->ranks};
    return km_stepper_open(&t->stepper, t->ctx, t->model, t->optimizer, &t->sampler, &o, t->err);
}

static void describe(km_trainer *t) {
    char parameters[KM_NUMBER_TEXT], trained[KM_NUMBER_TEXT], tokens[KM_NUMBER_TEXT];
    const km_config *c = &t->config;
    km_train_result *r = t->result;
    r->parameters = km_param_elements(&t->model->params, false);
    r->trained = km_optimizer_trained(t->optimizer);
    snprintf(r->device, sizeof r->device, "%s", km_ctx_device(t->ctx));
    bool part = r->trained != r->parameters;
    snprintf(t->about, sizeof t->about,
             "%s, %d layers, %d heads, %lld wide, context %lld: %s parameters%s%s%s in %s; %s "
             "tokens to learn from, %lld different; on %s",
             km_arch_name(c->arch), c->layers, c->heads, (long long)c->dim, (long long)t->context,
             km_format_si(parameters, (double)r->parameters), part ? " (" : "",
             part ? km_format_si(trained, (double)r->trained) : "", part ? " trained)" : "",
             t->s->dtype, km_format_si(tokens, (double)t->data.train), (long long)c->vocab,
             r->device);
}

/* Each rank of a machine takes a GPU of its own, unless one was named. */
static km_status open_device(km_trainer *t) {
    const char *device = t->s->device;
    char own[24];
    if (km_device_any_gpu(device) && km_comm_env_size() > 1) {
        snprintf(own, sizeof own, "cuda:%d", km_comm_env_local_rank());
        t->ctx = km_ctx_new(own, (int)t->s->threads);
    }
    if (!t->ctx) t->ctx = km_ctx_new(device, (int)t->s->threads);
    if (!t->ctx) return km_error_set(t->err, KM_ERR_DEVICE, "%s", km_last_error());
    t->comm = km_comm_open(t->s->comm, t->ctx, t->err);
    if (!t->comm) return t->err->code;
    t->rank = km_comm_rank(t->comm);
    t->ranks = km_comm_size(t->comm);
    return KM_OK;
}

km_status km_trainer_open(km_trainer *t) {
    const km_train_settings *s = t->s;
    t->lock = -1;
    t->ranks = 1;
    km_status status = km_train_settings_check(s, t->err);
    if (status == KM_OK) status = open_device(t);
    if (status == KM_OK) status = km_sources_open(&t->sources, s->data.at, s->data.n, t->err);
    if (status == KM_OK && t->rank == 0) status = prepare_folder(t);
    status = km_trainer_agree(t, status);
    t->from = s->resume ? km_checkpoint_latest(s->out) : -1;
    if (status == KM_OK) status = get_tokenizer(t);
    if (status == KM_OK) status = get_config(t);
    if (status == KM_OK) status = open_data(t);
    if (status != KM_OK) return status;
    t->result->status.step = t->result->status.steps = 0;
    t->schedule = km_train_schedule(s, t->config.dim);
    status = km_schedule_check(&t->schedule, t->err);
    if (status != KM_OK) return status;
    t->peak = km_measure_products(t->ctx, km_train_dtype(s));
    status = make_model(t);
    if (status == KM_OK) status = begin_or_resume(t);
    if (status == KM_OK) status = open_stepper(t);
    if (status != KM_OK) return status;
    t->flops = km_net_flops_per_token(t->model, t->context);
    describe(t);
    return KM_OK;
}

void km_trainer_close(km_trainer *t) {
    km_history_close(&t->history);
    km_stepper_close(&t->stepper);
    km_optimizer_free(t->optimizer);
    km_net_free(t->model);
    km_dataset_close(&t->data);
    km_token_free(t->token);
    km_sources_close(t->sources, t->s->data.n);
    km_comm_close(t->comm);
    km_ctx_free(t->ctx);
    km_free(t->state.losses);
    leave_folder(t);
}

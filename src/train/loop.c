/* The training loop: steps are queued on the device; every few of them their losses are read, and
 * then everything that needs the host happens: the log, validation, samples, checkpoints. */
#include "model/files.h"
#include "base/clock.h"
#include "model/lora.h"
#include "train/trainer.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { MAX_BAD_LOSSES = 10, MAX_SKIPS = 100 };

/* ---- The clock: validation and saving do not count as training ---- */

static double training_time(const km_trainer *t) { return km_now() - t->busy_since - t->pause; }

static double step_tokens(const km_trainer *t) {
    return (double)(t->s->batch * t->s->accumulate * t->context) * t->ranks;
}

/* What is left to do at the pace of this part of the run, pauses included. */
static double time_left(const km_trainer *t) {
    double done = t->part_tokens / step_tokens(t);
    double wall = km_now() - t->busy_since;
    return done > 0 ? wall / done * (double)(t->s->steps - t->state.step) : NAN;
}

/* ---- The log ---- */

static km_status mad(km_trainer *t, const char *what, int64_t since) {
    int64_t saved = km_checkpoint_latest(t->s->out);
    char where[96] = "no checkpoint was saved before";
    if (saved >= 0) snprintf(where, sizeof where, "the last checkpoint is step-%" PRId64, saved);
    return km_error_set(t->err, KM_ERR_STATE,
                        "%s since step %" PRId64 ": --lr %g is too high for this model, or the "
                        "warm-up too short; %s",
                        what, since, t->schedule.lr, where);
}

static km_status mean_over_ranks(km_trainer *t, float *losses, int n) {
    enum { PIECE = 256 };
    double x[PIECE];
    km_status s = KM_OK;
    for (int at = 0; at < n && s == KM_OK; at += PIECE) {
        int k = n - at < PIECE ? n - at : PIECE;
        for (int i = 0; i < k; i++) x[i] = losses[at + i];
        s = km_comm_sum(t->comm, x, k, t->err);
        for (int i = 0; i < k; i++) losses[at + i] = (float)(x[i] / t->ranks);
    }
    return s;
}

/* Brings the losses of the steps queued so far to the host, and looks whether they make sense. */
static km_status drain(km_trainer *t) {
    km_train_state *state = &t->state;
    int before = state->n_losses;
    km_status s = km_stepper_drain(&t->stepper, state->losses, &state->n_losses, t->err);
    if (s == KM_OK && t->ranks > 1)
        s = mean_over_ranks(t, state->losses + before, state->n_losses - before);
    for (int i = before; i < state->n_losses && s == KM_OK; i++) {
        t->bad_losses = isfinite(state->losses[i]) ? 0 : t->bad_losses + 1;
        if (t->bad_losses >= MAX_BAD_LOSSES)
            s = mad(t, "the loss is not a finite number",
                    state->step - (state->n_losses - i) - t->bad_losses + 2);
    }
    return s;
}

static km_status report_skips(km_trainer *t, const km_optim_report *r) {
    char text[160];
    km_train_status *now = &t->result->status;
    now->skipped = r->skips;
    if (r->skips == t->skips_told) return KM_OK;
    int64_t fresh = r->skips - t->skips_told;
    t->skips_told = r->skips;
    t->skips_in_a_row = fresh >= t->s->log_every ? t->skips_in_a_row + fresh : 0;
    if (t->skips_in_a_row >= MAX_SKIPS)
        return mad(t, "no step had finite gradients", t->state.step - t->skips_in_a_row + 1);
    if (r->loss_scale != 1)
        snprintf(text, sizeof text,
                 "step %" PRId64 ": skipped %" PRId64 " with gradients beyond f16's range; the "
                 "loss scale is now %g",
                 t->state.step, fresh, r->loss_scale);
    else
        snprintf(text, sizeof text,
                 "step %" PRId64 ": skipped %" PRId64 " whose gradients were not finite",
                 t->state.step, fresh);
    km_trainer_tell(t, KM_TRAIN_NOTE, text);
    return KM_OK;
}

static double mean_loss(const km_train_state *state) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < state->n_losses; i++)
        if (isfinite(state->losses[i])) {
            sum += state->losses[i];
            n++;
        }
    return n ? sum / n : NAN;
}

static km_status log_line(km_trainer *t) {
    km_train_state *state = &t->state;
    km_train_status *now = &t->result->status;
    km_optim_report r = {.size = sizeof r};
    km_status s = drain(t);
    if (s == KM_OK && km_optimizer_report(t->ctx, t->optimizer, &r) != KM_OK)
        s = km_error_set(t->err, km_ctx_status(t->ctx), "%s", km_ctx_error(t->ctx));
    if (s == KM_OK) s = report_skips(t, &r);
    if (s != KM_OK) return s;
    double time = training_time(t), took = time - t->window_since;
    state->train_loss = now->train_loss = mean_loss(state);
    state->n_losses = 0;
    now->lr = km_schedule_lr(&t->schedule, state->step - 1);
    now->norm = r.norm;
    now->loss_scale = r.loss_scale;
    now->tokens_per_s = t->window_tokens / took;
    now->mfu = now->tokens_per_s * t->flops / t->peak / t->ranks;
    now->seconds = t->earlier_seconds + time;
    now->left = time_left(t);
    t->window_since = time;
    t->window_tokens = 0;
    if (t->rank != 0) return KM_OK;
    km_train_point p = {.step = state->step,
                        .train_loss = now->train_loss,
                        .val_loss = NAN,
                        .lr = now->lr,
                        .norm = now->norm,
                        .tokens_per_s = now->tokens_per_s,
                        .mfu = now->mfu,
                        .seconds = now->seconds};
    s = km_history_add(&t->history, &p, now, t->err);
    km_trainer_tell(t, KM_TRAIN_LOG, "");
    return s;
}

/* ---- Validation ---- */

static km_status save_best(km_trainer *t) {
    char path[PATH_MAX];
    km_checkpoint_parts parts = km_trainer_parts(t);
    km_trainer_path(t, path, "best");
    if (t->s->no_best || t->s->overfit_batch) return KM_OK;
    return km_trainer_agree(t, km_net_export(path, &parts, t->s->lora_rank > 0, t->err));
}

static km_status evaluate(km_trainer *t) {
    km_train_state *state = &t->state;
    km_train_status *now = &t->result->status;
    double sums[2]; /* of the loss, and of the targets */
    if (t->data.val == 0) return KM_OK;
    km_status s =
        km_stepper_eval(&t->stepper, t->s->eval_batches * t->ranks, &sums[0], &sums[1], t->err);
    if (s == KM_OK) s = km_comm_sum(t->comm, sums, 2, t->err);
    if (s != KM_OK) return s;
    now->val_loss = state->val_loss = sums[0] / sums[1];
    state->evaluated = state->step;
    if (!(now->val_loss >= state->best_val)) { /* lower, or the first */
        state->best_val = now->val_loss;
        state->best_step = state->step;
        state->bad_evals = 0;
        s = save_best(t);
    } else {
        state->bad_evals++;
    }
    now->best_val = state->best_val;
    now->best_step = state->best_step;
    if (s != KM_OK || t->rank != 0) return s;
    km_train_point p = {.step = state->step,
                        .train_loss = NAN,
                        .val_loss = now->val_loss,
                        .lr = NAN,
                        .norm = NAN,
                        .tokens_per_s = NAN,
                        .mfu = NAN,
                        .seconds = now->seconds};
    s = km_history_add(&t->history, &p, now, t->err);
    km_trainer_tell(t, KM_TRAIN_EVAL, "");
    return s;
}

/* ---- Checkpoints ---- */

static km_status save(km_trainer *t) {
    char name[48], path[PATH_MAX];
    km_checkpoint_parts parts = km_trainer_parts(t);
    t->state.seconds = t->earlier_seconds + training_time(t);
    km_status s = drain(t);
    if (s == KM_OK) s = km_checkpoint_save(t->s->out, &parts, &t->state, t->err);
    s = km_trainer_agree(t, s);
    if (s != KM_OK) return s;
    t->saved = t->state.step;
    if (t->rank == 0) km_checkpoint_prune(t->s->out, t->s->keep);
    snprintf(name, sizeof name, "step-%" PRId64, t->state.step);
    km_trainer_path(t, path, name);
    km_trainer_tell(t, KM_TRAIN_SAVE, path);
    return KM_OK;
}

/* ---- The loop ---- */

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* The page of the run so far. */
static km_status write_report(km_trainer *t) {
    char path[PATH_MAX];
    km_trainer_path(t, path, "report.html");
    double busy = training_time(t);
    t->result->tokens_per_s = t->part_tokens / busy;
    t->result->status.seconds = t->earlier_seconds + busy;
    if (t->rank != 0) return KM_OK;
    return km_train_report(&t->history, t->s, t->result, t->about, path, t->err);
}

/* What happens between steps; the device waits meanwhile. */
static km_status between(km_trainer *t) {
    const km_train_settings *o = t->s;
    int64_t step = t->state.step;
    km_status s = KM_OK;
    if (due(step, o->log_every)) s = log_line(t);
    bool eval = due(step, o->eval_every), saving = due(step, o->save_every);
    bool sample = due(step, o->sample_every);
    if (s != KM_OK || !(eval || saving || sample)) return s;
    s = drain(t); /* waits for the device, so that its work counts as training */
    double start = km_now();
    if (s == KM_OK && eval) s = evaluate(t);
    if (s == KM_OK && eval) s = km_trainer_agree(t, write_report(t));
    if (s == KM_OK && saving) s = save(t);
    if (s == KM_OK && sample) s = km_trainer_sample(t);
    t->pause += km_now() - start;
    return s;
}

/* A model that has begun to learn its text by heart is not what anybody wants at the end: where
 * validation was better before, the weights of that moment become the model again. The checkpoint
 * of the last step is safe by now. */
static km_status take_best(km_trainer *t) {
    char path[PATH_MAX];
    const km_train_state *state = &t->state;
    if (t->s->no_best || t->s->overfit_batch || t->s->lora_rank || isnan(state->best_val) ||
        state->best_step == state->step || t->rank != 0)
        return KM_OK;
    km_trainer_path(t, path, "best/model.safetensors");
    km_safetensors *f = km_safetensors_open(path, t->err);
    km_status s = f ? km_net_read(t->model, f, t->err) : t->err->code;
    km_safetensors_close(f);
    if (s == KM_OK) t->result->status.val_loss = state->best_val;
    return s;
}

/* The model to keep; corrections go into an adapter and into the weights. */
static km_status export(km_trainer *t) {
    char path[PATH_MAX];
    km_checkpoint_parts parts = km_trainer_parts(t);
    km_status s = take_best(t);
    if (s != KM_OK) return s;
    if (t->s->lora_rank) {
        km_trainer_path(t, path, "adapter");
        s = km_net_export(path, &parts, true, t->err);
        km_stepper_close(&t->stepper); /* merging takes parameters away from both */
        km_optimizer_free(t->optimizer);
        t->optimizer = NULL;
        if (s == KM_OK) s = km_lora_merge(t->model, t->err);
    }
    km_trainer_path(t, path, "model");
    return s == KM_OK ? km_net_export(path, &parts, false, t->err) : s;
}

static km_status finish(km_trainer *t) {
    km_status s = t->state.n_losses + t->stepper.used ? log_line(t) : KM_OK;
    double start = km_now();
    bool stopped = t->result->end == KM_TRAIN_STOPPED;
    if (s == KM_OK && !stopped && t->state.evaluated != t->state.step) s = evaluate(t);
    if (s == KM_OK && t->saved != t->state.step) s = save(t);
    t->result->last_val = t->state.val_loss;
    if (s == KM_OK && !stopped) s = km_trainer_agree(t, export(t));
    t->pause += km_now() - start;
    if (s == KM_OK) s = write_report(t);
    if (s == KM_OK && t->rank == 0 && !stopped) s = km_trainer_write_run(t, t->state.step);
    return km_trainer_agree(t, s);
}

/* A validation too many without improvement. */
static bool worn_out(const km_trainer *t) {
    return t->s->patience && t->state.bad_evals >= t->s->patience;
}

/* Ranks may hear of it at different times, so they agree on it, and not in every step. */
static bool asked_to_stop(km_trainer *t) {
    if (!t->hooks || !t->hooks->stop) return false;
    double asked = t->hooks->stop(t->hooks->user);
    if (t->ranks == 1) return asked > 0;
    if (!due(t->state.step, t->s->log_every)) return false;
    return km_comm_sum(t->comm, &asked, 1, t->err) == KM_OK && asked > 0;
}

static km_status loop(km_trainer *t) {
    const km_train_settings *o = t->s;
    km_train_state *state = &t->state;
    km_train_status *now = &t->result->status;
    km_status s = KM_OK;
    t->result->end = KM_TRAIN_DONE;
    t->busy_since = km_now();
    while (s == KM_OK && state->step < o->steps && !worn_out(t)) {
        s = km_stepper_step(&t->stepper, state->step, km_schedule_lr(&t->schedule, state->step),
                            t->err);
        if (s != KM_OK) break;
        now->step = ++state->step;
        state->tokens += step_tokens(t);
        t->part_tokens += step_tokens(t);
        t->window_tokens += step_tokens(t);
        km_trainer_tell(t, KM_TRAIN_STEP, "");
        s = between(t);
        if (s == KM_OK && state->step < o->steps && asked_to_stop(t)) {
            t->result->end = KM_TRAIN_STOPPED;
            break;
        }
    }
    if (worn_out(t) && state->step < o->steps) t->result->end = KM_TRAIN_EARLY;
    return s == KM_OK ? finish(t) : s;
}

/* Seconds for the steps to come, before the first: at two fifths of the device's rate. */
static double first_guess(const km_trainer *t) {
    double steps = (double)(t->s->steps - t->state.step);
    return steps * step_tokens(t) * t->flops / (0.4 * t->peak * t->ranks);
}

/* Whether the run lost its GPU, and can go on without it: ranks cannot move alone. Says so. */
static bool moves(km_trainer *t, bool *begun) {
    char path[PATH_MAX], text[KM_ERROR_TEXT + 200], from[64] = "from the beginning";
    if (!t->ctx || t->ranks != 1 || t->ctx->no_fallback || !km_ctx_lost(t->ctx)) return false;
    km_trainer_path(t, path, "run.json");
    *begun = access(path, F_OK) == 0;
    int64_t saved = km_checkpoint_latest(t->s->out);
    if (*begun && saved >= 0)
        snprintf(from, sizeof from, "from its checkpoint step-%" PRId64, saved);
    snprintf(
        text, sizeof text,
        "%s; going on with the CPU, %s. Stopped and started again with --resume, the run takes "
        "the GPU again if it is there",
        t->err->text, from);
    km_trainer_tell(t, KM_TRAIN_NOTE, text);
    return true;
}

static km_status run_once(const km_train_settings *settings, const km_train_hooks *hooks,
                          km_train_result *r, bool *again, bool *begun, km_error *err) {
    km_error own = {0};
    *r = (km_train_result){.size = sizeof *r,
                           .status = {.train_loss = NAN,
                                      .val_loss = NAN,
                                      .best_val = NAN,
                                      .lr = NAN,
                                      .norm = NAN,
                                      .loss_scale = 1,
                                      .tokens_per_s = NAN,
                                      .mfu = NAN,
                                      .left = NAN},
                           .tokens_per_s = NAN,
                           .last_val = NAN};
    km_trainer t = {.s = settings, .hooks = hooks, .err = &own, .result = r, .started = km_now()};
    km_status s = km_trainer_open(&t);
    if (s == KM_OK) {
        km_train_status *now = &r->status;
        now->step = t.state.step;
        now->steps = settings->steps;
        now->best_val = t.state.best_val;
        now->best_step = t.state.best_step;
        now->val_loss = t.state.val_loss;
        now->train_loss = t.state.train_loss;
        t.earlier_seconds = t.state.seconds;
        now->left = first_guess(&t);
        km_trainer_tell(&t, KM_TRAIN_START, t.about);
        s = loop(&t);
    }
    r->wall = km_now() - t.started;
    r->rank = t.rank;
    r->tells = r->tells || t.rank == 0;
    *again = s != KM_OK && moves(&t, begun);
    km_trainer_close(&t);
    if (s != KM_OK) km_error_set(err, s, "%s", own.text);
    return s;
}

km_status km_train_run(const km_train_settings *settings, const km_train_hooks *hooks,
                       km_train_result *r, km_error *err) {
    bool again, begun = false;
    km_error why = {0};
    km_status s = run_once(settings, hooks, r, &again, &begun, &why);
    double wall = r->wall;
    if (again) { /* what was learnt since the last checkpoint is gone with the GPU */
        km_train_settings elsewhere = *settings;
        elsewhere.device = "cpu";
        elsewhere.resume = elsewhere.resume || begun;
        why = (km_error){0};
        s = run_once(&elsewhere, hooks, r, &again, &begun, &why);
        r->wall += wall;
    }
    if (s != KM_OK) km_error_set(err, s, "%s", why.text);
    return s;
}

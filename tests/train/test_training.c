/* Whole runs: a small model learns text that our grammar writes, steps mean the same however they
 * are cut into passes, and trouble ends a run in one clear line. */
#include "format/safetensors.h"
#include "scratch.h"
#include "support/sanitized.h"
#include "train/demo.h"
#include "train/train.h"
#include <math.h>

static km_error err;
static km_train_result result;
static char notes[2000], samples[4000];
static int note_count;

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    (void)user;
    (void)s;
    if (e == KM_TRAIN_NOTE) snprintf(notes, sizeof notes, "%s", text), note_count++;
    if (e == KM_TRAIN_SAMPLE) snprintf(samples, sizeof samples, "%s", text);
}

static const km_train_hooks hooks = {.event = on_event};

/* A small run on the grammar's text, into the folder `out` of the test. */
static km_train_settings small(const char *out) {
    km_train_settings s = scratch_run(out, 64 << 10, &err);
    s.steps = 20;
    s.eval_every = 10;
    return s;
}

static km_status train(const km_train_settings *s) {
    err = (km_error){0};
    notes[0] = samples[0] = 0;
    note_count = 0;
    return km_train_run(s, &hooks, &result, &err);
}

static void a_small_model_learns_the_grammar(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.dim = 48;
    s.context = 32;
    s.batch = 8;
    s.steps = SANITIZED ? 40 : 400;
    s.warmup = 20;
    s.eval_every = s.steps / 2;
    s.sample_every = s.steps;
    s.sample_tokens = 20;
    s.sample_prompt = "the story of";
    assert_done(train(&s));
    assert_int_equal(result.status.step, s.steps);
    assert_true(result.status.val_loss < (SANITIZED ? 2.8 : 0.85));
    assert_true(result.status.train_loss < (SANITIZED ? 2.8 : 0.75));
    assert_true(result.tokens_per_s > 0 && result.status.mfu > 0 && result.status.mfu < 1.05);
    assert_memory_equal(samples, "the story of", 12);
    assert_int_equal(strlen(samples), 32);
    static const char *const files[] = {"run/model/config.json",
                                        "run/model/model.safetensors",
                                        "run/model/tokenizer.json",
                                        "run/best/model.safetensors",
                                        "run/log.jsonl",
                                        "run/report.html",
                                        "run/run.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_int_equal(access(scratch(files[i]), F_OK), 0);
}

/* A context of 16 characters, and a line of more. */
static void a_sample_whose_prompt_is_beyond_the_context_is_cut_and_that_is_said_once(void **state) {
    (void)state;
    km_train_settings s = small("own");
    s.steps = 3;
    s.sample_every = 1;
    s.sample_tokens = 4;
    assert_done(train(&s));
    assert_int_equal(strlen(samples), 16 + 4);
    assert_int_equal(note_count, 1);
    assert_non_null(strstr(notes, "the context 16"));
    km_train_settings given = small("given");
    given.steps = 3;
    given.sample_every = 1;
    given.sample_tokens = 4;
    given.sample_prompt = "once there was a long story of a small fox";
    assert_done(train(&given));
    assert_memory_equal(samples, "y of a small fox", 16);
    assert_int_equal(note_count, 1);
}

/* The largest difference between two models' weights, next to the largest weight. */
static double distance(const char *a, const char *b) {
    km_safetensors *x = km_safetensors_open(a, &err), *y = km_safetensors_open(b, &err);
    assert_non_null(x);
    assert_non_null(y);
    double most = 0, largest = 0;
    for (int i = 0; i < km_safetensors_count(x); i++) {
        const km_st_tensor *t = km_safetensors_at(x, i);
        const km_st_tensor *u = km_safetensors_find(y, t->name);
        assert_non_null(u);
        const float *p = t->data, *q = u->data;
        for (size_t k = 0; k < t->bytes / sizeof *p; k++) {
            if (fabs(p[k] - q[k]) > most) most = fabs(p[k] - q[k]);
            if (fabs(p[k]) > largest) largest = fabs(p[k]);
        }
    }
    km_safetensors_close(x);
    km_safetensors_close(y);
    return most / largest;
}

static void several_passes_to_a_step_equal_one_large_batch(void **state) {
    (void)state;
    km_train_settings a = small("large"), b = small("passes");
    a.batch = 12;
    b.batch = 3;
    b.accumulate = 4;
    a.steps = b.steps = 10;
    assert_done(train(&a));
    double loss = result.status.train_loss;
    assert_done(train(&b));
    assert_true(fabs(result.status.train_loss - loss) < 1e-5);
    assert_true(distance(scratch("large/model/model.safetensors"),
                         scratch("passes/model/model.safetensors")) < 1e-4);
}

static void recomputing_changes_nothing(void **state) {
    (void)state;
    km_train_settings a = small("kept"), b = small("again");
    a.steps = b.steps = 10;
    a.dropout = b.dropout = 0.1;
    b.recompute = true;
    assert_done(train(&a));
    double loss = result.status.train_loss;
    assert_done(train(&b));
    assert_true(fabs(result.status.train_loss - loss) < 1e-5);
}

static void one_batch_can_be_learnt_by_heart(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.overfit_batch = true;
    s.dim = 32;
    s.steps = SANITIZED ? 60 : 250;
    s.eval_every = 0;
    assert_done(train(&s));
    assert_true(result.status.train_loss < (SANITIZED ? 2.5 : 0.1));
}

static void sixteen_bits_learn_as_f32_does(void **state) {
    (void)state;
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    double loss[3];
    for (int i = 0; i < 3; i++) {
        km_train_settings s = small(dtypes[i]);
        s.dtype = dtypes[i];
        assert_done(train(&s));
        loss[i] = result.status.val_loss;
        assert_true(i == 2 ? result.status.loss_scale >= 4096 : result.status.loss_scale == 1);
    }
    assert_true(fabs(loss[1] - loss[0]) < 0.03);
    assert_true(fabs(loss[2] - loss[0]) < 0.01);
}

static void a_loss_scale_that_is_too_large_adapts(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.dtype = "f16";
    s.loss_scale = 1 << 24;
    assert_done(train(&s));
    assert_true(result.status.skipped > 0 && result.status.skipped < 20);
    assert_true(result.status.loss_scale < 1 << 24);
    assert_non_null(strstr(notes, "beyond f16's range; the loss scale is now"));
}

static void a_mad_learning_rate_ends_in_one_line(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.lr = 1e5;
    s.grad_clip = 0;
    s.optimizer = "sgd";
    s.steps = 300;
    s.eval_every = 0;
    s.save_every = 1;
    s.warmup = 0;
    assert_says(train(&s), "not a finite number since step");
    assert_non_null(strstr(err.text, "--lr 100000 is too high"));
    assert_non_null(strstr(err.text, "the last checkpoint is step-"));
    assert_int_not_equal(access(scratch("run/model"), F_OK), 0);
}

static void a_run_that_stops_improving_ends_early(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.steps = 500;
    s.eval_every = 5;
    s.patience = 2;
    s.lr = s.min_lr = 1e-30; /* nothing ever changes */
    assert_done(train(&s));
    assert_int_equal(result.end, KM_TRAIN_EARLY);
    assert_int_equal(result.status.step, 15);
    assert_int_equal(result.status.best_step, 5);
    s.resume = true;
    assert_says(train(&s), "ended after 15 steps; a larger --patience or 0 goes on");
}

static void frozen_parameters_stay(void **state) {
    (void)state;
    km_train_settings a = small("one"), b = small("two");
    a.freeze = b.freeze = "transformer.wte.*,transformer.h.0.*";
    a.steps = 5;
    b.steps = 10;
    assert_done(train(&a));
    assert_true(result.trained < result.parameters);
    assert_done(train(&b));
    km_safetensors *x = km_safetensors_open(scratch("one/model"), &err);
    km_safetensors *y = km_safetensors_open(scratch("two/model"), &err);
    assert_true(x && y);
    static const char *const names[] = {"transformer.wte.weight", "transformer.h.0.mlp.c_fc.weight",
                                        "transformer.h.1.mlp.c_fc.weight"};
    for (int i = 0; i < 3; i++) {
        const km_st_tensor *t = km_safetensors_find(x, names[i]);
        const km_st_tensor *u = km_safetensors_find(y, names[i]);
        assert_true(t && u);
        assert_int_equal(memcmp(t->data, u->data, t->bytes) == 0, i < 2);
    }
    km_safetensors_close(x);
    km_safetensors_close(y);
    km_train_settings s = small("three");
    s.freeze = "nothing.*";
    assert_says(train(&s), "fits no parameter");
    s.freeze = "*";
    assert_says(train(&s), "leaves nothing to train");
    s.freeze = NULL;
    assert_done(train(&s)); /* the folder was not taken by what went wrong */
}

static void fine_tuning_starts_from_what_was_learnt(void **state) {
    (void)state;
    km_train_settings base = small("base"), tuned = small("tuned");
    base.steps = SANITIZED ? 20 : 100;
    assert_done(train(&base));
    double loss = result.status.val_loss;
    char model[PATH_MAX];
    snprintf(model, sizeof model, "%s", scratch("base/model"));
    tuned.layers = tuned.heads = tuned.dim = 0;
    tuned.init = model;
    tuned.lora_rank = 2;
    tuned.steps = 10;
    tuned.lr = 1e-3;
    assert_done(train(&tuned));
    assert_true(result.trained < result.parameters / 10);
    assert_true(result.status.val_loss < loss + 0.01);
    assert_int_equal(access(scratch("tuned/adapter/adapter_model.safetensors"), F_OK), 0);
    assert_false(same_bytes(scratch("base/model/model.safetensors"),
                            scratch("tuned/model/model.safetensors")));
}

static void every_schedule_and_optimiser_learns(void **state) {
    (void)state;
    static const char *const schedules[] = {"constant", "linear", "wsd"};
    static const char *const optimisers[] = {"adam", "sgd", "adamw"};
    for (int i = 0; i < 3; i++) {
        km_train_settings s = small(schedules[i]);
        s.schedule = schedules[i];
        s.optimizer = optimisers[i];
        s.lr = i == 1 ? 0.3 : 1e-2;
        s.nesterov = true;
        s.model = i == 2 ? "llama-tiny" : "tiny";
        s.vocab_pad = 64;
        assert_done(train(&s));
        assert_true(result.status.val_loss < 3.4); /* log 35 = 3.56 at the start */
    }
}

static void without_validation_there_is_none(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.val = 0;
    assert_done(train(&s));
    assert_true(isnan(result.status.val_loss));
    assert_int_not_equal(access(scratch("run/best"), F_OK), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH(a_small_model_learns_the_grammar),
        SCRATCH(a_sample_whose_prompt_is_beyond_the_context_is_cut_and_that_is_said_once),
        SCRATCH(several_passes_to_a_step_equal_one_large_batch),
        SCRATCH(recomputing_changes_nothing),
        SCRATCH(one_batch_can_be_learnt_by_heart),
        SCRATCH(sixteen_bits_learn_as_f32_does),
        SCRATCH(a_loss_scale_that_is_too_large_adapts),
        SCRATCH(a_mad_learning_rate_ends_in_one_line),
        SCRATCH(a_run_that_stops_improving_ends_early),
        SCRATCH(frozen_parameters_stay),
        SCRATCH(fine_tuning_starts_from_what_was_learnt),
        SCRATCH(every_schedule_and_optimiser_learns),
        SCRATCH(without_validation_there_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

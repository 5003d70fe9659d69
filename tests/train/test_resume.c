/* Checkpoints: a run that was interrupted ends with the same bits as one that was not, on another
 * device nearly so; and what is damaged, foreign or in the way is refused untouched. */
#include "scratch.h"
#include "train/demo.h"
#include "train/train.h"
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

static km_error err;
static km_train_result result;
static int64_t stop_at; /* the step after which the hook asks to stop; 0: never */
static int64_t steps;   /* done so far */

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    (void)user;
    (void)text;
    if (e == KM_TRAIN_STEP) steps = s->step;
}

static bool stop(void *user) {
    (void)user;
    return stop_at && steps >= stop_at;
}

static const km_train_hooks hooks = {.event = on_event, .stop = stop};

static km_train_settings small(const char *out) {
    km_train_settings s = scratch_run(out, 20000, &err);
    s.steps = 24;
    s.eval_every = 8;
    s.save_every = 6;
    s.log_every = 7;
    return s;
}

static km_status train(const km_train_settings *s) {
    err = (km_error){0};
    steps = 0;
    return km_train_run(s, &hooks, &result, &err);
}

/* The same run in one go and in three parts: all figures and weights must be the same bits. */
static void check_exact(km_train_settings whole, km_train_settings parts, const char *model) {
    char a[PATH_MAX], b[PATH_MAX];
    stop_at = 0;
    assert_done(train(&whole));
    km_train_status want = result.status;
    stop_at = 9;
    assert_done(train(&parts));
    assert_int_equal(result.end, KM_TRAIN_STOPPED);
    parts.resume = true;
    stop_at = 17;
    assert_done(train(&parts));
    stop_at = 0;
    assert_done(train(&parts));
    assert_int_equal(result.status.step, 24);
    assert_true(result.status.train_loss == want.train_loss);
    assert_true(result.status.val_loss == want.val_loss);
    assert_true(result.status.norm == want.norm);
    assert_int_equal(result.status.best_step, want.best_step);
    snprintf(a, sizeof a, "%s/%s/model.safetensors", whole.out, model);
    snprintf(b, sizeof b, "%s/%s/model.safetensors", parts.out, model);
    assert_true(same_bytes(a, b));
    snprintf(a, sizeof a, "%s/step-24/optimizer.safetensors", whole.out);
    snprintf(b, sizeof b, "%s/step-24/optimizer.safetensors", parts.out);
    assert_true(same_bytes(a, b));
}

static void a_resumed_run_ends_with_the_same_bits(void **state) {
    (void)state;
    check_exact(small("a"), small("b"), "model");
}

static void so_it_does_with_dropout_passes_and_bf16(void **state) {
    (void)state;
    km_train_settings a = small("a"), b = small("b");
    a.dropout = b.dropout = 0.2;
    a.accumulate = b.accumulate = 2;
    a.dtype = b.dtype = "bf16";
    a.model = b.model = "llama-tiny";
    a.vocab_pad = b.vocab_pad = 16;
    check_exact(a, b, "best");
}

static void so_it_does_with_f16_and_its_loss_scale(void **state) {
    (void)state;
    km_train_settings a = small("a"), b = small("b");
    a.dtype = b.dtype = "f16";
    a.loss_scale = b.loss_scale = 1 << 22;
    check_exact(a, b, "model");
}

static void so_it_does_with_lora(void **state) {
    (void)state;
    char model[PATH_MAX];
    km_train_settings base = small("base");
    stop_at = 0;
    assert_done(train(&base));
    snprintf(model, sizeof model, "%s", scratch("base/model"));
    km_train_settings a = small("a"), b = small("b");
    a.layers = a.heads = a.dim = b.layers = b.heads = b.dim = 0;
    a.init = b.init = model;
    a.lora_rank = b.lora_rank = 2;
    check_exact(a, b, "model");
}

static void another_device_goes_on_within_rounding(void **state) {
    (void)state;
    km_train_settings a = small("a"), b = small("b");
    a.steps = b.steps = 14;
    stop_at = 0;
    assert_done(train(&a));
    double want = result.status.val_loss;
    stop_at = 7;
    assert_done(train(&b));
    b.resume = true;
    b.device = "ref";
    stop_at = 0;
    assert_done(train(&b));
    assert_true(fabs(result.status.val_loss - want) < 1e-4);
}

static void only_the_last_checkpoints_stay(void **state) {
    (void)state;
    km_train_settings s = small("run");
    s.save_every = 4;
    s.keep = 3;
    assert_done(train(&s));
    assert_int_equal(km_checkpoint_latest(s.out), 24);
    assert_int_equal(access(scratch("run/step-16"), F_OK), 0);
    assert_int_not_equal(access(scratch("run/step-12"), F_OK), 0);
}

static void a_folder_that_is_taken_is_left_alone(void **state) {
    (void)state;
    km_train_settings s = small("run");
    assert_done(train(&s));
    assert_says(train(&s), "holds a run already");
    s.resume = true;
    assert_says(train(&s), "ended after 24 steps; a larger --steps goes on");
    s.steps = 30;
    assert_done(train(&s));
    assert_int_equal(result.status.step, 30);
    km_train_settings other = small("other");
    other.resume = true;
    assert_says(train(&other), "no run to resume");
    mkdir(scratch("other"), 0777);
    other.resume = false;
    scratch_write(scratch("other/log.jsonl"), "mine", 4);
    assert_says(train(&other), "holds something else already (log.jsonl)");
    scratch_write(scratch("file"), "x", 1);
    other = small("file");
    assert_says(train(&other), "is not a folder");
}

static void changed_text_is_noticed(void **state) {
    (void)state;
    km_train_settings s = small("run");
    stop_at = 8;
    assert_done(train(&s));
    stop_at = 0;
    assert_done(km_demo_write(scratch("text.txt"), 2, 20000, &err));
    s.resume = true;
    assert_says(train(&s), "the text has changed since");
}

/* Each file of the checkpoint in turn is changed in its middle, or cut, or taken away. */
static void damage_is_found_and_nothing_is_written_over(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "optimizer.safetensors", "state.json"};
    km_train_settings s = small("run");
    stop_at = 8;
    assert_done(train(&s));
    stop_at = 0;
    s.resume = true;
    for (int i = 0; i < 5; i++)
        for (int how = 0; how < 3; how++) {
            char path[PATH_MAX], name[64];
            km_map m;
            snprintf(name, sizeof name, "run/step-8/%s", files[i]);
            snprintf(path, sizeof path, "%s", scratch(name));
            assert_done(km_map_open(&m, path, &err));
            uint8_t *good = malloc(m.size), *bad = malloc(m.size);
            size_t n = m.size;
            memcpy(good, m.data, n);
            memcpy(bad, m.data, n);
            km_map_close(&m);
            bad[n / 2] ^= 1;
            if (how == 2)
                unlink(path);
            else
                scratch_write(path, bad, how == 0 ? n : n / 2);
            assert_says(train(&s), "damaged");
            assert_non_null(strstr(err.text, "step-8"));
            if (how != 2) assert_int_equal(access(path, F_OK), 0);
            scratch_write(path, good, n);
            free(good);
            free(bad);
        }
    assert_done(train(&s)); /* whole again */
}

static void a_foreign_checkpoint_is_refused(void **state) {
    (void)state;
    km_train_settings s = small("run"), wide = small("wide");
    stop_at = 8;
    assert_done(train(&s));
    wide.dim = 32;
    assert_done(train(&wide));
    stop_at = 0;
    char command[3 * PATH_MAX];
    snprintf(command, sizeof command, "rm -r %s && cp -r %s %s", scratch("run/step-8"),
             scratch("wide/step-8"), scratch("run/"));
    assert_int_equal(system(command), 0);
    s.resume = true;
    assert_says(train(&s), "step-8/model.safetensors");
    scratch_write(scratch("run/step-8/state.json"), "{\"other\": 1}", 12);
    assert_says(train(&s), "no checkpoint that this version of Kermes can read");
}

/* A limit on the size of files stands for a full disk: the third checkpoint does not fit. */
static void a_full_disk_is_told_and_older_checkpoints_stay(void **state) {
    (void)state;
    km_train_settings s = small("run");
    stop_at = 8;
    assert_done(train(&s));
    stop_at = 0;
    struct rlimit limit, less;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_IGN);
    less = limit;
    less.rlim_cur = 30000;
    s.resume = true;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &less), 0);
    km_status failed = train(&s);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_not_equal(failed, KM_OK);
    assert_non_null(strstr(err.text, "cannot write"));
    assert_int_equal(km_checkpoint_latest(s.out), 8);
    assert_done(train(&s)); /* room again: it goes on from there */
    assert_int_equal(result.status.step, 24);
}

static void two_processes_cannot_train_in_one_folder(void **state) {
    (void)state;
    km_train_settings s = small("run");
    stop_at = 8;
    assert_done(train(&s));
    stop_at = 0;
    s.resume = true;
    char command[2 * PATH_MAX];
    snprintf(command, sizeof command, "flock -n %s true", scratch("run/.lock"));
    if (system("command -v flock >/dev/null") != 0) skip();
    snprintf(command, sizeof command, "flock %s sleep 5 & echo $!", scratch("run/.lock"));
    FILE *f = popen(command, "r");
    int pid = 0;
    assert_int_equal(fscanf(f, "%d", &pid), 1);
    km_status failed = KM_OK;
    for (int i = 0; i < 50 && failed == KM_OK; i++) { /* until the other one has the lock */
        snprintf(command, sizeof command, "flock -n %s true", scratch("run/.lock"));
        if (system(command) != 0)
            failed = train(&s);
        else
            usleep(20000);
    }
    kill(pid, SIGTERM);
    pclose(f);
    assert_int_not_equal(failed, KM_OK);
    assert_non_null(strstr(err.text, "another process is training"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH(a_resumed_run_ends_with_the_same_bits),
        SCRATCH(so_it_does_with_dropout_passes_and_bf16),
        SCRATCH(so_it_does_with_f16_and_its_loss_scale),
        SCRATCH(so_it_does_with_lora),
        SCRATCH(another_device_goes_on_within_rounding),
        SCRATCH(only_the_last_checkpoints_stay),
        SCRATCH(a_folder_that_is_taken_is_left_alone),
        SCRATCH(changed_text_is_noticed),
        SCRATCH(damage_is_found_and_nothing_is_written_over),
        SCRATCH(a_foreign_checkpoint_is_refused),
        SCRATCH(a_full_disk_is_told_and_older_checkpoints_stay),
        SCRATCH(two_processes_cannot_train_in_one_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

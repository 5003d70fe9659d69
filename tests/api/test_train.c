/* Training through the public calls: runs from structs and JSON, and models of one's own; bad input is an
 * error and loses nothing. */
#include "base/alloc.h"
#include "kermes.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], text[96];

static const char *in_folder(const char *name) {
    static char path[8][160];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, 160, "%s/%s", folder, name);
    return p;
}

/* ---- Runs ---- */

typedef struct seen {
    int events[KM_TRAIN_NOTE + 1];
    int stop_after;
    double loss;
} seen;

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *words) {
    seen *w = user;
    w->events[e]++;
    assert_non_null(words);
    if (e == KM_TRAIN_LOG) w->loss = s->train_loss;
}

static bool on_stop(void *user) {
    seen *w = user;
    return w->stop_after && w->events[KM_TRAIN_STEP] >= w->stop_after;
}

static km_train_settings small(const char *out) {
    km_train_settings s = km_train_defaults();
    s.data.at[s.data.n++] = text;
    s.out = out;
    s.layers = 1;
    s.heads = 2;
    s.dim = 16;
    s.context = 16;
    s.batch = 4;
    s.steps = 20;
    s.warmup = 2;
    s.log_every = 5;
    s.eval_every = 10;
    s.eval_batches = 1;
    s.device = "cpu";
    s.threads = 1;
    return s;
}

static void a_run_stops_where_it_is_told_and_goes_on_to_the_same_loss(void **state) {
    (void)state;
    seen whole = {.stop_after = 0}, first = {.stop_after = 8}, rest = {.stop_after = 0};
    km_train_hooks hooks = {sizeof hooks, on_event, on_stop, &whole};
    km_train_result r = {.size = sizeof r};
    km_train_settings s = small(in_folder("whole"));
    assert_int_equal(km_train(&s, &hooks, &r), KM_OK);
    assert_int_equal(r.end, KM_TRAIN_DONE);
    assert_int_equal(r.status.step, 20);
    assert_int_equal(whole.events[KM_TRAIN_STEP], 20);
    assert_true(whole.events[KM_TRAIN_EVAL] >= 2 && whole.events[KM_TRAIN_START] == 1);

    s = small(in_folder("parts"));
    hooks.user = &first;
    assert_int_equal(km_train(&s, &hooks, &r), KM_OK);
    assert_int_equal(r.end, KM_TRAIN_STOPPED);
    assert_int_equal(r.status.step, 8);
    hooks.user = &rest;
    char json[256];
    snprintf(json, sizeof json, "{\"out\": \"%s\", \"resume\": true, \"threads\": 1}", s.out);
    assert_int_equal(km_train_json(json, &hooks, &r), KM_OK);
    assert_int_equal(r.status.step, 20);
    assert_float_equal(rest.loss, whole.loss, 0);
}

static void settings_come_from_json_and_from_a_run(void **state) {
    (void)state;
    const char json[] = "{\"steps\": 7, \"eval-every\": 3, \"tokenizer\": \"bytes\"}";
    km_train_settings s = km_train_defaults();
    assert_int_equal(km_train_read_json(&s, json, strlen(json), NULL), KM_OK);
    assert_int_equal(s.steps, 7);
    assert_string_equal(s.tokenizer, "bytes");
    assert_int_equal(km_train_read_json(&s, "{\"steps\": 8}", 12, NULL), KM_OK);
    assert_string_equal(s.tokenizer, "bytes"); /* texts of the first are still there */
    const struct {
        const char *text;
        km_status code;
    } bad[] = {{"{", KM_ERR_FORMAT},
               {"[]", KM_ERR_FORMAT},
               {"{\"stepz\": 1}", KM_ERR_FORMAT},
               {"{\"steps\": \"x\"}", KM_ERR_FORMAT},
               {"{\"out\": \"x\"}", KM_ERR_FORMAT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(km_train_read_json(&s, bad[i].text, strlen(bad[i].text), "f.json"),
                         bad[i].code);
        assert_non_null(strstr(km_last_error(), "f.json"));
        assert_int_equal(s.steps, 8);
    }
    km_train_settings_free(&s);
    assert_int_equal(km_train_read_run(&s, in_folder("none")), KM_ERR_FILE);
    assert_int_equal(km_train_read_file(&s, in_folder("none")), KM_ERR_FILE);
    assert_int_equal(km_train_read_run(&s, in_folder("whole")), KM_OK);
    assert_int_equal(s.dim, 16);
    km_train_settings_free(&s);
    km_train_settings_free(&s);
    km_train_settings_free(NULL);
    int n = 0;
    while (km_train_setting(n)) n++;
    assert_true(n > 40);
    assert_null(km_train_setting(-1));
    assert_string_equal(km_train_setting(0)->name, "data");
}

static void bad_runs_are_errors(void **state) {
    (void)state;
    km_train_result r = {.size = sizeof r};
    km_train_settings s = small(in_folder("bad"));
    assert_int_equal(km_train(NULL, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_train_json(NULL, NULL, NULL), KM_ERR_NULL);
    assert_int_equal(km_train_json("{}", NULL, NULL), KM_ERR_NULL); /* no data, no folder */
    s.size = 0;
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_RANGE);
    s.size = sizeof s + 8;
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_RANGE);
    s.size = sizeof s;
    r.size = sizeof r + 1;
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_RANGE);
    r.size = sizeof r;
    km_train_hooks hooks = {0};
    assert_int_equal(km_train(&s, &hooks, &r), KM_ERR_RANGE);
    s.data.n = KM_TRAIN_MAX_DATA + 1;
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_RANGE);
    s.data.n = 2; /* of which the second is NULL */
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_NULL);
    s.data.n = 1;
    s.data.at[0] = in_folder("none.txt");
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_FILE);
    s = small(in_folder("bad"));
    s.batch = -1;
    assert_int_equal(km_train_check(&s), KM_ERR_RANGE);
    s = small(in_folder("bad"));
    s.device = "toaster";
    assert_int_not_equal(km_train(&s, NULL, &r), KM_OK);
    s = small(in_folder("bad"));
    s.resume = true;
    assert_int_equal(km_train(&s, NULL, &r), KM_ERR_FILE);
    s = small(in_folder("whole"));
    s.resume = true;
    s.dim = 32;
    assert_int_equal(km_train_check(&s), KM_ERR_STATE);
    assert_int_equal(km_train_demo_text(NULL, 1, 10), KM_ERR_NULL);
    assert_int_equal(km_train_demo_text("/proc/none/x.txt", 1, 10), KM_ERR_FILE);
    assert_int_equal(km_rank(), 0);
}

/* An older program knows of less: what it does not know of has its default. */
static void a_shorter_struct_is_taken_as_it_is(void **state) {
    (void)state;
    km_train_settings s = small(in_folder("older"));
    s.steps = 2;
    s.eval_every = 0;
    s.size = offsetof(km_train_settings, device);
    s.device = "toaster"; /* beyond its end */
    struct {
        size_t size;
        double last_val;
    } shorter = {sizeof shorter, 0};
    assert_int_equal(km_train(&s, NULL, (km_train_result *)(void *)&shorter), KM_OK);
    assert_true(shorter.last_val > 0);
}

/* ---- Models of one's own ---- */

typedef struct net {
    km_ctx *ctx;
    km_param_list *params;
    km_tensor *w1, *b1, *w2;
    km_optimizer *o;
} net;

static net make_net(km_dtype dtype, const km_optim_settings *how) {
    net m = {.ctx = km_ctx_new("cpu", 1), .params = km_param_list_new()};
    km_seed(m.ctx, 5);
    m.w1 = km_param_add(m.ctx, m.params, dtype, KM_SHAPE(8, 2), true, "layer.%d.weight", 0);
    m.b1 = km_param_add(m.ctx, m.params, dtype, KM_SHAPE(8), false, "layer.0.bias");
    m.w2 = km_param_add(m.ctx, m.params, dtype, KM_SHAPE(1, 8), true, "out");
    km_assign(m.ctx, m.w1, km_normal(m.ctx, KM_F32, KM_SHAPE(8, 2), 0, 1));
    km_assign(m.ctx, m.w2, km_normal(m.ctx, KM_F32, KM_SHAPE(1, 8), 0, 1));
    m.o = km_optimizer_new(m.ctx, m.params, how);
    assert_non_null(m.o);
    km_step_end(m.ctx);
    return m;
}

static void free_net(net *m) {
    km_optimizer_free(m->o);
    km_param_list_free(m->params);
    km_ctx_free(m->ctx);
}

static double train_xor(net *m, const km_schedule *schedule, int64_t from, int64_t to) {
    const float x[] = {0, 0, 0, 1, 1, 0, 1, 1}, y[] = {0, 1, 1, 0};
    double last = NAN;
    for (int64_t step = from; step < to; step++) {
        km_dtype d = km_tensor_dtype(m->w1);
        km_tensor *in = km_cast(m->ctx, km_from_data(m->ctx, KM_F32, KM_SHAPE(4, 2), x), d);
        km_tensor *want = km_cast(m->ctx, km_from_data(m->ctx, KM_F32, KM_SHAPE(4, 1), y), d);
        km_tensor *h = km_tanh(m->ctx, km_linear(m->ctx, in, m->w1, m->b1, KM_ACT_NONE));
        km_tensor *out = km_linear(m->ctx, h, m->w2, NULL, KM_ACT_NONE);
        km_tensor *loss = km_mse(m->ctx, out, want, KM_MEAN);
        km_optimizer_set(m->ctx, m->o, km_schedule_lr(schedule, step), 1);
        km_backward(m->ctx, km_optimizer_scale_loss(m->ctx, m->o, loss));
        km_optimizer_step(m->ctx, m->o);
        km_optimizer_zero_grad(m->ctx, m->o);
        last = km_item(m->ctx, loss);
        km_step_end(m->ctx);
    }
    if (km_ctx_status(m->ctx) != KM_OK) fail_msg("%s", km_ctx_error(m->ctx));
    return last;
}

static void a_model_of_ones_own_learns_and_goes_on_from_a_checkpoint(void **state) {
    (void)state;
    const km_schedule schedule = {KM_SCHEDULE_COSINE, 0.05, 0.001, 10, 0, 200};
    km_optim_settings adamw = km_optim_defaults(), sgd = km_optim_defaults();
    adamw.weight_decay = 0;
    sgd.kind = KM_OPTIM_SGD;
    const km_optim_settings *kinds[] = {&adamw, &sgd};
    for (int k = 0; k < 2; k++)
        for (int half = 0; half < 2; half++) {
            const char *path = in_folder("own.safetensors");
            net a = make_net(half ? KM_BF16 : KM_F32, kinds[k]);
            net b = make_net(half ? KM_BF16 : KM_F32, kinds[k]);
            double start = train_xor(&a, &schedule, 0, 1);
            train_xor(&a, &schedule, 1, 60);
            assert_int_equal(km_param_list_save(a.ctx, path, a.params, a.o, 60), KM_OK);
            double whole = train_xor(&a, &schedule, 60, 200);
            assert_true(whole < (k ? start : 0.05));
            int64_t step = 0;
            assert_int_equal(km_param_list_load(b.ctx, path, b.params, b.o, &step), KM_OK);
            assert_int_equal(step, 60);
            assert_float_equal(train_xor(&b, &schedule, step, 200), whole, 0); /* to the bit */
            km_optim_report r = {.size = sizeof r};
            assert_int_equal(km_optimizer_report(b.ctx, b.o, &r), KM_OK);
            assert_int_equal(r.steps, 200);
            free_net(&a);
            free_net(&b);
        }
}

static void gone(km_ctx *ctx, bool fine, km_status code) {
    assert_false(fine);
    assert_int_equal(km_ctx_status(ctx), code);
    km_ctx_clear_error(ctx);
}

static void bad_use_of_parameters_and_optimisers_is_an_error(void **state) {
    (void)state;
    net a = make_net(KM_F32, NULL), b = make_net(KM_F32, NULL);
    km_ctx *c = a.ctx;
    const char *path = in_folder("own.safetensors");
    gone(c, km_param_add(c, a.params, KM_F32, KM_SHAPE(1), true, "late"), KM_ERR_STATE);
    gone(c, km_param_freeze(c, a.params, "out", true) >= 0, KM_ERR_STATE);
    gone(c, km_param_freeze(c, NULL, "out", true) >= 0, KM_ERR_NULL);
    gone(c, km_optimizer_new(c, NULL, NULL), KM_ERR_NULL);
    gone(c, km_optimizer_new(c, b.params, NULL), KM_ERR_STATE);
    km_optim_settings how = {0};
    gone(c, km_optimizer_new(c, a.params, &how), KM_ERR_RANGE);
    how = km_optim_defaults();
    how.beta1 = 2;
    gone(c, km_optimizer_new(c, a.params, &how), KM_ERR_RANGE);
    gone(c, km_optimizer_step(c, NULL) == KM_OK, KM_ERR_NULL);
    gone(c, km_optimizer_step(c, b.o) == KM_OK, KM_ERR_STATE);
    gone(c, km_optimizer_step(c, a.o) == KM_OK, KM_ERR_STATE); /* no gradients yet */
    gone(c, km_optimizer_set(c, a.o, NAN, 1) == KM_OK, KM_ERR_RANGE);
    gone(c, km_optimizer_scale_loss(c, NULL, a.w1), KM_ERR_NULL);
    km_optimizer_zero_grad(c, NULL);
    km_ctx_clear_error(c);
    km_optim_report r = {0};
    gone(c, km_optimizer_report(c, a.o, &r) == KM_OK, KM_ERR_RANGE);
    gone(c, km_optimizer_report(c, a.o, NULL) == KM_OK, KM_ERR_NULL);
    gone(c, km_param_list_save(c, NULL, a.params, a.o, 0) == KM_OK, KM_ERR_NULL);
    gone(c, km_param_list_save(c, path, NULL, a.o, 0) == KM_OK, KM_ERR_NULL);
    gone(c, km_param_list_save(c, path, a.params, a.o, -1) == KM_OK, KM_ERR_RANGE);
    gone(c, km_param_list_save(c, path, b.params, NULL, 1) == KM_OK, KM_ERR_STATE);
    gone(c, km_param_list_save(c, "/proc/none/x", a.params, NULL, 1) == KM_OK, KM_ERR_FILE);
    gone(c, km_param_list_load(c, in_folder("none"), a.params, NULL, NULL) == KM_OK, KM_ERR_FILE);
    gone(c, km_param_list_load(c, text, a.params, NULL, NULL) == KM_OK, KM_ERR_FORMAT);
    assert_int_equal(km_param_list_save(c, path, a.params, NULL, 3), KM_OK);
    gone(c, km_param_list_load(c, path, a.params, a.o, NULL) == KM_OK, KM_ERR_STATE);
    km_named_tensor one = {"layer.0.weight", a.w1};
    assert_int_equal(km_save(c, path, &one, 1, "{\"step\": \"1\", \"optimizer\": \"none\"}"),
                     KM_OK);
    gone(c, km_param_list_load(c, path, a.params, NULL, NULL) == KM_OK, KM_ERR_FORMAT);
    assert_true(isnan(km_schedule_lr(NULL, 0)));
    assert_int_equal(km_param_count(NULL), 0);
    assert_null(km_param_at(a.params, 3));
    assert_null(km_param_at(a.params, -1));
    assert_null(km_param_name(NULL, 0));
    assert_ptr_equal(km_param_named(a.params, "out"), a.w2);
    assert_null(km_param_named(a.params, "ou"));
    km_optimizer_free(NULL);
    km_param_list_free(NULL);
    km_param_list *list = km_param_list_new(); /* freed before its optimiser */
    km_tensor *w = km_param_add(c, list, KM_F32, KM_SHAPE(2), true, "w");
    gone(c, km_param_add(c, list, KM_F32, KM_SHAPE(2), true, "w"), KM_ERR_STATE);
    gone(c, km_param_add(c, list, KM_F32, KM_SHAPE(2), true, "%s", ""), KM_ERR_RANGE);
    gone(c, km_param_add(c, NULL, KM_F32, KM_SHAPE(2), true, "w"), KM_ERR_NULL);
    km_optimizer *o = km_optimizer_new(c, list, NULL);
    km_param_list_free(list);
    km_backward(c, km_sum(c, w, NULL, 0, false));
    assert_int_equal(km_optimizer_step(c, o), KM_OK);
    km_optimizer_free(o);
    free_net(&a);
    free_net(&b);
}

static void no_allocation_that_fails_loses_anything(void **state) {
    (void)state;
    const char *path = in_folder("faults.safetensors");
    net a = make_net(KM_BF16, NULL);
    assert_int_equal(km_param_list_save(a.ctx, path, a.params, a.o, 1), KM_OK);
    bool done = false;
    for (int nth = 0; nth < 300 && !done; nth++) {
        km_alloc_fail_nth(nth);
        km_param_list *list = km_param_list_new();
        km_tensor *w = list ? km_param_add(a.ctx, list, KM_F32, KM_SHAPE(4), true, "w") : NULL;
        km_optimizer *o = w ? km_optimizer_new(a.ctx, list, NULL) : NULL;
        int64_t step = 0;
        done = o && km_param_list_save(a.ctx, path, a.params, a.o, 2) == KM_OK &&
               km_param_list_load(a.ctx, path, a.params, a.o, &step) == KM_OK && step == 2;
        km_alloc_fail_nth(-1);
        km_optimizer_free(o);
        km_param_list_free(list);
        km_ctx_clear_error(a.ctx);
        km_step_end(a.ctx);
        assert_int_equal(km_param_list_load(a.ctx, path, a.params, a.o, &step), KM_OK);
        assert_true(step == 1 || step == 2);
    }
    assert_true(done);
    free_net(&a);
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kermes-train-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(text, sizeof text, "%s/new/text.txt", folder);
    return km_train_demo_text(text, 1, 20000) == KM_OK ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_stops_where_it_is_told_and_goes_on_to_the_same_loss),
        cmocka_unit_test(settings_come_from_json_and_from_a_run),
        cmocka_unit_test(bad_runs_are_errors),
        cmocka_unit_test(a_shorter_struct_is_taken_as_it_is),
        cmocka_unit_test(a_model_of_ones_own_learns_and_goes_on_from_a_checkpoint),
        cmocka_unit_test(bad_use_of_parameters_and_optimisers_is_an_error),
        cmocka_unit_test(no_allocation_that_fails_loses_anything),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

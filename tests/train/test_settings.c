/* Settings: defaults that work, JSON both ways, what resuming may change, and what is refused. */
#include "scratch.h"
#include "train/settings.h"
#include <math.h>

static km_error err;

static km_train_settings usable(void) {
    km_train_settings s = km_train_defaults();
    s.out = "out";
    s.data.at[s.data.n++] = "text.txt";
    return s;
}

static km_status read_json(km_train_settings *s, const char *text, json_t **o) {
    *o = json_loads(text, 0, NULL);
    assert_non_null(*o);
    return km_train_from_json(s, *o, false, "f.json", &err);
}

static void defaults_and_two_names_are_enough(void **state) {
    (void)state;
    km_train_settings s = usable();
    assert_done(km_train_settings_check(&s, &err));
}

static void settings_survive_json(void **state) {
    (void)state;
    km_train_settings s = usable(), back = km_train_defaults();
    s.layers = 7;
    s.lr = 0.1 + 0.2;
    s.data.at[s.data.n++] = "more:0.5";
    s.recompute = true;
    s.tokenizer = "bpe:512";
    json_t *o = km_train_to_json(&s);
    assert_done(km_train_from_json(&back, o, false, "run.json", &err));
    assert_int_equal(back.layers, 7);
    assert_true(back.lr == s.lr);
    assert_int_equal(back.data.n, 2);
    assert_string_equal(back.data.at[1], "more:0.5");
    assert_true(back.recompute);
    assert_true(back.min_lr < 0 && back.dropout < 0 && back.heads == 0);
    assert_done(km_train_same_run(&back, &s, &err));
    json_decref(o);
}

static void json_may_use_dashes_or_underscores_and_nothing_unknown(void **state) {
    (void)state;
    km_train_settings s = usable();
    json_t *o;
    assert_done(read_json(&s, "{\"min_lr\": 1e-5, \"eval-every\": 7, \"data\": \"x\"}", &o));
    assert_true(s.min_lr == 1e-5);
    assert_int_equal(s.eval_every, 7);
    assert_int_equal(s.data.n, 1);
    json_decref(o);
    static const char *const bad[][2] = {
        {"{\"leyers\": 3}", "\"leyers\" is no setting"},
        {"{\"layers\": 3.5}", "must be a whole number"},
        {"{\"layers\": 0}", "must be between 1 and 10000"},
        {"{\"lr\": \"fast\"}", "must be a number"},
        {"{\"recompute\": 1}", "must be true or false"},
        {"{\"model\": 2}", "must be a text"},
        {"{\"data\": [1]}", "list"},
        {"{\"data\": []}", "must be a text or a list"},
        {"{\"resume\": true}", "belongs on the command line"},
        {"[1]", "settings are a JSON object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_says(read_json(&s, bad[i][0], &o), bad[i][1]);
        json_decref(o);
    }
}

static void resuming_may_change_the_steps_but_not_the_model(void **state) {
    (void)state;
    km_train_settings now = usable(), stored = usable();
    now.steps = 99;
    now.lr = 5e-4;
    now.eval_every = 1;
    assert_done(km_train_same_run(&now, &stored, &err));
    now.dim = 256;
    assert_says(km_train_same_run(&now, &stored, &err), "cannot change --dim");
    now = usable();
    now.seed = 2;
    assert_says(km_train_same_run(&now, &stored, &err), "--seed: it was 1");
}

static void the_learning_rate_follows_the_width(void **state) {
    (void)state;
    km_train_settings s = usable();
    assert_true(fabs(km_train_lr(&s, 384) - 1e-3) < 1e-9);
    assert_true(fabs(km_train_lr(&s, 768) - 5e-4) < 1e-9);
    assert_true(km_train_lr(&s, 16) == 3e-3);
    s.init = "x";
    assert_true(fabs(km_train_lr(&s, 768) - 5e-5) < 1e-9);
    s.optimizer = "sgd";
    assert_true(km_train_lr(&s, 768) == 0.1);
    s.lr = 0.25;
    assert_true(km_train_lr(&s, 768) == 0.25);
    json_t *o = km_train_to_json(&s);
    s = usable();
    assert_true(json_is_number(json_object_get(o, "lr")));
    json_decref(o);
    o = km_train_to_json(&s);
    assert_true(json_is_null(json_object_get(o, "lr")));
    json_decref(o);
}

#define REFUSED(part, ...)                                                                         \
    do {                                                                                           \
        km_train_settings s = usable();                                                            \
        __VA_ARGS__;                                                                               \
        assert_says(km_train_settings_check(&s, &err), part);                                      \
    } while (0)

static void what_makes_no_run_is_refused(void **state) {
    (void)state;
    REFUSED("--out DIR", s.out = NULL);
    REFUSED("--data FILE", s.data.n = 0);
    REFUSED("--schedule", s.schedule = "sine");
    REFUSED("--optimizer", s.optimizer = "lion");
    REFUSED("--dtype", s.dtype = "f64");
    REFUSED("above --lr", s.lr = 0.5; s.min_lr = 1);
    REFUSED("schedule", s.min_lr = 1);
    REFUSED("bpe:4096", s.tokenizer = "bpe");
    REFUSED("257 to 1000000", s.tokenizer = "bpe:100");
    REFUSED("257 to 1000000", s.tokenizer = "bpe:12x");
    REFUSED("no model is called", s.model = "gpt5");
    REFUSED("heads", s.dim = 100; s.heads = 3);
    REFUSED("heads", s.model = "llama-tiny"; s.heads = 4; s.kv_heads = 3);
    REFUSED("--init brings", s.init = "x"; s.dim = 64);
    REFUSED("--init DIR", s.lora_rank = 4);
}

static void schedules_follow_the_settings(void **state) {
    (void)state;
    km_train_settings s = usable();
    s.schedule = "wsd";
    s.steps = 1000;
    s.lr = 1e-3;
    km_schedule w = km_train_schedule(&s, 384);
    assert_int_equal(w.decay, 100);
    assert_true(w.min_lr == s.lr / 10);
    s.steps = 50; /* fewer than the warm-up's */
    w = km_train_schedule(&s, 384);
    assert_int_equal(w.warmup, 50);
    assert_int_equal(w.decay, 0);
    assert_done(km_train_settings_check(&s, &err));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_two_names_are_enough),
        cmocka_unit_test(settings_survive_json),
        cmocka_unit_test(json_may_use_dashes_or_underscores_and_nothing_unknown),
        cmocka_unit_test(resuming_may_change_the_steps_but_not_the_model),
        cmocka_unit_test(the_learning_rate_follows_the_width),
        cmocka_unit_test(what_makes_no_run_is_refused),
        cmocka_unit_test(schedules_follow_the_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

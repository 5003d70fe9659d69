/* The scheduler over the small model: few pages, set aside and resumed; places shared fairly and by
 * priority; cancelling at every stage; grammars beside; and nothing left over. */
#include "serve/submitter.h"

/* ---- Tests ---- */

static void with_few_pages_the_youngest_waits_and_every_text_stays(void **state) {
    (void)state;
    km_model *m = tiny_model();
    asked_task a[MANY];
    char *alone[MANY];
    for (int i = 0; i < MANY; i++) {
        prepare(&a[i], m, prompts[i], 0); /* until the context of 256 tokens is full */
        a[i].how.sampling.seed = (uint64_t)i;
        if (i == 2) a[i].how.grammar = "root ::= [a-z ]*";
        if (i == 2) a[i].how.past_end = false;
        alone[i] = km_generate_text(m, prompts[i], &a[i].how);
        assert_non_null(alone[i]);
    }
    /* Pages of 64 tokens: 4 for a whole context. There are as many as one and a half sequences take. */
    km_scheduler_options o = {.parallel = MANY, .context = 256, .reserve = 8};
    km_scheduler *probe = open_scheduler(m, o);
    asked_task one;
    prepare(&one, m, "I", 1);
    submit(probe, &one);
    finish(1);
    km_text_free(&one.text);
    int64_t all = km_scheduler_count(probe).pages;
    assert_true(all > 0);
    close_scheduler(probe);
    km_model_info about = km_model_describe(m);
    size_t page = (size_t)(2 * 2 * 64 * about.layers * about.dim / about.heads * about.kv_heads);
    o.memory = 7 * page;
    km_scheduler *s = open_scheduler(m, o);
    for (int i = 0; i < MANY; i++) submit(s, &a[i]);
    finish(MANY);
    km_scheduler_counts c = km_scheduler_count(s);
    assert_true(c.pages >= 4 && c.pages < 12);
    assert_true(c.set_aside > 0);
    assert_int_equal(c.failed, 0);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(a[i].status, KM_OK);
        assert_int_equal(a[i].ends, 1);
        assert_string_equal(km_text_str(&a[i].text), alone[i]);
        km_string_free(alone[i]);
        km_text_free(&a[i].text);
    }
    nothing_is_left(s, m);
    close_scheduler(s);
    km_model_close(m);
}

static void owners_take_turns_and_priority_goes_first(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_scheduler *s = open_scheduler(m, (km_scheduler_options){.parallel = 1, .kept = -1});
    asked_task a[MANY];
    for (int i = 0; i < MANY; i++) {
        prepare(&a[i], m, prompts[i], i == 0 ? 60 : 2);
        a[i].task.owner = i == 4 ? 2 : 1;
        a[i].task.priority = i == 5;
    }
    submit(s, &a[0]);
    while (a[0].tokens == 0) open_mail(true); /* it has the place */
    for (int i = 1; i < MANY; i++) submit(s, &a[i]);
    finish(MANY);
    assert_int_equal(a[0].order, 1);
    assert_int_equal(a[5].order, 2); /* priority, though it came last */
    for (int i = 1; i < 4; i++) assert_true(a[i].order > a[5].order);
    assert_true(a[1].order < a[2].order && a[2].order < a[3].order);
    for (int i = 0; i < MANY; i++) km_text_free(&a[i].text);
    nothing_is_left(s, m);
    close_scheduler(s);

    /* Two places: one owner's second request waits for the other's first. */
    s = open_scheduler(m, (km_scheduler_options){.parallel = 2, .kept = -1});
    for (int i = 0; i < 5; i++) {
        prepare(&a[i], m, prompts[i], i == 0 ? 120 : 30);
        a[i].task.owner = i == 4 ? 2 : 1;
    }
    submit(s, &a[0]);
    while (a[0].tokens == 0) open_mail(true);
    for (int i = 1; i < 5; i++) submit(s, &a[i]);
    finish(5);
    assert_true(a[4].order < a[2].order && a[4].order < a[3].order);
    for (int i = 0; i < 5; i++) km_text_free(&a[i].text);
    close_scheduler(s);
    km_model_close(m);
}

static void cancelling_frees_the_place_at_every_stage(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_scheduler *s =
        open_scheduler(m, (km_scheduler_options){.parallel = 2, .queue = 3, .chunk = 4});
    asked_task a[5];
    for (int i = 0; i < 5; i++) prepare(&a[i], m, prompts[i % MANY], 200);
    a[1].how.schema = "{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}";
    for (int i = 0; i < 4; i++) submit(s, &a[i]);
    km_scheduler_cancel(s, &a[1].task); /* perhaps while its schema is compiled */
    km_scheduler_cancel(s, &a[3].task); /* in the queue, or in its prompt */
    while (a[0].tokens == 0) open_mail(true);
    km_scheduler_cancel(s, &a[0].task); /* in its answer */
    while (mail.ended < 3) open_mail(true);
    assert_int_equal(a[0].end, KM_ENDED_CANCELLED);
    assert_int_equal(a[1].end, KM_ENDED_CANCELLED);
    assert_int_equal(a[3].end, KM_ENDED_CANCELLED);
    a[4].task.deadline = km_now() - 1;
    submit(s, &a[4]);
    finish(5);
    assert_true(a[4].task.late);
    assert_int_equal(a[2].tokens, 200);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(a[i].status, KM_OK);
        assert_int_equal(a[i].ends, 1);
        km_text_free(&a[i].text);
    }
    assert_int_equal(km_scheduler_count(s).cancelled, 4);
    nothing_is_left(s, m);

    /* A full queue is told, and ends with the server. */
    km_error err = {0};
    asked_task more[6];
    for (int i = 0; i < 6; i++) {
        prepare(&more[i], m, prompts[i], 200);
        km_status taken = km_scheduler_submit(s, &more[i].task, &err);
        assert_int_equal(taken, i < 5 ? KM_OK : KM_ERR_STATE); /* two places, and three that wait */
    }
    close_scheduler(s);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(more[i].ends, i < 5);
        km_text_free(&more[i].text);
    }
    km_model_close(m);
}

static void grammars_are_each_ones_own_and_a_bad_one_hurts_nobody(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_scheduler *s = open_scheduler(m, (km_scheduler_options){.parallel = 3});
    asked_task a[MANY];
    for (int i = 0; i < MANY; i++) {
        prepare(&a[i], m, prompts[i], 40);
        a[i].how.past_end = i % 2 == 0;
        if (i % 2) a[i].how.grammar = "root ::= \"yes\" | \"no\"";
        if (i == 4) a[i].how.schema = "{\"type\": 5}";
    }
    for (int i = 0; i < MANY; i++) submit(s, &a[i]);
    finish(MANY);
    for (int i = 0; i < MANY; i++) {
        const char *text = km_text_str(&a[i].text);
        if (i == 4) assert_int_not_equal(a[i].status, KM_OK);
        if (i != 4) assert_int_equal(a[i].status, KM_OK);
        if (i % 2) assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
        km_text_free(&a[i].text);
    }
    nothing_is_left(s, m);
    close_scheduler(s);
    km_model_close(m);
}

/* One token is made sooner, now and then, than the thread that compiled the grammar has said that it did. */
static void an_answer_may_end_before_its_start_is_told(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_scheduler *s = open_scheduler(m, (km_scheduler_options){.parallel = 4, .context = 256});
    asked_task *running = calloc(1, sizeof *running);
    prepare(running, m, "The sea is", 0);
    submit(s, running);
    for (int i = 0; i < 60; i++) {
        asked_task *a =
            malloc(sizeof *a); /* of its own, so that a sanitizer sees who looks at it later */
        prepare(a, m, "He", 1);
        a->how.grammar = "root ::= [a-z ]*";
        a->how.sampling.seed = (uint64_t)i;
        submit(s, a);
        while (a->ends == 0) open_mail(true);
        assert_int_equal(a->status, KM_OK);
        km_text_free(&a->text);
        free(a);
        if (running->ends == 0) continue;
        km_text_free(&running->text);
        prepare(running, m, "The sea is", 0);
        submit(s, running);
    }
    km_scheduler_cancel(s, &running->task);
    while (running->ends == 0) open_mail(true);
    km_text_free(&running->text);
    free(running);
    nothing_is_left(s, m);
    close_scheduler(s);
    km_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_few_pages_the_youngest_waits_and_every_text_stays),
        cmocka_unit_test(owners_take_turns_and_priority_goes_first),
        cmocka_unit_test(cancelling_frees_the_place_at_every_stage),
        cmocka_unit_test(grammars_are_each_ones_own_and_a_bad_one_hurts_nobody),
        cmocka_unit_test(an_answer_may_end_before_its_start_is_told),
    };
    int64_t before = km_alloc_live();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (!failed && km_alloc_live() != before) {
        fprintf(stderr, "%lld heap blocks were left behind\n",
                (long long)(km_alloc_live() - before));
        return 1;
    }
    return failed;
}

/* The scheduler over the small model: few pages, set aside and resumed; places shared fairly and by
 * priority; cancelling at every stage; grammars beside; and nothing left over. */
#include "serve/scheduler/scheduler.h"
#include "base/text.h"
#include "engine/tiny_model.h"
#include <pthread.h>
#include <unistd.h>

/* ---- A submitter: this thread runs what the engine posts ---- */

typedef struct posted_call {
    void (*fn)(void *arg);
    void *arg;
    struct posted_call *next;
} posted_call;

typedef struct asked_task {
    km_task task;
    km_generation how;
    int32_t ids[512];
    km_text text;
    int ends, order, tokens;
    km_end_reason end;
    km_status status;
} asked_task;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t some;
    posted_call *first, **last;
    int ended;
} mail = {.lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};

static bool post(void *user, void (*fn)(void *arg), void *arg) {
    (void)user;
    posted_call *p = malloc(sizeof *p);
    if (!p) return false;
    *p = (posted_call){fn, arg, NULL};
    pthread_mutex_lock(&mail.lock);
    if (!mail.first) mail.last = &mail.first;
    *mail.last = p;
    mail.last = &p->next;
    pthread_cond_signal(&mail.some);
    pthread_mutex_unlock(&mail.lock);
    return true;
}

static bool open_mail(bool wait) {
    pthread_mutex_lock(&mail.lock);
    while (wait && !mail.first) pthread_cond_wait(&mail.some, &mail.lock);
    posted_call *p = mail.first;
    if (p) mail.first = p->next;
    pthread_mutex_unlock(&mail.lock);
    if (!p) return false;
    p->fn(p->arg);
    free(p);
    return true;
}

static void on_events(void *user, const km_task_event *e, size_t n) {
    (void)user;
    for (size_t i = 0; i < n; i++) {
        asked_task *a = e[i].task->user;
        a->tokens += e[i].id >= 0;
        if (e[i].end == KM_ENDED_NOT) {
            km_text_put(&a->text, e[i].text, e[i].bytes);
            continue;
        }
        a->ends++;
        a->end = e[i].end;
        a->status = e[i].status;
        a->order = ++mail.ended;
    }
}

static km_scheduler *open_scheduler(km_model *m, km_scheduler_options o) {
    km_error err = {0};
    o.post = post;
    o.on_events = on_events;
    mail.ended = 0;
    km_scheduler *s = km_scheduler_new(m, &o, &err);
    if (!s) fail_msg("%s", err.text);
    return s;
}

static void close_scheduler(km_scheduler *s) {
    km_scheduler_stop(s);
    while (open_mail(false)) {}
    km_scheduler_free(s);
}

static void prepare(asked_task *a, km_model *m, const char *prompt, int64_t tokens) {
    *a = (asked_task){.how = tiny_greedy(m, tokens)};
    a->how.sampling.temperature = 1;
    a->task.n_ids = (size_t)tiny_ids(m, prompt, a->ids, 512);
    a->task.ids = a->ids;
    a->task.how = &a->how;
    a->task.user = a;
}

static void submit(km_scheduler *s, asked_task *a) {
    km_error err = {0};
    if (km_scheduler_submit(s, &a->task, &err) != KM_OK) fail_msg("%s", err.text);
}

static void finish(int ended) {
    while (mail.ended < ended) open_mail(true);
}

/* All places, tokens and pages are there again, once the prefix cache is empty. */
static void nothing_is_left(km_scheduler *s, km_model *m) {
    asked_task last;
    prepare(&last, m, "I", 1);
    km_scheduler_clear(s);
    submit(s, &last);
    finish(mail.ended + 1);
    km_text_free(&last.text);
    km_scheduler_counts c = km_scheduler_count(s);
    assert_int_equal(c.running, 0);
    assert_int_equal(c.queued, 0);
    assert_int_equal(c.paused, 0);
    assert_true(c.pages - c.pages_free <= 1); /* of the last one, which is kept for its next turn */
}

/* ---- Tests ---- */

enum { MANY = 6 };
static const char *const prompts[MANY] = {
    "Once upon a time there was",   "The sea is",
    "A small dog ran to the house", "One day a girl named Lily went to the park with her mom",
    "I saw a red bird in the tree", "He said"};

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
    a[4].task.deadline = km_scheduler_now() - 1;
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

/* Two conversations and room for one: the second turn of each finds what the first has read. */
static void what_leaves_the_cache_comes_back_from_its_file(void **state) {
    (void)state;
    km_model *m = tiny_model();
    char folder[] = "/tmp/kermes-shelf-XXXXXX";
    assert_non_null(mkdtemp(folder));
    km_error err = {0};
    km_scheduler_options o = {.parallel = 1, .kept = 1, .exact = true, .shelf_bytes = 64 << 20};
    o.shelf_folder = "/nowhere/at/all";
    o.post = post;
    o.on_events = on_events;
    assert_null(km_scheduler_new(m, &o, &err));
    o.shelf_folder = folder;
    char talk[2][900] = {"", ""};
    for (int i = 0; i < 30; i++) {
        strcat(talk[0], prompts[i % 3]);
        strcat(talk[1], prompts[3 + i % 3]);
        if (i == 14) break;
    }
    for (int bytes = 64 << 20; bytes > 0; bytes = bytes > 1 ? 1 : 0) {
        o.shelf_bytes = (size_t)bytes;
        km_scheduler *s = open_scheduler(m, o);
        for (int turn = 0; turn < 4; turn++) {
            asked_task a;
            prepare(&a, m, talk[turn % 2], 12);
            char *alone = km_generate_text(m, talk[turn % 2], &a.how);
            submit(s, &a);
            finish(turn + 1);
            assert_string_equal(km_text_str(&a.text), alone);
            if (turn > 1 && bytes > 1) assert_true(a.task.reused >= (int64_t)a.task.n_ids / 2);
            if (turn < 2 || bytes == 1) assert_int_equal(a.task.reused, 0);
            km_string_free(alone);
            km_text_free(&a.text);
        }
        assert_int_equal(km_scheduler_count(s).brought_back, bytes > 1 ? 2 : 0);
        nothing_is_left(s, m);
        close_scheduler(s);
    }
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
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

/* Requests that share a system prompt and branch from each other, with few pages and few places: every text is
 * the one given alone, what is shared is read once, and no page is lost. */
static void shared_beginnings_are_read_once_and_texts_stay(void **state) {
    (void)state;
    enum { TURNS = 60 };
    static const char system[] =
        "Once upon a time there was a small dog. The dog ran to the house and saw a red bird in the "
        "tree. One day a girl named Lily went to the park with her mom. ";
    km_model *m = tiny_model();
    km_model_info about = km_model_describe(m);
    size_t page = (size_t)(2 * 2 * 64 * about.layers * about.dim / about.heads * about.kv_heads);
    for (int pages = 0; pages <= 14; pages += 7) { /* 0: as many as could be used */
        km_scheduler_options o = {.parallel = 3, .kept = 4, .context = 256, .exact = true};
        o.memory = (size_t)pages * page;
        km_scheduler *s = open_scheduler(m, o);
        asked_task *a = calloc(TURNS, sizeof *a);
        char prompt[TURNS][600];
        int64_t reused = 0;
        srand(5);
        for (int i = 0; i < TURNS; i++) {
            snprintf(prompt[i], sizeof prompt[i], "%s%s %s", rand() % 5 ? system : "",
                     prompts[rand() % MANY], rand() % 2 ? prompts[rand() % MANY] : "");
            prepare(&a[i], m, prompt[i], 1 + rand() % 12);
            a[i].how.exact = true;
            a[i].how.sampling.seed = (uint64_t)i;
            a[i].task.domain = (uint64_t)rand() % 4 == 0;
            submit(s, &a[i]);
            if (rand() % 3 == 0) finish(i + 1);
        }
        finish(TURNS);
        for (int i = 0; i < TURNS; i++) {
            char *alone = km_generate_text(m, prompt[i], &a[i].how);
            assert_int_equal(a[i].status, KM_OK);
            assert_string_equal(km_text_str(&a[i].text), alone);
            reused += a[i].task.reused;
            km_string_free(alone);
            km_text_free(&a[i].text);
        }
        km_scheduler_counts c = km_scheduler_count(s);
        assert_true(reused > 0);
        assert_int_equal(c.reused_tokens, reused);
        assert_true(c.kept <= 4 && c.nodes >= c.kept);
        nothing_is_left(s, m);
        close_scheduler(s);
        free(a);
    }
    km_model_close(m);
}

/* Two that share a beginning and a third that needs pages: only the leaves that were used least go. */
static void one_page_too_few_does_not_empty_the_cache(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_model_info about = km_model_describe(m);
    size_t page = (size_t)(2 * 2 * 64 * about.layers * about.dim / about.heads * about.kv_heads);
    km_scheduler_options o = {.parallel = 1, .kept = 6, .context = 256, .memory = 8 * page};
    km_scheduler *s = open_scheduler(m, o);
    char prompt[5][900];
    asked_task a;
    for (int i = 0; i < 5; i++) {
        prompt[i][0] = '\0';
        for (int k = 0; k < 4; k++) strcat(strcat(prompt[i], prompts[i]), ". ");
        prepare(&a, m, prompt[i], 2);
        submit(s, &a);
        finish(i + 1);
        km_text_free(&a.text);
    }
    /* 8 pages hold some of the five: the last ones. */
    prepare(&a, m, prompt[4], 2);
    submit(s, &a);
    finish(6);
    assert_true(a.task.reused + 1 >= (int64_t)a.task.n_ids);
    km_text_free(&a.text);
    km_scheduler_counts c = km_scheduler_count(s);
    assert_true(c.evicted < 4); /* not all that were there */
    assert_true(c.kept >= 2);
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
        cmocka_unit_test(what_leaves_the_cache_comes_back_from_its_file),
        cmocka_unit_test(an_answer_may_end_before_its_start_is_told),
        cmocka_unit_test(shared_beginnings_are_read_once_and_texts_stay),
        cmocka_unit_test(one_page_too_few_does_not_empty_the_cache),
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

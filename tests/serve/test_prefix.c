/* The prefix cache: requests that begin alike, with few pages and few places, with a second level, models whose
 * layers all have windows, and memory that runs out. Every text is the one given alone, and nothing is lost. */
#include "model/mix.h"
#include "model/synthetic.h"
#include "serve/submitter.h"
#include "support/sanitized.h"

enum { TURNS = SANITIZED ? 16 : 60 };

static size_t page_bytes(km_model *m) { /* 64 tokens in f16 */
    km_model_info about = km_model_describe(m);
    return (size_t)(2 * 2 * 64 * about.layers * about.dim / about.heads * about.kv_heads);
}

/* Requests that share system prompts and branch from each other, some of another domain. What was reused of
 * their prompts, in tokens. */
static int64_t ask_many(km_model *m, km_scheduler *s, const char *system, int longest) {
    asked_task *a = calloc(TURNS, sizeof *a);
    char(*prompt)[900] = calloc(TURNS, sizeof *prompt);
    int64_t reused = 0;
    for (int i = 0; i < TURNS; i++) {
        snprintf(prompt[i], sizeof *prompt, "%s%s", rand() % 5 ? system : "",
                 rand() % 3 ? "" : "I say. ");
        for (int k = rand() % longest; k >= 0; k--)
            strcat(strcat(prompt[i], prompts[rand() % MANY]), " ");
        prepare(&a[i], m, prompt[i], 1 + rand() % 12);
        a[i].how.exact = true;
        a[i].how.sampling.seed = (uint64_t)i;
        a[i].task.domain = (uint64_t)rand() % 4 == 0;
        submit(s, &a[i]);
        if (rand() % 3 == 0) finish(i + 1);
        if (rand() % 9 == 0) km_scheduler_cancel(s, &a[i].task);
    }
    finish(TURNS);
    for (int i = 0; i < TURNS; i++) {
        char *alone = km_generate_text(m, prompt[i], &a[i].how);
        if (a[i].status != KM_OK) fail_msg("%s", a[i].why);
        assert_int_equal(a[i].ends, 1);
        if (a[i].end != KM_ENDED_CANCELLED) assert_string_equal(km_text_str(&a[i].text), alone);
        reused += a[i].task.reused;
        km_string_free(alone);
        km_text_free(&a[i].text);
    }
    km_scheduler_counts c = km_scheduler_count(s);
    assert_int_equal(c.reused_tokens, reused);
    assert_int_equal(c.failed, 0);
    assert_true(c.kept <= 4 && c.nodes >= c.kept);
    free(a);
    free(prompt);
    return reused;
}

static void shared_beginnings_are_read_once_and_texts_stay(void **state) {
    (void)state;
    static const char system[] =
        "Once upon a time there was a small dog. The dog ran to the house and saw a red bird in the "
        "tree. One day a girl named Lily went to the park with her mom. ";
    km_model *m = tiny_model();
    srand(5);
    for (int pages = 0; pages <= 14; pages += 7) { /* 0: as many as could be used */
        km_scheduler_options o = {.parallel = 3, .kept = 4, .context = 256, .exact = true};
        o.memory = (size_t)pages * page_bytes(m);
        km_scheduler *s = open_scheduler(m, o);
        assert_true(ask_many(m, s, system, 2) > 0);
        nothing_is_left(s, m);
        close_scheduler(s);
    }
    km_model_close(m);
}

/* What leaves goes to files while other files come back, and either may be what the next request begins with. */
static void a_second_level_under_pressure_changes_no_text(void **state) {
    (void)state;
    static const char system[] =
        "Once upon a time there was a small dog. The dog ran to the house and saw a red bird in the "
        "tree. One day a girl named Lily went to the park with her mom. The sun was big and the sky "
        "was blue. She saw a cat and the cat saw her, and they were very happy all the day long. ";
    km_model *m = tiny_model();
    int64_t back = 0;
    srand(6);
    for (int pages = 4; pages <= 10; pages += SANITIZED ? 6 : 3)
        for (int files = 3; files <= 30; files += 27) {
            km_scheduler_options o = {.parallel = 3, .kept = 4, .context = 256, .exact = true};
            o.reserve = 4;
            o.memory = (size_t)pages * page_bytes(m);
            o.shelf_bytes = (size_t)files * 2 * page_bytes(m);
            km_scheduler *s = open_scheduler(m, o);
            ask_many(m, s, system, 5);
            km_scheduler_counts c = km_scheduler_count(s);
            assert_true(c.shelf_bytes <= (int64_t)o.shelf_bytes);
            back += c.brought_back;
            nothing_is_left(s, m);
            assert_int_equal(km_scheduler_count(s).shelved, 0);
            close_scheduler(s);
        }
    assert_true(back > 0);
    km_model_close(m);
}

/* A file is to come back, what the prompt could begin with in the cache goes for it, and there is still no room:
 * the request waits, and begins with what is there then. */
static void room_made_in_vain_is_no_beginning_any_more(void **state) {
    (void)state;
    km_model *m = tiny_model();
    km_scheduler_options o = {.parallel = 2, .kept = 1, .context = 256, .exact = true};
    o.memory = 7 * page_bytes(m);
    o.shelf_bytes = 1 << 20;
    km_scheduler *s = open_scheduler(m, o);
    char talk[900] = "";
    while (strlen(talk) < 380) strcat(strcat(talk, prompts[strlen(talk) % MANY]), ". ");
    asked_task again, others[3];
    prepare(&others[0], m, talk, 2);
    submit(s, &others[0]);
    finish(1);
    assert_in_range(others[0].task.n_ids, 150, 220);
    strcpy(talk + 150, "?"); /* shares its beginning, and takes the one place of the cache */
    prepare(&others[1], m, talk, 2);
    submit(s, &others[1]);
    finish(2);
    assert_int_equal(km_scheduler_count(s).shelved, 1);
    prepare(&others[2], m, "I", 200); /* is promised four pages of the seven */
    submit(s, &others[2]);
    while (others[2].tokens == 0) open_mail(true);
    again = others[0];
    again.text = (km_text){0};
    again.tokens = again.ends = 0;
    again.task.ids = again.ids;
    again.task.how = &again.how;
    again.task.user = &again;
    submit(s, &again);
    finish(4);
    assert_true(again.order > others[2].order);
    assert_string_equal(km_text_str(&again.text), km_text_str(&others[0].text));
    assert_int_equal(km_scheduler_count(s).brought_back, 1);
    assert_true(again.task.reused > 64);
    for (int i = 0; i < 3; i++) km_text_free(&others[i].text);
    km_text_free(&again.text);
    nothing_is_left(s, m);
    close_scheduler(s);
    km_model_close(m);
}

/* All layers see 48 tokens. A sequence that is cut to what others share may have nothing left then. */
static km_model *windowed_model(void) {
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 2,
                   .heads = 2,
                   .kv_heads = 1,
                   .dim = 64,
                   .hidden = 128,
                   .context = 256,
                   .vocab = 300,
                   .rope_base = 1e4,
                   .norm_eps = 1e-5,
                   .window = 48};
    char path[] = "/tmp/kermes-window-XXXXXX";
    km_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    if (km_config_complete(&c, &err) != KM_OK ||
        km_synthetic_write(path, &c, km_mix_find("q8_0"), 1, NULL, NULL, &err) != KM_OK)
        fail_msg("%s", err.text);
    km_model_options o = tiny_options();
    o.context = 256;
    km_model *m = km_model_open(path, &o);
    if (!m) fail_msg("%s", km_last_error());
    unlink(path);
    return m;
}

static void windows_that_have_passed_a_beginning_are_read_again(void **state) {
    (void)state;
    static const char system[] =
        "Once upon a time there was a small dog. The dog ran to the house and saw a red bird in the tree. ";
    km_model *m = windowed_model();
    srand(7);
    int64_t evicted = 0;
    for (int pages = SANITIZED ? 4 : 0; pages <= 8; pages += 4)
        for (int files = 0; files <= 30; files += 30) {
            km_scheduler_options o = {.parallel = 3, .kept = 4, .context = 256, .exact = true};
            o.reserve = 4;
            o.memory = (size_t)pages * page_bytes(m);
            o.shelf_bytes = (size_t)files * page_bytes(m);
            km_scheduler *s = open_scheduler(m, o);
            ask_many(m, s, system, 2);
            evicted += km_scheduler_count(s).evicted;
            nothing_is_left(s, m);
            close_scheduler(s);
        }
    assert_true(evicted > 0);
    km_model_close(m);
}

/* Each allocation of a few requests fails once, in either thread: a request ends once, with its text or an error,
 * and what comes behind it is whole. */
static void memory_that_runs_out_ends_a_request_and_loses_nothing(void **state) {
    (void)state;
    enum { EACH = 3 };
    km_model *m = tiny_model();
    km_scheduler_options o = {.parallel = 2, .kept = 3, .context = 256, .exact = true};
    o.memory = 9 * page_bytes(m);
    o.shelf_bytes = 1 << 20;
    km_scheduler *s = open_scheduler(m, o);
    char prompt[900], *alone[EACH] = {0};
    asked_task a[EACH];
    int ended = 0, refused = 0;
    for (int nth = -1; nth < 200; nth += SANITIZED ? 8 : 1) {
        for (int i = 0; i < EACH; i++) {
            snprintf(prompt, sizeof prompt, "%s. %s. %s. %s. %s", prompts[3], prompts[0],
                     prompts[2], prompts[3], prompts[i]);
            prepare(&a[i], m, prompt, 6);
            a[i].how.exact = true;
            if (nth < 0) alone[i] = km_generate_text(m, prompt, &a[i].how);
        }
        km_alloc_fail_nth(nth);
        for (int i = 0; i < EACH; i++) submit(s, &a[i]);
        ended += EACH;
        finish(ended);
        km_alloc_fail_nth(-1);
        for (int i = 0; i < EACH; i++) {
            assert_int_equal(a[i].ends, 1);
            refused += a[i].status != KM_OK;
            if (a[i].status == KM_OK && km_text_ok(&a[i].text))
                assert_string_equal(km_text_str(&a[i].text), alone[i]);
            km_text_free(&a[i].text);
        }
        if (nth % 7 == 0) km_scheduler_clear(s);
    }
    assert_true(SANITIZED || refused > 0);
    nothing_is_left(s, m);
    for (int i = 0; i < EACH; i++) km_string_free(alone[i]);
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
        cmocka_unit_test(shared_beginnings_are_read_once_and_texts_stay),
        cmocka_unit_test(a_second_level_under_pressure_changes_no_text),
        cmocka_unit_test(room_made_in_vain_is_no_beginning_any_more),
        cmocka_unit_test(windows_that_have_passed_a_beginning_are_read_again),
        cmocka_unit_test(memory_that_runs_out_ends_a_request_and_loses_nothing),
        cmocka_unit_test(what_leaves_the_cache_comes_back_from_its_file),
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

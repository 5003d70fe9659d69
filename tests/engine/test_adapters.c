/* Adapters of an open model: chosen by each generation and each sequence of a batch, in any thread,
 * added and removed meanwhile. A text is the same whatever ran before it and runs beside it. */
#include "engine/tiny_model.h"
#include "format/gguf.h"
#include "model/layout.h"
#include "support/lora_files.h"
#include "support/sanitized.h"
#include "train/checkpoint.h"
#include <math.h>
#include <pthread.h>

enum { TOKENS = 12 };

static char folder[64];
static char one[96], two[96], three[96]; /* paths */

static int make_adapters(void **state) {
    (void)state;
    strcpy(folder, "/tmp/kermes-adapters-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    km_error err = {0};
    km_gguf *g = km_gguf_open(tiny_path(), &err);
    km_config c;
    if (!g || km_config_from_gguf(&c, g, &err) != KM_OK) return -1;
    km_gguf_close(g);
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(two, sizeof two, "%s/two.gguf", folder);
    snprintf(three, sizeof three, "%s/three", folder);
    write_lora_folder(one, &c, &(lora_form){.rank = 8, .alpha = 16, .seed = 1, .size = 0.15});
    write_lora_gguf(two, &c, &(lora_form){.rank = 4, .alpha = 8, .seed = 2, .size = 0.2});
    write_lora_folder(three, &c, &(lora_form){.rank = 2, .alpha = 8, .seed = 3, .size = 0.3});
    return 0;
}

static int remove_adapters(void **state) {
    (void)state;
    km_folder_remove(folder);
    return 0;
}

/* A model with the first two, neither of them used unless chosen. */
static km_model *model_with(bool off) {
    km_model_options o = tiny_options();
    km_adapter a[] = {{.path = one, .off = off}, {.path = two, .off = off, .scale = 0.5}};
    o.adapters = a;
    o.n_adapters = 2;
    km_model *m = km_model_open(tiny_path(), &o);
    if (!m) fail_msg("%s", km_last_error());
    return m;
}

static char *text_of(km_model *m, const km_adapter *a, int64_t n) {
    km_generation g = tiny_greedy(m, TOKENS);
    g.adapters = a;
    g.n_adapters = n;
    char *text = km_generate_text(m, "Once upon a time", &g);
    if (!text) fail_msg("%s", km_last_error());
    return text;
}

#define assert_text(m, want, ...)                                                                  \
    do {                                                                                           \
        const km_adapter chosen_[] = {__VA_ARGS__};                                                \
        char *text_ = text_of(m, chosen_, (int64_t)(sizeof chosen_ / sizeof *chosen_));            \
        assert_string_equal(text_, want);                                                          \
        km_string_free(text_);                                                                     \
    } while (0)

static void each_generation_has_its_own(void **state) {
    (void)state;
    km_model *plain = tiny_model(), *m = model_with(true), *both = model_with(false);
    char *base = text_of(plain, NULL, -1);
    char *first = text_of(m, &(km_adapter){.name = "one"}, 1);
    char *second = text_of(m, &(km_adapter){.path = two}, 1);
    char *together = text_of(both, NULL, -1), *none = text_of(both, NULL, 0);
    assert_string_not_equal(base, first);
    assert_string_not_equal(base, second);
    assert_string_not_equal(first, second);
    assert_string_not_equal(first, together);
    assert_string_equal(base, none);
    char *said = text_of(m, NULL, -1); /* off, both of them */
    assert_string_equal(base, said);
    assert_text(m, together, {.name = "two"}, {.name = "one"});
    assert_text(m, first, {.path = "one", .scale = 1});
    assert_text(both, second, {.path = "two", .scale = 0.5});
    /* Of one session: what was read with one is not gone on from with another. */
    km_session *s = km_session_new(m);
    km_generation g = tiny_greedy(m, TOKENS);
    km_generated got = {.size = sizeof got};
    km_adapter a = {.name = "one"};
    const char *prompt = "Once upon a time";
    assert_int_equal(km_generate(s, prompt, strlen(prompt), &g, &got), KM_OK);
    assert_int_equal(got.reused, 0);
    g.adapters = &a, g.n_adapters = 1;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(km_generate(s, prompt, strlen(prompt), &g, &got), KM_OK);
        assert_int_equal(got.reused, i ? got.prompt_tokens - 1 : 0);
    }
    km_session *f = km_session_fork(s); /* has what its origin has */
    assert_int_equal(km_generate(f, prompt, strlen(prompt), &g, &got), KM_OK);
    assert_int_equal(got.reused, got.prompt_tokens - 1);
    a.scale = 2;
    assert_int_equal(km_generate(f, prompt, strlen(prompt), &g, &got), KM_OK);
    assert_int_equal(got.reused, 0);
    km_session_free(f);
    km_session_free(s);
    km_string_free(base), km_string_free(first), km_string_free(second), km_string_free(together);
    km_string_free(none), km_string_free(said);
    km_model_close(plain), km_model_close(m), km_model_close(both);
}

/* The logits after the last token of a text, from its hidden state: of the model's file, head and all. */
static void check_states(km_model *m, const km_adapter *a, int64_t n, const int32_t *ids,
                         size_t length, const float *state, size_t dim) {
    km_session *s = km_session_new(m);
    assert_int_equal(km_session_set_adapters(s, a, n), KM_OK);
    assert_int_equal(km_session_read(s, ids, length), KM_OK);
    const float *want = km_session_logits(s);
    assert_non_null(want);
    int64_t vocab = km_model_describe(m).vocab;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_file *f = km_file_open(tiny_path());
    const char *head = km_file_find(f, "output.weight") ? "output.weight" : "token_embd.weight";
    km_tensor *w = km_cast(ctx, km_file_load(ctx, f, head), KM_F32);
    km_tensor *x = km_from_data(ctx, KM_F32, KM_SHAPE(1, (int64_t)dim), state);
    float *got = malloc(sizeof *got * (size_t)vocab);
    assert_int_equal(
        km_read(ctx, km_linear(ctx, x, w, NULL, KM_ACT_NONE), got, sizeof *got * (size_t)vocab),
        KM_OK);
    double most = 0, apart = 0;
    for (int64_t i = 0; i < vocab; i++) {
        most = fmax(most, fabs((double)want[i]));
        apart = fmax(apart, fabs((double)want[i] - (double)got[i]));
    }
    assert_true(apart < 0.02 * most);
    free(got);
    km_file_close(f);
    km_ctx_free(ctx);
    km_session_free(s);
}

static void embeddings_have_them_too(void **state) {
    (void)state;
    km_model *plain = tiny_model(), *m = model_with(true), *both = model_with(false);
    const km_adapter first[] = {{.name = "one"}}, two_of[] = {{.name = "one"}, {.name = "two"}};
    size_t dim = (size_t)km_model_describe(m).dim, n;
    int32_t ids[64], other[64];
    n = (size_t)tiny_ids(m, "The sea is wide and the sky is blue.", ids, 64);
    size_t lengths[] = {n, (size_t)tiny_ids(m, "Once upon a time", other, 64)};
    const int32_t *texts[] = {ids, other};
    float none[2 * 256], one_of[2 * 256], mixed[2 * 256], own[2 * 256];
    assert_true(dim <= 256);
    km_embed_options o = km_embed_defaults();
    o.pooling = KM_POOLING_LAST;
    o.raw = true;
    /* none chosen, where those there are off: the plain model's bits */
    assert_int_equal(km_embed(plain, texts, lengths, 2, &o, none), KM_OK);
    assert_int_equal(km_embed(m, texts, lengths, 2, &o, own), KM_OK);
    assert_memory_equal(none, own, 2 * dim * sizeof *own);
    o.adapters = first;
    o.n_adapters = 1;
    assert_int_equal(km_embed(m, texts, lengths, 2, &o, one_of), KM_OK);
    assert_memory_not_equal(none, one_of, dim * sizeof *own);
    check_states(m, first, 1, ids, n, one_of, dim);
    check_states(m, first, 1, other, lengths[1], one_of + dim, dim);
    o.adapters = two_of;
    o.n_adapters = 2;
    assert_int_equal(km_embed(m, texts, lengths, 2, &o, mixed), KM_OK);
    check_states(m, two_of, 2, ids, n, mixed, dim);
    /* those that are not off are used where nothing is said, by km_embed_tokens too */
    o.n_adapters = -1;
    assert_int_equal(km_embed(both, texts, lengths, 2, &o, own), KM_OK);
    assert_memory_equal(mixed, own, 2 * dim * sizeof *own);
    float *states = malloc(n * dim * sizeof *states);
    assert_int_equal(km_embed_tokens(both, ids, n, states), KM_OK);
    check_states(both, NULL, -1, ids, n, states + (n - 1) * dim, dim);
    free(states);
    o.n_adapters = 9;
    assert_int_equal(km_embed(m, texts, lengths, 2, &o, own), KM_ERR_RANGE);
    o.adapters = &(km_adapter){.name = "three"};
    o.n_adapters = 1;
    assert_int_equal(km_embed(m, texts, lengths, 2, &o, own), KM_ERR_RANGE);
    /* and nobody holds on to them: a slot is free again */
    assert_int_equal(km_model_remove_adapter(m, "one"), KM_OK);
    assert_int_equal(km_model_add_adapter(m, &(km_adapter){.path = one, .off = true}), KM_OK);
    km_model_close(both);
    km_model_close(m);
    km_model_close(plain);
}

static void a_session_keeps_to_what_it_was_told(void **state) {
    (void)state;
    km_model *m = model_with(true);
    char path[96];
    km_adapter a = {.name = "one", .scale = 0.75};
    km_session *s = km_session_new(m), *other = km_session_new(m);
    km_generation g = tiny_greedy(m, TOKENS);
    km_generated got = {.size = sizeof got};
    int32_t ids[32];
    int64_t n = tiny_ids(m, "Once upon a time", ids, 32);
    assert_int_equal(km_session_read(s, ids, (size_t)n), KM_OK);
    assert_int_equal(km_session_read(other, ids, (size_t)n), KM_OK);
    size_t bytes = sizeof(float) * (size_t)km_model_describe(m).vocab;
    float *base = km_alloc(bytes);
    memcpy(base, km_session_logits(s), bytes);
    assert_memory_equal(base, km_session_logits(other), bytes);
    assert_int_equal(km_session_set_adapters(s, &a, 1), KM_OK);
    assert_int_equal(km_session_length(s), 0);
    assert_int_equal(km_session_read(s, ids, (size_t)n), KM_OK);
    assert_memory_not_equal(base, km_session_logits(s), bytes);
    snprintf(path, sizeof path, "%s/session", folder);
    assert_int_equal(km_session_save(s, path), KM_OK);
    assert_int_equal(km_session_restore(other, path), KM_ERR_STATE);
    assert_non_null(
        strstr(km_last_error(), "was saved with another model, or with other adapters"));
    assert_int_equal(km_session_set_adapters(other, &a, 1), KM_OK);
    assert_int_equal(km_session_restore(other, path), KM_OK);
    assert_memory_equal(km_session_logits(s), km_session_logits(other), bytes);
    assert_int_equal(km_generate_begin_ids(s, ids, (size_t)n, &g), KM_OK); /* says nothing */
    assert_int_equal(km_generate_state(s).reused, n - 1);
    assert_int_equal(km_session_set_adapters(s, NULL, -1), KM_OK);
    assert_int_equal(km_session_read(s, ids, (size_t)n), KM_OK);
    assert_memory_equal(base, km_session_logits(s), bytes); /* bit for bit */
    km_free(base);
    km_session_free(s), km_session_free(other);
    km_model_close(m);
}

/* ---- Batches ---- */

typedef struct batch_out {
    char text[4][1024];
} batch_out;

static void run(km_batch *b, batch_out *out) {
    km_piece_event e[8];
    for (int n; (n = km_batch_step(b, e, 8)) > 0;)
        for (int i = 0; i < n; i++) {
            assert_int_equal(e[i].status, KM_OK);
            if (e[i].sequence >= 0) strncat(out->text[e[i].sequence], e[i].text, e[i].bytes);
        }
}

static void sequences_of_a_batch_have_their_own(void **state) {
    (void)state;
    km_model *m = model_with(true);
    const km_adapter list[4][2] = {{{0}},
                                   {{.name = "one"}},
                                   {{.name = "two", .scale = 1}},
                                   {{.name = "one", .scale = 0.5}, {.name = "two"}}};
    const int count[4] = {0, 1, 1, 2};
    char *want[4];
    int32_t ids[32];
    int64_t n = tiny_ids(m, "Once upon a time", ids, 32);
    for (int i = 0; i < 4; i++) want[i] = text_of(m, list[i], count[i]);
    km_batch *b = km_batch_new(m, NULL);
    for (int round = 0; round < 3; round++) { /* of a slot, other adapters every time */
        batch_out out = {{{0}}};
        for (int i = 0; i < 4; i++) {
            int which = (i + round) % 4;
            km_generation g = tiny_greedy(m, TOKENS);
            g.adapters = list[which];
            g.n_adapters = count[which];
            if (round == 0) assert_int_equal(km_batch_join(b), i);
            assert_int_equal(km_batch_start(b, i, ids, (size_t)n, &g), KM_OK);
        }
        run(b, &out);
        for (int i = 0; i < 4; i++) {
            assert_string_equal(out.text[i], want[(i + round) % 4]);
            assert_int_equal(km_batch_generated(b, i).reused, 0);
        }
    }
    /* A fork shares what was read with its adapters, and with no others. */
    for (int same = 0; same < 2; same++) {
        km_generation g = tiny_greedy(m, TOKENS);
        batch_out out = {{{0}}};
        g.adapters = same ? list[2] : list[1];
        g.n_adapters = 1;
        assert_int_equal(km_batch_leave(b, 3), KM_OK);
        batch_out ignored = {{{0}}};
        run(b, &ignored);
        assert_int_equal(km_batch_fork(b, 0, -1), 3); /* sequence 0 has had the second alone */
        assert_int_equal(km_batch_start(b, 3, ids, (size_t)n, &g), KM_OK);
        run(b, &out);
        assert_string_equal(out.text[3], want[same ? 2 : 1]);
        assert_int_equal(km_batch_generated(b, 3).reused, same ? n - 1 : 0);
    }
    km_batch_free(b);
    for (int i = 0; i < 4; i++) km_string_free(want[i]);
    km_model_close(m);
}

/* ---- Coming and going ---- */

static void adapters_come_and_go(void **state) {
    (void)state;
    km_model *m = model_with(true);
    char *base = text_of(m, NULL, -1), *first = text_of(m, &(km_adapter){.name = "one"}, 1);
    km_session *s = km_session_new(m);
    km_generation g = tiny_greedy(m, TOKENS);
    km_adapter a = {.name = "one"};
    km_piece_event e;
    g.adapters = &a, g.n_adapters = 1;
    assert_int_equal(km_generate_begin(s, "Once upon a time", 16, &g), KM_OK);
    char text[1024] = "";
    for (int i = 0, more; (more = km_generate_next(s, &e)) > 0; i++) {
        strncat(text, e.text, e.bytes);
        if (i == 2) { /* in the middle: who uses it goes on with it */
            assert_int_equal(km_model_remove_adapter(m, "one"), KM_OK);
            assert_int_equal(km_model_remove_adapter(m, "one"), KM_ERR_RANGE);
            assert_int_equal(km_model_add_adapter(m, &(km_adapter){.path = three, .name = "one"}),
                             KM_OK);
        }
    }
    assert_string_equal(text, first);
    char *list = km_model_adapters_json(m);
    assert_non_null(strstr(list, "\"name\":\"one\""));
    assert_non_null(strstr(list, three));
    assert_null(strstr(list, one));
    km_string_free(list);
    char *third = text_of(m, &a, 1);
    assert_string_not_equal(third, base); /* it is used, since it is not off */
    assert_text(m, third, {.path = three});
    char *said = text_of(m, NULL, -1);
    assert_string_equal(said, third);
    km_string_free(said);
    /* The session's tokens are of the one that is gone: they are not gone on from. */
    km_generated got = {.size = sizeof got};
    assert_int_equal(km_generate(s, "Once upon a time", 16, &g, &got), KM_OK);
    assert_int_equal(got.reused, 0);
    assert_int_equal(km_model_remove_adapter(m, three), KM_OK);
    said = text_of(m, NULL, -1);
    assert_string_equal(said, base);
    km_string_free(said);
    km_session_free(s);
    km_string_free(base), km_string_free(first), km_string_free(third);
    km_model_close(m);
}

static void what_cannot_be_chosen_is_refused(void **state) {
    (void)state;
    km_model *m = model_with(true);
    km_adapter nine[9] = {{.name = "one"}}, twice[] = {{.name = "one"}, {.path = one}};
    km_adapter wrong[] = {{.name = "nobody"}, {0}, {.name = "one", .scale = 1.0 / 0.0}};
    km_session *s = km_session_new(m);
    km_generation g = tiny_greedy(m, 3);
    const struct {
        const km_adapter *a;
        int64_t n;
        km_status code;
        const char *text;
    } bad[] = {{nine, 9, KM_ERR_RANGE, "9 adapters; up to 8 are possible at once"},
               {nine, -2, KM_ERR_RANGE, "-2 adapters"},
               {NULL, 1, KM_ERR_NULL, "1 adapters, and none given"},
               {twice, 2, KM_ERR_RANGE, "is chosen twice"},
               {&wrong[0], 1, KM_ERR_RANGE, "the model has no adapter 'nobody'"},
               {&wrong[1], 1, KM_ERR_NULL, "an adapter without a name or a path"},
               {&wrong[2], 1, KM_ERR_RANGE, "the scale of adapter 'one' is no number"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        g.adapters = bad[i].a;
        g.n_adapters = bad[i].n;
        assert_int_equal(km_generate(s, "a", 1, &g, NULL), bad[i].code);
        assert_non_null(strstr(km_last_error(), bad[i].text));
        assert_int_equal(km_session_set_adapters(s, bad[i].a, bad[i].n), bad[i].code);
    }
    assert_int_equal(km_session_set_adapters(NULL, NULL, -1), KM_ERR_NULL);
    assert_int_equal(km_model_add_adapter(m, NULL), KM_ERR_NULL);
    assert_int_equal(km_model_add_adapter(NULL, &nine[0]), KM_ERR_NULL);
    assert_int_equal(km_model_add_adapter(m, &(km_adapter){0}), KM_ERR_NULL);
    assert_int_equal(km_model_add_adapter(m, &(km_adapter){.path = one}), KM_ERR_STATE);
    assert_non_null(strstr(km_last_error(), "has an adapter 'one' already"));
    assert_int_equal(km_model_add_adapter(m, &(km_adapter){.path = "/no/such"}), KM_ERR_FILE);
    assert_int_equal(km_model_remove_adapter(m, NULL), KM_ERR_NULL);
    assert_null(km_model_adapters_json(NULL));
    km_session_free(s);
    km_model_close(m);
    /* More than can be used at once. */
    km_model_options o = tiny_options();
    km_adapter many[9];
    char name[9][16];
    for (int i = 0; i < 9; i++) {
        snprintf(name[i], sizeof name[i], "a%d", i);
        many[i] = (km_adapter){.path = three, .name = name[i]};
    }
    o.adapters = many;
    o.n_adapters = 9;
    assert_null(km_model_open(tiny_path(), &o));
    assert_non_null(strstr(km_last_error(), "up to 8 adapters are used at once"));
}

/* ---- Threads, and allocations that fail ---- */

typedef struct talker {
    km_model *m;
    const char *name, *want;
    int failures;
} talker;

static void *talk(void *user) {
    talker *t = user;
    km_adapter a = {.name = t->name};
    for (int i = 0; i < 3; i++) {
        char *text = text_of(t->m, &a, t->name ? 1 : 0);
        t->failures += strcmp(text, t->want) != 0;
        km_string_free(text);
    }
    return NULL;
}

static void threads_with_other_adapters_share_a_model(void **state) {
    (void)state;
    km_model *m = model_with(true);
    static const char *const names[] = {"one", "two", NULL};
    talker t[3];
    char *want[3];
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) {
        want[i] = text_of(m, &(km_adapter){.name = names[i]}, names[i] ? 1 : 0);
        t[i] = (talker){m, names[i], want[i], 0};
    }
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, talk, &t[i]);
    for (int i = 0; i < 4; i++) { /* others come and go meanwhile */
        assert_int_equal(km_model_add_adapter(m, &(km_adapter){.path = three, .off = true}), KM_OK);
        assert_int_equal(km_model_remove_adapter(m, "three"), KM_OK);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(t[i].failures, 0);
        km_string_free(want[i]);
    }
    km_model_close(m);
}

static bool use_them(void) {
    km_model_options o = tiny_options();
    km_adapter a[] = {{.path = one, .off = true}, {.path = two}};
    o.adapters = a;
    o.n_adapters = 2;
    km_model *m = km_model_open(tiny_path(), &o);
    km_session *s = m ? km_session_new(m) : NULL;
    km_generation g = km_generation_defaults(m);
    g.max_tokens = 2;
    bool ok = s && km_generate(s, "The sea", 7, &g, NULL) == KM_OK;
    g.adapters = a;
    g.n_adapters = 1;
    ok = ok && km_generate(s, "The sea", 7, &g, NULL) == KM_OK;
    ok = ok && km_model_add_adapter(m, &(km_adapter){.path = three}) == KM_OK;
    ok = ok && km_model_remove_adapter(m, "two") == KM_OK;
    char *list = ok ? km_model_adapters_json(m) : NULL;
    ok = ok && list;
    km_string_free(list);
    km_session_free(s);
    km_model_close(m);
    return ok;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    assert_true(use_them());
    int64_t live = km_alloc_live();
    int failures = 0;
    bool done = false;
    for (int64_t nth = 0; !done; nth += SANITIZED ? 31 : 13) {
        uint64_t before = km_alloc_count();
        km_alloc_fail_nth(nth);
        bool ok = use_them();
        done = ok && km_alloc_count() - before <= (uint64_t)nth;
        km_alloc_fail_nth(-1);
        failures += !ok;
        if (!ok) assert_true(km_last_error()[0] != 0);
        if (km_alloc_live() != live)
            fail_msg("%lld blocks were left behind when allocation %lld failed",
                     (long long)(km_alloc_live() - live), (long long)nth);
    }
    assert_true(failures > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_generation_has_its_own),
        cmocka_unit_test(embeddings_have_them_too),
        cmocka_unit_test(a_session_keeps_to_what_it_was_told),
        cmocka_unit_test(sequences_of_a_batch_have_their_own),
        cmocka_unit_test(adapters_come_and_go),
        cmocka_unit_test(what_cannot_be_chosen_is_refused),
        cmocka_unit_test(threads_with_other_adapters_share_a_model),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_adapters, remove_adapters);
}

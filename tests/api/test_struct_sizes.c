/* Structs that kermes.h gives out by value may grow. A program that was compiled when one was smaller gets
 * what it knows of, and not a byte more; one that is newer than the library is told so. */
#include "engine/tiny_model.h"

/* A program that was compiled when the struct had `size` bytes, on this library: `fill` writes that many at
 * most. What lies behind stays, whatever the size. */
typedef km_status (*fill_fn)(void *out, size_t size);
static _Alignas(16) char room[4096];

/* Leaves what lies between members out of a struct, which is whatever the stack held. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_clear_padding)
#define CLEAR_PADDING(at) __builtin_clear_padding(at)
#endif
#endif
#ifndef CLEAR_PADDING
#define CLEAR_PADDING(at) memset(at, 0, sizeof *(at)) /* nothing is compared */
#endif
typedef void (*clear_fn)(void *at);

static void check_sizes(const char *name, fill_fn fill, clear_fn clear, size_t bytes) {
    enum { BEHIND = 64 };
    static _Alignas(16) char whole[4096], members[4096];
    memset(members, 0xff, bytes);
    clear(members);
    assert_true(bytes > sizeof bytes && bytes + 2 * BEHIND < sizeof room);
    assert_int_equal(fill(whole, bytes), KM_OK);
    size_t told;
    for (size_t size = 0; size <= bytes + BEHIND; size++) {
        memset(room, 0x5a, sizeof room);
        km_status s = fill(room, size);
        size_t written = size < sizeof size ? 0 : size;
        for (size_t i = written; i < size + BEHIND; i++)
            if (room[i] != 0x5a) fail_msg("%s_sized(%zu): wrote byte %zu", name, size, i);
        if (size < sizeof size || size > bytes) {
            assert_int_equal(s, KM_ERR_RANGE);
            for (size_t i = 0; i < written; i++) assert_int_equal(room[i], 0);
            continue;
        }
        assert_int_equal(s, KM_OK);
        memcpy(&told, room, sizeof told);
        assert_int_equal(told, size);
        /* what an older program knows is as this one has it */
        if (strcmp(name, "km_generation_defaults") != 0 && strcmp(name, "km_ctx_stats") != 0)
            for (size_t i = sizeof told; i < size; i++)
                assert_int_equal(room[i] & members[i], whole[i] & members[i]);
    }
}

static km_ctx *stats_ctx;
static km_model *a_model;
static km_tokenizer *a_tokenizer;
static km_session *a_session;
static km_batch *a_batch;
static km_index *an_index;
#define OF_km_ctx_stats stats_ctx
#define OF_km_model_describe a_model
#define OF_km_tokenizer_describe a_tokenizer
#define OF_km_model_sampling a_model
#define OF_km_generation_defaults a_model
#define OF_km_generate_state a_session
#define OF_km_batch_describe a_batch
#define OF_km_index_describe an_index
#define FILL(type, name)                                                                           \
    static void clear_##name(void *at) { CLEAR_PADDING((type *)at); }                              \
    static km_status fill_##name(void *out, size_t size) { return name##_sized(out, size); }
#define FILL_OF(type, name, object)                                                                \
    static void clear_##name(void *at) { CLEAR_PADDING((type *)at); }                              \
    static km_status fill_##name(void *out, size_t size) {                                         \
        return name##_sized(OF_##name, out, size);                                                 \
    }
KM_SIZED_LIST(FILL)
KM_SIZED_OF_LIST(FILL_OF)
static km_status fill_km_batch_generated(void *out, size_t size) {
    return km_batch_generated_sized(a_batch, 0, out, size);
}

static void no_call_writes_more_of_a_struct_than_the_caller_has(void **state) {
    (void)state;
    enum { DIM = 8, VECTORS = 64 };
    float x[VECTORS * DIM];
    for (int i = 0; i < VECTORS * DIM; i++) x[i] = (float)(i * 37 % 101);
    stats_ctx = km_ctx_new("cpu", 1);
    a_model = km_model_open(tiny_path(), NULL);
    a_tokenizer = km_tokenizer_open("bytes");
    a_session = km_session_new(a_model);
    a_batch = km_batch_new(a_model, NULL);
    an_index = km_index_build(stats_ctx, x, VECTORS, DIM, NULL, NULL);
    assert_true(stats_ctx && a_tokenizer && a_session && a_batch && an_index);
    assert_int_equal(km_batch_join(a_batch), 0);
#define CHECK(type, name) check_sizes(#name, fill_##name, clear_##name, sizeof(type));
#define CHECK_OF(type, name, object) check_sizes(#name, fill_##name, clear_##name, sizeof(type));
    KM_SIZED_LIST(CHECK)
    KM_SIZED_OF_LIST(CHECK_OF)
    check_sizes("km_batch_generated", fill_km_batch_generated, clear_km_generate_state,
                sizeof(km_generated));
    /* What an older program got and gives back means the same: of its sampling, what it knows. */
    km_generation older;
    assert_int_equal(km_generation_defaults_sized(a_model, &older, sizeof older - 24), KM_OK);
    assert_int_equal(older.sampling.size, sizeof older.sampling - 24);
    older.max_tokens = 4;
    km_generation now = km_generation_defaults(a_model);
    now.max_tokens = 4;
    char *a = km_generate_text(a_model, "Once upon a time", &older);
    char *b = km_generate_text(a_model, "Once upon a time", &now);
    assert_true(a && b);
    assert_string_equal(a, b);
    km_string_free(a);
    km_string_free(b);
    /* One from a library that is older than the program says so when it is used. */
    struct {
        km_batch_options known;
        char unknown[8];
    } newer;
    assert_int_equal(km_batch_defaults_sized(&newer.known, sizeof newer), KM_ERR_RANGE);
    assert_null(km_batch_new(a_model, &newer.known));
    assert_int_equal(km_last_status(), KM_ERR_RANGE);
    km_index_close(an_index);
    km_batch_free(a_batch);
    km_session_free(a_session);
    km_tokenizer_close(a_tokenizer);
    km_model_close(a_model);
    km_ctx_free(stats_ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_call_writes_more_of_a_struct_than_the_caller_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A step of decoding makes no heap allocation: every malloc of the process is counted, not ours alone, by
 * functions that stand in front of the C library's. Not under sanitizers, which have the heap themselves. */
#include "engine/tiny_model.h"
#include "support/sanitized.h"
#include <stdatomic.h>

static atomic_llong mallocs;

#if !SANITIZED && defined(__GLIBC__)
#define COUNTED true
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes) {
    atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes) {
    atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed);
    return __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes) {
    atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed);
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes) {
    atomic_fetch_add_explicit(&mallocs, 1, memory_order_relaxed);
    return __libc_memalign(align, bytes);
}

int posix_memalign(void **out, size_t align, size_t bytes) {
    void *p = aligned_alloc(align, bytes);
    if (p) *out = p;
    return p ? 0 : 12; /* ENOMEM */
}
#else
#define COUNTED false
#endif

enum { WARM = 70, STEPS = 50, SEQUENCES = 3 }; /* WARM: past the first page of 64 tokens */

/* Greedy, by draws with every penalty, or with logprobs: all that is made for each token. */
static km_generation how_to(km_model *m, int kind) {
    km_generation g = tiny_greedy(m, WARM + STEPS + 20);
    if (kind == 1) {
        g.sampling.temperature = 0.8;
        g.sampling.top_k = 40;
        g.sampling.top_p = 0.9;
        g.sampling.min_p = 0.05;
        g.sampling.repeat_penalty = 1.1;
        g.sampling.frequency_penalty = g.sampling.presence_penalty = 0.1;
        g.sampling.dry_multiplier = 0.5;
        g.sampling.repeat_last = -1;
    }
    if (kind == 2) g.logprobs = 5;
    return g;
}

static void the_heap_is_counted(void **state) {
    (void)state;
    if (!COUNTED) skip();
    long long before = atomic_load(&mallocs);
    km_string_free(km_model_find(tiny_path()));
    assert_true(atomic_load(&mallocs) > before);
}

static void a_sessions_step_makes_no_heap_allocation(void **state) {
    (void)state;
    if (!COUNTED) skip();
    km_model *m = tiny_model();
    for (int kind = 0; kind < 3; kind++) {
        km_session *s = km_session_new(m);
        km_generation g = how_to(m, kind);
        km_piece_event e;
        assert_int_equal(km_generate_begin(s, "The sea", 7, &g), KM_OK);
        for (int i = 0; i < WARM; i++) assert_int_equal(km_generate_next(s, &e), 1);
        long long before = atomic_load(&mallocs);
        for (int i = 0; i < STEPS; i++)
            if (km_generate_next(s, &e) != 1) fail_msg("%s", km_last_error());
        assert_int_equal(atomic_load(&mallocs) - before, 0);
        km_session_free(s);
    }
    km_model_close(m);
}

static void a_batchs_step_makes_no_heap_allocation(void **state) {
    (void)state;
    if (!COUNTED) skip();
    km_model *m = tiny_model();
    km_batch_options o = km_batch_defaults();
    o.sequences = SEQUENCES;
    km_batch *b = km_batch_new(m, &o);
    assert_non_null(b);
    for (int i = 0; i < SEQUENCES; i++) {
        int32_t ids[16];
        int64_t n = tiny_ids(m, "Once upon a time", ids, 16);
        km_generation g = how_to(m, i);
        assert_int_equal(km_batch_join(b), i);
        assert_int_equal(km_batch_start(b, i, ids, (size_t)n, &g), KM_OK);
    }
    km_piece_event e[SEQUENCES];
    for (int i = 0; i < WARM + SEQUENCES; i++) assert_true(km_batch_step(b, e, SEQUENCES) > 0);
    long long before = atomic_load(&mallocs);
    for (int i = 0; i < STEPS; i++)
        if (km_batch_step(b, e, SEQUENCES) != SEQUENCES) fail_msg("%s", km_last_error());
    assert_int_equal(atomic_load(&mallocs) - before, 0);
    km_batch_free(b);
    km_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_heap_is_counted),
        cmocka_unit_test(a_sessions_step_makes_no_heap_allocation),
        cmocka_unit_test(a_batchs_step_makes_no_heap_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

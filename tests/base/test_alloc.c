/* Allocation: what is counted, what is aligned, and failures made on purpose. */
#include "base/alloc.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void each_allocation_counts_once_and_lives_until_freed(void **state) {
    uint64_t count = km_alloc_count();
    int64_t live = km_alloc_live();
    void *a = km_alloc(10), *b = km_calloc(3, 5), *c = km_alloc_aligned(100);
    char *d = km_strdup("kermes");
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_string_equal(d, "kermes");
    assert_int_equal(km_alloc_count() - count, 4);
    assert_int_equal(km_alloc_live() - live, 4);
    km_free(a);
    km_free(b);
    km_free_aligned(c, 100);
    km_free(d);
    assert_int_equal(km_alloc_count() - count, 4);
    assert_int_equal(km_alloc_live(), live);
}

static void growing_a_block_counts_but_adds_no_life(void **state) {
    int64_t live = km_alloc_live();
    char *p = km_realloc(NULL, 4);
    memcpy(p, "abc", 4);
    assert_int_equal(km_alloc_live() - live, 1);
    uint64_t count = km_alloc_count();
    p = km_realloc(p, 100000);
    assert_string_equal(p, "abc");
    assert_int_equal(km_alloc_count() - count, 1);
    assert_int_equal(km_alloc_live() - live, 1);
    km_free(p);
    assert_int_equal(km_alloc_live(), live);
}

static void freeing_null_is_nothing(void **state) {
    int64_t live = km_alloc_live();
    km_free(NULL);
    km_free_aligned(NULL, 100);
    assert_int_equal(km_alloc_live(), live);
}

static void no_bytes_is_still_a_block(void **state) {
    void *a = km_alloc(0), *b = km_calloc(0, 8), *c = km_alloc_aligned(0);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    a = km_realloc(a, 0);
    assert_non_null(a);
    km_free(a);
    km_free(b);
    km_free_aligned(c, 0);
}

static void calloc_gives_zeros(void **state) {
    static const uint8_t zeros[1000];
    void *dirty = km_alloc(1000);
    memset(dirty, 0xA5, 1000);
    km_free(dirty);
    void *p = km_calloc(10, 100);
    assert_memory_equal(p, zeros, 1000);
    km_free(p);
}

static void aligned_blocks_of_all_sizes_are_aligned_and_whole(void **state) {
    static const size_t sizes[] = {1,
                                   63,
                                   64,
                                   65,
                                   4095,
                                   4096,
                                   1 << 20,
                                   (4 << 20) - 1,
                                   4 << 20,
                                   (4 << 20) + 1,
                                   (6 << 20) + 12345,
                                   32 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *p = km_alloc_aligned(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 7, sizes[i]);
        assert_int_equal(p[0] + p[sizes[i] - 1], 14);
        km_free_aligned(p, sizes[i]);
    }
}

static void check_blocks(uint8_t *const *p, const size_t *size, int n) {
    for (int i = 0; i < n; i++)
        for (size_t j = 0; p[i] && j < size[i]; j += j + 1021 < size[i] ? 1021 : 1)
            assert_int_equal(p[i][j], i % 251);
}

/* Blocks of a size class come and go in an odd order, and all that are out keep what they hold. */
static void large_blocks_do_not_overlap(void **state) {
    enum { N = 40, ROUNDS = 4 };
    static const size_t sizes[] = {64 << 10, 65 << 10, 300001, 1 << 20, (4 << 20) - 64, 5 << 20};
    uint8_t *p[N] = {NULL};
    size_t size[N];
    int64_t live = km_alloc_live();
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            if (p[i]) continue;
            size[i] = sizes[(i + round) % 6];
            p[i] = km_alloc_aligned(size[i]);
            assert_non_null(p[i]);
            memset(p[i], i % 251, size[i]);
        }
        check_blocks(p, size, N);
        for (int i = 0; i < N; i++) {
            if ((i * 7 + round) % 3 == 0 && round < ROUNDS - 1) continue;
            km_free_aligned(p[i], size[i]);
            p[i] = NULL;
        }
        check_blocks(p, size, N);
    }
    assert_int_equal(km_alloc_live(), live);
}

static void absurd_sizes_give_null_and_count_nothing(void **state) {
    uint64_t count = km_alloc_count();
    int64_t live = km_alloc_live();
    volatile size_t huge = SIZE_MAX;
    assert_null(km_alloc(huge));
    assert_null(km_alloc(huge / 2));
    assert_null(km_alloc_aligned(huge));
    assert_null(km_alloc_aligned(huge - 63));
    assert_null(km_alloc_aligned(huge / 2));
    assert_null(km_alloc_aligned((size_t)1 << 60));
    assert_null(km_calloc(huge / 2, 3));
    assert_null(km_calloc(huge, huge));
    void *p = km_alloc(8);
    assert_null(km_realloc(p, huge));
    memset(p, 1, 8); /* still there */
    km_free(p);
    assert_int_equal(km_alloc_count() - count, 1);
    assert_int_equal(km_alloc_live(), live);
}

static void the_nth_allocation_fails_once(void **state) {
    int64_t live = km_alloc_live();
    uint64_t count = km_alloc_count();
    km_alloc_fail_nth(2);
    void *a = km_alloc(1), *b = km_alloc_aligned(1), *c = km_calloc(1, 1), *d = km_alloc(1);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(c);
    assert_non_null(d);
    assert_int_equal(km_alloc_count() - count, 3);
    km_free(a);
    km_free_aligned(b, 1);
    km_free(d);
    assert_int_equal(km_alloc_live(), live);
}

static void every_kind_of_allocation_can_be_made_to_fail(void **state) {
    char *p = km_strdup("kept");
    km_alloc_fail_nth(0);
    assert_null(km_alloc(1));
    km_alloc_fail_nth(0);
    assert_null(km_calloc(1, 1));
    km_alloc_fail_nth(0);
    assert_null(km_strdup("x"));
    km_alloc_fail_nth(0);
    assert_null(km_alloc_aligned(1));
    km_alloc_fail_nth(0);
    assert_null(km_alloc_aligned((size_t)8 << 20));
    km_alloc_fail_nth(0);
    assert_null(km_realloc(p, 100));
    assert_string_equal(p, "kept");
    km_free(p);
}

static void injection_can_be_switched_off(void **state) {
    km_alloc_fail_nth(0);
    km_alloc_fail_nth(-1);
    void *p = km_alloc(1);
    assert_non_null(p);
    km_free(p);
}

static void *churn(void *arg) {
    for (int i = 0; i < 2000; i++) {
        void *a = km_alloc(16), *b = km_alloc_aligned(64);
        km_free(a);
        km_free_aligned(b, 64);
    }
    return arg;
}

static void counts_are_exact_with_many_threads(void **state) {
    uint64_t count = km_alloc_count();
    int64_t live = km_alloc_live();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, churn, NULL), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_int_equal(km_alloc_count() - count, 4 * 2 * 2000);
    assert_int_equal(km_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_allocation_counts_once_and_lives_until_freed),
        cmocka_unit_test(growing_a_block_counts_but_adds_no_life),
        cmocka_unit_test(freeing_null_is_nothing),
        cmocka_unit_test(no_bytes_is_still_a_block),
        cmocka_unit_test(calloc_gives_zeros),
        cmocka_unit_test(aligned_blocks_of_all_sizes_are_aligned_and_whole),
        cmocka_unit_test(large_blocks_do_not_overlap),
        cmocka_unit_test(absurd_sizes_give_null_and_count_nothing),
        cmocka_unit_test(the_nth_allocation_fails_once),
        cmocka_unit_test(every_kind_of_allocation_can_be_made_to_fail),
        cmocka_unit_test(injection_can_be_switched_off),
        cmocka_unit_test(counts_are_exact_with_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The step arena: zeroed, aligned, and silent towards the heap once it knows a step. */
#include "base/alloc.h"
#include "base/arena.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A step of odd-sized pieces, each filled to its end. */
static void step(km_arena *a, int pieces) {
    for (int i = 0; i < pieces; i++) {
        size_t bytes = (size_t)(i * 37 % 1000) + 1;
        uint8_t *p = km_arena_alloc(a, bytes);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t j = 0; j < bytes; j++) assert_int_equal(p[j], 0);
        memset(p, 0xFF, bytes);
    }
}

static void pieces_are_zeroed_aligned_and_apart(void **state) {
    km_arena a = {0};
    uint8_t *p[200];
    for (int i = 0; i < 200; i++) {
        p[i] = km_arena_alloc(&a, (size_t)i * 11);
        assert_non_null(p[i]);
        memset(p[i], i, (size_t)i * 11);
    }
    for (int i = 0; i < 200; i++)
        for (int j = 0; j < i * 11; j++) assert_int_equal(p[i][j], i);
    km_arena_free(&a);
}

static void a_repeated_step_stops_allocating_after_its_first_round(void **state) {
    km_arena a = {0};
    step(&a, 500);
    assert_true(a.used > 100000); /* several chunks */
    km_arena_reset(&a);
    uint64_t count = km_alloc_count();
    for (int round = 0; round < 5; round++) {
        step(&a, 500);
        km_arena_reset(&a);
    }
    assert_int_equal(km_alloc_count(), count);
    km_arena_free(&a);
}

static void a_larger_step_grows_it_once_more(void **state) {
    km_arena a = {0};
    for (int pieces = 100; pieces <= 1600; pieces *= 2) {
        step(&a, pieces);
        km_arena_reset(&a);
        uint64_t count = km_alloc_count();
        step(&a, pieces);
        km_arena_reset(&a);
        step(&a, pieces / 2);
        km_arena_reset(&a);
        assert_int_equal(km_alloc_count(), count);
    }
    km_arena_free(&a);
}

static void it_keeps_one_block_of_the_peak_size(void **state) {
    km_arena a = {0};
    int64_t live = km_alloc_live();
    step(&a, 1000);
    assert_true(km_alloc_live() - live > 1);
    size_t peak = a.used;
    km_arena_reset(&a);
    assert_int_equal(km_alloc_live() - live, 1);
    assert_int_equal(a.used, 0);
    assert_int_equal(a.peak, peak);
    assert_ptr_equal(a.first, a.current);
    km_arena_free(&a);
    assert_int_equal(km_alloc_live(), live);
}

static void used_counts_in_units_of_the_alignment(void **state) {
    km_arena a = {0};
    assert_non_null(km_arena_alloc(&a, 1));
    assert_non_null(km_arena_alloc(&a, 17));
    assert_int_equal(a.used, 16 + 32);
    km_arena_reset(&a);
    assert_int_equal(a.used, 0);
    assert_int_equal(a.peak, 48);
    km_arena_free(&a);
}

static void one_piece_larger_than_any_chunk_is_fine(void **state) {
    km_arena a = {0};
    size_t big = (size_t)3 << 20;
    assert_non_null(km_arena_alloc(&a, 8));
    uint8_t *p = km_arena_alloc(&a, big);
    assert_non_null(p);
    memset(p, 1, big);
    km_arena_reset(&a);
    uint64_t count = km_alloc_count();
    assert_non_null(km_arena_alloc(&a, 8));
    p = km_arena_alloc(&a, big);
    assert_int_equal(p[0] + p[big - 1], 0);
    assert_int_equal(km_alloc_count(), count);
    km_arena_free(&a);
}

static void empty_pieces_are_valid_and_distinct(void **state) {
    km_arena a = {0};
    void *p = km_arena_alloc(&a, 0), *q = km_arena_alloc(&a, 0);
    assert_non_null(p);
    assert_ptr_not_equal(p, q);
    km_arena_free(&a);
}

static void an_empty_arena_can_be_reset_and_freed(void **state) {
    km_arena a = {0};
    km_arena_reset(&a);
    km_arena_free(&a);
    km_arena_free(&a);
    assert_non_null(km_arena_alloc(&a, 1));
    km_arena_free(&a);
}

static void absurd_sizes_give_null_and_harm_nothing(void **state) {
    km_arena a = {0};
    volatile size_t huge = SIZE_MAX;
    assert_null(km_arena_alloc(&a, huge));
    uint8_t *p = km_arena_alloc(&a, 4);
    memset(p, 5, 4);
    assert_null(km_arena_alloc(&a, huge - 16));
    assert_null(km_arena_alloc(&a, huge - 64));
    assert_null(km_arena_alloc(&a, huge / 2));
    assert_int_equal(a.used, 16);
    assert_int_equal(p[3], 5);
    assert_non_null(km_arena_alloc(&a, 4));
    km_arena_free(&a);
}

static void out_of_memory_in_any_chunk_leaks_nothing_and_the_next_step_works(void **state) {
    int64_t live = km_alloc_live();
    for (int nth = 0; nth < 6; nth++) {
        km_arena a = {0};
        int failures = 0;
        km_alloc_fail_nth(nth);
        for (int i = 0; i < 1000; i++) failures += km_arena_alloc(&a, 500) == NULL;
        km_arena_reset(&a);
        km_alloc_fail_nth(-1);
        assert_true(failures <= 1);
        if (nth < 4) assert_int_equal(failures, 1);
        step(&a, 300);
        km_arena_reset(&a);
        step(&a, 300);
        km_arena_free(&a);
        assert_int_equal(km_alloc_live(), live);
    }
}

static void a_reset_that_cannot_merge_leaves_an_empty_arena(void **state) {
    km_arena a = {0};
    step(&a, 1000);
    km_alloc_fail_nth(0);
    km_arena_reset(&a);
    km_alloc_fail_nth(-1);
    assert_null(a.first);
    step(&a, 1000);
    km_arena_reset(&a);
    assert_non_null(a.first);
    km_arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_zeroed_aligned_and_apart),
        cmocka_unit_test(a_repeated_step_stops_allocating_after_its_first_round),
        cmocka_unit_test(a_larger_step_grows_it_once_more),
        cmocka_unit_test(it_keeps_one_block_of_the_peak_size),
        cmocka_unit_test(used_counts_in_units_of_the_alignment),
        cmocka_unit_test(one_piece_larger_than_any_chunk_is_fine),
        cmocka_unit_test(empty_pieces_are_valid_and_distinct),
        cmocka_unit_test(an_empty_arena_can_be_reset_and_freed),
        cmocka_unit_test(absurd_sizes_give_null_and_harm_nothing),
        cmocka_unit_test(out_of_memory_in_any_chunk_leaks_nothing_and_the_next_step_works),
        cmocka_unit_test(a_reset_that_cannot_merge_leaves_an_empty_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Arrays that grow, and the hash table of numbers. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/hash.h"
#include "base/util.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void an_array_keeps_its_elements_as_it_grows(void **state) {
    int64_t *list = NULL;
    int cap = 0; /* any whole number will do */
    for (int i = 0; i < 10000; i++) {
        assert_true(km_array_reserve(&list, &cap, i + 1));
        assert_true(cap > i);
        list[i] = (int64_t)i * i;
    }
    for (int i = 0; i < 10000; i++) assert_int_equal(list[i], (int64_t)i * i);
    km_free(list);
}

static void an_array_has_at_once_what_is_asked_for(void **state) {
    char *text = NULL;
    size_t cap = 0;
    size_t none = 0;
    assert_true(km_array_reserve(&text, &cap, none));
    assert_null(text);
    assert_true(km_array_reserve(&text, &cap, 5000));
    assert_true(cap >= 5000);
    size_t before = cap;
    assert_true(km_array_reserve(&text, &cap, 4000));
    assert_int_equal(cap, before);
    km_free(text);
}

static void an_array_stays_as_it_is_when_it_cannot_grow(void **state) {
    uint32_t *list = NULL;
    uint32_t cap = 0;
    assert_true(km_array_reserve(&list, &cap, 3));
    list[2] = 7;
    uint32_t before = cap;
    size_t most[] = {SIZE_MAX, (size_t)1 << 31,
                     cap + 1u}; /* than bytes, than an int counts; one more */
    assert_false(km_array_reserve(&list, &cap, most[0]));
    assert_false(km_array_reserve(&list, &cap, most[1]));
    km_alloc_fail_nth(0);
    assert_false(km_array_reserve(&list, &cap, most[2]));
    km_alloc_fail_nth(-1);
    assert_int_equal(cap, before);
    assert_int_equal(list[2], 7);
    km_free(list);
    size_t wide = 0;
    int64_t *other = NULL;
    assert_false(km_array_reserve(&other, &wide, SIZE_MAX / 8 + 1));
    assert_null(other);
}

static void a_table_finds_what_was_put_and_nothing_else(void **state) {
    km_hash t = {0};
    size_t step = 0;
    assert_int_equal(km_hash_next(&t, 5, &step), KM_HASH_NONE);
    for (uint32_t i = 0; i < 5000; i++) assert_true(km_hash_put(&t, km_hash_u64(i), i));
    for (uint32_t i = 0; i < 6000; i++) {
        bool found = false;
        uint32_t number;
        for (step = 0; (number = km_hash_next(&t, km_hash_u64(i), &step)) != KM_HASH_NONE;)
            found = found || number == i;
        assert_int_equal(found, i < 5000);
    }
    km_hash_clear(&t);
    step = 0;
    assert_int_equal(km_hash_next(&t, km_hash_u64(1), &step), KM_HASH_NONE);
    km_hash_free(&t);
}

static void equal_hashes_come_in_the_order_they_were_put(void **state) {
    km_hash t = {0};
    /* At the very end of the table, so that they go on at its beginning, and stay in order when it
     * grows. */
    for (uint32_t i = 0; i < 200; i++) assert_true(km_hash_put(&t, UINT32_MAX, i));
    size_t step = 0;
    for (uint32_t i = 0; i < 200; i++) assert_int_equal(km_hash_next(&t, UINT32_MAX, &step), i);
    assert_int_equal(km_hash_next(&t, UINT32_MAX, &step), KM_HASH_NONE);
    km_hash_free(&t);
}

static void a_table_survives_the_lack_of_memory(void **state) {
    km_hash t = {0};
    km_alloc_fail_nth(0);
    assert_false(km_hash_put(&t, 1, 1));
    km_alloc_fail_nth(-1);
    for (uint32_t i = 0; i < 32; i++) assert_true(km_hash_put(&t, i, i));
    km_alloc_fail_nth(0);
    assert_false(km_hash_put(&t, 32, 32));
    km_alloc_fail_nth(-1);
    size_t step = 0;
    assert_int_equal(km_hash_next(&t, 31, &step), 31);
    km_hash_free(&t);
}

static void whole_numbers_are_divided_and_rounded_up(void **state) {
    assert_int_equal(km_ceil_div(0, 3), 0);
    assert_int_equal(km_ceil_div(7, 3), 3);
    assert_int_equal(km_round_up(6, 3), 6);
    assert_int_equal(km_round_up(7, 3), 9);
    assert_int_equal(km_clamp64(5, 1, 3), 3);
    assert_int_equal(km_clamp64(-5, 1, 3), 1);
    assert_int_equal(km_min64(-1, 2), -1);
    assert_int_equal(km_max64(-1, 2), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_array_keeps_its_elements_as_it_grows),
        cmocka_unit_test(an_array_has_at_once_what_is_asked_for),
        cmocka_unit_test(an_array_stays_as_it_is_when_it_cannot_grow),
        cmocka_unit_test(a_table_finds_what_was_put_and_nothing_else),
        cmocka_unit_test(equal_hashes_come_in_the_order_they_were_put),
        cmocka_unit_test(a_table_survives_the_lack_of_memory),
        cmocka_unit_test(whole_numbers_are_divided_and_rounded_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks in chunks. Nobody touches a chunk's memory, so the raw allocator underneath hands out
 * addresses without any: in no order, some side by side, up to a capacity, and all remembered. */
#include "base/alloc.h"
#include "tensor/chunks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MOST_RAW 4000

typedef struct span {
    uintptr_t begin;
    size_t bytes;
} span;

static struct {
    span out[MOST_RAW];
    int n;
    size_t bytes, capacity, last; /* out now; 0: endless; the latest request */
    int allocs, frees, refused;
    uintptr_t next;
} raw;

static uint32_t dice;
static uint32_t roll(uint32_t below) {
    dice = dice * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(dice >> 8) * below >> 24);
}

static void *raw_alloc(void *owner, size_t bytes) {
    assert_ptr_equal(owner, &raw);
    raw.last = bytes;
    if (raw.capacity && raw.bytes + bytes > raw.capacity) {
        raw.refused++;
        return NULL;
    }
    assert_true(raw.n < MOST_RAW);
    /* Far from the last one, just behind it, or below all. */
    uint32_t where = roll(3);
    if (where == 0) raw.next += (uintptr_t)1 << 32;
    uintptr_t low = ((uintptr_t)1 << 46) - ((uintptr_t)(raw.allocs + 1) << 33);
    uintptr_t p = where == 2 ? low : raw.next;
    if (where != 2) raw.next += (bytes + 511) / 512 * 512;
    raw.out[raw.n++] = (span){p, bytes};
    raw.bytes += bytes;
    raw.allocs++;
    return (void *)p;
}

static void raw_free(void *owner, void *p, size_t bytes) {
    int i = 0;
    while (i < raw.n && raw.out[i].begin != (uintptr_t)p) i++;
    assert_true(i < raw.n);
    assert_int_equal(raw.out[i].bytes, bytes);
    raw.out[i] = raw.out[--raw.n];
    raw.bytes -= bytes;
    raw.frees++;
}

static km_chunks fresh(size_t capacity) {
    memset(&raw, 0, sizeof raw);
    raw.capacity = capacity;
    raw.next = (uintptr_t)1 << 40;
    dice = 5;
    return (km_chunks){.raw_alloc = raw_alloc,
                       .raw_free = raw_free,
                       .owner = &raw,
                       .grain = 2 * MIB,
                       .most = 48 * MIB};
}

/* ---- A model of what is live ---- */

#define MOST_LIVE 300

typedef struct model {
    span live[MOST_LIVE];
    int n;
    size_t bytes;
} model;

static void check_new(const model *m, span b) {
    int home = 0;
    assert_int_equal(b.begin % KM_CHUNK_ALIGN, 0);
    for (int i = 0; i < m->n; i++)
        if (b.begin < m->live[i].begin + m->live[i].bytes && m->live[i].begin < b.begin + b.bytes)
            fail_msg("a block of %zu bytes lies over one of %zu", b.bytes, m->live[i].bytes);
    for (int i = 0; i < raw.n; i++)
        home +=
            b.begin >= raw.out[i].begin && b.begin + b.bytes <= raw.out[i].begin + raw.out[i].bytes;
    assert_int_equal(home, 1);
}

static bool get(km_chunks *c, model *m, size_t bytes) {
    void *p = km_chunks_get(c, bytes);
    if (!p) return false;
    span b = {(uintptr_t)p, bytes};
    check_new(m, b);
    m->live[m->n++] = b;
    m->bytes += bytes;
    return true;
}

static void put(km_chunks *c, model *m, int i) {
    span b = m->live[i];
    m->live[i] = m->live[--m->n];
    m->bytes -= b.bytes;
    km_chunks_put(c, (void *)b.begin, b.bytes);
}

/* Small, middling, and now and then larger than a chunk. */
static size_t some_bytes(void) {
    switch (roll(8)) {
    case 0: return 1 + roll(2000);
    case 1: return 512 * (1 + roll(8));
    case 2: return (1 + roll(30)) * MIB;
    case 3: return roll(4) ? 1 + roll(1 << 20) : 30 * MIB + roll(50 << 20);
    default: return 1 + roll(300000);
    }
}

static void any_order_of_getting_and_giving_back_keeps_blocks_apart(void **state) {
    km_chunks c = fresh(0);
    model m = {0};
    for (int round = 0; round < 20000; round++) {
        /* It fills up and empties again, several times. */
        bool filling = round / 2500 % 2 == 0;
        if (m.n < MOST_LIVE && roll(10) < (filling ? 6 : 4))
            assert_true(get(&c, &m, some_bytes()));
        else if (m.n > 0)
            put(&c, &m, (int)roll((uint32_t)m.n));
        assert_int_equal(c.held, raw.bytes);
        assert_int_equal(c.n, raw.n);
        assert_true(raw.bytes >= m.bytes);
    }
    while (m.n > 0) put(&c, &m, (int)roll((uint32_t)m.n));
    assert_int_equal(raw.n, 0);
    assert_int_equal(c.held, 0);
    assert_true(raw.allocs > 100);
    km_chunks_close(&c);
}

static void a_full_device_refuses_and_goes_on(void **state) {
    km_chunks c = fresh(150 * MIB);
    model m = {0};
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        if (m.n < MOST_LIVE && roll(10) < 6)
            refused += !get(&c, &m, some_bytes());
        else if (m.n > 0)
            put(&c, &m, (int)roll((uint32_t)m.n));
        assert_int_equal(c.held, raw.bytes);
    }
    assert_true(refused > 100);
    while (m.n > 0) put(&c, &m, m.n - 1);
    assert_int_equal(raw.n, 0);
    km_chunks_close(&c);
}

/* ---- Ranges ---- */

static void neighbours_given_back_in_any_order_are_one_range_again(void **state) {
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 6; k++) {
        km_chunks c = fresh(0);
        void *first = km_chunks_get(&c, 4 * KIB), *p[3];
        for (int i = 0; i < 3; i++) p[i] = km_chunks_get(&c, 500 * KIB);
        void *last = km_chunks_get(&c, 500 * KIB); /* what is left of the chunk is smaller */
        for (int i = 0; i < 3; i++) km_chunks_put(&c, p[orders[k][i]], 500 * KIB);
        assert_ptr_equal(km_chunks_get(&c, 1500 * KIB), p[0]);
        assert_int_equal(raw.allocs, 1);
        km_chunks_put(&c, p[0], 1500 * KIB);
        km_chunks_put(&c, first, 4 * KIB);
        assert_int_equal(raw.frees, 0);
        km_chunks_put(&c, last, 500 * KIB);
        assert_int_equal(raw.frees, 1);
        km_chunks_close(&c);
    }
}

static void a_block_goes_where_it_leaves_least_over(void **state) {
    km_chunks c = fresh(0);
    void *p[7];
    static const size_t size[7] = {300, 10, 100, 10, 200, 10, 300};
    for (int i = 0; i < 7; i++) p[i] = km_chunks_get(&c, size[i] * KIB);
    for (int i = 0; i < 7; i += 2) km_chunks_put(&c, p[i], size[i] * KIB);
    assert_ptr_equal(km_chunks_get(&c, 101 * KIB), p[4]);
    assert_ptr_equal(km_chunks_get(&c, 99 * KIB), (char *)p[4] + 101 * KIB);
    assert_ptr_equal(km_chunks_get(&c, 90 * KIB), p[2]);
    km_chunks_close(&c);
    assert_int_equal(raw.n, 0);
}

static void no_bytes_are_a_block_too_and_absurdly_many_are_none(void **state) {
    km_chunks c = fresh(0);
    void *a = km_chunks_get(&c, 0), *b = km_chunks_get(&c, 0);
    assert_non_null(a);
    assert_ptr_not_equal(a, b);
    assert_null(km_chunks_get(&c, SIZE_MAX));
    assert_null(km_chunks_get(&c, SIZE_MAX / 2 + 1));
    km_chunks_put(&c, a, 0);
    km_chunks_put(&c, b, 0);
    assert_int_equal(raw.n, 0);
    km_chunks_close(&c);
}

/* ---- Chunks ---- */

static void a_little_takes_one_grain_and_gives_it_back_when_done(void **state) {
    km_chunks c = fresh(0);
    void *p[100];
    for (int i = 0; i < 100; i++) p[i] = km_chunks_get(&c, 20 * KIB);
    assert_int_equal(raw.bytes, 2 * MIB);
    for (int i = 0; i < 100; i++) km_chunks_put(&c, p[(i * 37) % 100], 20 * KIB);
    assert_int_equal(raw.bytes, 0);
    km_chunks_close(&c);
}

static void a_chunk_without_blocks_goes_back_while_others_stay(void **state) {
    km_chunks c = fresh(0);
    void *p[60];
    for (int i = 0; i < 60; i++) p[i] = km_chunks_get(&c, 2 * MIB); /* in chunks of 2, then 4 MiB */
    assert_in_range(raw.bytes, 120 * MIB, 128 * MIB);
    int chunks = raw.n;
    assert_true(chunks > 20 && chunks < 60);
    for (int i = 0; i < 60; i += 2) km_chunks_put(&c, p[i], 2 * MIB);
    assert_true(raw.n < chunks && raw.n >= 15);
    for (int i = 1; i < 60; i += 2) km_chunks_put(&c, p[i], 2 * MIB);
    assert_int_equal(raw.n, 0);
    km_chunks_close(&c);
}

static void a_large_block_is_the_devices_own_and_goes_back_alone(void **state) {
    km_chunks c = fresh(0);
    void *large = km_chunks_get(&c, 49 * MIB + 1);
    assert_int_equal(raw.last, 50 * MIB);
    void *small = km_chunks_get(&c, 100 * KIB); /* not in the large one's rounded end */
    assert_int_equal(raw.allocs, 2);
    km_chunks_put(&c, large, 49 * MIB + 1);
    assert_int_equal(raw.frees, 1);
    assert_int_equal(raw.bytes, raw.last);
    km_chunks_put(&c, small, 100 * KIB);
    km_chunks_close(&c);
}

static void where_no_chunk_can_be_had_the_block_alone_is_asked_for(void **state) {
    km_chunks c = fresh(203 * MIB);
    void *p[100];
    for (int i = 0; i < 100; i++) assert_non_null(p[i] = km_chunks_get(&c, 2 * MIB));
    while (km_chunks_get(&c, 64 * KIB) && raw.last >= 2 * MIB) {}
    assert_int_equal(raw.last, 64 * KIB);
    assert_true(raw.bytes <= raw.capacity && raw.bytes > 198 * MIB);
    void *last = NULL;
    for (void *q; (q = km_chunks_get(&c, 64 * KIB));) last = q;
    assert_true(raw.bytes + 64 * KIB > raw.capacity);
    assert_null(km_chunks_get(&c, 64 * KIB));
    km_chunks_put(&c, last, 64 * KIB);
    assert_non_null(km_chunks_get(&c, 64 * KIB));
    assert_null(km_chunks_get(&c, 60 * MIB)); /* nor is a large block there */
    assert_int_equal(raw.last, 60 * MIB);
    km_chunks_close(&c);
    assert_int_equal(raw.n, 0);
}

/* The matrices of 36 layers with 3 billion weights in few bits, as they are loaded: two blocks of a
 * size, of which the first is given back at the end; then the cache. */
static void weights_and_cache(km_chunks *c, bool announced, size_t at_most_over) {
    static const size_t size[] = {2359296,  294912,   430080,   2359296,
                                  12681216, 12681216, 18493440, 8192};
    void *spare[8];
    size_t sum = 0;
    for (int i = 0; i < 36 * 8 && announced; i++) km_chunks_expect(c, size[i % 8]);
    for (int i = 0; i < 8; i++) spare[i] = km_chunks_get(c, size[i]);
    for (int k = 0; k < 36; k++)
        for (int i = 0; i < 8; i++) {
            assert_non_null(km_chunks_get(c, size[i]));
            sum += size[i];
        }
    for (int i = 0; i < 8; i++) km_chunks_put(c, spare[i], size[i]);
    km_chunks_expect(c, 0);
    for (int i = 0; i < 72 && announced; i++) km_chunks_expect(c, 2 * MIB);
    for (int i = 0; i < 72; i++) {
        assert_non_null(km_chunks_get(c, 2 * MIB));
        sum += 2 * MIB;
    }
    km_chunks_expect(c, 0);
    if (raw.bytes > sum + at_most_over)
        fail_msg("%zu bytes take %zu of the device", sum, raw.bytes);
    assert_true(raw.allocs < 100);
    km_chunks_close(c);
    assert_int_equal(raw.n, 0);
}

static void a_models_weights_take_little_more_than_their_bytes(void **state) {
    km_chunks c = fresh(0);
    weights_and_cache(&c, false, 72 * MIB);
}

static void blocks_that_were_announced_take_hardly_more_than_their_bytes(void **state) {
    km_chunks c = fresh(0);
    weights_and_cache(&c, true, 20 * MIB);
}

static void what_is_announced_is_in_few_chunks_that_it_fills(void **state) {
    static const size_t size[] = {2359296, 294912, 12681216, 430080, 18493440, 8192};
    km_chunks c = fresh(0);
    size_t sum = 0;
    for (int i = 0; i < 240; i++) km_chunks_expect(&c, size[i % 6]);
    for (int i = 0; i < 240; i++) {
        assert_non_null(km_chunks_get(&c, size[i % 6]));
        sum += size[i % 6];
    }
    assert_true(raw.bytes <= sum + 4 * MIB);
    assert_in_range(raw.allocs, 4, 8);
    assert_int_equal(c.expected, 0);
    km_chunks_close(&c);
}

static void an_announcement_ends_when_it_is_taken_back(void **state) {
    for (int taken_back = 0; taken_back < 2; taken_back++) {
        km_chunks c = fresh(0);
        km_chunks_expect(&c, 5 * MIB);
        km_chunks_expect(&c, 100 * MIB); /* will have a chunk of its own */
        km_chunks_expect(&c, 2 * MIB);
        if (taken_back) km_chunks_expect(&c, 0);
        assert_non_null(km_chunks_get(&c, 10 * KIB));
        assert_int_equal(raw.last, (taken_back ? 2 : 8) * MIB);
        km_chunks_close(&c);
    }
}

static void a_smaller_chunk_is_taken_where_the_announced_one_is_not_to_be_had(void **state) {
    km_chunks c = fresh(90 * MIB);
    for (int i = 0; i < 80; i++) km_chunks_expect(&c, 2 * MIB); /* 160 MiB */
    for (int i = 0; i < 45; i++) assert_non_null(km_chunks_get(&c, 2 * MIB));
    assert_null(km_chunks_get(&c, 2 * MIB));
    assert_int_equal(raw.bytes, 90 * MIB);
    assert_true(raw.allocs < 8);
    km_chunks_close(&c);
}

static void a_large_block_goes_among_others_where_no_chunk_can_be_had(void **state) {
    km_chunks c = fresh(66 * MIB);
    for (int i = 0; i < 32; i++) km_chunks_expect(&c, 2 * MIB);
    void *first = km_chunks_get(&c, 2 * MIB); /* a chunk of 64 MiB, the rest of it free */
    assert_int_equal(raw.bytes, 64 * MIB);
    char *large = km_chunks_get(&c, 30 * MIB);
    assert_ptr_equal(large, (char *)first + 2 * MIB);
    assert_null(km_chunks_get(&c, 40 * MIB));
    km_chunks_put(&c, large, 30 * MIB);
    km_chunks_put(&c, first, 2 * MIB);
    assert_int_equal(raw.n, 0);
    km_chunks_close(&c);
}

/* ---- The heap ---- */

static void any_heap_allocation_may_fail_and_nothing_is_lost(void **state) {
    int64_t heap = km_alloc_live();
    for (int nth = 0; nth < 40; nth++) {
        km_chunks c = fresh(0);
        model m = {0};
        int failed = 0;
        km_alloc_fail_nth(nth);
        for (int i = 0; i < 250; i++) failed += !get(&c, &m, 1 + roll(500000));
        km_alloc_fail_nth(-1);
        assert_true(failed <= 1);
        assert_int_equal(c.held, raw.bytes);
        while (m.n > 0) put(&c, &m, (int)roll((uint32_t)m.n));
        assert_int_equal(raw.n, 0);
        km_chunks_close(&c);
        assert_int_equal(km_alloc_live(), heap);
        if (nth == 0) assert_int_equal(failed, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_order_of_getting_and_giving_back_keeps_blocks_apart),
        cmocka_unit_test(a_full_device_refuses_and_goes_on),
        cmocka_unit_test(neighbours_given_back_in_any_order_are_one_range_again),
        cmocka_unit_test(a_block_goes_where_it_leaves_least_over),
        cmocka_unit_test(no_bytes_are_a_block_too_and_absurdly_many_are_none),
        cmocka_unit_test(a_little_takes_one_grain_and_gives_it_back_when_done),
        cmocka_unit_test(a_chunk_without_blocks_goes_back_while_others_stay),
        cmocka_unit_test(a_large_block_is_the_devices_own_and_goes_back_alone),
        cmocka_unit_test(where_no_chunk_can_be_had_the_block_alone_is_asked_for),
        cmocka_unit_test(a_models_weights_take_little_more_than_their_bytes),
        cmocka_unit_test(blocks_that_were_announced_take_hardly_more_than_their_bytes),
        cmocka_unit_test(what_is_announced_is_in_few_chunks_that_it_fills),
        cmocka_unit_test(an_announcement_ends_when_it_is_taken_back),
        cmocka_unit_test(a_smaller_chunk_is_taken_where_the_announced_one_is_not_to_be_had),
        cmocka_unit_test(a_large_block_goes_among_others_where_no_chunk_can_be_had),
        cmocka_unit_test(any_heap_allocation_may_fail_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

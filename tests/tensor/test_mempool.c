/* The memory pool: size classes, reuse, the ceiling, trimming, and its statistics. The raw
 * allocator underneath is one that counts, and that can be told to be out of memory. */
#include "base/alloc.h"
#include "tensor/mempool.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct device {
    int allocs, frees;
    size_t bytes;    /* out at the moment */
    size_t capacity; /* of the device; 0: endless */
} device;

static void *device_alloc(void *owner, size_t bytes) {
    device *d = owner;
    if (d->capacity && d->bytes + bytes > d->capacity) return NULL;
    d->allocs++;
    d->bytes += bytes;
    return km_alloc_aligned(bytes);
}

static void device_free(void *owner, void *p, size_t bytes) {
    device *d = owner;
    d->frees++;
    d->bytes -= bytes;
    km_free_aligned(p, bytes);
}

static km_mempool pool_on(device *d) {
    return (km_mempool){.raw_alloc = device_alloc, .raw_free = device_free, .owner = d};
}

static void a_block_is_as_large_as_asked_and_at_most_an_eighth_larger(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t sizes[] = {257,  288,   289,    511,     512,          513,           1000,
                      4096, 4097,  65535,  65537,   1 << 20,      (1 << 20) + 1, 3000001,
                      999,  12345, 777777, 1234567, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t cap = 0;
        void *p = km_mempool_get(&m, sizes[i], &cap);
        assert_non_null(p);
        assert_true(cap >= sizes[i]);
        assert_true(cap <= sizes[i] + sizes[i] / 8 + 1);
        assert_int_equal((uintptr_t)p % 64, 0);
        memset(p, 1, cap);
        km_mempool_put(&m, p, cap);
    }
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

static void a_large_block_is_hardly_larger_than_asked(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t sizes[] = {65537, 98304, 430080, 12681216, 18493440};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t cap = 0;
        void *p = km_mempool_get(&m, sizes[i], &cap);
        assert_true(cap >= sizes[i] && cap < sizes[i] + 512);
        assert_int_equal(cap, km_mempool_rounded(sizes[i]));
        assert_int_equal(d.bytes, cap);
        km_mempool_put(&m, p, cap);
        km_mempool_trim(&m);
    }
    km_mempool_free(&m);
}

static void a_large_block_serves_smaller_requests_of_its_class(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap[3];
    void *p = km_mempool_get(&m, 1100000, &cap[0]), *q = km_mempool_get(&m, 1080000, &cap[1]);
    km_mempool_put(&m, q, cap[1]);
    km_mempool_put(&m, p, cap[0]);
    assert_ptr_equal(km_mempool_get(&m, 1070000, &cap[2]), q); /* leaves less over than p */
    assert_int_equal(cap[2], cap[1]);
    assert_ptr_equal(km_mempool_get(&m, 1070000, &cap[2]), p);
    assert_int_equal(cap[2], cap[0]);
    assert_int_equal(m.misses, 2);
    km_mempool_put(&m, p, cap[0]);
    km_mempool_put(&m, q, cap[1]);
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

static void sizes_that_creep_up_hold_one_block_and_not_a_trail_of_them(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap = 0;
    for (size_t bytes = (1 << 20) + 1; bytes < (1 << 20) + (1 << 17); bytes += 4096) {
        void *p = km_mempool_get(&m, bytes, &cap);
        assert_true(cap >= bytes);
        km_mempool_put(&m, p, cap);
        assert_int_equal(m.held, cap);
        assert_int_equal(d.bytes, cap);
    }
    uint64_t misses = m.misses;
    for (size_t bytes = (1 << 20) + 1; bytes < (1 << 20) + (1 << 17); bytes += 4096)
        km_mempool_put(&m, km_mempool_get(&m, bytes, &cap), cap);
    assert_int_equal(m.misses, misses);
    km_mempool_free(&m);
}

/* Sizes of a class in any order, several out at once: after a few rounds nothing is asked for. */
static void rounds_of_mixed_sizes_settle(void **state) {
    for (uint32_t seed = 1; seed <= 50; seed++) {
        device d = {0};
        km_mempool m = pool_on(&d);
        uint64_t misses = 0;
        int round = 0;
        for (int quiet = 0; quiet < 2; round++) {
            uint32_t dice = seed;
            void *p[12] = {0};
            size_t cap[12];
            for (int i = 0; i < 60; i++) {
                dice = dice * 1664525u + 1013904223u;
                int at = (int)(dice >> 16) % 12;
                if (p[at]) km_mempool_put(&m, p[at], cap[at]);
                p[at] = km_mempool_get(&m, 140000 + (dice >> 8) % 60 * 512, &cap[at]);
            }
            for (int i = 0; i < 12; i++)
                if (p[i]) km_mempool_put(&m, p[i], cap[i]);
            quiet = m.misses == misses ? quiet + 1 : 0;
            misses = m.misses;
            assert_true(round < 20);
        }
        km_mempool_free(&m);
        assert_int_equal(d.bytes, 0);
    }
}

static int told;
static void note_free(void *owner) { told++; }

static void blocks_are_given_up_only_after_their_owner_was_told(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    m.before_free = note_free;
    size_t cap[2];
    told = 0;
    void *p = km_mempool_get(&m, 70000, &cap[0]), *q = km_mempool_get(&m, 5000, &cap[1]);
    km_mempool_trim(&m); /* nothing to give up */
    assert_int_equal(told, 0);
    km_mempool_put(&m, p, cap[0]);
    p = km_mempool_get(&m, 71000, &cap[0]); /* in the place of the smaller one */
    assert_int_equal(told, 1);
    assert_int_equal(d.frees, 1);
    km_mempool_put(&m, p, cap[0]);
    km_mempool_put(&m, q, cap[1]);
    km_mempool_trim(&m);
    assert_int_equal(told, 2);
    km_mempool_free(&m);
}

static void blocks_in_chunks_are_counted_as_the_device_was_asked(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    km_mempool_in_chunks(&m, 1 << 20, 16 << 20);
    m.limit = 5 << 20;
    size_t cap[20];
    void *p[20];
    for (int i = 0; i < 20; i++) assert_non_null(p[i] = km_mempool_get(&m, 100000, &cap[i]));
    assert_int_equal(d.allocs, 2);
    assert_int_equal(m.held, 2 << 20);
    assert_int_equal(d.bytes, m.held);
    for (int i = 0; i < 20; i++) memset(p[i], i, cap[i]);
    for (int i = 0; i < 20; i++) assert_int_equal(((char *)p[i])[cap[i] - 1], i);
    size_t large;
    assert_null(km_mempool_get(&m, 4 << 20, &large)); /* past the ceiling */
    for (int i = 1; i < 20; i++) km_mempool_put(&m, p[i], cap[i]);
    void *q = km_mempool_get(&m, 4 << 20, &large); /* cached blocks give way */
    assert_non_null(q);
    assert_int_equal(m.held, 5 << 20);
    km_mempool_put(&m, q, large);
    km_mempool_free(&m);
    assert_int_equal(m.held, 1 << 20); /* one block is still out */
    km_mempool_drop(&m, p[0], cap[0]);
    assert_int_equal(m.held, 0);
    assert_int_equal(d.bytes, 0);
    km_chunks_close(&m.chunks);
}

static void every_size_class_takes_its_own_blocks_back(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    for (size_t bytes = 0; bytes < 70000; bytes += 37) {
        size_t cap = 0, again = 0;
        void *p = km_mempool_get(&m, bytes, &cap);
        km_mempool_put(&m, p, cap);
        assert_ptr_equal(km_mempool_get(&m, cap, &again), p); /* the full block is a hit too */
        assert_int_equal(again, cap);
        km_mempool_put(&m, p, cap);
    }
    assert_int_equal(m.live, 0);
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

static void zero_bytes_count_as_one(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap = 0;
    void *p = km_mempool_get(&m, 0, &cap);
    assert_non_null(p);
    assert_true(cap >= 1);
    km_mempool_put(&m, p, cap);
    km_mempool_free(&m);
}

static void a_returned_block_is_handed_out_again_the_latest_first(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap[3];
    void *p[3];
    for (int i = 0; i < 3; i++) p[i] = km_mempool_get(&m, 5000, &cap[i]);
    for (int i = 0; i < 3; i++) km_mempool_put(&m, p[i], cap[i]);
    for (int i = 3; i-- > 0;) assert_ptr_equal(km_mempool_get(&m, 4900, &cap[i]), p[i]);
    assert_int_equal(m.hits, 3);
    assert_int_equal(m.misses, 3);
    for (int i = 0; i < 3; i++) km_mempool_put(&m, p[i], cap[i]);
    km_mempool_free(&m);
}

static void a_repeated_round_asks_neither_device_nor_heap(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    uint64_t heap = 0;
    for (int round = 0; round < 4; round++) {
        void *p[20];
        size_t cap[20];
        for (int i = 0; i < 20; i++) p[i] = km_mempool_get(&m, (size_t)i * 777, &cap[i]);
        for (int i = 0; i < 20; i++) km_mempool_put(&m, p[(i * 7) % 20], cap[(i * 7) % 20]);
        if (round == 0) heap = km_alloc_count();
    }
    assert_int_equal(km_alloc_count(), heap);
    assert_int_equal(d.allocs, 20);
    assert_int_equal(m.hits, 60);
    km_mempool_free(&m);
}

static void live_peak_and_held_bytes_are_counted(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t a, b;
    void *p = km_mempool_get(&m, 1000, &a), *q = km_mempool_get(&m, 100000, &b);
    assert_int_equal(m.live, a + b);
    assert_int_equal(m.held, a + b);
    km_mempool_put(&m, q, b);
    assert_int_equal(m.live, a);
    assert_int_equal(m.held, a + b);
    assert_int_equal(m.peak, a + b);
    km_mempool_trim(&m);
    assert_int_equal(m.held, a);
    assert_int_equal(d.bytes, a);
    km_mempool_put(&m, p, a);
    assert_int_equal(m.live, 0);
    assert_int_equal(m.peak, a + b);
    km_mempool_free(&m);
    assert_int_equal(m.held, 0);
}

static void a_request_past_the_ceiling_gives_cached_blocks_back_first(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    m.limit = 4096 * 10;
    void *p[10];
    size_t cap;
    for (int i = 0; i < 10; i++) assert_non_null(p[i] = km_mempool_get(&m, 4096, &cap));
    assert_null(km_mempool_get(&m, 4096, &cap)); /* all of it is in use */
    for (int i = 0; i < 10; i++) km_mempool_put(&m, p[i], 4096);
    void *large = km_mempool_get(&m, 4096 * 10, &cap);
    assert_non_null(large);
    assert_int_equal(m.held, 4096 * 10);
    assert_null(km_mempool_get(&m, 1, &cap));
    km_mempool_put(&m, large, 4096 * 10);
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

static void a_full_device_gets_its_cached_blocks_back_before_giving_up(void **state) {
    device d = {.capacity = 10000};
    km_mempool m = pool_on(&d);
    size_t cap, other;
    void *p = km_mempool_get(&m, 6000, &cap);
    assert_null(km_mempool_get(&m, 8000, &other));
    km_mempool_put(&m, p, cap);
    p = km_mempool_get(&m, 8000, &other);
    assert_non_null(p);
    assert_int_equal(d.frees, 1);
    km_mempool_put(&m, p, other);
    km_mempool_free(&m);
}

static void absurd_requests_are_refused(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap;
    assert_null(km_mempool_get(&m, SIZE_MAX, &cap));
    assert_null(km_mempool_get(&m, SIZE_MAX / 2, &cap));
    assert_null(km_mempool_get(&m, ((size_t)1 << 46) + 1, &cap));
    assert_int_equal(d.allocs, 0);
    d.capacity = 1;
    assert_null(km_mempool_get(&m, (size_t)1 << 46, &cap)); /* has a class, and no memory */
    km_mempool_free(&m);
}

static void a_failed_record_loses_no_block(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap;
    km_alloc_fail_nth(0);
    assert_null(km_mempool_get(&m, 100, &cap));
    km_alloc_fail_nth(-1);
    assert_int_equal(d.bytes, 0);
    assert_int_equal(m.live, 0);
    void *p = km_mempool_get(&m, 100, &cap);
    assert_non_null(p);
    km_mempool_put(&m, p, cap);
    km_mempool_free(&m);
}

static void trimming_over_and_over_leaves_nothing_on_the_heap(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    int64_t live = 0;
    for (int round = 0; round < 50; round++) {
        size_t cap;
        void *p = km_mempool_get(&m, 10000, &cap);
        km_mempool_put(&m, p, cap);
        km_mempool_trim(&m);
        if (round == 0) live = km_alloc_live();
    }
    assert_int_equal(km_alloc_live(), live);
    km_mempool_free(&m);
}

static void a_certain_block_can_be_taken_from_the_cache(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    size_t cap[3];
    void *p[3];
    for (int i = 0; i < 3; i++) p[i] = km_mempool_get(&m, 3000, &cap[i]);
    for (int i = 0; i < 3; i++) km_mempool_put(&m, p[i], cap[i]);
    assert_true(km_mempool_take(&m, p[1], cap[1]));
    assert_false(km_mempool_take(&m, p[1], cap[1]));
    assert_int_equal(m.live, cap[1]);
    assert_ptr_equal(km_mempool_get(&m, 3000, &cap[2]), p[2]);
    assert_ptr_equal(km_mempool_get(&m, 3000, &cap[0]), p[0]);
    for (int i = 0; i < 3; i++) km_mempool_put(&m, p[i], cap[i]);
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

static int watched;
static void note_got(void *user, void *p, size_t cap) { watched++; }
static bool keep_first(void *user, void *p, size_t cap) { return p == *(void **)user; }

static void a_watched_block_stays_out_until_it_is_put_back_unwatched(void **state) {
    device d = {0};
    km_mempool m = pool_on(&d);
    void *mine = NULL;
    km_mempool_watch w = {.got = note_got, .keeps = keep_first, .user = &mine};
    m.watch = &w;
    size_t cap;
    watched = 0;
    mine = km_mempool_get(&m, 2000, &cap);
    km_mempool_put(&m, mine, cap); /* kept back: still counts as live */
    assert_int_equal(watched, 1);
    assert_int_equal(m.live, cap);
    size_t other_cap;
    void *other = km_mempool_get(&m, 2000, &other_cap);
    assert_ptr_not_equal(other, mine);
    km_mempool_put(&m, other, other_cap);
    w.frozen = true;
    km_mempool_trim(&m);
    assert_int_equal(d.frees, 0);
    m.watch = NULL;
    km_mempool_put(&m, mine, cap);
    assert_int_equal(m.live, 0);
    km_mempool_free(&m);
    assert_int_equal(d.bytes, 0);
}

/* ---- Memory elsewhere ---- */

static int spilled_now, spills;

static void *spill_alloc(void *owner, size_t bytes) {
    (void)owner;
    spilled_now++;
    spills++;
    return km_alloc_aligned(bytes);
}

static void spill_free(void *owner, void *p, size_t bytes) {
    (void)owner;
    spilled_now--;
    km_free_aligned(p, bytes);
}

static void what_the_device_has_no_room_for_lies_elsewhere(void **state) {
    device d = {.capacity = 100000};
    km_mempool m = pool_on(&d);
    m.spill_alloc = spill_alloc;
    m.spill_free = spill_free;
    spills = spilled_now = 0;
    size_t cap[5];
    void *p[5];
    bool spilled;
    for (int i = 0; i < 4; i++) {
        p[i] = km_mempool_get_anywhere(&m, 40000, &cap[i], &spilled);
        assert_non_null(p[i]);
        assert_int_equal(spilled, i >= 2);
        memset(p[i], i, cap[i]);
    }
    assert_int_equal(spilled_now, 2);
    assert_int_equal(m.live, cap[0] + cap[1] + cap[2] + cap[3]);
    assert_int_equal(m.held, cap[0] + cap[1]);
    assert_int_equal(m.spilled_bytes, cap[2] + cap[3]);
    assert_null(km_mempool_get(&m, 40000, &cap[4])); /* only what may */
    km_mempool_put(&m, p[3], cap[3]);
    p[3] = km_mempool_get_anywhere(&m, 39000, &cap[3], &spilled); /* reused */
    assert_true(spilled && spills == 2);
    km_mempool_put(&m, p[0], cap[0]);
    p[0] = km_mempool_get_anywhere(&m, 40000, &cap[0], &spilled); /* the device's own first */
    assert_false(spilled);
    for (int i = 0; i < 4; i++) km_mempool_put(&m, p[i], cap[i]);
    assert_int_equal(m.live, 0);
    assert_true(km_mempool_take(&m, p[2], cap[2]));
    assert_false(km_mempool_take(&m, p[2], cap[2]));
    km_mempool_trim(&m);
    assert_int_equal(spilled_now, 1);
    assert_int_equal(d.bytes, 0);
    km_mempool_free(&m);
    km_mempool_drop(&m, p[2], cap[2]);
    assert_int_equal(spilled_now, 0);
    assert_int_equal(m.spilled_bytes, 0);
    km_mempool_close_spilled(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_device_has_no_room_for_lies_elsewhere),
        cmocka_unit_test(a_block_is_as_large_as_asked_and_at_most_an_eighth_larger),
        cmocka_unit_test(a_large_block_is_hardly_larger_than_asked),
        cmocka_unit_test(a_large_block_serves_smaller_requests_of_its_class),
        cmocka_unit_test(sizes_that_creep_up_hold_one_block_and_not_a_trail_of_them),
        cmocka_unit_test(rounds_of_mixed_sizes_settle),
        cmocka_unit_test(blocks_are_given_up_only_after_their_owner_was_told),
        cmocka_unit_test(blocks_in_chunks_are_counted_as_the_device_was_asked),
        cmocka_unit_test(every_size_class_takes_its_own_blocks_back),
        cmocka_unit_test(zero_bytes_count_as_one),
        cmocka_unit_test(a_returned_block_is_handed_out_again_the_latest_first),
        cmocka_unit_test(a_repeated_round_asks_neither_device_nor_heap),
        cmocka_unit_test(live_peak_and_held_bytes_are_counted),
        cmocka_unit_test(a_request_past_the_ceiling_gives_cached_blocks_back_first),
        cmocka_unit_test(a_full_device_gets_its_cached_blocks_back_before_giving_up),
        cmocka_unit_test(absurd_requests_are_refused),
        cmocka_unit_test(a_failed_record_loses_no_block),
        cmocka_unit_test(trimming_over_and_over_leaves_nothing_on_the_heap),
        cmocka_unit_test(a_certain_block_can_be_taken_from_the_cache),
        cmocka_unit_test(a_watched_block_stays_out_until_it_is_put_back_unwatched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

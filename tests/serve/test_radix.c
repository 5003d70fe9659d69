/* The radix tree against a list of whole prompts: random insertions, uses and evictions. */
#include "serve/scheduler/radix.h"
#include "base/alloc.h"
#include "base/clock.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MANY = 300, LONG = 40 };
typedef struct held_prompt {
    int32_t ids[LONG];
    size_t n;
    uint64_t domain;
    km_radix_node *leaf; /* NULL: not in the tree */
} held_prompt;
static held_prompt held[MANY];

/* Few tokens, so that beginnings are often shared. */
static void make_prompt(held_prompt *p) {
    p->n = 1 + (size_t)rand() % LONG;
    p->domain = (uint64_t)rand() % 2;
    for (size_t i = 0; i < p->n; i++) p->ids[i] = rand() % 8 ? 7 : rand() % 3;
}

static km_radix_key key_of(const held_prompt *p) {
    return (km_radix_key){p->domain, 0, p->ids, p->n};
}

static size_t longest(const held_prompt *p) {
    size_t best = 0;
    for (int i = 0; i < MANY; i++) {
        if (!held[i].leaf || held[i].domain != p->domain) continue;
        size_t n = km_common_tokens(p->ids, p->n, held[i].ids, held[i].n);
        if (n > best) best = n;
    }
    return best;
}

/* Every holder has all that its leaf stands for; the oldest is a leaf; none is newer than what is above. */
static void check_tree(const km_radix *t) {
    size_t nodes = 0;
    for (const km_radix_node *x = t->oldest; x; x = x->newer) {
        nodes++;
        assert_true(!x->first == !!x->holder);
        const held_prompt *h = km_radix_holder(x);
        assert_true(h->leaf && h->n >= x->end);
        assert_memory_equal(h->ids + x->end - x->n, x->ids, x->n * sizeof *x->ids);
        if (x->parent->parent) {
            const km_radix_node *up = x->newer;
            while (up && up != x->parent) up = up->newer;
            assert_ptr_equal(up, x->parent);
        }
    }
    assert_int_equal(nodes, t->nodes);
    if (t->oldest) assert_non_null(t->oldest->holder);
}

static void finds_what_a_list_of_prompts_finds(void **state) {
    (void)state;
    km_radix t = {0};
    srand(7);
    memset(held, 0, sizeof held);
    for (int round = 0; round < 6000; round++) {
        held_prompt *p = &held[rand() % MANY], probe;
        make_prompt(&probe);
        km_radix_key k = key_of(&probe);
        size_t length = 99;
        km_radix_node *node = km_radix_find(&t, &k, &length);
        assert_int_equal(length, longest(&probe));
        assert_true(!node == (length == 0));
        if (node && rand() % 2) {
            node = km_radix_use(&t, node, length);
            assert_int_equal(node->end, length);
            assert_ptr_equal(t.newest->parent->parent, NULL);
        }
        if (p->leaf && rand() % 4 == 0) {
            km_radix_remove(&t, p->leaf);
            p->leaf = NULL;
        } else if (p->leaf) {
            km_radix_node *leaf = km_radix_oldest(&t, NULL, NULL);
            held_prompt *h = leaf->holder;
            h->leaf = km_radix_cut(&t, leaf);
            if (h->leaf) h->n = h->leaf->end;
        } else {
            make_prompt(p);
            k = key_of(p);
            void *displaced;
            bool covered;
            bool was = longest(p) == p->n, equal = false;
            for (int i = 0; i < MANY; i++)
                equal |= held[i].leaf && held[i].domain == p->domain && held[i].n == p->n &&
                         km_common_tokens(held[i].ids, held[i].n, p->ids, p->n) == p->n;
            km_radix_node *leaf = km_radix_add(&t, &k, p, &covered, &displaced);
            assert_int_equal(covered, was && !equal);
            assert_true(covered == !leaf);
            if (displaced) ((held_prompt *)displaced)->leaf = NULL;
            p->leaf = leaf;
        }
        if (round % 16 == 0) check_tree(&t);
    }
    km_radix_free(&t);
}

/* Memory may run out in any call: then nothing is added, or a use counts for more, and the tree is whole. */
static void is_whole_where_memory_runs_out(void **state) {
    (void)state;
    km_radix t = {0};
    int refused = 0;
    srand(8);
    memset(held, 0, sizeof held);
    for (int round = 0; round < 4000; round++) {
        held_prompt *p = &held[rand() % MANY], probe;
        make_prompt(&probe);
        km_radix_key k = key_of(&probe);
        size_t length;
        km_radix_node *node = km_radix_find(&t, &k, &length);
        km_alloc_fail_nth(rand() % 4);
        if (node && rand() % 2) assert_true(km_radix_use(&t, node, length)->end >= length);
        if (p->leaf) {
            km_radix_remove(&t, p->leaf);
            p->leaf = NULL;
        } else {
            make_prompt(p);
            k = key_of(p);
            void *displaced;
            bool covered;
            p->leaf = km_radix_add(&t, &k, p, &covered, &displaced);
            refused += !p->leaf && !covered;
            if (displaced) ((held_prompt *)displaced)->leaf = NULL;
        }
        km_alloc_fail_nth(-1);
        if (round % 16 == 0) check_tree(&t);
    }
    assert_true(refused > 100);
    km_radix_free(&t);
}

/* A beginning that two share outlives both of them, for the one used last. */
static void the_least_recently_used_leaf_goes_first(void **state) {
    (void)state;
    km_radix t = {0};
    int32_t a[] = {1, 2, 3, 4}, b[] = {1, 2, 5, 6}, c[] = {8, 9};
    int ha, hb, hc;
    void *displaced;
    bool covered;
    size_t n;
    km_radix_node *la = km_radix_add(&t, &(km_radix_key){0, 0, a, 4}, &ha, &covered, &displaced);
    km_radix_node *lc = km_radix_add(&t, &(km_radix_key){0, 0, c, 2}, &hc, &covered, &displaced);
    km_radix_node *lb = km_radix_add(&t, &(km_radix_key){0, 0, b, 4}, &hb, &covered, &displaced);
    assert_ptr_equal(km_radix_oldest(&t, NULL, NULL), la);
    assert_ptr_equal(km_radix_oldest(&t, la, NULL), lc);
    assert_null(km_radix_cut(&t, la)); /* the other has what is above */
    assert_ptr_equal(km_radix_oldest(&t, NULL, &hc), lb);
    km_radix_node *shared = km_radix_cut(&t, lb);
    assert_non_null(shared);
    assert_int_equal(shared->end, 2);
    assert_ptr_equal(shared->holder, &hb);
    assert_ptr_equal(km_radix_oldest(&t, NULL, NULL), lc);
    assert_non_null(km_radix_find(&t, &(km_radix_key){0, 0, a, 4}, &n));
    assert_int_equal(n, 2);
    assert_null(km_radix_find(&t, &(km_radix_key){1, 0, a, 4}, &n)); /* another domain */
    assert_null(km_radix_find(&t, &(km_radix_key){0, 1, a, 4}, &n)); /* other adapters */
    km_radix_free(&t);
}

/* 4,000 prompts with 1,500 tokens in common. The time is told, not judged: speed is no unit test. */
static void a_lookup_does_not_look_at_every_entry(void **state) {
    (void)state;
    enum { ENTRIES = 4000, SHARED = 1500, ALL = 1600 };
    km_radix t = {0};
    static int32_t ids[ALL];
    void *displaced;
    bool covered;
    for (int i = 0; i < ENTRIES; i++) {
        for (int k = SHARED; k < ALL; k++) ids[k] = 1 + i * (k + 1) % 50000;
        ids[SHARED] = i;
        assert_non_null(
            km_radix_add(&t, &(km_radix_key){0, 0, ids, ALL}, &held[0], &covered, &displaced));
    }
    assert_int_equal(t.nodes, ENTRIES + 1);
    int64_t began = km_now_ns();
    for (int i = 0; i < ENTRIES; i++) {
        size_t n;
        ids[SHARED] = i;
        ids[SHARED + 1] = -1;
        km_radix_find(&t, &(km_radix_key){0, 0, ids, ALL}, &n);
        assert_int_equal(n, SHARED + 1);
    }
    print_message("a lookup among %d: %lld ns\n", ENTRIES,
                  (long long)(km_now_ns() - began) / ENTRIES);
    km_radix_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_a_list_of_prompts_finds),
        cmocka_unit_test(is_whole_where_memory_runs_out),
        cmocka_unit_test(the_least_recently_used_leaf_goes_first),
        cmocka_unit_test(a_lookup_does_not_look_at_every_entry),
    };
    int64_t before = km_alloc_live();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed || km_alloc_live() != before;
}

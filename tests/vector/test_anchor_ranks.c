/* Two ranks that share the vectors learn the anchors that one rank learns from all of them, and both
 * have the same ones; also when the shares are uneven, or one has none. */
#include "support/ranks.h"
#include "vector/anchors.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static km_ctx *ctx;
static km_comm *comm;
static int rank;

enum { N = 1500, D = 12, K = 30 };
static float x[N * D];

static void fill(void) {
    uint64_t s = 3;
    for (int i = 0; i < N * D; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = 5 * (float)sin((i / D % 35 + 1) * (i % D + 1)) + (float)(s >> 40) * 0x1p-23f - 1;
    }
}

static void same_for_shares(int64_t first, const km_anchor_options *o) {
    static float together[K * D], alone[K * D], other[K * D];
    int64_t from = rank ? first : 0, many = rank ? N - first : first;
    km_anchors a, b;
    km_error err = {0};
    assert_int_equal(km_anchors_train(ctx, x + from * D, many, D, o, comm, &a), KM_OK);
    assert_int_equal(km_anchors_train(ctx, x, N, D, o, NULL, &b), KM_OK);
    assert_int_equal(a.count, b.count);
    assert_true(fabs(a.energy - b.energy) <= 1e-4 * b.energy);
    km_anchors_read(ctx, &a, together);
    km_anchors_read(ctx, &b, alone);
    for (int64_t i = 0; i < a.count * D; i++)
        assert_true(fabs((double)together[i] - (double)alone[i]) <= 1e-3);
    for (int64_t i = 0; i < a.count * D; i++) other[i] = together[i];
    assert_int_equal(km_comm_broadcast(comm, 0, other, sizeof other, &err), KM_OK);
    assert_memory_equal(other, together, sizeof(float) * (size_t)(a.count * D));
    km_anchors_release(&a);
    km_anchors_release(&b);
}

static void two_ranks_learn_what_one_learns(void **state) {
    (void)state;
    km_anchor_options o = {.count = K, .training.rounds = 9, .seed = 5};
    static const int64_t shares[] = {N / 2, 100, N, 0};
    for (int i = 0; i < 4; i++) same_for_shares(shares[i], &o);
    o.lloyd = true;
    same_for_shares(700, &o);
    o.metric = KM_METRIC_COSINE;
    same_for_shares(700, &o);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_ranks_learn_what_one_learns)};
    int code = run_as_ranks(2);
    if (code >= 0) return code;
    km_error err = {0};
    ctx = km_ctx_new("cpu", 1);
    comm = km_comm_open("auto", ctx, &err);
    if (!comm) return fprintf(stderr, "%s\n", err.text), 1;
    rank = km_comm_rank(comm);
    if (km_comm_size(comm) != 2) return 1;
    fill();
    code = cmocka_run_group_tests(tests, NULL, NULL);
    if (code == 0) km_comm_close(comm);
    km_ctx_free(ctx);
    return code;
}

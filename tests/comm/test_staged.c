/* Two ranks whose tensors are on a GPU, over MPI: the bytes pass through pinned memory that is used
 * again, errors of the driver leave nothing behind, and a graph refuses what it cannot hold. The
 * driver is a fake one, so this runs everywhere. */
#include "backend/fake_cuda.h"

#include "support/ranks.h"

static km_ctx *ctx;
static km_comm *comm;
static int rank;

enum { SIZE = 2, PART = 1000, ALL = SIZE * PART };

static void values(int r, float *v) {
    for (int i = 0; i < ALL; i++) v[i] = (float)(i % 251 + 1000 * r);
}

static km_tensor *mine(void) {
    float v[ALL];
    values(rank, v);
    return km_from_data(ctx, KM_F32, KM_SHAPE(ALL), v);
}

/* What op should leave at element i, or -1 where anything may be. */
static float wanted(km_comm_op op, int i) {
    float v[SIZE][ALL];
    for (int r = 0; r < SIZE; r++) values(r, v[r]);
    switch (op) {
    case KM_COMM_ALL_REDUCE: return v[0][i] + v[1][i];
    case KM_COMM_REDUCE_SCATTER: return i / PART == rank ? v[0][i] + v[1][i] : -1;
    case KM_COMM_ALL_GATHER: return v[i / PART][i];
    default: return v[0][i];
    }
}

static void check(km_comm_op op, km_tensor *t) {
    float v[ALL];
    assert_int_equal(km_read(ctx, t, v, sizeof v), KM_OK);
    for (int i = 0; i < ALL; i++) {
        float want = wanted(op, i);
        if (want >= 0) assert_true(v[i] == want);
    }
}

static void tensors_of_a_gpu_go_through_the_host(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int op = KM_COMM_ALL_REDUCE; op <= KM_COMM_BROADCAST; op++) {
            km_tensor *t = mine();
            assert_int_equal(km_comm_run(ctx, comm, (km_comm_op)op, t), KM_OK);
            check((km_comm_op)op, t);
            km_step_end(ctx);
        }
}

static void several_at_once_have_memory_of_their_own_and_it_is_used_again(void **state) {
    enum { JOBS = 5 };
    (void)state;
    long held = 0;
    for (int round = 0; round < 3; round++) {
        km_tensor *t[JOBS];
        km_comm_work *w[JOBS];
        for (int k = 0; k < JOBS; k++) {
            t[k] = mine();
            w[k] = km_comm_start(ctx, comm, (km_comm_op)(k % 4), t[k]);
        }
        for (int k = 0; k < JOBS; k++) {
            assert_int_equal(km_comm_wait(ctx, comm, w[k]), KM_OK);
            check((km_comm_op)(k % 4), t[k]);
        }
        km_step_end(ctx);
        if (round == 0) held = fake.host_blocks;
    }
    assert_int_equal(fake.host_blocks, held);
}

static void a_failing_copy_is_an_error_and_the_next_one_works(void **state) {
    (void)state;
    static const char *const calls[] = {"copy_out", "event_record", "copy_in"};
    for (int k = 0; k < 3; k++) {
        km_tensor *t = mine();
        km_comm_run(ctx, comm, KM_COMM_ALL_REDUCE, t);
        t = mine();
        km_cuda_fault(calls[k], 0, KM_CU_INVALID_VALUE);
        assert_int_equal(km_comm_run(ctx, comm, KM_COMM_ALL_REDUCE, t), KM_ERR_GPU);
        km_cuda_fault(NULL, -1, 0);
        km_ctx_clear_error(ctx);
        t = mine();
        assert_int_equal(km_comm_run(ctx, comm, KM_COMM_ALL_REDUCE, t), KM_OK);
        check(KM_COMM_ALL_REDUCE, t);
        km_step_end(ctx);
    }
}

static void sending(km_ctx *c, void *t) { km_comm_run(c, comm, KM_COMM_ALL_REDUCE, t); }

static void a_graph_cannot_hold_it(void **state) {
    (void)state;
    km_tensor *t = km_keep(ctx, mine());
    km_graph *g = NULL;
    assert_false(km_comm_capturable(comm));
    assert_int_equal(km_graph_run(ctx, &g, 1, sending, t), KM_OK);
    assert_int_equal(km_graph_run(ctx, &g, 1, sending, t), KM_ERR_STATE);
    assert_non_null(strstr(km_ctx_error(ctx), "graph"));
    km_ctx_clear_error(ctx);
    km_graph_free(g);
    km_release(t);
    km_step_end(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_of_a_gpu_go_through_the_host),
        cmocka_unit_test(several_at_once_have_memory_of_their_own_and_it_is_used_again),
        cmocka_unit_test(a_failing_copy_is_an_error_and_the_next_one_works),
        cmocka_unit_test(a_graph_cannot_hold_it),
    };
    int code = run_as_ranks(SIZE);
    if (code >= 0) return code;
    km_error err = {0};
    void *state = NULL;
    if (fake_open(&state) != 0) return 1;
    ctx = km_ctx_new("cuda:0", 1);
    comm = ctx ? km_comm_open("auto", ctx, &err) : NULL;
    if (!comm || strcmp(km_comm_name(comm), "mpi") != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rank = km_comm_rank(comm);
    code = cmocka_run_group_tests(tests, NULL, NULL);
    if (code) return code; /* a rank that failed must not wait for the others */
    km_comm_close(comm);
    km_ctx_free(ctx);
    return fake_close(&state);
}

/* Two ranks over MPI: sums, parts and copies arrive where they should, with the same bits each time,
 * and several jobs at once stay in order. */
#include "support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static km_ctx *ctx;
static km_comm *comm;
static int rank, size;

static const km_dtype dtypes[] = {KM_F32, KM_F16, KM_BF16};

static float value(int r, int64_t i) { return (float)sin(i * 7 + r * 13) * (float)(1 + r); }

static float rounded(km_dtype d, float v) {
    if (d == KM_F32) return v;
    return d == KM_F16 ? km_f16_to_f32(km_f32_to_f16(v)) : km_bf16_to_f32(km_f32_to_bf16(v));
}

/* What rank r starts with. */
static km_tensor *filled(km_dtype d, int64_t n, int r) {
    float *v = malloc(sizeof *v * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) v[i] = value(r, i);
    km_tensor *t = km_cast(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(n), v), d);
    free(v);
    return km_copy(ctx, t);
}

static void read_all(km_tensor *t, float *v) {
    km_read(ctx, km_cast(ctx, t, KM_F32), v, sizeof *v * (size_t)km_tensor_count(t));
}

static float sum_at(km_dtype d, int64_t i) {
    float s = 0;
    for (int r = 0; r < size; r++) s = r ? s + rounded(d, value(r, i)) : rounded(d, value(r, i));
    return rounded(d, s);
}

static void sums_are_taken_in_the_order_of_the_ranks(void **state) {
    static const int64_t sizes[] = {0, 1, 2, 3, 1000, 100003};
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int k = 0; k < 6; k++) {
            int64_t n = sizes[k];
            km_tensor *t = filled(dtypes[d], n, rank);
            assert_int_equal(km_comm_run(ctx, comm, KM_COMM_ALL_REDUCE, t), KM_OK);
            float *v = malloc(sizeof *v * (size_t)(n + 1));
            read_all(t, v);
            for (int64_t i = 0; i < n; i++) assert_true(v[i] == sum_at(dtypes[d], i));
            free(v);
            km_step_end(ctx);
        }
}

static void each_rank_gets_the_sum_of_its_part(void **state) {
    enum { PART = 4099 };
    (void)state;
    for (int d = 0; d < 3; d++) {
        km_tensor *t = filled(dtypes[d], (int64_t)PART * size, rank);
        assert_int_equal(km_comm_run(ctx, comm, KM_COMM_REDUCE_SCATTER, t), KM_OK);
        float *v = malloc(sizeof *v * PART * (size_t)size);
        read_all(t, v);
        for (int64_t i = PART * rank; i < PART * (rank + 1); i++)
            assert_true(v[i] == sum_at(dtypes[d], i));
        free(v);
        km_step_end(ctx);
    }
}

static void all_ranks_get_all_parts(void **state) {
    enum { PART = 513 };
    (void)state;
    km_tensor *t = filled(KM_BF16, (int64_t)PART * size, rank);
    assert_int_equal(km_comm_run(ctx, comm, KM_COMM_ALL_GATHER, t), KM_OK);
    float *v = malloc(sizeof *v * PART * (size_t)size);
    read_all(t, v);
    for (int64_t i = 0; i < PART * size; i++)
        assert_true(v[i] == rounded(KM_BF16, value((int)(i / PART), i)));
    free(v);
    km_step_end(ctx);
}

static void what_rank_0_has_all_get(void **state) {
    (void)state;
    float v[77];
    km_tensor *t = filled(KM_F32, 77, rank);
    assert_int_equal(km_comm_run(ctx, comm, KM_COMM_BROADCAST, t), KM_OK);
    read_all(t, v);
    for (int i = 0; i < 77; i++) assert_true(v[i] == value(0, i));
    km_step_end(ctx);
}

static void jobs_under_way_do_not_mix(void **state) {
    enum { JOBS = 20 };
    (void)state;
    km_tensor *t[JOBS];
    km_comm_work *w[JOBS];
    for (int k = 0; k < JOBS; k++) {
        t[k] = filled(dtypes[k % 3], 1000 + k, rank);
        w[k] = km_comm_start(ctx, comm, KM_COMM_ALL_REDUCE, t[k]);
        assert_non_null(w[k]);
    }
    for (int k = JOBS - 1; k >= 0; k--) assert_int_equal(km_comm_wait(ctx, comm, w[k]), KM_OK);
    for (int k = 0; k < JOBS; k++) {
        float v[1000 + JOBS];
        read_all(t[k], v);
        for (int i = 0; i < 1000 + k; i++) assert_true(v[i] == sum_at(dtypes[k % 3], i));
    }
    km_step_end(ctx);
}

/* What the calling thread sends itself does not overtake what it handed over before. */
static void a_sum_at_once_waits_for_those_under_way(void **state) {
    (void)state;
    for (int k = 0; k < 30; k++) {
        static float v[70000];
        km_tensor *first = filled(KM_F32, 70000, rank), *then = filled(KM_F32, 100, rank);
        km_comm_work *w = km_comm_start(ctx, comm, KM_COMM_ALL_REDUCE, first);
        double x = rank;
        assert_int_equal(km_comm_run(ctx, comm, KM_COMM_ALL_REDUCE, then), KM_OK);
        assert_int_equal(km_comm_sum(comm, &x, 1, NULL), KM_OK);
        assert_int_equal(km_comm_wait(ctx, comm, w), KM_OK);
        read_all(first, v);
        for (int i = 0; i < 70000; i++) assert_true(v[i] == sum_at(KM_F32, i));
        read_all(then, v);
        for (int i = 0; i < 100; i++) assert_true(v[i] == sum_at(KM_F32, i));
        assert_true(x == 1);
        km_step_end(ctx);
    }
}

typedef struct looped {
    km_tensor *x, *y;
    int runs;
} looped;

static void double_and_sum(km_ctx *c, void *user) {
    looped *l = user;
    km_tensor *t = km_mul_scalar(c, l->x, 2);
    km_comm_run(c, comm, KM_COMM_ALL_REDUCE, t);
    km_assign(c, l->y, t);
    l->runs++;
}

static void a_captured_step_sums_over_the_ranks_each_time(void **state) {
    (void)state;
    if (!ctx->device->host) skip();
    looped l = {km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3))),
                km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3))), 0};
    km_graph *g = NULL;
    for (int k = 0; k < 6; k++) {
        float x[3] = {(float)k, (float)(10 * rank), 1}, y[3];
        km_write(ctx, l.x, x, sizeof x);
        assert_int_equal(km_graph_run(ctx, &g, 1, double_and_sum, &l), KM_OK);
        km_read(ctx, l.y, y, sizeof y);
        assert_true(y[0] == (float)(4 * k) && y[1] == 20 && y[2] == 4);
    }
    assert_true(km_graph_captured(g));
    assert_int_equal(l.runs, 2); /* as it is, and captured; the rest was replayed */
    km_graph_free(g);
    km_release(l.x);
    km_release(l.y);
    km_step_end(ctx);
}

static void host_memory_travels_too(void **state) {
    (void)state;
    double x[2] = {rank + 1, 0.1};
    char text[8] = "";
    if (rank == size - 1) strcpy(text, "hello");
    assert_int_equal(km_comm_sum(comm, x, 2, NULL), KM_OK);
    assert_true(x[0] == size * (size + 1) / 2.0);
    assert_true(fabs(x[1] - 0.1 * size) < 1e-12);
    assert_int_equal(km_comm_broadcast(comm, size - 1, text, sizeof text, NULL), KM_OK);
    assert_string_equal(text, "hello");
    assert_int_equal(km_comm_barrier(comm, NULL), KM_OK);
}

static void what_does_not_split_is_refused(void **state) {
    (void)state;
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(size * 10 + 1));
    assert_null(km_comm_start(ctx, comm, KM_COMM_REDUCE_SCATTER, t));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_SHAPE);
    km_ctx_clear_error(ctx);
    km_tensor *turned = km_transpose(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(4, 6)), 0, 1);
    assert_null(km_comm_start(ctx, comm, KM_COMM_ALL_REDUCE, turned));
    km_ctx_clear_error(ctx);
    km_error err = {0};
    assert_null(km_comm_open("mpi", ctx, &err)); /* a second time */
    assert_int_equal(err.code, KM_ERR_STATE);
    km_step_end(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_taken_in_the_order_of_the_ranks),
        cmocka_unit_test(each_rank_gets_the_sum_of_its_part),
        cmocka_unit_test(all_ranks_get_all_parts),
        cmocka_unit_test(what_rank_0_has_all_get),
        cmocka_unit_test(jobs_under_way_do_not_mix),
        cmocka_unit_test(a_sum_at_once_waits_for_those_under_way),
        cmocka_unit_test(a_captured_step_sums_over_the_ranks_each_time),
        cmocka_unit_test(host_memory_travels_too),
        cmocka_unit_test(what_does_not_split_is_refused),
    };
    int code = run_as_ranks(2);
    if (code >= 0) return code;
    km_error err = {0};
    const char *device = getenv("KM_TEST_DEVICE"); /* "cuda": through the host's memory */
    ctx = km_ctx_new(device ? device : "cpu", 1);
    comm = km_comm_open("auto", ctx, &err);
    if (!comm) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    rank = km_comm_rank(comm);
    size = km_comm_size(comm);
    if (size != 2 || strcmp(km_comm_name(comm), "mpi") != 0) return 1;
    code = cmocka_run_group_tests(tests, NULL, NULL);
    if (code == 0) km_comm_close(comm); /* a rank that failed must not wait for the others */
    km_ctx_free(ctx);
    return code;
}

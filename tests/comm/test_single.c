/* One rank: every call is there and does nothing, and what is missing is said in one line. */
#include "comm/comm.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void use(km_ctx *ctx, km_comm *c) {
    float v[3] = {1, 2, 3};
    double x = 5;
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(3), v);
    assert_int_equal(km_comm_rank(c), 0);
    assert_int_equal(km_comm_size(c), 1);
    assert_string_equal(km_comm_name(c), "none");
    assert_true(km_comm_capturable(c));
    for (int op = KM_COMM_ALL_REDUCE; op <= KM_COMM_BROADCAST; op++)
        assert_int_equal(km_comm_run(ctx, c, (km_comm_op)op, t), KM_OK);
    km_read(ctx, t, v, sizeof v);
    assert_true(v[0] == 1 && v[2] == 3);
    assert_int_equal(km_comm_sum(c, &x, 1, NULL), KM_OK);
    assert_int_equal(km_comm_broadcast(c, 0, &x, sizeof x, NULL), KM_OK);
    assert_int_equal(km_comm_barrier(c, NULL), KM_OK);
    assert_true(x == 5);
    km_step_end(ctx);
}

static void one_rank_talks_to_nobody(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    static const char *const how[] = {"auto", "none"};
    for (int i = 0; i < 2; i++) {
        km_comm *c = km_comm_open(how[i], ctx, NULL);
        assert_non_null(c);
        use(ctx, c);
        km_comm_close(c);
    }
    use(ctx, NULL);
    km_comm_close(NULL);
    km_ctx_free(ctx);
}

static void what_is_missing_is_named(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    km_error err = {0};
    assert_null(km_comm_open("pigeons", ctx, &err));
    assert_int_equal(err.code, KM_ERR_RANGE);
    assert_non_null(strstr(err.text, "pigeons"));
    err = (km_error){0};
    assert_null(km_comm_open("nccl", ctx, &err)); /* no library, or no GPU in this context */
    assert_true(err.code == KM_ERR_UNSUPPORTED || err.code == KM_ERR_DEVICE);
    setenv("KERMES_MPI_MODULE", "/nowhere/kermes-mpi.so", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    err = (km_error){0};
    assert_null(km_comm_open("auto", ctx, &err));
    assert_int_equal(err.code, KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "/nowhere/kermes-mpi.so"));
    unsetenv("KERMES_MPI_MODULE");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    km_ctx_free(ctx);
}

static void mpirun_is_noticed_by_its_variables(void **state) {
    (void)state;
    assert_int_equal(km_comm_env_size(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_int_equal(km_comm_env_size(), 4);
    assert_int_equal(km_comm_env_rank(), 3);
    assert_int_equal(km_comm_env_local_rank(), 1);
    setenv("OMPI_COMM_WORLD_SIZE", "many", 1);
    assert_int_equal(km_comm_env_size(), 1);
    unsetenv("OMPI_COMM_WORLD_SIZE");
    setenv("PMI_SIZE", "2", 1);
    assert_int_equal(km_comm_env_size(), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_talks_to_nobody),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(mpirun_is_noticed_by_its_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Kernels of a user's own on a GPU: they get addresses and a stream on which all that was asked for
 * already lies, and their results go on as any other's. A made-up driver runs them. */
#include "fake_cuda.h"

#include "backend/backend.h"
#include "kermes.h"

#define N 37

static float value(int op, float a, float b, double f0, double f1) {
    return op == KM_OP_MUL          ? a * b
           : op == KM_OP_MUL_SCALAR ? a * (float)f0
           : op == KM_OP_NEG        ? -a
                                    : 0;
}

/* The user's kernel has its own name; those of Kermes that are used here run too. */
static void run_kernel(const fake_launch *w) {
    if (strcmp(w->kernel, "users_square") != 0) {
        fake_run_ops(w, value);
        return;
    }
    float *const *p = (float *const *)w->args;
    for (int i = 0; i < N; i++) p[1][i] = p[0][i] * p[0][i];
}

static int open_fake(void **state) { return fake_open_with(state, run_kernel); }
#define TEST(test) cmocka_unit_test_setup_teardown(test, open_fake, fake_close)

static km_tensor *square_forward(km_ctx *ctx, km_tensor *const *in, int n, void *user) {
    km_tensor *y = km_zeros(ctx, KM_F32, km_tensor_shape(in[0]));
    void *both[2] = {km_tensor_device_data(in[0]), km_tensor_device_data(y)};
    void *stream = km_ctx_stream(ctx);
    if (!both[0] || !both[1] || !stream) return NULL;
    fake_launch w = {.kernel = "users_square"};
    memcpy(w.args, both, sizeof both);
    fake.launches++;
    run_kernel(&w);
    return y;
}

static void a_kernel_of_ones_own_stands_between_others(void **state) {
    static const km_custom_op square = {"square", square_forward, NULL, NULL};
    km_ctx *ctx = km_ctx_new("cuda:0", 1);
    float v[N], y[N];
    for (int i = 0; i < N; i++) v[i] = (float)(i - 9);
    km_tensor *x = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(N), v));
    for (int round = 0; round < 3; round++) {
        km_tensor *half = km_mul_scalar(ctx, x, 0.5); /* held back until somebody asks */
        km_tensor *out = km_neg(ctx, km_custom(ctx, &square, &half, 1));
        assert_int_equal(km_read(ctx, out, y, sizeof y), KM_OK);
        for (int i = 0; i < N; i++) assert_true(y[i] == -(v[i] / 2) * (v[i] / 2));
        km_step_end(ctx);
    }
    km_release(x);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    km_ctx_free(ctx);
}

static void addresses_are_given_where_they_can_be_used(void **state) {
    km_ctx *ctx = km_ctx_new("cuda:0", 1), *cpu = km_ctx_new("cpu", 1);
    km_tensor *t = km_zeros(ctx, KM_F32, KM_SHAPE(4, 5)),
              *h = km_zeros(cpu, KM_F32, KM_SHAPE(4, 5));
    assert_null(km_tensor_data(t));
    char *at = km_tensor_device_data(t);
    assert_non_null(at);
    assert_ptr_equal(km_tensor_device_data(km_select(ctx, t, 0, 2)), at + 2 * 5 * sizeof(float));
    assert_null(km_tensor_device_data(km_select(ctx, t, 1, 2))); /* strided */
    assert_null(km_tensor_device_data(NULL));
    assert_ptr_equal(km_tensor_device_data(h), km_tensor_data(h));
    assert_null(km_ctx_stream(cpu));
    assert_int_equal(km_ctx_status(cpu), KM_OK);
    assert_null(km_ctx_stream(NULL));
    fake.current = 0;
    assert_non_null(km_ctx_stream(ctx));
    assert_int_equal(fake.current, 1); /* the GPU's context is the thread's */
    km_ctx_fail(ctx, KM_ERR_STATE, "something else");
    assert_null(km_ctx_stream(ctx));
    assert_null(km_tensor_device_data(t));
    km_ctx_free(ctx);
    km_ctx_free(cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_kernel_of_ones_own_stands_between_others),
        TEST(addresses_are_given_where_they_can_be_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

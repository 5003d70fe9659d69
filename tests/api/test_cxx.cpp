// kermes.h from C++: it compiles without warnings, shapes are written as in C, and an op of the
// user's own can be a lambda. No test framework, since a C++ program would use none of C's.
#include "kermes.h"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

static int failures = 0;

static void check(bool good, const char *what, int line) {
    if (good) return;
    std::fprintf(stderr, "line %d: %s\n", line, what);
    failures++;
}
#define CHECK(condition) check(condition, #condition, __LINE__)

static std::vector<float> values(km_ctx *ctx, const km_tensor *t) {
    std::vector<float> v(static_cast<size_t>(km_tensor_count(t)));
    km_read(ctx, t, v.data(), v.size() * sizeof(float));
    return v;
}

static void shapes_are_written_as_in_c() {
    km_shape s = KM_SHAPE(2, 3, 4);
    CHECK(s.ndim == 3 && s.dim[0] == 2 && s.dim[2] == 4);
    int64_t rows = 7;
    int columns = 5;
    s = KM_SHAPE(rows, columns);
    CHECK(s.ndim == 2 && s.dim[0] == 7 && s.dim[1] == 5);
    CHECK(KM_SCALAR.ndim == 0);
    CHECK(KM_SHAPE(1, 2, 3, 4, 5, 6).ndim == 6); // refused where it is used, and not cut
}

static void tensors_work(const char *device) {
    km_ctx *ctx = km_ctx_new(device, 1);
    CHECK(ctx != nullptr);
    std::vector<float> data = {1, 2, 3, 4, 5, 6};
    km_tensor *a = km_from_data(ctx, KM_F32, KM_SHAPE(2, 3), data.data());
    km_tensor *y = km_matmul(ctx, a, km_transpose(ctx, a, 0, 1));
    CHECK(km_ctx_status(ctx) == KM_OK);
    CHECK((values(ctx, y) == std::vector<float>{14, 32, 32, 77}));
    int axes[] = {-1};
    CHECK((values(ctx, km_sum(ctx, a, axes, 1, false)) == std::vector<float>{6, 15}));
    CHECK(km_zeros(ctx, KM_F32, KM_SHAPE(1, 2, 3, 4, 5, 6)) == nullptr);
    CHECK(km_ctx_status(ctx) == KM_ERR_SHAPE);
    CHECK(std::string(km_ctx_error(ctx)) == "full: 6 dimensions; 0 to 5 are possible");
    km_ctx_clear_error(ctx);
    km_step_end(ctx);
    km_ctx_free(ctx);
}

static void a_custom_op_can_be_made_of_lambdas() {
    km_ctx *ctx = km_ctx_new("ref", 1);
    km_custom_op cube = {};
    cube.name = "cube";
    cube.forward = [](km_ctx *c, km_tensor *const *in, int, void *) {
        return km_mul(c, in[0], km_mul(c, in[0], in[0]));
    };
    cube.backward = [](km_ctx *c, km_tensor *const *in, int, km_tensor *, km_tensor *dy,
                       km_tensor **grads, void *) {
        grads[0] = km_mul_scalar(c, km_mul(c, dy, km_mul(c, in[0], in[0])), 3);
    };
    double start[] = {2, -1};
    km_tensor *x = km_keep(ctx, km_from_data(ctx, KM_F64, KM_SHAPE(2), start));
    km_require_grad(ctx, x, true);
    km_tensor *inputs[] = {x};
    km_grad_report report;
    km_grad_fn fn = [](km_ctx *c, km_tensor *const *in, int n, void *op) {
        return km_custom(c, static_cast<km_custom_op *>(op), in, n);
    };
    CHECK(km_check_grad(ctx, fn, &cube, inputs, 1, 1e-6, &report) == KM_OK);
    CHECK(report.passed);
    km_backward(ctx, km_sum(ctx, km_custom(ctx, &cube, inputs, 1), nullptr, 0, false));
    double g[2] = {};
    CHECK(km_read(ctx, km_grad(x), g, sizeof g) == KM_OK);
    CHECK(g[0] == 12 && g[1] == 3);
    km_release(x);
    km_ctx_free(ctx);
}

static void texts_and_versions_agree() {
    CHECK(std::strcmp(km_version(), KM_VERSION) == 0);
    char text[32];
    std::snprintf(text, sizeof text, "%d.%d.%d", KM_VERSION_MAJOR, KM_VERSION_MINOR,
                  KM_VERSION_PATCH);
    CHECK(std::strcmp(text, KM_VERSION) == 0);
    CHECK(std::strcmp(km_status_name(KM_ERR_SHAPE), "ERR_SHAPE") == 0);
    CHECK(std::strcmp(km_dtype_name(KM_BF16), "bf16") == 0);
    CHECK(km_ctx_new("nowhere", 1) == nullptr);
    CHECK(std::strlen(km_last_error()) > 0);
}

int main() {
    shapes_are_written_as_in_c();
    tensors_work("ref");
    tensors_work("cpu");
    a_custom_op_can_be_made_of_lambdas();
    texts_and_versions_agree();
    return failures ? 1 : 0;
}

/* What tests of the engine share: a context per test on a device named in the test's row, a check
 * that nothing of it is left on the heap afterwards, and assertions on errors and elements. */
#ifndef KM_TESTS_SUPPORT_ENGINE_H
#define KM_TESTS_SUPPORT_ENGINE_H
#include "base/alloc.h"
#include "tensor/tensor.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static int64_t engine_live; /* heap blocks before the test's context was made */

static inline int engine_open(void **state) {
    const char *device = *state;
    engine_live = km_alloc_live();
    *state = km_ctx_new(device, 2);
    if (!*state) print_error("%s: %s\n", device, km_last_error());
    return *state ? 0 : -1;
}

static inline int engine_close(void **state) {
    km_alloc_fail_nth(-1);
    km_ctx *ctx = *state;
    bool host = ctx->device->host; /* a GPU keeps its modules and plans for the process's life */
    km_ctx_free(ctx);
    int64_t left = host ? km_alloc_live() - engine_live : 0;
    if (left) print_error("%lld heap blocks were left behind\n", (long long)left);
    return left ? -1 : 0;
}

/* A row of cmocka's table: the test on one device, or on both that are always there. */
#define ON(device, test)                                                                           \
    { #test " (" device ")", test, engine_open, engine_close, (void *)device }
#define ON_EACH(test) ON("ref", test), ON("cpu", test)

/* The context has no error. */
#define assert_ok(ctx)                                                                             \
    do {                                                                                           \
        if (km_ctx_status(ctx) != KM_OK) print_error("%s\n", km_ctx_error(ctx));                   \
        assert_int_equal(km_ctx_status(ctx), KM_OK);                                               \
    } while (0)

/* The context failed with just this; it is then usable again. */
#define assert_failed(ctx, code, text)                                                             \
    do {                                                                                           \
        assert_string_equal(km_ctx_error(ctx), text);                                              \
        assert_int_equal(km_ctx_status(ctx), code);                                                \
        km_ctx_clear_error(ctx);                                                                   \
    } while (0)

/* `call` gives NULL and fails the context with just this. */
#define assert_refused(ctx, call, code, text)                                                      \
    do {                                                                                           \
        const void *got_ = (call);                                                                 \
        assert_failed(ctx, code, text);                                                            \
        assert_null(got_);                                                                         \
    } while (0)

#define assert_shape(t, ...)                                                                       \
    do {                                                                                           \
        km_shape want_ = __VA_ARGS__;                                                              \
        char got_text_[KM_SHAPE_TEXT], want_text_[KM_SHAPE_TEXT];                                  \
        assert_non_null(t);                                                                        \
        assert_string_equal(km_shape_text(got_text_, km_tensor_shape(t)),                          \
                            km_shape_text(want_text_, want_));                                     \
    } while (0)

/* Element i, row-major, of a tensor of any dtype and strides. */
static inline double engine_element(km_ctx *ctx, km_tensor *t, int64_t i) {
    km_scope_begin(ctx);
    km_no_grad_begin(ctx);
    km_tensor *flat = km_reshape(ctx, t, KM_SHAPE(-1));
    double v = km_item(ctx, km_select(ctx, flat, 0, i));
    km_no_grad_end(ctx);
    km_scope_end(ctx, NULL);
    return v;
}

static inline bool engine_close_to(double a, double b, double tolerance) {
    double scale = a < 0 ? -a : a;
    double off = a - b < 0 ? b - a : a - b;
    return a == b || off <= tolerance * (scale > 1 ? scale : 1);
}

/* The elements, in order, are just these (to `tolerance`, relative to the larger of 1 and them). */
static inline void engine_check(km_ctx *ctx, km_tensor *t, const double *want, int64_t n,
                                double tolerance, const char *file, int line) {
    if (km_ctx_status(ctx) != KM_OK) print_error("%s\n", km_ctx_error(ctx));
    _assert_true(km_ctx_status(ctx) == KM_OK, "the context is sound", file, line);
    _assert_true(t != NULL, "there is a tensor", file, line);
    _assert_int_equal((uint64_t)km_tensor_count(t), (uint64_t)n, file, line);
    for (int64_t i = 0; i < n; i++) {
        double got = engine_element(ctx, t, i);
        if (engine_close_to(want[i], got, tolerance)) continue;
        print_error("element %lld is %.9g, not %.9g\n", (long long)i, got, want[i]);
        _fail(file, line);
    }
}
#define assert_elements(ctx, t, ...)                                                               \
    engine_check(ctx, t, (const double[]){__VA_ARGS__},                                            \
                 sizeof((double[]){__VA_ARGS__}) / sizeof(double), 0, __FILE__, __LINE__)
#define assert_elements_near(ctx, t, tolerance, ...)                                               \
    engine_check(ctx, t, (const double[]){__VA_ARGS__},                                            \
                 sizeof((double[]){__VA_ARGS__}) / sizeof(double), tolerance, __FILE__, __LINE__)

/* A temporary f32 tensor of the given elements. */
#define F32(ctx, shape, ...) km_from_data(ctx, KM_F32, shape, (const float[]){__VA_ARGS__})
#define I32(ctx, shape, ...) km_from_data(ctx, KM_I32, shape, (const int32_t[]){__VA_ARGS__})
/* 0, 1, 2, ... in a shape. */
static inline km_tensor *engine_range(km_ctx *ctx, km_dtype dtype, km_shape shape) {
    return km_reshape(ctx, km_arange(ctx, dtype, km_shape_count(shape), 0, 1), shape);
}

/* A parameter: kept, and recorded when used. */
static inline km_tensor *engine_parameter(km_ctx *ctx, km_tensor *t) {
    km_tensor *p = km_keep(ctx, t);
    assert_int_equal(km_require_grad(ctx, p, true), KM_OK);
    return p;
}

#endif

/* For tests of CPU kernels: runs a kernel beside the reference, whose results are kept in double,
 * and compares; runs a program's tests once per instruction set that this machine has. */
#ifndef KM_TESTS_BACKEND_CPU_TENSOR_H
#define KM_TESTS_BACKEND_CPU_TENSOR_H
#include "backend/cpu/cpu.h"
#include "ref_tensor.h"
#include "support/sanitized.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CT_EACH(type, name, ...)                                                                   \
    for (const type *name = (const type[]){__VA_ARGS__},                                           \
                    *name##_end = name + sizeof((type[]){__VA_ARGS__}) / sizeof(type);             \
         name < name##_end; name++)

static const km_dtype ct_floats[] = {KM_F32, KM_F16, KM_BF16};
#define CT_EACH_FLOAT(d)                                                                           \
    for (km_dtype d##_i = 0, d = ct_floats[0]; d##_i < 3; d##_i++, d = ct_floats[d##_i % 3])

static km_kernel ct_kernels[KM_OP_COUNT];
static km_threads *ct_threads;
static uint64_t ct_seed = 1;

/* Uniform in [-1, 1): the same numbers in every run. */
static inline double ct_random(void) {
    ct_seed = ct_seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(ct_seed >> 11) * 0x1p-52 - 1;
}

static inline km_tensor *ct_fill(km_dtype dtype, km_shape shape, double scale, double offset) {
    km_tensor *t = rt_new(dtype, shape);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, shape) km_ref_set(t, i, offset + scale * ct_random());
    return t;
}

/* Whole numbers in [0, limit). */
static inline km_tensor *ct_indices(km_dtype dtype, km_shape shape, int64_t limit) {
    km_tensor *t = rt_new(dtype, shape);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, shape) {
        ct_random();
        km_ref_set_int(t, i, (int64_t)(ct_seed >> 33) % limit);
    }
    return t;
}

static inline km_status ct_run(km_op op, const km_params *p, km_tensor *const *in, int n_in,
                               km_tensor *const *out, int n_out) {
    static const km_params none;
    km_call c = {.op = op, .n_in = n_in, .n_out = n_out, .in = in, .out = out, .p = p ? p : &none};
    rt_ctx.threads = ct_threads;
    return ct_kernels[op](&rt_ctx, &c);
}

/* Whether each element is within `ulps` steps of f32 and one rounding of its own dtype, or within
 * `abs`, of what is wanted. NaN and infinities must be the same. */
static inline void ct_assert_close(const char *what, const km_tensor *got, const km_tensor *want,
                                   double ulps, double abs) {
    double rounding = got->dtype == KM_F16 ? 0x1p-11 : got->dtype == KM_BF16 ? 0x1p-8 : 0x1p-24;
    double rel = rounding + ulps * 0x1p-23;
    if (got->dtype == KM_F16) abs += 0x1p-24;
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, want->shape) {
        double g = km_ref_get(got, i), w = km_ref_get(want, i);
        bool same = isnan(w) ? isnan(g) : isinf(w) ? g == w : fabs(g - w) <= rel * fabs(w) + abs;
        if (same) continue;
        fail_msg("%s (%s, %s): %.9g where %.9g is wanted, at (%lld, %lld, %lld)", what,
                 km_dtype_name(got->dtype), km_isa_name(km_cpu_isa()), g, w, (long long)i[0],
                 want->shape.ndim > 1 ? (long long)i[1] : 0,
                 want->shape.ndim > 2 ? (long long)i[2] : 0);
    }
}

static inline void ct_assert_same_bits(const char *what, const km_tensor *a, const km_tensor *b) {
    size_t bytes = (size_t)km_shape_count(a->shape) * km_dtype_size(a->dtype);
    if (bytes && memcmp(km_tensor_ptr(a), km_tensor_ptr(b), bytes))
        fail_msg("%s: bits differ", what);
}

/* Runs the kernel and the reference on the same inputs. The residual's sum is an output that the
 * norm is taken of, so the reference rounds that one as the kernel does. */
static inline void ct_check(const char *what, km_op op, const km_params *p, km_tensor *const *in,
                            int n_in, km_tensor *const *out, int n_out, double ulps, double abs) {
    km_tensor *want[KM_MAX_OUTPUTS] = {0};
    bool fused = op == KM_OP_ADD_LAYER_NORM || op == KM_OP_ADD_RMS_NORM;
    for (int i = 0; i < n_out; i++)
        want[i] = rt_copy(out[i], fused && i == 1 ? out[i]->dtype : KM_F64, false);
    assert_int_equal(rt_run(op, p, in, n_in, want, n_out), KM_OK);
    assert_int_equal(ct_run(op, p, in, n_in, out, n_out), KM_OK);
    for (int i = 0; i < n_out; i++) ct_assert_close(what, out[i], want[i], ulps, abs);
}

/* The outputs of the same call have the same bits with one thread and with four. */
static inline void ct_check_threads(const char *what, km_op op, const km_params *p,
                                    km_tensor *const *in, int n_in, km_tensor *const *out,
                                    int n_out) {
    km_tensor *other[KM_MAX_OUTPUTS] = {0};
    for (int i = 0; i < n_out; i++) other[i] = rt_copy(out[i], out[i]->dtype, false);
    km_threads *usual = ct_threads;
    ct_threads = NULL;
    km_status one = ct_run(op, p, in, n_in, out, n_out);
    ct_threads = km_threads_new(4);
    km_status four = ct_run(op, p, in, n_in, other, n_out);
    km_threads_free(ct_threads);
    ct_threads = usual;
    assert_int_equal(one, KM_OK);
    assert_int_equal(four, KM_OK);
    for (int i = 0; i < n_out; i++) ct_assert_same_bits(what, out[i], other[i]);
}

/* Runs the tests in a child process per instruction set, best first; gives main's exit code. */
static inline int ct_each_isa(int (*tests)(void), void (*add_kernels)(km_kernel *)) {
    int failed = 0;
    for (int isa = KM_ISA_COUNT - 1; isa >= 0; isa--) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setenv("KERMES_ISA", km_isa_name((km_isa)isa), 1); /* read once, in the child */
            if (km_cpu_isa() != (km_isa)isa) exit(77);         /* not on this machine */
            add_kernels(ct_kernels);
            ct_threads = km_threads_new(2);
            int status = tests();
            km_threads_free(ct_threads);
            exit(status != 0);
        }
        int status = 1;
        if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
            WEXITSTATUS(status) == 77)
            continue;
        if (child < 0 || status != 0) {
            fprintf(stderr, "failed with %s\n", km_isa_name((km_isa)isa));
            failed = 1;
        }
        if (THREADS_SANITIZED) break; /* threads share the work alike, whatever the instructions */
    }
    return failed;
}

#endif

/* The vector functions against libm in double, on every instruction set this machine runs: bit
 * patterns from all over the floats, a dense walk where the functions bend, and special values. */
#include "backend/cpu/simd/vmath_rows.h"
#include "base/alloc.h"
#include <math.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

#ifndef STEP
#define STEP 4093 /* between bit patterns: about a million of them */
#endif
#define DENSE 200000
#define BLOCK 1000 /* not a multiple of any vector's width */

typedef void (*row_fn)(float *out, const float *x, int64_t n);

static int isa_count(void) {
#ifdef KM_ISA_ONLY_BASE
    return 1;
#else
    const km_cpu *c = km_cpu_info();
    bool avx2 = c->avx2 && c->fma && c->f16c;
    return avx2 && c->avx512 ? 3 : avx2 ? 2 : 1;
#endif
}

static const km_vmath_rows *table(int isa) {
#ifdef KM_ISA_ONLY_BASE
    (void)isa;
    return &km_vmath_base;
#else
    return isa == 2 ? &KM_OF_AVX512(km_vmath) : isa == 1 ? &KM_OF_AVX2(km_vmath) : &km_vmath_base;
#endif
}

/* ---- What is right ---- */

static double ref_rsqrt(double x) { return 1 / sqrt(x); }
static double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double ref_silu(double x) { return x / (1 + exp(-x)); }
static double ref_gelu(double x) {
    return x / (1 + exp(-1.5957691216057307118 * (x + 0.044715 * x * x * x)));
}
static double ref_gelu_erf(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }

static double ref_silu_deriv(double x) {
    double s = ref_sigmoid(x);
    return s + (s == 0 || s == 1 ? 0 : x * s / (1 + exp(x)));
}
static double ref_gelu_deriv(double x) {
    double v = 1.5957691216057307118 * (x + 0.044715 * x * x * x);
    double dv = 1.5957691216057307118 * (1 + 3 * 0.044715 * x * x), s = ref_sigmoid(v);
    return s + (fabs(v) > 700 ? 0 : x * s / (1 + exp(v)) * dv);
}
static double ref_gelu_erf_deriv(double x) {
    double density = 0.39894228040143267794 * exp(-0.5 * x * x);
    return 0.5 * erfc(-x * 0.70710678118654752440) + (density == 0 ? 0 : x * density);
}

/* |got - want| in units of the last place of a float near want, or near `floor` if that is
 * larger. Both NaN, or equal infinities, count as no error. */
static double ulps(float got, double want, double floor) {
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (isnan(got)) return INFINITY;
    float rounded = (float)want;
    if (isinf(rounded))
        return got == rounded                               ? 0
               : isinf(want)                                ? INFINITY
               : got == copysignf(0x1.fffffep127f, rounded) ? 1
                                                            : INFINITY;
    if (isinf(got)) return fabs(want) > 0x1.ffffffp127 - 0x1p103 ? 1 : INFINITY;
    double scale = fmax(fabs(want), floor);
    int e = scale < 0x1p-126 ? -126 : ilogb(scale);
    return fabs(got - want) / ldexp(1, e - 23);
}

/* ---- Walking the floats ---- */

typedef struct subject {
    const char *name;
    size_t field; /* offset in km_vmath_rows */
    double (*ref)(double);
    double bound; /* largest error allowed, in ulp */
    double floor; /* below this size the error counts as at it: for functions that cross zero */
    float reach;  /* the dense walk covers [-reach, reach] */
} subject;

typedef struct worst {
    double error;
    float x, got;
    double want;
} worst;

static void check_block(const subject *s, const float *x, int n, worst w[3]) {
    float out[BLOCK];
    double want[BLOCK];
    for (int i = 0; i < n; i++) want[i] = s->ref((double)x[i]);
    for (int isa = 0; isa < isa_count(); isa++) {
        row_fn fn;
        memcpy(&fn, (const char *)table(isa) + s->field, sizeof fn);
        fn(out, x, n);
        for (int i = 0; i < n; i++) {
            double e = ulps(out[i], want[i], s->floor);
            if (e > w[isa].error) w[isa] = (worst){e, x[i], out[i], want[i]};
        }
    }
}

static void check(const subject *s) {
    static const float special[] = {0.0f,
                                    -0.0f,
                                    1.0f,
                                    -1.0f,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    0x1p-149f,
                                    -0x1p-149f,
                                    0x1p-126f,
                                    -0x1p-126f,
                                    0x1.fffffep127f,
                                    -0x1.fffffep127f,
                                    88.72283f,
                                    88.72284f,
                                    -87.33654f,
                                    -103.9720f,
                                    -103.9721f,
                                    -103.28f,
                                    1e5f,
                                    100001.0f,
                                    -1e5f,
                                    3.14159265f,
                                    1.57079633f,
                                    355.0f,
                                    0.9f,
                                    0x1.fffffep-1f,
                                    0x1.000002p0f,
                                    0.70710678f,
                                    1.41421356f,
                                    16777216.0f};
    worst w[3] = {{0}};
    float x[BLOCK];
    int n = 0;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) x[n++] = special[i];
    for (uint64_t u = 0; u < (1ull << 32); u += STEP) {
        if (n == BLOCK) check_block(s, x, n, w), n = 0;
        x[n++] = km_bits_f32((uint32_t)u);
    }
    for (int i = 0; i <= DENSE; i++) {
        if (n == BLOCK) check_block(s, x, n, w), n = 0;
        x[n++] = (float)((2.0 * i / DENSE - 1) * (double)s->reach);
    }
    check_block(s, x, n, w);
    for (int isa = 0; isa < isa_count(); isa++) {
        if (w[isa].error > s->bound)
            print_error("%s (%s): %.3g ulp at %a (%.9g): got %.9g, want %.9g\n", s->name,
                        km_isa_name((km_isa)isa), w[isa].error, (double)w[isa].x, (double)w[isa].x,
                        (double)w[isa].got, w[isa].want);
        else
            print_message("%-14s %-6s %.3f ulp at %.9g\n", s->name, km_isa_name((km_isa)isa),
                          w[isa].error, (double)w[isa].x);
    }
    for (int isa = 0; isa < isa_count(); isa++) assert_true(w[isa].error <= s->bound);
}

#define FIELD(name) #name, offsetof(km_vmath_rows, name)

static void functions_are_within_two_ulp_of_libm_everywhere(void **state) {
    static const subject s[] = {
        {FIELD(exp), exp, 2, 0, 110},   {FIELD(expm1), expm1, 2, 0, 2},
        {FIELD(log), log, 2, 0, 4},     {FIELD(log1p), log1p, 2, 0, 2},
        {FIELD(sin), sin, 2, 0, 1e5f},  {FIELD(cos), cos, 2, 0, 1e5f},
        {FIELD(tanh), tanh, 2, 0, 10},  {FIELD(erf), erf, 2, 0, 4},
        {FIELD(sqrt), sqrt, 0.5, 0, 4}, {FIELD(rsqrt), ref_rsqrt, 2, 0, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) check(&s[i]);
}

/* Activations are x times a factor; where that factor is subnormal its digits are gone. */
#define SUBNORMAL 0x1p-119

static void activations_keep_their_digits_in_the_tails(void **state) {
    static const subject s[] = {
        {FIELD(sigmoid), ref_sigmoid, 4, 0, 110},
        {FIELD(silu), ref_silu, 4, SUBNORMAL, 110},
        {FIELD(gelu), ref_gelu, 4, SUBNORMAL, 12},
        {FIELD(gelu_erf), ref_gelu_erf, 5, SUBNORMAL, 15},
    };
    (void)state;
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) check(&s[i]);
}

static void derivatives_of_activations_are_close_everywhere(void **state) {
    static const subject s[] = {
        /* each crosses zero left of the origin */
        {FIELD(silu_deriv), ref_silu_deriv, 4, 0.25, 110},
        {FIELD(gelu_deriv), ref_gelu_deriv, 4, 0.25, 12},
        {FIELD(gelu_erf_deriv), ref_gelu_erf_deriv, 4, 0.25, 15},
    };
    (void)state;
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) check(&s[i]);
}

/* ---- Powers ---- */

static uint32_t next_random(uint64_t *s) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 32);
}

static void power_is_within_two_ulp_where_it_is_finite(void **state) {
    (void)state;
    uint64_t seed = 5;
    double error[3] = {0};
    for (int round = 0; round < 1000; round++) {
        float x[BLOCK], y[BLOCK], out[BLOCK];
        double want[BLOCK];
        for (int i = 0; i < BLOCK; i++) {
            /* Bases of all sizes; exponents that mostly leave the result finite. */
            x[i] = km_bits_f32(next_random(&seed) & 0x7fffffffu);
            double span = isfinite(x[i]) && x[i] > 0 ? 150 / (fabs(log2((double)x[i])) + 1e-3) : 1;
            y[i] = (float)(span * (next_random(&seed) * 0x1p-31 - 1));
            if (i % 4 == 0) x[i] = -x[i], y[i] = rintf(y[i]);
            want[i] = pow((double)x[i], (double)y[i]);
        }
        for (int isa = 0; isa < isa_count(); isa++) {
            table(isa)->pow(out, x, y, BLOCK);
            for (int i = 0; i < BLOCK; i++) error[isa] = fmax(error[isa], ulps(out[i], want[i], 0));
        }
    }
    for (int isa = 0; isa < isa_count(); isa++) {
        print_message("%-14s %-6s %.3f ulp\n", "pow", km_isa_name((km_isa)isa), error[isa]);
        assert_true(error[isa] < 2);
    }
}

static void power_treats_special_values_as_libm_does(void **state) {
    static const float v[] = {
        0.0f,  -0.0f,     1.0f,       -1.0f,          0.5f,          -0.5f,       2.0f,
        -2.0f, 3.0f,      -3.0f,      1.5f,           -2.5f,         INFINITY,    -INFINITY,
        NAN,   0x1p-149f, -0x1p-140f, 16777215.0f,    -16777215.0f,  16777216.0f, 3e9f,
        -3e9f, 1e38f,     -1e38f,     0x1.fffffep-1f, -0x1.000002p0f};
    enum { N = sizeof v / sizeof *v };
    (void)state;
    for (int isa = 0; isa < isa_count(); isa++) {
        for (int i = 0; i < N; i++) {
            float x[N], out[N];
            for (int j = 0; j < N; j++) x[j] = v[i];
            table(isa)->pow(out, x, v, N);
            for (int j = 0; j < N; j++) {
                double want = pow((double)v[i], (double)v[j]);
                bool ok = ulps(out[j], want, 0) < 2 &&
                          (isnan(want) || !signbit(out[j]) == !signbit(want));
                if (!ok)
                    print_error("pow(%g, %g) on %s: got %g, want %g\n", (double)v[i], (double)v[j],
                                km_isa_name((km_isa)isa), (double)out[j], want);
                assert_true(ok);
            }
        }
    }
}

static void odd_functions_keep_the_sign_of_zero(void **state) {
    (void)state;
    for (int isa = 0; isa < isa_count(); isa++) {
        const km_vmath_rows *t = table(isa);
        row_fn fn[] = {t->sin, t->tanh, t->erf, t->expm1, t->log1p, t->sqrt, t->gelu, t->silu};
        for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
            float x[2] = {0.0f, -0.0f}, out[2];
            fn[i](out, x, 2);
            assert_true(out[0] == 0 && !signbit(out[0]));
            assert_true(out[1] == 0 && signbit(out[1]));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_within_two_ulp_of_libm_everywhere),
        cmocka_unit_test(activations_keep_their_digits_in_the_tails),
        cmocka_unit_test(derivatives_of_activations_are_close_everywhere),
        cmocka_unit_test(power_is_within_two_ulp_where_it_is_finite),
        cmocka_unit_test(power_treats_special_values_as_libm_does),
        cmocka_unit_test(odd_functions_keep_the_sign_of_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

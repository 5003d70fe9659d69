/* Which core type OpenBLAS is told, and which it is not believed. */
#include "backend/cpu/blas.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const km_cpu wide = {.avx2 = true, .fma = true, .avx512 = true};
static const km_cpu usual = {.avx2 = true, .fma = true};
static const km_cpu old = {.arch = "x86-64"};

static void the_core_type_follows_from_the_features(void **state) {
    (void)state;
    assert_string_equal(km_blas_core_for(&wide), "SkylakeX");
    assert_string_equal(km_blas_core_for(&usual), "Haswell");
    assert_null(km_blas_core_for(&old));
}

static void kernels_older_than_the_cpu_are_seen(void **state) {
    (void)state;
    const char *lacks = "";
    assert_false(km_blas_core_suits("Prescott", &wide, &lacks));
    assert_string_equal(lacks, "AVX2");
    assert_false(km_blas_core_suits("prescott", &usual, NULL));
    assert_false(km_blas_core_suits("Sandybridge", &usual, NULL));
    assert_true(km_blas_core_suits("Prescott", &old, &lacks));
    assert_null(lacks);
    assert_false(km_blas_core_suits("Zen", &wide, &lacks));
    assert_string_equal(lacks, "AVX-512");
    assert_true(km_blas_core_suits("Zen", &usual, NULL));
    assert_true(km_blas_core_suits("SkylakeX", &wide, NULL));
    assert_true(km_blas_core_suits("SapphireRapids", &wide, NULL));
    assert_true(km_blas_core_suits("neoversen1", &old, NULL));
}

static void the_environment_is_left_as_it_was(void **state) {
    (void)state;
    unsetenv("OPENBLAS_CORETYPE");
    km_blas_available();
    assert_null(getenv("OPENBLAS_CORETYPE"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_core_type_follows_from_the_features),
        cmocka_unit_test(kernels_older_than_the_cpu_are_seen),
        cmocka_unit_test(the_environment_is_left_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Without a driver: what is said, and what works all the same. */
#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/info.h"
#include "backend/cuda/library.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

static int no_driver(void **state) { return setenv("KERMES_LIBCUDA", "/nowhere/libcuda.so.1", 1); }

static void a_missing_driver_is_named_and_there_are_no_devices(void **state) {
    km_error err = {0};
    assert_int_equal(km_cuda_device_count(), 0);
    assert_null(km_cuda_device(0, &err));
    assert_int_equal(err.code, KM_ERR_DEVICE);
    assert_says(err.text, "no NVIDIA driver");
    assert_says(err.text, "/nowhere/libcuda.so.1");
    assert_null(km_cuda_device(99, NULL)); /* nobody to tell */
}

static void a_library_that_is_no_driver_is_told_from_one(void **state) {
    km_error err = {0};
    setenv("KERMES_LIBCUDA", "libm.so.6", 1);
    assert_null(km_cuda_device(0, &err));
    assert_says(err.text, "lacks cuInit");
}

static void contexts_on_a_gpu_fail_and_others_work(void **state) {
    assert_null(km_ctx_new("cuda", 1));
    assert_says(km_last_error(), "no NVIDIA driver");
    assert_null(km_ctx_new("cuda:3", 1));
    assert_null(km_ctx_new("gpu", 1));
    static const char *const names[] = {"auto", "cpu", "ref"};
    for (int i = 0; i < 3; i++) {
        km_ctx *ctx = km_ctx_new(names[i], 1);
        assert_non_null(ctx);
        km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(10), 2);
        assert_true(km_item(ctx, km_sum(ctx, x, NULL, 0, false)) == 20);
        assert_null(km_to(ctx, x, "cuda:0"));
        assert_int_equal(km_ctx_status(ctx), KM_ERR_DEVICE);
        km_ctx_free(ctx);
    }
}

static void the_report_says_what_is_missing_and_what_works(void **state) {
    km_cuda_info info;
    km_cuda_info_get(&info);
    assert_false(info.driver);
    assert_int_equal(info.n_gpus, 0);
    assert_says(info.driver_note, "no NVIDIA driver");
    assert_says(info.summary, "everything runs on the CPU");
    assert_string_equal(info.cublaslt.name, "cuBLASLt");
    assert_true(info.cublaslt.note[0] != 0);
    assert_true(info.nccl.note[0] != 0);
    assert_true(info.kernels_note[0] != 0);
}

static void a_library_is_looked_for_in_the_folders_that_the_user_names(void **state) {
    int six[] = {6, 0}, none[] = {987, 986, 0};
    char note[256];
    setenv("KERMES_CUDA_LIBS", "/nowhere::/lib/x86_64-linux-gnu:/usr/lib64", 1);
    void *m = km_cuda_library_open("libm.so", six, note, sizeof note);
    assert_non_null(m);
    assert_says(note, "libm.so.6");
    assert_null(km_cuda_library_open("libm.so", none, note, sizeof note));
    assert_says(note, "libm.so.987 or .986 was not found");
    char small[8];
    assert_null(km_cuda_library_open("libm.so", none, small, sizeof small));
    assert_int_equal(strlen(small), 7);
    unsetenv("KERMES_CUDA_LIBS");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_missing_driver_is_named_and_there_are_no_devices, no_driver),
        cmocka_unit_test_setup(a_library_that_is_no_driver_is_told_from_one, no_driver),
        cmocka_unit_test_setup(contexts_on_a_gpu_fail_and_others_work, no_driver),
        cmocka_unit_test_setup(the_report_says_what_is_missing_and_what_works, no_driver),
        cmocka_unit_test_setup(a_library_is_looked_for_in_the_folders_that_the_user_names,
                               no_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

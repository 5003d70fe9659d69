/* Which device a name stands for that leaves the choice open, with devices that the test brings along. */
#include "backend/finders.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static km_device nvidia = {.name = "cuda:0"}, other = {.name = "vulkan:1"};
static bool has_cuda, has_vulkan, likely;
static int asked;

static km_device *find_cuda(km_error *err) {
    if (!has_cuda) km_error_set(err, KM_ERR_DEVICE, "no NVIDIA driver here");
    return has_cuda ? &nvidia : NULL;
}
static bool find_likely(void) { return likely; }
static km_device *find_vulkan(km_error *err) {
    asked++;
    if (!has_vulkan) km_error_set(err, KM_ERR_DEVICE, "only software");
    return has_vulkan ? &other : NULL;
}

static const km_device_finders fakes = {find_cuda, find_likely, find_vulkan};

static km_device *find(const char *name, bool cuda, bool vulkan, km_error *err) {
    has_cuda = cuda;
    has_vulkan = likely = vulkan;
    asked = 0;
    *err = (km_error){0};
    return km_device_find(name, err);
}

static void cuda_comes_before_vulkan(void **state) {
    static const char *const names[] = {"gpu", "auto", "metal"};
    km_error err;
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(find(names[i], true, true, &err), &nvidia);
        assert_int_equal(asked, 0);
        assert_ptr_equal(find(names[i], true, false, &err), &nvidia);
        assert_ptr_equal(find(names[i], false, true, &err), &other);
    }
}

static void without_a_gpu_auto_is_the_cpu_and_others_say_so(void **state) {
    km_error err;
    assert_ptr_equal(find("auto", false, false, &err), km_cpu_device());
    assert_int_equal(asked, 0); /* nothing looks like a GPU: the loader is left alone */
    likely = true;              /* something does, but it is none that can be used */
    assert_ptr_equal(km_device_find("auto", &err), km_cpu_device());
    assert_int_equal(asked, 1);
    assert_null(find("gpu", false, false, &err));
    assert_string_equal(err.text, "no NVIDIA driver here");
    assert_null(find("metal", false, false, &err));
    assert_non_null(strstr(err.text, "metal: Kermes has no Metal backend but Vulkan's (MoltenVK)"));
    assert_int_equal(err.code, KM_ERR_DEVICE);
}

static void names_of_one_device_choose_nothing(void **state) {
    km_error err;
    assert_ptr_equal(find("cpu", true, true, &err), km_cpu_device());
    assert_ptr_equal(find("ref", true, true, &err), km_ref_device());
    assert_null(find("vulkan:99", true, true, &err));
    assert_null(find("gpu:0", true, true, &err));
    assert_non_null(strstr(err.text, "no such device"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_comes_before_vulkan),
        cmocka_unit_test(without_a_gpu_auto_is_the_cpu_and_others_say_so),
        cmocka_unit_test(names_of_one_device_choose_nothing)};
    km_device_finders_set(&fakes);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

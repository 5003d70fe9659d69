/* Starting GPUs: each way in which a machine cannot, and two of them in one process. */
#include "fake_cuda.h"

#include "backend/cuda/info.h"

#define assert_says(text, part)                                                                    \
    do {                                                                                           \
        if (!strstr(text, part)) fail_msg("\"%s\" does not say \"%s\"", text, part);               \
    } while (0)

static const char *why_not(int index) {
    static km_error err;
    err = (km_error){0};
    assert_null(km_cuda_device(index, &err));
    assert_int_not_equal(err.code, KM_OK);
    return err.text;
}

static void an_old_driver_is_told_what_is_needed(void **state) {
    fake.version = 11040;
    assert_string_equal(why_not(0), "the NVIDIA driver is too old: it offers CUDA 11.4, and CUDA "
                                    "12.0 or newer is needed; update the driver");
    fake.version = 11080;
    fake.missing = "cuGraphExecUpdate_v2";
    assert_says(why_not(0), "lacks cuGraphExecUpdate_v2");
    assert_int_equal(km_cuda_device_count(), 0);
}

static void a_driver_that_does_not_start_says_why(void **state) {
    fake.init_result = KM_CU_NO_DEVICE;
    assert_says(why_not(0), "no NVIDIA GPU");
    fake.init_result = KM_CU_DRIVER_MISMATCH;
    assert_says(why_not(0), "reboot");
    fake.init_result = KM_CU_UNKNOWN;
    assert_says(why_not(0), "kernel module");
    fake.init_result = KM_CU_STUB_LIBRARY;
    assert_says(why_not(0), "stub");
}

static void a_driver_that_starts_later_is_used_then(void **state) {
    fake.init_result = KM_CU_NO_DEVICE;
    why_not(0);
    fake.init_result = KM_CU_OK;
    assert_non_null(km_cuda_device(0, NULL));
}

static void a_driver_without_gpus_says_so(void **state) {
    fake.devices = 0;
    assert_says(why_not(0), "no NVIDIA GPU here");
    assert_int_equal(km_cuda_device_count(), 0);
}

static void a_wrong_index_is_answered_with_the_list(void **state) {
    assert_string_equal(why_not(99), "cuda:99: no such device; this machine has 2 (cuda:0 Fake GPU "
                                     "0, cuda:1 Fake GPU 1)");
    fake.devices = 1;
    assert_string_equal(why_not(1),
                        "cuda:1: no such device; this machine has 1 (cuda:0 Fake GPU 0)");
    assert_says(why_not(-1), "cuda:-1: no such device");
}

static void an_old_chip_is_refused_and_the_other_one_used(void **state) {
    fake.cc[1] = 70;
    assert_says(why_not(1), "compute capability 7.0; 7.5 or newer is needed");
    assert_non_null(km_cuda_device(0, NULL));
    assert_int_equal(km_cuda_device_count(), 1);
}

static char noted[400];
static void note(void *user, km_log_level level, const char *line) {
    strncat(noted, line, sizeof noted - strlen(noted) - 2);
    strcat(noted, "\n");
}

static void gpu_and_metal_are_the_best_one_here_and_say_which(void **state) {
    noted[0] = 0;
    km_set_log(note, NULL);
    fake.cc[0] = 70; /* too old: the other one is the best */
    static const char *const names[] = {"gpu", "metal", "gpu", "metal", "auto"};
    for (int i = 0; i < 5; i++) {
        km_ctx *ctx = km_ctx_new(names[i], 1);
        assert_non_null(ctx);
        assert_string_equal(km_last_error(), "");
        assert_string_equal(km_ctx_device(ctx), "cuda:1");
        km_ctx_free(ctx);
    }
    km_set_log(NULL, NULL);
    assert_string_equal(noted, "gpu is cuda:1 here\nmetal is cuda:1 here\n");
}

static void metal_without_any_accelerator_says_what_is_missing(void **state) {
    fake.devices = 0;
    assert_null(km_ctx_new("metal", 1));
    assert_string_equal(
        km_last_error(),
        "metal: Kermes has no Metal backend but Vulkan's (MoltenVK), and there is no "
        "accelerator here: no NVIDIA GPU here: the driver shows none");
    fake.devices = 2;
    fake.cc[0] = fake.cc[1] = 70;
    assert_null(km_ctx_new("metal", 1));
    assert_says(km_last_error(), "cuda:0 (Fake GPU 0) has compute capability 7.0");
}

static void kernels_that_do_not_fit_the_chip_or_the_driver_are_told_apart(void **state) {
    fake.load_result = KM_CU_NO_BINARY;
    assert_says(why_not(0), "KERMES_CUDA_ARCHS=native");
    assert_says(why_not(0), "9.0");
    fake.load_result = KM_CU_NEW_PTX;
    assert_says(why_not(0), "older than the compiler");
    fake.load_result = KM_CU_OUT_OF_MEMORY;
    assert_says(why_not(0), "loading the kernels fill.cu");
    assert_int_equal(fake.contexts, 0);
}

static void two_gpus_work_in_one_process(void **state) {
    km_device *a = km_cuda_device(0, NULL), *b = km_cuda_device(1, NULL);
    assert_string_equal(a->name, "cuda:0");
    assert_string_equal(b->name, "cuda:1");
    assert_ptr_equal(km_cuda_device(0, NULL), a);
    assert_int_equal(fake.contexts, 2);
    km_ctx *x = km_ctx_new("cuda:0", 1), *y = km_ctx_new("cuda:1", 1);
    float one[4] = {1, 2, 3, 4}, back[4];
    km_tensor *s = km_from_data(x, KM_F32, KM_SHAPE(4), one);
    assert_int_equal(fake.current, 1);
    km_tensor *t = km_from_data(y, KM_F32, KM_SHAPE(4), one);
    assert_int_equal(fake.current, 2);
    km_read(x, s, back, sizeof back);
    assert_int_equal(fake.current, 1);
    assert_memory_equal(one, back, sizeof back);
    assert_string_equal(km_tensor_device(t), "cuda:1");
    /* A tensor goes from one to the other. */
    km_tensor *moved = km_to(x, s, "cuda:1");
    assert_string_equal(km_tensor_device(moved), "cuda:1");
    memset(back, 0, sizeof back);
    km_read(x, moved, back, sizeof back);
    assert_memory_equal(one, back, sizeof back);
    km_ctx_free(x);
    km_ctx_free(y);
}

static void the_report_shows_every_gpu_and_why_one_cannot_be_used(void **state) {
    km_cuda_info info;
    fake.cc[1] = 70;
    km_cuda_info_get(&info);
    assert_true(info.driver && info.kernels);
    assert_int_equal(info.cuda_major, 13);
    assert_int_equal(info.n_gpus, 2);
    assert_true(info.gpu[0].usable);
    assert_string_equal(info.gpu[0].name, "Fake GPU 0");
    assert_int_equal(info.gpu[0].cc_major, 9);
    assert_int_equal(info.gpu[0].multiprocessors, 4);
    assert_int_equal(info.gpu[0].memory_total, 64 << 20);
    assert_int_equal(info.gpu[0].memory_free, 64 << 20);
    assert_false(info.gpu[1].usable);
    assert_says(info.gpu[1].note, "compute capability 7.0");
    assert_string_equal(info.summary, "1 GPU ready");
}

static void every_call_of_the_start_may_fail_without_leaving_anything(void **state) {
    bool started = false;
    for (int nth = 0; nth < 100 && !started; nth++) {
        km_cuda_fault("*", nth, KM_CU_INVALID_VALUE);
        km_error err = {0};
        started = km_cuda_device(0, &err) != NULL;
        km_cuda_fault(NULL, -1, 0);
        if (!started) {
            assert_true(err.text[0] != 0);
            assert_int_equal(fake.contexts + fake.modules, 0);
        }
    }
    assert_true(started);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FAKE(an_old_driver_is_told_what_is_needed),
        FAKE(a_driver_that_does_not_start_says_why),
        FAKE(a_driver_that_starts_later_is_used_then),
        FAKE(a_driver_without_gpus_says_so),
        FAKE(a_wrong_index_is_answered_with_the_list),
        FAKE(an_old_chip_is_refused_and_the_other_one_used),
        FAKE(gpu_and_metal_are_the_best_one_here_and_say_which),
        FAKE(metal_without_any_accelerator_says_what_is_missing),
        FAKE(kernels_that_do_not_fit_the_chip_or_the_driver_are_told_apart),
        FAKE(two_gpus_work_in_one_process),
        FAKE(the_report_shows_every_gpu_and_why_one_cannot_be_used),
        FAKE(every_call_of_the_start_may_fail_without_leaving_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Vulkan devices: opening, memory, copies, what is said when something fails, and that the CPU goes on.
 * The tests of failures come last: a lost device stays lost. */
#include "live_vulkan.h"
#include "tensor/tensor.h"
#include "backend/vulkan/dev.h"
#include "backend/vulkan/modules.h"
#include <dirent.h>
#include <unistd.h>

static km_vulkan_dev *dev(void) { return km_vulkan_device(0, NULL)->impl; }

/* ---- Memory and copies ---- */

static void what_is_written_comes_back(void **state) {
    enum { N = 3 << 20 }; /* more than a frame's staging memory */
    float *data = malloc(sizeof *data * N), *back = malloc(sizeof *back * N);
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    assert_non_null(ctx);
    assert_string_equal(km_ctx_device(ctx), VULKAN);
    for (int i = 0; i < N; i++) data[i] = (float)(i % 1013) - 500;
    km_tensor *x = km_keep_data(ctx, KM_F32, KM_SHAPE(N), data);
    km_read(ctx, x, back, sizeof *back * N);
    assert_string_equal(km_ctx_error(ctx), "");
    assert_memory_equal(data, back, sizeof *back * N);
    /* Small ones, behind work that still goes on. */
    for (int i = 0; i < 50; i++) {
        km_tensor *y = km_add(ctx, x, x);
        km_tensor *s = km_from_data(ctx, KM_F32, KM_SHAPE(4), data + i);
        km_tensor *t = km_add(ctx, km_slice(ctx, y, 0, i, i + 4, 1), s);
        km_read(ctx, t, back, 16);
        assert_string_equal(km_ctx_error(ctx), "");
        for (int k = 0; k < 4; k++) assert_true(back[k] == 3 * data[i + k]);
        km_step_end(ctx);
    }
    free(data);
    free(back);
    km_release(x);
    km_ctx_free(ctx);
}

static void a_context_gives_all_memory_back(void **state) {
    size_t before = atomic_load(&dev()->held);
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    km_zeros(ctx, KM_F32, KM_SHAPE(1 << 20));
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_true(atomic_load(&dev()->held) > before);
    km_ctx_free(ctx);
    assert_int_equal(atomic_load(&dev()->held), before);
}

static void a_step_allocates_nothing_the_second_time(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    uint64_t misses = 0;
    for (int i = 0; i < 4; i++) {
        km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(64, 64), 2);
        assert_true(km_item(ctx, km_sum(ctx, km_matmul(ctx, x, x), NULL, 0, false)) == 1048576);
        km_step_end(ctx);
        if (i == 1) misses = km_ctx_stats(ctx).pool_misses;
    }
    assert_int_equal(km_ctx_stats(ctx).pool_misses, misses);
    assert_int_equal(km_ctx_stats(ctx).fallbacks, 0);
    km_ctx_free(ctx);
}

static void too_much_memory_is_an_error_that_passes(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    assert_null(km_zeros(ctx, KM_F32, KM_SHAPE((int64_t)1 << 38)));
    assert_int_equal(km_ctx_status(ctx), KM_ERR_MEMORY);
    km_ctx_clear_error(ctx);
    km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(10), 2);
    assert_true(km_item(ctx, km_sum(ctx, x, NULL, 0, false)) == 20);
    km_ctx_free(ctx);
}

static void long_work_is_cut_into_submissions(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(512, 512), 1);
    km_tensor *y = km_matmul(ctx, x, x);
    assert_int_equal(ctx->lanes[0]->device->ops->sync(ctx->lanes[0]), KM_OK);
    assert_true(km_vulkan_queue_of(ctx->lanes[0])->submissions > 1);
    float row[512];
    assert_int_equal(km_read(ctx, km_slice(ctx, y, 0, 511, 512, 1), row, sizeof row), KM_OK);
    for (int i = 0; i < 512; i++) assert_true(row[i] == 512);
    km_ctx_free(ctx);
}

/* ---- Shaders ---- */

/* Used only where a device has what they ask for (layers.c). */
static bool is_optional(const km_vulkan_module *m) {
    return strncmp(m->name, "layer_matrix", 12) == 0 || strncmp(m->name, "layer_stream", 12) == 0;
}

/* A device need not have numbers of 8 and 16 bits, of 64, nor more than 16 KiB of shared memory. */
static void shaders_ask_for_nothing_that_a_device_may_lack(void **state) {
    static const uint32_t fine[] = {1 /* Shader */, 5347 /* physical addresses */};
    uint64_t bytes = 0;
    for (int i = 0; i < km_vulkan_module_count; i++) {
        const km_vulkan_module *m = &km_vulkan_modules[i];
        bytes += m->bytes;
        assert_int_equal(m->code[0], 0x07230203);
        for (uint64_t at = 5; at < m->bytes / 4; at += m->code[at] >> 16) {
            assert_true(m->code[at] >> 16 > 0);
            if ((m->code[at] & 0xffff) != 17) continue; /* OpCapability */
            bool known = false;
            for (size_t k = 0; k < sizeof fine / sizeof *fine; k++)
                known |= m->code[at + 1] == fine[k];
            if (!known && !is_optional(m))
                fail_msg("%s asks for capability %u", m->name, m->code[at + 1]);
        }
    }
    assert_true(bytes < 4 << 20);
}

/* Bytes of shared memory that a module declares. Lengths that are specialisation constants count as the
 * shader sets them. */
static uint64_t shared_bytes(const km_vulkan_module *m) {
    uint32_t bound = m->code[3];
    uint64_t *size = calloc(bound, sizeof *size), *value = calloc(bound, sizeof *value), sum = 0;
    uint32_t *points_to = calloc(bound, sizeof *points_to);
    assert_true(size && value && points_to);
    for (uint64_t at = 5; at < m->bytes / 4; at += m->code[at] >> 16) {
        const uint32_t *w = m->code + at;
        switch (w[0] & 0xffff) {
        case 20: size[w[1]] = 4; break;                 /* OpTypeBool */
        case 21:                                        /* OpTypeInt */
        case 22: size[w[1]] = w[2] / 8; break;          /* OpTypeFloat */
        case 23: size[w[1]] = size[w[2]] * w[3]; break; /* OpTypeVector */
        case 28:                                        /* OpTypeArray */
            if (size[w[2]] && !value[w[3]]) fail_msg("%s: an array of unknown length", m->name);
            size[w[1]] = size[w[2]] * value[w[3]];
            break;
        case 32: points_to[w[1]] = w[3]; break; /* OpTypePointer */
        case 43:                                /* OpConstant */
        case 50: value[w[2]] = w[3]; break;     /* OpSpecConstant */
        case 52:                                /* OpSpecConstantOp: products and sums */
            if (w[3] == 132) value[w[2]] = value[w[4]] * value[w[5]];
            if (w[3] == 128) value[w[2]] = value[w[4]] + value[w[5]];
            break;
        case 59: sum += w[3] == 4 ? size[points_to[w[1]]] : 0; break; /* OpVariable, Workgroup */
        default: break;
        }
    }
    free(size);
    free(value);
    free(points_to);
    return sum;
}

static void shaders_fit_into_the_least_shared_memory(void **state) {
    uint64_t most = 0;
    for (int i = 0; i < km_vulkan_module_count; i++) {
        if (is_optional(&km_vulkan_modules[i])) continue;
        uint64_t bytes = shared_bytes(&km_vulkan_modules[i]);
        if (bytes > 16384)
            fail_msg("%s takes %llu bytes of shared memory", km_vulkan_modules[i].name,
                     (unsigned long long)bytes);
        if (bytes > most) most = bytes;
    }
    assert_true(most > 4096); /* the tiles of products are found */
}

/* ---- What is said ---- */

static void a_device_that_is_not_there_is_named(void **state) {
    km_error err = {0};
    assert_null(km_vulkan_device(7, &err));
    assert_says(err.text, "vulkan:7: no such device");
    assert_null(km_ctx_new("vulkan:7", 1));
    assert_null(km_ctx_new("vulkan:x", 1));
    assert_says(km_last_error(), "vulkan:x: no such device");
}

static void software_is_used_only_when_named(void **state) {
    km_vulkan_info info;
    km_vulkan_info_get(&info);
    assert_true(info.n > 0 && info.device[0].usable);
    assert_true(info.device[0].driver[0] && info.device[0].features[0] && info.device[0].memory);
    for (int i = 0; i < info.n; i++)
        if (!info.device[i].software) return;
    km_error err = {0};
    assert_null(km_vulkan_gpu(&err));
    assert_says(err.text, "only software");
    km_ctx *ctx = km_ctx_new("auto", 1);
    assert_non_null(ctx);
    assert_null(strstr(km_ctx_device(ctx), "vulkan"));
    km_ctx_free(ctx);
}

/* The same device twice, the second time as if it were a GPU. */
static PFN_vkGetPhysicalDeviceProperties2 real_properties;
static PFN_vkEnumeratePhysicalDevices real_list;
static int looks;
static VkResult VKAPI_PTR two_devices(VkInstance i, uint32_t *n, VkPhysicalDevice *list) {
    uint32_t one = 1;
    VkResult r = real_list(i, &one, list);
    list[1] = list[0];
    *n = 2;
    return r == VK_INCOMPLETE ? VK_SUCCESS : r;
}
static void VKAPI_PTR software_then_gpu(VkPhysicalDevice d, VkPhysicalDeviceProperties2 *p) {
    real_properties(d, p);
    p->properties.deviceType =
        looks++ ? VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU : VK_PHYSICAL_DEVICE_TYPE_CPU;
}

static void a_gpu_is_taken_before_software(void **state) {
    km_vk_api *api = (km_vk_api *)km_vulkan_api();
    km_error err = {0};
    real_properties = api->GetPhysicalDeviceProperties2;
    real_list = api->EnumeratePhysicalDevices;
    api->GetPhysicalDeviceProperties2 = software_then_gpu;
    api->EnumeratePhysicalDevices = two_devices;
    km_device *gpu = km_vulkan_gpu(&err);
    api->GetPhysicalDeviceProperties2 = real_properties;
    api->EnumeratePhysicalDevices = real_list;
    assert_non_null(gpu);
    assert_string_equal(gpu->name, "vulkan:1");
}

/* ---- The pipeline cache ---- */

static void in_cache(void (*each)(const char *path)) {
    char folder[300], path[600];
    snprintf(folder, sizeof folder, "%s/kermes", vulkan_cache_folder());
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (!strstr(e->d_name, ".cache")) continue;
        snprintf(path, sizeof path, "%s/%.200s", folder, e->d_name);
        each(path);
        n++;
    }
    closedir(d);
    assert_int_equal(n, 1);
}

static void damage(const char *path) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, -1, SEEK_END);
    int last = fgetc(f);
    fseek(f, -1, SEEK_END);
    fputc(last ^ 0x55, f);
    fclose(f);
}

static void cut(const char *path) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs("kmvk", f);
    fclose(f);
}

/* The device is opened once in a process, so that another one looks at the file. */
static void opens_all_the_same(const char *path) {
    char command[700];
    (void)path;
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    self[n] = 0;
    snprintf(command, sizeof command, "'%s' --opens", self);
    assert_int_equal(system(command), 0);
}

static void a_damaged_cache_does_no_harm(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1); /* closing it writes the cache */
    km_item(ctx, km_sum(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(3)), NULL, 0, false));
    km_ctx_free(ctx);
    in_cache(opens_all_the_same);
    in_cache(damage);
    in_cache(opens_all_the_same);
    in_cache(cut);
    in_cache(opens_all_the_same);
}

/* ---- Failures ---- */

static double sum_of_ten(km_ctx *ctx) {
    km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(10), 2);
    return km_item(ctx, km_sum(ctx, x, NULL, 0, false));
}

static void a_shader_that_fails_to_compile_sends_its_op_to_the_cpu(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    km_tensor *x = km_full(ctx, KM_F32, KM_SHAPE(10), 1);
    km_vulkan_fault("CreateComputePipelines", 0, VK_ERROR_UNKNOWN);
    assert_true(km_item(ctx, km_logsumexp(ctx, x, NULL, 0, false)) > 3.30);
    assert_int_equal(km_ctx_status(ctx), KM_OK);
    assert_int_equal(km_ctx_stats(ctx).failed_kernels, 1);
    km_ctx_free(ctx);
}

static void memory_that_the_driver_refuses_is_an_error_that_passes(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1);
    km_trim(ctx);
    for (int i = 0; i < 1; i++) {
        km_vulkan_fault("AllocateMemory", 0, VK_ERROR_OUT_OF_DEVICE_MEMORY);
        sum_of_ten(ctx); /* a smaller chunk is tried */
        km_vulkan_fault(NULL, -1, VK_SUCCESS);
        km_ctx_clear_error(ctx);
        assert_true(sum_of_ten(ctx) == 20);
    }
    km_ctx_free(ctx);
}

static void a_lost_device_is_told_and_the_cpu_goes_on(void **state) {
    km_ctx *ctx = km_ctx_new(VULKAN, 1), *cpu = km_ctx_new("cpu", 1);
    assert_true(sum_of_ten(ctx) == 20);
    km_step_end(ctx);
    km_vulkan_fault("QueueSubmit", 0, VK_ERROR_DEVICE_LOST);
    sum_of_ten(ctx);
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_says(km_ctx_error(ctx), "the device was lost");
    km_ctx_clear_error(ctx);
    sum_of_ten(ctx); /* again: it stays lost */
    assert_int_equal(km_ctx_status(ctx), KM_ERR_GPU);
    assert_says(km_ctx_error(ctx), "go on with cpu");
    km_ctx_free(ctx);
    assert_null(km_ctx_new(VULKAN, 1));
    km_vulkan_info info;
    km_vulkan_info_get(&info);
    assert_false(info.device[0].usable);
    assert_says(info.device[0].note, "was lost");
    assert_true(sum_of_ten(cpu) == 20);
    km_ctx_free(cpu);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--opens") == 0) {
        km_ctx *ctx = km_ctx_new(VULKAN, 1);
        bool ok = ctx && sum_of_ten(ctx) == 20;
        km_ctx_free(ctx);
        return ok ? 0 : 1;
    }
    if (vulkan_missing()) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(a_context_gives_all_memory_back),
        cmocka_unit_test(a_step_allocates_nothing_the_second_time),
        cmocka_unit_test(too_much_memory_is_an_error_that_passes),
        cmocka_unit_test(long_work_is_cut_into_submissions),
        cmocka_unit_test(shaders_ask_for_nothing_that_a_device_may_lack),
        cmocka_unit_test(shaders_fit_into_the_least_shared_memory),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
        cmocka_unit_test(software_is_used_only_when_named),
        cmocka_unit_test(a_gpu_is_taken_before_software),
        cmocka_unit_test(a_damaged_cache_does_no_harm),
        cmocka_unit_test(a_shader_that_fails_to_compile_sends_its_op_to_the_cpu),
        cmocka_unit_test(memory_that_the_driver_refuses_is_an_error_that_passes),
        cmocka_unit_test(a_lost_device_is_told_and_the_cpu_goes_on)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    vulkan_clean();
    return failed;
}

/* Finding and starting Vulkan devices. One that cannot be used is an error that names the reason: no
 * loader, no such index, too old a version, a feature that is missing, shaders that it refuses. */
#include "backend/vulkan/device.h"
#include "backend/vulkan/dev.h"
#include "backend/vulkan/modules.h"
#include "backend/vulkan/vulkan.h"
#include "base/alloc.h"
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static km_vulkan_dev *devices[KM_VULKAN_MAX_DEVICES];

bool km_vulkan_likely(void) {
#ifdef __APPLE__
    return true;
#else
    static const char *const files[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/kgsl-3d0",
                                        "/dev/mali0"};
    glob_t found = {0};
    bool any = glob("/dev/dri/renderD*", GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    for (size_t i = 0; i < sizeof files / sizeof *files && !any; i++)
        any = access(files[i], F_OK) == 0;
    return any;
#endif
}

/* ---- What is there ---- */

static int list_devices(VkPhysicalDevice list[KM_VULKAN_MAX_DEVICES], km_error *err) {
    uint32_t n = KM_VULKAN_MAX_DEVICES;
    if (!km_vulkan_driver(err)) return 0;
    VkResult r = KM_VK(EnumeratePhysicalDevices, km_vulkan_instance(), &n, list);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) {
        km_error_set(err, KM_ERR_DEVICE, "Vulkan cannot list its devices: %s",
                     km_vulkan_error_text(r));
        return 0;
    }
    if (n == 0)
        km_error_set(err, KM_ERR_DEVICE,
                     "no Vulkan device here: the loader is there, but no driver shows one");
    return (int)n;
}

#ifndef VK_KHR_cooperative_matrix /* headers before 1.3.255 */
typedef struct VkPhysicalDeviceCooperativeMatrixFeaturesKHR {
    VkStructureType sType;
    void *pNext;
    VkBool32 cooperativeMatrix, cooperativeMatrixRobustBufferAccess;
} VkPhysicalDeviceCooperativeMatrixFeaturesKHR;
typedef struct VkCooperativeMatrixPropertiesKHR {
    VkStructureType sType;
    void *pNext;
    uint32_t MSize, NSize, KSize;
    int32_t AType, BType, CType, ResultType;
    VkBool32 saturatingAccumulation;
    int32_t scope;
} VkCooperativeMatrixPropertiesKHR;
typedef VkResult(VKAPI_PTR *PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)(
    VkPhysicalDevice, uint32_t *, VkCooperativeMatrixPropertiesKHR *);
#define VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR                          \
    ((VkStructureType)1000506000)
#define VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR ((VkStructureType)1000506001)
#define VK_COMPONENT_TYPE_FLOAT16_KHR 0
#define VK_COMPONENT_TYPE_FLOAT32_KHR 1
#define VK_SCOPE_SUBGROUP_KHR 3
#endif

typedef struct vulkan_look { /* what a device says about itself */
    VkPhysicalDeviceProperties2 p;
    VkPhysicalDeviceDriverProperties driver;
    VkPhysicalDeviceSubgroupProperties subgroup;
    VkPhysicalDeviceMaintenance3Properties allocation;
    VkPhysicalDeviceFeatures2 f;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot;
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix;
    VkPhysicalDeviceMemoryProperties2 m;
    VkExtensionProperties extension[512];
    uint32_t extensions;
} vulkan_look;

/* KERMES_VULKAN_LIMITS=least: a device is taken for the least that Kermes runs on, for tests. */
static bool least_limits(void) {
    const char *s = getenv("KERMES_VULKAN_LIMITS");
    return s && strcmp(s, "least") == 0;
}

static void clamp_limits(vulkan_look *l) {
    VkPhysicalDeviceLimits *most = &l->p.properties.limits;
    if (l->allocation.maxMemoryAllocationSize > 128 << 20)
        l->allocation.maxMemoryAllocationSize = 128 << 20;
    for (int i = 0; i < 3; i++)
        if (most->maxComputeWorkGroupCount[i] > 65535) most->maxComputeWorkGroupCount[i] = 65535;
    most->maxComputeSharedMemorySize = 16 << 10;
    l->v11.storageBuffer16BitAccess = l->v12.storageBuffer8BitAccess = VK_FALSE;
    l->v12.shaderFloat16 = l->v12.shaderInt8 = VK_FALSE;
    l->extensions = 0;
}

static bool has(const vulkan_look *l, const char *extension) {
    for (uint32_t i = 0; i < l->extensions; i++)
        if (strcmp(l->extension[i].extensionName, extension) == 0) return true;
    return false;
}

#define DOT_PRODUCT "VK_KHR_shader_integer_dot_product"
#define TOLD "VK_KHR_pipeline_executable_properties"
#define MATRIX "VK_KHR_cooperative_matrix"

/* What layers of prompts are fast with (shaders/layer_matrix.glsl): products of 16 x 16 matrices of f16 that
 * are summed in f32 by a subgroup of 32. */
static bool has_matrices(const vulkan_look *l, VkPhysicalDevice physical) {
    enum { MOST = 64 };
    VkCooperativeMatrixPropertiesKHR p[MOST];
    uint32_t n = MOST;
    if (!has(l, MATRIX) || !l->matrix.cooperativeMatrix || !l->v12.vulkanMemoryModel ||
        !l->v12.shaderFloat16 || l->subgroup.subgroupSize != 32 ||
        l->p.properties.limits.maxComputeSharedMemorySize < 48 << 10 ||
        l->p.properties.limits.maxComputeWorkGroupInvocations < 256)
        return false;
    PFN_vkVoidFunction f = km_vulkan_api()->GetInstanceProcAddr(
        km_vulkan_instance(), "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    if (!f) return false;
    for (int i = 0; i < MOST; i++)
        p[i] = (VkCooperativeMatrixPropertiesKHR){
            .sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    VkResult r = ((PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)f)(physical, &n, p);
    for (uint32_t i = 0; i < n && (r == VK_SUCCESS || r == VK_INCOMPLETE); i++)
        if (p[i].MSize == 16 && p[i].NSize == 16 && p[i].KSize == 16 &&
            p[i].AType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
            p[i].BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
            p[i].CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
            p[i].ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && p[i].scope == VK_SCOPE_SUBGROUP_KHR)
            return true;
    return false;
}

/* What layers over few rows are fast with (shaders/layer_stream.comp). */
static bool has_dots(const vulkan_look *l) {
    const VkSubgroupFeatureFlags want = VK_SUBGROUP_FEATURE_BASIC_BIT |
                                        VK_SUBGROUP_FEATURE_ARITHMETIC_BIT |
                                        VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    return has(l, DOT_PRODUCT) && l->dot.shaderIntegerDotProduct &&
           (l->subgroup.supportedOperations & want) == want && l->subgroup.subgroupSize >= 8 &&
           l->subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT;
}

static void look_at(VkPhysicalDevice physical, vulkan_look *l) {
    const km_vk_api *api = km_vulkan_api();
    memset(l, 0, sizeof *l);
    l->p.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    l->driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    l->subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES;
    l->allocation.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES;
    l->f.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    l->v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES;
    l->v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES;
    l->dot.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR;
    l->matrix.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
    l->m.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    l->extensions = sizeof l->extension / sizeof *l->extension;
    VkResult r =
        api->EnumerateDeviceExtensionProperties(physical, NULL, &l->extensions, l->extension);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) l->extensions = 0;
    api->GetPhysicalDeviceProperties2(physical, &l->p);
    if (l->p.properties.apiVersion >= VK_API_VERSION_1_2) {
        l->p.pNext = &l->driver;
        l->driver.pNext = &l->subgroup;
        l->subgroup.pNext = &l->allocation;
        l->f.pNext = &l->v11;
        l->v11.pNext = &l->v12;
        void **next = &l->v12.pNext;
        if (has(l, DOT_PRODUCT)) {
            *next = &l->dot;
            next = &l->dot.pNext;
        }
        if (has(l, MATRIX)) *next = &l->matrix;
        api->GetPhysicalDeviceProperties2(physical, &l->p);
    }
    api->GetPhysicalDeviceFeatures2(physical, &l->f);
    api->GetPhysicalDeviceMemoryProperties2(physical, &l->m);
    if (least_limits()) clamp_limits(l);
}

/* The heap that a memory type is of. */
static size_t heap_bytes(const vulkan_look *l, int type) {
    return (size_t)l->m.memoryProperties
        .memoryHeaps[l->m.memoryProperties.memoryTypes[type].heapIndex]
        .size;
}

/* The first memory type with all of these properties; -1: none. */
static int memory_type(const vulkan_look *l, VkMemoryPropertyFlags want) {
    for (uint32_t i = 0; i < l->m.memoryProperties.memoryTypeCount; i++)
        if ((l->m.memoryProperties.memoryTypes[i].propertyFlags & want) == want) return (int)i;
    return -1;
}

static int compute_family(VkPhysicalDevice physical, bool *stamps) {
    VkQueueFamilyProperties f[16];
    uint32_t n = 16;
    km_vulkan_api()->GetPhysicalDeviceQueueFamilyProperties(physical, &n, f);
    for (uint32_t i = 0; i < n; i++)
        if (f[i].queueFlags & VK_QUEUE_COMPUTE_BIT) {
            *stamps = f[i].timestampValidBits > 0 && !least_limits();
            return (int)i;
        }
    return -1;
}

/* Why Kermes cannot use it; NULL: it can. */
static const char *lacks(const vulkan_look *l) {
    if (l->p.properties.apiVersion < VK_API_VERSION_1_2) return "it offers less than Vulkan 1.2";
    if (!l->v12.bufferDeviceAddress) return "it lacks buffer device addresses";
    if (!l->v12.timelineSemaphore) return "it lacks timeline semaphores";
    return NULL;
}

static const char *kind_of(VkPhysicalDeviceType type) {
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete GPU";
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated GPU";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual GPU";
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return "software";
    default: return "other";
    }
}

/* ---- Errors ---- */

void km_vulkan_note_error(km_vulkan_dev *dev, VkResult code, const char *doing) {
    if (code != VK_ERROR_DEVICE_LOST || atomic_load(&dev->lost)) return;
    pthread_mutex_lock(&dev->lock);
    if (!atomic_load(&dev->lost)) {
        snprintf(dev->lost_why, sizeof dev->lost_why, "%s: %s", doing, km_vulkan_error_text(code));
        atomic_store(&dev->lost, true);
    }
    pthread_mutex_unlock(&dev->lock);
}

km_status km_vulkan_lost(km_vulkan_dev *dev, km_error *err) {
    return km_error_set(err, KM_ERR_GPU,
                        "%s was lost by an earlier error (%s); restart the program to use it "
                        "again, or go on with cpu",
                        dev->base.name, dev->lost_why);
}

/* ---- One device ---- */

static void free_device(km_vulkan_dev *dev) {
    if (!dev) return;
    if (dev->handle) {
        km_vulkan_pipelines_close(dev);
        km_vulkan_api()->DestroyDevice(dev->handle, NULL);
    }
    pthread_mutex_destroy(&dev->lock);
    pthread_mutex_destroy(&dev->queue_lock);
    km_free(dev);
}

static size_t memory_limit(size_t memory) {
    const char *s = getenv("KERMES_GPU_MEMORY_FRACTION");
    double fraction = s ? strtod(s, NULL) : 0;
    if (!(fraction > 0 && fraction <= 1)) fraction = 0.8;
    return (size_t)(fraction * (double)memory);
}

/* Memory of its own for blocks, or the host's where they are one; and what the host can write. */
static bool choose_memory(km_vulkan_dev *dev, const vulkan_look *l) {
    const VkMemoryPropertyFlags seen =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    VkPhysicalDeviceType type = l->p.properties.deviceType;
    int own = memory_type(l, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    int both = memory_type(l, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | seen |
                                  VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    int shared = memory_type(l, seen | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    if (shared < 0) shared = memory_type(l, seen);
    if (shared < 0) return false;
    if (both >= 0 &&
        (type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU || type == VK_PHYSICAL_DEVICE_TYPE_CPU)) {
        dev->in_place = true;
        own = both;
    }
    if (own < 0) own = shared;
    int near = dev->in_place ? own : memory_type(l, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | seen);
    dev->near = (uint32_t)(near < 0 ? shared : near);
    dev->own = (uint32_t)own;
    dev->shared = (uint32_t)shared;
    dev->memory = heap_bytes(l, own);
    dev->limit = memory_limit(dev->memory);
    dev->largest = (size_t)l->allocation.maxMemoryAllocationSize;
    if (!dev->largest) dev->largest = (size_t)1 << 30;
    return true;
}

static VkResult make_handle(km_vulkan_dev *dev, const vulkan_look *l) {
    float priority = 1;
    const char *extension[5];
    VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                     .queueFamilyIndex = dev->family,
                                     .queueCount = 1,
                                     .pQueuePriorities = &priority};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE};
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .bufferDeviceAddress = VK_TRUE,
        .timelineSemaphore = VK_TRUE};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                          .pNext = &v12};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &features,
                               .queueCreateInfoCount = 1,
                               .pQueueCreateInfos = &queue,
                               .ppEnabledExtensionNames = extension};
    if (has(l, "VK_KHR_portability_subset")) /* MoltenVK's must be asked for */
        extension[info.enabledExtensionCount++] = "VK_KHR_portability_subset";
    if (dev->dots) {
        extension[info.enabledExtensionCount++] = DOT_PRODUCT;
        v12.pNext = &dot;
    }
    if (dev->matrices) {
        extension[info.enabledExtensionCount++] = MATRIX;
        matrix.pNext = v12.pNext;
        v12.pNext = &matrix;
        v12.shaderFloat16 = v12.vulkanMemoryModel = VK_TRUE;
    }
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR told = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pNext = v12.pNext,
        .pipelineExecutableInfo = VK_TRUE};
    if (dev->statistics) {
        extension[info.enabledExtensionCount++] = TOLD;
        v12.pNext = &told;
    }
    VkResult r = KM_VK(CreateDevice, dev->physical, &info, NULL, &dev->handle);
    if (r != VK_SUCCESS) dev->handle = NULL;
    if (r == VK_SUCCESS) km_vulkan_api()->GetDeviceQueue(dev->handle, dev->family, 0, &dev->queue);
    return r;
}

static km_vulkan_dev *make_device(int index, VkPhysicalDevice physical, km_error *err) {
    vulkan_look *l = km_alloc(sizeof *l);
    km_vulkan_dev *dev = km_calloc(1, sizeof *dev);
    bool stamps = false;
    if (!l || !dev) {
        km_no_memory(err);
        km_free(l);
        km_free(dev);
        return NULL;
    }
    pthread_mutex_init(&dev->lock, NULL);
    pthread_mutex_init(&dev->queue_lock, NULL);
    look_at(physical, l);
    snprintf(dev->base.name, sizeof dev->base.name, "vulkan:%d", index);
    snprintf(dev->model, sizeof dev->model, "%.127s", l->p.properties.deviceName);
    dev->index = index;
    dev->physical = physical;
    const char *why = lacks(l);
    int family = compute_family(physical, &stamps);
    if (!why && family < 0) why = "it has no queue for computing";
    if (!why && !choose_memory(dev, l)) why = "it has no memory that the host can write to";
    if (why) {
        km_error_set(err, KM_ERR_DEVICE, "vulkan:%d (%s) cannot be used: %s", index, dev->model,
                     why);
        goto fail;
    }
    dev->family = (uint32_t)family;
    dev->tick = stamps ? (double)l->p.properties.limits.timestampPeriod : 0;
    for (int i = 0; i < 3; i++)
        dev->most_groups[i] = l->p.properties.limits.maxComputeWorkGroupCount[i];
    memcpy(dev->cache_id, l->p.properties.pipelineCacheUUID, VK_UUID_SIZE);
    dev->vendor = l->p.properties.vendorID;
    dev->product = l->p.properties.deviceID;
    dev->driver_version = l->p.properties.driverVersion;
    dev->most_threads = l->p.properties.limits.maxComputeWorkGroupInvocations;
    if (dev->most_threads > l->p.properties.limits.maxComputeWorkGroupSize[0])
        dev->most_threads = l->p.properties.limits.maxComputeWorkGroupSize[0];
    dev->shared_bytes = l->p.properties.limits.maxComputeSharedMemorySize;
    dev->subgroup = l->subgroup.subgroupSize;
    dev->statistics = getenv("KERMES_VULKAN_STATISTICS") && has(l, TOLD);
    dev->dots = has_dots(l);
    dev->matrices = has_matrices(l, physical);
    VkResult r = make_handle(dev, l);
    if (r == VK_ERROR_FEATURE_NOT_PRESENT || r == VK_ERROR_EXTENSION_NOT_PRESENT) {
        dev->dots = dev->matrices = false; /* announced, and yet not to be had */
        r = make_handle(dev, l);
    }
    if (r != VK_SUCCESS) {
        km_error_set(err, KM_ERR_DEVICE, "vulkan:%d (%s) cannot be used: %s", index, dev->model,
                     km_vulkan_error_text(r));
        goto fail;
    }
    dev->base.ops = &km_vulkan_device_ops;
    dev->base.backend = km_vulkan_backend();
    dev->base.fallback = km_cpu_device();
    dev->base.impl = dev;
    if (!km_vulkan_pipelines_open(dev, err)) goto fail;
    km_free(l);
    return dev;
fail:
    km_free(l);
    free_device(dev);
    return NULL;
}

km_device *km_vulkan_device(int index, km_error *err) {
    VkPhysicalDevice list[KM_VULKAN_MAX_DEVICES];
    int n = list_devices(list, err);
    if (n <= 0) return NULL;
    if (index < 0 || index >= n) {
        km_error_set(err, KM_ERR_DEVICE,
                     "vulkan:%d: no such device; this machine has %d, from vulkan:0", index, n);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (!devices[index]) devices[index] = make_device(index, list[index], err);
    km_vulkan_dev *dev = devices[index];
    pthread_mutex_unlock(&lock);
    return dev ? &dev->base : NULL;
}

km_device *km_vulkan_gpu(km_error *err) {
    VkPhysicalDevice list[KM_VULKAN_MAX_DEVICES];
    km_error first = {0};
    int n = list_devices(list, err);
    if (n <= 0) return NULL;
    for (int i = 0; i < n; i++) {
        VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
        km_vulkan_api()->GetPhysicalDeviceProperties2(list[i], &p);
        if (p.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU) continue;
        km_device *d = km_vulkan_device(i, &first);
        if (d) return d;
    }
    if (first.code != KM_OK)
        km_error_set(err, KM_ERR_DEVICE, "%s", first.text);
    else
        km_error_set(
            err, KM_ERR_DEVICE,
            "no Vulkan GPU here, only software, which is used when it is named (vulkan:0)");
    return NULL;
}

/* ---- For people ---- */

static void describe(km_vulkan_device_info *d, int index, VkPhysicalDevice physical) {
    vulkan_look *l = km_alloc(sizeof *l);
    km_error err = {0};
    if (!l) return;
    look_at(physical, l);
    const VkPhysicalDeviceProperties *p = &l->p.properties;
    int own = memory_type(l, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    d->index = index;
    d->software = p->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    d->kind = kind_of(p->deviceType);
    snprintf(d->name, sizeof d->name, "%.127s", p->deviceName);
    snprintf(d->driver, sizeof d->driver, "%.60s%s%.60s, Vulkan %d.%d.%d", l->driver.driverName,
             l->driver.driverInfo[0] ? " " : "", l->driver.driverInfo,
             (int)VK_API_VERSION_MAJOR(p->apiVersion), (int)VK_API_VERSION_MINOR(p->apiVersion),
             (int)VK_API_VERSION_PATCH(p->apiVersion));
    d->memory = own >= 0 ? heap_bytes(l, own) : 0;
    snprintf(d->features, sizeof d->features,
             "subgroups of %d%s%s%s%s%s%s, %d KiB of shared memory", (int)l->subgroup.subgroupSize,
             l->v11.storageBuffer16BitAccess ? ", 16-bit storage" : "",
             l->v12.storageBuffer8BitAccess ? ", 8-bit storage" : "",
             l->v12.shaderFloat16 ? ", f16" : "", l->v12.shaderInt8 ? ", int8" : "",
             has_dots(l) ? ", dot products" : "", has_matrices(l, physical) ? ", matrices" : "",
             (int)(p->limits.maxComputeSharedMemorySize / 1024));
    km_device *dev = km_vulkan_device(index, &err);
    d->usable = dev != NULL;
    if (dev && atomic_load(&((km_vulkan_dev *)dev->impl)->lost)) {
        d->usable = false;
        km_vulkan_lost(dev->impl, &err);
    }
    if (!d->usable) snprintf(d->note, sizeof d->note, "%.255s", err.text);
    km_free(l);
}

void km_vulkan_info_get(km_vulkan_info *info) {
    VkPhysicalDevice list[KM_VULKAN_MAX_DEVICES];
    km_error err = {0};
    int gpus = 0;
    *info = (km_vulkan_info){.kernels = true};
    snprintf(info->build, sizeof info->build, "%s", km_vulkan_build_note());
    info->n = list_devices(list, &err);
    info->loader = km_vulkan_driver(NULL) != NULL;
    for (int i = 0; i < info->n; i++) {
        describe(&info->device[i], i, list[i]);
        gpus += info->device[i].usable && !info->device[i].software;
    }
    if (info->n == 0)
        snprintf(info->summary, sizeof info->summary, "%.255s", err.text);
    else if (gpus)
        snprintf(info->summary, sizeof info->summary, "%d GPU%s ready", gpus, gpus > 1 ? "s" : "");
    else
        snprintf(info->summary, sizeof info->summary,
                 "no GPU; software is used only when it is named");
}

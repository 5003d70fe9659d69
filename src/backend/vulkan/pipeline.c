/* Pipelines: a shader with its specialisation constants, made on first use and kept. What drivers
 * compile goes into a cache on disk, so that the next process starts faster; the file is only read
 * when its header names this very device and driver and its hash holds, and is written atomically.
 * Without it, or with a damaged one, everything works and starts slower. */
#include "backend/vulkan/dev.h"
#include "backend/vulkan/modules.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

struct km_vulkan_pipeline {
    km_vulkan_pipeline *next;
    VkPipeline handle;
    int n_spec;
    uint32_t spec[KM_VULKAN_SPECS];
};

typedef struct vulkan_cache_head {
    char magic[8];
    uint32_t vendor, product, driver_version, reserved;
    uint8_t id[VK_UUID_SIZE];
    uint64_t bytes, hash; /* of what follows */
} vulkan_cache_head;

static const char cache_magic[8] = "kmvkpc1";

/* ---- The file ---- */

/* kermes/vulkan-<id>.cache under XDG_CACHE_HOME or ~/.cache; the folders are made. */
static bool cache_path(const km_vulkan_dev *dev, char *path, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[400];
    int n;
    if (cache && *cache == '/')
        n = snprintf(folder, sizeof folder, "%s", cache);
    else if (home && *home == '/')
        n = snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return false;
    if (n < 0 || (size_t)n + 8 >= sizeof folder) return false;
    mkdir(folder, 0700);
    memcpy(folder + n, "/kermes", 8);
    mkdir(folder, 0700);
    n = snprintf(path, size, "%s/vulkan-%08x-%016llx.cache", folder, dev->product,
                 (unsigned long long)XXH3_64bits(dev->cache_id, VK_UUID_SIZE));
    return n > 0 && (size_t)n < size;
}

static vulkan_cache_head head_for(const km_vulkan_dev *dev, const void *data, size_t bytes) {
    vulkan_cache_head h = {.vendor = dev->vendor,
                           .product = dev->product,
                           .driver_version = dev->driver_version,
                           .bytes = bytes,
                           .hash = XXH3_64bits(data, bytes)};
    memcpy(h.magic, cache_magic, sizeof h.magic);
    memcpy(h.id, dev->cache_id, VK_UUID_SIZE);
    return h;
}

/* What the file holds for this device; NULL when there is none, or none to be trusted. */
static void *cache_read(const km_vulkan_dev *dev, size_t *bytes) {
    char path[512];
    vulkan_cache_head h, want;
    void *data = NULL;
    struct stat st;
    if (!cache_path(dev, path, sizeof path)) return NULL;
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    bool ok = fstat(fileno(f), &st) == 0 && st.st_size > (off_t)sizeof h &&
              st.st_size < (off_t)1 << 28 && fread(&h, sizeof h, 1, f) == 1;
    size_t n = ok ? (size_t)st.st_size - sizeof h : 0;
    data = n ? km_alloc(n) : NULL;
    ok = data && fread(data, 1, n, f) == n;
    fclose(f);
    if (ok) {
        want = head_for(dev, data, n);
        ok = memcmp(&h, &want, sizeof h) == 0;
        if (!ok) km_note(KM_LOG_INFO, "%s is damaged or another driver's, and is not used", path);
    }
    if (!ok) {
        km_free(data);
        return NULL;
    }
    *bytes = n;
    return data;
}

void km_vulkan_cache_save(km_vulkan_dev *dev) {
    char path[512];
    size_t bytes = 0;
    pthread_mutex_lock(&dev->lock);
    bool any = dev->made > 0 && !atomic_load(&dev->lost) && cache_path(dev, path, sizeof path);
    dev->made = 0;
    if (any)
        any = km_vulkan_api()->GetPipelineCacheData(dev->handle, dev->cache, &bytes, NULL) ==
                  VK_SUCCESS &&
              bytes > 0;
    void *data = any ? km_alloc(bytes) : NULL;
    if (data && km_vulkan_api()->GetPipelineCacheData(dev->handle, dev->cache, &bytes, data) ==
                    VK_SUCCESS) {
        vulkan_cache_head h = head_for(dev, data, bytes);
        km_writer *w = km_writer_open(path, NULL); /* a full disk is no reason to complain */
        if (w) {
            km_writer_passing(w);
            km_writer_put(w, &h, sizeof h);
            km_writer_put(w, data, bytes);
            km_writer_commit(w, NULL);
        }
    }
    km_free(data);
    pthread_mutex_unlock(&dev->lock);
}

/* ---- Opening and closing ---- */

bool km_vulkan_pipelines_open(km_vulkan_dev *dev, km_error *err) {
    VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = KM_VULKAN_PUSH};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &push};
    VkPipelineCacheCreateInfo cache = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    dev->pipelines = km_calloc((size_t)km_vulkan_module_count + 1, sizeof(void *));
    if (!dev->pipelines) {
        km_no_memory(err);
        return false;
    }
    void *data = cache_read(dev, &cache.initialDataSize);
    cache.pInitialData = data;
    VkResult r = KM_VK(CreatePipelineLayout, dev->handle, &layout, NULL, &dev->layout);
    if (r == VK_SUCCESS) {
        r = KM_VK(CreatePipelineCache, dev->handle, &cache, NULL, &dev->cache);
        if (r != VK_SUCCESS && data) { /* a driver that does not like its own data */
            cache.initialDataSize = 0;
            r = KM_VK(CreatePipelineCache, dev->handle, &cache, NULL, &dev->cache);
        }
    }
    km_free(data);
    if (r == VK_SUCCESS) return true;
    km_error_set(err, KM_ERR_DEVICE, "%s (%s) cannot be used: %s", dev->base.name, dev->model,
                 km_vulkan_error_text(r));
    return false;
}

void km_vulkan_pipelines_close(km_vulkan_dev *dev) {
    const km_vk_api *api = km_vulkan_api();
    for (int i = 0; dev->pipelines && i < km_vulkan_module_count; i++)
        while (dev->pipelines[i]) {
            km_vulkan_pipeline *p = dev->pipelines[i];
            dev->pipelines[i] = p->next;
            api->DestroyPipeline(dev->handle, p->handle, NULL);
            km_free(p);
        }
    km_free(dev->pipelines);
    if (dev->cache) api->DestroyPipelineCache(dev->handle, dev->cache, NULL);
    if (dev->layout) api->DestroyPipelineLayout(dev->handle, dev->layout, NULL);
}

/* ---- Making one ---- */

/* KERMES_VULKAN_STATISTICS: registers, spills and what else the driver tells of a shader, as one line. */
static void tell_statistics(const km_vulkan_dev *dev, VkPipeline pipeline, const char *name) {
    enum { MOST = 32 };
    PFN_vkVoidFunction f = km_vulkan_api()->GetInstanceProcAddr(
        km_vulkan_instance(), "vkGetPipelineExecutableStatisticsKHR");
    VkPipelineExecutableInfoKHR which = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                         .pipeline = pipeline};
    VkPipelineExecutableStatisticKHR s[MOST];
    uint32_t n = MOST;
    char line[600];
    size_t at = 0;
    for (int i = 0; i < MOST; i++)
        s[i] = (VkPipelineExecutableStatisticKHR){
            .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR};
    if (!f || ((PFN_vkGetPipelineExecutableStatisticsKHR)f)(dev->handle, &which, &n, s) < 0) return;
    line[0] = 0;
    for (uint32_t i = 0; i < n && at < sizeof line - 1; i++)
        if (s[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR && s[i].value.u64)
            at += (size_t)snprintf(line + at, sizeof line - at, ", %.40s %llu", s[i].name,
                                   (unsigned long long)s[i].value.u64);
    km_note(KM_LOG_INFO, "shader %s%s", name, line);
}

static VkResult make(km_vulkan_dev *dev, const km_vulkan_module *m, const uint32_t *spec,
                     int n_spec, VkPipeline *made) {
    VkSpecializationMapEntry entry[KM_VULKAN_SPECS];
    for (int i = 0; i < n_spec; i++)
        entry[i] = (VkSpecializationMapEntry){(uint32_t)i, (uint32_t)i * 4, 4};
    VkSpecializationInfo constants = {.mapEntryCount = (uint32_t)n_spec,
                                      .pMapEntries = entry,
                                      .dataSize = (size_t)n_spec * 4,
                                      .pData = spec};
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = (size_t)m->bytes,
                                     .pCode = m->code};
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT |
                 (dev->statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0),
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main",
                  .pSpecializationInfo = n_spec ? &constants : NULL},
        .layout = dev->layout};
    uint32_t *matrix_code = NULL;
    if (km_vulkan_has_matrices(m->code, (size_t)m->bytes / 4)) {
        size_t words = 0;
        matrix_code = km_vulkan_matrix_code(m->code, (size_t)m->bytes / 4, &words);
        if (!matrix_code) return VK_ERROR_OUT_OF_HOST_MEMORY;
        code.pCode = matrix_code;
        code.codeSize = words * 4;
    }
    VkResult r = KM_VK(CreateShaderModule, dev->handle, &code, NULL, &info.stage.module);
    km_free(matrix_code);
    if (r != VK_SUCCESS) return r;
    r = KM_VK(CreateComputePipelines, dev->handle, dev->cache, 1, &info, NULL, made);
    km_vulkan_api()->DestroyShaderModule(dev->handle, info.stage.module, NULL);
    if (r == VK_SUCCESS && dev->statistics) tell_statistics(dev, *made, m->name);
    return r;
}

VkPipeline km_vulkan_pipeline_get(km_lane *lane, const char *module, const uint32_t *spec,
                                  int n_spec) {
    km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    int i = 0;
    while (i < km_vulkan_module_count && strcmp(km_vulkan_modules[i].name, module) != 0) i++;
    if (i == km_vulkan_module_count) {
        km_fail(lane->ctx, KM_ERR_GPU, "%s: the shader %s is not in this build", dev->base.name,
                module);
        return VK_NULL_HANDLE;
    }
    VkResult r = VK_SUCCESS;
    pthread_mutex_lock(&dev->lock);
    km_vulkan_pipeline *p = dev->pipelines[i];
    while (p && (p->n_spec != n_spec || memcmp(p->spec, spec, (size_t)n_spec * 4) != 0))
        p = p->next;
    if (!p && (p = km_calloc(1, sizeof *p)) != NULL) {
        p->n_spec = n_spec;
        if (n_spec) memcpy(p->spec, spec, (size_t)n_spec * 4);
        r = make(dev, &km_vulkan_modules[i], spec, n_spec, &p->handle);
        if (r == VK_SUCCESS) {
            p->next = dev->pipelines[i];
            dev->pipelines[i] = p;
            dev->made++;
        } else {
            km_free(p);
            p = NULL;
        }
    } else if (!p) {
        r = VK_ERROR_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_unlock(&dev->lock);
    if (p) return p->handle;
    char doing[80];
    snprintf(doing, sizeof doing, "compiling the shader %.40s", module);
    km_vulkan_fail(lane, r, doing);
    return VK_NULL_HANDLE;
}

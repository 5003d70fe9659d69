/* The list of devices: the CPU, the reference, and every GPU that CUDA's driver and Vulkan show. */
#include "backend/cuda/info.h"
#include "backend/backend.h"
#include "backend/vulkan/device.h"
#include "base/cpu.h"
#include "kermes.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

km_host_memory km_host_memory_get(void) {
    km_host_memory m = {NAN, NAN};
    long page = sysconf(_SC_PAGESIZE), total = sysconf(_SC_PHYS_PAGES);
    if (page > 0 && total > 0) m.total = (double)page * (double)total;
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "MemAvailable:", 13) == 0) m.available = 1024 * strtod(line + 13, NULL);
    if (f) fclose(f);
    return m;
}

enum { HOSTS = 2 };

int km_device_count(void) {
    static _Thread_local km_cuda_info info;
    static _Thread_local km_vulkan_info vulkan;
    km_cuda_info_get(&info);
    km_vulkan_info_get(&vulkan);
    return HOSTS + info.n_gpus + vulkan.n;
}

static const km_device_info *describe_vulkan(int i) {
    static _Thread_local km_device_info d;
    static _Thread_local km_vulkan_info vulkan;
    static _Thread_local char name[16];
    km_vulkan_info_get(&vulkan);
    if (i >= vulkan.n) return NULL;
    const km_vulkan_device_info *v = &vulkan.device[i];
    snprintf(name, sizeof name, "vulkan:%d", v->index);
    d = (km_device_info){.name = name,
                         .title = v->name,
                         .kind = v->software ? "software" : "gpu",
                         .driver = v->driver,
                         .memory = v->memory,
                         .memory_free = 0,
                         .usable = v->usable,
                         .note = v->note};
    return &d;
}

const km_device_info *km_device_describe(int i) {
    static _Thread_local km_device_info d;
    static _Thread_local km_cuda_info cuda;
    static _Thread_local char name[16], driver[64];
    km_host_memory m = km_host_memory_get();
    if (i < 0) return NULL;
    d = (km_device_info){.name = i ? "ref" : "cpu",
                         .title = km_cpu_info()->name,
                         .kind = i ? "reference" : "cpu",
                         .driver = "",
                         .memory = m.total > 0 ? (uint64_t)m.total : 0,
                         .memory_free = m.available > 0 ? (uint64_t)m.available : 0,
                         .usable = true,
                         .note = ""};
    if (i < HOSTS) return &d;
    km_cuda_info_get(&cuda);
    if (i - HOSTS >= cuda.n_gpus) return describe_vulkan(i - HOSTS - cuda.n_gpus);
    const km_cuda_gpu *g = &cuda.gpu[i - HOSTS];
    snprintf(name, sizeof name, "cuda:%d", g->index);
    snprintf(driver, sizeof driver, "%s%sCUDA %d.%d", cuda.driver_release,
             cuda.driver_release[0] ? ", " : "", cuda.cuda_major, cuda.cuda_minor);
    d = (km_device_info){.name = name,
                         .title = g->name,
                         .kind = "gpu",
                         .driver = driver,
                         .memory = g->memory_total,
                         .memory_free = g->memory_free,
                         .usable = g->usable,
                         .note = g->note};
    return &d;
}

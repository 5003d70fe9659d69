/* A build without Vulkan: no shader compiler or no headers. Every question gets the same answer. */
#include "backend/vulkan/device.h"
#include "backend/vulkan/modules.h"
#include <stdio.h>

km_device *km_vulkan_device(int index, km_error *err) {
    km_error_set(err, KM_ERR_DEVICE,
                 "vulkan:%d: this Kermes has no Vulkan backend (%s); install glslc and Vulkan's "
                 "headers and rebuild, or use cpu",
                 index, km_vulkan_build_note());
    return NULL;
}

km_device *km_vulkan_gpu(km_error *err) { return km_vulkan_device(0, err); }

bool km_vulkan_likely(void) { return false; }

void km_vulkan_info_get(km_vulkan_info *info) {
    *info = (km_vulkan_info){0};
    snprintf(info->build, sizeof info->build, "%s", km_vulkan_build_note());
    snprintf(info->summary, sizeof info->summary, "%s", km_vulkan_build_note());
}

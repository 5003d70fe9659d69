/* The shaders of this build: SPIR-V made by cmake/vulkan.cmake, embedded as it is. */
#ifndef KM_BACKEND_VULKAN_MODULES_H
#define KM_BACKEND_VULKAN_MODULES_H
#include <stdint.h>

typedef struct km_vulkan_module {
    const char *name; /* the source's name, without .comp */
    const uint32_t *code;
    uint64_t bytes;
} km_vulkan_module;

extern const km_vulkan_module km_vulkan_modules[];
extern const int km_vulkan_module_count;
const char *km_vulkan_build_note(void); /* "28 shaders", or why there are none */

#endif

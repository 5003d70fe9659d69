/* The Vulkan loader, opened at run time: libvulkan.so.1 by dlopen, an instance, and the functions that
 * this backend calls. Vulkan's headers are needed to build, its library is not. */
#ifndef KM_BACKEND_VULKAN_DRIVER_H
#define KM_BACKEND_VULKAN_DRIVER_H
#include "base/error.h"
#define VK_NO_PROTOTYPES
#include <stdbool.h>
#include <vulkan/vulkan_core.h>

#define KM_VK_GLOBAL(X)                                                                            \
    X(CreateInstance) X(EnumerateInstanceVersion) X(EnumerateInstanceExtensionProperties)
#define KM_VK_LIST(X)                                                                              \
    X(EnumeratePhysicalDevices)                                                                    \
    X(GetPhysicalDeviceProperties2)                                                                \
    X(GetPhysicalDeviceFeatures2)                                                                  \
    X(GetPhysicalDeviceMemoryProperties2)                                                          \
    X(GetPhysicalDeviceQueueFamilyProperties)                                                      \
    X(EnumerateDeviceExtensionProperties)                                                          \
    X(CreateDevice)                                                                                \
    X(DestroyDevice)                                                                               \
    X(GetDeviceQueue)                                                                              \
    X(QueueSubmit)                                                                                 \
    X(CreateBuffer)                                                                                \
    X(DestroyBuffer)                                                                               \
    X(GetBufferMemoryRequirements)                                                                 \
    X(GetBufferDeviceAddress)                                                                      \
    X(AllocateMemory)                                                                              \
    X(FreeMemory)                                                                                  \
    X(BindBufferMemory)                                                                            \
    X(MapMemory)                                                                                   \
    X(CreateSemaphore)                                                                             \
    X(DestroySemaphore)                                                                            \
    X(WaitSemaphores)                                                                              \
    X(GetSemaphoreCounterValue)                                                                    \
    X(CreateCommandPool)                                                                           \
    X(DestroyCommandPool)                                                                          \
    X(AllocateCommandBuffers)                                                                      \
    X(FreeCommandBuffers)                                                                          \
    X(BeginCommandBuffer)                                                                          \
    X(EndCommandBuffer)                                                                            \
    X(CreateShaderModule)                                                                          \
    X(DestroyShaderModule)                                                                         \
    X(CreatePipelineLayout)                                                                        \
    X(DestroyPipelineLayout)                                                                       \
    X(CreatePipelineCache)                                                                         \
    X(DestroyPipelineCache)                                                                        \
    X(GetPipelineCacheData)                                                                        \
    X(CreateComputePipelines)                                                                      \
    X(DestroyPipeline)                                                                             \
    X(CreateQueryPool)                                                                             \
    X(DestroyQueryPool)                                                                            \
    X(GetQueryPoolResults)                                                                         \
    X(CmdResetQueryPool)                                                                           \
    X(CmdWriteTimestamp)                                                                           \
    X(CmdBindPipeline)                                                                             \
    X(CmdPushConstants)                                                                            \
    X(CmdDispatchBase)                                                                             \
    X(CmdPipelineBarrier)                                                                          \
    X(CmdCopyBuffer)

typedef struct km_vk_api {
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define KM_VK_FIELD(name) PFN_vk##name name;
    KM_VK_GLOBAL(KM_VK_FIELD)
    KM_VK_LIST(KM_VK_FIELD)
#undef KM_VK_FIELD
} km_vk_api;

/* The functions, with an instance made; NULL with *err saying what is missing. */
const km_vk_api *km_vulkan_driver(km_error *err);
const km_vk_api *km_vulkan_api(void); /* after km_vulkan_driver gave them */
VkInstance km_vulkan_instance(void);
const char *km_vulkan_error_text(VkResult code);

/* For tests: the nth call (from 0) whose name begins with `call` gives `code`; KERMES_FAULT_VULKAN
 * does the same, "QueueSubmit:3:-4". nth < 0: no fault. */
void km_vulkan_fault(const char *call, int64_t nth, VkResult code);
extern bool km_vulkan_fault_armed;
extern VkResult km_vulkan_fault_code;
bool km_vulkan_fault_now(const char *call);
#define KM_VK(call, ...)                                                                           \
    (km_vulkan_fault_armed && km_vulkan_fault_now(#call) ? km_vulkan_fault_code                    \
                                                         : km_vulkan_api()->call(__VA_ARGS__))

#endif

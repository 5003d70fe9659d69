/* Opening the loader: find the library, make an instance, resolve every function. Whatever goes wrong
 * becomes one line that says what to do about it. */
#include "backend/vulkan/driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static km_vk_api api;
static VkInstance instance;
static void *library;
static bool resolved;

const km_vk_api *km_vulkan_api(void) { return &api; }
VkInstance km_vulkan_instance(void) { return instance; }

const char *km_vulkan_error_text(VkResult code) {
    static _Thread_local char other[32];
    switch (code) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of the host's memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of the device's memory";
    case VK_ERROR_INITIALIZATION_FAILED: return "its driver does not start";
    case VK_ERROR_DEVICE_LOST: return "the device was lost";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "no driver is installed that fits";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "an extension is missing";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "a feature is missing";
    case VK_ERROR_TOO_MANY_OBJECTS: return "too many objects";
    case VK_TIMEOUT: return "it did not answer in time";
    default: snprintf(other, sizeof other, "error %d", (int)code); return other;
    }
}

/* ---- Fault injection ---- */

bool km_vulkan_fault_armed;
VkResult km_vulkan_fault_code;
static char fault_call[40];
static int64_t fault_in;

void km_vulkan_fault(const char *call, int64_t nth, VkResult code) {
    snprintf(fault_call, sizeof fault_call, "%s", call ? call : "*");
    fault_in = nth;
    km_vulkan_fault_code = code;
    km_vulkan_fault_armed = nth >= 0;
}

bool km_vulkan_fault_now(const char *call) {
    if (strcmp(fault_call, "*") != 0 && strncmp(fault_call, call, strlen(fault_call)) != 0)
        return false;
    if (fault_in-- > 0) return false;
    km_vulkan_fault_armed = false;
    return true;
}

static void fault_from_environment(void) {
    const char *s = getenv("KERMES_FAULT_VULKAN");
    char call[40];
    long long nth = 0;
    int code = VK_ERROR_DEVICE_LOST;
    if (s && sscanf(s, "%39[^:]:%lld:%d", call, &nth, &code) >= 2)
        km_vulkan_fault(call, nth, (VkResult)code);
}

/* ---- Opening ---- */

/* ISO C has no cast between object and function pointers. */
static void *symbol(const char *name) {
    PFN_vkVoidFunction f = api.GetInstanceProcAddr(instance, name);
    void *p;
    memcpy(&p, &f, sizeof p);
    return p;
}

static bool open_library(km_error *err) {
    const char *mine = getenv("KERMES_LIBVULKAN");
    const char *names[] = {"libvulkan.so.1", "libvulkan.1.dylib", "libMoltenVK.dylib"};
    if (mine && *mine) {
        library = dlopen(mine, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            const char *why = dlerror();
            km_error_set(err, KM_ERR_DEVICE, "no Vulkan: KERMES_LIBVULKAN names %s: %s", mine,
                         why ? why : "cannot be opened");
            return false;
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        km_error_set(err, KM_ERR_DEVICE,
                     "no Vulkan here: libvulkan.so.1 was not found (install libvulkan1 and the "
                     "GPU's driver, or name the library in KERMES_LIBVULKAN)");
        return false;
    }
    void *p = dlsym(library, "vkGetInstanceProcAddr");
    memcpy(&api.GetInstanceProcAddr, &p, sizeof p);
    if (!p) km_error_set(err, KM_ERR_DEVICE, "the Vulkan library lacks vkGetInstanceProcAddr");
    return p != NULL;
}

/* MoltenVK and other layered drivers are only shown to who asks for them. */
static bool has_portability(void) {
    VkExtensionProperties list[64];
    uint32_t n = 64;
    VkResult r = api.EnumerateInstanceExtensionProperties(NULL, &n, list);
    for (uint32_t i = 0; i < n && (r == VK_SUCCESS || r == VK_INCOMPLETE); i++)
        if (strcmp(list[i].extensionName, "VK_KHR_portability_enumeration") == 0) return true;
    return false;
}

static bool make_instance(km_error *err) {
    uint32_t version = VK_API_VERSION_1_0;
    const char *missing = NULL;
    void *p;
#define FIND(name)                                                                                 \
    p = symbol("vk" #name);                                                                        \
    if (!p && !missing) missing = "vk" #name;                                                      \
    memcpy(&api.name, &p, sizeof p);
    KM_VK_GLOBAL(FIND)
    if (!missing) api.EnumerateInstanceVersion(&version);
    if (missing || version < VK_API_VERSION_1_2) {
        km_error_set(err, KM_ERR_DEVICE,
                     "the Vulkan loader is too old: it offers %d.%d, and 1.2 or newer is needed",
                     (int)VK_API_VERSION_MAJOR(version), (int)VK_API_VERSION_MINOR(version));
        return false;
    }
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .pApplicationName = "kermes",
                             .pEngineName = "kermes",
                             .apiVersion = VK_API_VERSION_1_2};
    const char *extension = "VK_KHR_portability_enumeration";
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &app};
    if (has_portability()) {
        info.flags = VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
        info.enabledExtensionCount = 1;
        info.ppEnabledExtensionNames = &extension;
    }
    VkResult r = km_vulkan_fault_armed && km_vulkan_fault_now("CreateInstance")
                     ? km_vulkan_fault_code
                     : api.CreateInstance(&info, NULL, &instance);
    if (r != VK_SUCCESS) {
        instance = NULL;
        km_error_set(err, KM_ERR_DEVICE, "Vulkan does not start: %s", km_vulkan_error_text(r));
        return false;
    }
    KM_VK_LIST(FIND)
#undef FIND
    if (missing) km_error_set(err, KM_ERR_DEVICE, "the Vulkan library lacks %s", missing);
    resolved = !missing;
    return resolved;
}

/* Once open it stays so: drivers do not all come back after they were unloaded. */
const km_vk_api *km_vulkan_driver(km_error *err) {
    pthread_mutex_lock(&lock);
    if (!resolved) fault_from_environment();
    bool ok = resolved || ((api.GetInstanceProcAddr || open_library(err)) && make_instance(err));
    pthread_mutex_unlock(&lock);
    return ok ? &api : NULL;
}

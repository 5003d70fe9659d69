/* Vulkan devices as the rest of Kermes sees them. Nothing here needs Vulkan's headers: a build without
 * the shader compiler has the same functions (absent.c), which say so. */
#ifndef KM_BACKEND_VULKAN_DEVICE_H
#define KM_BACKEND_VULKAN_DEVICE_H
#include "backend/backend.h"

#define KM_VULKAN_MAX_DEVICES 8
#define KM_VULKAN_NOTE 256

/* One physical device, usable or not. */
typedef struct km_vulkan_device_info {
    int index;          /* N of vulkan:N */
    char name[128];     /* as its driver calls it */
    const char *kind;   /* "discrete GPU", "integrated GPU", "virtual GPU", "software", "other" */
    bool software;      /* a CPU behind it: used only when named */
    char driver[160];   /* name and version of the driver, and the Vulkan version it offers */
    size_t memory;      /* bytes of its largest heap that is its own */
    char features[160]; /* what kernels could use, "f16 storage, int8, ..." */
    bool usable;        /* km_vulkan_device succeeds */
    char note[KM_VULKAN_NOTE]; /* why not, or "" */
} km_vulkan_device_info;

typedef struct km_vulkan_info {
    bool loader;                  /* libvulkan was opened and an instance made */
    bool kernels;                 /* this build has shaders */
    char summary[KM_VULKAN_NOTE]; /* one line: "1 device", or what is missing */
    char build[KM_VULKAN_NOTE];   /* "28 shaders", or why there are none */
    int n;
    km_vulkan_device_info device[KM_VULKAN_MAX_DEVICES];
} km_vulkan_info;

/* NULL with *err saying what is missing (shaders, loader, device, a feature, index out of range). */
km_device *km_vulkan_device(int index, km_error *err);
/* The first device that is a GPU and no software; NULL with *err set. */
km_device *km_vulkan_gpu(km_error *err);
/* A device file of some GPU is there: without one the loader need not be asked, which takes a tenth of
 * a second where software drivers are installed. */
bool km_vulkan_likely(void);
/* Fills *info. Never fails. */
void km_vulkan_info_get(km_vulkan_info *info);

#endif

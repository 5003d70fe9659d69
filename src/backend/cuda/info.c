/* The report for people: what was found, what was not, why, and what works all the same. */
#include "backend/cuda/info.h"
#include "backend/cuda/device.h"
#include "backend/cuda/library.h"
#include "backend/cuda/modules.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The driver's release as its kernel module tells it; not visible in WSL2 and some containers. */
static void read_release(char *out, size_t size) {
    FILE *f = fopen("/sys/module/nvidia/version", "r");
    out[0] = 0;
    if (!f) return;
    if (!fgets(out, (int)size, f)) out[0] = 0;
    out[strcspn(out, "\r\n")] = 0;
    fclose(f);
}

static void look_for(km_cuda_library_info *lib, const char *name, const char *stem,
                     const int *versions, const char *otherwise) {
    char note[KM_CUDA_NOTE];
    snprintf(lib->name, sizeof lib->name, "%s", name);
    void *handle = km_cuda_library_open(stem, versions, note, sizeof note);
    lib->present = handle != NULL;
    if (handle) {
        snprintf(lib->note, sizeof lib->note, "%s", note);
        dlclose(handle);
    } else {
        snprintf(lib->note, sizeof lib->note, "%.160s; %s", note, otherwise);
    }
}

static void look_at_gpu(km_cuda_gpu *gpu, int index) {
    const km_cu_api *api = km_cuda_api();
    km_cu_device handle;
    int value = 0;
    gpu->index = index;
    snprintf(gpu->name, sizeof gpu->name, "?");
    if (api->device_get(&handle, index) == KM_CU_OK) {
        api->device_name(gpu->name, sizeof gpu->name, handle);
        api->device_memory(&gpu->memory_total, handle);
        api->device_attr(&gpu->cc_major, KM_CU_ATTR_CC_MAJOR, handle);
        api->device_attr(&gpu->cc_minor, KM_CU_ATTR_CC_MINOR, handle);
        api->device_attr(&gpu->multiprocessors, KM_CU_ATTR_SMS, handle);
        if (api->device_attr(&value, KM_CU_ATTR_L2_BYTES, handle) == KM_CU_OK)
            gpu->l2 = (size_t)value;
    }
    km_error err = {0};
    km_device *d = km_cuda_device(index, &err);
    gpu->usable = d != NULL;
    if (!d) {
        snprintf(gpu->note, sizeof gpu->note, "%.255s", err.text);
        return;
    }
    km_cuda_dev *dev = d->impl;
    size_t total = 0;
    if (atomic_load(&dev->lost)) {
        gpu->usable = false;
        km_cuda_lost(dev, &err);
        snprintf(gpu->note, sizeof gpu->note, "%.255s", err.text);
    } else if (km_cuda_enter(dev) == KM_CU_OK) {
        api->mem_info(&gpu->memory_free, &total);
    }
}

void km_cuda_info_get(km_cuda_info *info) {
    km_error err = {0};
    int usable = 0, versions[3], nccl[] = {2, 0};
    *info = (km_cuda_info){0};
    info->kernels = km_cuda_kernels_get()->count > 0;
    snprintf(info->kernels_note, sizeof info->kernels_note, "%.255s", km_cuda_kernels_get()->note);
    info->driver = km_cuda_driver(&err) != NULL;
    read_release(info->driver_release, sizeof info->driver_release);
    if (info->driver) {
        info->cuda_major = km_cuda_driver_version() / 1000;
        info->cuda_minor = km_cuda_driver_version() % 1000 / 10;
        km_cuda_api()->device_count(&info->n_gpus);
        if (info->n_gpus > (int)(sizeof info->gpu / sizeof *info->gpu))
            info->n_gpus = (int)(sizeof info->gpu / sizeof *info->gpu);
        for (int i = 0; i < info->n_gpus; i++) {
            look_at_gpu(&info->gpu[i], i);
            usable += info->gpu[i].usable;
        }
    } else {
        snprintf(info->driver_note, sizeof info->driver_note, "%.255s", err.text);
    }
    km_cuda_library_versions(versions);
    look_for(&info->cublaslt, "cuBLASLt", "libcublasLt.so", versions,
             "matrix products use Kermes's own kernels, which are slower");
    look_for(&info->nccl, "NCCL", "libnccl.so", nccl, "one GPU to a process works all the same");

    const char *rest = "everything runs on the CPU";
    if (usable > 0)
        snprintf(info->summary, sizeof info->summary, "%d GPU%s ready", usable,
                 usable > 1 ? "s" : "");
    else if (!info->driver)
        snprintf(info->summary, sizeof info->summary, "no NVIDIA driver; %s", rest);
    else if (info->n_gpus == 0)
        snprintf(info->summary, sizeof info->summary, "a driver, but no NVIDIA GPU; %s", rest);
    else if (!info->kernels)
        snprintf(info->summary, sizeof info->summary,
                 "a GPU, but no kernels for it (package kermes-cuda); %s", rest);
    else
        snprintf(info->summary, sizeof info->summary, "no GPU that Kermes can use; %s", rest);
}

/* Finding devices by name. Devices live as long as the process; a context borrows one. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/cuda/device.h"
#include "backend/finders.h"
#include "backend/host.h"
#include "backend/ref/ref.h"
#include "backend/vulkan/device.h"
#include "base/log.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const char *km_op_name(km_op op) {
    static const char *const names[] = {
#define NAME(NAME_, name) #name,
        KM_OP_LIST(NAME)
#undef NAME
    };
    return (unsigned)op < KM_OP_COUNT ? names[op] : "?";
}

static km_device ref_device = {
    .name = "ref", .host = true, .ops = &km_host_ops, .backend = &km_ref_backend};
static km_device cpu_device = {
    .name = "cpu", .host = true, .ops = &km_host_ops, .fallback = &ref_device};

km_device *km_ref_device(void) { return &ref_device; }

static void make_cpu(void) { cpu_device.backend = km_cpu_backend(); }

km_device *km_cpu_device(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_cpu);
    return &cpu_device;
}

/* N of "cuda" and "cuda:N", or of another kind; -1 for anything else. */
static int index_of(const char *name, const char *kind) {
    size_t length = strlen(kind);
    if (strcmp(name, kind) == 0) return 0;
    if (strncmp(name, kind, length) != 0 || name[length] != ':') return -1;
    name += length + 1;
    if (*name < '0' || *name > '9') return -1; /* strtol would take a sign or blanks */
    char *end;
    long n = strtol(name, &end, 10);
    return *end == 0 && n < 1 << 20 ? (int)n : -1;
}

/* The best NVIDIA GPU: the driver lists the fastest first, so it is the first one that can be used.
 * The error is that of cuda:0. */
static km_device *best_cuda(km_error *err) {
    km_device *gpu = km_cuda_device(0, err);
    if (gpu || km_cuda_device_count() == 0) return gpu;
    for (int i = 1; i < KM_CUDA_MAX_DEVICES && !gpu; i++) gpu = km_cuda_device(i, NULL);
    if (gpu && err) *err = (km_error){0};
    return gpu;
}

static const km_device_finders real = {best_cuda, km_vulkan_likely, km_vulkan_gpu};
static const km_device_finders *finders = &real;

void km_device_finders_set(const km_device_finders *f) { finders = f ? f : &real; }

/* CUDA first, then a GPU that has Vulkan; never software. The error is CUDA's. */
static km_device *best_gpu(km_error *err) {
    km_error none = {0};
    km_device *gpu = finders->cuda(&none);
    if (!gpu && finders->vulkan_likely()) gpu = finders->vulkan(NULL);
    if (!gpu && err) km_error_set(err, none.code, "%s", none.text);
    return gpu;
}

/* Says once in a process what a name that leaves the choice to us stands for. */
static km_device *say_choice(const char *name, km_device *d, atomic_bool *said) {
    if (d && !atomic_exchange(said, true)) km_note(KM_LOG_INFO, "%s is %s here", name, d->name);
    return d;
}

km_device *km_device_find(const char *name, km_error *err) {
    static atomic_bool said_gpu, said_metal;
    if (strcmp(name, "ref") == 0) return km_ref_device();
    if (strcmp(name, "cpu") == 0) return km_cpu_device();
    if (strcmp(name, "auto") == 0) {
        km_device *gpu = best_gpu(NULL);
        return gpu ? gpu : km_cpu_device();
    }
    if (strcmp(name, "gpu") == 0) return say_choice(name, best_gpu(err), &said_gpu);
    if (strcmp(name, "metal") ==
        0) { /* Apple's GPUs by Vulkan (MoltenVK), else the best there is */
        km_error none = {0};
        km_device *gpu = say_choice(name, best_gpu(&none), &said_metal);
        if (!gpu)
            km_error_set(err, KM_ERR_DEVICE,
                         "metal: Kermes has no Metal backend but Vulkan's (MoltenVK), and there is "
                         "no accelerator here: %s",
                         none.text);
        return gpu;
    }
    int index = index_of(name, "cuda");
    if (index >= 0) return km_cuda_device(index, err);
    if ((index = index_of(name, "vulkan")) >= 0) return km_vulkan_device(index, err);
    km_error_set(err, KM_ERR_DEVICE,
                 "%.40s: no such device; there are auto, cpu, ref, gpu, metal, "
                 "cuda, cuda:N, vulkan and vulkan:N",
                 name);
    return NULL;
}

bool km_device_any_gpu(const char *name) {
    return strcmp(name, "auto") == 0 || strcmp(name, "gpu") == 0 || strcmp(name, "metal") == 0 ||
           strcmp(name, "cuda") == 0;
}

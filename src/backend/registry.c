/* Finding devices by name. Devices live as long as the process; a context borrows one. */
#include "backend/backend.h"
#include "backend/cpu/cpu.h"
#include "backend/host.h"
#include "backend/ref/ref.h"
#include "base/log.h"
#include <pthread.h>
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

static km_device ref_device = {.name = "ref", .host = true, .ops = &km_host_ops,
                               .backend = &km_ref_backend};
static km_device cpu_device = {.name = "cpu", .host = true, .ops = &km_host_ops,
                               .fallback = &ref_device};

km_device *km_ref_device(void) { return &ref_device; }

static void make_cpu(void) { cpu_device.backend = km_cpu_backend(); }

km_device *km_cpu_device(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_cpu);
    return &cpu_device;
}

/* "cuda" and "cuda:N"; -1 for anything else. */
static int cuda_index(const char *name) {
    if (strcmp(name, "cuda") == 0) return 0;
    if (strncmp(name, "cuda:", 5) != 0) return -1;
    if (name[5] < '0' || name[5] > '9') return -1; /* strtol would take a sign or blanks */
    char *end;
    long n = strtol(name + 5, &end, 10);
    return *end == 0 && n < 1 << 20 ? (int)n : -1;
}

km_device *km_device_find(const char *name, km_error *err) {
    if (strcmp(name, "ref") == 0) return km_ref_device();
    if (strcmp(name, "cpu") == 0) return km_cpu_device();
    if (strcmp(name, "auto") == 0)
        return km_cuda_device_count() > 0 && km_cuda_device(0, NULL) ? km_cuda_device(0, NULL)
                                                                     : km_cpu_device();
    if (strcmp(name, "gpu") == 0) return km_cuda_device(0, err);
    if (strcmp(name, "metal") == 0) { /* the best accelerator here, whatever its make */
        km_device *gpu = km_cuda_device_count() > 0 ? km_cuda_device(0, NULL) : NULL;
        if (gpu) km_note(KM_LOG_INFO, "metal: there is none here; using %s", gpu->name);
        if (gpu) return gpu;
        km_error_set(err, KM_ERR_DEVICE, "metal: Kermes has no Metal backend; use cpu, or gpu on a "
                                         "machine with an NVIDIA GPU");
        return NULL;
    }
    int index = cuda_index(name);
    if (index >= 0) return km_cuda_device(index, err);
    km_error_set(err, KM_ERR_DEVICE, "%.40s: no such device; there are auto, cpu, ref, gpu, cuda and "
                                     "cuda:N", name);
    return NULL;
}

/* Finding and starting GPUs. A GPU that cannot be used is an error that names the reason: no
 * driver, no such index, too old a chip, no kernels in this build, kernels for other chips. */
#include "backend/cuda/device.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/modules.h"
#include "base/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static km_cuda_dev *devices[KM_CUDA_MAX_DEVICES];

/* ---- What is there ---- */

static int count_devices(km_error *err) {
    int n = 0;
    char text[200];
    if (!km_cuda_driver(err)) return 0;
    km_cu_result r = KM_CU(device_count, &n);
    if (r != KM_CU_OK) {
        km_error_set(err, KM_ERR_DEVICE, "the NVIDIA driver cannot list its GPUs: %s",
                     km_cuda_error_text(r, text, sizeof text));
        return 0;
    }
    if (n <= 0)
        km_error_set(err, KM_ERR_DEVICE, "no NVIDIA GPU here: the driver shows none%s",
                     getenv("CUDA_VISIBLE_DEVICES") ? " (CUDA_VISIBLE_DEVICES may hide it)" : "");
    return n < KM_CUDA_MAX_DEVICES ? n : KM_CUDA_MAX_DEVICES;
}

static int attribute(km_cu_device handle, int attr) {
    int value = 0;
    return km_cuda_api()->device_attr(&value, attr, handle) == KM_CU_OK ? value : 0;
}

int km_cuda_device_count(void) {
    int n = km_cuda_kernels_get()->count > 0 ? count_devices(NULL) : 0, usable = 0;
    for (int i = 0; i < n; i++) {
        km_cu_device handle;
        if (km_cuda_api()->device_get(&handle, i) != KM_CU_OK) continue;
        int cc =
            attribute(handle, KM_CU_ATTR_CC_MAJOR) * 10 + attribute(handle, KM_CU_ATTR_CC_MINOR);
        usable += cc >= KM_CUDA_OLDEST_CC;
    }
    return usable;
}

static km_status no_such(int index, int n, km_error *err) {
    char list[320];
    size_t at = 0;
    list[0] = 0;
    for (int i = 0; i < n && at < sizeof list - 1; i++) {
        char name[96] = "?";
        km_cu_device handle;
        if (km_cuda_api()->device_get(&handle, i) == KM_CU_OK)
            km_cuda_api()->device_name(name, sizeof name, handle);
        int w = snprintf(list + at, sizeof list - at, "%scuda:%d %s", i ? ", " : "", i, name);
        at += w > 0 ? (size_t)w : 0;
    }
    return km_error_set(err, KM_ERR_DEVICE, "cuda:%d: no such device; this machine has %d (%s)",
                        index, n, list);
}

/* ---- One device ---- */

km_cu_result km_cuda_enter(km_cuda_dev *dev) { return KM_CU(context_use, dev->context); }

void km_cuda_note_error(km_cuda_dev *dev, km_cu_result code, const char *doing) {
    char text[200];
    if (!km_cuda_is_fatal(code) || atomic_load(&dev->lost)) return;
    pthread_mutex_lock(&dev->lock);
    if (!atomic_load(&dev->lost)) {
        snprintf(dev->lost_why, sizeof dev->lost_why, "%s: %s", doing,
                 km_cuda_error_text(code, text, sizeof text));
        atomic_store(&dev->lost, true);
    }
    pthread_mutex_unlock(&dev->lock);
}

km_status km_cuda_lost(km_cuda_dev *dev, km_error *err) {
    return km_error_set(err, KM_ERR_GPU,
                        "%s was lost by an earlier error (%s); restart the program to use it "
                        "again, or go on with cpu",
                        dev->base.name, dev->lost_why);
}

km_cu_module km_cuda_module_get(km_cuda_dev *dev, const char *name, km_error *err) {
    char text[200];
    const km_cuda_kernels *kernels = km_cuda_kernels_get();
    int i = km_cuda_module_index(name);
    if (i < 0) {
        km_error_set(err, KM_ERR_GPU, "%s: the kernels %s.cu are not in this build (%s)",
                     dev->base.name, name, kernels->note);
        return NULL;
    }
    pthread_mutex_lock(&dev->lock);
    km_cu_result r = KM_CU_OK;
    if (!dev->modules[i]) r = KM_CU(module_load, &dev->modules[i], kernels->table[i].data);
    km_cu_module module = r == KM_CU_OK ? dev->modules[i] : NULL;
    pthread_mutex_unlock(&dev->lock);
    if (module) return module;
    km_cuda_note_error(dev, r, "loading kernels");
    km_cuda_error_text(r, text, sizeof text);
    if (r == KM_CU_NO_BINARY || r == KM_CU_INVALID_IMAGE || r == KM_CU_NO_JIT)
        km_error_set(err, KM_ERR_DEVICE,
                     "%s (%s): the kernels of this build (%s) do not run on compute capability "
                     "%d.%d; rebuild with -DKERMES_CUDA_ARCHS=native (%s)",
                     dev->base.name, dev->model, kernels->note, dev->cc / 10, dev->cc % 10, text);
    else if (r == KM_CU_NEW_PTX || r == KM_CU_INVALID_SOURCE)
        km_error_set(err, KM_ERR_DEVICE,
                     "%s: the NVIDIA driver (CUDA %d.%d) is older than the compiler of these "
                     "kernels; update the driver, or rebuild with its CUDA version (%s)",
                     dev->base.name, km_cuda_driver_version() / 1000,
                     km_cuda_driver_version() % 1000 / 10, text);
    else
        km_error_set(err, r == KM_CU_OUT_OF_MEMORY ? KM_ERR_MEMORY : KM_ERR_GPU,
                     "%s: loading the kernels %s.cu: %s", dev->base.name, name, text);
    return NULL;
}

/* What contexts may hold of the device's memory; KERMES_GPU_MEMORY_FRACTION in (0, 1]. */
static size_t memory_limit(size_t memory) {
    const char *s = getenv("KERMES_GPU_MEMORY_FRACTION");
    double f = s ? strtod(s, NULL) : 0;
    if (!(f > 0 && f <= 1)) f = 0.8;
    return (size_t)((double)memory * f);
}

static bool describe(km_cuda_dev *dev, int index, km_error *err) {
    char text[200];
    const km_cu_api *api = km_cuda_api();
    snprintf(dev->base.name, sizeof dev->base.name, "cuda:%d", index);
    dev->index = index;
    km_cu_result r = KM_CU(device_get, &dev->handle, index);
    if (r == KM_CU_OK) r = KM_CU(device_memory, &dev->memory, dev->handle);
    if (r != KM_CU_OK) {
        km_error_set(err, KM_ERR_DEVICE, "cuda:%d: %s", index,
                     km_cuda_error_text(r, text, sizeof text));
        return false;
    }
    if (api->device_name(dev->model, sizeof dev->model, dev->handle) != KM_CU_OK)
        snprintf(dev->model, sizeof dev->model, "GPU");
    dev->cc = attribute(dev->handle, KM_CU_ATTR_CC_MAJOR) * 10 +
              attribute(dev->handle, KM_CU_ATTR_CC_MINOR);
    dev->sms = attribute(dev->handle, KM_CU_ATTR_SMS);
    if (dev->sms < 1) dev->sms = 1;
    dev->threads_per_sm = attribute(dev->handle, KM_CU_ATTR_THREADS_PER_SM);
    dev->l2 = (size_t)attribute(dev->handle, KM_CU_ATTR_L2_BYTES);
    dev->shared_max = (size_t)attribute(dev->handle, KM_CU_ATTR_SHARED_PER_BLOCK);
    dev->limit = memory_limit(dev->memory);
    if (dev->cc >= KM_CUDA_OLDEST_CC) return true;
    km_error_set(err, KM_ERR_DEVICE,
                 "cuda:%d (%s) has compute capability %d.%d; %d.%d or newer is needed (Turing, "
                 "2018); Vulkan may serve it",
                 index, dev->model, dev->cc / 10, dev->cc % 10, KM_CUDA_OLDEST_CC / 10,
                 KM_CUDA_OLDEST_CC % 10);
    return false;
}

static void free_device(km_cuda_dev *dev) {
    const km_cu_api *api = km_cuda_api();
    if (dev->context) {
        api->context_use(dev->context);
        for (int i = 0; i < km_cuda_kernels_get()->count; i++)
            if (dev->modules[i]) api->module_unload(dev->modules[i]);
        api->context_use(NULL);
        api->context_release(dev->handle);
    }
    pthread_mutex_destroy(&dev->lock);
    km_free(dev->modules);
    km_free(dev);
}

static km_cuda_dev *make_device(int index, km_error *err) {
    char text[200];
    km_cuda_dev *dev = km_calloc(1, sizeof *dev);
    if (!dev) {
        km_error_set(err, KM_ERR_MEMORY, "cuda:%d: out of memory", index);
        return NULL;
    }
    pthread_mutex_init(&dev->lock, NULL);
    if (!describe(dev, index, err)) goto fail;
    dev->modules = km_calloc((size_t)km_cuda_kernels_get()->count + 1, sizeof *dev->modules);
    if (!dev->modules) {
        km_error_set(err, KM_ERR_MEMORY, "cuda:%d: out of memory", index);
        goto fail;
    }
    km_cu_result r = KM_CU(context_retain, &dev->context, dev->handle);
    if (r == KM_CU_OK) r = km_cuda_enter(dev);
    if (r != KM_CU_OK) {
        km_error_set(err, KM_ERR_DEVICE, "cuda:%d (%s) cannot be used: %s", index, dev->model,
                     km_cuda_error_text(r, text, sizeof text));
        goto fail;
    }
    dev->base.ops = &km_cuda_device_ops;
    dev->base.backend = km_cuda_backend();
    dev->base.fallback = km_cpu_device();
    dev->base.impl = dev;
    /* One small module tells whether this build's kernels fit this chip and this driver. */
    if (!km_cuda_module_get(dev, "fill", err)) goto fail;
    return dev;
fail:
    free_device(dev);
    return NULL;
}

km_device *km_cuda_device(int index, km_error *err) {
    int n = count_devices(err);
    if (n <= 0) return NULL;
    if (index < 0 || index >= n) {
        no_such(index, n, err);
        return NULL;
    }
    if (km_cuda_kernels_get()->count == 0) {
        km_error_set(
            err, KM_ERR_DEVICE,
            "cuda:%d: this Kermes has no GPU kernels (%s); install the package kermes-cuda, "
            "or the CUDA toolkit and rebuild, or use cpu",
            index, km_cuda_kernels_get()->note);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    if (!devices[index]) devices[index] = make_device(index, err);
    km_cuda_dev *dev = devices[index];
    pthread_mutex_unlock(&lock);
    return dev ? &dev->base : NULL;
}

void km_cuda_shutdown(void) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < KM_CUDA_MAX_DEVICES; i++) {
        if (devices[i]) free_device(devices[i]);
        devices[i] = NULL;
    }
    pthread_mutex_unlock(&lock);
}

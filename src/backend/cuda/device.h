/* One GPU as the backend sees it: its context, its properties, and the kernels loaded on it. Made
 * on first use by km_cuda_device (backend/backend.h) and kept for the process's life. */
#ifndef KM_BACKEND_CUDA_DEVICE_H
#define KM_BACKEND_CUDA_DEVICE_H
#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include <pthread.h>
#include <stdatomic.h>

#define KM_CUDA_MAX_DEVICES 16
#define KM_CUDA_MAX_KERNELS 2048
#define KM_CUDA_OLDEST_CC 75 /* compute capability 7.5 */

typedef struct km_cuda_dev {
    km_device base;
    int index;
    km_cu_device handle;
    km_cu_context context;
    char model[96]; /* "NVIDIA H200" */
    int cc;         /* compute capability times ten: 90 */
    int sms;        /* multiprocessors */
    int threads_per_sm;
    size_t memory, l2;  /* bytes */
    size_t shared_max;  /* dynamic shared memory that one block may have */
    size_t limit;       /* what all contexts together may hold */
    atomic_size_t held; /* what they do hold */
    atomic_bool lost;
    char lost_why[256]; /* written once, before `lost` */

    pthread_mutex_t lock;  /* for loading */
    km_cu_module *modules; /* one per entry of km_cuda_modules; NULL until needed */
    _Atomic(km_cu_function) function[KM_CUDA_MAX_KERNELS]; /* by a kernel's id */
    atomic_uint shared[KM_CUDA_MAX_KERNELS]; /* dynamic shared memory already allowed to it */
} km_cuda_dev;

static inline km_cuda_dev *km_cuda_dev_of(const km_lane *lane) { return lane->device->impl; }

/* Makes the device's context current in this thread. */
km_cu_result km_cuda_enter(km_cuda_dev *dev);
/* The module of that name, loaded; NULL with *err set. */
km_cu_module km_cuda_module_get(km_cuda_dev *dev, const char *name, km_error *err);
/* Marks the device lost if the error is of that kind. */
void km_cuda_note_error(km_cuda_dev *dev, km_cu_result code, const char *doing);
/* The sentence for a lost device. */
km_status km_cuda_lost(km_cuda_dev *dev, km_error *err);

/* For tests: gives all devices back. No context may be left on them. */
void km_cuda_shutdown(void);

extern const km_device_ops km_cuda_device_ops; /* lane.c */

#endif

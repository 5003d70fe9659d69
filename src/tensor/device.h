/* A device as tensors see it: a place with memory. Kernels come in backend/backend.h. */
#ifndef KM_TENSOR_DEVICE_H
#define KM_TENSOR_DEVICE_H
#include "base/error.h"
#include "tensor/mempool.h"

typedef struct km_device km_device;
typedef struct km_lane km_lane;
struct km_storage;

/* A context's own lane on a device: its memory pool and, on a GPU, its stream. */
struct km_lane {
    km_ctx *ctx;
    km_device *device;
    km_mempool pool;
    void *queue;       /* the backend's own: stream, handles, staging */
    uint64_t launches; /* kernels started on it: whether a call that failed did anything */
};

/* Every call returns KM_OK or sets lane->ctx's error. Copies are ordered with kernels. */
typedef struct km_device_ops {
    km_status (*open)(km_lane *lane, km_error *err); /* fills pool's raw_* and queue */
    void (*close)(km_lane *lane);                    /* after the pool was emptied */
    km_status (*upload)(km_lane *lane, void *dst, const void *src, size_t bytes);
    km_status (*download)(km_lane *lane, void *dst, const void *src, size_t bytes); /* waits */
    km_status (*sync)(km_lane *lane);
    /* What kernels are put on, with all that was held back already there; NULL: no such thing. */
    void *(*stream)(km_lane *lane);
    /* Nothing on it can be used any more in this process. NULL: that does not happen. */
    bool (*lost)(const km_device *device);
    /* Bytes that contexts could take now; NULL: the host's, which nobody counts. */
    size_t (*room)(km_device *device);
    /* Blocks of a weight rearranged in place, and back (km_settle); NULL: files' layout is fine. */
    km_status (*settle)(km_lane *lane, struct km_storage *s, km_dtype dtype);
    km_status (*unsettle)(km_lane *lane, struct km_storage *s, km_dtype dtype);
    /* A weight that stays in the host's memory is about to be made (km_wrap): layers bring it over as
     * they use it, in steps that are not captured. NULL: the device's memory is the host's, or it
     * cannot. */
    km_status (*lend)(km_lane *lane);
    /* Graphs, where the device has them; all NULL otherwise. Work between begin and end is recorded
     * and not run. end takes `old` and returns the graph; NULL: an error, or it cannot be kept. */
    km_status (*graph_begin)(km_lane *lane);
    void *(*graph_end)(km_lane *lane, void *old);
    km_status (*graph_launch)(void *graph);
    void (*graph_free)(void *graph);
} km_device_ops;

struct km_device {
    char name[24]; /* "ref", "cpu", "cuda:0" */
    bool host;     /* its memory is ordinary memory */
    const km_device_ops *ops;
    const struct km_backend *backend;
    km_device *fallback; /* runs what this one lacks; NULL for ref */
    void *impl;
};

#endif

/* Launching kernels: what the host side of every op on the GPU uses.
 *
 *     static km_cuda_kernel exp_f32 = {.module = "unary", .name = "exp_f32"}; // kernels/unary.cu
 *     km_unary_args args = {.x = ..., .out = ..., .n = n};    // a struct both sides include
 *     return km_cuda_launch1(km_cuda_lane(c), &exp_f32, KM_DIM(blocks), KM_DIM(256), 0, &args);
 *
 * The function behind a record is found once per device; after that a launch costs two loads. */
#ifndef KM_BACKEND_CUDA_LAUNCH_H
#define KM_BACKEND_CUDA_LAUNCH_H
#include "backend/cuda/device.h"

typedef struct km_cuda_kernel {
    const char *module; /* the source's name, without .cu */
    const char *name;   /* the kernel's extern "C" name */
    bool waits;         /* it begins with wait_for_previous() (kernels/common.cuh), so it may be
                         * started before the kernel in front of it has ended */
    bool beside;   /* blocks of other kernels are to find shared memory beside its own: how much
                         * a multiprocessor has is set when it is idle */
    atomic_int id; /* given on first use; 0 before */
} km_cuda_kernel;

typedef struct km_dim {
    unsigned x, y, z;
} km_dim;
#define KM_DIM_PICK(x, y, z, ...) ((km_dim){(unsigned)(x), (unsigned)(y), (unsigned)(z)})
#define KM_DIM(...) KM_DIM_PICK(__VA_ARGS__, 1, 1, 1)

/* What a launch may ask for beyond its sizes. All zero by default. */
typedef struct km_launch_options {
    km_dim cluster; /* blocks to a cluster; x 0 for none */
    bool alone;     /* not before the kernel in front has ended, although it waits */
} km_launch_options;

/* The lane a call runs on: that of its first output. */
static inline km_lane *km_cuda_lane(const km_call *c) { return c->out[0]->storage->lane; }
static inline km_cuda_dev *km_cuda_dev_for(const km_call *c) {
    return km_cuda_dev_of(km_cuda_lane(c));
}

/* Starts a kernel on the lane's stream; params[i] points to its ith argument. A grid with a zero
 * does nothing. More than 48 KiB of dynamic shared memory is asked for as needed. KM_OK, or an
 * error set on the lane's context. */
km_status km_cuda_launch(km_lane *lane, km_cuda_kernel *k, km_dim grid, km_dim block,
                         unsigned shared, void **params);
/* For a kernel whose only argument is a struct. */
static inline km_status km_cuda_launch1(km_lane *lane, km_cuda_kernel *k, km_dim grid, km_dim block,
                                        unsigned shared, const void *args) {
    void *params[] = {(void *)args};
    return km_cuda_launch(lane, k, grid, block, shared, params);
}
km_status km_cuda_launch_with(km_lane *lane, km_cuda_kernel *k, km_dim grid, km_dim block,
                              unsigned shared, void **params, const km_launch_options *options);

/* The driver's handle of a kernel on the lane's device (for occupancy, attributes); NULL with the
 * error set. */
km_cu_function km_cuda_function(km_lane *lane, km_cuda_kernel *k);
/* Blocks of `threads` that one multiprocessor holds at once; at least 1. */
int km_cuda_occupancy(km_lane *lane, km_cuda_kernel *k, int threads, unsigned shared);

/* Device memory for one call's private use, from the lane's pool. Given back with
 * km_cuda_scratch_free right after the launches that use it: the stream keeps the order. NULL with
 * the error set. */
void *km_cuda_scratch(km_lane *lane, size_t bytes, size_t *cap);
void km_cuda_scratch_free(km_lane *lane, void *p, size_t cap);

/* Counters in device memory, all zero between kernels: a kernel that counts its blocks in one of
 * them sets it back to zero with its last block. NULL with the error set. */
#define KM_CUDA_COUNTERS 65536
uint32_t *km_cuda_counters(km_lane *lane);

/* The lane's stream, to put work on at once. Ops that were held back (chain.h) come first; should
 * they fail, the context has the error. */
km_cu_stream km_cuda_stream(km_lane *lane);

/* While a graph is captured: where a replay finds two words that random kernels add to their
 * stream and to their seed, so that each replay draws new numbers. NULL otherwise. */
const uint64_t *km_cuda_draws(const km_lane *lane);

/* Turns a driver error into the context's: "cuda:0: layer_norm: <driver's text>". */
km_status km_cuda_fail(km_lane *lane, km_cu_result code, const char *doing);

#endif

/* The host side of walks: merged axes as the kernels want them, in launches of fewer than 2^31
 * elements, and the small questions about operands that decide which kernel serves. */
#ifndef KM_BACKEND_CUDA_WALKER_H
#define KM_BACKEND_CUDA_WALKER_H
#include "backend/cuda/kernels/args.h"
#include "backend/cuda/launch.h"
#include "backend/iter.h"
#include "base/util.h"

/* 0, 1, 2 for f32, f16, bf16: the float types that kernels compute with; -1 for others. */
static inline int km_cuda_slot(km_dtype d) {
    return d == KM_F32 ? 0 : d == KM_F16 ? 1 : d == KM_BF16 ? 2 : -1;
}
#define KM_CUDA_SLOTS 3

/* A kernel for each of them, f(module, name_f32) and so on. */
#define KM_CUDA_PER_TYPE(module_, name_)                                                           \
    {                                                                                              \
        {.module = module_, .name = name_ "_f32"}, {.module = module_, .name = name_ "_f16"}, {    \
            .module = module_, .name = name_ "_bf16"                                               \
        }                                                                                          \
    }

/* The same for kernels that wait for the one before (launch.h). */
#define KM_CUDA_WAITING(module_, name_)                                                            \
    {                                                                                              \
        {.module = module_, .name = name_ "_f32", .waits = true},                                  \
            {.module = module_, .name = name_ "_f16", .waits = true}, {                            \
            .module = module_, .name = name_ "_bf16", .waits = true                                \
        }                                                                                          \
    }

/* 0 to 3 for elements of 1, 2, 4, 8 bytes. */
static inline int km_cuda_size_slot(size_t size) {
    return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
}

static inline bool km_cuda_aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }
static inline bool km_cuda_empty(const km_tensor *t) { return km_shape_count(t->shape) == 0; }
/* One run, contiguous in every operand and aligned to 16 bytes. */
bool km_cuda_is_flat(const km_iter *it);

/* Blocks and threads for a kernel in which each thread handles `per_thread` of `items`: fewer
 * threads to a block where there would be too few blocks for the device. */
typedef struct km_cuda_grid {
    km_dim blocks, threads;
} km_cuda_grid;
km_cuda_grid km_cuda_grid_for(const km_lane *lane, int64_t items, int per_thread);

/* Launches a kernel of km_walk_args over `it`, whose operands are out, a, b, c, with `unit`
 * elements of each thread (1, or what the kernel does). args carries all but pointers and walk. */
km_status km_cuda_walk(km_lane *lane, km_cuda_kernel *k, const km_iter *it, km_walk_args *args,
                       int unit);

/* A walk over operands' axes; their product must be less than 2^31. */
void km_cuda_walk_make(km_walk *w, int ndim, const int64_t *dim, int n,
                       const int64_t (*stride)[KM_MAX_DIMS]);

/* The bits of a number stored in a dtype, and 16 bytes of them repeated. */
uint64_t km_cuda_bits(km_dtype dtype, double value);
/* A number as an integer dtype holds it: truncated and saturated, NaN as 0. */
int64_t km_cuda_whole(km_dtype dtype, double value);

/* Copies x to out, of the same shape and dtype (copy.c). */
km_status km_cuda_copy(km_lane *lane, const km_tensor *x, const km_tensor *out);

/* Rows of more than 64 KiB on Hopper: a few blocks to a row, each with its part of the row at hand
 * and of the next one in shared memory (kernels/wide_rows.cuh). */

/* Blocks that share a row of n elements of `size` bytes, or 0 where km_cuda_launch_rows is to do it:
 * another chip, a narrow row, one too wide. `aligned` as there. `weights`: vectors as long as the
 * row that are kept beside it. */
int km_cuda_wide_blocks(const km_lane *lane, int64_t n, size_t size, bool aligned, int weights);
/* Launches a kernel of wide_rows.cu with that many blocks to a row. */
km_status km_cuda_launch_wide(km_lane *lane, km_cuda_kernel *k, int blocks, int64_t rows, int64_t n,
                              size_t size, int weights, const void *args);

#endif

/* Rows of more than 64 KiB on Hopper: a few blocks to a row, each with its part of the row at hand
 * and of the next one in shared memory (kernels/wide_rows.cuh). */
#ifndef KM_BACKEND_CUDA_WIDE_ROWS_H
#define KM_BACKEND_CUDA_WIDE_ROWS_H
#include "backend/cuda/walker.h"

/* Blocks that share a row of n elements of `size` bytes, or 0 where km_cuda_launch_rows is to do it:
 * another chip, a narrow row, one too wide. `aligned` as there. `weights`: vectors as long as the
 * row that are kept beside it. */
int km_cuda_wide_blocks(const km_lane *lane, int64_t n, size_t size, bool aligned, int weights);
/* Launches a kernel of wide_rows.cu with that many blocks to a row. */
km_status km_cuda_launch_wide(km_lane *lane, km_cuda_kernel *k, int blocks, int64_t rows, int64_t n,
                              size_t size, int weights, const void *args);

#endif

/* Choosing how many threads share a row (kernels/row.cuh), for all row kernels alike. */
#ifndef KM_BACKEND_CUDA_ROW_TEAM_H
#define KM_BACKEND_CUDA_ROW_TEAM_H
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/walker.h"

enum { KM_TEAM_WARP, KM_TEAM_BLOCK, KM_TEAM_CLUSTER, KM_TEAM_STREAM, KM_TEAMS };

/* The instances of a row kernel: by float type, team, and whether rows are 16-byte aligned. */
typedef km_cuda_kernel km_row_kernels[KM_CUDA_SLOTS][KM_TEAMS][2];
#define KM_ROW_KERNELS(module_, name_)                                                             \
    {                                                                                              \
        KM_ROW_OF_TYPE(module_, name_ "_f32"), KM_ROW_OF_TYPE(module_, name_ "_f16"),              \
            KM_ROW_OF_TYPE(module_, name_ "_bf16")                                                 \
    }
#define KM_ROW_OF_TYPE(m, n)                                                                       \
    {                                                                                              \
        KM_ROW_OF_TEAM(m, n "_warp"), KM_ROW_OF_TEAM(m, n "_block"),                               \
            KM_ROW_OF_TEAM(m, n "_cluster"), KM_ROW_OF_TEAM(m, n "_stream")                        \
    }
#define KM_ROW_OF_TEAM(m, n)                                                                       \
    {                                                                                              \
        {.module = m, .name = n "1"}, { .module = m, .name = n }                                   \
    }

/* Launches the right instance for `rows` rows of n elements. `aligned`: every operand's rows lie at
 * multiples of 16 bytes. */
km_status km_cuda_launch_rows(km_lane *lane, km_row_kernels k, int slot, size_t size, int64_t rows,
                              int n, bool aligned, const void *args);
/* True when all of the given tensors (NULL ones aside) start at a multiple of 16 bytes and so do
 * their rows of n elements. */
bool km_cuda_rows_aligned(km_tensor *const *t, int count, int64_t n, size_t size);

#endif

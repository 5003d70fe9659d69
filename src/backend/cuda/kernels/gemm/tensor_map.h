/* A tensor map: the copy engine's description of a tensor in device memory, made on the host by
 * cuTensorMapEncodeTiled (CUtensorMap is the same 128 bytes) and passed to kernels by value as a
 * __grid_constant__ parameter. For C and CUDA. */
#ifndef KM_CUDA_TENSOR_MAP_H
#define KM_CUDA_TENSOR_MAP_H

#include <stdint.h>

typedef struct km_tensor_map {
    uint64_t opaque[16];
} __attribute__((aligned(64))) km_tensor_map;

#endif

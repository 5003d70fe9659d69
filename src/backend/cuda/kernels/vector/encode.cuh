// What the kernels that encode share: scales.
#ifndef KM_CUDA_ENCODE_CUH
#define KM_CUDA_ENCODE_CUH
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/vector/encode_args.h"

// The step of the geometric row nearest to s; 0 where s is next to nothing. In f64, as on the CPU: one
// row has one of them.
__device__ __forceinline__ int scale_code(float low, float step, double s) {
    if (!(2 * s >= (double)low)) return 0;
    double i = round(log(s / (double)low) / fmax((double)step, 1e-9));
    return i < 0 ? 1 : i >= 255 ? 255 : (int)i + 1;
}

__device__ __forceinline__ double row_scale(float low, float step, float square, int dim) {
    double s = sqrt((double)square / dim);
    return scale_code(low, step, s) > 0 ? s : 0.0;
}

__device__ __forceinline__ double warp_sum64(double v) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(ALL_LANES, v, lane);
    return v;
}

#endif

// Blocks of weights from the file's layout to planes, and back. Once per weight: a thread moves one
// block's bytes.
#include "backend/cuda/kernels/quant_args.h"

extern "C" __global__ void quant_planes(const __grid_constant__ km_planes_args a) {
    int64_t b = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= a.blocks) return;
    const int64_t block = b * a.bytes;
    int64_t plane = 0;
    for (int f = 0; f < a.fields; f++) {
        int64_t there = plane + b * a.length[f], here = block + a.place[f];
        for (int i = 0; i < a.length[f]; i++)
            if (a.back) a.to[here + i] = a.from[there + i];
            else a.to[there + i] = a.from[here + i];
        plane += a.padded * a.length[f];
    }
}

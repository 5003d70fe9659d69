// Groups of weights from the file's layout to planes, and back. Once per weight: a thread moves one
// group's bytes.
#include "backend/cuda/kernels/quant/quant_args.h"

extern "C" __global__ void quant_planes(const __grid_constant__ km_planes_args a) {
    int64_t g = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, plane = 0;
    if (g >= a.groups) return;
    for (int f = 0; f < KM_QUANT_FIELDS && a.field[f].length; f++) {
        const km_quant_field &d = a.field[f];
        int64_t there = plane + g * (d.length * d.count);
        for (int n = 0; n < d.count; n++)
            for (int i = 0; i < d.length; i++) {
                int64_t here = g * a.bytes + d.place + n * d.stride + i,
                        at = there + n * d.length + i;
                if (a.back)
                    a.to[here] = a.from[at];
                else
                    a.to[at] = here < a.end ? a.from[here] : 0;
            }
        plane += a.padded * (d.length * d.count);
    }
}

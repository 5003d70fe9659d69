// Levels of turned residuals, a warp to a few rows.
//
// Floor for (n, d) at b bits: 4 n d bytes read and n bytes of code written, 1.7 GB for 1,000,000 x 384
// at 4 bits, 0.4 ms of an H200's memory. Operations: a division, b comparisons against borders in
// shared memory and two multiply-adds in f64 to a column, some 40 instructions; 1.2e10 / 32 of them in
// all, 0.5 ms at 4 instructions a cycle on 132 multiprocessors. So both matter: rows are read once, 32
// columns of a row by a warp, and what columns have in common is kept for four rows.
//
// A vote of the warp on one bit of its levels is that bit's plane for four groups of eight columns: a
// byte to each of four lanes.
#include "backend/cuda/kernels/vector/encode.cuh"

constexpr int TOGETHER = 4; // rows of a warp

KM_KERNEL __launch_bounds__(256) encode_levels(const __grid_constant__ km_levels_args p) {
    __shared__ float levels[9 * 256], borders[9 * 256];
    int lane = threadIdx.x % 32;
    wait_for_previous();
    for (int i = threadIdx.x; i < 9 * 256; i += 256) {
        levels[i] = p.tables[i];
        borders[i] =
            i % 256 ? 0.5f * (p.tables[i - 1] + p.tables[i]) : 0.0f; // between a level and the last
    }
    __syncthreads();
    int64_t first = ((int64_t)blockIdx.x * 8 + threadIdx.x / 32) * TOGETHER;
    if (first >= p.n) return;
    double scale[TOGETHER], along[TOGETHER], norm[TOGETHER];
    float by[TOGETHER];
#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
        double s = 0;
        if (first + r < p.n && lane == 0) s = row_scale(p.low, p.step, p.square[first + r], p.dim);
        scale[r] = __shfl_sync(ALL_LANES, s, 0);
        by[r] = scale[r] > 0 ? (float)(1 / scale[r]) : 0.0f;
        along[r] = norm[r] = 0;
    }
    for (int r = 0; r < TOGETHER && first + r < p.n; r++) // bytes that no plane fills
        for (int64_t b = lane; b < p.bytes; b += 32) p.codes[(first + r) * p.bytes + b] = 0;
    __syncwarp();
    for (int chunk = 0; chunk < p.d; chunk += 32) {
        int j = chunk + lane;
        bool there = j < p.d;
        int bits = there ? __ldg(p.bits + j) : 0;
        float amp = there ? __ldg(p.amp + j) : 0.0f;
        int group = (chunk + lane) / 8; // this lane writes plane lane % 8 of it
        int own = chunk + lane / 8 * 8, own_bits = own < p.d ? __ldg(p.bits + own) : 0;
        int plane = lane % 8, at = plane < own_bits ? __ldg(p.at + group * 8 + plane) : 0;
        const float *border = borders + bits * 256, *value = levels + bits * 256;
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            if (first + r >= p.n) break;
            float x = there ? p.z[(first + r) * p.d + j] * by[r] : 0.0f;
            int level = 0;
            if (bits > 0 && amp > 0) {
                float v = x / amp;
                for (int step = 1 << bits >> 1; step > 0; step >>= 1)
                    if (v >= border[level + step]) level += step;
            }
            double v = bits > 0 ? (double)amp * value[level] : 0.0;
            along[r] += x * v;
            norm[r] += v * v;
            uint32_t mine = 0;
#pragma unroll
            for (int l = 0; l < 8; l++) {
                uint32_t votes =
                    __ballot_sync(ALL_LANES, l < bits && (level >> (bits - 1 - l) & 1));
                if (plane == l) mine = votes;
            }
            if (plane < own_bits && scale[r] > 0)
                p.codes[(first + r) * p.bytes + at] = (uint8_t)(mine >> (lane / 8 * 8));
        }
    }
#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
        double a = warp_sum64(along[r]), b = warp_sum64(norm[r]);
        if (lane == 0 && first + r < p.n && scale[r] > 0)
            p.codes[(first + r) * p.bytes] =
                (uint8_t)scale_code(p.low, p.step, b > 0 ? scale[r] * a / b : 0.0);
    }
}

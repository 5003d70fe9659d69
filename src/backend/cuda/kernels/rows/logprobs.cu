// How likely tokens are: one block a row reads it twice, for the largest of each 64 logits and for the
// sum, and then takes the likeliest out of the blocks where they are, one after the other.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/sample_args.h"

typedef unsigned long long told_rank;

// Bits that order as the numbers do; NaN counts as -infinity. Never 0, which is "nothing left".
__device__ __forceinline__ uint32_t order_of(float x) {
    uint32_t b = __float_as_uint(x != x ? -INFINITY : x);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ float number_of(uint32_t order) {
    return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

// Larger first, then the lower place.
__device__ __forceinline__ told_rank rank_of(uint32_t order, int32_t place) {
    return order ? (told_rank)order << 32 | (uint32_t)~place : 0;
}

__device__ __forceinline__ told_rank warp_most(told_rank v) {
    for (int step = 16; step > 0; step /= 2) {
        told_rank other = __shfl_xor_sync(ALL_LANES, v, step);
        v = other > v ? other : v;
    }
    return v;
}

// Of the whole block, for all threads.
__device__ told_rank block_most(told_rank v, told_rank *room) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_most(v);
    __syncthreads();
    if (lane == 0) room[warp] = v;
    __syncthreads();
    return warp_most(lane < warps ? room[lane] : 0);
}

extern "C" __global__ void __launch_bounds__(KM_SAMPLE_THREADS) logprobs(km_logprobs_args a) {
    wait_for_previous();
    __shared__ told_rank room[32];
    __shared__ double sums[32];
    __shared__ told_rank told;
    int i = blockIdx.x, t = threadIdx.x, warp = t / 32, lane = t % 32, warps = blockDim.x / 32;
    int32_t row = a.which[2 * i], id = a.which[2 * i + 1], n = a.tokens;
    float *out = a.out + (int64_t)i * (1 + a.top);
    int32_t *ids = a.ids + (int64_t)i * a.top;
    if (row < 0 || row >= a.rows) {
        for (int k = t; k <= a.top; k += blockDim.x) {
            out[k] = NAN;
            if (k) ids[k - 1] = -1;
        }
        return;
    }
    const float *x = a.logits + (int64_t)row * a.v;
    uint32_t *peaks = a.peaks + (int64_t)i * a.blocks;
    told_rank best = 0;
    for (int32_t b = warp; b < a.blocks; b += warps) {
        uint32_t most = 0;
        for (int k = lane; k < KM_SAMPLE_BLOCK; k += 32) {
            int32_t at = b * KM_SAMPLE_BLOCK + k;
            if (at < n) most = max(most, order_of(x[at]));
        }
        most = (uint32_t)warp_most(most);
        if (lane == 0) peaks[b] = most;
        best = max(best, (told_rank)most);
    }
    float top = number_of((uint32_t)block_most(best, room));
    float part = 0.0f;
    for (int32_t k = t; k < n; k += blockDim.x)
        if (x[k] > -INFINITY) part += expf(x[k] - top); // not of NaN
    double sum = part;
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warps; w++) sum += sums[w];
    double all = (double)top + log(sum);
    if (t == 0) out[0] = id >= 0 && id < n && x[id] == x[id] ? (float)(x[id] - all) : NAN;

    told_rank last = ~(told_rank)0; // told so far, down to this one
    for (int k = 0; k < a.top; k++) {
        told_rank most = 0;
        for (int32_t b = t; b < a.blocks; b += blockDim.x) most = max(most, rank_of(peaks[b], b));
        most = block_most(most, room);
        if (most == 0) { // nothing is left
            if (t == 0) out[1 + k] = NAN, ids[k] = -1;
            continue;
        }
        int32_t b = (int32_t) ~(uint32_t)most;
        if (warp == 0) {
            told_rank mine[2];
            for (int h = 0; h < 2; h++) {
                int32_t at = b * KM_SAMPLE_BLOCK + 32 * h + lane;
                mine[h] = at < n ? rank_of(order_of(x[at]), at) : 0;
                if (mine[h] >= last) mine[h] = 0;
            }
            told_rank first = warp_most(max(mine[0], mine[1]));
            for (int h = 0; h < 2; h++)
                if (mine[h] >= first) mine[h] = 0;
            told_rank next = warp_most(max(mine[0], mine[1]));
            if (lane == 0) {
                int32_t at = (int32_t) ~(uint32_t)first;
                ids[k] = at;
                out[1 + k] = (float)((double)number_of((uint32_t)(first >> 32)) - all);
                peaks[b] = (uint32_t)(next >> 32);
                told = first;
            }
        }
        __syncthreads();
        last = told;
    }
}

// x as f16 for tensor cores, in the orders in which their kernels want it, each row with a scale of its
// own, a power of two; and the norm before it, if there is one. A block to a row.
//
// Floor: the bytes of x, and of the norm's operands, once. The row stays in shared memory between the
// two looks at it, if it has room there.
#include "backend/cuda/kernels/ahead.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/quant/quant.cuh"
#include "backend/cuda/kernels/quant/quant_tile_args.h"

constexpr int THREADS = KM_ROUND_THREADS;

// The row when it is looked at again.
struct RowToRound {
    const km_round_args &a;
    const float *kept;
    int64_t first;
    bool there;
    __device__ __forceinline__ float4 made(int p) const { // what is rounded, but for a factor
        float4 v = *reinterpret_cast<const float4 *>(a.x + first + p);
        if (a.residual) {
            float4 r = *reinterpret_cast<const float4 *>(a.residual + first + p);
            v.x += r.x, v.y += r.y, v.z += r.z, v.w += r.w;
        }
        return v;
    }
    __device__ __forceinline__ float4 scaled(float4 v, int p) const {
        float4 w = *reinterpret_cast<const float4 *>(a.norm_w + p);
        return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
    }
    __device__ __forceinline__ float4 four(int p) const {
        if (!there || p >= a.k) return make_float4(0, 0, 0, 0);
        if (a.keep) return *reinterpret_cast<const float4 *>(kept + p);
        float4 v = made(p);
        return a.norm_w ? scaled(v, p) : v;
    }
    __device__ __forceinline__ float2 two(int p) const {
        float4 v = four(p / 4 * 4);
        return p % 4 ? make_float2(v.z, v.w) : make_float2(v.x, v.y);
    }
};

__device__ __forceinline__ uint4 eight(const RowToRound &x, int p, float f) {
    float4 v = x.four(p), w = x.four(p + 4);
    return make_uint4(pack2<f16>(v.x * f, v.y * f), pack2<f16>(v.z * f, v.w * f),
                      pack2<f16>(w.x * f, w.y * f), pack2<f16>(w.z * f, w.w * f));
}

// The order of quant_regs.cuh: steps of 64 elements, all rows of a step together. Piece j of step c:
// of the 4 units of super-step c / 4, two elements each, of those that run c % 4 has at 4 (j / 2).
template <bool APART>
__device__ __forceinline__ void round_regs(const km_round_args &a, const RowToRound &x, float f) {
    int row = blockIdx.x, units = a.k / KM_QUANT_UNIT;
    for (int p = threadIdx.x; p < (a.k + 255) / 256 * 32; p += THREADS) {
        int c = p / 8, j = p % 8;
        uint32_t h[4];
#pragma unroll
        for (int t = 0; t < 4; t++) {
            int unit = c / 4 * 4 + t;
            float2 v = make_float2(0, 0);
            if (unit < units) v = x.two(Order<APART>::at(unit, c % 4) + 4 * (j / 2) + 2 * (j % 2));
            h[t] = pack2<f16>(v.x * f, v.y * f);
        }
        f16 *out = (f16 *)a.out + ((int64_t)c * a.padded + row) * 64 + (j ^ (row & 7)) * 8;
        *reinterpret_cast<uint4 *>(out) = make_uint4(h[0], h[1], h[2], h[3]);
    }
}

// The order of plain_regs.cu: the same steps, elements as they are.
__device__ __forceinline__ void round_steps(const km_round_args &a, const RowToRound &x, float f) {
    int row = blockIdx.x;
    for (int p = threadIdx.x; p < (a.k + 255) / 256 * 32; p += THREADS) {
        int c = p / 8, j = p % 8;
        f16 *out = (f16 *)a.out + ((int64_t)c * a.padded + row) * 64 + (j ^ (row & 7)) * 8;
        *reinterpret_cast<uint4 *>(out) = eight(x, 8 * p, f);
    }
}

// The order of quant_mma.cuh: 16 bytes for each lane, half a run of its unit; 8 rows stand together.
template <bool APART>
__device__ __forceinline__ void round_mma(const km_round_args &a, void *to, const RowToRound &x,
                                          float f) {
    int row = blockIdx.x, eights = a.padded / 8, units = a.k / KM_QUANT_UNIT;
    for (int p = threadIdx.x; p < (a.k + 255) / 256 * 32; p += THREADS) {
        int super = p / 32, piece = p / 4 % 8, t = p % 4, unit = 4 * super + t;
        uint4 h = make_uint4(0, 0, 0, 0);
        if (unit < units) h = eight(x, Order<APART>::at(unit, piece / 2) + piece % 2 * 8, f);
        int64_t at = ((int64_t)(super * eights + row / 8) * 8 + piece) * 32 + row % 8 * 4 + t;
        reinterpret_cast<uint4 *>(to)[at] = h;
    }
}

extern "C" __global__ void __launch_bounds__(KM_ROUND_THREADS)
    quant_round(const __grid_constant__ km_round_args a) {
    extern __shared__ __align__(16) float kept[];
    __shared__ float part[2][THREADS / 32];
    RowToRound x = {a, kept, (int64_t)blockIdx.x * a.k, (int)blockIdx.x < a.rows};
    // The kernel behind this one may come and ask for its weights at once.
    let_next_begin();
    wait_for_those_before();
    float most = 0, square = 0;
    if (x.there)
        for (int p = threadIdx.x * 4; p < a.k; p += 4 * THREADS) {
            float4 v = x.made(p);
            if (a.sum) *reinterpret_cast<float4 *>(a.sum + x.first + p) = v;
            if (a.norm_w) {
                square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
                v = x.scaled(v, p);
            }
            if (a.keep) *reinterpret_cast<float4 *>(kept + p) = v;
            most = fmaxf(most, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
    most = warp_max(most);
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) part[0][threadIdx.x / 32] = most, part[1][threadIdx.x / 32] = square;
    __syncthreads();
    square = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) {
        most = fmaxf(most, part[0][i]);
        square += part[1][i];
    }
    float factor = a.norm_w ? rsqrtf(square / (float)a.k + a.eps) : 1;
    int e = 0;
    most *= factor;
    frexpf(most, &e); // most < 2^e
    float scale = most > 0 ? exp2f((float)(e - 10)) : 1, f = factor / scale;
    if (threadIdx.x == 0) a.scale[blockIdx.x] = scale * (1.0f / 256);
    switch (a.order) {
    case KM_ROUND_REGS: round_regs<false>(a, x, f); break;
    case KM_ROUND_REGS_APART: round_regs<true>(a, x, f); break;
    case KM_ROUND_STEPS: round_steps(a, x, f); break;
    case KM_ROUND_MMA:
        if (a.out) round_mma<false>(a, a.out, x, f);
        if (a.apart) round_mma<true>(a, a.apart, x, f);
        break;
    default:
        for (int p = threadIdx.x * 8; p < a.k; p += 8 * THREADS)
            *reinterpret_cast<uint4 *>((f16 *)a.out + x.first + p) = eight(x, p, f);
    }
    if (!a.norm_w || !x.there) return;
    if (threadIdx.x == 0) a.rstd[blockIdx.x] = factor;
    for (int p = threadIdx.x * 4; p < a.k; p += 4 * THREADS) {
        float4 v = x.four(p);
        *reinterpret_cast<float4 *>(a.y + x.first + p) =
            make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    }
}

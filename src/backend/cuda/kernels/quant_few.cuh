// A few rows of x (2 to 8) against matrices of a few bits: what decoding a few sequences does.
//
// Floor: each matrix is read once, in its packed form; 2 m n k operations as dp4a are below that, but
// not far below: what counts is how few instructions a weight costs, and that enough warps are there
// to hide their latency. A block calls its first weights into L2 while the kernel in front still
// makes x; then it stages x in shared memory as int8 with a scale to every 32 elements (and the
// norm before it, when that is asked for); then each warp, or part of one, sums one row of weights
// after the other, 64 weights to a thread at a time, the next ones on their way. Rows are shared out
// evenly and in order, so that what a block reads lies together.
#ifndef KM_CUDA_QUANT_FEW_CUH
#define KM_CUDA_QUANT_FEW_CUH
#include "backend/cuda/kernels/gemm_common.cuh"
#include "backend/cuda/kernels/quant.cuh"

// Four elements of x as int8 with the scale of the 32 among which they stand, by all lanes of a warp
// together, and the sums that a unit wants of them (Unit).
template <bool APART> struct Rounded {
    uint32_t four;
    float scale;
    int sum; // of the run of 16, or of all 32
    __device__ __forceinline__ explicit Rounded(float4 v) {
        float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
        for (int lane = 4; lane > 0; lane /= 2)
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lane));
        float inverse = most > 0 ? __fdividef(127, most) : 0;
        scale = most * (1.0f / 127);
        int a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse),
            c = __float2int_rn(v.z * inverse), e = __float2int_rn(v.w * inverse);
        sum = a + b + c + e;
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if constexpr (!APART) sum += __shfl_xor_sync(ALL_LANES, sum, 4);
        four = (a & 0xff) | (b & 0xff) << 8 | (c & 0xff) << 16 | (uint32_t)e << 24;
    }
    // Of run r of a unit, whose shares are at `first` and, of runs apart, `second`.
    __device__ __forceinline__ void put_shares(uint32_t p, uint32_t r, uint8_t *first,
                                               uint8_t *second) const {
        if constexpr (APART) {
            if (p % 16 == 0) {
                reinterpret_cast<int *>(first)[r] = sum;
                reinterpret_cast<float *>(second)[r] = scale;
            }
        } else if (p % 32 == 0) {
            reinterpret_cast<float *>(first)[r / 2] = scale;
            reinterpret_cast<float *>(first)[2 + r / 2] = scale * (float)sum;
        }
    }
};

// x of one row in shared memory as int8: run r of unit u at [r][u], so that the lanes of a warp read
// side by side; then what groups of 32 elements share (Unit).
template <bool APART> struct Staged {
    int8_t *q;
    uint8_t *shares;
    int k;
    static __device__ __forceinline__ int bytes(int k) { return KM_FEW_X_BYTES(k); }
    __device__ __forceinline__ Staged(uint8_t *room, int row, int k_) : k(k_) {
        q = reinterpret_cast<int8_t *>(room) + row * bytes(k);
        shares = reinterpret_cast<uint8_t *>(q + k);
    }
    __device__ __forceinline__ Unit<APART> unit(int u) const {
        Unit<APART> x;
#pragma unroll
        for (int r = 0; r < 4; r++)
            x.x[r] = *reinterpret_cast<const uint4 *>(q + r * (k / 4) + u * 16);
        if constexpr (APART) {
            x.sum = reinterpret_cast<const int4 *>(shares)[u];
            x.scale = reinterpret_cast<const float4 *>(shares + k / 4)[u];
        } else {
            float4 both = reinterpret_cast<const float4 *>(shares)[u];
            x.scale = make_float2(both.x, both.y);
            x.total = make_float2(both.z, both.w);
        }
        return x;
    }
    // Four elements from p on, by all lanes of a warp together.
    __device__ __forceinline__ void put(uint32_t p, float4 v) {
        Rounded<APART> rounded(v);
        if (p >= (uint32_t)k) return;
        uint32_t unit = Order<APART>::unit_of(p), r = Order<APART>::run_of(p);
        *reinterpret_cast<uint32_t *>(q + r * (k / 4) + unit * 16 + p % 16) = rounded.four;
        rounded.put_shares(p, r, shares + unit * 16, shares + k / 4 + unit * 16);
    }
};

__device__ __forceinline__ float4 four_at(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

// delta + residual, or delta alone.
__device__ __forceinline__ float4 summed(const km_quant_few_args &a, int64_t at) {
    float4 v = four_at(a.delta + at);
    if (!a.residual) return v;
    float4 r = four_at(a.residual + at);
    return make_float4(v.x + r.x, v.y + r.y, v.z + r.z, v.w + r.w);
}

__device__ __forceinline__ float block_total(float v) {
    __shared__ float part[KM_FEW_THREADS / 32];
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    float s = 0;
#pragma unroll
    for (int i = 0; i < KM_FEW_THREADS / 32; i++) s += part[i];
    return s;
}

template <bool APART, int M>
__device__ __forceinline__ void stage(const km_quant_few_args &a, uint8_t *room) {
    int k = a.k, end = (k + 127) / 128 * 128; // warps go together
    for (int row = 0; row < M && row < a.m; row++) {
        Staged<APART> x(room, row, k);
        int64_t base = (int64_t)row * k;
        float rstd = 1;
        if (a.norm_w) {
            float square = 0;
            for (int p = threadIdx.x * 4; p < k; p += KM_FEW_THREADS * 4) {
                float4 v = summed(a, base + p);
                if (a.sum && blockIdx.x == 0) *reinterpret_cast<float4 *>(a.sum + base + p) = v;
                square += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            }
            rstd = 1 / sqrtf(block_total(square) / (float)k + a.eps);
            if (blockIdx.x == 0 && threadIdx.x == 0) a.rstd[row] = rstd;
        }
        for (int p = threadIdx.x * 4; p < end; p += KM_FEW_THREADS * 4) {
            float4 v = make_float4(0, 0, 0, 0);
            if (p < k && !a.norm_w) v = four_at(a.x + base + p);
            if (p < k && a.norm_w) {
                v = summed(a, base + p);
                float4 w = four_at(a.norm_w + p);
                v = make_float4(v.x * rstd * w.x, v.y * rstd * w.y, v.z * rstd * w.z,
                                v.w * rstd * w.w);
                if (blockIdx.x == 0) *reinterpret_cast<float4 *>(a.y + base + p) = v;
            }
            x.put(p, v);
        }
    }
    __syncthreads();
}

// Calls the quants of rows [begin, end) into L2, up to a.early bytes: the first two planes.
template <int TYPE>
__device__ __forceinline__ void call_early(const km_quant_few_args &a, const km_quant_matrix &w,
                                           int begin, int end) {
#if __CUDA_ARCH__ >= 900
    int64_t groups = a.k / KM_QUANT_UNIT / Planes<TYPE>::UNITS, plane = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int each = Planes<TYPE>::bytes(i);
        const uint8_t *from = w.planes + plane + (w.first + begin * groups) * each;
        int64_t bytes = min((end - begin) * groups * each, (int64_t)a.early / 2) / 16 * 16;
        for (int64_t at = (int64_t)threadIdx.x * 2048; at < bytes; at += KM_FEW_THREADS * 2048)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from + at),
                         "r"((int)min((int64_t)2048, bytes - at)));
        plane += w.padded * each;
    }
#endif
}

// One unit of weights, unpacked once, with all rows of x.
template <int TYPE, int M>
__device__ __forceinline__ void add_unit(const Quant<TYPE> &raw, uint8_t *room, int k, int m,
                                         int unit, float (&sum)[M]) {
    constexpr bool APART = Quant<TYPE>::APART;
    Runs w;
    raw.unpack(w);
#pragma unroll
    for (int row = 0; row < M; row++) {
        if (row >= m) break;
        Staged<APART> x(room, row, k);
        sum[row] += dot_runs(w, x.unit(unit));
    }
}

template <int TYPE, int M, bool GATED>
__device__ __forceinline__ void few_rows(const km_quant_few_args &a, const km_quant_part &part,
                                         uint8_t *room) {
    int b = blockIdx.x - part.first;
    int begin = b * part.each + min(b, part.more), end = begin + part.each + (b < part.more);
    call_early<TYPE>(a, part.w, begin, end);
    if (GATED) call_early<TYPE>(a, part.up, begin, end);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    stage<Quant<TYPE>::APART, M>(a, room);

    Direct direct;
    const Fields w = fields_of<TYPE>(part.w), w_up = GATED ? fields_of<TYPE>(part.up) : w;
    int lanes = 1 << a.lane_bits, groups = KM_FEW_THREADS / lanes, group = threadIdx.x / lanes;
    int sub = threadIdx.x % lanes, units = a.k / KM_QUANT_UNIT;
    for (int first = begin; first < end; first += groups) { // all lanes of a warp go together
        int row = first + group;
        float sum[M] = {}, up[GATED ? M : 1] = {};
        if (row < end) {
            uint32_t at = (uint32_t)row * units;
            if constexpr (GATED || sizeof(Quant<TYPE>) > 60) { // registers for no more than these
                for (int u = sub; u < units; u += lanes) {
                    Quant<TYPE> raw, raw_up;
                    raw.fetch(direct, w, at + u);
                    if constexpr (GATED) raw_up.fetch(direct, w_up, at + u);
                    add_unit<TYPE, M>(raw, room, a.k, a.m, u, sum);
                    if constexpr (GATED) add_unit<TYPE, M>(raw_up, room, a.k, a.m, u, up);
                }
            } else {
                Quant<TYPE> raw;
                if (sub < units) raw.fetch(direct, w, at + sub);
                for (int u = sub; u < units; u += lanes) {
                    Quant<TYPE> next;
                    if (u + lanes < units) next.fetch(direct, w, at + u + lanes);
                    add_unit<TYPE, M>(raw, room, a.k, a.m, u, sum);
                    raw = next;
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            for (int lane = lanes / 2; lane > 0; lane /= 2) {
                sum[m] += __shfl_xor_sync(ALL_LANES, sum[m], lane);
                if constexpr (GATED) up[m] += __shfl_xor_sync(ALL_LANES, up[m], lane);
            }
            if (sub != 0 || row >= end || m >= a.m) continue;
            float v[1] = {sum[m] + (part.bias ? part.bias[row] : 0)};
            gemm_act<float>(a.act, v);
            if constexpr (GATED) v[0] *= up[m];
            part.out[(int64_t)m * part.n + row] = v[0];
        }
    }
}

template <int FIRST, int SECOND, int M, bool GATED>
__device__ __forceinline__ void few(const km_quant_few_args &a) {
    extern __shared__ __align__(16) uint8_t room[];
    int p = 0;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    if (FIRST == SECOND || !a.part[p].second) few_rows<FIRST, M, GATED>(a, a.part[p], room);
    else few_rows<SECOND, M, GATED>(a, a.part[p], room);
}

#define FEW_KERNEL(name, FIRST, SECOND, M, GATED)                                                  \
    extern "C" __global__ void __launch_bounds__(KM_FEW_THREADS, 1)                                \
        name(const __grid_constant__ km_quant_few_args a) {                                        \
        few<KM_QUANT_##FIRST, KM_QUANT_##SECOND, M, GATED>(a);                                     \
    }
#define FEW(TYPE)                                                                                  \
    FEW_KERNEL(few_##TYPE##_4, TYPE, TYPE, 4, false)                                               \
    FEW_KERNEL(few_##TYPE##_8, TYPE, TYPE, 8, false)                                               \
    FEW_KERNEL(few_gated_##TYPE##_4, TYPE, TYPE, 4, true)                                          \
    FEW_KERNEL(few_gated_##TYPE##_8, TYPE, TYPE, 8, true)
// Layers of two types over one x, as mixes have them.
#define FEW_TWO(FIRST, SECOND)                                                                     \
    FEW_KERNEL(few_##FIRST##_##SECOND##_4, FIRST, SECOND, 4, false)                                \
    FEW_KERNEL(few_##FIRST##_##SECOND##_8, FIRST, SECOND, 8, false)

#endif

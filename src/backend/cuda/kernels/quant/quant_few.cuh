// A few rows of x (2 to 8) against matrices of a few bits: what decoding a few sequences does.
//
// Floor: each matrix is read once, in its packed form; 2 m n k operations as dp4a are below that, but
// not far below: what counts is how few instructions a weight costs, and that enough warps are there
// to hide their latency. A block calls its first weights into L2 while the kernel in front still
// makes x; then it stages x in shared memory as int8, two of them unless x is to be rounded coarsely,
// with a scale to every 32 elements (and the
// norm before it, when that is asked for); then each warp, or part of one, sums one row of weights
// after the other, 64 weights to a thread at a time, the next ones on their way. Rows are shared out
// evenly and in order, so that what a block reads lies together.
#ifndef KM_CUDA_QUANT_FEW_CUH
#define KM_CUDA_QUANT_FEW_CUH
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/quant/quant.cuh"

#ifndef KM_FINE
#define KM_FINE true // x in 16 bits; sources named _8bit say false
#endif

// Four elements of x, rounded: four int8 to a word, or their upper and lower halves.
template <bool FINE> struct Four {
    uint32_t upper, lower;
    __device__ __forceinline__ int sum() const {
        int all = __dp4a((int)upper, 0x01010101, 0);
        return FINE ? __dp4a((int)lower, 0x01010101, all * 256) : all;
    }
};

// The steps in which 32 elements of x are counted, the largest of which is `most`.
template <bool FINE> struct Steps {
    float size, inverse;
    __device__ __forceinline__ explicit Steps(float most) {
        constexpr float COUNT = FINE ? KM_X_MOST_FINE : KM_X_MOST;
        inverse = most > 1e-33f ? __fdividef(COUNT, most) : 0; // else it would not be finite
        size = most * (1.0f / COUNT);
    }
    // 1.5 2^23 on top: the nearest whole number is in the low bits. 128 more, and the lower half is
    // off by that and carries into the upper one when it has to.
    __device__ __forceinline__ Four<FINE> round(float a, float b, float c, float d) const {
        const float top = 12582912.0f + (FINE ? 128 : 0);
        uint32_t v[4] = {
            __float_as_uint(fmaf(a, inverse, top)), __float_as_uint(fmaf(b, inverse, top)),
            __float_as_uint(fmaf(c, inverse, top)), __float_as_uint(fmaf(d, inverse, top))};
        uint32_t low =
            __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
        if constexpr (!FINE) return {low, 0};
        uint32_t high =
            __byte_perm(__byte_perm(v[0], v[1], 0x0051), __byte_perm(v[2], v[3], 0x0051), 0x5410);
        return {high, low ^ 0x80808080u};
    }
};

// x of one row in shared memory: run r of unit u at [r][u], so that the lanes of a warp read side by
// side; the lower halves likewise; then what groups of 32 elements share (Unit).
template <bool APART, bool FINE> struct Staged {
    uint8_t *q, *shares;
    int k;
    static __device__ __forceinline__ int bytes(int k) { return KM_FEW_X_BYTES(k, FINE); }
    __device__ __forceinline__ Staged(uint8_t *room, int row, int k_) : k(k_) {
        q = room + row * bytes(k);
        shares = q + (FINE ? 2 * k : k);
    }
    __device__ __forceinline__ Unit<APART, FINE> unit(int u) const {
        Unit<APART, FINE> x;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint8_t *p = q + r * (k / 4) + u * 16;
            x.x[r] = *reinterpret_cast<const uint4 *>(p);
            if constexpr (FINE) x.low[r] = *reinterpret_cast<const uint4 *>(p + k);
        }
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
    // Four elements from p on, by all lanes of a warp together: eight share a group.
    __device__ __forceinline__ void put(uint32_t p, float4 v) {
        float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
#pragma unroll
        for (int lane = 4; lane > 0; lane /= 2)
            most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, lane));
        Steps<FINE> steps(most);
        Four<FINE> four = steps.round(v.x, v.y, v.z, v.w);
        int sum = four.sum(); // of the run of 16, or of all 32
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if constexpr (!APART) sum += __shfl_xor_sync(ALL_LANES, sum, 4);
        if (p >= (uint32_t)k) return;
        uint32_t unit = Order<APART>::unit_of(p), r = Order<APART>::run_of(p);
        uint8_t *to = q + r * (k / 4) + unit * 16 + p % 16;
        *reinterpret_cast<uint32_t *>(to) = four.upper;
        if constexpr (FINE) *reinterpret_cast<uint32_t *>(to + k) = four.lower;
        uint8_t *share = shares + unit * 16;
        if constexpr (APART) {
            if (p % 16 == 0) {
                reinterpret_cast<int *>(share)[r] = sum;
                reinterpret_cast<float *>(share + k / 4)[r] = steps.size;
            }
        } else if (p % 32 == 0) {
            reinterpret_cast<float *>(share)[r / 2] = steps.size;
            reinterpret_cast<float *>(share)[2 + r / 2] = steps.size * (float)sum;
        }
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

template <bool APART, bool FINE, int M>
__device__ __forceinline__ void stage(const km_quant_few_args &a, uint8_t *room) {
    int k = a.k, end = (k + 127) / 128 * 128; // warps go together
    for (int row = 0; row < M && row < a.m; row++) {
        Staged<APART, FINE> x(room, row, k);
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
template <int TYPE, bool FINE, int M>
__device__ __forceinline__ void add_unit(const Quant<TYPE> &raw, uint8_t *room, int k, int m,
                                         int unit, float (&sum)[M]) {
    constexpr bool APART = Quant<TYPE>::APART;
    Runs w;
    raw.unpack(w);
#pragma unroll
    for (int row = 0; row < M; row++) {
        if (row >= m) break;
        Staged<APART, FINE> x(room, row, k);
        sum[row] += dot_runs(w, x.unit(unit));
    }
}

template <int TYPE, bool FINE, int M, bool GATED>
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
    stage<Quant<TYPE>::APART, FINE, M>(a, room);

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
                    add_unit<TYPE, FINE, M>(raw, room, a.k, a.m, u, sum);
                    if constexpr (GATED) add_unit<TYPE, FINE, M>(raw_up, room, a.k, a.m, u, up);
                }
            } else {
                Quant<TYPE> raw;
                if (sub < units) raw.fetch(direct, w, at + sub);
                for (int u = sub; u < units; u += lanes) {
                    Quant<TYPE> next;
                    if (u + lanes < units) next.fetch(direct, w, at + u + lanes);
                    add_unit<TYPE, FINE, M>(raw, room, a.k, a.m, u, sum);
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

template <int FIRST, int SECOND, bool FINE, int M, bool GATED>
__device__ __forceinline__ void few(const km_quant_few_args &a) {
    extern __shared__ __align__(16) uint8_t room[];
    int p = 0;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    if (FIRST == SECOND || !a.part[p].second)
        few_rows<FIRST, FINE, M, GATED>(a, a.part[p], room);
    else
        few_rows<SECOND, FINE, M, GATED>(a, a.part[p], room);
}

#define FEW_KERNEL(name, FIRST, SECOND, M, GATED)                                                  \
    extern "C" __global__ void __launch_bounds__(KM_FEW_THREADS, 1)                                \
        name(const __grid_constant__ km_quant_few_args a) {                                        \
        few<KM_QUANT_##FIRST, KM_QUANT_##SECOND, KM_FINE, M, GATED>(a);                            \
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

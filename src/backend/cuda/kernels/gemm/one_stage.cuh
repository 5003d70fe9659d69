// One row of x on its way into shared memory, for the kernels that multiply it with matrices
// (quant_one.cuh, plain_one.cu), and how lanes add up.
#ifndef KM_CUDA_ONE_STAGE_CUH
#define KM_CUDA_ONE_STAGE_CUH
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/quant/quant_few.cuh"

#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ / 100 == 9 || __CUDA_ARCH__ / 100 == 10
constexpr bool WIDE = true; // shared memory, as quant_args.h says
#else
constexpr bool WIDE = false;
#endif

__device__ __forceinline__ void call_line(const float *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// N elements of x that stand together, in the registers of one thread.
template <int N> struct Some {
    float v[N];
    __device__ __forceinline__ void load(const float *p) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float4 f = four_at(p + 4 * i);
            v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
        }
    }
    __device__ __forceinline__ void store(float *p) const {
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            *reinterpret_cast<float4 *>(p + 4 * i) =
                make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
};

// x, or its norm made on the way, to stage.put(p, N elements) by whole warps, also where
// p is beyond k. All loads of a thread go out together: each round of them costs a good part of a microsecond.
template <int N, class STAGE>
__device__ __forceinline__ void stage_one(const km_quant_few_args &a, STAGE &x) {
    constexpr int EACH = KM_FEW_THREADS * N;
    const float *from = a.norm_w ? a.delta : a.x, *also = a.norm_w ? a.residual : nullptr;
    auto read = [&](int p, Some<N> &f) {
        f.load(from + p);
        if (!also) return;
        Some<N> r;
        r.load(also + p);
#pragma unroll
        for (int i = 0; i < N; i++) f.v[i] += r.v[i];
    };
    float rstd = 1;
    Some<N> f = {};
    int first = threadIdx.x * N,
        end = (a.k + 32 * N - 1) / (32 * N) * (32 * N); // warps go together
    Some<N> w = {};
    if (first < a.k) read(first, f);
    if (a.norm_w) {
        if (first < a.k) w.load(a.norm_w + first);
        float square = 0;
        for (int p = first; p < a.k; p += EACH) {
            if (p > first) read(p, f);
#pragma unroll
            for (int i = 0; i < N; i++) square += f.v[i] * f.v[i];
        }
        rstd = rsqrtf(block_total(square) / (float)a.k + a.eps);
        if (blockIdx.x == 0 && threadIdx.x == 0) a.rstd[0] = rstd;
        if (first < a.k && a.k > EACH) read(first, f);
    }
    for (int p = first; p < end; p += EACH) {
        Some<N> ahead = {};
        if (p + EACH < a.k) read(p + EACH, ahead);
        if (a.norm_w && p < a.k) {
            if (a.sum && blockIdx.x == 0) f.store(a.sum + p);
            if (p > first) w.load(a.norm_w + p);
#pragma unroll
            for (int i = 0; i < N; i++) f.v[i] *= rstd * w.v[i];
            if (blockIdx.x == 0) f.store(a.y + p);
        }
        x.put(p, f);
        f = ahead;
    }
    __syncthreads();
}

// What comes before x: the norm's weights are called for, the next kernel may begin to come, and this
// one waits for the one in front.
__device__ __forceinline__ void wait_for_x(const km_quant_few_args &a) {
    if (a.norm_w)
        for (int p = threadIdx.x * 32; p < a.k; p += KM_FEW_THREADS * 32) call_line(a.norm_w + p);
#if __CUDA_ARCH__ >= 900
    if (!a.late) asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Rows of this block: [begin, end).
__device__ __forceinline__ void rows_of_block(const km_quant_part &part, int &begin, int &end) {
    int b = blockIdx.x - part.first;
    begin = b * part.each + min(b, part.more);
    end = begin + part.each + (b < part.more);
}

// The sum of v over `lanes` lanes that stand together, in all of them.
__device__ __forceinline__ float lanes_sum(float v, int lanes, unsigned mask) {
    if (lanes == 32) v += __shfl_xor_sync(mask, v, 16);
    if (lanes >= 16) v += __shfl_xor_sync(mask, v, 8);
    v += __shfl_xor_sync(mask, v, 4);
    v += __shfl_xor_sync(mask, v, 2);
    return v + __shfl_xor_sync(mask, v, 1);
}
// Of two values: the first one's in even lanes, the second one's in odd ones.
__device__ __forceinline__ float lanes_sum_two(float a, float b, int lanes, unsigned mask) {
    bool odd = threadIdx.x & 1;
    float v = odd ? b : a;
    v += __shfl_xor_sync(mask, odd ? a : b, 1);
    if (lanes == 32) v += __shfl_xor_sync(mask, v, 16);
    if (lanes >= 16) v += __shfl_xor_sync(mask, v, 8);
    v += __shfl_xor_sync(mask, v, 4);
    return v + __shfl_xor_sync(mask, v, 2);
}

#endif

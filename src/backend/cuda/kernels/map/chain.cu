// A chain of elementwise ops in one kernel: what the ops of a chain hand to each other never goes to
// memory. A thread has one 16-byte vector of every tensor. Its inputs, and results that a later step
// wants, lie in shared memory, where a program can name them; the last result is in registers.
// Results are rounded to T after each step, so that they have the bits of the ops one by one.
//
// Floor: one read of each input and one write of each result that somebody still holds.
#include "backend/cuda/kernels/map/chain_args.h"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/kernels/math.cuh"
#include "backend/cuda/kernels/mma.cuh"
#include "backend/op_list.h"

template <class T>
__device__ __forceinline__ Vec<T> chain_step(const km_chain_step &p, const Vec<T> &va,
                                             const Vec<T> &vb) {
    constexpr int N = Vec<T>::N;
    Vec<T> r;
    switch (p.op) {
#define UNARY(OP, name, expression)                                                                \
    case KM_OP_##OP:                                                                               \
        _Pragma("unroll") for (int k = 0; k < N; k++) {                                            \
            float x = to_f32(va.v[k]);                                                             \
            r.v[k] = from_f32<T>(expression);                                                      \
        }                                                                                          \
        break;
        KM_UNARY_CHAIN_LIST(UNARY)
#undef UNARY
#define GRAD(OP, name, expression)                                                                 \
    case KM_OP_##OP:                                                                               \
        _Pragma("unroll") for (int k = 0; k < N; k++) {                                            \
            float dy = to_f32(va.v[k]), v = to_f32(vb.v[k]);                                       \
            r.v[k] = from_f32<T>(expression);                                                      \
        }                                                                                          \
        break;
        KM_UNARY_GRAD_CHAIN_LIST(GRAD)
#undef GRAD
#define BINARY(OP, name, expression)                                                               \
    case KM_OP_##OP:                                                                               \
        _Pragma("unroll") for (int k = 0; k < N; k++) {                                            \
            float a = to_f32(va.v[k]), b = to_f32(vb.v[k]);                                        \
            r.v[k] = from_f32<T>(expression);                                                      \
        }                                                                                          \
        break;
        KM_BINARY_CHAIN_LIST(BINARY)
#undef BINARY
    default: r = va;
    }
    return r;
}

template <class T> __device__ __forceinline__ void chain(const km_chain_args &p) {
    constexpr int N = Vec<T>::N;
    extern __shared__ __align__(16) unsigned char places[];
    Vec<T> *place =
        reinterpret_cast<Vec<T> *>(places) + threadIdx.x; // the next one is blockDim.x on
    int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (first >= p.n) return;
    int left = (int)min(p.n - first, (int64_t)N); // elements of this vector
    wait_for_previous();
    for (int i = 0; i < p.n_in; i++)
        cp_async_16_part(smem_addr(place + i * blockDim.x), (const T *)p.in[i] + first,
                         left * (int)sizeof(T));
    cp_async_commit();
    cp_async_wait<0>(); // no other thread reads them
    Vec<T> last;
#pragma unroll 1
    for (int i = 0; i < p.n_steps; i++) {
        const km_chain_step &s = p.step[i];
        Vec<T> a = s.a == KM_CHAIN_LAST ? last : place[s.a * blockDim.x];
        Vec<T> b = s.b == KM_CHAIN_LAST ? last : place[s.b * blockDim.x];
        last = chain_step<T>(s, a, b);
        if (s.keep != KM_CHAIN_LAST) place[s.keep * blockDim.x] = last;
        if (!s.out) continue;
        T *out = (T *)s.out + first;
        if (left == N) {
            store_vec(out, last);
        } else {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < left) out[k] = last.v[k];
        }
    }
}

#define KERNEL(T, type)                                                                            \
    KM_KERNEL __launch_bounds__(KM_CHAIN_THREADS)                                                  \
        chain_##type(const __grid_constant__ km_chain_args p) {                                    \
        chain<T>(p);                                                                               \
    }
KM_EACH_FLOAT(KERNEL)

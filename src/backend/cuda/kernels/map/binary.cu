// Functions of two operands. Three ways through memory for floats: everything contiguous; rows,
// where operands are contiguous or constant along the last axis and vectors fit into it (a bias, a
// factor per row); and any strides, element by element. Integers take the last way.
#include "backend/cuda/kernels/integers.cuh"
#include "backend/cuda/kernels/map/map.cuh"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/kernels/math.cuh"
#include "backend/op_list.h"

#define KERNEL(T, type, name, expression)                                                          \
    KM_KERNEL binary_##name##_##type(const __grid_constant__ km_map_args p) {                      \
        map2<T>(p, [&](float a, float b) { return expression; });                                  \
    }
#define FOR_TYPES(OP, name, expression) KM_EACH_FLOAT(KERNEL, name, expression)
KM_BINARY_LIST(FOR_TYPES)

// ---- Rows ----

// A vector of an operand whose stride along the last axis is 1, or one element repeated.
template <class T>
__device__ __forceinline__ Vec<T> load_row(const void *base, int64_t at, bool repeat) {
    const T *p = (const T *)base + at;
    if (!repeat) return load_vec(p);
    Vec<T> v;
    T x = *p;
#pragma unroll
    for (int k = 0; k < Vec<T>::N; k++) v.v[k] = x;
    return v;
}

// The walk is over vectors: its last axis counts them, and strides along it are N or 0. out is
// contiguous.
template <class T, class Op>
__device__ __forceinline__ void map2_rows(const km_walk_args &p, Op op) {
    constexpr int N = Vec<T>::N;
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    int last = p.walk.ndim - 1;
    Vec<T> x = load_row<T>(p.a, at[1], p.walk.stride[1][last] == 0);
    Vec<T> y = load_row<T>(p.b, at[2], p.walk.stride[2][last] == 0);
#pragma unroll
    for (int k = 0; k < N; k++) x.v[k] = from_f32<T>(op(to_f32(x.v[k]), to_f32(y.v[k])));
    store_vec((T *)p.out + (int64_t)i * N, x);
}

#define ROWS(T, type, name, expression)                                                            \
    KM_KERNEL binary_##name##_rows_##type(const __grid_constant__ km_walk_args p) {                \
        map2_rows<T>(p, [&](float a, float b) { return expression; });                             \
    }
#define ROWS_FOR_TYPES(OP, name, expression) KM_EACH_FLOAT(ROWS, name, expression)
KM_BINARY_LIST(ROWS_FOR_TYPES)

// ---- Any strides ----

template <class T> __device__ __forceinline__ void binary_walk(const km_walk_args &p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    float a = to_f32(((const T *)p.a)[at[1]]), b = to_f32(((const T *)p.b)[at[2]]), y = a;
    switch (p.op) {
#define CASE(OP, name, expression)                                                                 \
    case KM_OP_##OP: y = expression; break;
        KM_BINARY_LIST(CASE)
#undef CASE
    }
    ((T *)p.out)[at[0]] = from_f32<T>(y);
}

#define WALK(T, type)                                                                              \
    KM_KERNEL binary_walk_##type(const __grid_constant__ km_walk_args p) { binary_walk<T>(p); }
KM_EACH_FLOAT(WALK)

// ---- Integers: wrap around; x / 0 = 0; a negative power is the truncated 1 / a^-b ----

__device__ __forceinline__ int64_t wrap_mul(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

__device__ int64_t int_pow(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    int64_t r = 1;
    for (; b; b /= 2) {
        if (b % 2) r = wrap_mul(r, a);
        a = wrap_mul(a, a);
    }
    return r;
}

KM_KERNEL binary_walk_int(const __grid_constant__ km_walk_args p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    int64_t a = load_int(p.dtype, p.a, at[1]), b = load_int(p.dtype, p.b, at[2]), y = a;
    switch (p.op) {
    case KM_OP_ADD: y = (int64_t)((uint64_t)a + (uint64_t)b); break;
    case KM_OP_SUB: y = (int64_t)((uint64_t)a - (uint64_t)b); break;
    case KM_OP_MUL: y = wrap_mul(a, b); break;
    case KM_OP_DIV: y = b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; break;
    case KM_OP_POW: y = int_pow(a, b); break;
    case KM_OP_MAXIMUM: y = a > b ? a : b; break;
    case KM_OP_MINIMUM: y = a < b ? a : b; break;
    }
    store_int(p.dtype, p.out, at[0], y);
}

// ---- Comparisons: p.op is the set of outcomes that are true ----

template <class T> __device__ __forceinline__ int outcome(T a, T b) {
    return a < b ? KM_IS_LESS : a == b ? KM_IS_EQUAL : a > b ? KM_IS_GREATER : KM_IS_UNORDERED;
}

#define COMPARE_FLAT(T, type)                                                                      \
    KM_KERNEL compare_##type(const __grid_constant__ km_map_args p) {                              \
        int wanted = (int)p.f0;                                                                    \
        map2_bool<T>(p, [&](float a, float b) { return (outcome(a, b) & wanted) != 0; });          \
    }
KM_EACH_FLOAT(COMPARE_FLAT)

template <class T> __device__ __forceinline__ void compare_walk(const km_walk_args &p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    float a = to_f32(((const T *)p.a)[at[1]]), b = to_f32(((const T *)p.b)[at[2]]);
    ((uint8_t *)p.out)[at[0]] = (outcome(a, b) & p.op) != 0;
}

#define COMPARE(T, type)                                                                           \
    KM_KERNEL compare_walk_##type(const __grid_constant__ km_walk_args p) { compare_walk<T>(p); }
KM_EACH_FLOAT(COMPARE)

KM_KERNEL compare_walk_int(const __grid_constant__ km_walk_args p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    int64_t a = load_int(p.dtype, p.a, at[1]), b = load_int(p.dtype, p.b, at[2]);
    ((uint8_t *)p.out)[at[0]] = (outcome(a, b) & p.op) != 0;
}

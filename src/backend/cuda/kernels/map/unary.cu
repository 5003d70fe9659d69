// Functions of one operand: a kernel per op and float type for contiguous tensors; for any strides
// one per type, which chooses the op as it goes. Integers have the ops that make sense for them.
#include "backend/cuda/kernels/integers.cuh"
#include "backend/cuda/kernels/map/map.cuh"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/kernels/math.cuh"
#include "backend/op_list.h"

#define KERNEL(F, type, name, expression)                                                          \
    KM_KERNEL unary_##name##_##type(const __grid_constant__ km_map_args p) {                       \
        using T = F;                                                                               \
        map1<T>(p, [&](float x) { return expression; });                                           \
    }
#define FOR_TYPES(OP, name, expression) KM_EACH_FLOAT(KERNEL, name, expression)
KM_UNARY_LIST(FOR_TYPES)

// ---- Any strides ----

template <class T> __device__ __forceinline__ void unary_walk(const km_walk_args &p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[2];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    float x = to_f32(((const T *)p.a)[at[1]]), y = x;
    switch (p.op) {
#define CASE(OP, name, expression)                                                                 \
    case KM_OP_##OP: y = expression; break;
        KM_UNARY_LIST(CASE)
#undef CASE
    }
    ((T *)p.out)[at[0]] = from_f32<T>(y);
}

#define WALK(T, type)                                                                              \
    KM_KERNEL unary_walk_##type(const __grid_constant__ km_walk_args p) { unary_walk<T>(p); }
KM_EACH_FLOAT(WALK)

// ---- Integers, wrapping around ----

KM_KERNEL unary_walk_int(const __grid_constant__ km_walk_args p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[2];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    int64_t x = load_int(p.dtype, p.a, at[1]), y = x;
    int64_t negated = (int64_t)(0 - (uint64_t)x);
    switch (p.op) {
    case KM_OP_NEG: y = negated; break;
    case KM_OP_ABS: y = x < 0 ? negated : x; break;
    case KM_OP_RELU: y = x > 0 ? x : 0; break;
    case KM_OP_CLAMP:
        y = x < p.i0 ? p.i0 : x;
        y = y > p.i1 ? p.i1 : y;
        break;
    case KM_OP_ADD_SCALAR: y = (int64_t)((uint64_t)x + (uint64_t)p.i0); break;
    case KM_OP_MUL_SCALAR: y = (int64_t)((uint64_t)x * (uint64_t)p.i0); break;
    }
    store_int(p.dtype, p.out, at[0], y);
}

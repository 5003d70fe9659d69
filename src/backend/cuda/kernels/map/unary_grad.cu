// Gradients of the functions of one operand: dx from dy and the op's input or output.
#include "backend/cuda/kernels/map/map.cuh"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/kernels/math.cuh"
#include "backend/op_list.h"

#define KERNEL(F, type, name, expression)                                                          \
    KM_KERNEL unary_##name##_##type(const __grid_constant__ km_map_args p) {                       \
        using T = F;                                                                               \
        map2<T>(p, [&](float dy, float v) { return expression; });                                 \
    }
#define FOR_TYPES(OP, name, expression) KM_EACH_FLOAT(KERNEL, name, expression)
KM_UNARY_GRAD_LIST(FOR_TYPES)

template <class T> __device__ __forceinline__ void unary_grad_walk(const km_walk_args &p) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.walk.count) return;
    int64_t at[3];
    walk_offsets(p.walk, i, at);
    wait_for_previous();
    float dy = to_f32(((const T *)p.a)[at[1]]), v = to_f32(((const T *)p.b)[at[2]]), y = dy;
    switch (p.op) {
#define CASE(OP, name, expression)                                                                 \
    case KM_OP_##OP: y = expression; break;
        KM_UNARY_GRAD_LIST(CASE)
#undef CASE
    }
    ((T *)p.out)[at[0]] = from_f32<T>(y);
}

#define WALK(T, type)                                                                              \
    KM_KERNEL unary_grad_walk_##type(const __grid_constant__ km_walk_args p) {                     \
        unary_grad_walk<T>(p);                                                                     \
    }
KM_EACH_FLOAT(WALK)

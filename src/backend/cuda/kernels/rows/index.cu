// Picking and placing by index. A bad index reads as zero and writes nothing. Sums into a place
// that several indices name are made by one thread or warp in the order of the indices: the same
// bits in every run, with no atomics on floats.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/row_args.h"

__device__ __forceinline__ int64_t index_at(const km_index_args &p, int64_t i) {
    return p.wide ? ((const int64_t *)p.index)[i] : ((const int32_t *)p.index)[i];
}

// Whole rows, 16 bytes (or one) at a time: embedding, and index_select seen as (outer, axis, inner).
template <class V> __device__ void take_rows(const km_index_args &p) {
    int64_t each = p.bytes / (int64_t)sizeof(V);
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.outer * p.items * each) return;
    int64_t row = i / each, part = i % each, outer = row / p.items;
    int64_t from = index_at(p, row % p.items);
    V v = {};
    if (from >= 0 && from < p.limit) v = ((const V *)p.x)[(outer * p.axis + from) * each + part];
    ((V *)p.out)[i] = v;
}
KM_KERNEL take_rows_16(const __grid_constant__ km_index_args p) { take_rows<uint4>(p); }
KM_KERNEL take_rows_4(const __grid_constant__ km_index_args p) { take_rows<uint32_t>(p); }
KM_KERNEL take_rows_1(const __grid_constant__ km_index_args p) { take_rows<uint8_t>(p); }

// ---- gather and scatter_add: index has x's rank ----

// Where element i of index lies in x when its own axis is left out.
__device__ __forceinline__ int64_t place(const km_index_args &p, int64_t i) {
    int64_t at = 0;
    for (int a = p.ndim - 1; a >= 0; a--) {
        int64_t k = i % p.dim[a];
        i /= p.dim[a];
        if (a != p.axis_at) at += k * p.x_stride[a];
    }
    return at;
}

template <class V> __device__ void gather(const km_index_args &p) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.items) return;
    int64_t k = index_at(p, i);
    ((V *)p.out)[i] = k >= 0 && k < p.limit ? ((const V *)p.x)[place(p, i) + k * p.x_axis] : (V)0;
}
KM_KERNEL gather_1(const __grid_constant__ km_index_args p) { gather<uint8_t>(p); }
KM_KERNEL gather_2(const __grid_constant__ km_index_args p) { gather<uint16_t>(p); }
KM_KERNEL gather_4(const __grid_constant__ km_index_args p) { gather<uint32_t>(p); }
KM_KERNEL gather_8(const __grid_constant__ km_index_args p) { gather<uint64_t>(p); }

// scatter, and scatter_add of f32 and integers: out holds a copy of x, and a thread takes a line of
// index along the axis, in order.
template <class T, bool ADD> __device__ void scatter_lines(const km_index_args &p) {
    int64_t line = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t items = p.dim[p.axis_at], inner = p.inner;
    if (line >= p.outer * inner) return;
    int64_t first = line / inner * items * inner + line % inner;
    T *out = (T *)p.out + place(p, first);
    for (int64_t j = 0; j < items; j++) {
        int64_t i = first + j * inner, k = index_at(p, i);
        if (k < 0 || k >= p.limit) continue;
        T v = ((const T *)p.src)[i];
        out[k * p.x_axis] = ADD ? (T)(out[k * p.x_axis] + v) : v;
    }
}
#define SCATTER(name, T, add)                                                                      \
    KM_KERNEL scatter_##name(const __grid_constant__ km_index_args p) { scatter_lines<T, add>(p); }
SCATTER(add_f32, float, true)
SCATTER(add_1, uint8_t, true)
SCATTER(add_4, uint32_t, true)
SCATTER(add_8, uint64_t, true)
SCATTER(put_1, uint8_t, false)
SCATTER(put_2, uint16_t, false)
SCATTER(put_4, uint32_t, false)
SCATTER(put_8, uint64_t, false)

// Halves must be added up before they are rounded: a thread for each element of out that the index
// can reach looks for itself along its line. i counts (outer, limit, inner).
template <class T> __device__ void scatter_seek(const km_index_args &p) {
    int64_t e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t items = p.dim[p.axis_at], inner = p.inner;
    if (e >= p.outer * p.limit * inner) return;
    int64_t k = e / inner % p.limit;
    int64_t first = e / inner / p.limit * items * inner + e % inner;
    T *out = (T *)p.out + place(p, first) + k * p.x_axis;
    float s = to_f32(*out);
    bool any = false;
    for (int64_t j = 0; j < items; j++) {
        int64_t i = first + j * inner;
        if (index_at(p, i) != k) continue;
        s += to_f32(((const T *)p.src)[i]);
        any = true;
    }
    if (any) *out = from_f32<T>(s);
}
KM_KERNEL scatter_seek_f16(const __grid_constant__ km_index_args p) { scatter_seek<f16>(p); }
KM_KERNEL scatter_seek_bf16(const __grid_constant__ km_index_args p) { scatter_seek<bf16>(p); }

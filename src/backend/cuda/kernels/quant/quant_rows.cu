// Weights of a few bits as floats: whole tensors, or the rows that ids name. Floor: the packed bytes
// once, the floats once. A thread unpacks a unit.
#include "backend/cuda/kernels/quant/quant.cuh"

template <class T>
__device__ __forceinline__ void write_run(T *out, const uint32_t (&q)[4], float d, float m) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        // d q - m in the reference's order of roundings is not kept: both are within an ulp of it
        out[i] = from_f32<T>(d * (float)(int8_t)byte_of(q[i / 4], i % 4) - m);
    }
}

template <int TYPE> __device__ __forceinline__ void quant_rows(const km_quant_rows_args &a) {
    wait_for_previous();
    int units = a.k / KM_QUANT_UNIT;
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.count * units) return;
    int64_t at = i / units, row = at;
    int unit = (int)(i % units);
    if (a.ids) row = a.wide ? ((const int64_t *)a.ids)[at] : ((const int32_t *)a.ids)[at];
    if (row < 0 || row >= a.rows) return;
    Quant<TYPE> raw;
    Direct direct;
    raw.fetch(direct, fields_of<TYPE>(a.w), (uint32_t)(row * units + unit));
    Runs w;
    raw.unpack(w);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int64_t to = at * a.k + Order<Quant<TYPE>::APART>::at(unit, r);
        if (a.dtype == 0)
            write_run((float *)a.out + to, w.q[r], w.d[r], w.m[r]);
        else if (a.dtype == 1)
            write_run((f16 *)a.out + to, w.q[r], w.d[r], w.m[r]);
        else
            write_run((bf16 *)a.out + to, w.q[r], w.d[r], w.m[r]);
    }
}

#define ROWS(TYPE, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        quant_rows_##TYPE(const __grid_constant__ km_quant_rows_args a) {                          \
        quant_rows<KM_QUANT_##TYPE>(a);                                                            \
    }
KM_QUANT_PLANES(ROWS)

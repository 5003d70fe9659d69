// What goes before and after a matrix product: rows brought to 16-byte alignment for the tensor
// cores' copies, and bias and activation where the product itself could not add them. Both move
// each byte once: the floor is bytes / bandwidth.
#include "backend/cuda/kernels/gemm_common.cuh"

// One thread makes 8 elements of a padded row. grid (any, at most batch).
KM_KERNEL __launch_bounds__(KM_PACK_THREADS)
    gemm_pack(const __grid_constant__ km_gemm_pack_args p) {
    int chunks = p.ld_out / 8;
    int64_t n = (int64_t)p.rows * chunks, step = (int64_t)gridDim.x * KM_PACK_THREADS;
    for (int batch = blockIdx.y; batch < p.batch; batch += gridDim.y) {
        const uint16_t *src = (const uint16_t *)p.src + batch * p.batch_src;
        uint16_t *dst = (uint16_t *)p.dst + batch * p.batch_dst;
        for (int64_t i = (int64_t)blockIdx.x * KM_PACK_THREADS + threadIdx.x; i < n; i += step) {
            int64_t row = i / chunks;
            int col = (int)(i - row * chunks) * 8;
            Vec<uint16_t> v;
#pragma unroll
            for (int j = 0; j < 8; j++) v.v[j] = col + j < p.cols ? src[row * p.ld + col + j] : 0;
            store_vec(dst + row * p.ld_out + col, v);
        }
    }
}

// out = finish(a), a laid out like out (and possibly the same memory); one thread, four columns.
template <class T> __device__ __forceinline__ void finish_all(const km_gemm_args &g) {
    int chunks = (g.n + 3) / 4;
    int64_t n = (int64_t)g.m * chunks, step = (int64_t)gridDim.x * KM_ACT_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * KM_ACT_THREADS + threadIdx.x; i < n; i += step) {
        int row = (int)(i / chunks), col = (int)(i - (int64_t)row * chunks) * 4;
        const T *p = (const T *)g.a + row * g.ldo + col;
        float v[4] = {};
        if (col + 4 <= g.n && (g.vec & KM_GEMM_VEC_OUT)) {
            load4(p, v);
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (col + j < g.n) v[j] = to_f32(p[j]);
        }
        gemm_finish4<T>(g, 0, row, col, v);
    }
}

#define FINISH(type, name)                                                                         \
    KM_KERNEL __launch_bounds__(KM_ACT_THREADS)                                                    \
        gemm_finish_##name(const __grid_constant__ km_gemm_args g) {                               \
        finish_all<type>(g);                                                                       \
    }
KM_EACH_FLOAT(FINISH)

// What goes before and after a matrix product: rows brought to 16-byte alignment for the tensor
// cores' copies, and bias and activation where the product itself could not add them. Both move
// each byte once: the floor is bytes / bandwidth.
#include "backend/cuda/kernels/gemm/gemm_common.cuh"

// One thread makes 8 elements of a padded row. grid (any, at most batch).
KM_KERNEL __launch_bounds__(KM_PACK_THREADS)
    gemm_pack(const __grid_constant__ km_gemm_pack_args p) {
    wait_for_previous();
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

// out = finish(a), a laid out like out and possibly the same memory as out or pre. A thread keeps
// to four columns, whose bias it holds, and goes down the rows, four at a time. block (any, any),
// grid (columns, any).
template <class T> __device__ __forceinline__ void finish_all(const km_gemm_args &g) {
    wait_for_previous();
    int col = (blockIdx.x * blockDim.x + threadIdx.x) * 4, step = gridDim.y * blockDim.y;
    if (col >= g.n) return;
    float bias[4];
    gemm_bias4<T>(g, col, bias);
    for (int64_t row = blockIdx.y * blockDim.y + threadIdx.y; row < g.m; row += 4 * (int64_t)step) {
        float v[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_part((const T *)g.a + (row + i * (int64_t)step) * g.ldo + col,
                      row + i * (int64_t)step < g.m ? g.n - col : 0, g.vec & KM_GEMM_VEC_OUT, v[i]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            gemm_finish4<T>(g, 0, (int)min(row + i * (int64_t)step, (int64_t)g.m), col, bias, v[i]);
    }
}

#define FINISH(type, name)                                                                         \
    KM_KERNEL __launch_bounds__(KM_ACT_THREADS)                                                    \
        gemm_finish_##name(const __grid_constant__ km_gemm_args g) {                               \
        finish_all<type>(g);                                                                       \
    }
KM_EACH_FLOAT(FINISH)

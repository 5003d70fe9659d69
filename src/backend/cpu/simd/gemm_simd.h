/* What the product kernels of one instruction set share: the tile's size, and their names. */
#ifndef KM_BACKEND_CPU_SIMD_GEMM_SIMD_H
#define KM_BACKEND_CPU_SIMD_GEMM_SIMD_H
#include "backend/cpu/gemm_kernels.h"
#include "backend/cpu/simd/rowio.h"
#include "backend/cpu/simd/simd.h"

/* Rows and vectors of a tile: as many sums as the registers hold beside a row of b and one a. */
#if defined(KM_AVX512)
#define KM_MR 6
#define KM_NV 4
#elif defined(KM_AVX2)
#define KM_MR 6
#define KM_NV 2
#elif defined(__aarch64__)
#define KM_MR 8
#define KM_NV 2
#else
#define KM_MR 4
#define KM_NV 2
#endif
#define KM_NR (KM_NV * KM_VF)

/* Before a loop of a constant few turns whose body must end up in registers. */
#if defined(__clang__)
#define KM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KM_UNROLL _Pragma("GCC unroll 16")
#endif

void KM_SIMD(km_gemm_panel)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row,
                            int64_t a_col, const float *b, int64_t ldb, const float *next_b,
                            float *c, int64_t ldc, float alpha, float beta);
void KM_SIMD(km_gemm_pack)(float *dst, const void *src, km_dtype dtype, int64_t ld, int64_t k,
                           int64_t n);
void KM_SIMD(km_gemm_pack_turned)(float *dst, const void *src, km_dtype dtype, int64_t ld,
                                  int64_t k, int64_t n);
void KM_SIMD(km_gemm_widen)(float *dst, int64_t ldd, const void *src, km_dtype dtype, int64_t lds,
                            int64_t rows, int64_t cols);
void KM_SIMD(km_gemm_lay)(float *dst, const void *src, km_dtype dtype, int64_t lds, int64_t k,
                          int64_t rows, float *sums);
void KM_SIMD(km_gemm_finish)(const km_finish *f, const float *x, int64_t ldx, void *out, void *pre,
                             int64_t ldo, int64_t rows, int64_t cols);
void KM_SIMD(km_gemm_slope)(km_act act, const float *x, int64_t ldx, const float *pre, float *out,
                            int64_t ldo, int64_t rows, int64_t cols, float *sums);
void KM_SIMD(km_gemv_dots)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k,
                           const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy);
void KM_SIMD(km_gemv_sums)(const void *w, km_dtype dtype, int64_t ldw, int64_t n, int64_t k,
                           const float *x, int64_t ldx, int64_t rows, float *y, int64_t ldy);

/* Asks for a row of n elements that will be wanted soon. Long rows the processor foresees by
 * itself; short ones that lie apart, as the vectors of a head, it must be told. */
KM_INLINE void v_fetch(const void *row, int64_t n, int slot) {
    int64_t bytes = n * (slot == KM_SLOT_F32 ? 4 : 2);
    for (int64_t at = 0; at < bytes && bytes <= 1024; at += 64)
        __builtin_prefetch((const char *)row + at);
}

/* ---- Turning a square of KM_VF vectors ---- */

#if KM_VF == 16
#define KM_ZIP_LO(a, b)                                                                            \
    __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define KM_ZIP_HI(a, b)                                                                            \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif KM_VF == 8
#define KM_ZIP_LO(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define KM_ZIP_HI(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define KM_ZIP_LO(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define KM_ZIP_HI(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Lane i of row j becomes lane j of row i. Each round shuffles like a deck of cards: row j's place
 * moves one bit from the row's number into the lane's. */
KM_INLINE void v_turn(vf r[KM_VF]) {
    KM_UNROLL
    for (int round = 1; round < KM_VF; round *= 2) {
        vf t[KM_VF];
        KM_UNROLL
        for (int i = 0; i < KM_VF / 2; i++) {
            t[2 * i] = KM_ZIP_LO(r[i], r[i + KM_VF / 2]);
            t[2 * i + 1] = KM_ZIP_HI(r[i], r[i + KM_VF / 2]);
        }
        KM_UNROLL
        for (int i = 0; i < KM_VF; i++) r[i] = t[i];
    }
}

#endif

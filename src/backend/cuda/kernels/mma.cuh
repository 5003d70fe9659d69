/* Tensor-core building blocks of sm_80 and newer, one function per PTX instruction: asynchronous
 * copies into shared memory, ldmatrix, mma.sync on f16 and bf16, and the swizzle that keeps
 * ldmatrix free of bank conflicts. Element types are __half and __nv_bfloat16. */
#ifndef KM_CUDA_MMA_CUH
#define KM_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define KM_DEVICE __device__ __forceinline__

/* The 32-bit address that ldmatrix, cp.async and the other shared-memory instructions take. */
KM_DEVICE uint32_t smem_addr(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- Copies: global to shared memory, 16 bytes a thread, past the registers ---- */

/* Copies 16 bytes, or writes 16 zero bytes when !valid (then src is not read). Both 16-aligned. */
KM_DEVICE void cp_async_16(uint32_t dst, const void *src, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

/* Copies the first `bytes` (0 to 16) of 16 and writes zeros for the rest. Both 16-aligned. */
KM_DEVICE void cp_async_16_part(uint32_t dst, const void *src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

/* Closes the group of copies issued since the last commit. */
KM_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most N of this thread's groups are unfinished. Other threads' copies are seen
 * only after a __syncthreads() that follows. */
template <int N> KM_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* ---- Swizzle ----
 * A tile is rows of CHUNKS 16-byte chunks, stored without padding. The 8 rows that an ldmatrix
 * phase reads at one chunk column must land in 8 different 16-byte bank groups: the chunk index is
 * XORed with bits of the row. Works for any CHUNKS that is a multiple of 2; the result stays within
 * the row. Returns a byte offset. */
template <int CHUNKS> KM_DEVICE uint32_t swizzle(int row, int chunk) {
    /* the largest power of two in CHUNKS, at most 8: rows repeat their banks every 8/group rows */
    constexpr int group = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
    static_assert(CHUNKS % 2 == 0, "a row is a multiple of 32 bytes");
    return (uint32_t)(row * CHUNKS + (chunk ^ ((row / (8 / group)) & (group - 1)))) * 16;
}

/* ---- ldmatrix: four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of
 * matrix l/8, and gets in r[i] the pair (row l/4, columns 2*(l%4), +1) of matrix i, or of its
 * transpose ---- */

KM_DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

KM_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* ---- mma: d (16x8, f32) += a (16x16) b (16x8) ----
 * With g = lane/4, t = lane%4:
 *   a[0] (g, 2t..), a[1] (g+8, 2t..), a[2] (g, 2t+8..), a[3] (g+8, 2t+8..), pairs along k
 *   b0 (k 2t.., n g), b1 (k 2t+8.., n g)
 *   d[0], d[1] (g, 2t), (g, 2t+1); d[2], d[3] (g+8, 2t), (g+8, 2t+1)
 * so two neighbouring d tiles, packed, are one a: no shuffle between chained products. */
template <typename T>
KM_DEVICE void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
KM_DEVICE void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
KM_DEVICE void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- Small arithmetic ---- */

/* Two floats rounded to T, lo in the low half. */
template <typename T> KM_DEVICE uint32_t pack2(float lo, float hi);

template <> KM_DEVICE uint32_t pack2<__nv_bfloat16>(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

template <> KM_DEVICE uint32_t pack2<__half>(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* 2^x by the special-function unit: 2 ulp, exp2(-inf) = 0, subnormal results flushed to 0. */
KM_DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

/* Tensor-core building blocks, one function per PTX instruction of sm_80: asynchronous copies into
 * shared memory, ldmatrix, mma.sync on f16 and bf16, and the swizzle that keeps ldmatrix free of bank
 * conflicts. Element types are __half and __nv_bfloat16. Turing (sm_75) has none of the copies, half the
 * depth of f16 products and no bf16: there copies wait, products of f16 are made of two, and those of
 * bf16 of multiply-adds, which is right and slow. */
#ifndef KM_CUDA_MMA_CUH
#define KM_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define KM_DEVICE __device__ __forceinline__

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define KM_TURING 1
#else
#define KM_TURING 0
#endif

/* The 32-bit address that ldmatrix, cp.async and the other shared-memory instructions take. */
KM_DEVICE uint32_t smem_addr(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- Copies: global to shared memory, 16 bytes a thread, past the registers ---- */

/* Copies 16 bytes, or writes 16 zero bytes when !valid (then src is not read). Both 16-aligned. */
#if KM_TURING
KM_DEVICE void store_shared_16(uint32_t dst, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}
KM_DEVICE void cp_async_16(uint32_t dst, const void *src, bool valid) {
    store_shared_16(dst, valid ? *(const uint4 *)src : make_uint4(0, 0, 0, 0));
}
#else
KM_DEVICE void cp_async_16(uint32_t dst, const void *src, bool valid) {
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}
#endif

/* Copies the first `bytes` (0 to 16) of 16 and writes zeros for the rest. Both 16-aligned. */
KM_DEVICE void cp_async_16_part(uint32_t dst, const void *src, int bytes) {
#if KM_TURING
    const uint8_t *from = (const uint8_t *)src;
    uint32_t w[4] = {0, 0, 0, 0};
    for (int i = 0; i < bytes; i++) w[i / 4] |= (uint32_t)from[i] << 8 * (i % 4);
    store_shared_16(dst, make_uint4(w[0], w[1], w[2], w[3]));
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
#endif
}

/* Closes the group of copies issued since the last commit. */
KM_DEVICE void cp_async_commit() {
#if !KM_TURING
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most N of this thread's groups are unfinished. Other threads' copies are seen
 * only after a __syncthreads() that follows. */
template <int N> KM_DEVICE void cp_async_wait() {
#if !KM_TURING
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
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

#if KM_TURING
/* Low and high element of a pair of bf16. */
KM_DEVICE float bf16_low(uint32_t v) { return __uint_as_float(v << 16); }
KM_DEVICE float bf16_high(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }

/* Lane (g, t) has results of rows g and g + 8, columns 2t and 2t + 1: their elements of a are in the lanes
 * (g, 0..3), those of b in the lanes (2t, 0..3) and (2t + 1, 0..3). All lanes of the warp call it. */
template <>
KM_DEVICE void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    int lane = (int)(threadIdx.x % 32), g = lane / 4, t = lane % 4;
    for (int s = 0; s < 4; s++)
        for (int half = 0; half < 2; half++) { /* k = 8 half + 2 s, and the next */
            uint32_t low = __shfl_sync(0xffffffffu, a[2 * half], 4 * g + s);
            uint32_t high = __shfl_sync(0xffffffffu, a[2 * half + 1], 4 * g + s);
            for (int c = 0; c < 2; c++) {
                uint32_t b = __shfl_sync(0xffffffffu, half ? b1 : b0, 4 * (2 * t + c) + s);
                d[c] += bf16_low(low) * bf16_low(b) + bf16_high(low) * bf16_high(b);
                d[2 + c] += bf16_low(high) * bf16_low(b) + bf16_high(high) * bf16_high(b);
            }
        }
}

KM_DEVICE void mma_m16n8k8_f16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(b));
}

template <>
KM_DEVICE void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    mma_m16n8k8_f16(d, a[0], a[1], b0);
    mma_m16n8k8_f16(d, a[2], a[3], b1);
}
#else
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
#endif

/* ---- Small arithmetic ---- */

/* Two floats rounded to T, lo in the low half. */
template <typename T> KM_DEVICE uint32_t pack2(float lo, float hi);

template <> KM_DEVICE uint32_t pack2<__nv_bfloat16>(float lo, float hi) {
#if KM_TURING
    return (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(lo)) |
           (uint32_t)__bfloat16_as_ushort(__float2bfloat16_rn(hi)) << 16;
#else
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

template <> KM_DEVICE uint32_t pack2<__half>(float lo, float hi) {
#if KM_TURING
    return (uint32_t)__half_as_ushort(__float2half_rn(lo)) |
           (uint32_t)__half_as_ushort(__float2half_rn(hi)) << 16;
#else
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#endif
}

/* 2^x by the special-function unit: 2 ulp, exp2(-inf) = 0, subnormal results flushed to 0. */
KM_DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif

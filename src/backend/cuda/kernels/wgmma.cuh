/* Hopper building blocks (sm_90a), one function per PTX instruction: barriers in shared memory
 * (mbarrier), the copy engine (TMA), warpgroup matrix products (wgmma), register hand-over between
 * warpgroups. Tiles are 128-byte-swizzled, as the copy engine writes and wgmma reads them. */
#ifndef KM_CUDA_WGMMA_CUH
#define KM_CUDA_WGMMA_CUH

#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/gemm/tensor_map.h"

/* ---- mbarrier: a phase completes when `count` arrivals and all expected bytes are in ---- */

KM_DEVICE void mbar_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Makes initialised barriers visible to the copy engine; a __syncthreads() must follow. */
KM_DEVICE void mbar_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and expects `bytes` more bytes in this phase. */
KM_DEVICE void mbar_expect(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Expects `bytes` more in this phase, without arriving. */
KM_DEVICE void mbar_more(uint32_t bar, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

KM_DEVICE void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

KM_DEVICE bool mbar_try_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n\t.reg .pred p;\n\t"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                 "selp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Waits for the phase of that parity (0, then 1, 0, ...) to complete. Waiting for parity 1 on a
 * fresh barrier returns at once, which is how a ring's "empty" barriers start. */
KM_DEVICE void mbar_wait(uint32_t bar, uint32_t parity) {
#ifdef KM_SPIN_LIMIT /* a test build gives wrong results instead of hanging */
    for (int i = 0; i < KM_SPIN_LIMIT && !mbar_try_wait(bar, parity); i++) {}
#else
    while (!mbar_try_wait(bar, parity)) {}
#endif
}

/* Where a ring of stages stands, and which of its barriers' phases that is. */
template <int STAGES> struct Ring {
    int stage = 0;
    uint32_t phase = 0;
    KM_DEVICE void next() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

/* True in one lane of the warp, and known to be so: what it asks the copy engine for needs no loop over
 * lanes. */
KM_DEVICE bool elected() {
    uint32_t is;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(is));
    return is != 0;
}

/* ---- Copy engine. Coordinates are in elements, innermost first; elements of the box outside the
 * tensor arrive as zeros and are not stored. One thread issues. ---- */

KM_DEVICE void tma_prefetch_map(const km_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

KM_DEVICE void tma_load_2d(uint32_t dst, const km_tensor_map *map, uint32_t bar, int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1)
                 : "memory");
}

KM_DEVICE void tma_load_3d(uint32_t dst, const km_tensor_map *map, uint32_t bar, int c0, int c1,
                           int c2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

KM_DEVICE void tma_load_4d(uint32_t dst, const km_tensor_map *map, uint32_t bar, int c0, int c1,
                           int c2, int c3) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

/* Plain bytes: dst, src and the length are multiples of 16. */
KM_DEVICE void bulk_load(uint32_t dst, const void *src, int bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}

/* Bytes that nobody reads again soon: what else L2 holds stays there. */
KM_DEVICE void bulk_load_once(uint32_t dst, const void *src, int bytes, uint32_t bar) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

KM_DEVICE void tma_store_2d(const km_tensor_map *map, uint32_t src, int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3}], [%1];" ::"l"(map),
                 "r"(src), "r"(c0), "r"(c1)
                 : "memory");
}

KM_DEVICE void tma_store_3d(const km_tensor_map *map, uint32_t src, int c0, int c1, int c2) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(src), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}

KM_DEVICE void tma_store_4d(const km_tensor_map *map, uint32_t src, int c0, int c1, int c2,
                            int c3) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
}

KM_DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Waits until this thread's stores have read their shared memory (it may then be overwritten). */
template <int N> KM_DEVICE void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Orders this thread's ordinary shared-memory writes before later reads by wgmma or the copy
 * engine; a barrier must follow. */
KM_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- Warpgroups ---- */

/* A barrier among `threads` threads; ids 1 to 15 (0 is __syncthreads). */
KM_DEVICE void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
KM_DEVICE void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Registers per thread, a multiple of 8; needs __launch_bounds__(threads, 1). */
template <int N> KM_DEVICE void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> KM_DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* Four 8x8 matrices of 16-bit elements, registers to shared memory: ldmatrix_x4's inverse. */
KM_DEVICE void stmatrix_x4(uint32_t addr, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
                 "r"(r0), "r"(r1), "r"(r2), "r"(r3)
                 : "memory");
}

/* ---- wgmma operands in shared memory ----
 * A panel is R rows of 64 16-bit elements (128 bytes), swizzled in groups of 8 rows as the copy
 * engine's 128-byte mode does: chunk c of row r lies at chunk c ^ (r % 8). Panels are 1024-byte
 * aligned; a tile wider than 64 columns is several panels, `stride` bytes apart.
 *   K-major: the 64 columns run along k. A k16 step adds 32 bytes to the address.
 *   MN-major: the 64 columns run along m or n, rows along k. A k16 step adds 2048 bytes. */
KM_DEVICE uint64_t wgmma_desc_k(uint32_t addr) {
    return (uint64_t)((addr & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}
KM_DEVICE uint64_t wgmma_desc_mn(uint32_t addr, uint32_t stride) {
    return (uint64_t)((addr & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Before the first wgmma of a group, after ordinary writes of its registers. */
KM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KM_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until at most N groups of this warpgroup are unfinished; hold() the results after it. */
template <int N> KM_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Computes x before what follows: ptxas likes to move waits ahead of arithmetic, which then no
 * longer overlaps with the products waited for, but keeps them in order with stores. This one
 * happens only for x = FLT_MAX; scratch is any 4 bytes of shared memory that nobody reads. */
KM_DEVICE void pin_before_wait(float x, uint32_t scratch) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.eq.f32 p, %0, 0f7F7FFFFF;\n\t"
                 "@p st.shared.f32 [%1], %0;\n\t}" ::"f"(x),
                 "r"(scratch)
                 : "memory");
}

/* Keeps the compiler from moving uses of these registers across this point. */
template <int N> KM_DEVICE void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> KM_DEVICE void hold(uint32_t (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* ---- wgmma: d (64xN, f32) = a (64x16) b (16xN) + (accumulate ? d : 0) ----
 * Thread t of the warpgroup, g = t%32/4, holds rows 16*(t/32) + g and + 8; d[4j..4j+3] are columns
 * 8j + 2*(t%4), +1 of the first row and of the second, so tiles chain as in mma_m16n8k16.
 * TRANS_A, TRANS_B: 1 when that operand is MN-major. */

#define KM_WGMMA_REGS_8 "{%0, %1, %2, %3, %4, %5, %6, %7}"
#define KM_WGMMA_REGS_32                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define KM_WGMMA_REGS_64                                                                           \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define KM_WGMMA_REGS_128                                                                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                      \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
#define KM_WGMMA_8(d, i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define KM_WGMMA_32(d, i)                                                                          \
    KM_WGMMA_8(d, i), KM_WGMMA_8(d, i + 8), KM_WGMMA_8(d, i + 16), KM_WGMMA_8(d, i + 24)
#define KM_WGMMA_OUT_8(d) KM_WGMMA_8(d, 0)
#define KM_WGMMA_OUT_32(d) KM_WGMMA_32(d, 0)
#define KM_WGMMA_OUT_64(d) KM_WGMMA_32(d, 0), KM_WGMMA_32(d, 32)
#define KM_WGMMA_OUT_128(d) KM_WGMMA_OUT_64(d), KM_WGMMA_32(d, 64), KM_WGMMA_32(d, 96)

/* TYPE "bf16" or "f16", N columns, R = N/2 registers; P0.. number the operands after them. */
#define KM_WGMMA_SS(TYPE, N, R, P0, P1, P2, P3, P4)                                                \
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #P2 ", 0;\n\t"                           \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE                   \
                 " " KM_WGMMA_REGS_##R ", %" #P0 ", %" #P1 ", p, 1, 1, %" #P3 ", %" #P4 ";\n\t}"   \
                 : KM_WGMMA_OUT_##R(d)                                                             \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(TRANS_A), "n"(TRANS_B))
#define KM_WGMMA_RS(TYPE, N, R, P0, P1, P2, P3, P4, P5, P6)                                        \
    asm volatile(                                                                                  \
        "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" #P5 ", 0;\n\t"                                    \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " KM_WGMMA_REGS_##R      \
        ", {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #P4 ", p, 1, 1, %" #P6 ";\n\t}"            \
        : KM_WGMMA_OUT_##R(d)                                                                      \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TRANS_B))

template <typename T> struct wgmma_is_bf16 { static constexpr bool value = false; };
template <> struct wgmma_is_bf16<__nv_bfloat16> { static constexpr bool value = true; };

/* Both operands in shared memory. N is 64, 128 or 256. */
template <typename T, int N, int TRANS_A, int TRANS_B>
KM_DEVICE void wgmma_ss(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {
    static_assert(N == 64 || N == 128 || N == 256, "a width that has a wrapper");
    if constexpr (wgmma_is_bf16<T>::value) {
        if constexpr (N == 64)
            KM_WGMMA_SS("bf16", 64, 32, 32, 33, 34, 35, 36);
        else if constexpr (N == 128)
            KM_WGMMA_SS("bf16", 128, 64, 64, 65, 66, 67, 68);
        else
            KM_WGMMA_SS("bf16", 256, 128, 128, 129, 130, 131, 132);
    } else {
        if constexpr (N == 64)
            KM_WGMMA_SS("f16", 64, 32, 32, 33, 34, 35, 36);
        else if constexpr (N == 128)
            KM_WGMMA_SS("f16", 128, 64, 64, 65, 66, 67, 68);
        else
            KM_WGMMA_SS("f16", 256, 128, 128, 129, 130, 131, 132);
    }
}

/* a in registers, laid out as in mma_m16n8k16; b in shared memory. N is 16, 64, 128 or 256. */
template <typename T, int N, int TRANS_B>
KM_DEVICE void wgmma_rs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    static_assert(N == 16 || N == 64 || N == 128 || N == 256, "a width that has a wrapper");
    if constexpr (wgmma_is_bf16<T>::value) {
        if constexpr (N == 16)
            KM_WGMMA_RS("bf16", 16, 8, 8, 9, 10, 11, 12, 13, 14);
        else if constexpr (N == 64)
            KM_WGMMA_RS("bf16", 64, 32, 32, 33, 34, 35, 36, 37, 38);
        else if constexpr (N == 128)
            KM_WGMMA_RS("bf16", 128, 64, 64, 65, 66, 67, 68, 69, 70);
        else
            KM_WGMMA_RS("bf16", 256, 128, 128, 129, 130, 131, 132, 133, 134);
    } else {
        if constexpr (N == 16)
            KM_WGMMA_RS("f16", 16, 8, 8, 9, 10, 11, 12, 13, 14);
        else if constexpr (N == 64)
            KM_WGMMA_RS("f16", 64, 32, 32, 33, 34, 35, 36, 37, 38);
        else if constexpr (N == 128)
            KM_WGMMA_RS("f16", 128, 64, 64, 65, 66, 67, 68, 69, 70);
        else
            KM_WGMMA_RS("f16", 256, 128, 128, 129, 130, 131, 132, 133, 134);
    }
}

#endif

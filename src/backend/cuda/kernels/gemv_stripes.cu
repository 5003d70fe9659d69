// km-arch: 90a
// One vector against a large matrix w (k, n) on Hopper.
//
// Floor: w is read once, 4096 x 4096 f32 in 15.8 us at the 4.24 TB/s that reading reaches. Memory must
// never rest, also not between two kernels: while the one in front ends, a block calls the first rows of
// its stripe into L2, which is right whoever writes w, and it keeps on calling rows a distance ahead of
// those it takes. A block sums a stripe of columns, 512 bytes (times WIDE) of each row, over a part of
// the rows; every warp has a ring of its own that the copy engine fills, KM_STRIPE_ROWS rows to a step,
// so that no barrier of the block stands in the way. The parts of a stripe are a cluster and add up in
// order through shared memory: the same bits every time.
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/gemv.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

__device__ __forceinline__ void bulk_into_l2(const void *p, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

__device__ __forceinline__ float far_float(uint32_t address) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint4 load_once(const void *p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Grid (stripes, parts, batch). Shared memory: x of this part as f32, what each warp found, what the
// block found, barriers, rings.
template <class T, int WIDE, bool DIRECT>
__device__ __forceinline__ void gemv_stripes(const km_gemv_args &g) {
    constexpr int V = 16 / sizeof(T), COLS = 32 * V * WIDE, ROWS = KM_STRIPE_ROWS;
    constexpr int PITCH = 512 * WIDE, SLOT = ROWS * PITCH;
    extern __shared__ __align__(128) uint8_t room[];
    int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    int warps = blockDim.x / 32, pace = warps * ROWS;
    int col0 = blockIdx.x * COLS, bytes = min(COLS, g.n - col0) * (int)sizeof(T);
    int begin = blockIdx.y * g.span, end = min(begin + g.span, g.k), first = begin + warp * ROWS;
    int steps = end > first ? (end - first + pace - 1) / pace : 0;
    float *x = reinterpret_cast<float *>(room), *found = x + g.span, *share = found + warps * COLS;
    uint32_t bars = smem_addr(share + COLS) + warp * g.stages * 8;
    uint8_t *rings = reinterpret_cast<uint8_t *>(share + COLS) + (warps * g.stages * 8 + 127) / 128 * 128;
    uint8_t *ring = rings + warp * g.stages * SLOT;
    const T *w = (const T *)g.w + blockIdx.z * g.batch_w + col0;

    auto call = [&](int step) { // into L2
        int row = first + step * pace;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (row + r < end) bulk_into_l2(w + (row + r) * g.ldw, bytes);
    };
    auto ask = [&](int step, int stage) {
        int row = first + step * pace, rows = min(ROWS, end - row);
        uint32_t bar = bars + stage * 8, to = smem_addr(ring) + stage * SLOT;
        mbar_expect(bar, rows * bytes);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (r >= rows) break;
            if (g.once) bulk_load_once(to + r * PITCH, w + (row + r) * g.ldw, bytes, bar);
            else bulk_load(to + r * PITCH, w + (row + r) * g.ldw, bytes, bar);
        }
    };
    if (elected()) {
        for (int i = 0; i < g.stages; i++) mbar_init(bars + i * 8, 1);
        fence_async_proxy();
        for (int i = 0; i < g.ahead && i < steps; i++) call(i);
    }
    __syncwarp();
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (!DIRECT && elected())
        for (int i = 0; i < g.stages && i < steps; i++) ask(i, i);
    __syncwarp();
    const T *vector = (const T *)g.x + blockIdx.z * g.batch_x;
#pragma unroll 4
    for (int j = threadIdx.x; j < g.span; j += blockDim.x)
        x[j] = begin + j < end ? to_f32(__ldg(vector + (begin + j) * g.x_k)) : 0.0f;
    __syncthreads();

    float sum[WIDE][V] = {};
    int let_in = max(steps - g.late, 0);
    auto add = [&](const uint4 (&raw)[ROWS][WIDE], int s) {
        float4 f = *reinterpret_cast<const float4 *>(x + first + s * pace - begin);
        float factor[4] = {f.x, f.y, f.z, f.w};
        static_assert(ROWS == 4, "as many factors as rows");
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                float fw[V];
                unpack<T>(raw[r][i], fw);
#pragma unroll
                for (int v = 0; v < V; v++) sum[i][v] = fmaf(fw[v], factor[r], sum[i][v]);
            }
    };
    if constexpr (DIRECT) {
        uint4 now[ROWS][WIDE], next[ROWS][WIDE];
        auto fetch = [&](uint4 (&raw)[ROWS][WIDE], int s) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < WIDE; i++) {
                    int row = first + s * pace + r, at = (i * 32 + lane) * V;
                    raw[r][i] = row < end && at * (int)sizeof(T) < bytes
                                    ? load_once(w + row * g.ldw + at)
                                    : make_uint4(0, 0, 0, 0);
                }
        };
        fetch(now, 0);
        for (int s = 0; s < steps; s += 2) {
            if (warp == 0 && (s == let_in || s + 1 == let_in))
                asm volatile("griddepcontrol.launch_dependents;");
            fetch(next, s + 1);
            if (elected()) {
                if (g.ahead && s + g.ahead < steps) call(s + g.ahead);
                if (g.ahead && s + 1 + g.ahead < steps) call(s + 1 + g.ahead);
            }
            __syncwarp();
            add(now, s);
            fetch(now, s + 2);
            if (s + 1 < steps) add(next, s + 1);
        }
    } else {
        int stage = 0;
        uint32_t phase = 0;
        for (int s = 0; s < steps; s++) {
            if (warp == 0 && s == let_in) asm volatile("griddepcontrol.launch_dependents;");
            int rows = min(ROWS, end - first - s * pace);
            mbar_wait(bars + stage * 8, phase);
            uint4 raw[ROWS][WIDE];
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < WIDE; i++) // what never came is not looked at
                    raw[r][i] = r < rows ? *reinterpret_cast<const uint4 *>(
                                               ring + stage * SLOT + r * PITCH + i * 512 + lane * 16)
                                         : make_uint4(0, 0, 0, 0);
            __syncwarp(); // all have read
            if (elected()) {
                if (s + g.stages < steps) ask(s + g.stages, stage);
                if (g.ahead && s + g.ahead < steps) call(s + g.ahead);
            }
            __syncwarp();
            add(raw, s);
            if (++stage == g.stages) stage = 0, phase ^= 1;
        }
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
#pragma unroll
        for (int v = 0; v < V; v += 4)
            *reinterpret_cast<float4 *>(found + warp * COLS + i * 32 * V + lane * V + v) =
                make_float4(sum[i][v], sum[i][v + 1], sum[i][v + 2], sum[i][v + 3]);
    __syncthreads();
    for (int j = threadIdx.x; j < COLS; j += blockDim.x) {
        float all = 0;
        for (int p = 0; p < warps; p++) all += found[p * COLS + j];
        if (g.parts > 1)
            share[j] = all;
        else if (col0 + j < g.n)
            gemv_finish<T>(g, blockIdx.z * g.batch_o, 0, col0 + j, all);
    }
    if (g.parts == 1) return;
    cluster_sync(); // each block of the cluster finishes some of its columns
    for (int j = threadIdx.x * g.parts + blockIdx.y; j < COLS; j += blockDim.x * g.parts) {
        float each[8], all = 0; // all of them on their way together
#pragma unroll
        for (int p = 0; p < 8; p++)
            each[p] = p < g.parts ? far_float(in_block(smem_addr(share + j), p)) : 0.0f;
#pragma unroll
        for (int p = 0; p < 8; p++) all += each[p];
        if (col0 + j < g.n) gemv_finish<T>(g, blockIdx.z * g.batch_o, 0, col0 + j, all);
    }
    cluster_sync(); // nobody leaves while another reads its share
}

#define STRIPES(type, tname, wide)                                                                 \
    KM_KERNEL __launch_bounds__(256, 4)                                                            \
        gemv_stripes_##tname##_##wide(const __grid_constant__ km_gemv_args g) {                    \
        gemv_stripes<type, wide, false>(g);                                                        \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(256, 4)                                                            \
        gemv_direct_##tname##_##wide(const __grid_constant__ km_gemv_args g) {                     \
        gemv_stripes<type, wide, true>(g);                                                         \
    }
KM_EACH_FLOAT(STRIPES, 1)
KM_EACH_FLOAT(STRIPES, 2)

// km-arch: 90a
// km-nvcc: 12.1
// Attention of one token over the paged f16 cache, on Hopper: what every layer of a decoding step
// waits for.
//
// Floor: the keys and values of the sequence once, and a few vectors; at 4000 tokens that is a
// microsecond, so what counts is how many steps follow on one another. Clusters of blocks take the
// query heads of one key head (up to 16); each half of a block takes pages of its own. As many clusters
// work as there are pages for, so that long contexts have the whole chip. Pages, their
// numbers and the rotation's turns are fetched before the kernel in front has ended: the cache's
// other rows are older than that. Then q, k and v are turned. Of a page, each warp multiplies 16 keys
// with all queries, the half's warps agree on the largest scores, and each multiplies all probabilities
// with a quarter of the values' columns, by tensor cores. Then halves send what they have of a head to
// the block that makes its result, into that one's shared memory, and leave: nobody waits for others
// but for what is sent to it. Of several clusters, the first waits for the others and puts heads together.
#include "backend/cuda/kernels/attend/attend.cuh"
#include "backend/cuda/kernels/cluster.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int WARPS = 8, HALF = 128, M = KM_ATTEND_HEADS, BLOCKS = KM_ATTEND_CLUSTER;
constexpr int HALVES = 2 * BLOCKS, AT_ONCE = 16;
static_assert(BLOCKS == 8 && M == 2 * BLOCKS, "row g of a tile, and row g + 8, are of block g");

// A page into shared memory by the 128 threads of a half.
template <int DP>
__device__ __forceinline__ void ask_page(const km_attend_args &a, uint32_t tile,
                                         const uint8_t *page, int seen) {
    constexpr int CHUNKS = DP / 8;
#pragma unroll 4
    for (int c = threadIdx.x % HALF; c < PAGE * CHUNKS; c += HALF) {
        int row = c / CHUNKS, chunk = c % CHUNKS;
        bool there = chunk * 8 < a.d && row < seen; // zeros beyond, as load_page has it
        cp_async_16(tile + swizzle<CHUNKS>(row, chunk),
                    there ? page + (row * a.d + chunk * 8) * 2 : page, there);
    }
}

// Position of row i if it is of row r's sequence, r sees it, and its key and value are kept; else -1.
__device__ __forceinline__ int new_token(const km_attend_args &a, const Place &p, int r, int i) {
    int sequence = a.row[2 * i], at = a.row[2 * i + 1];
    if (i == r) return at;
    if (sequence != a.row[2 * r] || at < p.first || at >= p.position) return -1;
    int first = a.window > 0 && at >= a.window ? at - a.window + 1 : 0;
    for (int page = first / PAGE; page < p.first / PAGE; page++)
        if (p.pages[page] < 0 || p.pages[page] >= a.pages) return -1;
    return at;
}

template <int DP, bool MANY> __device__ __forceinline__ void attend_one(const km_attend_args &a) {
    constexpr int CHUNKS = DP / 8, TILE = PAGE * DP * 2, PAIRS = DP / 64, TASKS = 3;
    constexpr int COLS = DP / 4; // of a warp
    extern __shared__ __align__(1024) uint8_t shared[];
    // Two halves of key and value tiles, and of probabilities; queries. Then what halves send:
    // for up to two heads of this block the sums, and the largest score with the probabilities' sum.
    uint8_t *tile_p = shared + 4 * TILE, *tile_q = tile_p + 2 * M * PAGE * 2;
    float *sent = reinterpret_cast<float *>(tile_q + M * DP * 2);          // (HALVES, 2, DP)
    float2 *sent_top = reinterpret_cast<float2 *>(sent + HALVES * 2 * DP); // (HALVES, 2)
    float *tops = reinterpret_cast<float *>(sent_top + HALVES * 2);        // of each warp and head
    float2 *turns = reinterpret_cast<float2 *>(tops + WARPS * M);          // DP / 2
    uint32_t all_sent = smem_addr(turns + DP / 2);                         // barrier
    f16 *patch =
        reinterpret_cast<f16 *>(turns + DP / 2) + 8; // (new tokens, 2, DP): keys and values
    int r = MANY ? blockIdx.z : 0, rank = blockIdx.x % BLOCKS, cluster = blockIdx.x / BLOCKS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int half = warp / 4, kvh = blockIdx.y / a.parts, part = blockIdx.y % a.parts;
    int head0 = kvh * a.group + part * M, heads = min(M, a.group - part * M);
    uint8_t *tile_k = shared + half * 2 * TILE, *tile_v = tile_k + TILE;
    tile_p += half * M * PAGE * 2;

    float *out = a.out + ((int64_t)r * a.heads + head0) * a.d;
    if (!a.early) wait_for_previous();
    Place p = place_by_block(a, r);
    int page0 = p.first / PAGE, pages = p.counts ? p.position / PAGE - page0 + 1 : 0;
    // Clusters that work, and the pages from one of a half's to its next.
    int clusters = min((int)gridDim.x / BLOCKS, max(1, (pages + HALVES - 1) / HALVES));
    int stride = clusters * HALVES, from = rank + half * BLOCKS;
    if (cluster >= clusters) return;
    int n = cluster * HALVES + from; // this half's first page
    // New tokens of this row's sequence, itself among them, whose pages this block has: of each lane one.
    // Their keys and values are made here, whether or not they are in the cache yet.
    int new_at = -1;
    if (p.counts && (MANY ? lane < a.rows : lane == 0)) new_at = new_token(a, p, r, lane);
    int local = new_at < 0 ? -1 : (new_at / PAGE - page0) % stride - cluster * HALVES;
    uint32_t fresh =
        __ballot_sync(ALL_LANES, new_at >= 0 && (local == rank || local == rank + BLOCKS));
    auto ask = [&](int i) {
        int64_t at = page_at(a, p.pages[page0 + i], kvh);
        int seen = p.position - (page0 + i) * PAGE; // this token's own row is filled in later
        ask_page<DP>(a, smem_addr(tile_k), a.cache_k + at, seen);
        ask_page<DP>(a, smem_addr(tile_v), a.cache_v + at, seen);
        cp_async_commit();
    };
    if (n < pages) ask(n);
    int here = (rank < heads) + (rank + BLOCKS < heads);
    int halves = min(pages - cluster * HALVES, HALVES); // that have any page
    if (threadIdx.x == 0) {
        mbar_init(all_sent, 1);
        mbar_expect(all_sent, halves * here * (DP * 4 + 8));
        mbar_init_fence();
    }
    __syncwarp();
    cluster_arrive();
    for (int i = threadIdx.x; i < DP / 2; i += 2 * HALF)
        turns[i] = i < a.dims / 2 && p.counts ? turn_of(a, p.position, i) : make_float2(1, 0);
    for (int i = threadIdx.x; i < M * CHUNKS; i += 2 * HALF) // rows beyond the heads are zeros
        *reinterpret_cast<uint4 *>(tile_q + i * 16) = make_uint4(0, 0, 0, 0);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (a.early) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (!p.counts) {
        for (int i = threadIdx.x; rank == 0 && i < heads * a.d; i += 2 * HALF) out[i] = 0;
        cluster_wait();
        return;
    }

    // Queries; and for the half that has the token's own page, its key and value. A warp to a vector,
    // the loads of all its vectors together.
    int tasks = heads + 2 * __popc(fresh), pairs = a.d / 2, turned = a.dims / 2;
    float lo[TASKS][PAIRS], hi[TASKS][PAIRS];
    auto places = [&](int i, int &first, int &second) { // of pair i
        bool beyond = i >= turned;
        first = beyond || a.adjacent ? 2 * i : i;
        second = beyond || a.adjacent ? 2 * i + 1 : i + turned;
    };
    // Row of q, k or v that a task is about.
    auto row_of = [&](int task) {
        return MANY && task >= heads ? (int)__fns(fresh, 0, (task - heads) / 2 + 1) : r;
    };
    for (int task0 = warp; task0 < tasks; task0 += TASKS * WARPS) {
#pragma unroll
        for (int k = 0; k < TASKS; k++) {
            int task = task0 + k * WARPS, row = row_of(task);
            const float *x = task < heads ? (const float *)a.q + row * a.ldq + (head0 + task) * a.d
                             : (task - heads) % 2 == 0
                                 ? (const float *)a.k + row * a.ldk + kvh * a.d
                                 : (const float *)a.v + row * a.ldv + kvh * a.d;
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int i = lane + 32 * j, first, second;
                lo[k][j] = hi[k][j] = 0;
                if (task >= tasks || i >= pairs) continue;
                places(i, first, second);
                lo[k][j] = x[first], hi[k][j] = x[second];
            }
        }
#pragma unroll
        for (int k = 0; k < TASKS; k++) {
            int task = task0 + k * WARPS, row = row_of(task);
            if (task >= tasks) break;
            bool query = task < heads, key = !query && (task - heads) % 2 == 0;
            int at = __shfl_sync(ALL_LANES, new_at, row);
            if (query) at = p.position;
            const float *norm = query ? a.q_norm : key ? a.k_norm : nullptr;
            float rstd = 1;
            if (norm) {
                float s = 0;
#pragma unroll
                for (int j = 0; j < PAIRS; j++) s += lo[k][j] * lo[k][j] + hi[k][j] * hi[k][j];
                rstd = 1 / sqrtf(warp_sum(s) / (float)a.d + a.eps);
            }
            int64_t row_at = page_at(a, p.pages[at / PAGE], kvh) + (int64_t)(at % PAGE) * a.d * 2;
#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                int i = lane + 32 * j, first, second;
                if (i >= pairs) continue;
                places(i, first, second);
                float u = lo[k][j], w = hi[k][j];
                if (norm) u *= rstd * norm[first], w *= rstd * norm[second];
                if (query || key) {
                    float2 turn = turns[i];
                    if (MANY && row != r && i < turned) turn = turn_of(a, at, i);
                    float v = u * turn.x - w * turn.y;
                    w = u * turn.y + w * turn.x, u = v;
                }
                f16 a16 = __float2half_rn(u), b16 = __float2half_rn(w);
                if (query) {
                    *reinterpret_cast<f16 *>(tile_q + swizzle<CHUNKS>(task, first / 8) +
                                             first % 8 * 2) = a16;
                    *reinterpret_cast<f16 *>(tile_q + swizzle<CHUNKS>(task, second / 8) +
                                             second % 8 * 2) = b16;
                } else {
                    f16 *to = patch + (task - heads) * DP;
                    to[first] = a16, to[second] = b16;
                    // Nobody needs this row from memory before the step has ended: no fence before
                    // the next kernel is let in.
                    uint8_t *cache = key ? a.cache_k : a.cache_v;
                    if (row == r) {
                        reinterpret_cast<f16 *>(cache + row_at)[first] = a16;
                        reinterpret_cast<f16 *>(cache + row_at)[second] = b16;
                    }
                }
            }
        }
    }
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (a.early) asm volatile("griddepcontrol.launch_dependents;");
#endif

    // Sums of the columns of this warp and, in `sum`, of the probabilities; rows g and g + 8.
    float o[COLS / 8][4] = {}, sum[4] = {}, most[2] = {-INFINITY, -INFINITY};
    int i8 = lane / 8, within = lane % 8, key0 = warp % 4 * 16;
    uint32_t at_k = smem_addr(tile_k), at_v = smem_addr(tile_v), at_q = smem_addr(tile_q);
    auto half_sync = [&] { asm volatile("bar.sync %0, 128;" ::"r"(1 + half) : "memory"); };
    for (; n < pages; n += stride) {
        cp_async_wait<0>();
        bool holds = new_at >= 0 && new_at / PAGE - page0 == n;
        uint32_t late =
            fresh & __ballot_sync(ALL_LANES, holds); // not, or no more, in what was asked for
        if (late) {
            half_sync();
            for (uint32_t left = late; left; left &= left - 1) {
                int row = __shfl_sync(ALL_LANES, new_at, __ffs(left) - 1) % PAGE;
                const f16 *made =
                    patch + 2 * DP * __popc(fresh & ((left & -left) - 1)); // among all of them
                for (int i = threadIdx.x % HALF; i < a.d; i += HALF) {
                    uint32_t at = swizzle<CHUNKS>(row, i / 8) + i % 8 * 2;
                    *reinterpret_cast<f16 *>(tile_k + at) = made[i];
                    *reinterpret_cast<f16 *>(tile_v + at) = made[DP + i];
                }
            }
        }
        half_sync();
        float s[2][2][4] = {},
              high[2] = {-INFINITY, -INFINITY}; // two sums, so that neither is a long chain
#pragma unroll
        for (int k = 0; k < DP; k += 16) {
            uint32_t fq[4], fk[4];
            ldmatrix_x4(fq, at_q + swizzle<CHUNKS>(i8 % 2 * 8 + within, k / 8 + i8 / 2));
            ldmatrix_x4(fk, at_k + swizzle<CHUNKS>(key0 + i8 / 2 * 8 + within, k / 8 + i8 % 2));
            mma_m16n8k16<f16>(s[k / 16 % 2][0], fq, fk[0], fk[1]);
            mma_m16n8k16<f16>(s[k / 16 % 2][1], fq, fk[2], fk[3]);
        }
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int key = (page0 + n) * PAGE + key0 + 8 * c + 2 * t + e % 2;
                bool seen = key >= p.first && key <= p.position;
                float v = s[0][c][e] + s[1][c][e];
                s[0][c][e] = seen ? capped(a, v * a.scale) * LOG2E : -INFINITY;
                high[e / 2] = fmaxf(high[e / 2], s[0][c][e]);
            }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            high[e] = fmaxf(high[e], __shfl_xor_sync(ALL_LANES, high[e], 1));
            high[e] = fmaxf(high[e], __shfl_xor_sync(ALL_LANES, high[e], 2));
            if (t == 0) tops[warp * M + 8 * e + g] = high[e];
        }
        half_sync();
        float by[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            high[e] = most[e];
#pragma unroll
            for (int w = 0; w < 4; w++)
                high[e] = fmaxf(high[e], tops[(half * 4 + w) * M + 8 * e + g]);
            by[e] = high[e] > -INFINITY ? fast_exp2(most[e] - high[e]) : 1;
            most[e] = high[e];
        }
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float f[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    f[i] = most[e] > -INFINITY ? fast_exp2(s[0][c][2 * e + i] - most[e]) : 0;
                uint32_t at = swizzle<PAGE / 8>(8 * e + g, key0 / 8 + c) + 4 * t;
                *reinterpret_cast<uint32_t *>(tile_p + at) = pack2<f16>(f[0], f[1]);
            }
        half_sync();
#pragma unroll
        for (int e = 0; e < 4; e++) {
            sum[e] *= by[e / 2];
#pragma unroll
            for (int c = 0; c < COLS / 8; c++) o[c][e] *= by[e / 2];
        }
#pragma unroll
        for (int k = 0; k < PAGE; k += 16) {
            const uint32_t ones = 0x3c003c00u;
            uint32_t fp[4];
            ldmatrix_x4(fp,
                        smem_addr(tile_p) + swizzle<PAGE / 8>(i8 % 2 * 8 + within, k / 8 + i8 / 2));
            mma_m16n8k16<f16>(sum, fp, ones, ones);
#pragma unroll
            for (int c = 0; c < COLS / 8; c += 2) {
                uint32_t fv[4];
                ldmatrix_x4_trans(fv, at_v + swizzle<CHUNKS>(k + i8 % 2 * 8 + within,
                                                             warp % 4 * (COLS / 8) + c + i8 / 2));
                mma_m16n8k16<f16>(o[c], fp, fv[0], fv[1]);
                mma_m16n8k16<f16>(o[c + 1], fp, fv[2], fv[3]);
            }
        }
        if (n + stride < pages) {
            half_sync();
            ask(n + stride);
        }
    }
    // To the block of each head; all blocks run by now.
    cluster_wait();
#pragma unroll
    for (int e = 0; e < 2; e++) {
        if (from >= halves || 8 * e + g >= heads) break;
        uint32_t bar = in_block(all_sent, g);
        uint32_t to =
            in_block(smem_addr(sent + (2 * from + e) * DP), g) + (warp % 4 * COLS + 2 * t) * 4;
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
            send_two(to + 32 * c, make_float2(o[c][2 * e], o[c][2 * e + 1]), bar);
        if (warp % 4 == 0 && t == 0)
            send_two(in_block(smem_addr(sent_top + 2 * from + e), g),
                     make_float2(most[e], sum[2 * e]), bar);
    }

    // This block's heads, as far as the cluster has them.
    if (here == 0) return;
    int64_t who = (int64_t)blockIdx.y * BLOCKS + rank; // of all that make results
    constexpr int PARTIAL = 2 * (DP + 2);              // floats that a cluster leaves for them
    float *partial = a.partial + who * clusters * PARTIAL;
    mbar_wait(all_sent, 0);
    for (int i = threadIdx.x; i < here * DP; i += 2 * HALF) {
        int e = i / DP, col = i % DP;
        float high = -INFINITY, v = 0, all = 0;
#pragma unroll 4
        for (int b = 0; b < halves; b++) high = fmaxf(high, sent_top[2 * b + e].x);
#pragma unroll 4
        for (int b = 0; b < halves; b++) {
            float2 top = sent_top[2 * b + e];
            float by = fast_exp2(top.x - high);
            v = fmaf(by, sent[(2 * b + e) * DP + col], v);
            all = fmaf(by, top.y, all);
        }
        if (clusters == 1) {
            if (col < a.d) out[(rank + e * BLOCKS) * a.d + col] = v / all;
        } else {
            float *mine = partial + cluster * PARTIAL + e * (DP + 2);
            mine[col] = v;
            if (col == 0) mine[DP] = high, mine[DP + 1] = all;
        }
    }
    if (clusters == 1) return;
    // The first cluster waits for the others, which wait for nobody and leave.
    __syncthreads();
    uint32_t *counter = &a.counters[who];
    if (cluster > 0) {
        if (threadIdx.x == 0)
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
        return;
    }
    if (threadIdx.x == 0) {
        uint32_t there;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(there) : "l"(counter) : "memory");
        while (there < (uint32_t)clusters - 1);
        *counter = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < here * DP; i += 2 * HALF) {
        int e = i / DP, col = i % DP;
        float high = -INFINITY, v = 0, all = 0;
        for (int c0 = 0; c0 < clusters; c0 += AT_ONCE) { // their loads together
            float top[AT_ONCE], part[AT_ONCE], sum[AT_ONCE], most = high;
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) {
                const float *theirs = partial + (c0 + c) * PARTIAL + e * (DP + 2);
                bool there = c0 + c < clusters;
                top[c] = there ? __ldcg(theirs + DP) : -INFINITY;
                sum[c] = there ? __ldcg(theirs + DP + 1) : 0;
                part[c] = there ? __ldcg(theirs + col) : 0;
            }
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) most = fmaxf(most, top[c]);
            float old = fast_exp2(high - most);
            v *= old, all *= old, high = most;
#pragma unroll
            for (int c = 0; c < AT_ONCE; c++) {
                float by = fast_exp2(top[c] - most);
                v = fmaf(by, part[c], v), all = fmaf(by, sum[c], all);
            }
        }
        if (col < a.d) out[(rank + e * BLOCKS) * a.d + col] = v / all;
    }
}

#define ONE(DP)                                                                                    \
    extern "C" __global__ void __launch_bounds__(2 * HALF)                                         \
        attend_one_##DP(const __grid_constant__ km_attend_args a) {                                \
        attend_one<DP, false>(a);                                                                  \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(2 * HALF)                                         \
        attend_sole_##DP(const __grid_constant__ km_attend_args a) {                               \
        attend_one<DP, true>(a);                                                                   \
    }
ONE(64)
ONE(128)
ONE(256)

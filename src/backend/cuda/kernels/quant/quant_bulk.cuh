// One row of x against matrices of a few bits on Hopper: what decoding a token does.
//
// Floor: each matrix is read once, in the form it has. Between two kernels x passes through memory,
// which takes microseconds in which nothing is multiplied, so weights must arrive meanwhile: every
// warp has a ring of its own in shared memory, which the copy engine fills from the first moment on,
// while the kernels in front still run. Blocks are so small that those of the next kernel find room
// beside them. A warp takes two rows at a time (of a gated layer, of each half), which share the x they
// read and the instructions around the products, in steps of 32 units. x is staged without waiting for
// the norm's sum, which is a factor of the results. Weights are marked as not to be kept in L2: a layer
// nearly fills it, and would drive out instructions and all that is small.
#ifndef KM_CUDA_QUANT_BULK_CUH
#define KM_CUDA_QUANT_BULK_CUH
#include "backend/cuda/kernels/quant/quant_one.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

// A step of a row in shared memory: plane after plane. Planes whose groups are no 16 bytes are copied
// from the last such border on.
template <int TYPE> struct Chunk {
    static constexpr int UNITS = Planes<TYPE>::UNITS, GROUPS = 32 / UNITS;
    static __device__ constexpr int group(int i) { return Planes<TYPE>::bytes(i); }
    static __device__ constexpr int bytes(int i) { return GROUPS * group(i); }
    static __device__ constexpr bool ragged(int i) { return group(i) % 16 != 0; }
    static __device__ constexpr int room(int i) { return bytes(i) + (ragged(i) ? 16 : 0); }
    static __device__ constexpr int at(int i) {
        return (i > 0 ? room(0) : 0) + (i > 1 ? room(1) : 0) + (i > 2 ? room(2) : 0) +
               (i > 3 ? room(3) : 0) + (i > 4 ? room(4) : 0);
    }
};

struct Near {
    template <class T> __device__ __forceinline__ void operator()(T &v, const uint8_t *p) {
        v = *reinterpret_cast<const T *>(p);
    }
};

constexpr int WHOLE_K = 32 * KM_QUANT_UNIT; // a row that is one step; SLIM: x is known to be so

// x into shared memory. Whole warps go together, also where they come to its end.
template <int THREADS, bool SLIM, int AHEAD, class LINE>
__device__ __forceinline__ void stage_plain(const km_quant_few_args &a, LINE &x) {
    constexpr int N = 8, EACH = THREADS * N; // AHEAD loads go out together
    if constexpr (SLIM) {
        static_assert(EACH == WHOLE_K, "a turn of the block");
        Some<N> f;
        f.load(a.x + threadIdx.x * N);
        x.put(threadIdx.x * N, f);
        __syncthreads();
        return;
    }
    int end = (a.k + 32 * N - 1) / (32 * N) * (32 * N);
    for (int p = threadIdx.x * N; p < end; p += AHEAD * EACH) {
        Some<N> f[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (p + i * EACH < a.k) f[i].load(a.x + p + i * EACH);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (p + i * EACH < end) x.put(p + i * EACH, f[i]);
    }
    __syncthreads();
}

// What becomes x when it is multiplied with the factor returned: the norm without its sum, for which
// nobody has to wait. The sum of squares goes through `part`, a float for every warp. What others may
// look for is left in memory, a piece by each of the first blocks.
template <int THREADS, bool SLIM, class LINE>
__device__ __forceinline__ float stage_norm(const km_quant_few_args &a, LINE &x, float *part) {
    constexpr int N = 8, each = THREADS * N;
    int first = threadIdx.x * N, warp = threadIdx.x / 32;
    int k = SLIM ? WHOLE_K : a.k, end = (k + 32 * N - 1) / (32 * N) * (32 * N);
    bool keeps = (int)blockIdx.x == warp % (int)gridDim.x;
    Some<N> f = {};
    auto read = [&](int p, bool keep) {
        Some<N> r = {}, w = {};
        f = {};
        if (p < k) { // all loads of a thread go out together
            f.load(a.delta + p);
            if (a.residual) r.load(a.residual + p);
            w.load(a.norm_w + p);
        }
        float square = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            f.v[i] += r.v[i];
            square += f.v[i] * f.v[i];
        }
        if (keep && p < k) f.store(a.sum + p);
#pragma unroll
        for (int i = 0; i < N; i++) f.v[i] *= w.v[i];
        return square;
    };
    float square = 0;
    for (int p = first; p < end; p += each) {
        square += read(p, keeps && a.sum);
        x.put(p, f);
    }
    square = warp_sum(square);
    if (threadIdx.x % 32 == 0) part[warp] = square;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < THREADS / 32; i += 4) {
        float4 v = *reinterpret_cast<const float4 *>(part + i);
        total += v.x + v.y + v.z + v.w;
    }
    float factor = rsqrtf(total / (float)k + a.eps);
    if (keeps) {
        if (threadIdx.x == 0) a.rstd[0] = factor;
        for (int p = first; p < k; p += each) {
            if (each < end) read(p, false);
#pragma unroll
            for (int i = 0; i < N; i++) f.v[i] *= factor;
            f.store(a.y + p);
        }
    }
    return factor;
}

// Sums of one, two or four values over a warp: of value i, in the lanes that are i modulo their number.
template <int N> __device__ __forceinline__ float warp_sums(const float (&v)[N]) {
    if constexpr (N == 1) {
        return lanes_sum(v[0], 32, ALL_LANES);
    } else if constexpr (N == 2) {
        return lanes_sum_two(v[0], v[1], 32, ALL_LANES);
    } else {
        bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
        float a = odd ? v[1] : v[0], b = odd ? v[3] : v[2];
        a += __shfl_xor_sync(ALL_LANES, odd ? v[0] : v[1], 1);
        b += __shfl_xor_sync(ALL_LANES, odd ? v[2] : v[3], 1);
        float s = high ? b : a;
        s += __shfl_xor_sync(ALL_LANES, high ? a : b, 2);
        s += __shfl_xor_sync(ALL_LANES, s, 4);
        s += __shfl_xor_sync(ALL_LANES, s, 8);
        return s + __shfl_xor_sync(ALL_LANES, s, 16);
    }
}

// WHOLE: a row is one step, and rows lie together. ROWS: that a warp takes at a time. SHARES: warps that
// take a part of these rows each, a team.
template <int TYPE, bool FINE, bool GATED, bool WHOLE, int ROWS, int THREADS = KM_BULK_THREADS,
          int SHARES = 1>
__device__ __forceinline__ void bulk_rows(const km_quant_few_args &a, const km_quant_part &part,
                                          uint8_t *room) {
    typedef Quant<TYPE> Q;
    typedef Chunk<TYPE> C;
    constexpr int BYTES = C::at(KM_QUANT_FIELDS), TAKES = GATED ? 2 : 1;
    constexpr int N = ROWS * TAKES, SLOT = N * BYTES, TEAMS = THREADS / 32 / SHARES;
    static_assert(SHARES == 1 || (SHARES == 2 && !WHOLE && !GATED && N <= 4), "two halves of rows");
    int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
    int units = WHOLE ? 32 : a.k / KM_QUANT_UNIT, groups = units / C::UNITS, begin, end;
    rows_of_block(part, begin, end);
    // Sets of rows: this warp's are [set, last), and of their groups those from `from` on.
    int team = warp / SHARES, share = warp % SHARES;
    int sets = (end - begin + ROWS - 1) / ROWS, set = sets * team / TEAMS;
    int last = sets * (team + 1) / TEAMS, from = groups * share / SHARES;
    int mine_groups = groups * (share + 1) / SHARES - from;
    int pace = WHOLE ? 1 : (mine_groups + C::GROUPS - 1) / C::GROUPS; // steps of a set
    int steps = (last - set) * pace;

    uint8_t *after = room + KM_ONE_X_BYTES(a.k, Q::APART, FINE);
    float *sums = reinterpret_cast<float *>(after);
    uint32_t bars = smem_addr(after + KM_BULK_SUMS) + warp * a.stages * 8;
    uint8_t *ring = after + KM_BULK_SUMS + KM_BULK_BARS + warp * a.stages * SLOT;
    uint32_t ring_at = smem_addr(ring);
    // Asks for the step after the one asked for last. Every operand is the same for all lanes of a
    // warp, which keeps this short.
    int ask_row = begin + set * ROWS, ask_step = 0;
    auto ask_of = [&](const km_quant_matrix &w, int row, int rows, uint32_t to, uint32_t bar) {
        const uint8_t *plane = w.planes;
        uint32_t first = (uint32_t)w.first + row * groups + from + ask_step * C::GROUPS;
        int count = WHOLE ? rows * C::GROUPS : min(C::GROUPS, mine_groups - ask_step * C::GROUPS);
        int all = 0;
#pragma unroll
        for (int i = 0; i < KM_QUANT_FIELDS; i++) {
            if (C::bytes(i) == 0) continue;
            const uint8_t *from = plane + (size_t)first * C::group(i);
            int off = C::ragged(i) && !WHOLE ? (int)((uintptr_t)from & 15) : 0;
            all += (count * C::group(i) + off + 15) / 16 * 16;
            plane += w.padded * C::group(i);
        }
        mbar_more(bar, all);
        plane = w.planes;
#pragma unroll
        for (int i = 0; i < KM_QUANT_FIELDS; i++) {
            if (C::bytes(i) == 0) continue;
            const uint8_t *from = plane + (size_t)first * C::group(i);
            int off = C::ragged(i) && !WHOLE ? (int)((uintptr_t)from & 15) : 0;
            bulk_load_once(to + (WHOLE ? ROWS : 1) * C::at(i), from - off,
                           (count * C::group(i) + off + 15) / 16 * 16, bar);
            plane += w.padded * C::group(i);
        }
    };
    auto ask = [&](int stage) {
        uint32_t bar = bars + stage * 8, to = ring_at + stage * SLOT;
        int rows = ROWS == 1 ? 1 : min(ROWS, end - ask_row);
        if (elected()) {
            if constexpr (WHOLE) {
                ask_of(part.w, ask_row, rows, to, bar);
                if constexpr (GATED) ask_of(part.up, ask_row, rows, to + ROWS * BYTES, bar);
            } else {
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (r >= rows) break;
                    ask_of(part.w, ask_row + r, 1, to + r * BYTES, bar);
                    if constexpr (GATED)
                        ask_of(part.up, ask_row + r, 1, to + (ROWS + r) * BYTES, bar);
                }
            }
            mbar_arrive(bar);
        }
        __syncwarp();
        if (++ask_step == pace) ask_step = 0, ask_row += ROWS;
    };
    if (elected()) {
        for (int i = 0; i < a.stages; i++) mbar_init(bars + i * 8, 1);
        fence_async_proxy();
    }
    __syncwarp();
    int asked = 0;
    // What all rings ask for at once would queue up in front of the few bytes that the kernels before
    // this one wait for: a stage has come before the next is asked for. Long rings are not filled so: x
    // would be there long before.
    for (; asked < a.early && asked < steps; asked++) {
        if (asked > 0) mbar_wait(bars + (asked - 1) * 8, 0);
        ask(asked);
    }

    // Row r of a set ends up in the lanes that are r * TAKES modulo N.
    int mine = lane % N / TAKES, row = begin + set * ROWS + mine;
    auto bias_of = [&](int r) { return part.bias && r < end ? __ldg(part.bias + r) : 0; };
    float bias = bias_of(row);
    wait_for_x(a);
    Line<Q::APART, FINE> x = {room, a.k};
    float factor = 1;
    // Fewer instructions; but a gated layer, which takes long anyway, would have so few registers that
    // three of its blocks crowd (below).
    constexpr bool SLIM = WHOLE && !GATED;
    if (a.norm_w)
        factor = stage_norm<THREADS, SLIM>(a, x, sums);
    else
        stage_plain<THREADS, SLIM, SHARES == 2 ? 3 : GATED ? 7 : 6>(a, x); // as registers allow
    for (; asked < a.stages && asked < steps; asked++) ask(asked);
    if (a.late) asm volatile("griddepcontrol.launch_dependents;");

    // x of a lane: the same in all steps of whole rows. Of fine x, which is twice as much, registers hold
    // it only while it is multiplied.
    Unit<Q::APART, FINE> some;
    if (WHOLE && !FINE) some = x.unit(lane);
    float v[N] = {};
    int step = 0, stage = 0, told_at = 0;
    uint32_t phase = 0;
    for (int s = 0; s < steps; s++) {
        Q raw[N];
        int u = 32 * step + lane;
        bool has = WHOLE || u < mine_groups * C::UNITS;
        if (!WHOLE && !FINE) some = x.unit(from * C::UNITS + (has ? u : 0));
        mbar_wait(bars + stage * 8, phase);
#pragma unroll
        for (int k = 0; k < N; k++) {
            const uint8_t *slot = ring + stage * SLOT;
            Fields f;
#pragma unroll
            for (int i = 0; i < KM_QUANT_FIELDS; i++) {
                int r = k % ROWS, up = k / ROWS; // in the slot: all rows of w, then all of up
                if (WHOLE) {
                    f.f[i] = slot + up * ROWS * BYTES + ROWS * C::at(i) + r * C::bytes(i);
                } else {
                    f.f[i] = slot + k * BYTES + C::at(i);
                    if (C::ragged(i)) {
                        uint32_t first = (uint32_t)(up ? part.up.first : part.w.first) +
                                         (row - mine + r) * groups + from;
                        f.f[i] += first * C::group(i) & 15; // planes begin at borders
                    }
                }
            }
            Near copy;
            raw[k].fetch(copy, f, lane);
        }
        __syncwarp(); // all have read
        if (asked < steps) ask(stage), asked++;
        if (FINE) some = x.unit(WHOLE ? lane : from * C::UNITS + (has ? u : 0));
#pragma unroll
        for (int k = 0; k < N; k++) {
            float d = raw[k].dot(some);
            v[k % ROWS * TAKES + k / ROWS] += has ? d : 0;
        }
        if (++stage == a.stages) stage = 0, phase ^= 1;
        if (!WHOLE && ++step < pace) continue;
        // The set is done.
        step = 0;
        float f[1] = {warp_sums<N>(v) * factor}, other = 1;
        if constexpr (SHARES == 2) { // the second half's sums, in turns of two places
            float *told = sums + 16 + team * 8 + told_at;
            told_at ^= 4;
            if (share == 1 && lane < N) told[lane] = f[0];
            asm volatile("bar.sync %0, 64;" ::"r"(1 + team) : "memory");
            if (share == 0 && lane < N) f[0] += told[lane];
        }
        if (GATED) other = __shfl_xor_sync(ALL_LANES, f[0], 1);
        f[0] += bias;
        if (a.act != 0) gemm_act<float>(a.act, f);
        bool writes = share == 0 && lane < N && lane % TAKES == 0 && row < end;
        if (writes) part.out[row] = GATED ? f[0] * other : f[0];
        row += ROWS;
        if (part.bias) bias = bias_of(row);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = 0;
    }
}

template <int TYPE, bool GATED> __device__ constexpr int rows_of() {
    return KM_BULK_ROWS(Chunk<TYPE>::at(KM_QUANT_FIELDS) * (GATED ? 2 : 1));
}

template <int TYPE>
__device__ __forceinline__ void bulk_part(const km_quant_few_args &a, const km_quant_part &part,
                                          uint8_t *room) {
    constexpr int ROWS = rows_of<TYPE, false>();
    if (a.k == 32 * KM_QUANT_UNIT && part.w.first % Chunk<TYPE>::GROUPS == 0)
        bulk_rows<TYPE, KM_FINE, false, true, ROWS>(a, part, room);
    else
        bulk_rows<TYPE, KM_FINE, false, false, ROWS>(a, part, room);
}

// Few rows that are long: half of each to a warp, so that there are warps enough.
template <int TYPE>
__device__ __forceinline__ void bulk_long(const km_quant_few_args &a, uint8_t *room) {
    bulk_rows<TYPE, KM_FINE, false, false, rows_of<TYPE, false>(), KM_BULK_LONG_THREADS, 2>(
        a, a.part[0], room);
}

// 80 registers, or 88 of gated whole rows; compilers before 12.4 know no such bound.
#define TWO_BOUNDS __launch_bounds__(KM_BULK_THREADS, 2)
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define LONG_BOUNDS __maxnreg__(80)
#define WHOLE_BOUNDS __maxnreg__(88)
#else
#define LONG_BOUNDS __launch_bounds__(KM_BULK_LONG_THREADS)
#define WHOLE_BOUNDS TWO_BOUNDS
#endif

// Registers so that blocks of kernels that follow one another are on a multiprocessor together: one of
// attention, one of 80 registers, and two of a gated layer (of 88, so that there are never three); or a
// long one and one of these.
#define BULK_KERNEL(name, blocks, ...)                                                             \
    BULK_KERNEL_OF(name, __launch_bounds__(KM_BULK_THREADS, blocks), __VA_ARGS__)
#define BULK_KERNEL_OF(name, bounds, ...)                                                          \
    extern "C" __global__ void bounds name(const __grid_constant__ km_quant_few_args a) {          \
        extern __shared__ __align__(128) uint8_t room[];                                           \
        __VA_ARGS__                                                                                \
    }
#define BULK(TYPE) BULK_BOUND(TYPE, TWO_BOUNDS)
#define BULK_BOUND(TYPE, whole_bounds)                                                             \
    BULK_KERNEL(bulk_##TYPE, 3, {                                                                  \
        int p = 0;                                                                                 \
        while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;                     \
        bulk_part<KM_QUANT_##TYPE>(a, a.part[p], room);                                            \
    })                                                                                             \
    BULK_KERNEL(bulk_gated_##TYPE, 2, {                                                            \
        bulk_rows<KM_QUANT_##TYPE, KM_FINE, true, false, rows_of<KM_QUANT_##TYPE, true>()>(        \
            a, a.part[0], room);                                                                   \
    })                                                                                             \
    BULK_KERNEL_OF(bulk_gated_whole_##TYPE, whole_bounds,                                          \
                   { bulk_rows<KM_QUANT_##TYPE, KM_FINE, true, true, 1>(a, a.part[0], room); })    \
    BULK_KERNEL_OF(bulk_long_##TYPE, LONG_BOUNDS, { bulk_long<KM_QUANT_##TYPE>(a, room); })
// Layers of two types over one x, as mixes have them.
#define BULK_TWO(FIRST, SECOND)                                                                    \
    BULK_KERNEL(bulk_##FIRST##_##SECOND, 3, {                                                      \
        int p = 0;                                                                                 \
        while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;                     \
        if (a.part[p].second)                                                                      \
            bulk_part<KM_QUANT_##SECOND>(a, a.part[p], room);                                      \
        else                                                                                       \
            bulk_part<KM_QUANT_##FIRST>(a, a.part[p], room);                                       \
    })

#endif

// Trellis codes: Viterbi's search over 4096 states for each of a row's columns.
//
// Operations for a row of d columns in r bits: d + 144 d / r steps (the last and the first 72 bits are
// gone through twice, to find the state in which the ring closes), each a comparison for every state and
// two multiply-adds: 3.5 instructions, one more for the way taken. 1,000,000 rows of 384 columns at one
// bit: 9.7e12 of them, 0.34 s at four warps' instructions a cycle on an H200. Bytes: z read once, codes
// written, and a kilobyte of ways for every four bits of a row, 0.1 TB that mostly stays in L2. So it is
// the instructions that count, and what feeds them: if costs went through shared memory at every column,
// 32 KB of it to a step of 1.8 us at 128 bytes a cycle would take as long as the arithmetic again.
//
// Measured: 0.96 s. It is neither values (in shared memory or from L2: 3 % apart) nor comparisons (in pairs
// or one by one); with 8 warps to a multiprocessor, the waits at exchanges are likely what is left.
//
// A block searches ROWS rows of one class at a time, so that values of states, which lie in shared memory
// for the rates that are used most, serve all of them. A thread holds 16 states of each row in registers; four bits come in before threads must
// exchange costs (encode_args.h), which is one column at rate 4 and four columns at rate 1. A thread's
// ways of such a stretch are 32 bits at most: one word for each row, written as the stretch ends. To
// follow a path back, words are brought into shared memory, where one thread a row goes through them:
// all bits of a stretch are in the word of one thread.
#include "backend/cuda/kernels/vector/encode.cuh"

typedef km_trellis_args TrellisArgs;
typedef unsigned long long Key; // a cost, which is never negative, and a state or a way

constexpr int STATES = 4096, SETTLE = 72, TRIES = 16, THREADS = KM_TRELLIS_THREADS;
constexpr float NEVER = 1e30f;

__device__ __forceinline__ Key key_of(float cost, uint32_t low) {
    return (Key)__float_as_uint(cost) << 32 | low;
}
__device__ __forceinline__ Key lesser(Key a, Key b) { return a < b ? a : b; }

// ---- Tables and places ----

// A block to each class.
KM_KERNEL __launch_bounds__(256) trellis_prepare(const __grid_constant__ TrellisArgs p) {
    wait_for_previous();
    int c = blockIdx.x, first = p.classes[2 * c], axes = p.classes[2 * c + 1];
    for (int i = threadIdx.x; i < axes; i += 256) {
        float a = p.amp[first + i];
        p.inverse[first + i] = 1.0f / fmaf(a, a, p.water[c]);
    }
    if (threadIdx.x) return;
    p.counts[c] = 0;
    int ring = 0, in = 0, exchange = 0, used[9] = {0};
    for (int i = 0; i < axes; i++) {
        int k = p.rate[first + i];
        used[k]++;
        if (k > 0 && in > 0 && in + k > 4) in = 0, exchange++;
        p.place[first + i] = KM_TRELLIS_PLACE(k, in, exchange);
        for (int bit = k - 1; bit >= 0; bit--) p.owner[(int64_t)first * 8 + ring++] = 16 * i + bit;
        if (k > 4)
            exchange++;
        else if ((in += k) == 4)
            in = 0, exchange++;
    }
    km_trellis_class kind = {first, axes, ring, axes, 0};
    int bits = 0;
    while (kind.tail > 0 && bits < SETTLE) bits += p.rate[first + --kind.tail];
    for (bits = 0; kind.head < kind.tail && bits < SETTLE;) bits += p.rate[first + kind.head++];
    if (ring < SETTLE) kind.tail = -1;
    for (int k = 0; k <= 8; k++) {
        kind.spot[k] = 0;
        for (int o = 0; o <= 8; o++)
            kind.spot[k] += used[o] > used[k] || (used[o] == used[k] && o < k);
    }
    p.kind[c] = kind;
}

// A warp to a row: the class that suits it, as vector/coder.c's km_coder_class.
KM_KERNEL __launch_bounds__(256) trellis_classes(const __grid_constant__ TrellisArgs p) {
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (row >= p.n) return;
    if (p.count == 1) {
        if (lane == 0) p.list[row] = (int32_t)row;
        if (lane == 0 && row == 0) p.counts[0] = (uint32_t)p.n;
        return;
    }
    double s = row_scale(p.low, p.step, p.square[row], p.dim);
    float by = s > 0 ? (float)(1 / s) : 0.0f;
    double least = INFINITY;
    int best = 0;
    for (int c = 0; c < p.count; c++) {
        int first = p.kind[c].first, axes = p.kind[c].axes;
        double kept = 0, excess = 0; // what is left over may be next to nothing
        for (int i = lane; i < axes; i += 32) {
            double v = p.z[row * p.width + first + i] * by;
            kept += v * v;
            excess += v * v * __ldg(p.inverse + first + i);
        }
        kept = warp_sum64(kept), excess = warp_sum64(excess);
        double cost = p.dim - kept + 0.5 * p.water[c] * (axes + excess);
        if (cost < least) least = cost, best = c;
    }
    if (lane) return;
    uint32_t at = atomicAdd(&p.counts[best], 1u); // in any order: rows do not know of each other
    p.list[(int64_t)best * p.n + at] = (int32_t)row;
}

// ---- One row of states in registers ----

// Where the cost of a state lies: shared memory is free of conflicts both ways.
__device__ __forceinline__ int spot(int s) { return s ^ (s >> 5 & 3) << 2; }

// The least of N costs, to c[0], and which it is, to w[0], the lowest of equals: in pairs, pairs of pairs
// and so on. Ways are floats, so that the units that multiply put them together: comparisons go at half
// their rate.
template <int N, int BIT = 1, int M>
__device__ __forceinline__ void least_of(float (&c)[M], float (&w)[M]) {
    if constexpr (N > 1) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            bool second = c[2 * i + 1] < c[2 * i];
            if (BIT == 1)
                w[i] = second ? 1.0f : 0.0f;
            else
                w[i] = second ? w[2 * i + 1] + (float)BIT : w[2 * i];
            c[i] = fminf(c[2 * i], c[2 * i + 1]);
        }
        least_of<N / 2, 2 * BIT>(c, w);
    }
}

// A column of rate K, once J bits are in. Ways go to the word from bit 8 J on.
template <int K, int J>
__device__ __forceinline__ void step(float (&c)[16], const float (&v)[16], float x, float amp,
                                     uint32_t &word) {
    if constexpr (K == 0) {
#pragma unroll
        for (int r = 0; r < 16; r++) {
            float e = fmaf(-amp, v[r], x);
            c[r] = fmaf(e, e, c[r]);
        }
    } else {
        constexpr int REST = 4 - J - K;
        float next[16], ways = 0x1p23f; // its lowest bits are a number's
#pragma unroll
        for (int h = 0; h < 1 << REST; h++)
#pragma unroll
            for (int n = 0; n < 1 << J; n++) {
                float some[1 << K], way[1 << K];
#pragma unroll
                for (int t = 0; t < 1 << K; t++) some[t] = c[(t << REST | h) << J | n];
                least_of<1 << K>(some, way);
                ways = fmaf(way[0], (float)(1 << K * (h << J | n)), ways);
#pragma unroll
                for (int i = 0; i < 1 << K; i++) {
                    int r = h << (J + K) | n << K | i;
                    float e = fmaf(-amp, v[r], x);
                    next[r] = fmaf(e, e, some[0]);
                }
            }
#pragma unroll
        for (int r = 0; r < 16; r++) c[r] = next[r];
        word |= (__float_as_uint(ways) & 255u) << (8 * J);
    }
}

// Costs to shared memory, B bits having come in.
template <int B>
__device__ __forceinline__ void put(const float (&c)[16], float *room, int thread) {
#pragma unroll
    for (int h = 0; h < 1 << (4 - B); h++) {
        int s = h << (8 + B) | thread << B;
        const float *from = &c[h << B];
        if (B == 1) {
            *reinterpret_cast<float2 *>(room + spot(s)) = make_float2(from[0], from[1]);
        } else {
#pragma unroll
            for (int q = 0; q < 1 << B; q += 4)
                *reinterpret_cast<float4 *>(room + spot(s + q)) =
                    make_float4(from[q], from[q + 1], from[q + 2], from[q + 3]);
        }
    }
}

__device__ __forceinline__ void take(float (&c)[16], const float *room, int thread) {
#pragma unroll
    for (int r = 0; r < 16; r++) c[r] = room[spot(r << 8 | thread)];
}

// ---- A block ----

template <int ROWS> struct Search {
    static constexpr int SET = ROWS * STATES;                // floats of one set of costs
    static constexpr int CHUNK = 2 * SET / (THREADS * ROWS); // exchanges whose ways fit into both
    const TrellisArgs &p;
    float *costs;    // (2, ROWS, STATES)
    float *x;        // (axes, ROWS)
    float *amp;      // (axes)
    int32_t *place;  // (axes)
    uint16_t *path;  // (ROWS, most): states after each column
    uint32_t *back;  // of this block
    float *tables;   // (tables_held, STATES): values of the rates that are used most
    int *table_of;   // (9): which of them, or beyond
    int thread, now; // which set of costs was written last
    float c[ROWS][16];
    uint32_t word[ROWS];

    __device__ __forceinline__ Search(const TrellisArgs &args, char *shared, int *which)
        : p(args), costs((float *)shared), table_of(which), thread(threadIdx.x), now(0) {
        tables = costs + 2 * SET;
        x = tables + p.tables_held * STATES;
        amp = x + (p.most + 8) * ROWS;
        place = (int32_t *)(amp + p.most + 8);
        path = (uint16_t *)(place + p.most + 8);
        back = p.back + blockIdx.x * p.back_words;
    }

    // Values of rate k for a thread's states once b bits are in.
    __device__ __forceinline__ void load_values(float (&v)[16], int k, int b) const {
        int held = table_of[k];
        if (held >= p.tables_held) {
            const float *from = p.tables + k * STATES + (thread << b);
#pragma unroll
            for (int r = 0; r < 16; r++)
                v[r] = __ldg(from + ((r >> b) << (8 + b) | (r & ((1 << b) - 1))));
            return;
        }
        const float *from = tables + held * STATES;
        if (b >= 2) {
#pragma unroll
            for (int r = 0; r < 16; r += 4) {
                int s = (r >> b) << (8 + b) | thread << b | (r & ((1 << b) - 1));
                float4 f = *reinterpret_cast<const float4 *>(from + spot(s));
                v[r] = f.x, v[r + 1] = f.y, v[r + 2] = f.z, v[r + 3] = f.w;
            }
        } else if (b == 1) {
#pragma unroll
            for (int r = 0; r < 16; r += 2) {
                float2 f = *reinterpret_cast<const float2 *>(from + spot(r << 8 | thread << 1));
                v[r] = f.x, v[r + 1] = f.y;
            }
        } else {
            take(v, from, thread);
        }
    }

    template <int K, int J> __device__ __forceinline__ void step_rows(const float (&v)[16], int i) {
        float a = amp[i];
#pragma unroll
        for (int w = 0; w < ROWS; w++) step<K, J>(c[w], v, x[i * ROWS + w], a, word[w]);
    }

    __device__ __forceinline__ void keep_words(int exchange) {
        uint32_t *to = back + ((int64_t)exchange * THREADS + thread) * ROWS;
        if (ROWS == 4)
            *reinterpret_cast<uint4 *>(to) =
                make_uint4(word[0], word[1], word[2 % ROWS], word[3 % ROWS]);
        else
            *reinterpret_cast<uint2 *>(to) = make_uint2(word[0], word[1]);
    }

    __device__ __forceinline__ void take_rows() {
        __syncthreads();
#pragma unroll
        for (int w = 0; w < ROWS; w++) take(c[w], costs + now * SET + w * STATES, thread);
    }

    template <int B> __device__ __forceinline__ void put_rows() {
#pragma unroll
        for (int w = 0; w < ROWS; w++) put<B>(c[w], costs + now * SET + w * STATES, thread);
    }

    // Every thread has its states by their low 8 bits again.
    __device__ __forceinline__ void exchange(int bits, int number, bool store) {
        now ^= 1;
        switch (bits) {
        case 1: put_rows<1>(); break;
        case 2: put_rows<2>(); break;
        case 3: put_rows<3>(); break;
        default: put_rows<4>(); break;
        }
        if (store) keep_words(number);
#pragma unroll
        for (int w = 0; w < ROWS; w++) word[w] = 0;
        take_rows();
    }

    // A column of 5 to 8 bits: the states before a state are those of 2^(k - 4) threads.
    __device__ __forceinline__ void wide(int k, const float (&v)[16], int i, int number,
                                         bool store) {
        Key *keys = reinterpret_cast<Key *>(costs + (now ^ 1) * SET);
#pragma unroll
        for (int w = 0; w < ROWS; w++) {
            Key best = ~0ull;
#pragma unroll
            for (int r = 0; r < 16; r++)
                best = lesser(best, key_of(c[w][r], r << (k - 4) | thread >> (12 - k)));
            keys[w * THREADS + thread] = best;
        }
        __syncthreads();
        float a = amp[i];
        int u = thread >> (k - 4);
#pragma unroll
        for (int w = 0; w < ROWS; w++) {
            Key best = ~0ull;
            for (int j = 0; j < 1 << (k - 4); j++)
                best = lesser(best, keys[w * THREADS + (j << (12 - k) | u)]);
            float before = __uint_as_float((uint32_t)(best >> 32));
            if (store && (thread & ((1 << (k - 4)) - 1)) == 0)
                back[((int64_t)number * THREADS + u) * ROWS + w] = (uint32_t)best;
#pragma unroll
            for (int r = 0; r < 16; r++) {
                float e = fmaf(-a, v[r], x[i * ROWS + w]);
                c[w][r] = fmaf(e, e, before);
            }
        }
        put_rows<4>(); // nobody reads that set any more
        take_rows();
    }

    // Columns [from, to), beginning with no bits in; ways are kept, or not.
    __device__ __forceinline__ void walk(int from, int to, bool store) {
        int in = 0, number = 0;
        float v[16];
        for (int i = from; i < to; i++) {
            int k = place[i] & 15;
            if (k > 0 && in > 0 && in + k > 4) {
                exchange(in, number++, store);
                in = 0;
            }
            load_values(v, k, k > 4 ? 4 : in + k);
            switch (k * 4 + in) {
            case 0:
                if (amp[i] != 0) step_rows<0, 0>(v, i);
                break;
            case 1:
                if (amp[i] != 0) step_rows<0, 1>(v, i);
                break;
            case 2:
                if (amp[i] != 0) step_rows<0, 2>(v, i);
                break;
            case 3:
                if (amp[i] != 0) step_rows<0, 3>(v, i);
                break;
            case 4: step_rows<1, 0>(v, i); break;
            case 5: step_rows<1, 1>(v, i); break;
            case 6: step_rows<1, 2>(v, i); break;
            case 7: step_rows<1, 3>(v, i); break;
            case 8: step_rows<2, 0>(v, i); break;
            case 9: step_rows<2, 1>(v, i); break;
            case 10: step_rows<2, 2>(v, i); break;
            case 12: step_rows<3, 0>(v, i); break;
            case 13: step_rows<3, 1>(v, i); break;
            case 16: step_rows<4, 0>(v, i); break;
            default: wide(k, v, i, number++, store); break;
            }
            if (k > 4) continue;
            in += k;
            if (in == 4) {
                exchange(4, number++, store);
                in = 0;
            }
        }
        if (in > 0) exchange(in, number, store);
    }

    __device__ __forceinline__ void begin(const int *start) {
#pragma unroll
        for (int w = 0; w < ROWS; w++) {
            word[w] = 0;
#pragma unroll
            for (int r = 0; r < 16; r++)
                c[w][r] = !start || start[w] == (r << 8 | thread) ? 0.0f : NEVER;
        }
    }

    // The cheapest state of each row, the lowest of equals, in found[ROWS].
    __device__ __forceinline__ void cheapest(Key (*part)[8], int *found) {
#pragma unroll
        for (int w = 0; w < ROWS; w++) {
            Key best = ~0ull;
#pragma unroll
            for (int r = 0; r < 16; r++) best = lesser(best, key_of(c[w][r], r << 8 | thread));
#pragma unroll
            for (int lane = 16; lane > 0; lane /= 2)
                best = lesser(best, __shfl_xor_sync(ALL_LANES, best, lane));
            if (thread % 32 == 0) part[w][thread / 32] = best;
        }
        __syncthreads();
        if (thread < ROWS) {
            Key best = part[thread][0];
            for (int i = 1; i < 8; i++) best = lesser(best, part[thread][i]);
            found[thread] = (int)(best & (STATES - 1));
        }
        __syncthreads();
    }

    // Back from each row's state after column `to` to that before column 0.
    __device__ __forceinline__ void trace(int to, int *state) {
        int w = thread / 32, i = to - 1, s = 0, held = -1;
        bool mine = thread % 32 == 0 && w < ROWS;
        uint32_t bits = 0;
        if (mine) s = state[w];
        uint32_t *ways = reinterpret_cast<uint32_t *>(costs);
        for (int high = to > 0 ? (place[to - 1] >> 8) + 1 : 0; high > 0; high -= CHUNK) {
            int low = high > CHUNK ? high - CHUNK : 0;
            const uint4 *from =
                reinterpret_cast<const uint4 *>(back + (int64_t)low * THREADS * ROWS);
            __syncthreads();
            for (int q = thread; q < (high - low) * (THREADS * ROWS / 4); q += THREADS)
                reinterpret_cast<uint4 *>(ways)[q] = from[q];
            __syncthreads();
            for (; mine && i >= 0 && place[i] >> 8 >= low; i--) {
                int k = place[i] & 15, b = place[i] >> 4 & 15, number = place[i] >> 8,
                    after = b + k;
                path[w * (p.most + 8) + i] = (uint16_t)s;
                if (k == 0) continue;
                int u = s >> k, at = k > 4 ? u : s >> after & 255;
                if (number != held || k > 4)
                    bits = ways[((number - low) * THREADS + at) * ROWS + w];
                held = number;
                int shift = k > 4 ? 0 : 8 * b + k * (s >> (8 + after) << b | (u & ((1 << b) - 1)));
                s = u | (int)(bits >> shift & ((1u << k) - 1)) << (12 - k);
            }
        }
        __syncthreads();
        if (mine) state[w] = s;
        __syncthreads();
    }
};

template <int ROWS> __device__ __forceinline__ void encode(const TrellisArgs &p) {
    extern __shared__ __align__(16) char shared[];
    __shared__ Key part[ROWS][8];
    __shared__ int found[ROWS], tries[TRIES][ROWS], row_of[ROWS], table_of[9];
    __shared__ float least[ROWS], by[ROWS];
    __shared__ double scale[ROWS];
    wait_for_previous();
    Search<ROWS> s(p, shared, table_of);
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, loaded = -1;
    for (int64_t group = blockIdx.x;; group += gridDim.x) {
        int kind = 0;
        int64_t at = group * ROWS;
        for (; kind < p.count; kind++) { // classes one after the other, each in whole groups
            int64_t rows = ((int64_t)p.counts[kind] + ROWS - 1) / ROWS * ROWS;
            if (at < rows) break;
            at -= rows;
        }
        if (kind == p.count) return;
        const km_trellis_class &of = p.kind[kind];
        struct {
            int first, axes, ring, tail, head;
        } k = {of.first, of.axes, of.ring, of.tail, of.head};
        int64_t many = p.counts[kind];
        __syncthreads();
        if (thread < ROWS) {
            int64_t i =
                at + thread < many ? at + thread : many - 1; // the last ones may be the same row
            int row = p.list[(int64_t)kind * p.n + i];
            row_of[thread] = row;
            scale[thread] = row_scale(p.low, p.step, p.square[row], p.dim);
            by[thread] = scale[thread] > 0 ? (float)(1 / scale[thread]) : 0.0f;
            least[thread] = INFINITY;
            found[thread] = 0;
        }
        for (int i = thread; i < k.axes && kind != loaded; i += THREADS) {
            s.amp[i] = p.amp[k.first + i];
            s.place[i] = p.place[k.first + i];
        }
        for (int i = thread; i < 9 * STATES && kind != loaded; i += THREADS) {
            int held = of.spot[i / STATES], state = i % STATES;
            if (held < p.tables_held) s.tables[held * STATES + spot(state)] = p.tables[i];
            if (state == 0) table_of[i / STATES] = held;
        }
        loaded = kind;
        __syncthreads();
        for (int i = thread; i < k.axes * ROWS; i += THREADS) {
            int w = i / k.axes, j = i % k.axes;
            s.x[j * ROWS + w] = p.z[(int64_t)row_of[w] * p.width + k.first + j] * by[w];
        }
        __syncthreads();

        // A long ring: the last columns, then the first, then all. A short one: all, so many times.
        bool brief = k.tail < 0;
        int last = brief ? TRIES + 1 : 2;
        for (int pass = 0; pass <= last; pass++) {
            int from = !brief && pass == 0 ? k.tail : 0, to = !brief && pass == 1 ? k.head : k.axes;
            if (pass == 0)
                s.begin(nullptr);
            else if (pass == last)
                s.begin(found);
            else if (brief)
                s.begin(tries[pass - 1]);
            s.walk(from, to, pass == last || (!brief && pass == 1));
            if (pass == last) {
                s.trace(k.axes, found);
            } else if (!brief && pass == 1) {
                s.cheapest(part, found);
                s.trace(k.head, found);
            } else if (brief && pass == 0) {
                for (int t = 0; t < TRIES; t++) {
                    s.cheapest(part, tries[t]);
#pragma unroll
                    for (int w = 0; w < ROWS; w++)
#pragma unroll
                        for (int r = 0; r < 16; r++)
                            if (tries[t][w] == (r << 8 | thread)) s.c[w][r] = NEVER;
                }
            } else if (brief) {
#pragma unroll
                for (int w = 0; w < ROWS; w++)
#pragma unroll
                    for (int r = 0; r < 16; r++)
                        if (tries[pass - 1][w] == (r << 8 | thread) && s.c[w][r] < least[w]) {
                            least[w] = s.c[w][r];
                            found[w] = tries[pass - 1][w];
                        }
                __syncthreads();
            }
        }

        // A warp to a row: the scale that fits best, and the bits.
        if (warp < ROWS && at + warp < many) {
            const uint16_t *path = s.path + warp * (p.most + 8);
            double along = 0, norm = 0;
            for (int i = lane; i < k.axes; i += 32) {
                double v =
                    (double)s.amp[i] * __ldg(p.tables + (s.place[i] & 15) * STATES + path[i]);
                along += s.x[i * ROWS + warp] * v;
                norm += v * v;
            }
            along = warp_sum64(along), norm = warp_sum64(norm);
            int head = 8 + p.class_bits;
            uint8_t *code = p.codes + (int64_t)row_of[warp] * p.bytes;
            for (int64_t b = lane; b < p.bytes; b += 32) {
                uint32_t byte = 0;
                if (b == 0)
                    byte = scale_code(p.low, p.step, norm > 0 ? scale[warp] * along / norm : 0.0);
                for (int bit = 0; bit < 8; bit++) {
                    int64_t i = 8 * b + bit - head;
                    if (i < 0) {
                        if (b > 0) byte |= (kind >> (8 * (b - 1) + bit) & 1) << bit;
                    } else if (i < k.ring) {
                        int owner = __ldg(p.owner + (int64_t)k.first * 8 + i);
                        byte |= (path[owner >> 4] >> (owner & 15) & 1) << bit;
                    }
                }
                code[b] = scale[warp] > 0 ? (uint8_t)byte : 0;
            }
        }
    }
}

KM_KERNEL __launch_bounds__(THREADS, 1) trellis_encode_4(const __grid_constant__ TrellisArgs p) {
    encode<4>(p);
}
KM_KERNEL __launch_bounds__(THREADS, 1) trellis_encode_2(const __grid_constant__ TrellisArgs p) {
    encode<2>(p);
}

// One row of x against matrices of a few bits: what decoding a token does.
//
// Floor: each matrix is read once, in the form it has; what comes next is how few instructions a
// weight costs, and warps to hide their latency. Two blocks to a multiprocessor: of one kernel where
// it has rows enough, else of two, so that while one still runs the blocks of the next are in place
// and fill rings in shared memory with their first weights. Every thread copies into and out of places of its own, so
// that rings need no barriers. Once the kernel in front has ended, x is staged (and the norm before
// it, when that is asked for), and each warp, or part of one, goes through the units of its rows as
// one long line, a unit to a lane at a time, whatever the rows' length: lanes that have come to the
// next row add to that one's sum.
#ifndef KM_CUDA_QUANT_ONE_CUH
#define KM_CUDA_QUANT_ONE_CUH
#include "backend/cuda/kernels/gemm/one_stage.cuh"

#define SAME_BYTES(name, bytes)                                                                    \
    static_assert(Quant<KM_QUANT_##name>::BYTES == bytes, "as the host counts");
KM_QUANT_ITEMS(SAME_BYTES)
#undef SAME_BYTES

// x as int8, or two of them. 32 units stand together: their first runs, second, third and fourth, the
// lower halves of these, then what groups share (Unit), so that a thread finds all of a unit from one
// address.
template <bool APART, bool FINE> struct Line {
    static constexpr int LOW = 4 * 512, SHARES = FINE ? 2 * LOW : LOW;
    static constexpr int GROUP = SHARES + (APART ? 2 : 1) * 512;
    uint8_t *room;
    int k;
    __device__ __forceinline__ uint8_t *at(uint32_t unit) const {
        return room + unit / 32 * GROUP + unit % 32 * 16;
    }
    __device__ __forceinline__ Unit<APART, FINE> unit(uint32_t u) const {
        const uint8_t *p = at(u);
        Unit<APART, FINE> x;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            x.x[r] = *reinterpret_cast<const uint4 *>(p + 512 * r);
            if constexpr (FINE) x.low[r] = *reinterpret_cast<const uint4 *>(p + LOW + 512 * r);
        }
        if constexpr (APART) {
            x.sum = *reinterpret_cast<const int4 *>(p + SHARES);
            x.scale = *reinterpret_cast<const float4 *>(p + SHARES + 512);
        } else {
            float4 both = *reinterpret_cast<const float4 *>(p + SHARES);
            x.scale = make_float2(both.x, both.y);
            x.total = make_float2(both.z, both.w);
        }
        return x;
    }
    // 8 elements from p on, half a run, by all lanes of a warp together: four share a group.
    __device__ __forceinline__ void put(uint32_t p, const Some<8> &f) {
        float most = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(f.v[i]));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        Steps<FINE> steps(most);
        Four<FINE> q[2];
        int sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            q[i] = steps.round(f.v[4 * i], f.v[4 * i + 1], f.v[4 * i + 2], f.v[4 * i + 3]);
            sum += q[i].sum();
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        if constexpr (!APART) sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (p >= (uint32_t)k) return;
        uint8_t *u = at(Order<APART>::unit_of(p));
        uint32_t run = Order<APART>::run_of(p);
        *reinterpret_cast<uint2 *>(u + run * 512 + p % 16) = make_uint2(q[0].upper, q[1].upper);
        if constexpr (FINE)
            *reinterpret_cast<uint2 *>(u + LOW + run * 512 + p % 16) =
                make_uint2(q[0].lower, q[1].lower);
        if constexpr (APART) {
            if (p % 16 == 0) {
                reinterpret_cast<int *>(u + SHARES)[run] = sum;
                reinterpret_cast<float *>(u + SHARES + 512)[run] = steps.size;
            }
        } else if (p % 32 == 0) {
            reinterpret_cast<float *>(u + SHARES)[run / 2] = steps.size;
            reinterpret_cast<float *>(u + SHARES)[2 + run / 2] = steps.size * (float)sum;
        }
    }
};

// Keeps what was computed before a loop from being computed in it again.
__device__ __forceinline__ void settle(Fields &f) {
#pragma unroll
    for (int i = 0; i < KM_QUANT_FIELDS; i++) asm volatile("" : "+l"(f.f[i]));
}

// How rows lie in the steps of the lanes that share them: a row is one step of a warp, several whole
// ones, or any number of units.
enum { SINGLE, STRAIGHT, ANY };

template <int TYPE, bool FINE, bool GATED, int HOW>
__device__ __forceinline__ void one_line(const km_quant_few_args &a, const km_quant_part &part,
                                         uint8_t *room) {
    typedef Quant<TYPE> Q;
    constexpr int TAKES = GATED ? 2 : 1, SLOT = TAKES * Q::BYTES * KM_FEW_THREADS;
    constexpr int SLOTS = KM_ONE_PLACES(Q::BYTES, WIDE) / TAKES; // of the ring
    uint32_t ring = smem_addr(room);
    constexpr int THREAD_BITS = 9;
    static_assert(KM_FEW_THREADS == 1 << THREAD_BITS, "groups are shifts");
    int bits = HOW == ANY ? a.lane_bits : 5, lanes = 1 << bits, group = threadIdx.x >> bits;
    int sub = threadIdx.x & (lanes - 1), units = HOW == SINGLE ? 32 : a.k / KM_QUANT_UNIT, begin,
        end;
    rows_of_block(part, begin, end);
    int count = end - begin, row = begin + (count * group >> (THREAD_BITS - bits));
    int rows = begin + (count * (group + 1) >> (THREAD_BITS - bits)) - row;
    Fields w = fields_of<TYPE>(part.w), up = w;
    if (GATED) up = fields_of<TYPE>(part.up);
    settle(w);
    if (GATED) settle(up);
    // The line of units: this thread's next one, and where they end.
    uint32_t unit = (uint32_t)row * units + sub, last = (uint32_t)(row + rows) * units;
    auto ask = [&](uint32_t u, uint32_t slot) {
        Q raw;
        Ask<KM_FEW_THREADS> copy = {ring + slot};
        if (u < last) {
            raw.fetch(copy, w, u);
            if constexpr (GATED) raw.fetch(copy, up, u);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < SLOTS; i++) ask(unit + i * lanes, i * SLOT);
    // Biases of the next two rows, so that nobody waits for them.
    const float *bias = part.bias;
    auto bias_of = [&](int r) { return bias && r < end ? __ldg(bias + r) : 0; };
    float more[2] = {bias_of(row), bias_of(row + 1)};
    wait_for_x(a);
    Line<Q::APART, FINE> x = {room + SLOTS * SLOT, a.k};
    stage_one<8>(a, x);

    float now[2] = {0, 0}, next[2] = {0, 0}; // sums of this row and the next one, of w and up
    int steps = (rows * units + lanes - 1) >> bits,
        at = 0; // at: where the first lane is in the row
    uint32_t slot = 0;
    for (int s = 0; s < steps; s++) {
        cp_async_wait<SLOTS - 1>();
        uint32_t u = HOW == SINGLE ? sub : at + sub;
        bool ahead = HOW == ANY && u >= (uint32_t)units; // this lane is in the next row
        if (ahead) u -= units;
        float v[2] = {0, 0};
        if (HOW != ANY || unit < last) {
            Q raw;
            Take<KM_FEW_THREADS> copy = {room + slot};
            Unit<Q::APART, FINE> mine = x.unit(u);
            raw.fetch(copy, w, unit);
            raw.phase(sub % 4); // rows are whole blocks
            v[0] = raw.dot(mine);
            if constexpr (GATED) {
                raw.fetch(copy, up, unit);
                raw.phase(sub % 4);
                v[1] = raw.dot(mine);
            }
        }
#pragma unroll
        for (int k = 0; k < TAKES; k++) {
            if (HOW == ANY) next[k] += ahead ? v[k] : 0;
            now[k] += ahead ? 0 : v[k];
        }
        ask(unit + SLOTS * lanes, slot);
        slot = slot == (SLOTS - 1) * SLOT ? 0 : slot + SLOT;
        unit += lanes;
        at += lanes;
        if (HOW != SINGLE && at < units) continue;
        // The row is done.
        float f[1], other = 0;
        if (HOW != ANY || lanes == 32) { // a mask that is known costs nothing
            f[0] = GATED ? lanes_sum_two(now[0], now[1], 32, ALL_LANES)
                         : lanes_sum(now[0], 32, ALL_LANES);
            if (GATED) other = __shfl_xor_sync(ALL_LANES, f[0], 1);
        } else {
            unsigned mask = ((1u << lanes) - 1) << (threadIdx.x & (32 - lanes));
            f[0] =
                GATED ? lanes_sum_two(now[0], now[1], lanes, mask) : lanes_sum(now[0], lanes, mask);
            if (GATED) other = __shfl_xor_sync(mask, f[0], 1);
        }
        if (sub == 0) {
            f[0] += more[0];
            if (a.act != 0) gemm_act<float>(a.act, f);
            part.out[row] = GATED ? f[0] * other : f[0];
        }
        row++;
        more[0] = more[1];
        if (bias) more[1] = bias_of(row + 1);
        at -= units;
#pragma unroll
        for (int k = 0; k < TAKES; k++) now[k] = next[k], next[k] = 0;
    }
    cp_async_wait<0>();
}

template <int TYPE, bool FINE, bool GATED>
__device__ __forceinline__ void one_row(const km_quant_few_args &a, const km_quant_part &part,
                                        uint8_t *room) {
    constexpr int WHOLE = 32 * KM_QUANT_UNIT; // a step of a warp
    if (a.k == WHOLE)
        one_line<TYPE, FINE, GATED, SINGLE>(a, part, room);
    else if (a.k % WHOLE == 0)
        one_line<TYPE, FINE, GATED, STRAIGHT>(a, part, room);
    else
        one_line<TYPE, FINE, GATED, ANY>(a, part, room);
}

template <int FIRST, int SECOND, bool FINE, bool GATED>
__device__ __forceinline__ void one(const km_quant_few_args &a) {
    extern __shared__ __align__(16) uint8_t room[];
    int p = 0;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    if (FIRST == SECOND || !a.part[p].second)
        one_row<FIRST, FINE, GATED>(a, a.part[p], room);
    else
        one_row<SECOND, FINE, GATED>(a, a.part[p], room);
}

#define ONE_KERNEL(name, FIRST, SECOND, GATED)                                                     \
    extern "C" __global__ void __launch_bounds__(KM_FEW_THREADS, 2)                                \
        name(const __grid_constant__ km_quant_few_args a) {                                        \
        one<KM_QUANT_##FIRST, KM_QUANT_##SECOND, KM_FINE, GATED>(a);                               \
    }
#define ONE(TYPE)                                                                                  \
    ONE_KERNEL(one_##TYPE, TYPE, TYPE, false)                                                      \
    ONE_KERNEL(one_gated_##TYPE, TYPE, TYPE, true)
// Layers of two types over one x, as mixes have them.
#define ONE_TWO(FIRST, SECOND) ONE_KERNEL(one_##FIRST##_##SECOND, FIRST, SECOND, false)

#endif

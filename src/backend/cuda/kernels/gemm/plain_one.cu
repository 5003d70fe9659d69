// One row of f32 x against 16-bit weights: decoding with a model that was not quantised. Floor: the
// weights once. Made as quant_one.cuh is, but for units: a warp, or part of one, sums one row of
// weights after the other.
#include "backend/cuda/kernels/gemm/one_stage.cuh"

// Four pieces of 8 to a lane, `lanes` pieces apart. x as f32, in two planes of four: a piece's
// elements are at [0][i] and [1][i].
template <class T> struct Row {
    static constexpr int PIECES = KM_PLAIN_PIECES, ITEM = 16 * PIECES;
    struct Stage {
        float4 *x;
        int k;
        __device__ __forceinline__ void put(int p, const Some<4> &f) {
            if (p < k) x[p / 4 % 2 * (k / 8) + p / 8] = make_float4(f.v[0], f.v[1], f.v[2], f.v[3]);
        }
    };
    const T *w;
    Stage x;
    int lanes, sub;
    __device__ __forceinline__ Row(const km_quant_few_args &a, const km_quant_matrix &m,
                                   uint8_t *room)
        : w(reinterpret_cast<const T *>(m.planes)), x{reinterpret_cast<float4 *>(room), a.k},
          lanes(1 << a.lane_bits), sub(threadIdx.x & (lanes - 1)) {}
    __device__ __forceinline__ int steps() const {
        return (x.k / 8 + PIECES * lanes - 1) / (PIECES * lanes);
    }
    __device__ __forceinline__ int piece(int step, int i) const {
        return (step * PIECES + i) * lanes + sub;
    }
    __device__ __forceinline__ void ask(uint32_t place, int row, int step) const {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            bool there = piece(step, i) < x.k / 8;
            cp_async_16(place + (i * KM_FEW_THREADS + threadIdx.x) * 16,
                        w + (int64_t)row * x.k + (there ? piece(step, i) * 8 : 0), there);
        }
    }
    __device__ __forceinline__ float dot(const uint8_t *place, int step) const {
        float sum[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            int at = min(piece(step, i), x.k / 8 - 1); // those beyond are zeros in the ring
            uint4 raw =
                *reinterpret_cast<const uint4 *>(place + (i * KM_FEW_THREADS + threadIdx.x) * 16);
            T v[8];
            memcpy(v, &raw, 16);
            float4 a = x.x[at], b = x.x[x.k / 8 + at];
            sum[0] = fmaf(to_f32(v[0]), a.x, fmaf(to_f32(v[1]), a.y, sum[0]));
            sum[1] = fmaf(to_f32(v[2]), a.z, fmaf(to_f32(v[3]), a.w, sum[1]));
            sum[0] = fmaf(to_f32(v[4]), b.x, fmaf(to_f32(v[5]), b.y, sum[0]));
            sum[1] = fmaf(to_f32(v[6]), b.z, fmaf(to_f32(v[7]), b.w, sum[1]));
        }
        return sum[0] + sum[1];
    }
};

template <class T, bool GATED>
__device__ __forceinline__ void plain_one(const km_quant_few_args &a) {
    extern __shared__ __align__(16) uint8_t room[];
    constexpr int TAKES = GATED ? 2 : 1, PLACE = Row<T>::ITEM * KM_FEW_THREADS,
                  SLOT = TAKES * PLACE;
    constexpr int SLOTS = KM_ONE_PLACES(Row<T>::ITEM, WIDE) / TAKES;
    int p = 0, begin, end;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    const km_quant_part &part = a.part[p];
    rows_of_block(part, begin, end);
    Row<T> w(a, part.w, room + SLOTS * SLOT), up(a, part.up, room + SLOTS * SLOT);
    uint32_t ring = smem_addr(room);
    int lanes = w.lanes, groups = KM_FEW_THREADS >> a.lane_bits, steps = w.steps();
    int group = threadIdx.x >> a.lane_bits;

    // What is asked for, in the order in which it will be taken.
    int next_row = begin + group, next_step = 0;
    auto ask = [&](uint32_t slot) {
        if (next_row < end) {
            w.ask(ring + slot, next_row, next_step);
            if constexpr (GATED) up.ask(ring + slot + PLACE, next_row, next_step);
        }
        cp_async_commit();
        if (++next_step == steps) next_step = 0, next_row += groups;
    };
#pragma unroll
    for (int i = 0; i < SLOTS; i++) ask(i * SLOT);
    wait_for_x(a);
    stage_one<4>(a, w.x);

    uint32_t slot = 0;
    for (int first = begin; first < end; first += groups) { // all lanes of a warp go together
        int row = first + group;
        float sum = 0, other = 0, f[1];
        for (int s = 0; s < steps; s++) {
            cp_async_wait<SLOTS - 1>();
            if (row < end) {
                sum += w.dot(room + slot, s);
                if constexpr (GATED) other += up.dot(room + slot + PLACE, s);
            }
            ask(slot);
            slot = slot == (SLOTS - 1) * SLOT ? 0 : slot + SLOT;
        }
        if constexpr (GATED) {
            f[0] = lanes_sum_two(sum, other, lanes, ALL_LANES);
            other = __shfl_xor_sync(ALL_LANES, f[0], 1);
        } else {
            f[0] = lanes_sum(sum, lanes, ALL_LANES);
        }
        if (w.sub != 0 || row >= end) continue;
        if (part.bias) f[0] += __ldg(part.bias + row);
        gemm_act<float>(a.act, f);
        part.out[row] = GATED ? f[0] * other : f[0];
    }
    cp_async_wait<0>();
}

#define PLAIN_ONE(name, T, GATED)                                                                  \
    extern "C" __global__ void __launch_bounds__(KM_FEW_THREADS, 2)                                \
        name(const __grid_constant__ km_quant_few_args a) {                                        \
        plain_one<T, GATED>(a);                                                                    \
    }
PLAIN_ONE(one_F16, f16, false)
PLAIN_ONE(one_gated_F16, f16, true)
PLAIN_ONE(one_BF16, bf16, false)
PLAIN_ONE(one_gated_BF16, bf16, true)

// Choosing tokens. The vocabulary is read once by the whole chip, which keeps the largest of every
// 64 logits; then one block a row chooses. With a top-k, or a min-p alone, the k-th largest peak
// bounds what can be left, and only blocks above it are read again, into a short list; without, it
// works on the whole row. Nothing is sorted: bounds are found digit by digit of the logits' bits,
// by counts or by sums. Sums are of whole numbers (probabilities times 2^40), so that their order
// is nothing.
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/rows/sample_args.h"

#include <cfloat>

typedef unsigned long long u64;

// Bits that order as the numbers do; NaN comes last, as -infinity.
__device__ __forceinline__ uint32_t key_of(float x) {
    uint32_t b = __float_as_uint(x);
    if (x != x) return 0;
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ __forceinline__ int32_t tokens_of(const km_sample_args &a, int row) {
    int32_t n = (int32_t)a.settings[row * KM_SAMPLE_SETTINGS + KM_SAMPLE_TOKENS];
    return n < 1 || n > a.v ? a.v : n;
}

// ---- Edits: a copy of the logits, with biases, penalties of the last tokens, and masks ----

// Rows without any keep the logits as they are, and are not copied.
__device__ __forceinline__ bool is_edited(const km_sample_args &a, int row) {
    const float *how = a.settings + row * KM_SAMPLE_SETTINGS;
    return a.edited &&
           ((a.penalties && how[KM_SAMPLE_LAST] > 0.0f) ||
            (a.masks && how[KM_SAMPLE_MASK] > 0.0f) || (a.biases && how[KM_SAMPLE_BIASED] != 0.0f));
}

__device__ __forceinline__ const float *logits_of(const km_sample_args &a, int row) {
    return (is_edited(a, row) ? a.edited : a.logits) + (int64_t)row * a.v;
}

extern "C" __global__ void sample_edit(km_sample_args a) {
    wait_for_previous();
    __shared__ int32_t ring[KM_SAMPLE_RING];
    if (!is_edited(a, blockIdx.y)) return;
    int row = blockIdx.y, t = threadIdx.x;
    const float *how = a.settings + row * KM_SAMPLE_SETTINGS;
    const int32_t *state = a.before + (int64_t)row * KM_SAMPLE_STATE;
    int32_t seen = state[KM_SAMPLE_SEEN];
    int32_t last = a.penalties ? (int32_t)how[KM_SAMPLE_LAST] : 0;
    last = min(min(last, KM_SAMPLE_RING), seen);
    if (t < last) ring[t] = state[KM_SAMPLE_TOKEN_AT + (seen - last + t) % KM_SAMPLE_RING];
    const float *from = a.logits + (int64_t)row * a.v;
    float *to = a.edited + (int64_t)row * a.v;
    int32_t begin = blockIdx.x * 4096, end = min(begin + 4096, a.v);
    for (int32_t i = begin + t; i < end; i += blockDim.x) to[i] = from[i];
    __syncthreads();
    int32_t tokens = min(end, tokens_of(a, row));
    if (a.biases && how[KM_SAMPLE_BIASED] != 0.0f) { // no two are of one token
        for (int32_t i = t; i < a.n_biases; i += blockDim.x) {
            int32_t id = a.biases[3 * i + 1];
            if (a.biases[3 * i] == row && id >= begin && id < tokens)
                to[id] += __int_as_float(a.biases[3 * i + 2]);
        }
        __syncthreads();
    }
    if (t < last) {
        int32_t id = ring[t], times = 0;
        bool mine = id >= begin && id < tokens;
        for (int32_t k = 0; k < last && mine; k++) {
            if (ring[k] != id) continue;
            if (k < t) mine = false; // somebody else's
            times++;
        }
        if (mine) {
            float x = to[id], r = how[KM_SAMPLE_REPEAT];
            if (r > 0.0f) x = x > 0.0f ? x / r : x * r;
            to[id] = x - (how[KM_SAMPLE_FREQUENCY] * (float)times + how[KM_SAMPLE_PRESENCE]);
        }
    }
    int32_t mask = (int32_t)how[KM_SAMPLE_MASK] - 1;
    if (!a.masks || mask < 0 || mask >= a.n_masks) return;
    __syncthreads();
    const int32_t *bits = a.masks + (int64_t)mask * a.words;
    for (int32_t i = begin + t; i < end; i += blockDim.x) // a warp to a word
        if (i / 32 >= a.words || !((uint32_t)bits[i / 32] >> (i % 32) & 1)) to[i] = -INFINITY;
}

// ---- Peaks: a warp to a block of 64 ----

extern "C" __global__ void sample_peaks(km_sample_args a) {
    wait_for_previous();
    int row = blockIdx.y, lane = threadIdx.x % 32;
    int32_t block = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, n = tokens_of(a, row);
    if (block >= a.blocks) return;
    const float *x = logits_of(a, row);
    float most = -INFINITY;
    for (int k = 0; k < KM_SAMPLE_BLOCK; k += 32) {
        int32_t i = block * KM_SAMPLE_BLOCK + k + lane;
        if (i < n) most = fmaxf(most, x[i]); // which takes a number before NaN
    }
    most = warp_max(most);
    if (lane == 0) a.peaks[(int64_t)row * a.blocks + block] = most;
}

// ---- Choosing: one block a row ----

// What is looked at, in the order of ids.
struct Row {
    const float *x;
    int32_t n;
    __device__ __forceinline__ float at(int32_t i) const { return x[i]; }
    __device__ __forceinline__ int32_t id(int32_t i) const { return i; }
};
struct List {
    const float *x;
    const int32_t *ids;
    int32_t n;
    __device__ __forceinline__ float at(int32_t i) const { return x[i]; }
    __device__ __forceinline__ int32_t id(int32_t i) const { return ids[i]; }
};

// Everything above `key`, and the first `ties` of what is just that.
struct Cut {
    uint32_t key;
    int32_t ties;
};

struct Shared {
    u64 bin[256];
    u64 sum[32];
    int32_t count[32];
    u64 u64s[4];
    int32_t ints[4];
    uint32_t digit;
};

struct Odds {
    float top, scale; // p = 2^((x - top) scale)
    __device__ __forceinline__ float p(float x) const { return exp2f((x - top) * scale); }
    __device__ __forceinline__ u64 weight(float x) const { return (u64)((double)p(x) * 0x1p40); }
};

// The largest digit at which what is in its bin and above reaches `want`, or the lowest bin that is
// not empty. *above receives what is above it.
__device__ uint32_t find_digit(Shared *s, u64 want, u64 *above) {
    if (threadIdx.x < 32) {
        // Lane l has the bins 255 - 8 l and the seven below it.
        int lane = threadIdx.x;
        u64 own = 0;
        for (int k = 0; k < 8; k++) own += s->bin[255 - 8 * lane - k];
        u64 upto = own;
        for (int step = 1; step < 32; step *= 2) {
            u64 other = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane >= step) upto += other;
        }
        uint32_t reach = __ballot_sync(ALL_LANES, upto >= want);
        uint32_t filled = __ballot_sync(ALL_LANES, own > 0);
        int who = reach ? __ffs(reach) - 1 : filled ? 31 - __clz(filled) : 31;
        if (lane == who) {
            u64 sum = upto - own;
            int digit = 255 - 8 * lane, last = digit;
            u64 before = sum;
            for (int k = 0; k < 8; k++) {
                u64 b = s->bin[255 - 8 * lane - k];
                if (b == 0) continue;
                last = 255 - 8 * lane - k;
                before = sum;
                sum += b;
                if (sum >= want) break;
            }
            digit = last;
            s->digit = digit;
            s->u64s[0] = before;
        }
    }
    __syncthreads();
    *above = s->u64s[0];
    return s->digit;
}

// The cut at which counts (odds NULL) or weights of what is above `within` reach `want`.
template <class S>
__device__ Cut select(Shared *s, const S &all, Cut within, const Odds *odds, u64 want) {
    uint32_t prefix = 0;
    u64 left = want, above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) s->bin[i] = 0;
        __syncthreads();
        // Logits are alike, so the lanes of a warp mostly meet in a few bins: counts go there together.
        for (int32_t first = 0; first < all.n; first += blockDim.x) {
            int32_t i = first + threadIdx.x;
            float x = i < all.n ? all.at(i) : -INFINITY;
            uint32_t k = key_of(x), digit = k >> shift & 255;
            bool in = i < all.n && k >= within.key && k &&
                      (shift == 24 || (k >> (shift + 8)) == (prefix >> (shift + 8)));
            if (odds) {
                u64 w = in ? odds->weight(x) : 0;
                if (w) atomicAdd(&s->bin[digit], w);
                continue;
            }
            uint32_t those = __ballot_sync(ALL_LANES, in);
            if (!in) continue;
            uint32_t same = __match_any_sync(those, digit);
            if ((int)threadIdx.x % 32 == __ffs(same) - 1)
                atomicAdd(&s->bin[digit], (u64)__popc(same));
        }
        __syncthreads();
        prefix |= find_digit(s, left, &above) << shift;
        left = left > above ? left - above : 0;
        __syncthreads();
    }
    // `left` is what the equals of the key must still give.
    float x = __uint_as_float(prefix & 0x80000000u ? prefix & 0x7fffffffu : ~prefix);
    u64 each = odds ? odds->weight(x) : 1;
    u64 ties = each ? (left + each - 1) / each : 1;
    if (ties < 1) ties = 1;
    Cut cut = {prefix, (int32_t)(ties < 0x7fffffff ? ties : 0x7fffffff)};
    if (prefix == within.key && within.ties < cut.ties) cut.ties = within.ties;
    return cut;
}

// The sum of weights above the cut and of its ties.
template <class S> __device__ u64 total_of(Shared *s, const S &all, Cut cut, const Odds &odds) {
    u64 sum = 0;
    int32_t equal = 0;
    float tie = 0.0f;
    for (int32_t i = threadIdx.x; i < all.n; i += blockDim.x) {
        float x = all.at(i);
        uint32_t k = key_of(x);
        if (k > cut.key) sum += odds.weight(x);
        if (k == cut.key && k) equal++, tie = x;
    }
    if (threadIdx.x < 4) s->u64s[threadIdx.x] = 0, s->ints[threadIdx.x] = 0;
    __syncthreads();
    atomicAdd(&s->u64s[1], sum);
    if (equal) atomicAdd(&s->ints[1], equal), s->u64s[2] = odds.weight(tie); // all the same
    __syncthreads();
    u64 total = s->u64s[1] + s->u64s[2] * (u64)min(s->ints[1], cut.ties);
    __syncthreads();
    return total;
}

// The number falls on one of what is left: each warp sums up a part of it, in order, and the one
// where it falls looks closer.
template <class S>
__device__ int32_t draw(Shared *s, const S &all, Cut cut, const Odds &odds, float least,
                        u64 number) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    int32_t each = ((all.n + warps - 1) / warps + 31) / 32 * 32;
    int32_t begin = min(warp * each, all.n), end = min(begin + each, all.n);
    u64 sum = 0;
    int32_t ties = 0;
    float tie = 0.0f;
    for (int32_t i = begin + lane; i < end; i += 32) {
        float x = all.at(i);
        uint32_t k = key_of(x);
        if (k < cut.key || k == 0 || odds.p(x) < least) continue;
        if (k > cut.key)
            sum += odds.weight(x);
        else
            ties++, tie = x;
    }
    u64 one = ties ? odds.weight(tie) : 0;
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_xor_sync(ALL_LANES, sum, step);
        ties += __shfl_xor_sync(ALL_LANES, ties, step);
        u64 other = __shfl_xor_sync(ALL_LANES, one, step);
        one = other > one ? other : one;
    }
    if (lane == 0) s->sum[warp] = sum, s->count[warp] = ties, s->bin[warp] = one;
    if (threadIdx.x == 0) s->ints[0] = -1;
    __syncthreads();
    // Every thread adds up the parts, which are few.
    int32_t may = cut.ties, own_ties = 0;
    u64 total = 0, before = 0, own = 0;
    for (int w = 0; w < warps; w++) {
        int32_t some = min(s->count[w], may);
        u64 part = s->sum[w] + s->bin[w] * (u64)some;
        if (w == warp) before = total, own = part, own_ties = some;
        may -= some;
        total += part;
    }
    u64 want = __umul64hi(total, number);
    if (want >= before && want < before + own) { // one warp alone
        u64 at = before;
        for (int32_t i = begin; i < end; i += 32) {
            float x = i + lane < end ? all.at(i + lane) : -INFINITY;
            uint32_t k = key_of(x);
            bool in = i + lane < end && k >= cut.key && k && !(odds.p(x) < least);
            uint32_t equals = __ballot_sync(ALL_LANES, in && k == cut.key);
            if (in && k == cut.key && (int32_t)__popc(equals & ((1u << lane) - 1)) >= own_ties)
                in = false;
            own_ties -= __popc(equals);
            u64 upto = in ? odds.weight(x) : 0;
            for (int step = 1; step < 32; step *= 2) {
                u64 other = __shfl_up_sync(ALL_LANES, upto, step);
                if (lane >= step) upto += other;
            }
            uint32_t hit = __ballot_sync(ALL_LANES, in && at + upto > want);
            if (hit) {
                if (lane == __ffs(hit) - 1) s->ints[0] = all.id(i + lane);
                break;
            }
            at += __shfl_sync(ALL_LANES, upto, 31);
        }
    }
    __syncthreads();
    return s->ints[0];
}

template <class S>
__device__ int32_t choose(Shared *s, const S &all, const float *how, const Odds &odds, u64 number) {
    Cut cut = {1, 0x7fffffff};
    int32_t k = (int32_t)how[KM_SAMPLE_TOP_K];
    if (k > 0 && k < all.n) cut = select(s, all, cut, (const Odds *)nullptr, (u64)k);
    float top_p = how[KM_SAMPLE_TOP_P];
    if (top_p < 1.0f) {
        u64 total = total_of(s, all, cut, odds);
        u64 want = (u64)ceil((double)top_p * (double)total);
        cut = select(s, all, cut, &odds, want < 1 ? 1 : want);
    }
    return draw(s, all, cut, odds, how[KM_SAMPLE_MIN_P], number);
}

// The likeliest: the first block with the largest peak, and the first in it.
__device__ int32_t likeliest(Shared *s, const float *x, const float *peaks, int32_t blocks,
                             int32_t n, float top) {
    if (threadIdx.x == 0) s->ints[2] = 0x7fffffff, s->ints[3] = -1;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < blocks; i += blockDim.x)
        if (peaks[i] == top) {
            atomicMin(&s->ints[2], i);
            break;
        }
    __syncthreads();
    int32_t block = s->ints[2];
    if (threadIdx.x < 32 && block < blocks)
        for (int k = 0; k < KM_SAMPLE_BLOCK; k += 32) {
            int32_t i = block * KM_SAMPLE_BLOCK + k + threadIdx.x;
            uint32_t hit = __ballot_sync(ALL_LANES, i < n && x[i] == top);
            if (!hit) continue;
            if (threadIdx.x == 0) s->ints[3] = block * KM_SAMPLE_BLOCK + k + __ffs(hit) - 1;
            break;
        }
    __syncthreads();
    return s->ints[3];
}

// Logits with a key of at least `bound` into the list, in order; how many there are, which may be
// more than fit.
__device__ int32_t gather(Shared *s, const float *x, const float *peaks, int32_t blocks, int32_t n,
                          uint32_t bound, float *list, int32_t *ids) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    int32_t each = (blocks + warps - 1) / warps, begin = min(warp * each, blocks),
            end = min(begin + each, blocks), at = 0, all = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            if (lane == 0) s->count[warp] = at;
            __syncthreads();
            at = 0;
            for (int w = 0; w < warps; w++) {
                if (w < warp) at += s->count[w];
                all += s->count[w];
            }
            if (all > KM_SAMPLE_LIST) break;
        }
        for (int32_t first = begin; first < end; first += 32) { // 32 peaks at a time
            bool high = first + lane < end && key_of(peaks[first + lane]) >= bound;
            for (uint32_t left = __ballot_sync(ALL_LANES, high); left; left &= left - 1) {
                int32_t b = first + __ffs(left) - 1;
                for (int k = 0; k < KM_SAMPLE_BLOCK; k += 32) {
                    int32_t i = b * KM_SAMPLE_BLOCK + k + lane;
                    float v = i < n ? x[i] : -INFINITY;
                    bool in = i < n && key_of(v) >= bound;
                    uint32_t hits = __ballot_sync(ALL_LANES, in);
                    if (pass == 1 && in) {
                        int32_t to = at + __popc(hits & ((1u << lane) - 1));
                        list[to] = v;
                        ids[to] = i;
                    }
                    at += __popc(hits);
                }
            }
        }
    }
    __syncthreads();
    return all;
}

extern "C" __global__ void __launch_bounds__(KM_SAMPLE_THREADS) sample_pick(km_sample_args a) {
    wait_for_previous();
    __shared__ Shared s;
    __shared__ float list[KM_SAMPLE_LIST];
    __shared__ int32_t ids[KM_SAMPLE_LIST];
    int row = blockIdx.x, t = threadIdx.x;
    const float *how = a.settings + row * KM_SAMPLE_SETTINGS;
    const float *x = logits_of(a, row);
    const float *peaks = a.peaks + (int64_t)row * a.blocks;
    const int32_t *before = a.before + (int64_t)row * KM_SAMPLE_STATE;
    int32_t *after = a.after + (int64_t)row * KM_SAMPLE_STATE;
    int32_t n = tokens_of(a, row), id = -1;

    float top = -INFINITY;
    for (int32_t i = t; i < a.blocks; i += blockDim.x) top = fmaxf(top, peaks[i]);
    top = warp_max(top);
    if (t % 32 == 0) s.sum[t / 32] = __float_as_uint(top);
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++)
        top = fmaxf(top, __uint_as_float((uint32_t)s.sum[w]));
    __syncthreads();

    float temperature = how[KM_SAMPLE_TEMPERATURE];
    u64 seed = (uint32_t)before[KM_SAMPLE_SEED] | (u64)(uint32_t)before[KM_SAMPLE_SEED + 1] << 32;
    u64 draws = (uint32_t)before[KM_SAMPLE_DRAWS] | (u64)(uint32_t)before[KM_SAMPLE_DRAWS + 1]
                                                        << 32;
    bool drawn = top > -INFINITY && top < INFINITY && temperature >= 1e-6f;
    if (drawn) {
        Odds odds = {top, 1.44269504f / temperature};
        uint4 r = philox(seed, 0, draws);
        u64 number = (u64)r.x << 32 | r.y;
        int32_t k = (int32_t)how[KM_SAMPLE_TOP_K];
        float min_p = how[KM_SAMPLE_MIN_P];
        uint32_t bound = 0;
        if (k > 0 && k < a.blocks) {
            Row every = {peaks, a.blocks};
            bound = select(&s, every, Cut{1, 0x7fffffff}, (const Odds *)nullptr, (u64)k).key;
        } else if (min_p > 0.0f && !(how[KM_SAMPLE_TOP_P] < 1.0f) && k <= 0) {
            // A little lower than need be: draw() looks at p itself.
            bound = key_of(top + logf(min_p) * temperature * 1.0001f - 1e-4f * fabsf(top));
        }
        // Below are only those that a mask leaves out, which weigh nothing.
        if (bound) bound = max(bound, key_of(-FLT_MAX));
        int32_t some = bound ? gather(&s, x, peaks, a.blocks, n, bound, list, ids) : 0;
        if (some > 0 && some <= KM_SAMPLE_LIST)
            id = choose(&s, List{list, ids, some}, how, odds, number);
        else
            id = choose(&s, Row{x, n}, how, odds, number);
        draws++;
    } else if (top > -INFINITY) {
        id = likeliest(&s, x, peaks, a.blocks, n, top);
    }
    int32_t seen = before[KM_SAMPLE_SEEN];
    for (int i = t; i < KM_SAMPLE_STATE; i += blockDim.x) {
        int32_t v = before[i];
        if (i == KM_SAMPLE_DRAWS) v = (int32_t)(uint32_t)draws;
        if (i == KM_SAMPLE_DRAWS + 1) v = (int32_t)(uint32_t)(draws >> 32);
        if (i == KM_SAMPLE_SEEN) v = seen + 1;
        if (i == KM_SAMPLE_TOKEN_AT + seen % KM_SAMPLE_RING) v = id;
        after[i] = v;
    }
    if (t == 0) a.ids[row] = id;
}

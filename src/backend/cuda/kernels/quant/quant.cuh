// Weights of a few bits, unpacked. A thread takes a unit: 64 weights of one row in four runs of 16
// that stand together in x. Every type comes out the same: run r is
//   w[i] = d[r] * q[r][i] - m[r],   q in int8, four to a word,
// so that a dot product with int8 x is 16 dp4a, and what is subtracted needs only x's sums.
// q is 0 or more unless the type is SIGNED.
// x keeps 16 bits when it is FINE: 256 times an upper int8 and a lower one, so that a dot product is 32
// dp4a and one more instruction for each sum. Products then differ from exact ones by what floats lose.
// Else it is one int8, as in llama.cpp, which is far enough from the model to change what it says.
// fetch() reads a unit's fields (BYTES in all), unpack() makes the runs, and dot() multiplies with one
// row of x in as few instructions as the type allows. phase() says which of a block's four units it
// is, for those who know it before. Formulas: src/tensor/quant.c.
#ifndef KM_CUDA_QUANT_CUH
#define KM_CUDA_QUANT_CUH
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/quant/quant_args.h"

struct Runs {
    uint32_t q[4][4];
    float d[4], m[4];
};

// Runs of a unit in x: side by side, or 32 apart (types whose bytes hold weights 32 apart).
template <bool APART> struct Order {
    static __device__ __forceinline__ int at(int unit, int run) {
        return APART ? (unit / 2) * 128 + (unit % 2) * 16 + run * 32 : unit * 64 + run * 16;
    }
    // The other way round: element p of x, a multiple of 4.
    static __device__ __forceinline__ uint32_t unit_of(uint32_t p) {
        return APART ? p / 128 * 2 + p / 16 % 2 : p / 64;
    }
    static __device__ __forceinline__ uint32_t run_of(uint32_t p) {
        return APART ? p / 32 % 4 : p / 16 % 4;
    }
};

// Where the planes of a matrix begin.
struct Fields {
    const uint8_t *f[KM_QUANT_FIELDS];
};

// x of a unit: its four runs, or their upper and lower halves.
template <bool FINE> struct Halves;
template <> struct Halves<false> { uint4 x[4]; };
template <> struct Halves<true> { uint4 x[4], low[4]; };
// And what a group of 32 elements shares: its scale, and the sum of its elements times that. Runs side
// by side make two groups.
template <bool APART, bool FINE> struct Unit;
template <bool FINE> struct Unit<false, FINE> : Halves<FINE> { float2 scale, total; };
// Runs that stand apart are of four groups; only half of each group's elements are in the unit.
template <bool FINE> struct Unit<true, FINE> : Halves<FINE> {
    int4 sum;
    float4 scale;
};

// How fetch() gets at a field: straight from memory; or in two goes, first asking for it to be
// copied to a place of this thread's own in shared memory, then taking it from there. A place is
// as many bytes of each field as there are threads that have one.
struct Direct {
    template <class T> __device__ __forceinline__ void operator()(T &v, const uint8_t *p) {
        v = __ldg(reinterpret_cast<const T *>(p));
    }
};
template <int THREADS> struct Ask {
    uint32_t place;
    template <class T> __device__ __forceinline__ void operator()(T &, const uint8_t *p) {
        uint32_t to = place + threadIdx.x * (uint32_t)sizeof(T);
#if __CUDA_ARCH__ < 800 // no such copies: it waits
        *reinterpret_cast<T *>(__cvta_shared_to_generic(to)) =
            __ldg(reinterpret_cast<const T *>(p));
#else
        if constexpr (sizeof(T) == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(p) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(p),
                         "n"(sizeof(T))
                         : "memory");
#endif
        place += THREADS * (uint32_t)sizeof(T);
    }
};
template <int THREADS> struct Take {
    const uint8_t *place;
    template <class T> __device__ __forceinline__ void operator()(T &v, const uint8_t *) {
        v = *reinterpret_cast<const T *>(place + threadIdx.x * sizeof(T));
        place += THREADS * sizeof(T);
    }
};
// The word that holds the two bytes at p: they are its upper ones where p & 2.
__device__ __forceinline__ const uint8_t *word_around(const uint8_t *p) {
    return p - ((uintptr_t)p & 2);
}

__device__ __forceinline__ float half_low(uint32_t w) {
    return __half2float(__ushort_as_half((unsigned short)w));
}
__device__ __forceinline__ float half_high(uint32_t w) {
    return __half2float(__ushort_as_half((unsigned short)(w >> 16)));
}
__device__ __forceinline__ uint32_t word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
// Byte i of a word, and of two.
__device__ __forceinline__ uint32_t byte_of(uint32_t w, int i) { return (w >> (8 * i)) & 0xff; }
__device__ __forceinline__ uint32_t byte_of(uint2 w, int i) {
    return byte_of(i < 4 ? w.x : w.y, i & 3);
}

// The two runs of 16 in 16 bytes of nibbles: low ones, then high ones.
__device__ __forceinline__ void nibbles(const uint4 &v, uint32_t (&low)[4], uint32_t (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] = word(v, i) & 0x0f0f0f0fu;
        high[i] = (word(v, i) >> 4) & 0x0f0f0f0fu;
    }
}
// Four bits, each to bit 0 of a byte.
__device__ __forceinline__ uint32_t spread(uint32_t bits) {
    return ((bits & 15u) * 0x00204081u) & 0x01010101u;
}
// Eight nibbles through a table of 16 bytes, as nibbles() orders them: four low ones, four high.
__device__ __forceinline__ void look_up(uint32_t v, const uint32_t (&t)[4], uint32_t &low,
                                        uint32_t &high) {
    uint32_t part[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t four = v >> (16 * i), at = four & 0x7777u;
        uint32_t below = __byte_perm(t[0], t[1], at), above = __byte_perm(t[2], t[3], at);
        part[i] = __byte_perm(below, above, 0x3210u | ((four & 0x8888u) >> 1));
    }
    low = __byte_perm(part[0], part[1], 0x6420);
    high = __byte_perm(part[0], part[1], 0x7531);
}

__device__ __forceinline__ int dot_unsigned(uint32_t w, uint32_t v, int dot) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(dot) : "r"(w), "r"(v));
    return dot;
}
// A sum of products with x, in whole numbers. Of fine x the halves are summed apart, which makes for
// shorter chains, and joined at the end: 32 products stay below 2^27 times the largest weight.
template <bool FINE> struct Dot {
    int upper, lower;
    __device__ __forceinline__ explicit Dot(int first = 0)
        : upper(FINE ? 0 : first), lower(FINE ? first : 0) {}
    // Four weights with word i of run r.
    __device__ __forceinline__ void add(uint32_t w, const Halves<FINE> &x, int r, int i) {
        upper = __dp4a((int)w, (int)word(x.x[r], i), upper);
        if constexpr (FINE) lower = __dp4a((int)w, (int)word(x.low[r], i), lower);
    }
    __device__ __forceinline__ void add_unsigned(uint32_t w, const Halves<FINE> &x, int r, int i) {
        upper = dot_unsigned(w, word(x.x[r], i), upper);
        if constexpr (FINE) lower = dot_unsigned(w, word(x.low[r], i), lower);
    }
    __device__ __forceinline__ int all() const { return FINE ? upper * 256 + lower : upper; }
};
template <bool FINE>
__device__ __forceinline__ void dot16(const uint32_t (&w)[4], const Halves<FINE> &x, int r,
                                      Dot<FINE> &dot) {
#pragma unroll
    for (int i = 0; i < 4; i++) dot.add(w[i], x, r, i);
}
// Low nibbles with run a and high nibbles with run b; the second sum is 16 times too large.
template <bool FINE>
__device__ __forceinline__ void dot_nibbles(const uint4 &w, const Halves<FINE> &x, int a, int b,
                                            Dot<FINE> &low, Dot<FINE> &high) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low.add_unsigned(word(w, i) & 0x0f0f0f0fu, x, a, i);
        high.add_unsigned(word(w, i) & 0xf0f0f0f0u, x, b, i);
    }
}
template <bool FINE> __device__ __forceinline__ int run_sum(const Unit<true, FINE> &x, int r) {
    return r == 0 ? x.sum.x : r == 1 ? x.sum.y : r == 2 ? x.sum.z : x.sum.w;
}
template <bool FINE> __device__ __forceinline__ float run_scale(const Unit<true, FINE> &x, int r) {
    return r == 0 ? x.scale.x : r == 1 ? x.scale.y : r == 2 ? x.scale.z : x.scale.w;
}

// Each type: APART, fetch, unpack, dot.
template <int TYPE> struct Quant;

// The planes of a type, from the table of quant_args.h.
template <int TYPE> struct Planes;
#define PLANES(name, blocks, elements, ...)                                                        \
    template <> struct Planes<KM_QUANT_##name> {                                                   \
        static constexpr int UNITS = elements / KM_QUANT_UNIT; /* of a group */                    \
        static __device__ constexpr int bytes(int i) {         /* of a group, in plane i */        \
            const unsigned char f[KM_QUANT_FIELDS][4] = {__VA_ARGS__};                             \
            return f[i][1] * f[i][3];                                                              \
        }                                                                                          \
    };
KM_QUANT_PLANES(PLANES)
#undef PLANES

template <int TYPE> __device__ __forceinline__ Fields fields_of(const km_quant_matrix &w) {
    Fields p;
    int64_t plane = 0;
#pragma unroll
    for (int i = 0; i < KM_QUANT_FIELDS; i++) {
        int bytes = Planes<TYPE>::bytes(i);
        p.f[i] = w.planes + plane + w.first * bytes;
        plane += w.padded * bytes;
    }
    return p;
}

// The general way: unpacked, then summed.
template <bool FINE>
__device__ __forceinline__ float dot_runs(const Runs &w, const Unit<true, FINE> &x) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        Dot<FINE> dot;
        dot16<FINE>(w.q[r], x, r, dot);
        sum = fmaf(run_scale(x, r), fmaf(w.d[r], (float)dot.all(), -w.m[r] * (float)run_sum(x, r)),
                   sum);
    }
    return sum;
}
template <bool FINE>
__device__ __forceinline__ float dot_runs(const Runs &w, const Unit<false, FINE> &x) {
    Dot<FINE> a, b;
    dot16<FINE>(w.q[0], x, 0, a);
    dot16<FINE>(w.q[1], x, 1, a);
    dot16<FINE>(w.q[2], x, 2, b);
    dot16<FINE>(w.q[3], x, 3, b);
    float sum = fmaf(w.d[0] * x.scale.x, (float)a.all(), w.d[2] * x.scale.y * (float)b.all());
    return fmaf(-w.m[0], x.total.x, fmaf(-w.m[2], x.total.y, sum));
}

template <class Q, class X>
__device__ __forceinline__ float dot_unpacked(const Q &raw, const X &x) {
    Runs w;
    raw.unpack(w);
    return dot_runs(w, x);
}

// A block of 32 with 16 bytes of nibbles: two blocks to a unit.
struct Pair {
    static constexpr bool APART = false;
    uint4 q[2];
    __device__ __forceinline__ void phase(int) {}
    template <class L>
    __device__ __forceinline__ void fetch_quants(L &load, const Fields &at, uint32_t unit) {
        load(q[0], at.f[0] + (size_t)unit * 16);
        load(q[1], at.f[1] + (size_t)unit * 16);
    }
};

template <> struct Quant<KM_QUANT_Q4_0> : Pair {
    static constexpr int BYTES = 36;
    static constexpr bool SIGNED = false;
    uint32_t dd;
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        fetch_quants(load, at, unit);
        load(dd, at.f[2] + (size_t)unit * 4);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            nibbles(q[i], r.q[2 * i], r.q[2 * i + 1]);
            float d = i ? half_high(dd) : half_low(dd);
            r.d[2 * i] = r.d[2 * i + 1] = d;
            r.m[2 * i] = r.m[2 * i + 1] = 8 * d;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        float d[2] = {half_low(dd), half_high(dd)}, sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Dot<FINE> low, high;
            dot_nibbles<FINE>(q[i], x, 2 * i, 2 * i + 1, low, high);
            float scaled = (i ? x.scale.y : x.scale.x) * (float)(low.all() + (high.all() >> 4));
            sum = fmaf(d[i], fmaf(-8, i ? x.total.y : x.total.x, scaled), sum);
        }
        return sum;
    }
};

template <> struct Quant<KM_QUANT_Q4_1> : Pair {
    static constexpr int BYTES = 40;
    static constexpr bool SIGNED = false;
    uint2 dm;
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        fetch_quants(load, at, unit);
        load(dm, at.f[2] + (size_t)unit * 8);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            nibbles(q[i], r.q[2 * i], r.q[2 * i + 1]);
            r.d[2 * i] = r.d[2 * i + 1] = half_low(i ? dm.y : dm.x);
            r.m[2 * i] = r.m[2 * i + 1] = -half_high(i ? dm.y : dm.x);
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Dot<FINE> low, high;
            uint32_t both = i ? dm.y : dm.x;
            dot_nibbles<FINE>(q[i], x, 2 * i, 2 * i + 1, low, high);
            float scaled = (i ? x.scale.y : x.scale.x) * (float)(low.all() + (high.all() >> 4));
            sum = fmaf(half_low(both), scaled, sum);
            sum = fmaf(half_high(both), i ? x.total.y : x.total.x, sum);
        }
        return sum;
    }
};

// Fifth bits: 32 of them, in the order of the weights.
__device__ __forceinline__ void fifth_bits(uint32_t h, uint32_t (&low)[4], uint32_t (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] |= spread(h >> (4 * i)) << 4;
        high[i] |= spread(h >> (16 + 4 * i)) << 4;
    }
}

template <> struct Quant<KM_QUANT_Q5_0> : Pair {
    static constexpr int BYTES = 44;
    static constexpr bool SIGNED = false;
    uint2 h;
    uint32_t dd;
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        fetch_quants(load, at, unit);
        load(h, at.f[2] + (size_t)unit * 8);
        load(dd, at.f[3] + (size_t)unit * 4);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            nibbles(q[i], r.q[2 * i], r.q[2 * i + 1]);
            fifth_bits(i ? h.y : h.x, r.q[2 * i], r.q[2 * i + 1]);
            float d = i ? half_high(dd) : half_low(dd);
            r.d[2 * i] = r.d[2 * i + 1] = d;
            r.m[2 * i] = r.m[2 * i + 1] = 16 * d;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

template <> struct Quant<KM_QUANT_Q5_1> : Pair {
    static constexpr int BYTES = 48;
    static constexpr bool SIGNED = false;
    uint2 h, dm;
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        fetch_quants(load, at, unit);
        load(h, at.f[2] + (size_t)unit * 8);
        load(dm, at.f[3] + (size_t)unit * 8);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            nibbles(q[i], r.q[2 * i], r.q[2 * i + 1]);
            fifth_bits(i ? h.y : h.x, r.q[2 * i], r.q[2 * i + 1]);
            r.d[2 * i] = r.d[2 * i + 1] = half_low(i ? dm.y : dm.x);
            r.m[2 * i] = r.m[2 * i + 1] = -half_high(i ? dm.y : dm.x);
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

template <> struct Quant<KM_QUANT_Q8_0> {
    static constexpr bool APART = false;
    static constexpr int BYTES = 68;
    static constexpr bool SIGNED = true;
    uint4 q[4];
    uint32_t dd;
    __device__ __forceinline__ void phase(int) {}
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
#pragma unroll
        for (int i = 0; i < 4; i++) load(q[i], at.f[i] + (size_t)unit * 16);
        load(dd, at.f[4] + (size_t)unit * 4);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) r.q[i][k] = word(q[i], k);
            r.d[i] = i < 2 ? half_low(dd) : half_high(dd);
            r.m[i] = 0;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        Dot<FINE> a, b;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            a.add(word(q[0], k), x, 0, k);
            a.add(word(q[1], k), x, 1, k);
            b.add(word(q[2], k), x, 2, k);
            b.add(word(q[3], k), x, 3, k);
        }
        return fmaf(half_low(dd) * x.scale.x, (float)a.all(),
                    half_high(dd) * x.scale.y * (float)b.all());
    }
};

template <> struct Quant<KM_QUANT_IQ4_NL> : Quant<KM_QUANT_Q4_0> {
    static constexpr bool SIGNED = true;
    __device__ __forceinline__ void unpack(Runs &r) const {
        // km_iq4_values
        const uint32_t t[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) look_up(word(q[i], k), t, r.q[2 * i][k], r.q[2 * i + 1][k]);
            r.d[2 * i] = r.d[2 * i + 1] = i ? half_high(dd) : half_low(dd);
            r.m[2 * i] = r.m[2 * i + 1] = 0;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

template <> struct Quant<KM_QUANT_MXFP4> : Pair {
    static constexpr int BYTES = 36;
    static constexpr bool SIGNED = true;
    uint32_t around;
    int odd;
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        fetch_quants(load, at, unit);
        const uint8_t *e = at.f[2] + (size_t)unit * 2;
        load(around, word_around(e));
        odd = (int)((uintptr_t)e & 2);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        // km_mxfp4_values
        const uint32_t t[4] = {0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) look_up(word(q[i], k), t, r.q[2 * i][k], r.q[2 * i + 1][k]);
            uint32_t x = byte_of(around >> (8 * odd), i);
            r.d[2 * i] = r.d[2 * i + 1] = __uint_as_float(x < 2 ? 0x00200000u << x : (x - 1) << 23);
            r.m[2 * i] = r.m[2 * i + 1] = 0;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

// ---- Blocks of 256: four units ----

template <> struct Quant<KM_QUANT_Q2_K> {
    static constexpr int BYTES = 28;
    static constexpr bool SIGNED = false;
    static constexpr bool APART = true;
    uint4 q;
    uint2 s;
    uint32_t dm;
    int j;
    __device__ __forceinline__ void phase(int p) { j = p % 2; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        uint32_t b = unit / 4;
        uint32_t half = unit / 2 % 2;
        phase((int)(unit % 4));
        load(q, at.f[0] + (size_t)unit * 16);
        load(s, at.f[1] + (size_t)b * 16 + 8 * half);
        load(dm, at.f[2] + (size_t)b * 4);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        float d = half_low(dm), m = half_high(dm);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) r.q[i][k] = (word(q, k) >> (2 * i)) & 0x03030303u;
            uint32_t sc = byte_of(s, 2 * i + j);
            r.d[i] = d * (float)(sc & 15);
            r.m[i] = m * (float)(sc >> 4);
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

template <> struct Quant<KM_QUANT_Q3_K> {
    static constexpr int BYTES = 48;
    static constexpr bool SIGNED = false;
    static constexpr bool APART = true;
    uint4 q, h;
    uint32_t s[3], around;
    int j, half, odd;
    __device__ __forceinline__ void phase(int p) { j = p % 2, half = p / 2; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        uint32_t b = unit / 4;
        phase((int)(unit % 4));
        load(q, at.f[0] + (size_t)unit * 16);
        load(h, at.f[1] + (size_t)b * 32 + 16 * j);
#pragma unroll
        for (int i = 0; i < 3; i++) load(s[i], at.f[2] + (size_t)b * 12 + 4 * i);
        const uint8_t *d = at.f[3] + (size_t)b * 2;
        load(around, word_around(d));
        odd = (int)((uintptr_t)d & 2);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                r.q[i][k] = ((word(q, k) >> (2 * i)) & 0x03030303u) |
                            (((word(h, k) >> (4 * half + i)) & 0x01010101u) << 2);
            int at = 2 * i + j; // scale 8 * half + at
            uint32_t low = (byte_of(make_uint2(s[0], s[1]), at) >> (4 * half)) & 15;
            uint32_t high = (byte_of(s[2], at & 3) >> (2 * (2 * half + (at >> 2)))) & 3;
            r.d[i] = half_low(around >> (8 * odd)) * (float)((int)(low | high << 4) - 32);
            r.m[i] = 4 * r.d[i];
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

// Scale j and minimum j of q4_k and q5_k: the 12 bytes are words y, z, w of the head.
__device__ __forceinline__ void k4_scale(const uint4 &head, int j, float &scale, float &min) {
    uint32_t a = byte_of(head.y, j & 3), b = byte_of(head.z, j & 3), c = byte_of(head.w, j & 3);
    uint32_t s = j < 4 ? a & 63 : (c & 15) | (a >> 6) << 4;
    uint32_t m = j < 4 ? b & 63 : c >> 4 | (b >> 6) << 4;
    scale = half_low(head.x) * (float)s;
    min = half_high(head.x) * (float)m;
}

// Scales and minima 2 c and 2 c + 1, as the whole numbers they are. In the second half of a block
// their upper two bits stand apart from the lower four.
__device__ __forceinline__ void k4_scales(const uint4 &head, int c, int &s0, int &s1, int &m0,
                                          int &m1) {
    int shift = (c & 1) * 16;
    bool apart = c >= 2;
    int above = apart ? shift + 2 : shift;
    uint32_t mask = apart ? 0x3030u : 0x3f3fu, low = apart ? 0x0f0fu : 0u;
    uint32_t s = ((head.y >> above) & mask) | ((head.w >> shift) & low);
    uint32_t m = ((head.z >> above) & mask) | ((head.w >> (shift + 4)) & low);
    s0 = (int)(s & 0xff), s1 = (int)(s >> 8);
    m0 = (int)(m & 0xff), m1 = (int)(m >> 8);
}

template <> struct Quant<KM_QUANT_Q4_K> {
    static constexpr int BYTES = 48;
    static constexpr bool SIGNED = false;
    static constexpr bool APART = false;
    uint4 q[2], head;
    int c;
    __device__ __forceinline__ void phase(int p) { c = p; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        phase((int)(unit % 4));
        load(q[0], at.f[0] + (size_t)unit * 16);
        load(q[1], at.f[1] + (size_t)unit * 16);
        load(head, at.f[2] + (size_t)(unit / 4) * 16);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        nibbles(q[0], r.q[0], r.q[2]);
        nibbles(q[1], r.q[1], r.q[3]);
        k4_scale(head, 2 * c, r.d[0], r.m[0]);
        k4_scale(head, 2 * c + 1, r.d[2], r.m[2]);
        r.d[1] = r.d[0], r.m[1] = r.m[0];
        r.d[3] = r.d[2], r.m[3] = r.m[2];
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        Dot<FINE> low, high;
        int s0, s1, m0, m1;
        dot_nibbles<FINE>(q[0], x, 0, 2, low, high);
        dot_nibbles<FINE>(q[1], x, 1, 3, low, high);
        k4_scales(head, c, s0, s1, m0, m1);
        float all =
            fmaf(x.scale.x, (float)(s0 * low.all()), x.scale.y * (float)(s1 * (high.all() >> 4)));
        float less = fmaf(x.total.x, (float)m0, x.total.y * (float)m1);
        return fmaf(half_low(head.x), all, -half_high(head.x) * less);
    }
};

template <> struct Quant<KM_QUANT_Q5_K> {
    static constexpr int BYTES = 80;
    static constexpr bool SIGNED = false;
    static constexpr bool APART = false;
    uint4 q[2], h[2], head;
    int c;
    __device__ __forceinline__ void phase(int p) { c = p; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        phase((int)(unit % 4));
        load(q[0], at.f[0] + (size_t)unit * 16);
        load(q[1], at.f[1] + (size_t)unit * 16);
        load(h[0], at.f[2] + (size_t)(unit / 4) * 32);
        load(h[1], at.f[2] + (size_t)(unit / 4) * 32 + 16);
        load(head, at.f[3] + (size_t)(unit / 4) * 16);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        nibbles(q[0], r.q[0], r.q[2]);
        nibbles(q[1], r.q[1], r.q[3]);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                r.q[i][k] |= ((word(h[i], k) >> (2 * c)) & 0x01010101u) << 4;
                r.q[2 + i][k] |= ((word(h[i], k) >> (2 * c + 1)) & 0x01010101u) << 4;
            }
        k4_scale(head, 2 * c, r.d[0], r.m[0]);
        k4_scale(head, 2 * c + 1, r.d[2], r.m[2]);
        r.d[1] = r.d[0], r.m[1] = r.m[0];
        r.d[3] = r.d[2], r.m[3] = r.m[2];
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        Dot<FINE> low, high;
        int s0, s1, m0, m1;
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t w = word(q[i], k), bits = word(h[i], k) >> (2 * c);
                uint32_t a = (w & 0x0f0f0f0fu) | ((bits & 0x01010101u) << 4);
                uint32_t b = ((w >> 4) & 0x0f0f0f0fu) | ((bits & 0x02020202u) << 3);
                low.add(a, x, i, k);
                high.add(b, x, 2 + i, k);
            }
        k4_scales(head, c, s0, s1, m0, m1); // 63 * 32 * 31 * 127 * 256 is less than 2^31
        float all = fmaf(x.scale.x, (float)(s0 * low.all()), x.scale.y * (float)(s1 * high.all()));
        float less = fmaf(x.total.x, (float)m0, x.total.y * (float)m1);
        return fmaf(half_low(head.x), all, -half_high(head.x) * less);
    }
};

template <> struct Quant<KM_QUANT_Q6_K> {
    static constexpr int BYTES = 60;
    static constexpr bool SIGNED = false;
    static constexpr bool APART = true;
    uint4 q[2], h;
    uint2 s;
    uint32_t around;
    int j, odd;
    __device__ __forceinline__ void phase(int p) { j = p % 2; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        uint32_t b = unit / 4;
        uint32_t half = unit / 2 % 2;
        phase((int)(unit % 4));
        const uint8_t *p = at.f[0] + (size_t)b * 128 + 64 * half + 16 * j;
        load(q[0], p);
        load(q[1], p + 32);
        load(h, at.f[1] + (size_t)unit * 16);
        load(s, at.f[2] + (size_t)b * 16 + 8 * half);
        const uint8_t *d = at.f[3] + (size_t)b * 2;
        load(around, word_around(d));
        odd = (int)((uintptr_t)d & 2);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        nibbles(q[0], r.q[0], r.q[2]);
        nibbles(q[1], r.q[1], r.q[3]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t two = word(h, k) >> (2 * i);
                r.q[i][k] |= (two & 0x03030303u) << 4;
            }
            r.d[i] = half_low(around >> (8 * odd)) * (float)(int8_t)byte_of(s, 2 * i + j);
            r.m[i] = 32 * r.d[i];
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        float all = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            Dot<FINE> sum(-32 * run_sum(x, r));
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t two = r < 2 ? word(h, k) << (4 - 2 * r) : word(h, k) >> (2 * r - 4);
                uint32_t four = r < 2 ? word(q[r], k) : word(q[r - 2], k) >> 4;
                sum.add((four & 0x0f0f0f0fu) | (two & 0x30303030u), x, r, k);
            }
            uint32_t pair = r < 2 ? s.x : s.y; // bytes 2 r + j of the eight
            int scale = (int8_t)(pair >> (16 * (r & 1) + 8 * j));
            // 128 * 16 * 32 * 127 * 256 is less than 2^31
            all = fmaf(run_scale(x, r), (float)(scale * sum.all()), all);
        }
        return half_low(around >> (8 * odd)) * all;
    }
};

template <> struct Quant<KM_QUANT_IQ4_XS> {
    static constexpr int BYTES = 40;
    static constexpr bool SIGNED = true;
    static constexpr bool APART = false;
    uint4 q[2];
    uint2 head; // d, high bits of scales; low bits of scales
    int c;
    __device__ __forceinline__ void phase(int p) { c = p; }
    template <class L>
    __device__ __forceinline__ void fetch(L &load, const Fields &at, uint32_t unit) {
        phase((int)(unit % 4));
        load(q[0], at.f[0] + (size_t)unit * 16);
        load(q[1], at.f[1] + (size_t)unit * 16);
        load(head, at.f[2] + (size_t)(unit / 4) * 8);
    }
    __device__ __forceinline__ void unpack(Runs &r) const {
        const uint32_t t[4] = {0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) look_up(word(q[i], k), t, r.q[2 * i][k], r.q[2 * i + 1][k]);
            uint32_t low = (byte_of(head.y, c) >> (4 * i)) & 15;
            uint32_t high = (head.x >> (16 + 2 * (2 * c + i))) & 3;
            r.d[2 * i] = r.d[2 * i + 1] = half_low(head.x) * (float)((int)(low | high << 4) - 32);
            r.m[2 * i] = r.m[2 * i + 1] = 0;
        }
    }
    template <bool FINE> __device__ __forceinline__ float dot(const Unit<APART, FINE> &x) const {
        return dot_unpacked(*this, x);
    }
};

#endif

// km-arch: 90a. softmax, layer_norm, rms_norm and cross_entropy (with its gradient) of rows wider
// than a block's registers: see wide_rows.cuh. Floor: one read and one write of the row.
#include "backend/cuda/kernels/rows/wide_rows.cuh"

// y = f(x) for each element of the block's part, in registers 16 bytes at a time.
template <class T, class F>
__device__ __forceinline__ void write_each(Wide<T> &wide, const Pack<T, WIDE<T>> *x,
                                           Pack<T, WIDE<T>> *y, F f) {
    constexpr int W = WIDE<T>;
    wide.template each<4>([&](int i, auto times) {
        constexpr int N = decltype(times)::n;
        Pack<T, W> p[N];
#pragma unroll
        for (int j = 0; j < N; j++) p[j] = x[i + j * THREADS];
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int e = 0; e < W; e++) p[j].v[e] = from_f32<T>(f(to_f32(p[j].v[e])));
            y[i + j * THREADS] = p[j];
        }
    });
}

template <class T> __device__ void wide_softmax(const km_softmax_args &p) {
    Wide<T> wide(p.n);
    if (wide.fetches(p.x, p.rows, nullptr, nullptr)) return;
    while (wide.row < p.rows) {
        auto x = wide.part();
        float2 v = wide.join(Exps::of_thread(wide, x), Exps());
        auto y = wide.mine(p.out);
        float m = v.x;
        if (p.log) {
            float lost = logf(v.y);
            write_each(wide, x, y, [&](float e) { return e - m - lost; });
        } else {
            float scale = 1 / v.y;
            write_each(wide, x, y, [&](float e) { return exp_down(e - m) * scale; });
        }
        wide.next(p.rows);
    }
}

template <class T, bool CENTRED> __device__ void wide_norm(const km_norm_args &p) {
    constexpr int W = WIDE<T>;
    Wide<T> wide(p.n);
    if (wide.fetches(p.x, p.rows, p.w, p.b)) return;
    Spread<CENTRED> spread(wide);
    const Pack<T, W> *w = wide.weights(0), *b = wide.weights(1);
    wide.wait_weights();
    while (wide.row < p.rows) {
        auto x = wide.part();
        float2 v = wide.join(spread.of_thread(wide, x), spread);
        auto y = wide.mine(p.y);
        float mean = CENTRED ? v.x / (float)p.n : 0, rstd = 1 / sqrtf(v.y / (float)p.n + p.eps);
        if (wide.me == 0 && threadIdx.x == 0) {
            if (CENTRED) p.mean[wide.row] = mean;
            p.rstd[wide.row] = rstd;
        }
        wide.template each<2>([&](int i, auto times) {
            constexpr int N = decltype(times)::n;
            Pack<T, W> v[N], s[N], o[N];
#pragma unroll
            for (int j = 0; j < N; j++) {
                v[j] = x[i + j * THREADS];
                s[j] = w[i + j * THREADS];
                if (p.b) o[j] = b[i + j * THREADS];
            }
#pragma unroll
            for (int j = 0; j < N; j++) {
#pragma unroll
                for (int e = 0; e < W; e++) {
                    float h = (to_f32(v[j].v[e]) - mean) * rstd * to_f32(s[j].v[e]);
                    v[j].v[e] = from_f32<T>(p.b ? h + to_f32(o[j].v[e]) : h);
                }
                y[i + j * THREADS] = v[j];
            }
        });
        wide.next(p.rows);
    }
}

template <class T> __device__ void wide_cross_entropy(const km_loss_args &p) {
    constexpr int W = WIDE<T>;
    Wide<T> wide(p.n);
    if (wide.fetches(p.x, p.rows, nullptr, nullptr)) return;
    const float weight = p.dx && p.mean ? 1 / *p.count : 1;
    while (wide.row < p.rows) {
        // Asked for before the wait: it is here when the sums are.
        int64_t target = p.wide ? ((const int64_t *)p.targets)[wide.row]
                                : ((const int32_t *)p.targets)[wide.row];
        auto x = wide.part();
        float2 v = wide.join(Exps::of_thread(wide, x), Exps());
        bool live = target != p.ignore && target >= 0 && target < p.n;
        float m = v.x, lse = isfinite(m) ? m + logf(v.y) : m;
        // The target within this block's part, if it is there.
        int at = live ? (int)target - wide.first * W : -1;
        bool here = at >= 0 && at < wide.count * W;
        // The thread that works on the target's pack is the one that reads it for the loss.
        bool owner = here && (int)threadIdx.x == at / W % THREADS;
        float at_target = owner ? to_f32(x[at / W].v[at % W]) : 0;
        if (owner) p.row_loss[wide.row] = lse - at_target;
        if (threadIdx.x == 0 && wide.me == 0) {
            p.lse[wide.row] = lse;
            if (!live) p.row_loss[wide.row] = 0;
        }
        if (p.dx) {
            auto dx = wide.mine(p.dx);
            if (live) {
                float scale = weight / v.y;
                write_each(wide, x, dx, [&](float e) { return exp_down(e - m) * scale; });
                if (owner) // over what it just wrote
                    reinterpret_cast<T *>(dx)[at] =
                        from_f32<T>(exp_down(at_target - m) * scale - weight);
            } else {
                write_each(wide, x, dx, [](float) { return 0.0f; });
            }
        }
        wide.next(p.rows);
    }
}

#define WIDE_KERNELS(T, t)                                                                         \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_BLOCK, 1)                                 \
        wide_softmax_##t(const __grid_constant__ km_softmax_args p) {                              \
        wide_softmax<T>(p);                                                                        \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_BLOCK, 1)                                 \
        wide_layer_norm_##t(const __grid_constant__ km_norm_args p) {                              \
        wide_norm<T, true>(p);                                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_BLOCK, 1)                                 \
        wide_rms_norm_##t(const __grid_constant__ km_norm_args p) {                                \
        wide_norm<T, false>(p);                                                                    \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(KM_WIDE_BLOCK, 1)                                 \
        wide_cross_entropy_##t(const __grid_constant__ km_loss_args p) {                           \
        wide_cross_entropy<T>(p);                                                                  \
    }
KM_EACH_FLOAT(WIDE_KERNELS)

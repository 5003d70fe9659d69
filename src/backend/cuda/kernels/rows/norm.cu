// layer_norm and rms_norm, alone or with the residual sum before them. Floor: one read and one
// write of the row (with a residual: two and two); the weights come from the L2.
#include "backend/cuda/kernels/rows/row.cuh"

// sum = x + residual, rounded to T as an add of its own would be, and kept for the norm.
template <class T, int W, Team K>
__device__ void add_residual(const km_norm_args &p, const Crew<K> &crew, Row<T, W, K> &x) {
    Row<T, W, K> r(crew, p.n);
    r.load((const T *)p.residual + crew.row * p.n);
    T *sum = (T *)p.sum + crew.row * p.n;
    x.each_with(r, [&](Pack<T, W> &v, const Pack<T, W> &o, int i) {
#pragma unroll
        for (int k = 0; k < W; k++) v.v[k] = from_f32<T>(to_f32(v.v[k]) + to_f32(o.v[k]));
        reinterpret_cast<Pack<T, W> *>(sum)[i] = v;
    });
    if (K == STREAM) x.load(sum); // each thread reads back what it wrote itself
}

template <class T, int W, Team K> __device__ void norm(const km_norm_args &p) {
    Crew<K> crew;
    if (crew.row >= p.rows) return;
    Row<T, W, K> x(crew, p.n);
    x.load((const T *)p.x + crew.row * p.n);
    if (p.residual) add_residual<T, W, K>(p, crew, x);
    float mean = 0, square = 0;
    if (p.mean) {
        x.each([&](const Pack<T, W> &v, int) {
#pragma unroll
            for (int k = 0; k < W; k++) mean += to_f32(v.v[k]);
        });
        mean = crew.sum(mean) / (float)p.n;
    }
    x.each([&](const Pack<T, W> &v, int) {
#pragma unroll
        for (int k = 0; k < W; k++) {
            float d = to_f32(v.v[k]) - mean;
            square = fmaf(d, d, square);
        }
    });
    float rstd = 1 / sqrtf(crew.sum(square) / (float)p.n + p.eps);
    if (crew.rank == 0) {
        if (p.mean) p.mean[crew.row] = mean;
        p.rstd[crew.row] = rstd;
    }
    Pack<T, W> *y = (Pack<T, W> *)((T *)p.y + crew.row * p.n);
    x.each([&](const Pack<T, W> &v, int i) {
        Pack<T, W> w = load_pack<T, W>(p.w, i), b, r;
        if (p.b) b = load_pack<T, W>(p.b, i);
#pragma unroll
        for (int k = 0; k < W; k++) {
            float h = (to_f32(v.v[k]) - mean) * rstd * to_f32(w.v[k]);
            r.v[k] = from_f32<T>(p.b ? h + to_f32(b.v[k]) : h);
        }
        y[i] = r;
    });
}
KM_ROW_KERNEL(norm, norm, km_norm_args)

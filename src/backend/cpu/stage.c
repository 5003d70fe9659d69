/* Gathering and scattering blocks of float elements. */
#include "backend/cpu/stage.h"
#include "backend/cpu/simd/convert.h"

const float *km_stage_in(km_dtype dtype, const void *p, int64_t stride, int64_t n,
                         float buf[KM_STAGE]) {
    const km_convert_rows *rows = km_simd_convert();
    uint16_t half[KM_STAGE];
    const uint16_t *h = p;
    if (dtype == KM_F32) {
        const float *x = p;
        if (stride == 1) return x;
        if (stride == 0)
            rows->fill(buf, *x, n, false);
        else
            for (int64_t i = 0; i < n; i++) buf[i] = x[i * stride];
        return buf;
    }
    if (stride == 0) {
        rows->fill(buf, dtype == KM_F16 ? km_f16_to_f32(*h) : km_bf16_to_f32(*h), n, false);
        return buf;
    }
    if (stride != 1) {
        for (int64_t i = 0; i < n; i++) half[i] = h[i * stride];
        h = half;
    }
    if (dtype == KM_F16)
        rows->from_f16(buf, h, n, false);
    else
        rows->from_bf16(buf, h, n, false);
    return buf;
}

void km_stage_out(km_dtype dtype, void *p, int64_t stride, int64_t n, const float *x, bool stream) {
    const km_convert_rows *rows = km_simd_convert();
    if (dtype == KM_F32) {
        float *out = p;
        if (stride == 1) return; /* x is p */
        for (int64_t i = 0; i < n; i++) out[i * stride] = x[i];
        return;
    }
    uint16_t half[KM_STAGE], *h = stride == 1 ? p : half;
    if (dtype == KM_F16)
        rows->to_f16(h, x, n, stream && stride == 1);
    else
        rows->to_bf16(h, x, n, stream && stride == 1);
    if (stride != 1)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)p)[i * stride] = half[i];
}

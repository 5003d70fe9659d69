/* The functions of vmath.h over arrays: where nothing but the function itself matters. */
#include "backend/cpu/simd/vmath_rows.h"
#include "backend/cpu/simd/vmath.h"

#define ROW(name)                                                                                  \
    static void row_##name(float *out, const float *x, int64_t n) {                                \
        int64_t i = 0;                                                                             \
        for (; i + KM_VF <= n; i += KM_VF) v_store(out + i, v_##name(v_load(x + i)));              \
        if (i < n) v_store_n(out + i, v_##name(v_load_n(x + i, n - i)), n - i);                    \
    }
KM_VMATH_LIST(ROW)

static void row_pow(float *out, const float *x, const float *y, int64_t n) {
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) v_store(out + i, v_pow(v_load(x + i), v_load(y + i)));
    if (i < n) v_store_n(out + i, v_pow(v_load_n(x + i, n - i), v_load_n(y + i, n - i)), n - i);
}

#define ENTRY(name) .name = row_##name,
const km_vmath_rows KM_SIMD(km_vmath) = {KM_VMATH_LIST(ENTRY).pow = row_pow};

/* Conversions and additions over a run of elements; see lanes.h. */
#include "backend/cpu/lanes.h"
#include "backend/cpu/simd/rowio.h"

KM_INLINE void load(float *f, const void *p, int64_t n, int slot) {
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) v_store(f + i, row_load(p, i, slot));
    if (i < n) v_store_n(f + i, row_load_n(p, i, n - i, slot), n - i);
}

KM_INLINE void add(float *f, const void *p, int64_t n, int slot) {
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) v_store(f + i, v_load(f + i) + row_load(p, i, slot));
    if (i < n) {
        int64_t m = n - i;
        v_store_n(f + i, v_load_n(f + i, m) + row_load_n(p, i, m, slot), m);
    }
}

KM_INLINE void store(void *p, const float *f, int64_t n, int slot) {
    int64_t i = 0;
    for (; i + KM_VF <= n; i += KM_VF) row_store(p, i, v_load(f + i), slot);
    if (i < n) row_store_n(p, i, v_load_n(f + i, n - i), n - i, slot);
}

#define PER_SLOT(name, slot)                                                                       \
    static void load_##name(float *f, const void *p, int64_t n) { load(f, p, n, slot); }           \
    static void add_##name(float *f, const void *p, int64_t n) { add(f, p, n, slot); }             \
    static void store_##name(void *p, const float *f, int64_t n) { store(p, f, n, slot); }
PER_SLOT(f32, KM_SLOT_F32)
PER_SLOT(f16, KM_SLOT_F16)
PER_SLOT(bf16, KM_SLOT_BF16)

const km_lanes KM_SIMD(km_simd_lanes) = {
    .load = {load_f32, load_f16, load_bf16},
    .add = {add_f32, add_f16, add_bf16},
    .store = {store_f32, store_f16, store_bf16},
};

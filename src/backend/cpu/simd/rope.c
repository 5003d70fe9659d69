/* Rotation of pairs of elements by angles whose cosines and sines are given; see rope.h. */
#include "backend/cpu/rope.h"
#include "backend/cpu/simd/rowio.h"

KM_INLINE void copy_rest(void *y, const void *x, int64_t dims, int64_t d, int slot) {
    size_t size = slot == KM_SLOT_F32 ? 4 : 2;
    if (d > dims) memcpy(row_at(y, dims, slot), row_at(x, dims, slot), (size_t)(d - dims) * size);
}

KM_INLINE void turn_halves(void *y, const void *x, const float *cos, const float *sin, int64_t i,
                           int64_t half, int64_t m, int slot) {
    vf a = row_load_n(x, i, m, slot), b = row_load_n(x, i + half, m, slot);
    vf c = row_load_n(cos, i, m, KM_SLOT_F32), s = row_load_n(sin, i, m, KM_SLOT_F32);
    row_store_n(y, i, v_fnma(b, s, a * c), m, slot);
    row_store_n(y, i + half, v_fma(a, s, b * c), m, slot);
}

KM_INLINE void halves(const km_rope_job *j, int slot) {
    int64_t half = j->dims / 2;
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->x, r * j->d, slot);
        void *y = row_at(j->y, r * j->d, slot);
        const float *cos = j->cos + r * half, *sin = j->sin + r * half;
        int64_t i = 0;
        for (; i + KM_VF <= half; i += KM_VF) turn_halves(y, x, cos, sin, i, half, KM_VF, slot);
        if (i < half) turn_halves(y, x, cos, sin, i, half, half - i, slot);
        copy_rest(y, x, j->dims, j->d, slot);
    }
}

KM_INLINE void turn_adjacent(void *y, const void *x, const float *cos, const float *sin, int64_t i,
                             int64_t m, int slot) {
    vf a = row_load_n(x, i, m, slot);
    vf c = row_load_n(cos, i, m, KM_SLOT_F32), s = row_load_n(sin, i, m, KM_SLOT_F32);
    row_store_n(y, i, v_fma(swap_pairs(a), s, a * c), m, slot);
}

KM_INLINE void adjacent(const km_rope_job *j, int slot) {
    for (int64_t r = 0; r < j->rows; r++) {
        const void *x = row_at(j->x, r * j->d, slot);
        void *y = row_at(j->y, r * j->d, slot);
        const float *cos = j->cos + r * j->dims, *sin = j->sin + r * j->dims;
        int64_t i = 0;
        for (; i + KM_VF <= j->dims; i += KM_VF) turn_adjacent(y, x, cos, sin, i, KM_VF, slot);
        if (i < j->dims) turn_adjacent(y, x, cos, sin, i, j->dims - i, slot);
        copy_rest(y, x, j->dims, j->d, slot);
    }
}

KM_PER_SLOT(halves, km_rope_job)
KM_PER_SLOT(adjacent, km_rope_job)

const km_rope_table KM_SIMD(km_simd_rope) = {
    .halves = KM_SLOT_TABLE(halves),
    .adjacent = KM_SLOT_TABLE(adjacent),
};

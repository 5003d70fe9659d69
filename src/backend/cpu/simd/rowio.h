/* Rows of f32, f16 or bf16 read and written as f32 vectors. `slot` (split.h) is a constant where
 * these are inlined, so that one source of a kernel becomes one loop per dtype:
 *
 *   KM_INLINE void scale(const job *j, int slot) {...}
 *   KM_PER_SLOT(scale, job)                     scale_f32, scale_f16, scale_bf16
 *   ... .scale = KM_SLOT_TABLE(scale)           the three of them, for a table */
#ifndef KM_BACKEND_CPU_SIMD_ROWIO_H
#define KM_BACKEND_CPU_SIMD_ROWIO_H
#include "backend/cpu/simd/simd.h"
#include "backend/cpu/split.h"

/* Elements i .. i + KM_VF - 1. */
KM_INLINE vf row_load(const void *p, int64_t i, int slot) {
    if (slot == KM_SLOT_F32) return v_load((const float *)p + i);
    if (slot == KM_SLOT_F16) return v_load_f16((const uint16_t *)p + i);
    return v_load_bf16((const uint16_t *)p + i);
}

KM_INLINE void row_store(void *p, int64_t i, vf v, int slot) {
    if (slot == KM_SLOT_F32)
        v_store((float *)p + i, v);
    else if (slot == KM_SLOT_F16)
        v_store_f16((uint16_t *)p + i, v);
    else
        v_store_bf16((uint16_t *)p + i, v);
}

/* Elements i .. i + m - 1, m <= KM_VF; the other lanes are zero. */
KM_INLINE vf row_load_n(const void *p, int64_t i, int64_t m, int slot) {
    if (m >= KM_VF) return row_load(p, i, slot);
    if (slot == KM_SLOT_F32) return v_load_n((const float *)p + i, m);
    if (slot == KM_SLOT_F16) return v_load_f16_n((const uint16_t *)p + i, m);
    return v_load_bf16_n((const uint16_t *)p + i, m);
}

KM_INLINE void row_store_n(void *p, int64_t i, vf v, int64_t m, int slot) {
    if (m >= KM_VF)
        row_store(p, i, v, slot);
    else if (slot == KM_SLOT_F32)
        v_store_n((float *)p + i, v, m);
    else if (slot == KM_SLOT_F16)
        v_store_f16_n((uint16_t *)p + i, v, m);
    else
        v_store_bf16_n((uint16_t *)p + i, v, m);
}

/* row_store past the caches. Row starts are whole vectors apart when row_can_stream says so. */
KM_INLINE void row_stream(void *p, int64_t i, vf v, int slot) {
    if (slot == KM_SLOT_F32)
        v_stream((float *)p + i, v);
    else if (slot == KM_SLOT_F16)
        vh_stream((uint16_t *)p + i, v_to_f16(v));
    else
        vh_stream((uint16_t *)p + i, v_to_bf16(v));
}

KM_INLINE bool row_can_stream(const void *p, int64_t n, int slot) {
    size_t width = slot == KM_SLOT_F32 ? sizeof(vf) : sizeof(vh);
    return (uintptr_t)p % width == 0 && n % KM_VF == 0;
}

/* Stores vector i of a row in the way asked for. */
KM_INLINE void row_put(void *p, int64_t i, vf v, bool stream, int slot) {
    if (stream)
        row_stream(p, i, v, slot);
    else
        row_store(p, i, v, slot);
}

/* One element, for the places where a row has a special one. */
KM_INLINE float row_get(const void *p, int64_t i, int slot) {
    if (slot == KM_SLOT_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return slot == KM_SLOT_F16 ? km_f16_to_f32(h) : km_bf16_to_f32(h);
}

KM_INLINE void row_set(void *p, int64_t i, float v, int slot) {
    if (slot == KM_SLOT_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = slot == KM_SLOT_F16 ? km_f32_to_f16(v) : km_f32_to_bf16(v);
}

/* p + i elements */
KM_INLINE void *row_at(const void *p, int64_t i, int slot) {
    return (char *)p + i * (slot == KM_SLOT_F32 ? 4 : 2);
}

/* Asks for the memory of two vectors to be brought to the second cache. */
KM_INLINE void row_prefetch2(const void *p, int64_t i, int slot) {
    __builtin_prefetch(row_at(p, i, slot), 0, 2);
    if (slot == KM_SLOT_F32 && KM_VF == 16) __builtin_prefetch(row_at(p, i + KM_VF, slot), 0, 2);
}

/* The row after row r, or r itself when it is the last. */
KM_INLINE const void *row_next(const void *p, int64_t r, int64_t rows, int64_t n, int slot) {
    return row_at(p, (r + 1 < rows ? r + 1 : r) * n, slot);
}

KM_INLINE int64_t row_min(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first m lanes. */
KM_INLINE vm row_first(int64_t m) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vi_lt(vi_load(lane), vi_set1((int32_t)m));
}

#define KM_PER_SLOT(name, type)                                                                    \
    static void name##_f32(const type *job) { name(job, KM_SLOT_F32); }                            \
    static void name##_f16(const type *job) { name(job, KM_SLOT_F16); }                            \
    static void name##_bf16(const type *job) { name(job, KM_SLOT_BF16); }
#define KM_SLOT_TABLE(name)                                                                        \
    { name##_f32, name##_f16, name##_bf16 }

#endif

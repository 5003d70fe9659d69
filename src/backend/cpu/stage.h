/* Bringing elements of any float dtype and stride into contiguous f32 and back, in blocks that
 * stay in the first-level cache: how one f32 loop per op serves every layout. */
#ifndef KM_BACKEND_CPU_STAGE_H
#define KM_BACKEND_CPU_STAGE_H
#include "tensor/dtype.h"

#define KM_STAGE 1024 /* elements of a block */

/* f32, f16 or bf16: what these functions take */
static inline bool km_stageable(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* n <= KM_STAGE elements from p on, `stride` apart, as contiguous f32: in buf, or p itself when
 * they are that already. */
const float *km_stage_in(km_dtype dtype, const void *p, int64_t stride, int64_t n,
                         float buf[KM_STAGE]);
/* Where a loop should put n values for km_stage_out: p itself, or buf. */
static inline float *km_stage_at(km_dtype dtype, void *p, int64_t stride, float buf[KM_STAGE]) {
    return dtype == KM_F32 && stride == 1 ? p : buf;
}
/* Stores n values, x being what km_stage_at gave. */
void km_stage_out(km_dtype dtype, void *p, int64_t stride, int64_t n, const float *x, bool stream);

#endif

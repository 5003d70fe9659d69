/* One thread's part of a product: a block of c, computed from start to end in that thread. */
#ifndef KM_BACKEND_CPU_GEMM_BLOCK_H
#define KM_BACKEND_CPU_GEMM_BLOCK_H
#include "backend/cpu/gemm.h"

#define KM_GEMM_MC 16 /* tiles of rows kept at hand */

/* How the packing GEMM cuts a block so that what it reuses stays in the caches. */
typedef struct km_gemm_cut {
    int64_t kc;                      /* of k at a time */
    int64_t mc;                      /* rows of a kept at hand */
    int64_t nc;                      /* columns of b packed at a time */
    bool b_lies;                     /* b is read where it lies, its last columns aside */
    int64_t mb;                      /* rows summed up in f32 before a 16-bit c is written */
    size_t b_at, a_at, c_at, floats; /* where in the scratch each lies; its whole size */
} km_gemm_cut;

/* For a block g, or several like it: `meets` rows of a, in all, meet the b that a thread packs. */
km_gemm_cut km_gemm_cut_for(const km_gemm *g, const km_gemm_kernels *kern, int64_t meets);
/* Whether all of b is packed at once: blocks of the same columns may then follow each other with
 * b_packed, in the same scratch. */
bool km_gemm_packs_once(const km_gemm *g, const km_gemm_cut *cut);
/* All of g's c (batches aside), with cut.floats floats of scratch. col_sums are left for each
 * cut.mc rows, sums_ld apart. */
void km_gemm_block(const km_gemm *g, const km_gemm_kernels *kern, const km_gemm_cut *cut,
                   int64_t sums_ld, bool b_packed, float *scratch);

/* For products of few rows or, turned around, of few columns: the other operand is read once. */
bool km_gemv_suits(const km_gemm *g);
bool km_gemv_turned(const km_gemm *g);
size_t km_gemv_floats(const km_gemm *g, bool turned);
void km_gemv_block(const km_gemm *g, const km_gemm_kernels *kern, bool turned, float *scratch);

#endif

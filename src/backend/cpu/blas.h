/* OpenBLAS, opened at run time. It serves as a fast single-threaded sgemm: the threads are ours.
 *
 * It picks its kernels by the CPU's model number, and takes those of 2004 ("Prescott") for one that
 * is newer than the library: a fifth of the speed, or less. So it is told the core type by the
 * features we see, unless OPENBLAS_CORETYPE says it already; and a library that still runs kernels
 * without AVX2 where the CPU has it does not serve, nor is anything measured against it.
 *
 * KERMES_BLAS=none leaves it closed; KERMES_BLAS=/path/to/library.so opens that one instead, and
 * then it serves every f32 product. */
#ifndef KM_BACKEND_CPU_BLAS_H
#define KM_BACKEND_CPU_BLAS_H
#include "base/cpu.h"
#include <stdbool.h>
#include <stdint.h>

bool km_blas_available(void);
/* "OpenBLAS 0.3.21 SkylakeX", or why there is none: "libopenblas.so.0: cannot open ...". */
const char *km_blas_name(void);

/* c (m, n) = alpha a b + beta c, all row-major; a is (m, k), or (k, m) when ta; b likewise. In this
 * thread alone. Only where km_blas_available, and for sizes up to INT_MAX. */
void km_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* What OPENBLAS_CORETYPE should be for a CPU: "SkylakeX", "Haswell"; NULL: its own choice. */
const char *km_blas_core_for(const km_cpu *cpu);
/* Whether a core type's kernels make use of the CPU: false for "Prescott" where there is AVX2, and
 * for "Haswell" where there is AVX-512. *lacks (may be NULL) then names what they leave unused. */
bool km_blas_core_suits(const char *core, const km_cpu *cpu, const char **lacks);

/* Whether KERMES_BLAS named this library. */
bool km_blas_wished(void);

/* For benchmarks: how many threads the library itself uses. It is 1 from the start. */
void km_blas_set_threads(int count);

#endif

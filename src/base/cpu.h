/* What this processor can do, read once. */
#ifndef KM_BASE_CPU_H
#define KM_BASE_CPU_H
#include <stdbool.h>
#include <stddef.h>

/* The kernel sets we build, best last; see src/backend/cpu/simd. */
typedef enum km_isa { KM_ISA_BASE, KM_ISA_AVX2, KM_ISA_AVX512, KM_ISA_COUNT } km_isa;

typedef struct km_cpu {
    char name[64];                /* "AMD EPYC 7763", or "unknown" */
    const char *arch;             /* "x86-64", "aarch64", ... */
    bool avx2, fma, f16c, avx512; /* avx512: F, BW, DQ and VL, all enabled by the OS */
    bool avx512_vnni, avx512_bf16, avx_vnni, neon;
    int cores;          /* usable by this process */
    size_t l1d, l2, l3; /* bytes, 0 where unknown */
} km_cpu;

const km_cpu *km_cpu_info(void);
/* The best kernel set this CPU runs, or a lower one asked for by KERMES_ISA=base|avx2|avx512. */
km_isa km_cpu_isa(void);
const char *km_isa_name(km_isa isa); /* "base", "avx2", "avx512" */

#endif

/* What this processor can do, read once. */
#ifndef KM_BASE_CPU_H
#define KM_BASE_CPU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kernel sets we build, best last; see src/backend/cpu/simd. */
typedef enum km_isa { KM_ISA_BASE, KM_ISA_AVX2, KM_ISA_AVX512, KM_ISA_AMX, KM_ISA_COUNT } km_isa;

typedef struct km_cpu {
    char name[64];                /* "AMD EPYC 7763", or "unknown" */
    const char *arch;             /* "x86-64", "aarch64", ... */
    bool avx2, fma, f16c, avx512; /* avx512: F, BW, DQ and VL, all enabled by the OS */
    bool avx512_vnni, avx512_bf16, avx_vnni, neon;
    bool amx;            /* tiles of bytes and of bf16, and the kernel lets us use them */
    const char *amx_why; /* why it is not used though the processor names it; else NULL */
    int cores;           /* usable by this process */
    size_t l1d, l2, l3;  /* bytes, 0 where unknown */
} km_cpu;

const km_cpu *km_cpu_info(void);
/* The best kernel set this CPU runs, or a lower one asked for by KERMES_ISA=base|avx2|avx512|amx. */
km_isa km_cpu_isa(void);
const char *km_isa_name(km_isa isa); /* "base", "avx2", "avx512", "amx" */

/* What features are read from, so that a test can be another processor: a leaf of CPUID as eax, ebx,
 * ecx, edx (false: there is none), what the system saves of registers (XCR0), and whether it lets
 * this process use tiles (Linux: a request by arch_prctl, once for all threads). */
typedef struct km_cpu_source {
    bool (*leaf)(uint32_t leaf, uint32_t sub, uint32_t reg[4]);
    uint64_t (*saved)(void);
    bool (*permit_tiles)(void);
} km_cpu_source;
void km_cpu_read_features(const km_cpu_source *from, km_cpu *out); /* x86; elsewhere nothing */
km_isa km_cpu_best_isa(const km_cpu *c);

#endif

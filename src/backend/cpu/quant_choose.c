/* Which kernels for weights in blocks this processor runs. Instructions for products of bytes came
 * apart from the wider sets, so these sets are finer than km_isa. */
#include "backend/cpu/quant_kernels.h"
#include "backend/cpu/cpu.h"
#include <pthread.h>
#include <stddef.h>
#include <stdatomic.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef struct kernel_set {
    const char *name;
    const km_quant_kernels *kernels;
    bool (*runs)(void);
} kernel_set;

#if !defined(__aarch64__) && !defined(KM_ISA_ONLY_BASE) && !defined(KM_WITHOUT_AMX)
static km_quant_kernels with_tiles; /* AVX-512's with VNNI, and tiles for many rows */
#endif
static pthread_once_t tiles_once = PTHREAD_ONCE_INIT;

static bool always(void) { return true; }

extern const km_quant_kernels km_quant_kernels_base;
#if defined(__aarch64__)
extern const km_quant_kernels km_quant_kernels_dotprod;
static bool has_dotprod(void) {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) >> 20 & 1) != 0;
#else
    return false;
#endif
}
static const kernel_set sets[] = {{"base", &km_quant_kernels_base, always},
                                  {"dotprod", &km_quant_kernels_dotprod, has_dotprod}};
#elif defined(KM_ISA_ONLY_BASE)
static const kernel_set sets[] = {{"base", &km_quant_kernels_base, always}};
#else
extern const km_quant_kernels km_quant_kernels_avx2, km_quant_kernels_avxvnni,
    km_quant_kernels_avx512, km_quant_kernels_avx512vnni;
static inline bool has_avx2(void) { return km_cpu_isa() >= KM_ISA_AVX2; }
static inline bool has_avxvnni(void) { return has_avx2() && km_cpu_info()->avx_vnni; }
static inline bool has_avx512(void) { return km_cpu_isa() >= KM_ISA_AVX512; }
static inline bool has_avx512vnni(void) { return has_avx512() && km_cpu_info()->avx512_vnni; }
static inline bool has_amx(void) { return km_cpu_isa() >= KM_ISA_AMX; }
static const kernel_set sets[] = {
    {"base", &km_quant_kernels_base, always},
#ifndef KM_WITHOUT_AVX2_QUANT
    {"avx2", &km_quant_kernels_avx2, has_avx2},
#endif
#ifndef KM_WITHOUT_AVXVNNI
    {"avxvnni", &km_quant_kernels_avxvnni, has_avxvnni},
#endif
#ifndef KM_WITHOUT_AVX512_QUANT
    {"avx512", &km_quant_kernels_avx512, has_avx512},
#endif
#ifndef KM_WITHOUT_AVX512VNNI
    {"avx512vnni", &km_quant_kernels_avx512vnni, has_avx512vnni},
#endif
#ifndef KM_WITHOUT_AMX
    {"amx", &with_tiles, has_amx},
#endif
};
#ifndef KM_WITHOUT_AMX
extern const km_quant_tiles km_quant_tiles_amx;
#define KM_TILES 1
#endif
#endif

static void join_tiles(void) {
#ifdef KM_TILES
    with_tiles = km_quant_kernels_avx512vnni;
    with_tiles.tiles = &km_quant_tiles_amx;
#endif
}

#define SETS ((int)(sizeof sets / sizeof *sets))

static _Atomic(const km_quant_kernels *) chosen;

const char *km_quant_kernels_name(int i) { return i >= 0 && i < SETS ? sets[i].name : NULL; }

const km_quant_kernels *km_quant_kernels_at(int i) {
    pthread_once(&tiles_once, join_tiles);
    return i >= 0 && i < SETS && sets[i].runs() ? sets[i].kernels : NULL;
}

const km_quant_kernels *km_quant_kernels_now(void) {
    const km_quant_kernels *k = atomic_load_explicit(&chosen, memory_order_acquire);
    for (int i = SETS - 1; !k; i--) k = km_quant_kernels_at(i);
    atomic_store_explicit(&chosen, k, memory_order_release);
    return k;
}

bool km_quant_choose(int i) {
    const km_quant_kernels *k = km_quant_kernels_at(i);
    if (k) atomic_store_explicit(&chosen, k, memory_order_release);
    return k != NULL;
}

/* What the processor can do: cpuid on x86 (a feature counts only when the operating system
 * saves its registers), the kernel's word elsewhere. Read once, at the first question. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cpu.h"
#include "base/log.h"
#include "kermes_isas.h"
#include "base/threads.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#define KM_X86 1
#include <cpuid.h>
#endif

static km_cpu cpu;
static km_isa isa;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- Names ---- */

static void cut(char *s, const char *what) {
    char *at = strstr(s, what);
    if (at) memmove(at, at + strlen(what), strlen(at + strlen(what)) + 1);
}

/* "Intel(R) Xeon(R) CPU @ 2.50GHz" -> "Intel Xeon"; "AMD EPYC 7763 64-Core Processor" ->
 * "AMD EPYC 7763". */
static void tidy_name(char *s) {
    for (int i = 0; i < 3; i++) {
        cut(s, "(R)");
        cut(s, "(TM)");
    }
    char *at = strstr(s, "@");
    if (at) *at = 0;
    cut(s, " CPU");
    at = strstr(s, "-Core Processor");
    if (at) {
        while (at > s && at[-1] != ' ') at--;
        *at = 0;
    }
    char *out = s;
    for (char *in = s; *in; in++)
        if (*in != ' ' || (out > s && out[-1] != ' ')) *out++ = *in;
    while (out > s && out[-1] == ' ') out--;
    *out = 0;
}

/* A small file's text; "" when it cannot be read. */
static void read_text(const char *path, char *text, size_t size) {
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, text, size - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
}

/* ---- Features ---- */

#ifdef KM_X86
static uint64_t xgetbv0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

static void read_brand(void) {
    uint32_t r[12];
    if ((uint32_t)__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) return;
    for (unsigned i = 0; i < 3; i++)
        __cpuid(0x80000002u + i, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
    memcpy(cpu.name, r, sizeof r);
    cpu.name[sizeof r] = 0;
    tidy_name(cpu.name);
}

/* ---- Tiles ---- */

#define TILES 18                /* their data's number among the states a system saves */
#define TILE_STATE (3ull << 17) /* their shapes and their data, in XCR0 */

/* Their data is 8 KiB a thread, so Linux saves it only for processes that ask. */
static bool ask_for_tiles(void) {
#if defined(__linux__) && defined(__x86_64__)
    const long request = 0x1023; /* ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, request, TILES) == 0;
#else
    return false;
#endif
}

/* Eight tiles of 16 rows of 64 bytes, products of bytes and of bf16: all that the kernels use. */
static void read_tiles(const km_cpu_source *from, km_cpu *c, uint32_t edx) {
    bool tiles = edx >> 24 & 1, bytes = edx >> 25 & 1, bf16 = edx >> 22 & 1;
    uint32_t r[4];
    if (!tiles) return;
    if (!bytes || !bf16)
        c->amx_why = "its products of bytes or of bf16 are missing";
    else if (!c->avx512_vnni || !c->avx512_bf16)
        c->amx_why = "AVX-512 beside it is missing";
    else if ((from->saved() & TILE_STATE) != TILE_STATE)
        c->amx_why = "the operating system does not save its tiles";
    else if (from->leaf(0x1d, 1, r) &&
             r[0] && /* hypervisors may leave it out: palette 1 is fixed */
             (r[1] >> 16 < 8 || (r[1] & 0xffff) < 64 || (r[2] & 0xffff) < 16))
        c->amx_why = "its tiles are not 8 of 16 rows of 64 bytes";
    else if (!from->permit_tiles())
        c->amx_why = "the operating system refuses this process its tiles";
    else
        c->amx = true;
}

void km_cpu_read_features(const km_cpu_source *from, km_cpu *c) {
    uint32_t r[4];
    if (!from->leaf(1, 0, r) || !(r[2] >> 27 & 1)) return; /* OSXSAVE */
    uint64_t saved = from->saved();
    bool ymm = (saved & 0x06) == 0x06; /* SSE and AVX state */
    bool zmm = (saved & 0xE6) == 0xE6; /* and masks, upper halves, upper sixteen */
    if (!ymm || !(r[2] >> 28 & 1)) return;
    c->fma = r[2] >> 12 & 1;
    c->f16c = r[2] >> 29 & 1;
    if (!from->leaf(7, 0, r)) return;
    c->avx2 = r[1] >> 5 & 1;
    c->avx512 = zmm && (r[1] >> 16 & 1) && (r[1] >> 17 & 1) && (r[1] >> 30 & 1) && (r[1] >> 31 & 1);
    c->avx512_vnni = c->avx512 && (r[2] >> 11 & 1);
    uint32_t tiles = r[3];
    if (r[0] < 1 || !from->leaf(7, 1, r)) return;
    c->avx_vnni = r[0] >> 4 & 1;
    c->avx512_bf16 = c->avx512 && (r[0] >> 5 & 1);
    read_tiles(from, c, tiles);
}

static bool leaf_here(uint32_t leaf, uint32_t sub, uint32_t r[4]) {
    return __get_cpuid_count(leaf, sub, &r[0], &r[1], &r[2], &r[3]) != 0;
}

static void read_features(void) {
    static const km_cpu_source here = {leaf_here, xgetbv0, ask_for_tiles};
    cpu.arch = sizeof(void *) == 8 ? "x86-64" : "x86";
    read_brand();
    km_cpu_read_features(&here, &cpu);
}
#else
void km_cpu_read_features(const km_cpu_source *from, km_cpu *c) { (void)from, (void)c; }

static void read_features(void) {
#if defined(__aarch64__)
    cpu.arch = "aarch64";
#ifdef __linux__
    cpu.neon = getauxval(AT_HWCAP) >> 1 & 1; /* ASIMD */
#else
    cpu.neon = true; /* part of every AArch64 application processor */
#endif
#elif defined(__arm__)
    cpu.arch = "arm";
#ifdef __linux__
    cpu.neon = getauxval(AT_HWCAP) >> 12 & 1;
#endif
#elif defined(__wasm__)
    cpu.arch = "wasm32";
#elif defined(__riscv)
    cpu.arch = "riscv";
#elif defined(__powerpc64__)
    cpu.arch = "ppc64";
#else
    cpu.arch = "unknown";
#endif
    char text[sizeof cpu.name];
    read_text("/proc/device-tree/model", text, sizeof text);
    text[strcspn(text, "\n")] = 0;
    strcpy(cpu.name, text);
    tidy_name(cpu.name);
}
#endif

/* ---- Caches ---- */

static void read_sys_caches(void) {
    for (int i = 0; i < 8; i++) {
        char path[80], level[8], type[16], size[24];
        const char *base = "/sys/devices/system/cpu/cpu0/cache/index";
        snprintf(path, sizeof path, "%s%d/level", base, i);
        read_text(path, level, sizeof level);
        snprintf(path, sizeof path, "%s%d/type", base, i);
        read_text(path, type, sizeof type);
        snprintf(path, sizeof path, "%s%d/size", base, i);
        read_text(path, size, sizeof size);
        char *unit;
        size_t bytes = strtoul(size, &unit, 10);
        if (*unit == 'K')
            bytes <<= 10;
        else if (*unit == 'M')
            bytes <<= 20;
        if (type[0] == 'I') continue;
        if (level[0] == '1') cpu.l1d = bytes;
        if (level[0] == '2') cpu.l2 = bytes;
        if (level[0] == '3') cpu.l3 = bytes;
    }
}

#ifdef _SC_LEVEL1_DCACHE_SIZE
static size_t conf_size(int name) {
    long n = sysconf(name);
    return n > 0 ? (size_t)n : 0;
}
#endif

static void read_caches(void) {
    read_sys_caches();
#ifdef _SC_LEVEL1_DCACHE_SIZE
    if (!cpu.l1d) cpu.l1d = conf_size(_SC_LEVEL1_DCACHE_SIZE);
    if (!cpu.l2) cpu.l2 = conf_size(_SC_LEVEL2_CACHE_SIZE);
    if (!cpu.l3) cpu.l3 = conf_size(_SC_LEVEL3_CACHE_SIZE);
#endif
}

int km_cpu_count(void) {
#ifdef __linux__
    cpu_set_t set[8]; /* room for 8192 processors */
    if (sched_getaffinity(0, sizeof set, set) == 0) {
        int n = CPU_COUNT_S(sizeof set, set);
        if (n > 0) return n;
    }
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* ---- The kernel set ---- */

km_isa km_cpu_best_isa(const km_cpu *c) {
    if (!c->avx2 || !c->fma || !c->f16c) return KM_ISA_BASE;
    return !c->avx512 ? KM_ISA_AVX2 : c->amx ? KM_ISA_AMX : KM_ISA_AVX512;
}

/* The best of the sets that this build has (KERMES_ISAS), up to what the processor runs. */
static km_isa built_isa(km_isa best) {
    static const bool built[KM_ISA_COUNT] = {
        true,
#ifndef KM_WITHOUT_AVX2
        [KM_ISA_AVX2] = true,
#endif
#ifndef KM_WITHOUT_AVX512
        [KM_ISA_AVX512] = true,
#endif
#ifndef KM_WITHOUT_AMX
        [KM_ISA_AMX] = true,
#endif
    };
    while (!built[best]) best--;
    return best;
}

static km_isa wished_isa(km_isa best) {
    const char *wish = getenv("KERMES_ISA");
    if (!wish || !*wish) return best;
    for (int i = 0; i < KM_ISA_COUNT; i++) {
        if (strcmp(wish, km_isa_name((km_isa)i)) != 0) continue;
        km_isa found = built_isa(i < (int)best ? (km_isa)i : best);
        if ((int)found != i)
            km_note(KM_LOG_WARN,
                    "KERMES_ISA=%s: not on this processor, or not in this build; using %s", wish,
                    km_isa_name(found));
        return found;
    }
    km_note(KM_LOG_WARN, "KERMES_ISA=%s: unknown (base, avx2, avx512 or amx); using %s", wish,
            km_isa_name(best));
    return best;
}

static void read_cpu(void) {
    read_features();
    if (!cpu.name[0]) strcpy(cpu.name, "unknown");
    cpu.cores = km_cpu_count();
    read_caches();
    isa = wished_isa(built_isa(km_cpu_best_isa(&cpu)));
}

const km_cpu *km_cpu_info(void) {
    pthread_once(&once, read_cpu);
    return &cpu;
}

km_isa km_cpu_isa(void) {
    pthread_once(&once, read_cpu);
    return isa;
}

const char *km_isa_name(km_isa set) {
    static const char *const names[KM_ISA_COUNT] = {"base", "avx2", "avx512", "amx"};
    return (unsigned)set < KM_ISA_COUNT ? names[set] : "unknown";
}

/* Finds and opens OpenBLAS once, at the first question, and names it. Its own threads stay idle:
 * two pools on the same cores would only take turns. */
#include "backend/cpu/blas.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* As in cblas.h; the enums are plain ints in the ABI. */
enum { CBLAS_ROW_MAJOR = 101, CBLAS_NO_TRANS = 111, CBLAS_TRANS = 112 };
typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
typedef void (*set_threads_fn)(int count);
typedef char *(*text_fn)(void);

static struct {
    void *library;
    sgemm_fn sgemm;
    set_threads_fn set_threads;
    bool wished, weak;
    char name[300];
} blas;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises this one. */
static bool find(const char *symbol, void *fn) {
    void *p = dlsym(blas.library, symbol);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

/* ---- Core types ---- */

const char *km_blas_core_for(const km_cpu *cpu) {
    if (cpu->avx512) return "SkylakeX";
    return cpu->avx2 && cpu->fma ? "Haswell" : NULL;
}

static bool among(const char *core, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(core, names[i]) == 0) return true;
    return false;
}

bool km_blas_core_suits(const char *core, const km_cpu *cpu, const char **lacks) {
    static const char *const before_avx2[] = {
        "Unknown",   "Katmai",     "Coppermine",   "Northwood",  "Prescott", "Banias",
        "Atom",      "Core2",      "Penryn",       "Dunnington", "Nehalem",  "Sandybridge",
        "Athlon",    "Opteron",    "Opteron_SSE3", "Barcelona",  "Nano",     "Bobcat",
        "Bulldozer", "Piledriver", "Steamroller",  "Generic"};
    static const char *const before_avx512[] = {"Haswell", "Zen", "Excavator"};
    const char *unused = NULL;
    if (cpu->avx2 && among(core, before_avx2, sizeof before_avx2 / sizeof *before_avx2))
        unused = "AVX2";
    else if (cpu->avx512 &&
             among(core, before_avx512, sizeof before_avx512 / sizeof *before_avx512))
        unused = "AVX-512";
    if (lacks) *lacks = unused;
    return !unused;
}

/* ---- Opening ---- */

static void *open_library(const char *wish) {
    static const char *const usual[] = {"libopenblas.so.0", "libopenblas.so"};
    if (wish) return dlopen(wish, RTLD_NOW | RTLD_LOCAL);
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." and "SkylakeX" -> "OpenBLAS 0.3.21 SkylakeX" */
static void read_name(bool wished) {
    text_fn config = NULL, core = NULL;
    int words = 0;
    size_t n = 0;
    if (find("openblas_get_config", &config)) {
        for (const char *s = config(); *s && n < 100; s++) {
            if (*s == ' ' && ++words == 2) break;
            blas.name[n++] = *s;
        }
    }
    if (n == 0) n = (size_t)snprintf(blas.name, sizeof blas.name, "BLAS");
    if (!find("openblas_get_corename", &core)) return;
    n += (size_t)snprintf(blas.name + n, 60, " %.50s", core());
    const char *lacks = NULL, *better = km_blas_core_for(km_cpu_info());
    if (km_blas_core_suits(core(), km_cpu_info(), &lacks)) return;
    /* Half the width is worth having; a fifth of the speed is not, but for whoever asks for it. */
    blas.weak = strcmp(lacks, "AVX2") == 0 && !wished;
    snprintf(blas.name + n, sizeof blas.name - n, ", which leaves this CPU's %s unused%s%s", lacks,
             better ? "; try OPENBLAS_CORETYPE=" : "", better ? better : "");
}

static void open_blas(void) {
    const char *wish = getenv("KERMES_BLAS");
    if (wish && !*wish) wish = NULL;
    if (wish && strcmp(wish, "none") == 0) {
        snprintf(blas.name, sizeof blas.name, "KERMES_BLAS=none");
        return;
    }
    /* Read once, as the library is loaded; children need not inherit it. */
    const char *core = getenv("OPENBLAS_CORETYPE") ? NULL : km_blas_core_for(km_cpu_info());
    if (core) setenv("OPENBLAS_CORETYPE", core, 1);
    blas.library = open_library(wish);
    if (core) unsetenv("OPENBLAS_CORETYPE");
    if (!blas.library) {
        const char *why = dlerror();
        snprintf(blas.name, sizeof blas.name, "%s", why ? why : "OpenBLAS was not found");
        return;
    }
    sgemm_fn sgemm = NULL;
    if (!find("cblas_sgemm", &sgemm) || !find("openblas_set_num_threads", &blas.set_threads)) {
        snprintf(blas.name, sizeof blas.name, "%.80s is not OpenBLAS",
                 wish ? wish : "libopenblas.so.0");
        dlclose(blas.library);
        blas.library = NULL;
        return;
    }
    blas.set_threads(1);
    read_name(wish != NULL);
    blas.wished = wish != NULL;
    if (!blas.weak) blas.sgemm = sgemm;
}

bool km_blas_available(void) {
    pthread_once(&once, open_blas);
    return blas.sgemm != NULL;
}

const char *km_blas_name(void) {
    pthread_once(&once, open_blas);
    return blas.name;
}

bool km_blas_wished(void) { return km_blas_available() && blas.wished; }

void km_blas_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                   int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    blas.sgemm(CBLAS_ROW_MAJOR, ta ? CBLAS_TRANS : CBLAS_NO_TRANS,
               tb ? CBLAS_TRANS : CBLAS_NO_TRANS, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
               (int)ldb, beta, c, (int)ldc);
}

void km_blas_set_threads(int count) {
    if (km_blas_available()) blas.set_threads(count < 1 ? 1 : count);
}

/* Finds and opens OpenBLAS once, at the first question, and names it. Its own threads stay idle:
 * two pools on the same cores would only take turns. */
#include "backend/cpu/blas.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    bool wished;
    char name[160];
} blas;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ISO C has no cast from an object pointer to a function pointer; POSIX promises this one. */
static bool find(const char *symbol, void *fn) {
    void *p = dlsym(blas.library, symbol);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

static void *open_library(const char *wish) {
    static const char *const usual[] = {"libopenblas.so.0", "libopenblas.so"};
    if (wish) return dlopen(wish, RTLD_NOW | RTLD_LOCAL);
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." and "SkylakeX" -> "OpenBLAS 0.3.21 SkylakeX" */
static void read_name(void) {
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
    if (find("openblas_get_corename", &core))
        snprintf(blas.name + n, sizeof blas.name - n, " %s", core());
}

static void open_blas(void) {
    const char *wish = getenv("KERMES_BLAS");
    if (wish && !*wish) wish = NULL;
    if (wish && strcmp(wish, "none") == 0) {
        snprintf(blas.name, sizeof blas.name, "KERMES_BLAS=none");
        return;
    }
    blas.library = open_library(wish);
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
    read_name();
    blas.wished = wish != NULL;
    blas.sgemm = sgemm;
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

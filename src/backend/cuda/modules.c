/* Which GPU kernels are in use: those embedded in this build, or else those of kermes-cuda.so, which
 * packages install apart. Kernels and the host side share structs, so a module of other sources is
 * refused: KERMES_CUDA_SOURCES is a checksum of all that both are compiled from. */
#include "backend/cuda/modules.h"
#include "base/module.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static km_cuda_kernels kernels;
static char note[400];

static void look(void) {
    char why[200] = "", path[KM_MODULE_PATH];
    kernels = (km_cuda_kernels){KERMES_CUDA_SOURCES, km_cuda_build_note(), km_cuda_module_count,
                                km_cuda_modules};
    if (kernels.count > 0) return;
    bool named = km_module_find(KM_CUDA_MODULE, "KERMES_CUDA_MODULE", path);
    void *handle = km_module_open(KM_CUDA_MODULE, "KERMES_CUDA_MODULE", RTLD_NOW | RTLD_LOCAL, why,
                                  sizeof why);
    const km_cuda_kernels *found = handle ? dlsym(handle, KM_CUDA_SYMBOL) : NULL;
    if (found && strcmp(found->sources, KERMES_CUDA_SOURCES) == 0) {
        snprintf(note, sizeof note, "%.80s, from %.300s", found->note, path);
        kernels = *found;
    } else {
        if (handle) {
            snprintf(why, sizeof why, "it belongs to another version of Kermes");
            dlclose(handle);
        }
        if (named)
            snprintf(note, sizeof note, "%.80s; %.100s: %.190s", km_cuda_build_note(), path, why);
        else
            snprintf(note, sizeof note, "%.80s, and no " KM_CUDA_MODULE " (package kermes-cuda)",
                     km_cuda_build_note());
    }
    kernels.note = note;
}

const km_cuda_kernels *km_cuda_kernels_get(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return &kernels;
}

int km_cuda_module_index(const char *name) {
    const km_cuda_kernels *k = km_cuda_kernels_get();
    int i = 0;
    while (i < k->count && strcmp(k->table[i].name, name) != 0) i++;
    return i < k->count ? i : -1;
}

bool km_cuda_has_module(const char *name) { return km_cuda_module_index(name) >= 0; }

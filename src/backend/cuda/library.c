/* Where NVIDIA's libraries may be. Distributions put them on the loader's path; the toolkit's own
 * installer does so only when its ld.so.conf entry is kept; Python wheels hide them in folders that
 * KERMES_CUDA_LIBS can name. */
#include "backend/cuda/library.h"
#include "backend/cuda/driver.h"
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *try_open(const char *folder, size_t length, const char *stem, int version, char *note,
                      size_t size) {
    char path[512];
    struct link_map *map = NULL;
    snprintf(path, sizeof path, "%.*s%s%s.%d", (int)length, folder, length ? "/" : "", stem,
             version);
    /* Left in memory once loaded: NVIDIA's libraries do not all clean up after themselves. */
    void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) return NULL;
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name && *map->l_name)
        snprintf(note, size, "%s", map->l_name);
    else
        snprintf(note, size, "%s", path);
    return handle;
}

void *km_cuda_library_open(const char *stem, const int *versions, char *note, size_t size) {
    static const char *const folders[] = {"",
                                          "/usr/local/cuda/lib64",
                                          "/usr/local/cuda/targets/x86_64-linux/lib",
                                          "/usr/local/cuda/targets/sbsa-linux/lib",
                                          "/opt/cuda/lib64",
                                          "/usr/lib/wsl/lib"};
    const char *mine = getenv("KERMES_CUDA_LIBS");
    void *handle;
    for (const int *v = versions; *v; v++) {
        for (const char *s = mine; s && *s;) {
            size_t length = strcspn(s, ":");
            if (length && (handle = try_open(s, length, stem, *v, note, size))) return handle;
            s += length;
            if (*s) s++;
        }
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
            handle = try_open(folders[i], strlen(folders[i]), stem, *v, note, size);
            if (handle) return handle;
        }
    }
    int at = snprintf(note, size, "%s.", stem);
    for (const int *v = versions; *v && at > 0 && (size_t)at < size; v++)
        at += snprintf(note + at, size - (size_t)at, v == versions ? "%d" : " or .%d", *v);
    if (at > 0 && (size_t)at < size)
        snprintf(note + at, size - (size_t)at,
                 " was not found by the loader, in /usr/local/cuda/lib64, or in KERMES_CUDA_LIBS");
    return NULL;
}

void km_cuda_library_versions(int versions[3]) {
    int newest = km_cuda_driver_version() / 1000;
    if (newest < 12) newest = 13; /* no driver: the answer is for people only */
    versions[0] = newest > 13 ? 13 : newest;
    versions[1] = versions[0] > 12 ? versions[0] - 1 : 0;
    versions[2] = 0;
}

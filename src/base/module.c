/* Finding and opening modules: see module.h. */
#include "base/module.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the folder of bin/kermes, of lib/libkermes.so or lib/<triplet>/libkermes.so, and of a build. */
static bool find_near(const char *place, const char *file, char path[KM_MODULE_PATH]) {
    static const char *const folders[] = {".", "../lib/kermes", "..", "kermes", "../kermes"};
    const char *slash = strrchr(place, '/');
    if (!slash) return false;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int n = snprintf(path, KM_MODULE_PATH, "%.*s/%s/%s", (int)(slash - place), place,
                         folders[i], file);
        if (n < KM_MODULE_PATH && access(path, R_OK) == 0) return true;
    }
    return false;
}

bool km_module_find(const char *file, const char *variable, char path[KM_MODULE_PATH]) {
    const char *asked = getenv(variable);
    char self[KM_MODULE_PATH];
    Dl_info info;
    if (asked) return snprintf(path, KM_MODULE_PATH, "%s", asked) < KM_MODULE_PATH;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    if (find_near(self, file, path)) return true;
    if (dladdr((void *)(uintptr_t)km_module_find, &info) && info.dli_fname &&
        find_near(info.dli_fname, file, path))
        return true;
    return find_near("/usr/bin/", file, path) || find_near("/usr/local/bin/", file, path);
}

void *km_module_open(const char *file, const char *variable, int flags, char *why, size_t room) {
    char path[KM_MODULE_PATH];
    if (room) why[0] = 0;
    if (!km_module_find(file, variable, path)) return NULL;
    void *handle = dlopen(path, flags);
    if (!handle) {
        const char *reason = dlerror();
        snprintf(why, room, "%s", reason ? reason : "it cannot be opened");
    }
    return handle;
}

/* What a browser does not have and the library asks for: other libraries to open at run time. Asking is
 * answered with "no", as on a machine where they are not installed; Emscripten's own answer would end the
 * program. */
#include <dlfcn.h>
#include <stddef.h>

void *dlopen(const char *file, int flags) {
    (void)file, (void)flags;
    return NULL;
}
void *dlsym(void *restrict handle, const char *restrict name) {
    (void)handle, (void)name;
    return NULL;
}
int dlclose(void *handle) {
    (void)handle;
    return -1;
}
int dladdr(const void *address, Dl_info *info) {
    (void)address, (void)info;
    return 0;
}
int dlinfo(void *handle, int request, void *info) {
    (void)handle, (void)request, (void)info;
    return -1;
}

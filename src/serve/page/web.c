/* /web/: the page that runs Kermes inside the browser, from the folder that `make wasm` made. Its headers
 * isolate the page, which is what browsers ask of pages that want threads and shared memory. */
#include "base/file.h"
#include "serve/api/api.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Files of that folder are known by their ends; everything else in it is nobody's matter. */
static const char *type_of(const char *name) {
    static const char *const types[][2] = {
        {".html", "text/html; charset=utf-8"}, {".js", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},   {".ts", "text/plain; charset=utf-8"},
        {".wasm", "application/wasm"},         {".gguf", "application/octet-stream"}};
    const char *end = strrchr(name, '.');
    for (size_t i = 0; end && i < sizeof types / sizeof *types; i++)
        if (strcmp(end, types[i][0]) == 0) return types[i][1];
    return NULL;
}

/* Beside the command as it is installed, or as it was built. */
static bool folder_of(const km_serve *s, char *path, size_t room) {
    static const char *const places[] = {"../share/kermes/web", "../wasm/web"};
    char self[1024];
    if (s->o.web) return (size_t)snprintf(path, room, "%s", s->o.web) < room;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < sizeof places / sizeof *places; i++) {
        int used =
            snprintf(path, room, "%.*s/%s/kermes-wasm.wasm", (int)(slash - self), self, places[i]);
        if ((size_t)used >= room || access(path, R_OK) != 0) continue;
        path[used - (int)strlen("/kermes-wasm.wasm")] = 0;
        return true;
    }
    return false;
}

void km_endpoint_web(km_serve *s, km_exchange *x, const char *name) {
    char path[2048];
    km_map file;
    km_error err = {0};
    if (!name) name = "index.html";
    const char *type = type_of(name);
    bool plain = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == strlen(name);
    size_t used =
        !s->o.no_page && type && plain && folder_of(s, path, sizeof path - 100) ? strlen(path) : 0;
    if (used) snprintf(path + used, sizeof path - used, "/%.90s", name);
    if (!used || km_map_open(&file, path, &err) != KM_OK) {
        km_send_error(x, NULL, 404, NULL,
                      used ? "there is nothing at this path"
                           : "this server has no page that runs in the browser: see docs/web.md");
        return;
    }
    km_exchange_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    km_exchange_header(x, "Cross-Origin-Embedder-Policy", "require-corp");
    km_exchange_header(x, "X-Content-Type-Options", "nosniff");
    km_exchange_header(x, "Cache-Control", "no-cache");
    km_exchange_send(x, 200, type, file.data ? (const char *)file.data : "", file.size);
    km_map_close(&file);
}

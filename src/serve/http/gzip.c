/* Compressed answers (gzip, by zlib where the build has it). A stream's state is kept small, since there
 * may be thousands, and every piece is flushed, so that a token arrives when it is made. */
#include "serve/http/internal.h"
#include "base/alloc.h"
#include <string.h>
#include <strings.h>

/* Does the client take gzip? As in "gzip, deflate;q=0.5", "*", "gzip;q=0". */
bool km_gzip_accepted(const char *accepts) {
    bool any = false;
    for (const char *at = accepts; at && *at; at += strcspn(at, ","), at += *at == ',') {
        at += strspn(at, " \t");
        size_t n = strcspn(at, ",; \t"), all = strcspn(at, ",");
        const char *q = memmem(at, all, "q=", 2);
        bool yes = !q || strtod(q + 2, NULL) > 0;
        if ((n == 4 && strncasecmp(at, "gzip", 4) == 0) ||
            (n == 6 && strncasecmp(at, "x-gzip", 6) == 0))
            return yes;
        if (n == 1 && *at == '*') any = yes;
    }
    return any;
}

#ifdef KERMES_GZIP
#include <zlib.h>

struct km_gzip {
    z_stream z;
    unsigned char *out;
    size_t cap;
};

bool km_gzip_able(void) { return true; }

km_gzip *km_gzip_new(bool stream) {
    km_gzip *g = km_calloc(1, sizeof *g);
    if (!g) return NULL;
    /* 24 KiB for a stream, 256 KiB for the moment that a whole answer takes. */
    if (deflateInit2(&g->z, stream ? 1 : 5, Z_DEFLATED, 16 + (stream ? 12 : 15), stream ? 4 : 8,
                     Z_DEFAULT_STRATEGY) == Z_OK)
        return g;
    km_free(g);
    return NULL;
}

void km_gzip_free(km_gzip *g) {
    if (!g) return;
    deflateEnd(&g->z);
    km_free(g->out);
    km_free(g);
}

const char *km_gzip_put(km_gzip *g, const char *data, size_t bytes, bool end, size_t *n) {
    *n = 0;
    g->z.next_in = (unsigned char *)(uintptr_t)data;
    g->z.avail_in = (uInt)bytes;
    for (;;) {
        if (g->cap - *n < 64) {
            size_t cap = g->cap ? 2 * g->cap : bytes / 2 + 256;
            unsigned char *more = km_realloc(g->out, cap);
            if (!more) return NULL;
            g->out = more;
            g->cap = cap;
        }
        g->z.next_out = g->out + *n;
        g->z.avail_out = (uInt)(g->cap - *n);
        int r = deflate(&g->z, end ? Z_FINISH : Z_SYNC_FLUSH);
        *n = g->cap - g->z.avail_out;
        if (r != Z_OK && r != Z_STREAM_END && r != Z_BUF_ERROR) return NULL;
        if (end ? r == Z_STREAM_END : g->z.avail_out > 0) return (const char *)g->out;
    }
}

#else

bool km_gzip_able(void) { return false; }
km_gzip *km_gzip_new(bool stream) {
    (void)stream;
    return NULL;
}
void km_gzip_free(km_gzip *g) { (void)g; }
const char *km_gzip_put(km_gzip *g, const char *data, size_t bytes, bool end, size_t *n) {
    (void)g;
    (void)end;
    *n = bytes;
    return data;
}

#endif

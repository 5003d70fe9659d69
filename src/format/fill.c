/* Tensors into files, from memory or piece by piece. */
#include "format/fill.h"
#include "base/alloc.h"
#include "base/guard.h"
#include "base/shown.h"

km_status km_fill_buffer_open(km_fill_buffer *p, size_t most, const char *path, km_error *err) {
    p->size = most < KM_FILL_PIECE ? most : KM_FILL_PIECE;
    p->data = p->size ? km_alloc_aligned(p->size) : NULL;
    if (p->data || !p->size) return KM_OK;
    p->size = 0;
    return km_error_set(err, KM_ERR_MEMORY, "cannot write '%s': out of memory", path);
}

void km_fill_buffer_close(km_fill_buffer *p) {
    if (p->data) km_free_aligned(p->data, p->size);
    *p = (km_fill_buffer){0};
}

km_status km_put_source(km_writer *w, const km_source *s, km_fill_buffer *piece, km_error *err) {
    char text[KM_SHOWN];
    if (s->data || s->bytes == 0) {
        km_status status = km_writer_put(w, s->data, s->bytes);
        return status == KM_OK ? km_guard_check_at(s->data, err)
                               : status; /* may be a mapped file */
    }
    size_t most = piece->size - piece->size % s->unit;
    for (size_t at = 0; at < s->bytes;) {
        size_t n = s->bytes - at < most ? s->bytes - at : most;
        km_status status = s->fill(s->user, at, piece->data, n, err);
        if (status != KM_OK)
            return km_error_set(err, status, "tensor '%s' cannot be read: %s",
                                km_shown(text, s->name), km_status_text(status));
        status = km_writer_put(w, piece->data, n);
        if (status != KM_OK) return status;
        at += n;
    }
    return KM_OK;
}

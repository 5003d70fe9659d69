/* An HTML page about an index: what it reaches, recall against size for both kinds of codes on the
 * same vectors, and recall against speed as more cells are looked at. */
#ifndef KM_VECTOR_REPORT_H
#define KM_VECTOR_REPORT_H
#include "vector/measure.h"

typedef struct km_report_options {
    const char *path;   /* the page to write */
    const char *beside; /* results of bench/peers/vectors.py, whose other engines on data of the
                           base's name are shown too; NULL: none */
    bool (*tell)(void *user, int done, int all); /* as sizes are done; false stops. May be NULL */
    void *user;
} km_report_options;

/* `m` is what km_index_measure said of x. */
km_status km_index_report(km_ctx *ctx, km_index *x, km_input *base, const float *queries, int64_t n,
                          const km_measured *m, const km_report_options *o, km_error *err);

#endif

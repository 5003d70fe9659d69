/* An HTML page about an index: what it reaches, recall against size for both kinds of codes on the
 * same vectors, and recall against speed as more cells are looked at. */
#ifndef KM_VECTOR_REPORT_H
#define KM_VECTOR_REPORT_H
#include "vector/measure.h"

/* `m` is what km_index_measure said of x. tell (may be NULL) is called as sizes are done; false stops. */
typedef bool (*km_report_tell)(void *user, int done, int all);
km_status km_index_report(km_ctx *ctx, km_index *x, km_input *base, const float *queries, int64_t n,
                          const km_measured *m, const char *path, km_report_tell tell, void *user,
                          km_error *err);

#endif

/* An HTML page about an index: what it reaches, recall against size for both kinds of codes on the
 * same vectors, and recall against speed as more cells are looked at. */
#ifndef KM_VECTOR_REPORT_H
#define KM_VECTOR_REPORT_H
#include "vector/measure.h"

/* `m` is what km_measure_index said of x. */
km_status km_write_report(km_ctx *ctx, km_index *x, km_input *base, const float *queries, int64_t n,
                          const km_measured *m, const km_report_options *o, km_error *err);

#endif

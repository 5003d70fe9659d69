/* Converting elements between any two dtypes, by the rules of op_list.h: one rounding to a float;
 * truncation and saturation from a float to an integer, NaN to 0; wrapping between integers; x != 0
 * for a bool. */
#ifndef KM_BACKEND_CPU_CAST_H
#define KM_BACKEND_CPU_CAST_H
#include "tensor/dtype.h"

/* n elements of dtype `from`, `sx` apart, to dtype `to`, `so` apart. Same dtypes move bit for bit. */
void km_cast_run(km_dtype to, void *out, int64_t so, km_dtype from, const void *x, int64_t sx,
                 int64_t n);
/* n doubles, contiguous, to dtype `to`, `so` apart. */
void km_cast_doubles(km_dtype to, void *out, int64_t so, const double *x, int64_t n);
/* v as an integer dtype (or bool) holds it. */
int64_t km_cast_to_int(km_dtype d, double v);

#endif

/* Every op of the table on a device, against the reference, at the tolerances of the table. */
#ifndef KM_OPS_VERIFY_H
#define KM_OPS_VERIFY_H
#include "ops/op.h"

/* One op with one dtype, over all its cases. */
typedef struct km_verify_result {
    const char *op;
    char detail[96]; /* the op's formula */
    const char *dtype;
    int cases, failed;
    double max_error, mean_error; /* of all elements; relative, as km_tolerance means it */
    double tolerance;             /* the loosest that applied */
    bool passed;
    bool fallback;   /* at least one case ran elsewhere for want of a kernel */
    bool reference;  /* the op's row says that the reference serves on this device */
    char worst[160]; /* the case with the largest error, and why it failed */
} km_verify_result;

typedef void (*km_verify_fn)(void *user, const km_verify_result *r, int index, int total);

typedef struct km_verify_how {
    const char *op;  /* this one alone; NULL: all */
    uint64_t seed;   /* of the random inputs */
    bool quick;      /* small cases and some of the larger ones: every op and dtype still */
    int one_in;      /* of the larger ones, this part; 0: a fourth if quick, else all */
    int64_t most;    /* elements of a case, unless it is marked; 0: 400,000 if quick, else any */
    uint32_t dtypes; /* only these, as bits; 0: all */
} km_verify_how;

/* A failed comparison is a result, not an error; errors are an unknown op, a missing device, or a
 * device that breaks. */
km_status km_verify(const char *device, const km_verify_how *how, km_verify_fn fn, void *user,
                    km_error *err);

/* The error allowed: relative to the element for elementwise ops; for sums of `length` terms,
 * relative to the largest result or input. */
double km_tolerance(km_tol tol, km_dtype dtype, int64_t length);

#endif

/* Losses: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_LOSS_H
#define KM_BACKEND_CPU_LOSS_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

/* Cross entropy of some rows. A row whose target is `ignore` has a zero loss and gradient. */
typedef struct km_cross_entropy_job {
    const void *logits;  /* (rows, v) */
    void *dlogits;       /* (rows, v): (softmax - [target]) * scale; may be NULL forward */
    const void *targets; /* (rows), i64 when wide, else i32 */
    bool wide;
    int64_t rows, v, ignore;
    double scale;
    float *lse;     /* (rows): written forward, read by the gradient */
    double *losses; /* (rows): written forward */
    float *buffer;  /* v floats; needed forward with dlogits */
    bool stream;    /* write dlogits past the caches */
} km_cross_entropy_job;

/* x and target have n elements. */
typedef struct km_pair_job {
    const void *x, *target;
    void *dx; /* gradients: the derivative * scale */
    int64_t n;
    double *sum; /* losses: receives their sum */
    double scale;
    bool stream;
} km_pair_job;

typedef void (*km_pair_fn)(const km_pair_job *job);

typedef struct km_loss {
    void (*cross_entropy[KM_SLOTS])(const km_cross_entropy_job *job);
    void (*cross_entropy_grad[KM_SLOTS])(const km_cross_entropy_job *job);
    km_pair_fn mse[KM_SLOTS], bce[KM_SLOTS];           /* (x - t)^2; with logits x */
    km_pair_fn mse_grad[KM_SLOTS], bce_grad[KM_SLOTS]; /* 2 (x - t); sigmoid(x) - t */
} km_loss;

KM_SIMD_TABLE(km_loss, km_simd_loss)

#endif

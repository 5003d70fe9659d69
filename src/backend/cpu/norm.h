/* Layer norm and RMS norm over contiguous rows: the loops that simd/ offers. Weights are f32 here,
 * whatever the tensor's dtype; norm.c converts them once per call. */
#ifndef KM_BACKEND_CPU_NORM_H
#define KM_BACKEND_CPU_NORM_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

typedef struct km_norm_job {
    void *y;              /* (rows, n) */
    void *sum;            /* (rows, n): receives x + residual, which is then what is normed; */
    const void *residual; /* both NULL for the plain norms */
    const void *x;        /* (rows, n) */
    const float *w, *b;   /* (n); b may be NULL */
    float *mean, *rstd;   /* (rows); may be NULL */
    int64_t rows, n;
    double eps;
    bool stream; /* write y past the caches */
} km_norm_job;

typedef struct km_norm_grad_job {
    void *dx;                 /* (rows, n) */
    const void *dy, *x;       /* (rows, n) */
    const void *dsum;         /* (rows, n), added to dx; may be NULL */
    const float *w;           /* (n) */
    const float *mean, *rstd; /* (rows); mean is NULL for RMS norm */
    float *dw, *db;           /* (n): the sums over these rows are added; db NULL for RMS norm */
    int64_t rows, n;
} km_norm_grad_job;

typedef struct km_norm {
    void (*layer_norm[KM_SLOTS])(const km_norm_job *job);
    void (*rms_norm[KM_SLOTS])(const km_norm_job *job);
    void (*layer_norm_grad[KM_SLOTS])(const km_norm_grad_job *job);
    void (*rms_norm_grad[KM_SLOTS])(const km_norm_grad_job *job);
} km_norm;

KM_SIMD_TABLE(km_norm, km_simd_norm)

#endif

/* Optimiser steps: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_OPTIM_H
#define KM_BACKEND_CPU_OPTIM_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

/* Elements [begin, end) of one parameter and its state; outputs may be the inputs. */
typedef struct km_optim_job {
    const void *p, *g;      /* of the slot's dtype; g may be f32 */
    const float *m, *v, *w; /* m may be NULL for sgd; w, when there, is the weight that p rounds */
    void *p_out;
    float *m_out, *v_out, *w_out;
    int64_t begin, end;
    float lr, momentum, decay, beta1, beta2, eps, scale1, scale2; /* scales: 1 / (1 - beta^t) */
    float multiplier;                                             /* of the gradient */
    bool nesterov, decoupled;
} km_optim_job;

/* The sum of squares of elements [begin, end). */
typedef struct km_sumsq_job {
    const void *x;
    int64_t begin, end;
    float *sum;
} km_sumsq_job;

typedef void (*km_optim_fn)(const km_optim_job *job);

typedef struct km_optim_table { /* by p's slot; [1]: g is f32 */
    km_optim_fn sgd[2][KM_SLOTS];
    km_optim_fn adamw[2][KM_SLOTS];
    void (*sumsq[KM_SLOTS])(const km_sumsq_job *job);
} km_optim_table;

KM_SIMD_TABLE(km_optim_table, km_simd_optim)

#endif

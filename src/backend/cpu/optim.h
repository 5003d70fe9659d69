/* Optimiser steps: the loops that simd/ offers. */
#ifndef KM_BACKEND_CPU_OPTIM_H
#define KM_BACKEND_CPU_OPTIM_H
#include "backend/cpu/cpu.h"
#include "backend/cpu/split.h"

/* Elements [begin, end) of one parameter and its state; outputs may be the inputs. */
typedef struct km_optim_job {
    const void *p, *g;      /* of the slot's dtype */
    const float *m, *v;     /* m may be NULL for sgd */
    void *p_out;
    float *m_out, *v_out;
    int64_t begin, end;
    float lr, momentum, decay, beta1, beta2, eps, scale1, scale2; /* scales: 1 / (1 - beta^t) */
    bool nesterov, decoupled;
} km_optim_job;

typedef struct km_optim_table {
    void (*sgd[KM_SLOTS])(const km_optim_job *job);
    void (*adamw[KM_SLOTS])(const km_optim_job *job);
} km_optim_table;

KM_SIMD_TABLE(km_optim_table, km_simd_optim)

#endif

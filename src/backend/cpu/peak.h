/* Loops that do nothing but reach a limit of the processor, so that `kermes bench` can say how
 * far from it a kernel is. One core each; run them on all threads for the machine's. */
#ifndef KM_BACKEND_CPU_PEAK_H
#define KM_BACKEND_CPU_PEAK_H
#include "backend/cpu/cpu.h"

typedef struct km_peak_loops {
    /* Multiplies and adds f32 in registers, `rounds` times; returns a value to be ignored. */
    float (*fma)(int64_t rounds);
    int flops_per_round;
    /* Reads n floats; returns their sum, more or less. */
    float (*read)(const float *x, int64_t n);
} km_peak_loops;

KM_SIMD_TABLE(km_peak_loops, km_peak)

/* Floating-point operations a second that the pool's threads, or as many of them as there are
 * cores, do at most when all multiply and add; measured within 50 ms. */
double km_cpu_peak(km_threads *pool);

#endif

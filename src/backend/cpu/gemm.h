/* Matrix products on the CPU: c = act(alpha a b + beta c + bias), in one of four ways. Products
 * with few rows or columns read their weights once (gemv); bf16 goes by tiles where there are some
 * (gemm_tiles.h); f32 goes to OpenBLAS where that is here and better; the rest, 16-bit operands
 * among it, to the packing GEMM below. The threads share out
 * blocks of c, each of whose elements is one sum over k: with our own kernels the bits do not even
 * depend on the number of threads. */
#ifndef KM_BACKEND_CPU_GEMM_H
#define KM_BACKEND_CPU_GEMM_H
#include "backend/cpu/gemm_kernels.h"
#include "tensor/tensor.h"

/* A matrix of f32, f16 or bf16; strides in elements. One of the two is 1 and the other at least the
 * length of what it steps over; a stride along an axis of one element may hold anything. */
typedef struct km_mat {
    const void *data;
    km_dtype dtype;
    int64_t row, col;
} km_mat;

#define KM_GEMM_BATCH 3

typedef struct km_gemm {
    int64_t m, n, k;
    km_mat a, b;   /* (m, k), (k, n) */
    void *c, *pre; /* (m, n), rows ldc apart; pre, before act, may be NULL */
    int64_t ldc;
    float alpha;
    km_finish end;  /* beta, bias (n), act, and c's dtype */
    int batch_dims; /* the same product at each place of a grid */
    int64_t batch[KM_GEMM_BATCH];
    int64_t a_step[KM_GEMM_BATCH], b_step[KM_GEMM_BATCH], c_step[KM_GEMM_BATCH];

    /* What gradients want along with a product, where km_gemm_sums says so; NULL: nothing. */
    const float *slope; /* like c: c = (a b) act'(slope) instead */
    float *col_sums;    /* (n) of c's columns; only with a slope */
    float *row_sums;    /* (m) of a's rows */
} km_gemm;

/* Whether g's slope and sums are computed: by the packing GEMM in f32 with one product, the rows'
 * only where a lies by columns. */
bool km_gemm_sums(const km_gemm *g);

/* KM_OK, or KM_ERR_MEMORY set on the context. Any size may be zero; k = 0 counts as a b = 0. */
km_status km_gemm_run(km_ctx *ctx, const km_gemm *g);

/* The kernel set in use, and whether OpenBLAS may serve f32: by default the processor's best, and
 * what suits it. km_gemm_choose is for tests and benchmarks, between calls; false where this
 * processor or build does not have it. */
typedef enum km_gemm_blas {
    KM_GEMM_BLAS_AUTO,
    KM_GEMM_BLAS_NEVER,
    KM_GEMM_BLAS_ALWAYS
} km_gemm_blas;
bool km_gemm_choose(km_isa isa, km_gemm_blas blas);
km_isa km_gemm_isa(void);

/* Who serves products of f32 and of bf16: "own kernels (avx512); bf16: tiles (AMX)". A fixed table over
 * the instruction set and the size, never timings, so a machine gives the same bits each time. */
const char *km_gemm_served(void);

#endif

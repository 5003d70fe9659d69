/* The fast CPU backend: shapes, threads and dtypes are handled here, in files compiled once; the
 * inner loops are in simd/, compiled once per instruction set and chosen when first used. Each
 * family of ops adds its kernels to the table by a function below. */
#ifndef KM_BACKEND_CPU_CPU_H
#define KM_BACKEND_CPU_CPU_H
#include "backend/backend.h"
#include "base/cpu.h"
#include "kermes_isas.h" /* made by cmake/simd.cmake: KM_WITHOUT_AVX2 and the like */

const km_backend *km_cpu_backend(void);

/* Each fills k[KM_OP_...] for its ops; k has KM_OP_COUNT entries. */
void km_cpu_register_fill(km_kernel *k); /* full, arange, uniform, normal, dropout */
void km_cpu_register_copy(km_kernel *k); /* copy, cast */
void km_cpu_register_elementwise(
    km_kernel *k);                         /* binary, comparisons, unary and gradients, where */
void km_cpu_register_reduce(km_kernel *k); /* sum, mean, max, var, logsumexp, sumsq, argmax */
void km_cpu_register_matmul(km_kernel *k); /* matmul, linear */
void km_cpu_register_attention(km_kernel *k);
void km_cpu_register_rows(km_kernel *k);  /* softmax, log_softmax and gradients */
void km_cpu_register_norm(km_kernel *k);  /* layer_norm, rms_norm, fused and gradients */
void km_cpu_register_index(km_kernel *k); /* embedding, gather, scatter_add, ..., concat */
void km_cpu_register_order(km_kernel *k); /* sort, cumsum, one_hot */
void km_cpu_register_loss(km_kernel *k);  /* cross_entropy, mse, bce and gradients */
void km_cpu_register_rope(km_kernel *k);
void km_cpu_register_quant(km_kernel *k);    /* layers over weights of a few bits */
void km_cpu_register_low_rank(km_kernel *k); /* adapters of a running model */
void km_cpu_register_attend(km_kernel *k);   /* attention of a running model */
void km_cpu_register_sample(km_kernel *k);   /* choosing its next token */
void km_cpu_register_nearest(km_kernel *k);  /* nearest, cell_sums */
void km_cpu_register_optim(km_kernel *k);    /* sgd, adamw, and the norm before them */

/* The table of an instruction set, or the next lower one's where a build for one machine leaves it out
 * (KERMES_ISAS). */
#ifdef KM_WITHOUT_AVX2
#define KM_OF_AVX2(name) name##_base
#else
#define KM_OF_AVX2(name) name##_avx2
#endif
#ifdef KM_WITHOUT_AVX512
#define KM_OF_AVX512(name) KM_OF_AVX2(name)
#else
#define KM_OF_AVX512(name) name##_avx512
#endif

/* Declares a table of inner loops that simd/ defines as `const type KM_SIMD(name) = {...}`, and
 * name(), which gives the one for this processor. Only products know tiles (AMX): where a table is
 * not theirs, AVX-512 serves. */
#ifdef KM_ISA_ONLY_BASE
#define KM_SIMD_TABLE(type, name)                                                                  \
    extern const type name##_base;                                                                 \
    static inline const type *name(void) { return &name##_base; }
#else
#define KM_SIMD_TABLE(type, name)                                                                  \
    extern const type name##_base, KM_OF_AVX2(name), KM_OF_AVX512(name);                           \
    static inline const type *name(void) {                                                         \
        static const type *const tables[KM_ISA_COUNT] = {                                          \
            &name##_base, &KM_OF_AVX2(name), &KM_OF_AVX512(name), &KM_OF_AVX512(name)};            \
        return tables[km_cpu_isa()];                                                               \
    }
#endif

#endif

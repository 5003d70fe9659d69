/* The GPU kernels: one fatbin for each source in kernels/. The build (cmake/cuda.cmake) embeds a table
 * of them in the library, or makes a module of it that is opened at run time, or has none (no nvcc). */
#ifndef KM_BACKEND_CUDA_MODULES_H
#define KM_BACKEND_CUDA_MODULES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct km_cuda_module {
    const char *name; /* the source's name without .cu: "elementwise" */
    const void *data; /* the fatbin, 64-byte aligned */
    size_t size;      /* its length in bytes */
} km_cuda_module;

/* ---- What the build embedded ---- */

extern const km_cuda_module km_cuda_modules[];
extern const int km_cuda_module_count;

/* The architectures in the table, "sm_80 sm_90a ptx80", or why it is empty, "built without
 * nvcc: no GPU kernels". */
const char *km_cuda_build_note(void);

/* ---- What is in use ---- */

#define KM_CUDA_MODULE "kermes-cuda.so"
#define KM_CUDA_SYMBOL "km_cuda_module_kernels" /* a km_cuda_kernels in the module */

typedef struct km_cuda_kernels {
    const char *sources; /* checksum of the sources they belong to */
    const char *note;    /* for which architectures, and from where; or why there are none */
    int count;           /* 0: no kernels */
    const km_cuda_module *table;
} km_cuda_kernels;

/* The embedded ones, or else those of the module; looked for once. Never NULL. */
const km_cuda_kernels *km_cuda_kernels_get(void);

/* The place of a source in that table; -1 where it is not: some are built for one chip only. */
int km_cuda_module_index(const char *name);
bool km_cuda_has_module(const char *name);

#endif

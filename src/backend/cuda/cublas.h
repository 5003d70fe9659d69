/* Matrix products by cuBLASLt, opened at run time where it is installed. */
#ifndef KM_BACKEND_CUDA_CUBLAS_H
#define KM_BACKEND_CUDA_CUBLAS_H
#include "backend/cuda/cublas_api.h"
#include "backend/cuda/gemm.h"

/* Computes g with its bias, activation and pre in one kernel. KM_ERR_UNSUPPORTED with nothing done
 * where there is no cuBLASLt or it has no kernel for that. */
km_status km_cublas_gemm(km_lane *lane, const km_cuda_gemm *g);

/* Gives back what is held for a device. No lane on it may be at work. For km_cuda_shutdown. */
void km_cublas_close(int device);

/* For tests: take the library's functions from here in place of a file; NULL goes back. */
void km_cublas_use_symbols(void *(*lookup)(const char *symbol));

#endif

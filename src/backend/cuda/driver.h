/* The CUDA driver, opened at run time. Where there is none, km_cuda_driver says so and nothing
 * else here is called. Every call that can fail goes through KM_CU, which is where a test can make
 * one fail. */
#ifndef KM_BACKEND_CUDA_DRIVER_H
#define KM_BACKEND_CUDA_DRIVER_H
#include "backend/cuda/cuda_api.h"
#include "base/error.h"

#define KM_CUDA_OLDEST_DRIVER 12000 /* CUDA 12.0: what the driver must offer at least */

/* The driver's functions, ready to use; NULL with *err set. Opened on first success and kept for
 * the process's life; a failure is tried again next time. Looked for: $KERMES_LIBCUDA alone when
 * set, else libcuda.so.1 where the loader finds it, in WSL2's folder and in that of containers. */
const km_cu_api *km_cuda_driver(km_error *err);
/* The same once it is open (any device exists), without a question. */
const km_cu_api *km_cuda_api(void);
int km_cuda_driver_version(void); /* 13000 for 13.0; 0 while none is open */

/* "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)" */
const char *km_cuda_error_text(km_cu_result code, char *buf, size_t size);
/* The error leaves the whole GPU context of this process unusable. */
bool km_cuda_is_fatal(km_cu_result code);

/* KM_CU(launch, f, ...): the call's result, or an injected failure. */
#define KM_CU(call, ...)                                                                           \
    (km_cuda_fault_armed && km_cuda_fault_now(#call) ? km_cuda_fault_code                          \
                                                     : km_cuda_api()->call(__VA_ARGS__))

/* Fault injection: the nth call from now (0: the next one) whose name begins so (NULL: any) fails
 * with `code`, once, and is not made. A negative n switches it off. KERMES_FAULT_GPU=name:n:code in the
 * environment does the same from the first call on, with * for any name. */
void km_cuda_fault(const char *call, int64_t nth, km_cu_result code);
bool km_cuda_fault_now(const char *call);
extern bool km_cuda_fault_armed;
extern km_cu_result km_cuda_fault_code;

/* For tests: take the driver's functions from here in place of a library; NULL goes back. Closes
 * the driver that is open, so no device may be in use. */
void km_cuda_use_symbols(void *(*lookup)(const char *symbol));

#endif

/* NVIDIA's libraries beside the driver (cuBLASLt, NCCL), opened at run time like the driver. */
#ifndef KM_BACKEND_CUDA_LIBRARY_H
#define KM_BACKEND_CUDA_LIBRARY_H
#include <stddef.h>

/* Opens stem.VERSION ("libcublasLt.so" with versions {13, 12, 0}), the first version that is found:
 * in the folders of KERMES_CUDA_LIBS (separated by ':'), where the loader looks, and in the CUDA
 * toolkit's usual folders. NULL when there is none; note[size] then says where it was looked for,
 * otherwise the file that was opened. The handle is for dlsym and dlclose. */
void *km_cuda_library_open(const char *stem, const int *versions, char *note, size_t size);

/* The versions of a library numbered like CUDA that this machine's driver can work with: the
 * driver's own and the one before. For km_cuda_library_open. */
void km_cuda_library_versions(int versions[3]);

#endif

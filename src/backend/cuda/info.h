/* What there is of CUDA on this machine and in this build, for `kermes devices`: driver, GPUs,
 * kernels, libraries, and for each thing that is missing why, and what still works. */
#ifndef KM_BACKEND_CUDA_INFO_H
#define KM_BACKEND_CUDA_INFO_H
#include <stdbool.h>
#include <stddef.h>

#define KM_CUDA_NOTE 256

typedef struct km_cuda_gpu {
    int index;           /* N of cuda:N */
    char name[96];       /* "NVIDIA H200" */
    size_t memory_total; /* bytes */
    size_t memory_free;  /* 0 where unknown (not usable) */
    int cc_major, cc_minor;
    int multiprocessors;
    size_t l2;               /* bytes */
    bool usable;             /* km_cuda_device succeeds */
    char note[KM_CUDA_NOTE]; /* why not, or "" */
} km_cuda_gpu;

typedef struct km_cuda_library_info {
    bool present;
    char name[64];           /* "cuBLASLt" */
    char note[KM_CUDA_NOTE]; /* its file and version, or why it is not there and what serves then */
} km_cuda_library_info;

typedef struct km_cuda_info {
    bool driver;                     /* found and started */
    int cuda_major, cuda_minor;      /* the CUDA version the driver offers, 0 without one */
    char driver_release[32];         /* "580.159.04", "" where unknown */
    char driver_note[KM_CUDA_NOTE];  /* why there is none, or "" */
    bool kernels;                    /* this build has GPU kernels */
    char kernels_note[KM_CUDA_NOTE]; /* "sm_80 sm_90a ptx80", or why there are none */
    km_cuda_library_info cublaslt, nccl;
    int n_gpus; /* all that the driver shows, usable or not */
    km_cuda_gpu gpu[16];
    char summary[KM_CUDA_NOTE]; /* one line: "1 GPU ready", or what is missing and what works */
} km_cuda_info;

/* Fills *info. Never fails; takes up to a second the first time, since it starts the driver. */
void km_cuda_info_get(km_cuda_info *info);

#endif

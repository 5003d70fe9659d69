/* Ranks over NCCL, from inside. */
#ifndef KM_COMM_NCCL_H
#define KM_COMM_NCCL_H
#include "comm/transport.h"

/* Whether the library is there; *err says why not. */
bool km_nccl_there(km_error *err);
/* Joins the ranks' GPUs, one each; c->mpi carries the start-up where there are several. */
km_status km_nccl_open(km_comm *c, km_error *err);
/* A number that tells this context's GPU from all others of the machine. */
uint64_t km_nccl_gpu(const km_ctx *ctx);

extern const km_transport km_nccl_transport;

#endif

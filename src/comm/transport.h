/* What a way of talking must offer. Made by km_comm_open, used by comm.c alone. */
#ifndef KM_COMM_TRANSPORT_H
#define KM_COMM_TRANSPORT_H
#include "comm/comm.h"

typedef struct km_transport {
    const char *name;
    bool capturable;
    void (*close)(km_comm *c);
    km_comm_work *(*start)(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t);
    km_status (*wait)(km_ctx *ctx, km_comm *c, km_comm_work *w);
    /* Both, for a tensor in host memory, without handing it to another thread; or NULL. */
    km_status (*run)(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t);
} km_transport;

struct km_comm {
    const km_transport *transport;
    int rank, size;
    km_ctx *ctx;
    struct km_mpi *mpi; /* host memory and start-up; NULL with one rank */
    void *impl;         /* the transport's own */
};

/* ---- NCCL (nccl.c) ---- */

/* Whether the library is there; *err says why not. */
bool km_nccl_there(km_error *err);
/* Joins the ranks' GPUs, one each; c->mpi carries the start-up where there are several. */
km_status km_nccl_open(km_comm *c, km_error *err);
/* A number that tells this context's GPU from all others of the machine. */
uint64_t km_nccl_gpu(const km_ctx *ctx);

extern const km_transport km_nccl_transport;

#endif

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

#endif

/* Ranks: processes that work on one model together. One small interface over three ways to talk:
 * not at all (one rank), MPI (CPU ranks, start-up, and GPU tensors through host memory), and NCCL
 * (GPUs). MPI comes as a module of its own, kermes-mpi.so, and NCCL as libnccl.so.2; both are opened
 * when they are needed, so neither is needed to build or to run on one rank.
 *
 * A sum is taken in the order of the ranks, in f32, and rounded once, so that two runs give the same
 * bits; NCCL has its own order, which is the same on the same machines. Every call is collective: all ranks make the same calls, with
 * tensors of the same sizes, in the same order. NULL is a communicator of one rank everywhere. */
#ifndef KM_COMM_COMM_H
#define KM_COMM_COMM_H
#include "tensor/tensor.h"

typedef struct km_comm km_comm;

/* `how`: "auto" (one rank unless started by mpirun; then NCCL if every rank has a GPU of its own,
 * else MPI), "none", "mpi" or "nccl". ctx is where the tensors will be. NULL with *err set. */
km_comm *km_comm_open(const char *how, km_ctx *ctx, km_error *err);
void km_comm_close(km_comm *c);             /* before its context; NULL is fine */
int km_comm_rank(const km_comm *c);         /* from 0 */
int km_comm_size(const km_comm *c);         /* at least 1 */
const char *km_comm_name(const km_comm *c); /* "none", "mpi", "nccl" */
bool km_comm_alone(const km_comm *c);       /* "none": nothing ever has to be sent */
bool km_comm_capturable(const km_comm *c);  /* its work can be part of a captured graph */

/* Before there is a context: what mpirun told this process. 1 and 0 without it. */
int km_comm_env_size(void);
int km_comm_env_rank(void);
int km_comm_env_local_rank(void); /* among the ranks of this machine: which GPU to take */
int km_comm_env_local_size(void); /* how many those are */

/* ---- Tensors: contiguous, f32, f16 or bf16, on the context's device or in host memory ---- */

typedef enum km_comm_op {
    KM_COMM_ALL_REDUCE,     /* t = sum over the ranks of t */
    KM_COMM_REDUCE_SCATTER, /* t seen as `size` equal parts: part `rank` = its sum; the others' values
                              * are undefined afterwards */
    KM_COMM_ALL_GATHER,     /* t seen as `size` equal parts: part r = that of rank r */
    KM_COMM_BROADCAST       /* t = rank 0's t */
} km_comm_op;

/* Starts; the tensor must not be touched until the wait. Work started is done in order. The ticket
 * belongs to the communicator and is valid until waited for. NULL with the context's error set. */
typedef struct km_comm_work km_comm_work;
km_comm_work *km_comm_start(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t);
/* From here on ops on the context see the result. */
km_status km_comm_wait(km_ctx *ctx, km_comm *c, km_comm_work *w);
/* Both. In host memory this can be part of a captured step, which replays it. */
km_status km_comm_run(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t);

/* ---- Host memory, for small things ---- */

km_status km_comm_barrier(km_comm *c, km_error *err);
km_status km_comm_broadcast(km_comm *c, int root, void *data, size_t bytes, km_error *err);
/* x[i] = the sum over the ranks, in their order: losses, counts. */
km_status km_comm_sum(km_comm *c, double *x, int n, km_error *err);

#endif

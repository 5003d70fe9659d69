/* Ranks over MPI, from inside: host memory, in order, by a thread of its own. */
#ifndef KM_COMM_MPI_H
#define KM_COMM_MPI_H
#include "comm/transport.h"

typedef struct km_mpi km_mpi;

/* Opens kermes-mpi.so and joins the other ranks. Once per process. NULL with *err set. */
km_mpi *km_mpi_open(km_error *err);
/* clean: leave together with the others; otherwise just go, which makes mpirun end them. */
void km_mpi_close(km_mpi *m, bool clean);
int km_mpi_rank(const km_mpi *m);
int km_mpi_size(const km_mpi *m);

km_status km_mpi_barrier(km_mpi *m, km_error *err);
km_status km_mpi_broadcast(km_mpi *m, int root, void *data, size_t bytes, km_error *err);
/* data: `size` parts of `bytes`, of which this rank has filled its own. */
km_status km_mpi_gather(km_mpi *m, void *data, size_t bytes, km_error *err);

/* One of km_comm_op on host memory, under way. */
typedef struct km_mpi_job {
    km_comm_op op;
    void *data;
    int64_t count; /* elements */
    km_dtype dtype;
    void (*before)(void *user); /* called by the thread first; NULL: nothing to wait for */
    void *user;
    /* The rest belongs to mpi.c. */
    int kind, root;
    size_t bytes;
    bool done;
    km_error err;
    struct km_mpi_job *next;
} km_mpi_job;

void km_mpi_submit(km_mpi *m, km_mpi_job *job);
km_status km_mpi_await(km_mpi *m, km_mpi_job *job, km_error *err);
/* Both; by the calling thread itself where nothing is under way. */
km_status km_mpi_run(km_mpi *m, km_mpi_job *job, km_error *err);

extern const km_transport km_mpi_transport; /* staged.c */

#endif

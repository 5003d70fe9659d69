/* The border between Kermes and kermes-mpi.so, the only piece that is compiled against MPI. It moves
 * bytes between ranks; what they mean is none of its business. */
#ifndef KM_COMM_MPI_MODULE_H
#define KM_COMM_MPI_MODULE_H
#include <stddef.h>

#define KM_MPI_ABI 1
#define KM_MPI_SYMBOL "km_mpi_calls"

/* Memory to be sent to, or filled by, another rank. */
typedef struct km_mpi_part {
    int peer;
    void *data;
    size_t bytes;
} km_mpi_part;

/* Calls return 0, or -1 with a line in why[size]. They are made by one thread at a time. */
typedef struct km_mpi_module {
    int abi;
    /* *threads: other threads than this one may make the calls. */
    int (*init)(int *rank, int *size, int *threads, char *why, size_t room);
    void (*finalize)(void);
    int (*barrier)(char *why, size_t room);
    int (*broadcast)(int root, void *data, size_t bytes, char *why, size_t room);
    /* All sends and receives at once; done when all are. */
    int (*exchange)(const km_mpi_part *send, int n_send, const km_mpi_part *receive, int n_receive,
                    char *why, size_t room);
} km_mpi_module;

#endif

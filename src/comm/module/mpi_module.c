/* kermes-mpi.so: bytes between ranks by MPI. Opened by comm/mpi.c when a process runs under mpirun,
 * so that Kermes itself needs no MPI. */
#include "comm/mpi_module.h"
#include "base/clock.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST ((size_t)1 << 30) /* bytes to a message: counts are ints */

static int explain(int code, char *why, size_t room) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
    snprintf(why, room, "MPI: %.*s", n, text);
    return -1;
}

static int init(int *rank, int *size, int *threads, char *why, size_t room) {
    int given = MPI_THREAD_SINGLE, up = 0;
    int code = MPI_Initialized(&up);
    if (code == MPI_SUCCESS && up)
        code = MPI_Query_thread(&given);
    else if (code == MPI_SUCCESS)
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &given);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, size);
    *threads = given >= MPI_THREAD_SERIALIZED;
    return explain(code, why, room);
}

static void finalize(void) {
    int down = 0;
    if (MPI_Finalized(&down) == MPI_SUCCESS && !down) MPI_Finalize();
}

/* MPI's own waits keep a core busy for as long as they last. What comes soon is waited for in the
 * same way here; a rank that has long had nothing to do, while somebody thinks of a question, sleeps
 * between two looks. */
static int wait_for(int n, MPI_Request *request) {
    int done = 0, code = MPI_SUCCESS, looks = 0;
    double begin = 0;
    for (;;) {
        code = MPI_Testall(n, request, &done, MPI_STATUSES_IGNORE);
        if (done || code != MPI_SUCCESS) return code;
        if (++looks % 64) continue;
        double now = km_now();
        if (begin == 0) begin = now;
        if (now - begin < 2e-3) continue;
        long pause = now - begin < 1 ? 50 : 1000; /* microseconds */
        nanosleep(&(struct timespec){0, pause * 1000}, NULL);
    }
}

static int barrier(char *why, size_t room) {
    return explain(MPI_Barrier(MPI_COMM_WORLD), why, room);
}

static int broadcast(int root, void *data, size_t bytes, char *why, size_t room) {
    int code = MPI_SUCCESS;
    for (size_t at = 0; at < bytes && code == MPI_SUCCESS; at += MOST) {
        size_t n = bytes - at < MOST ? bytes - at : MOST;
        MPI_Request request;
        code = MPI_Ibcast((char *)data + at, (int)n, MPI_BYTE, root, MPI_COMM_WORLD, &request);
        if (code == MPI_SUCCESS) code = wait_for(1, &request);
    }
    return explain(code, why, room);
}

static size_t messages(const km_mpi_part *part, int n) {
    size_t count = 0;
    for (int i = 0; i < n; i++) count += (part[i].bytes + MOST - 1) / MOST;
    return count;
}

/* Between two ranks messages do not overtake each other, so one tag is enough. */
static int post(const km_mpi_part *part, int n, int sending, MPI_Request *request, int *made) {
    for (int i = 0; i < n; i++)
        for (size_t at = 0; at < part[i].bytes; at += MOST) {
            size_t left = part[i].bytes - at;
            int count = (int)(left < MOST ? left : MOST), peer = part[i].peer;
            char *data = (char *)part[i].data + at;
            MPI_Request *r = &request[*made];
            int code = sending ? MPI_Isend(data, count, MPI_BYTE, peer, 0, MPI_COMM_WORLD, r)
                               : MPI_Irecv(data, count, MPI_BYTE, peer, 0, MPI_COMM_WORLD, r);
            if (code != MPI_SUCCESS) return code;
            ++*made;
        }
    return MPI_SUCCESS;
}

static int exchange(const km_mpi_part *send, int n_send, const km_mpi_part *receive, int n_receive,
                    char *why, size_t room) {
    size_t most = messages(send, n_send) + messages(receive, n_receive);
    MPI_Request *request = malloc((most ? most : 1) * sizeof *request);
    int made = 0;
    if (!request) {
        snprintf(why, room, "MPI: out of memory");
        return -1;
    }
    int code = post(receive, n_receive, 0, request, &made);
    if (code == MPI_SUCCESS) code = post(send, n_send, 1, request, &made);
    if (code == MPI_SUCCESS) code = wait_for(made, request);
    free(request);
    return explain(code, why, room);
}

extern const km_mpi_module km_mpi_calls;
__attribute__((visibility("default")))
const km_mpi_module km_mpi_calls = {KM_MPI_ABI, init, finalize, barrier, broadcast, exchange};

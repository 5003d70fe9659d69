/* Tests of several ranks: the program starts itself again under mpirun. Where there is no mpirun, or
 * Kermes was built without MPI, the test is skipped. */
#ifndef KM_TESTS_SUPPORT_RANKS_H
#define KM_TESTS_SUPPORT_RANKS_H
#include "comm/comm.h"
#include "support/sanitized.h"
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS_SKIP 77

static bool on_path(const char *program) {
    const char *path = getenv("PATH");
    char *copy = strdup(path ? path : ""), full[4096], *save = NULL;
    bool found = false;
    for (char *p = strtok_r(copy, ":", &save); p && !found; p = strtok_r(NULL, ":", &save)) {
        snprintf(full, sizeof full, "%s/%s", p, program);
        found = access(full, X_OK) == 0;
    }
    free(copy);
    return found;
}

/* -1 in a rank, which goes on; otherwise the exit code of the whole. */
static int run_as_ranks(int n) {
    if (THREADS_SANITIZED) return RANKS_SKIP; /* MPI's own threads are not instrumented */
    char self[4096], module[4200], command[9000];
    if (getenv("KM_TEST_RANK")) {
        alarm(120); /* a rank that waits for one that failed */
        return -1;
    }
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0 || !on_path("mpirun")) return RANKS_SKIP;
    self[length] = 0;
    char *folder = strdup(self);
    snprintf(module, sizeof module, "%s/../kermes-mpi.so", dirname(folder));
    free(folder);
    if (access(module, R_OK) != 0) return RANKS_SKIP;
    /* MPI keeps memory to the end; leaks of ours are looked for in tests of one rank. */
    snprintf(
        command, sizeof command,
        "ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "OMPI_MCA_btl_vader_single_copy_mechanism=none KM_TEST_RANK=1 "
        "mpirun -n %d --oversubscribe --allow-run-as-root '%s' 1>&2",
        n, self);
    int status = system(command);
    return status == 0 ? 0 : 1;
}

#endif

/* One file from a server to the disk: in pieces, several at a time, beside its place (.part) until it
 * is complete and its sum is right; what a broken-off attempt has left is gone on with. */
#ifndef KM_CLI_PULL_FETCH_H
#define KM_CLI_PULL_FETCH_H
#include "cli/pull/web.h"

typedef struct km_fetch {
    const char *url;
    const char *path;  /* where it goes */
    int64_t size;      /* as the hub's list has it; -1: not known */
    const char *sum;   /* SHA-256 in hex; "": not known */
    const char *shown; /* its name for people */
    bool quiet;
} km_fetch;

km_status km_fetch_file(km_web *h, const km_fetch *f, km_error *err);

#endif

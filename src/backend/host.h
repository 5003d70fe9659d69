/* What the devices that live in ordinary memory, ref and cpu, share: memory operations, steps kept as
 * lists of kernel calls (host_graph.c), and a lane's own things. */
#ifndef KM_BACKEND_HOST_H
#define KM_BACKEND_HOST_H
#include "backend/backend.h"

extern const km_device_ops km_host_ops;

struct km_host_graph;

/* What a lane's `queue` points at. */
typedef struct km_host_queue {
    struct km_host_graph *capturing, *graphs; /* being recorded; all there are */
    km_mempool_watch watch;
    int depth;  /* of kernels that call kernels */
    void *kept; /* a backend's own, with the function that frees it */
    void (*drop)(void *kept);
} km_host_queue;

static inline km_host_queue *km_host_queue_of(const km_lane *lane) { return lane->queue; }

/* Runs kernel k; while a step is captured the call is remembered as well. The lane is a host's. */
km_status km_host_run(km_ctx *ctx, km_lane *lane, km_kernel k, const km_call *c);

#endif

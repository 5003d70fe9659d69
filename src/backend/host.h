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

/* Steps of a host device kept as lists of kernel calls. While a step is captured it runs as always
 * and each call that succeeds is remembered with its operands' places; a replay makes the calls again
 * without building tensors. What cannot be remembered (data moved in or out, a tape) makes the capture
 * fail quietly, and the step goes on being run as it is. */
km_status km_host_graph_begin(km_lane *lane);
void *km_host_graph_end(km_lane *lane, void *old);
km_status km_host_graph_launch(void *graph);
void km_host_graph_free(void *graph);
void km_host_graphs_close(km_lane *lane); /* frees all, blocks included */
/* Data moved in or out: the step being captured, if there is one, cannot be replayed. */
void km_host_graph_spoil(km_lane *lane);

#endif

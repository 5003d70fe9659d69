/* A context's lane on a GPU: a stream, pinned memory through which host data passes, and small
 * device buffers that kernels share. What lane.c, launch.c and graph.c know of each other. */
#ifndef KM_BACKEND_CUDA_LANE_H
#define KM_BACKEND_CUDA_LANE_H
#include "backend/cuda/chain.h"
#include "backend/cuda/held_norm.h"

#define KM_CUDA_STAGE_BYTES ((size_t)4 << 20) /* each of the two halves */

/* Half of the staging memory. Uploads fill it from the front; the event says when the copies out
 * of it are done, so that it can be filled again. */
typedef struct km_cuda_stage {
    char *data;
    size_t used;
    km_cu_event done;
    bool pending; /* the event was recorded and not yet waited for */
} km_cuda_stage;

struct km_cuda_graph;

typedef struct km_cuda_queue {
    km_cu_stream own_stream; /* for lane.c alone: all others ask km_cuda_stream */
    km_cuda_chain chain;     /* ops held back */
    km_cuda_held_norm held;  /* a norm held back; never both */
    km_cuda_stage stage[2];
    int filling;                     /* the half that the next upload goes to */
    km_cu_ptr shared;                /* counters, then the draws word; made on first use */
    bool shared_is_host;             /* the device had no room for them */
    struct km_cuda_graph *capturing; /* NULL when not */
    struct km_cuda_graph *graphs;    /* all of this lane */
    km_mempool_watch watch;
    struct km_cuda_feed *feed; /* weights on their way (feed.h); NULL: all are here */
} km_cuda_queue;

static inline km_cuda_queue *km_cuda_queue_of(const km_lane *lane) { return lane->queue; }

/* Before any driver call for the lane: the context is current and the device not lost. */
km_status km_cuda_ready(km_lane *lane);
/* Two words in device memory: what a replay adds to stream and seed of its random ops. */
uint64_t *km_cuda_draws_word(km_lane *lane);
void km_cuda_shared_free(km_lane *lane);
/* A copy between host buffers by all threads of the lane's context. */
void km_cuda_copy_host(km_lane *lane, void *dst, const void *src, size_t bytes);
/* Waits for everything on the lane. */
km_status km_cuda_sync(km_lane *lane);

#endif

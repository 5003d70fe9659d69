/* Steps of a host device kept as lists of kernel calls. While a step is captured it runs as always
 * and each call that succeeds is remembered with its operands' places; a replay makes the calls again
 * without building tensors. What cannot be remembered (data moved in or out, a tape) makes the capture
 * fail quietly, and the step goes on being run as it is. */
#ifndef KM_BACKEND_HOST_GRAPH_H
#define KM_BACKEND_HOST_GRAPH_H
#include "backend/host.h"

km_status km_host_graph_begin(km_lane *lane);
void *km_host_graph_end(km_lane *lane, void *old);
km_status km_host_graph_launch(void *graph);
void km_host_graph_free(void *graph);
void km_host_graphs_close(km_lane *lane); /* frees all, blocks included */
/* Data moved in or out: the step being captured, if there is one, cannot be replayed. */
void km_host_graph_spoil(km_lane *lane);

#endif

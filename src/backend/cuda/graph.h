/* CUDA graphs: the kernels of one step, recorded once and started again with a single call.
 *
 *     step(ctx); km_step_end(ctx);                 // once as usual: loads kernels, warms the pool
 *     km_cuda_graph_begin(lane);
 *     step(ctx); km_step_end(ctx);                 // recorded, not run
 *     km_cuda_graph *g = km_cuda_graph_end(lane, NULL);
 *     for (...) { km_write(ctx, input, ...); km_cuda_graph_launch(g); }
 *
 * A replay works on the same addresses. Those of temporaries belong to the graph until it is
 * freed: nothing else gets them. Tensors that the step reads or writes and that outlive it
 * (parameters, inputs, results) must stay kept as long as the graph is used. Sizes, scalars and
 * pointers are frozen; a step of other shapes needs another capture. Random ops move on with each
 * replay exactly as they would without a graph. */
#ifndef KM_BACKEND_CUDA_GRAPH_H
#define KM_BACKEND_CUDA_GRAPH_H
#include "tensor/tensor.h"

typedef struct km_cuda_graph km_cuda_graph;

/* From here on the lane's work is recorded. Uploads, downloads and waits fail the context, and so
 * does an op that falls back to the CPU. */
km_status km_cuda_graph_begin(km_lane *lane);
/* The recorded graph; NULL with the error set (the context's own, if the step failed). `old`, a
 * graph of the same step or NULL, is freed either way: if both have the same form its program is
 * updated in place, which is quicker than making a new one. */
km_cuda_graph *km_cuda_graph_end(km_lane *lane, km_cuda_graph *old);
km_status km_cuda_graph_launch(km_cuda_graph *g);
void km_cuda_graph_free(km_cuda_graph *g);       /* NULL is fine; before the context goes */
int km_cuda_graph_nodes(const km_cuda_graph *g); /* kernels and copies in it */

/* For lane.c: ends what the lane's owner left behind. */
void km_cuda_graphs_close(km_lane *lane);

#endif

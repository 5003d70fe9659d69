/* Steps recorded once and handed in again (the device's graphs): command buffers, the words that their
 * shaders read, and the blocks of memory that they use. */
#ifndef KM_BACKEND_VULKAN_GRAPH_H
#define KM_BACKEND_VULKAN_GRAPH_H
#include "backend/vulkan/dev.h"

typedef struct km_vulkan_graph km_vulkan_graph;

km_status km_vulkan_graph_begin(km_lane *lane);
/* NULL without an error: the step draws random numbers, which a replay would draw again. */
km_vulkan_graph *km_vulkan_graph_end(km_lane *lane, km_vulkan_graph *old);
km_status km_vulkan_graph_launch(km_vulkan_graph *g);
void km_vulkan_graph_free(km_vulkan_graph *g);
void km_vulkan_graphs_close(km_lane *lane);

/* For a lane that is being captured (lane.c). */
VkCommandBuffer km_vulkan_graph_commands(km_lane *lane); /* NULL with the error set */
VkDeviceAddress km_vulkan_graph_words(km_lane *lane, const void *data, size_t bytes);
bool km_vulkan_graph_open(const km_lane *lane);    /* commands were recorded since the last cut */
double *km_vulkan_graph_work(const km_lane *lane); /* of the commands since the last cut */
km_status km_vulkan_graph_cut(km_lane *lane);      /* what comes next is a submission of its own */
int km_vulkan_graph_parts(const km_vulkan_graph *g); /* submissions of a replay */

#endif

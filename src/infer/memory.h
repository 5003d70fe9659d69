/* A memory plan: what a model and its cache will take on which device, told before anything is
 * loaded, and which layers go where. Layers that do not fit on a GPU are computed by the CPU: the
 * first ones, so that the hidden state goes over once and the head, which is large, is on the GPU.
 * Or the GPU computes them too, and their weights, which stay in the host's memory, are brought over
 * each time: whichever is faster by measurement (infer/streaming.h). */
#ifndef KM_INFER_MEMORY_H
#define KM_INFER_MEMORY_H
#include "infer/sequences.h"
#include "model/weigh.h"
#include "base/text.h"

#define KM_GPU_LAYERS_UNSAID (-2) /* all of them if the weights fit, else as many as do */
#define KM_GPU_LAYERS_AUTO (-1)   /* as many as fit with the context asked for */

typedef struct km_memory_ask {
    km_open_split split; /* the devices to use, in order of layers; n 1 as a rule. layers of it are
                           * not read. */
    int64_t gpu_layers;  /* how many layers the devices take, or one of the two above; the rest is
                           * the CPU's */
    int64_t context;     /* asked for; 0: the model's, or what fits */
    int64_t sequences;
    km_dtype cache;
    double memory; /* bytes of a device that may be used at most; 0: what is free */
} km_memory_ask;

typedef struct km_memory_part {
    char device[24];
    int first, last; /* layers */
    double weights, cache, scratch;
    int streamed;            /* layers, the first ones, whose weights stay in the host's memory */
    double streamed_weights; /* bytes of these; not in weights */
    double room;             /* free bytes; NaN: not counted, as on the CPU */
} km_memory_part;

typedef struct km_memory_plan {
    km_memory_part part[KM_MAX_PARTS];
    int n;
    int layers;      /* of the model */
    int64_t context; /* that there is room for: the one asked for, or less if none was */
    /* Where weights could be streamed: seconds of a turn so, and with the CPU; else 0. */
    double streaming_seconds, cpu_seconds;
} km_memory_plan;

/* Free bytes on a device; NaN where nobody counts them. KERMES_GPU_MEMORY (bytes, or 500M, 24G)
 * makes it at most so much, on every device but cpu. */
double km_device_room(const char *device);

/* The plan. A context asked for that does not fit is refused with the largest that does; so are
 * more layers than fit. */
km_status km_memory_plan_make(const km_weighed *w, const km_memory_ask *ask, km_memory_plan *out,
                              km_error *err);
/* The model's layers, as the plan has them, for km_net_open. */
km_open_split km_memory_split(const km_memory_plan *p);
/* "cuda:0: weights 1.9 GB, KV 0.3 GB, scratch 0.1 GB: fits in 138 GB"; a part after the other. */
void km_memory_tell(const km_memory_plan *p, km_text *out);
bool km_memory_on_gpu(const km_memory_plan *p); /* some part is counted */

/* Bytes that a step of so many sequences must read, each with so many tokens in the cache: all
 * weights but those of a table looked up in, and the cache. */
double km_step_bytes(const km_net *m, km_dtype cache, int64_t sequences, int64_t tokens);

#endif

/* Weight streaming: whether layers that do not fit on a GPU are computed there all the same, over weights that come
 * from the host's memory each time, or by the CPU. One token after another the CPU does well: it
 * reads the same bytes from the same memory. A prompt's tokens share the weights that come over, and
 * a GPU computes them in no time. So a turn of a conversation decides, by rates measured here. */
#ifndef KM_INFER_STREAMING_H
#define KM_INFER_STREAMING_H
#include "base/error.h"

/* Matrices that a device has room for where weights are streamed: five on their way or in use, and
 * the three of a call as its kernels want them laid out. */
#define KM_STREAM_SLOTS 8
#define KM_TURN_READ 512 /* tokens of a turn's prompt */
#define KM_TURN_SAID 128 /* and of its answer */

typedef struct km_stream_rates {
    double bus;       /* bytes a second from ordinary memory to the device */
    double cpu_bytes; /* of weights that the CPU reads a second, for one token */
    double cpu_flops; /* of the CPU over many tokens */
} km_stream_rates;

/* Seconds that a turn spends in layers with so many bytes of weights and so many floating-point
 * operations a token, of one kind or the other. chunk: tokens of a prompt that are run at once. */
double km_turn_streamed(const km_stream_rates *r, double bytes, int64_t chunk);
double km_turn_on_cpu(const km_stream_rates *r, double bytes, double flops);

/* Measures them, in about a quarter of a second. KM_ERR_... with *err set. */
km_status km_stream_measure(const char *device, km_stream_rates *out, km_error *err);

#endif

/* When a parameter's gradient is complete: for work that can begin while the rest of the backward
 * pass still runs. */
#ifndef KM_AUTOGRAD_READY_H
#define KM_AUTOGRAD_READY_H
#include "tensor/tensor.h"

typedef void (*km_ready_fn)(void *user, km_ctx *ctx, km_tensor *parameter);

/* From now on fn is told of every parameter on the tape of a km_backward as soon as nothing on it
 * can add to its gradient any more; NULL ends that. Parameters used only inside pieces that run
 * again (recompute.h) are not told of. fn runs with recording off and may read and release the
 * gradient. */
void km_on_gradient(km_ctx *ctx, km_ready_fn fn, void *user);

#endif

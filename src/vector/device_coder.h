/* A coder on a context's device: residuals are turned by one product with its axes, and encoded there
 * by the ops of ops/encode_codes.h. Codes are those of km_coder_encode, but where rounding decides. */
#ifndef KM_VECTOR_DEVICE_CODER_H
#define KM_VECTOR_DEVICE_CODER_H
#include "kermes.h"
#include "vector/coder.h"

typedef struct km_device_coder km_device_coder;

/* The coder must stay while this exists. NULL with *err set; KM_ERR_UNSUPPORTED for vectors of more
 * dimensions than a matrix of axes is worth. */
km_device_coder *km_device_coder_new(km_ctx *ctx, const km_coder *c, km_error *err);
void km_device_coder_free(km_device_coder *d); /* NULL is fine */

/* residuals (n, dim) and their squared norms (n), on the device -> codes (n, km_coder_bytes) on the
 * host. A failure is the context's. */
km_status km_device_coder_run(km_device_coder *d, km_tensor *residuals, km_tensor *square,
                              uint8_t *codes);

#endif

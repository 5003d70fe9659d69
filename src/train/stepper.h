/* Steps on the device: a batch goes up, loss and update happen there, and only now and then do the
 * losses come down, so that the device's queue never runs dry. Where the device has graphs and the
 * step draws no random numbers, the whole of it is captured once and replayed. */
#ifndef KM_TRAIN_STEPPER_H
#define KM_TRAIN_STEPPER_H
#include "model/net.h"
#include "nn/optim.h"
#include "train/dataset.h"

typedef struct km_stepper_options {
    int64_t batch, context;
    int accumulate;
    int ring;     /* losses the device may hold before km_stepper_drain */
    bool overfit; /* step 0's batch in every step */
    bool no_graph;
    uint64_t seed;   /* of dropout */
    int rank, ranks; /* samples are dealt out over ranks */
} km_stepper_options;

typedef struct km_stepper {
    km_ctx *ctx;
    km_net *model;
    km_optimizer *optimizer;
    const km_window_sampler *sampler;
    km_stepper_options o;
    km_tensor *input;  /* kept (2, accumulate, batch, context) i32: ids and targets */
    km_tensor *losses; /* kept (accumulate) f32: of the passes of a step */
    km_tensor *loss;   /* kept scalar: their mean */
    km_tensor *ring;   /* kept (ring) f32: of the last steps */
    km_tensor *eval_input, *eval_loss; /* kept (2, batch, context) and scalar */
    km_graph *graph, *eval_graph;
    int32_t *host; /* what goes into input */
    int used;      /* of the ring */
    bool uploaded; /* the batch to overfit is on the device */
} km_stepper;

/* Makes the buffers. The other four stay the caller's and must outlive the stepper. */
km_status km_stepper_open(km_stepper *p, km_ctx *ctx, km_net *model, km_optimizer *optimizer,
                          const km_window_sampler *sampler, const km_stepper_options *o,
                          km_error *err);
void km_stepper_close(km_stepper *p);

/* Queues step number `step` (from 0) at this learning rate; its loss goes into the ring. */
km_status km_stepper_step(km_stepper *p, int64_t step, double lr, km_error *err);
/* Waits for the device and adds the ring's losses, oldest first, to out[*n ...]. */
km_status km_stepper_drain(km_stepper *p, float *out, int *n, km_error *err);

/* The sums of the validation loss over the targets of this rank's share of `batches` fixed batches
 * (0: all there are), and how many targets these were. */
km_status km_stepper_eval(km_stepper *p, int64_t batches, double *sum, double *targets,
                          km_error *err);

/* Floating-point operations a second of this device in products of this dtype. A GPU: in large
 * square ones, best of a few; the CPU: the most its cores can do, whatever else runs meanwhile. */
double km_measure_products(km_ctx *ctx, km_dtype dtype);

#endif

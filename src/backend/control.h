/* The control tensor of an optimiser step: f32, on the device, made by the op optim_control before
 * each step and read by sgd and adamw, so that nothing of a step comes from the host but what was
 * written into the knobs. For C and CUDA. */
#ifndef KM_BACKEND_CONTROL_H
#define KM_BACKEND_CONTROL_H

enum {
    KM_CONTROL_LR,     /* the learning rate */
    KM_CONTROL_SCALE1, /* 1 / (1 - beta1^t) */
    KM_CONTROL_SCALE2, /* 1 / (1 - beta2^t) */
    KM_CONTROL_GRAD,   /* gradients are multiplied by this */
    KM_CONTROL_SKIP,   /* not 0: the step must change nothing */
    KM_CONTROL_NORM,   /* of the gradients, before clipping */
    KM_CONTROL_STEPS,  /* t, the steps done */
    KM_CONTROL_SKIPS,  /* steps skipped */
    KM_CONTROL_LOSS,   /* the loss scale for the next backward pass */
    KM_CONTROL_GOOD,   /* steps since the loss scale changed */
    /* From here on two numbers for each tensor: a factor of the learning rate, and the weight
     * decay, in place of the call's own. A control of exactly this length has none. */
    KM_CONTROL_TENSORS = 16
};

enum {
    KM_KNOB_LR,
    KM_KNOB_GRAD, /* what gradients are multiplied by anyway: 1 / (ranks * accumulated) */
    KM_KNOBS
};

#define KM_SUMSQ_CHUNK 16384       /* elements to a partial sum of sumsq_chunks */
#define KM_LOSS_SCALE_MIN 0x1p-20f /* the loss scale stays between these */
#define KM_LOSS_SCALE_MAX 0x1p+24f

#endif

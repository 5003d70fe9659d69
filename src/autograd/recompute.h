/* Recomputation (activation checkpointing): a piece of the forward pass that keeps only its inputs. It runs without the tape,
 * and when its gradient is wanted it runs once more with it. */
#ifndef KM_AUTOGRAD_RECOMPUTE_H
#define KM_AUTOGRAD_RECOMPUTE_H
#include "tensor/tensor.h"

/* Fills out[] with new tensors made from in[] and from parameters it knows; it must do the same
 * each time. `user` is the copy made by km_recompute. */
typedef void (*km_recompute_fn)(km_ctx *ctx, const void *user, km_tensor *const *in,
                                km_tensor **out);

/* Runs fn now and, in the backward pass, again: gradients reach in[] and the parameters inside,
 * and random ops draw the same numbers both times. `trains` says whether there are such parameters;
 * when neither they nor in[] want a gradient, or nothing is recorded, it just runs fn. At most four
 * inputs and outputs; user (user_bytes of it) is copied. */
km_status km_recompute(km_ctx *ctx, km_recompute_fn fn, const void *user, size_t user_bytes,
                       bool trains, km_tensor *const *in, int n_in, km_tensor **out, int n_out);

#endif

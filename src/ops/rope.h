/* Rotary positions with frequencies that a model has stretched. */
#ifndef KM_OPS_ROPE_H
#define KM_OPS_ROPE_H
#include "kermes.h"

/* As km_rope, with the frequency of pair i divided by divisors[i]: f32 (n_dims / 2), or NULL. */
km_tensor *km_rope_divided(km_ctx *ctx, km_tensor *x, km_tensor *positions, km_tensor *divisors,
                           km_rope_pairs pairs, double base, int n_dims);

#endif

/* Rotation stretched to longer contexts: what the frequencies of a configuration are divided by. */
#ifndef KM_MODEL_ROPE_H
#define KM_MODEL_ROPE_H
#include "model/config.h"

/* Divisors (rope_dims / 2) of a complete config, for any kind but KM_ROPE_DIVISORS. */
void km_rope_divisors(const km_config *c, float *divisors);
/* What rotated queries and keys are multiplied by; 1 for most. */
double km_rope_magnitude(const km_config *c);

#endif

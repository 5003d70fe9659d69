/* The rules by which models stretch their rotation. Each is written as what a pair's frequency
 * base^(-2i/d) is divided by: 1 leaves it, `factor` makes it turn so much slower. */
#include "model/config.h"
#include <math.h>

#define TURN 6.283185307179586

/* Between slowed down by factor (share 0) and left as it is (share 1). */
static double blend(double factor, double share) { return 1 / ((1 - share) / factor + share); }

/* The pair that turns `times` times over the context trained on, as a real number. */
static double pair_that_turns(const km_config *c, double dims, double times) {
    return dims * log((double)c->rope.original / (times * TURN)) / (2 * log(c->rope_base));
}

static double yarn(const km_config *c, double dims, int i) {
    double low = floor(pair_that_turns(c, dims, c->rope.beta_fast));
    double high = ceil(pair_that_turns(c, dims, c->rope.beta_slow));
    low = fmax(low, 0);
    high = fmin(high, dims - 1);
    if (high - low < 0.001) high = low + 0.001;
    double slow = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return blend(c->rope.factor, 1 - slow);
}

static double llama3(const km_config *c, double dims, int i) {
    double wave = TURN * pow(c->rope_base, 2.0 * i / dims), whole = (double)c->rope.original;
    if (wave < whole / c->rope.high_factor) return 1;
    if (wave > whole / c->rope.low_factor) return c->rope.factor;
    double share = (whole / wave - c->rope.low_factor) / (c->rope.high_factor - c->rope.low_factor);
    return blend(c->rope.factor, share);
}

void km_rope_divisors(const km_config *c, float *divisors) {
    int64_t dims = c->rope_dims ? c->rope_dims : c->head_dim;
    for (int i = 0; i < dims / 2; i++) {
        double d = 1;
        if (c->rope.kind == KM_ROPE_LINEAR) d = c->rope.factor;
        if (c->rope.kind == KM_ROPE_YARN) d = yarn(c, (double)dims, i);
        if (c->rope.kind == KM_ROPE_LLAMA3) d = llama3(c, (double)dims, i);
        divisors[i] = (float)d;
    }
}

double km_rope_magnitude(const km_config *c) {
    if (c->rope.magnitude > 0) return c->rope.magnitude;
    return c->rope.kind == KM_ROPE_YARN && c->rope.factor > 1 ? 0.1 * log(c->rope.factor) + 1 : 1;
}

/* Small models of random weights. */
#include "support/random_model.h"
#include "support/engine.h"
#include <math.h>

km_config random_config(km_config c) {
    km_error err = {0};
    if (!c.hidden) c.hidden = 2 * c.dim;
    c.tied = true;
    if (km_config_complete(&c, &err) != KM_OK) fail_msg("%s", err.text);
    return c;
}

km_net *random_model(km_ctx *ctx, const km_config *c, const char *mix, uint64_t seed,
                     const km_open_split *split) {
    km_error err = {0};
    assert_non_null(km_mix_find(mix));
    km_net *m = km_synthetic_model(ctx, c, km_mix_find(mix), seed, split, NULL, NULL, &err);
    if (!m) fail_msg("%s: %s", mix, err.text);
    return m;
}

void random_ids(int32_t *ids, int64_t n, int64_t vocab) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)((i * 37 + i * i) % vocab);
}

double logits_apart(const float *a, const float *b, int64_t n) {
    double diff = 0, size = 0;
    for (int64_t i = 0; i < n; i++)
        diff += pow((double)a[i] - b[i], 2), size += pow((double)a[i], 2);
    return isfinite(diff) && isfinite(size) && size > 0 ? sqrt(diff / size) : INFINITY;
}

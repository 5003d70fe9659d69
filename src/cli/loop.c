/* The detector of loops: for each period the length of the match that ends here. A byte costs one
 * comparison a period, about a microsecond in all. */
#include "cli/loop.h"

/* Bytes that have to repeat those a period before them: all repetitions but the first. Up to a long
 * row of a table 60 repetitions, beyond that 2400 bytes and at least 6. */
static uint32_t long_enough(size_t period) {
    size_t times = period <= 120 ? 60 : 2400 / period;
    if (times < 6) times = 6;
    size_t bytes = (times - 1) * period;
    return (uint32_t)(bytes > 400 ? bytes : 400);
}

/* Whether a shorter piece repeats over the same bytes: then that one is what counts. */
static bool is_multiple(const km_loop *l, size_t period) {
    for (size_t q = 1; q <= period / 2; q++)
        if (l->run[q] + q >= l->run[period] + period) return true;
    return false;
}

bool km_loop_put(km_loop *l, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes && !l->period; i++) {
        size_t most = l->seen < KM_LOOP_PERIOD ? (size_t)l->seen : KM_LOOP_PERIOD;
        for (size_t p = 1; p <= most; p++) {
            bool same = l->last[(l->seen - p) % KM_LOOP_PERIOD] == text[i];
            l->run[p] = same ? l->run[p] + 1 : 0;
            if (same && !l->period && l->run[p] >= long_enough(p) && !is_multiple(l, p))
                l->period = p;
        }
        l->last[l->seen++ % KM_LOOP_PERIOD] = text[i];
    }
    return l->period > 0;
}

size_t km_loop_keep(const km_loop *l, size_t bytes) {
    size_t again = l->period ? l->run[l->period] : 0;
    return again < bytes ? bytes - again : bytes;
}

/* The clock for durations: it never goes back, and its zero means nothing. */
#ifndef KM_BASE_CLOCK_H
#define KM_BASE_CLOCK_H
#include <stdint.h>
#include <time.h>

static inline int64_t km_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double km_now(void) { return 1e-9 * (double)km_now_ns(); } /* seconds */

#endif

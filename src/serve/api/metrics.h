/* Figures of the server, for Prometheus and the status page. All of it belongs to the loop. */
#ifndef KM_SERVE_API_METRICS_H
#define KM_SERVE_API_METRICS_H
#include <stdint.h>

enum { KM_HISTOGRAM_BUCKETS = 16 };
typedef struct km_histogram {
    int64_t count[KM_HISTOGRAM_BUCKETS + 1]; /* the last: beyond all bounds */
    double sum;
    int64_t n;
} km_histogram;

typedef struct km_metrics {
    int64_t by_status[6]; /* 1xx to 5xx; 0: the client left */
    int64_t refused_queue, refused_key, late;
    int64_t tool_calls;
    km_histogram first_token, between_tokens, whole, queued;
    double last_seconds; /* for the rate */
    int64_t last_tokens;
    double rate; /* tokens a second, lately */
} km_metrics;

void km_histogram_add(km_histogram *h, double seconds);
double km_histogram_quantile(const km_histogram *h, double share); /* 0: empty */

#endif

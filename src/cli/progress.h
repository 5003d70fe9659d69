/* A progress bar on stderr, drawn only when stderr is a terminal and the job is not quick
 * (nothing appears in the first half second; redrawn at most ten times a second):
 *   verify  [==========>         ]  52%  41/79 ops  softmax   3 s left */
#ifndef KM_CLI_PROGRESS_H
#define KM_CLI_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

typedef struct km_progress {
    const char *label, *unit;
    int64_t total, done;
    int64_t first;         /* how much was done before it began; 0 unless set after begin */
    double started, drawn; /* seconds, monotonic */
    bool enabled, visible;
} km_progress;

void km_progress_begin(km_progress *p, const char *label, const char *unit, int64_t total,
                       bool quiet);
void km_progress_step(km_progress *p, int64_t done, const char *note); /* note may be NULL */
void km_progress_hide(km_progress *p); /* erases the bar until the next step, for a line of text */
void km_progress_end(km_progress *p);  /* erases the bar */

#endif

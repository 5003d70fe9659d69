/* The run's log: one JSON object a line in DIR/log.jsonl, and the same figures in memory for the
 * report. A log may be ahead of the last checkpoint when a run was killed; resuming cuts it. */
#ifndef KM_TRAIN_HISTORY_H
#define KM_TRAIN_HISTORY_H
#include "train/train.h"
#include <stdio.h>

typedef struct km_train_point {
    int64_t step;
    double train_loss, val_loss, lr, norm, tokens_per_s, mfu, seconds; /* NaN: not in this line */
} km_train_point;

typedef struct km_train_history {
    km_train_point *at;
    int n, cap;
    FILE *file;
    char *path;
} km_train_history;

/* Begins a log anew (step < 0), or goes on with the lines up to `step`. */
km_status km_history_open(km_train_history *h, const char *path, int64_t step, km_error *err);
/* One line; fields that are NaN are left out. Lines reach the file at once. */
km_status km_history_add(km_train_history *h, const km_train_point *p, const km_train_status *s,
                         km_error *err);
void km_history_close(km_train_history *h);

/* DIR/report.html: tiles, curves of loss, rate, norm and throughput, settings. */
km_status km_train_report(const km_train_history *h, const km_train_settings *s,
                          const km_train_result *r, const char *lead, const char *path,
                          km_error *err);

#endif

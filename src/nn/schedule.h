/* Learning-rate schedules: a pure function of the step, so that a resumed run sees the same rates.
 *
 * Steps count from 0. All rise linearly over the first `warmup` steps, lr (step + 1) / warmup; then
 *   constant: lr
 *   linear:   from lr down to min_lr at the last step
 *   cosine:   min_lr + (lr - min_lr) (1 + cos(pi x)) / 2, x from 0 to 1 over the rest
 *   wsd:      lr, then over the last `decay` steps linearly down to min_lr
 * After the last step the rate stays where it ended. */
#ifndef KM_NN_SCHEDULE_H
#define KM_NN_SCHEDULE_H
#include "base/error.h"

km_status km_schedule_check(const km_schedule *s, km_error *err);
/* By name: "constant", "linear", "cosine", "wsd"; false when there is none of that name. */
bool km_schedule_named(const char *name, km_schedule_kind *kind);

#endif

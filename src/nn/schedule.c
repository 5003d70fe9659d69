/* Learning-rate schedules. */
#include "nn/optim.h"
#include <math.h>
#include <string.h>

static const char *const names[] = {"constant", "linear", "cosine", "wsd"};
enum { KINDS = sizeof names / sizeof *names };

static double between(double from, double to, double x) { return from + (to - from) * x; }

double km_schedule_lr(const km_schedule *s, int64_t step) {
    if (!s) return NAN;
    if (step < s->warmup) return s->lr * (double)(step + 1) / (double)s->warmup;
    int64_t last = s->steps - 1;
    if (step > last) step = last;
    /* The part in which the rate falls, and how far into it this step is: 0 before, 1 at its end. */
    int64_t start = s->kind == KM_SCHEDULE_WSD ? last - s->decay : s->warmup;
    double x = last > start ? (double)(step - start) / (double)(last - start) : 0;
    if (x < 0) x = 0;
    switch (s->kind) {
    case KM_SCHEDULE_LINEAR:
    case KM_SCHEDULE_WSD: return between(s->lr, s->min_lr, x);
    case KM_SCHEDULE_COSINE: return between(s->min_lr, s->lr, (1 + cos(acos(-1) * x)) / 2);
    default: return s->lr;
    }
}

km_status km_schedule_check(const km_schedule *s, km_error *err) {
    if (!(s->lr > 0) || !isfinite(s->lr))
        return km_error_set(err, KM_ERR_RANGE, "schedule: the learning rate %g is not positive",
                            s->lr);
    if (!(s->min_lr >= 0) || s->min_lr > s->lr)
        return km_error_set(err, KM_ERR_RANGE,
                            "schedule: the lowest learning rate %g is not between 0 and %g",
                            s->min_lr, s->lr);
    if (s->steps < 1 || s->warmup < 0 || s->decay < 0)
        return km_error_set(err, KM_ERR_RANGE, "schedule: a count of steps is negative or zero");
    if (s->warmup + (s->kind == KM_SCHEDULE_WSD ? s->decay : 0) > s->steps)
        return km_error_set(err, KM_ERR_RANGE,
                            "schedule: warm-up and decay do not fit into %lld steps",
                            (long long)s->steps);
    return KM_OK;
}

bool km_schedule_named(const char *name, km_schedule_kind *kind) {
    for (int i = 0; i < KINDS; i++)
        if (name && strcmp(name, names[i]) == 0) {
            *kind = (km_schedule_kind)i;
            return true;
        }
    return false;
}

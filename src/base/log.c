/* Notes go to one process-wide sink. It is called without the lock held, so a sink may
 * itself call km_set_log; a note under way in another thread may still reach the old sink. */
#include "base/log.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    km_log_fn fn;
    void *user;
} sink;

void km_set_log(km_log_fn fn, void *user) {
    pthread_mutex_lock(&sink_lock);
    sink.fn = fn;
    sink.user = user;
    pthread_mutex_unlock(&sink_lock);
}

void km_note(km_log_level level, const char *fmt, ...) {
    pthread_mutex_lock(&sink_lock);
    km_log_fn fn = sink.fn;
    void *user = sink.user;
    pthread_mutex_unlock(&sink_lock);
    if (!fn) return;
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n >= 0) fn(user, level, line);
}

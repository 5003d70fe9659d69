/* The progress bar. One write per redraw, so that lines from other threads do not land in
 * its middle; cut to the terminal's width, so that it never wraps. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cli/progress.h"
#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define SHOW_AFTER 0.5
#define REDRAW_EVERY 0.1
#define BAR_WIDTH 20
#define ERASE "\r\033[K"

void km_progress_begin(km_progress *p, const char *label, const char *unit, int64_t total,
                       bool quiet) {
    const char *term = getenv("TERM");
    *p = (km_progress){.label = label ? label : "", .unit = unit ? unit : "", .total = total};
    p->started = km_now();
    p->enabled = !quiet && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

/* A terminal that is gone is no reason to stop the job. */
static void put(const char *text, size_t n) {
    if (write(STDERR_FILENO, text, n) < 0) return;
}

static size_t columns(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return 80;
}

/* "[==========>         ]  52%  41/79" */
static int format_bar(char *out, size_t size, const km_progress *p) {
    if (p->total <= 0) return snprintf(out, size, "%lld", (long long)p->done);
    double part = (double)p->done / (double)p->total;
    if (part < 0) part = 0;
    if (part > 1) part = 1;
    char bar[BAR_WIDTH + 1];
    int full = (int)(part * BAR_WIDTH);
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)full);
    if (full < BAR_WIDTH) bar[full] = '>';
    bar[BAR_WIDTH] = 0;
    return snprintf(out, size, "[%s] %3d%%  %lld/%lld", bar, (int)(part * 100), (long long)p->done,
                    (long long)p->total);
}

static void format_left(char *out, size_t size, const km_progress *p, double now) {
    out[0] = 0;
    if (p->total <= 0 || p->done <= p->first || p->done >= p->total) return;
    double left = (now - p->started) * (double)(p->total - p->done) / (double)(p->done - p->first);
    if (left < 99.5)
        snprintf(out, size, "   %.0f s left", left);
    else if (left < 5970)
        snprintf(out, size, "   %.0f min left", left / 60);
    else if (left < 3.6e8)
        snprintf(out, size, "   %.0f h left", left / 3600);
}

static void draw(km_progress *p, const char *note, double now) {
    char line[512], bar[96], left[32];
    format_bar(bar, sizeof bar, p);
    format_left(left, sizeof left, p, now);
    int n = snprintf(line, sizeof line, ERASE "%.60s  %s %.30s%s%.100s%s", p->label, bar, p->unit,
                     note ? "  " : "", note ? note : "", left);
    if (n < 0) return;
    size_t erase = sizeof ERASE - 1, end = (size_t)n;
    for (size_t i = erase; i < end; i++)
        if ((unsigned char)line[i] < ' ') line[i] = '?'; /* a note must not move the cursor */
    /* The last column stays free: filling it would wrap. */
    if (end > erase + columns() - 1) end = erase + columns() - 1;
    while (end > erase && ((unsigned char)line[end] & 0xC0) == 0x80) end--;
    put(line, end);
    p->drawn = now;
    p->visible = true;
}

void km_progress_step(km_progress *p, int64_t done, const char *note) {
    p->done = done;
    if (!p->enabled) return;
    double now = km_now();
    if (now - p->started < SHOW_AFTER || now - p->drawn < REDRAW_EVERY) return;
    draw(p, note, now);
}

void km_progress_hide(km_progress *p) {
    if (p->visible) put(ERASE, sizeof ERASE - 1);
    p->visible = false;
}

void km_progress_end(km_progress *p) {
    km_progress_hide(p);
    p->enabled = false;
}

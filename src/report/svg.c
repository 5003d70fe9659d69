/* Draws a chart as SVG. The picture has a fixed coordinate system and is scaled by the page. */
#include "report/chart.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 560, WIDE = 1120, HEIGHT = 320, RIGHT = 18, TOP = 14, BOTTOM = 48 };
#define MAX_TICKS 24
#define MAX_MARKED_POINTS 80

typedef struct span {
    km_chart_scale scale;
    double lo, hi;   /* of the data's transform: log on a logarithmic axis */
    double from, to; /* pixels */
    double tick[MAX_TICKS];
    int n_ticks;
} span;

/* Bytes need room for their unit. */
static int left_edge(const km_chart *c) { return c->y.ticks == KM_TICKS_BYTES ? 82 : 60; }
static int right_edge(const km_chart *c) { return (c->wide ? WIDE : WIDTH) - RIGHT; }

/* Where a stack stands: on those before it. */
static double floor_of(const km_chart *c, const km_series *s, int k) {
    double y = 0;
    for (const km_series *below = c->series; below < s; below++)
        if (below->kind == KM_SERIES_STACK && k < below->n && isfinite(below->y[k]))
            y += below->y[k];
    return y;
}

/* What a series reaches at its kth x. */
static double height_of(const km_chart *c, const km_series *s, int k) {
    if (s->kind != KM_SERIES_STACK) return s->y[k];
    return floor_of(c, s, k) + (isfinite(s->y[k]) ? s->y[k] : 0);
}

static double transform(km_chart_scale scale, double v) {
    return scale == KM_SCALE_LINEAR ? v : scale == KM_SCALE_LOG2 ? log2(v) : log10(v);
}

static bool drawable(km_chart_scale scale, double v) {
    return isfinite(v) && (scale == KM_SCALE_LINEAR || v > 0);
}

static double place(const span *s, double v) {
    double t = (transform(s->scale, v) - s->lo) / (s->hi - s->lo);
    return s->from + t * (s->to - s->from);
}

static bool inside(const span *s, double v) {
    double t = transform(s->scale, v), slack = 1e-9 * (s->hi - s->lo);
    return t >= s->lo - slack && t <= s->hi + slack;
}

static void add_tick(span *s, double v) {
    if (s->n_ticks < MAX_TICKS && inside(s, v)) s->tick[s->n_ticks++] = v;
}

/* 1, 2 or 5 times a power of ten, so that `range` takes about `count` steps. */
static double nice_step(double range, int count) {
    double raw = range / count, power = pow(10, floor(log10(raw))), m = raw / power;
    return power * (m < 1.5 ? 1 : m < 3.5 ? 2 : m < 7.5 ? 5 : 10);
}

/* Bytes are counted in powers of 1024, so that their steps read as round numbers. */
static double axis_step(const km_chart_axis *axis, double range, int count) {
    if (axis->ticks != KM_TICKS_BYTES || !(range > 0)) return nice_step(range, count);
    double unit = pow(1024, floor(log2(range) / 10));
    return fmax(1, unit * nice_step(range / unit, count));
}

static void linear_ticks(span *s, const km_chart_axis *axis, int count) {
    double step = axis_step(axis, s->hi - s->lo, count);
    for (double i = ceil(s->lo / step - 1e-9); i * step <= s->hi + 1e-9 * step; i++)
        add_tick(s, i * step + 0.0); /* -0 becomes 0 */
}

static void log2_ticks(span *s, int count) {
    double step = ceil((s->hi - s->lo) / count);
    if (step < 1) step = 1;
    for (double e = ceil(s->lo - 1e-9); e <= s->hi + 1e-9; e += step) add_tick(s, exp2(e));
}

/* Decades; with 2 and 5 between them, or all digits, where few decades show. */
static void log10_ticks(span *s, int count) {
    static const double digits[] = {1, 2, 5};
    double decades = s->hi - s->lo;
    int per_decade = decades * 3 <= count + 1 ? 3 : 1;
    double step = per_decade > 1 ? 1 : ceil(decades / count);
    if (step < 1) step = 1;
    for (double e = floor(s->lo); e <= s->hi + 1e-9; e += step)
        for (int i = 0; i < per_decade; i++) add_tick(s, digits[i] * pow(10, e));
}

/* The range of the data and round ends for it; false when there is nothing to draw. */
static bool fit(span *s, const km_chart *c, bool is_y, int count) {
    const km_chart_axis *axis = is_y ? &c->y : &c->x;
    s->scale = axis->scale;
    s->lo = INFINITY;
    s->hi = -INFINITY;
    for (int i = 0; i < c->n_series; i++) {
        const km_series *r = &c->series[i];
        if (!is_y && r->kind == KM_SERIES_LIMIT) continue;
        for (int k = 0; k < r->n; k++) {
            double v = is_y ? height_of(c, r, k) : r->x[k];
            if (!drawable(c->x.scale, r->x[k]) && !(r->kind == KM_SERIES_LIMIT && r->n == 1))
                continue;
            if (!drawable(c->y.scale, r->y[k])) continue;
            v = transform(s->scale, v);
            if (v < s->lo) s->lo = v;
            if (v > s->hi) s->hi = v;
        }
    }
    if (!(s->lo <= s->hi)) return false;
    if (s->scale == KM_SCALE_LINEAR) {
        if (axis->from_zero && s->lo > 0) s->lo = 0;
        if (s->hi == s->lo) s->hi = s->lo + (s->lo != 0 ? fabs(s->lo) : 1);
        if (is_y) { /* whole steps, so that the frame ends on a line */
            double step = axis_step(axis, s->hi - s->lo, count);
            s->lo = floor(s->lo / step + 1e-9) * step;
            s->hi = ceil(s->hi / step - 1e-9) * step;
        }
        linear_ticks(s, axis, count);
        return true;
    }
    double pad = is_y ? 0.06 * (s->hi - s->lo) : 0.02 * (s->hi - s->lo);
    if (s->hi == s->lo) pad = 0.5;
    s->lo -= pad;
    s->hi += pad;
    if (s->scale == KM_SCALE_LOG2)
        log2_ticks(s, count);
    else
        log10_ticks(s, count);
    return true;
}

static const char *tick_text(char buf[KM_NUMBER_TEXT], km_chart_ticks style, double v) {
    switch (style) {
    case KM_TICKS_SI: return km_format_si(buf, v);
    case KM_TICKS_BINARY: return km_format_binary(buf, v);
    case KM_TICKS_BYTES: return km_format_bytes(buf, v);
    default: snprintf(buf, KM_NUMBER_TEXT, "%.6g", v); return buf;
    }
}

static void draw_axes(const km_chart *c, const span *x, const span *y, km_text *out) {
    char label[KM_NUMBER_TEXT];
    km_text_add(out, "<g class=\"grid\">");
    for (int i = 0; i < y->n_ticks; i++) {
        double py = place(y, y->tick[i]);
        km_text_printf(out, "<path d=\"M%d %.1fH%d\"/>", left_edge(c), py, right_edge(c));
    }
    km_text_printf(out, "</g>\n<path class=\"axis\" d=\"M%d %dH%d", left_edge(c), HEIGHT - BOTTOM,
                   right_edge(c));
    for (int i = 0; i < x->n_ticks; i++)
        km_text_printf(out, "M%.1f %dv5", place(x, x->tick[i]), HEIGHT - BOTTOM);
    km_text_add(out, "\"/>\n<g class=\"tick x\">");
    for (int i = 0; i < x->n_ticks; i++)
        km_text_printf(out, "<text x=\"%.1f\" y=\"%d\">%s</text>", place(x, x->tick[i]),
                       HEIGHT - BOTTOM + 19, tick_text(label, c->x.ticks, x->tick[i]));
    km_text_add(out, "</g>\n<g class=\"tick y\">");
    for (int i = 0; i < y->n_ticks; i++)
        km_text_printf(out, "<text x=\"%d\" y=\"%.1f\">%s</text>", left_edge(c) - 8,
                       place(y, y->tick[i]) + 4, tick_text(label, c->y.ticks, y->tick[i]));
    km_text_printf(out, "</g>\n<text class=\"label\" x=\"%d\" y=\"%d\">",
                   (left_edge(c) + right_edge(c)) / 2, HEIGHT - 8);
    km_text_escape(out, c->x.label);
    km_text_printf(out,
                   "</text>\n<text class=\"label\" transform=\"translate(15 %d) rotate(-90)\">",
                   TOP + (HEIGHT - TOP - BOTTOM) / 2);
    km_text_escape(out, c->y.label);
    km_text_add(out, "</text>\n");
}

static void hover_text(const km_chart *c, const km_series *s, int k, km_text *out) {
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    km_text_add(out, "<title>");
    if (s->titles && s->titles[k]) {
        km_text_escape(out, s->titles[k]);
    } else {
        km_text_escape(out, s->name);
        km_text_printf(out, ": %s at %s",
                       c->y.ticks == KM_TICKS_BYTES ? km_format_bytes(a, s->y[k])
                                                    : km_format_number(a, s->y[k]),
                       tick_text(b, c->x.ticks, s->x[k]));
    }
    km_text_add(out, "</title>");
}

static bool point_ok(const km_chart *c, const km_series *s, int k) {
    return drawable(c->x.scale, s->x[k]) && drawable(c->y.scale, s->y[k]);
}

/* Straight lines through the points, with gaps where there is none to draw. */
static void draw_path(const km_chart *c, const km_series *s, const span *x, const span *y,
                      km_text *out) {
    bool pen = false;
    for (int k = 0; k < s->n; k++) {
        bool ok = point_ok(c, s, k) && inside(x, s->x[k]);
        if (ok)
            km_text_printf(out, "%c%.1f %.1f", pen ? 'L' : 'M', place(x, s->x[k]),
                           place(y, s->y[k]));
        pen = ok;
    }
}

static void draw_line(const km_chart *c, const km_series *s, int color, const span *x,
                      const span *y, km_text *out) {
    km_text_printf(out, "<g class=\"line c%d\"><path d=\"", color);
    draw_path(c, s, x, y, out);
    km_text_add(out, "\"><title>");
    km_text_escape(out, s->name);
    km_text_add(out, "</title></path>");
    for (int k = 0; k < s->n && s->n <= MAX_MARKED_POINTS; k++) {
        if (!point_ok(c, s, k)) continue;
        double px = place(x, s->x[k]), py = place(y, s->y[k]);
        /* The wide circle is invisible and catches the pointer. */
        km_text_printf(out,
                       "\n<g class=\"point\"><circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>"
                       "<circle class=\"hit\" cx=\"%.1f\" cy=\"%.1f\" r=\"11\">",
                       px, py, px, py);
        hover_text(c, s, k, out);
        km_text_add(out, "</circle></g>");
    }
    km_text_add(out, "</g>\n");
}

static void draw_area(const km_chart *c, const km_series *s, int color, const span *x,
                      const span *y, km_text *out) {
    km_text_printf(out, "<g class=\"area c%d\">", color);
    for (int k = 0; k < s->n;) {
        if (!point_ok(c, s, k)) {
            k++;
            continue;
        }
        double start = place(x, s->x[k]);
        km_text_printf(out, "<path d=\"M%.1f %dV%.1f", start, HEIGHT - BOTTOM, place(y, s->y[k]));
        for (k++; k < s->n && point_ok(c, s, k); k++)
            km_text_printf(out, "H%.1fV%.1f", place(x, s->x[k]), place(y, s->y[k]));
        km_text_printf(out, "V%dZ\"><title>", HEIGHT - BOTTOM);
        km_text_escape(out, s->name);
        km_text_add(out, "</title></path>");
    }
    km_text_add(out, "</g>\n");
}

/* A band between the stacks below and its own height, and a strip for the pointer at each x. */
static void draw_stack(const km_chart *c, const km_series *s, int color, const span *x,
                       const span *y, km_text *out) {
    if (s->n == 0 || c->x.scale != KM_SCALE_LINEAR || c->y.scale != KM_SCALE_LINEAR) return;
    for (int k = 0; k < s->n; k++)
        if (!isfinite(s->x[k])) return;
    km_text_printf(out, "<g class=\"stack c%d\"><path d=\"M%.1f %.1f", color, place(x, s->x[0]),
                   place(y, height_of(c, s, 0)));
    for (int k = 1; k < s->n; k++)
        km_text_printf(out, "H%.1fV%.1f", place(x, s->x[k]), place(y, height_of(c, s, k)));
    km_text_printf(out, "V%.1f", place(y, floor_of(c, s, s->n - 1)));
    for (int k = s->n - 1; k > 0; k--)
        km_text_printf(out, "H%.1fV%.1f", place(x, s->x[k]), place(y, floor_of(c, s, k - 1)));
    km_text_printf(out, "H%.1fZ\"><title>", place(x, s->x[0]));
    km_text_escape(out, s->name);
    km_text_add(out, "</title></path>");
    for (int k = 0; k < s->n && s->titles; k++) {
        double from = place(x, s->x[k]), to = k + 1 < s->n ? place(x, s->x[k + 1]) : right_edge(c);
        km_text_printf(out, "\n<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\">", from, TOP,
                       to - from, HEIGHT - TOP - BOTTOM);
        hover_text(c, s, k, out);
        km_text_add(out, "</rect>");
    }
    km_text_add(out, "</g>\n");
}

static void draw_limit(const km_chart *c, const km_series *s, const span *x, const span *y,
                       km_text *out) {
    bool flat = s->n == 1 && drawable(c->y.scale, s->y[0]);
    double level = flat ? place(y, s->y[0]) : 0;
    km_text_add(out, "<g class=\"limit\"><path d=\"");
    if (flat)
        km_text_printf(out, "M%d %.1fH%d", left_edge(c), level, right_edge(c));
    else
        draw_path(c, s, x, y, out);
    km_text_add(out, "\"><title>");
    km_text_escape(out, s->name);
    km_text_add(out, "</title></path>");
    if (flat) { /* named at its right end, above the line where there is room */
        km_text_printf(out, "<text x=\"%d\" y=\"%.1f\">", right_edge(c) - 2,
                       level > TOP + 14 ? level - 6 : level + 15);
        km_text_escape(out, s->name);
        km_text_add(out, "</text>");
    }
    km_text_add(out, "</g>\n");
}

static int series_color(const km_chart *c, int index) {
    int next = 0;
    for (int i = 0;; i++) {
        const km_series *s = &c->series[i];
        if (s->kind == KM_SERIES_LIMIT) {
            if (i == index) return 0;
            continue;
        }
        next = s->color ? s->color : next % KM_CHART_COLORS + 1;
        if (i == index) return next;
    }
}

static void draw_legend(const km_chart *c, km_text *out) {
    km_text_add(out, "<ul class=\"legend\">");
    for (int i = 0; i < c->n_series; i++) {
        const km_series *s = &c->series[i];
        if (s->kind == KM_SERIES_LIMIT)
            km_text_add(out, "<li class=\"limit\"><i></i>");
        else
            km_text_printf(out, "<li class=\"c%d\"><i></i>", series_color(c, i));
        km_text_escape(out, s->name);
        km_text_add(out, "</li>");
    }
    km_text_add(out, "</ul>\n");
}

void km_chart_html(const km_chart *c, km_text *out) {
    span x = {.from = left_edge(c), .to = right_edge(c)}, y = {.from = HEIGHT - BOTTOM, .to = TOP};
    km_text_add(out, "<figure>\n<figcaption><strong>");
    km_text_escape(out, c->title);
    km_text_add(out, "</strong>");
    if (c->note) {
        km_text_add(out, " <span>");
        km_text_escape(out, c->note);
        km_text_add(out, "</span>");
    }
    km_text_add(out, "</figcaption>\n");
    if (!fit(&x, c, false, 9) || !fit(&y, c, true, 5)) {
        km_text_add(out, "<p class=\"empty\">Nothing was measured.</p>\n</figure>\n");
        return;
    }
    draw_legend(c, out);
    km_text_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                   c->wide ? WIDE : WIDTH, HEIGHT);
    km_text_escape(out, c->title);
    km_text_add(out, "\">\n");
    draw_axes(c, &x, &y, out);
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].kind == KM_SERIES_AREA)
            draw_area(c, &c->series[i], series_color(c, i), &x, &y, out);
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].kind == KM_SERIES_STACK)
            draw_stack(c, &c->series[i], series_color(c, i), &x, &y, out);
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].kind == KM_SERIES_LIMIT) draw_limit(c, &c->series[i], &x, &y, out);
    for (int i = 0; i < c->n_series; i++)
        if (c->series[i].kind == KM_SERIES_LINE)
            draw_line(c, &c->series[i], series_color(c, i), &x, &y, out);
    km_text_add(out, "</svg>\n</figure>\n");
}

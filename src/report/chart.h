/* Charts as SVG: lines, stepped areas, stacks and limits over linear or logarithmic axes. A chart
 * is data only; colours come from the page's style (html.h), so that it follows light and dark. */
#ifndef KM_REPORT_CHART_H
#define KM_REPORT_CHART_H
#include "base/text.h"

typedef enum km_series_kind {
    KM_SERIES_LINE,  /* points joined by straight lines, a mark at each when they are few */
    KM_SERIES_AREA,  /* each value holds until the next x; filled down to the axis */
    KM_SERIES_STACK, /* the same, piled on the stacks before it; all share their x, linear axes */
    KM_SERIES_LIMIT  /* a dashed line nothing should cross; one point: horizontal, all across */
} km_series_kind;

typedef struct km_series {
    const char *name;
    const double *x, *y;       /* (n), x ascending; a y that is not finite leaves a gap */
    const char *const *titles; /* (n) shown when the pointer is over a point; NULL: x and y */
    int n;
    km_series_kind kind;
    int color; /* 1 .. KM_CHART_COLORS; 0: the next one in turn */
} km_series;

#define KM_CHART_COLORS 8

typedef enum km_chart_ticks {
    KM_TICKS_NUMBER, /* 0.5, 10, 4096 */
    KM_TICKS_SI,     /* 10k, 1M */
    KM_TICKS_BINARY, /* 64K = 65536 */
    KM_TICKS_BYTES   /* 64 KiB */
} km_chart_ticks;

typedef enum km_chart_scale { KM_SCALE_LINEAR, KM_SCALE_LOG2, KM_SCALE_LOG10 } km_chart_scale;

typedef struct km_chart_axis {
    const char *label;
    km_chart_scale scale; /* values at or below 0 leave a gap on a logarithmic axis */
    km_chart_ticks ticks;
    bool from_zero; /* a linear axis starts at 0 whatever the data */
} km_chart_axis;

typedef struct km_chart {
    const char *title;
    const char *note; /* a line under the title; may be NULL */
    km_chart_axis x, y;
    const km_series *series;
    int n_series;
    bool wide; /* as wide as the page: for a chart that stands alone */
} km_chart;

/* The chart as one <figure> with title, legend and <svg>. A chart without a drawable point says
 * so instead. */
void km_chart_html(const km_chart *c, km_text *out);

#endif

/* A report as one HTML page that needs nothing else: style and charts are inside it, it follows
 * the reader's light or dark setting, and it prints. Built in memory, then written in one go. */
#ifndef KM_REPORT_HTML_H
#define KM_REPORT_HTML_H
#include "base/error.h"
#include "base/text.h"

/* A figure of the page's head: "165", "GFLOP/s", "matmul 2048". */
typedef struct km_tile {
    const char *value, *unit, *label;
} km_tile;

void km_html_begin(km_text *out, const char *title, const char *lead);
void km_html_tiles(km_text *out, const km_tile *tiles, int n);
/* A heading and a paragraph under it (NULL: none). Sections do not nest. */
void km_html_section(km_text *out, const char *heading, const char *text);
void km_html_note(km_text *out, const char *text); /* a small paragraph */
void km_html_charts_begin(km_text *out);           /* figures up to the end stand side by side */
void km_html_charts_end(km_text *out);
void km_html_end(km_text *out, const char *footer);

/* Writes the text to path, whole or not at all. */
km_status km_html_write(const km_text *page, const char *path, km_error *err);

#endif

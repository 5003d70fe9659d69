/* Tables: filled cell by cell, then printed as aligned plain text or as HTML. Running out of
 * memory sticks and is reported by the printing calls. */
#ifndef KM_REPORT_TABLE_H
#define KM_REPORT_TABLE_H
#include "base/text.h"
#include <stdio.h>

#define KM_TABLE_MAX_COLUMNS 20

typedef struct km_table {
    int columns;
    const char *titles[KM_TABLE_MAX_COLUMNS]; /* not copied */
    char align[KM_TABLE_MAX_COLUMNS];         /* 'l' or 'r' */
    km_text cells;                            /* NUL-separated */
    size_t *offsets;                          /* where each cell starts */
    int n_cells, cap_cells;
    bool failed;
} km_table;

/* align: one letter a column, "lrr" for one left column and two right ones; titles: as many. */
void km_table_init(km_table *t, const char *align, const char *const *titles);
/* The next cell, left to right, row after row. */
void km_table_cell(km_table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int km_table_rows(const km_table *t);
/* Columns two spaces apart under a line of dashes, each line starting with `indent` spaces and
 * ending without any. False when the table ran out of memory or the file has an error. */
bool km_table_print(const km_table *t, FILE *out, int indent);
void km_table_html(const km_table *t, km_text *out);
void km_table_free(km_table *t);

#endif

/* Tables as plain text and as HTML. */
#include "report/table.h"
#include "base/alloc.h"
#include "base/array.h"
#include <string.h>

void km_table_init(km_table *t, const char *align, const char *const *titles) {
    *t = (km_table){0};
    t->columns = (int)strlen(align);
    if (t->columns > KM_TABLE_MAX_COLUMNS) t->columns = KM_TABLE_MAX_COLUMNS;
    for (int c = 0; c < t->columns; c++) {
        t->titles[c] = titles[c];
        t->align[c] = align[c];
    }
}

void km_table_cell(km_table *t, const char *fmt, ...) {
    if (!km_array_reserve(&t->offsets, &t->cap_cells, t->n_cells + 1)) {
        t->failed = true;
        return;
    }
    t->offsets[t->n_cells++] = t->cells.len;
    va_list ap;
    va_start(ap, fmt);
    km_text_vprintf(&t->cells, fmt, ap);
    va_end(ap);
    km_text_put(&t->cells, "", 1);
    if (!km_text_ok(&t->cells)) t->failed = true;
}

int km_table_rows(const km_table *t) { return (t->n_cells + t->columns - 1) / t->columns; }

static const char *cell(const km_table *t, int row, int column) {
    int i = row * t->columns + column;
    return i < t->n_cells ? t->cells.data + t->offsets[i] : "";
}

/* One line; trailing spaces are left out, so that the last column may be of any length. */
static void print_row(const km_table *t, FILE *out, int indent, const int *width, int row) {
    int spaces = indent;
    for (int c = 0; c < t->columns; c++) {
        const char *s = row < 0 ? t->titles[c] : cell(t, row, c);
        int pad = width[c] - (int)strlen(s);
        if (t->align[c] == 'r') spaces += pad;
        if (*s) {
            fprintf(out, "%*s%s", spaces, "", s);
            spaces = 0;
        }
        if (t->align[c] != 'r') spaces += *s ? pad : width[c];
        spaces += 2;
    }
    fputc('\n', out);
}

bool km_table_print(const km_table *t, FILE *out, int indent) {
    if (t->failed) return false;
    int width[KM_TABLE_MAX_COLUMNS];
    int rows = km_table_rows(t);
    for (int c = 0; c < t->columns; c++) {
        width[c] = (int)strlen(t->titles[c]);
        for (int r = 0; r < rows; r++) {
            int n = (int)strlen(cell(t, r, c));
            if (n > width[c]) width[c] = n;
        }
    }
    print_row(t, out, indent, width, -1);
    for (int c = 0; c < t->columns; c++) {
        fprintf(out, "%*s", c ? 2 : indent, "");
        for (int i = 0; i < width[c]; i++) fputc('-', out);
    }
    fputc('\n', out);
    for (int r = 0; r < rows; r++) print_row(t, out, indent, width, r);
    return !ferror(out);
}

void km_table_html(const km_table *t, km_text *out) {
    if (t->failed) {
        out->failed = true;
        return;
    }
    km_text_add(out, "<div class=\"scroll\"><table>\n<thead><tr>");
    for (int c = 0; c < t->columns; c++) {
        km_text_printf(out, "<th class=\"%c\">", t->align[c]);
        km_text_escape(out, t->titles[c]);
        km_text_add(out, "</th>");
    }
    km_text_add(out, "</tr></thead>\n<tbody>\n");
    for (int r = 0; r < km_table_rows(t); r++) {
        km_text_add(out, "<tr>");
        for (int c = 0; c < t->columns; c++) {
            km_text_printf(out, "<td class=\"%c\">", t->align[c]);
            km_text_escape(out, cell(t, r, c));
            km_text_add(out, "</td>");
        }
        km_text_add(out, "</tr>\n");
    }
    km_text_add(out, "</tbody>\n</table></div>\n");
}

void km_table_free(km_table *t) {
    km_free(t->offsets);
    km_text_free(&t->cells);
    *t = (km_table){0};
}

/* Plain lines, and the choice between those and libedit's. */
#include "cli/line.h"
#include "base/alloc.h"
#include "cli/interrupt.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct km_lines {
    km_edit *edit; /* NULL: plain lines */
    bool terminal, ended;
    char buffer[65536]; /* read but not yet handed out: [from, to) */
    size_t from, to;
};

km_lines *km_lines_open(bool terminal, bool colour) {
    km_lines *l = km_calloc(1, sizeof *l);
    if (!l) return NULL;
    l->terminal = terminal;
    if (terminal && isatty(STDOUT_FILENO)) l->edit = km_edit_open(colour);
    return l;
}

void km_lines_close(km_lines *l) {
    if (!l) return;
    km_edit_close(l->edit);
    km_free(l);
}

bool km_lines_edited(const km_lines *l) { return l->edit != NULL; }

void km_lines_complete(km_lines *l, km_complete_fn complete, void *user) {
    if (l->edit) km_edit_complete(l->edit, complete, user);
}

static km_line take_up_to(km_lines *l, size_t end, km_text *out, size_t first, km_error *err) {
    km_text_put(out, l->buffer + l->from, end - l->from);
    l->from = end;
    if (!km_text_ok(out)) {
        km_error_set(err, KM_ERR_MEMORY, "a line does not fit in memory");
        return KM_LINE_FAILED;
    }
    if (out->len - first > KM_LINE_MOST) {
        km_error_set(err, KM_ERR_RANGE, "a line is longer than %zu MiB", KM_LINE_MOST >> 20);
        return KM_LINE_FAILED;
    }
    return KM_LINE_TEXT;
}

static km_line read_plain(km_lines *l, km_text *out, km_error *err) {
    size_t first = out->len;
    while (true) {
        char *end = memchr(l->buffer + l->from, '\n', l->to - l->from);
        size_t stop = end ? (size_t)(end - l->buffer) : l->to;
        if (take_up_to(l, stop, out, first, err) != KM_LINE_TEXT) return KM_LINE_FAILED;
        if (end) {
            l->from++;
            if (out->len > first && out->data[out->len - 1] == '\r') out->data[--out->len] = 0;
            return KM_LINE_TEXT;
        }
        if (l->ended) return out->len > first ? KM_LINE_TEXT : KM_LINE_END;
        ssize_t n = l->terminal ? km_read_typed(l->buffer, sizeof l->buffer)
                                : read(STDIN_FILENO, l->buffer, sizeof l->buffer);
        if (n < 0 && errno == EINTR && l->terminal) {
            l->from = l->to = 0;
            out->len = first;
            return KM_LINE_CANCELLED;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            km_error_set(err, KM_ERR_FILE, "cannot read the input: %s", strerror(errno));
            return KM_LINE_FAILED;
        }
        l->from = 0;
        l->to = (size_t)n;
        /* a terminal's end is a line's end too: more may come after it */
        if (n == 0 && (!l->terminal || out->len == first)) l->ended = true;
    }
}

km_line km_lines_read(km_lines *l, const char *prompt, km_text *out, km_error *err) {
    if (l->edit) return km_edit_read(l->edit, prompt, out, err);
    if (l->terminal) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    return read_plain(l, out, err);
}

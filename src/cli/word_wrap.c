/* Word wrap on a terminal. */
#include "cli/word_wrap.h"
#include "base/utf8.h"
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

int km_word_wrap_width(int fd) {
    struct winsize size = {0};
    if (!isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 0;
    return size.ws_col;
}

/* Shows the word that was held back, on the next line if this one has no room for it. */
static bool show_word(km_word_wrap *w) {
    static const char spaces[] = "                ";
    bool ok = true;
    if (w->held == 0) return true;
    if (w->column + w->blanks + w->held_width > w->width) {
        ok = w->put("\n", 1);
        w->column = w->blanks = 0;
    }
    for (; ok && w->blanks > 0;) {
        int n = w->blanks < 16 ? w->blanks : 16;
        ok = w->put(spaces, (size_t)n);
        w->column += n;
        w->blanks -= n;
    }
    ok = ok && w->put(w->word, w->held);
    w->column += w->held_width;
    w->held = 0;
    w->held_width = 0;
    return ok;
}

static bool end_line(km_word_wrap *w) {
    bool ok = show_word(w);
    if (w->ticks >= 3) w->code = !w->code;
    w->column = w->blanks = w->ticks = 0;
    w->flows = false;
    return ok && w->put("\n", 1);
}

static bool put_character(km_word_wrap *w, const char *c, size_t bytes, int columns) {
    if (*c == ' ' || *c == '\t') {
        bool ok = show_word(w);
        w->blanks += *c == '\t' ? 4 : 1;
        w->flows = false;
        return ok;
    }
    /* at a line's beginning there is nothing to wait for, nor where a word has its own line */
    if (w->flows || w->column + w->blanks + w->held == 0) {
        w->flows = true;
        w->column = (w->column + columns) % w->width; /* the terminal breaks long words */
        return w->put(c, bytes);
    }
    memcpy(w->word + w->held, c, bytes);
    w->held += bytes;
    w->held_width += columns;
    bool full = w->column + w->blanks + w->held_width > w->width || w->held + 4 > sizeof w->word;
    bool wide = columns > 1; /* scripts that write nothing between words */
    if (!full && !wide) return true;
    w->flows = full;
    return show_word(w);
}

static void count_ticks(km_word_wrap *w, char c) {
    if (w->ticks >= 0 && w->ticks < 3) w->ticks = c == '`' ? w->ticks + 1 : -1;
}

bool km_word_wrap_put(km_word_wrap *w, const char *text, size_t bytes) {
    bool ok = true;
    if (w->width <= 0) return w->put(text, bytes);
    for (size_t i = 0; i < bytes && ok;) {
        uint32_t point = 0;
        int n = km_utf8_read(text + i, bytes - i, &point);
        if (text[i] == '\n') {
            ok = end_line(w);
        } else if (w->code || w->ticks >= 3) {
            count_ticks(w, text[i]);
            ok = w->put(text + i, (size_t)(n ? n : 1));
        } else {
            count_ticks(w, text[i]);
            int columns = n ? utf8proc_charwidth((utf8proc_int32_t)point) : 1;
            ok = put_character(w, text + i, (size_t)(n ? n : 1), columns);
        }
        i += (size_t)(n ? n : 1);
    }
    return ok;
}

bool km_word_wrap_end(km_word_wrap *w) { return w->width <= 0 || show_word(w); }

/* Lines edited by libedit, with a history that outlives the program. */
#include "cli/line.h"

#ifndef KERMES_LIBEDIT

km_edit *km_edit_open(bool colour) {
    (void)colour;
    return NULL;
}
void km_edit_close(km_edit *e) { (void)e; }
void km_edit_complete(km_edit *e, km_complete_fn complete, void *user) {
    (void)e, (void)complete, (void)user;
}
km_line km_edit_read(km_edit *e, const char *prompt, km_text *out, km_error *err) {
    (void)e, (void)prompt, (void)out, (void)err;
    return KM_LINE_END;
}

#else
#include "base/alloc.h"
#include "cli/interrupt.h"
#include <errno.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <wchar.h>

struct km_edit {
    EditLine *line;
    History *history;
    char file[PATH_MAX]; /* of the history; "": none */
    char prompt[64];
    bool colour;
    km_complete_fn complete; /* or NULL */
    void *user;
};

static char *show_prompt(EditLine *line) {
    km_edit *e = NULL;
    el_get(line, EL_CLIENTDATA, &e);
    return e->prompt;
}

/* The next character, for libedit, whose own reading can lose a Ctrl-C. Bytes that are no character
 * are dropped. */
static int next_character(EditLine *line, wchar_t *out) {
    (void)line;
    mbstate_t state = {0};
    while (true) {
        char byte;
        ssize_t n = km_read_typed(&byte, 1);
        if (n <= 0) return (int)n;
        mbstate_t before = state;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-1 && !mbsinit(&before)) { /* perhaps the first of another */
            state = (mbstate_t){0};
            used = mbrtowc(out, &byte, 1, &state);
        }
        if (used <= 1) return 1;
        if (used == (size_t)-1) state = (mbstate_t){0};
    }
}

/* ---- Pastes ---- */

/* The terminal brackets a paste by ESC [200~ and ESC [201~, so that its newlines are text and end
 * no line. The last one is left out: who pastes a line still says when it is sent. */
static unsigned char take_paste(EditLine *line, int key) {
    static const wchar_t end[] = L"\033[201~";
    const size_t mark = sizeof end / sizeof *end - 1;
    size_t n = 0, room = 1024;
    wchar_t *text = km_alloc(room * sizeof *text);
    (void)key;
    while (text) {
        if (n + 2 > room) {
            wchar_t *more = km_realloc(text, (room *= 2) * sizeof *text);
            if (!more) break;
            text = more;
        }
        if (el_wgetc(line, &text[n]) != 1) break;
        if (text[n] == L'\r') text[n] = L'\n';
        n++;
        if (n >= mark && wmemcmp(text + n - mark, end, mark) == 0) {
            n -= mark;
            break;
        }
        if (n * sizeof *text > KM_LINE_MOST) break;
    }
    while (n > 0 && text[n - 1] == L'\n') n--;
    if (text) text[n] = 0;
    int failed = n > 0 ? el_winsertstr(line, text) : 0;
    km_free(text);
    return failed ? CC_ERROR : CC_REFRESH;
}

/* ---- Tab ---- */

static void list_choices(const km_text *all) {
    fputc('\n', stdout);
    for (const char *at = all->data; *at;) {
        size_t n = strcspn(at, "\n");
        printf("%.*s  ", (int)n, at);
        at += n + (at[n] == '\n');
    }
    fputc('\n', stdout);
}

/* The longest beginning that all choices have, its length; *n: how many there are. */
static size_t common_beginning(const km_text *all, int *n) {
    size_t common = 0;
    *n = 0;
    for (const char *at = km_text_str(all); *at; (*n)++) {
        size_t length = strcspn(at, "\n"), same = 0;
        while (same < length && (*n == 0 || (same < common && at[same] == all->data[same]))) same++;
        common = same;
        at += length + (at[length] == '\n');
    }
    return common;
}

static unsigned char take_tab(EditLine *line, int key) {
    km_edit *e = NULL;
    km_text before = {0}, all = {0};
    int n = 0;
    unsigned char result = CC_ERROR;
    (void)key;
    el_get(line, EL_CLIENTDATA, &e);
    const LineInfo *info = el_line(line);
    km_text_put(&before, info->buffer, (size_t)(info->cursor - info->buffer));
    if (e->complete && km_text_ok(&before)) e->complete(e->user, km_text_str(&before), &all);
    size_t common = km_text_ok(&all) ? common_beginning(&all, &n) : 0;
    const char *space = strrchr(km_text_str(&before), ' ');
    size_t typed = strlen(space ? space + 1 : km_text_str(&before));
    if (n > 0 && common > typed) {
        km_text rest = {0};
        km_text_put(&rest, all.data + typed, common - typed);
        result = el_insertstr(line, km_text_str(&rest)) == 0 ? CC_REFRESH : CC_ERROR;
        km_text_free(&rest);
    } else if (n > 1) {
        list_choices(&all);
        result = CC_REDISPLAY;
    }
    km_text_free(&before);
    km_text_free(&all);
    return result;
}

void km_edit_complete(km_edit *e, km_complete_fn complete, void *user) {
    e->complete = complete;
    e->user = user;
}

/* KERMES_HISTORY, or kermes/history under XDG_STATE_HOME or ~/.local/state; the folders are made. */
static void find_history(char file[PATH_MAX]) {
    const char *mine = getenv("KERMES_HISTORY"), *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    int n = 0;
    file[0] = 0;
    if (mine)
        n = snprintf(file, PATH_MAX, "%s", mine);
    else if (state && *state)
        n = snprintf(file, PATH_MAX, "%s/kermes/history", state);
    else if (home && *home)
        n = snprintf(file, PATH_MAX, "%s/.local/state/kermes/history", home);
    if (n <= 0 || n >= PATH_MAX) {
        file[0] = 0;
        return;
    }
    for (char *slash = file + 1; !mine && (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(file, 0700); /* what is there already stays as it is */
        *slash = '/';
    }
}

km_edit *km_edit_open(bool colour) {
    const char *term = getenv("TERM");
    if (!term || !*term || strcmp(term, "dumb") == 0) return NULL;
    km_edit *e = km_calloc(1, sizeof *e);
    if (!e) return NULL;
    /* Whole characters are edited, also where nobody has set a locale. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    e->colour = colour;
    e->line = el_init("kermes", stdin, stdout, stderr);
    e->history = history_init();
    if (!e->line || !e->history) {
        km_edit_close(e);
        return NULL;
    }
    HistEvent event;
    history(e->history, &event, H_SETSIZE, 1000);
    history(e->history, &event, H_SETUNIQUE, 1);
    find_history(e->file);
    if (e->file[0]) history(e->history, &event, H_LOAD, e->file);
    el_set(e->line, EL_CLIENTDATA, e);
    el_set(e->line, EL_PROMPT_ESC, show_prompt, '\1');
    el_set(e->line, EL_EDITOR, "emacs");
    el_set(e->line, EL_GETCFN, next_character);
    el_set(e->line, EL_HIST, history, e->history);
    el_set(e->line, EL_ADDFN, "kermes-paste", "takes a bracketed paste", take_paste);
    el_set(e->line, EL_ADDFN, "kermes-complete", "completes a command", take_tab);
    el_set(e->line, EL_BIND, "\\e[200~", "kermes-paste", NULL);
    el_set(e->line, EL_BIND, "^I", "kermes-complete", NULL);
    el_set(e->line, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(e->line, EL_BIND, "\\e[3~", "ed-delete-next-char", NULL);
    el_set(e->line, EL_BIND, "\\e[H", "ed-move-to-beg", NULL);
    el_set(e->line, EL_BIND, "\\e[F", "ed-move-to-end", NULL);
    el_set(e->line, EL_BIND, "\\e[1;5C", "em-next-word", NULL);
    el_set(e->line, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    return e;
}

void km_edit_close(km_edit *e) {
    if (!e) return;
    HistEvent event;
    if (e->history && e->file[0]) {
        mode_t before = umask(077);
        history(e->history, &event, H_SAVE, e->file);
        umask(before);
    }
    if (e->line) el_end(e->line);
    if (e->history) history_end(e->history);
    km_free(e);
}

km_line km_edit_read(km_edit *e, const char *prompt, km_text *out, km_error *err) {
    snprintf(e->prompt, sizeof e->prompt, e->colour ? "\1\033[1;32m\1%.40s\1\033[0m\1" : "%.40s",
             prompt);
    int n = 0;
    errno = 0;
    fputs("\033[?2004h", stdout); /* brackets around pastes */
    const char *text = el_gets(e->line, &n);
    int failed = errno;
    fputs("\033[?2004l", stdout);
    fflush(stdout);
    errno = failed;
    if (n < 0 && errno == EINTR) { /* Ctrl-C */
        fputs("^C\n", stdout);
        fflush(stdout);
        return KM_LINE_CANCELLED;
    }
    if (n < 0 && errno && errno != EIO) { /* EIO: the terminal is gone */
        km_error_set(err, KM_ERR_FILE, "cannot read the terminal: %s", strerror(errno));
        return KM_LINE_FAILED;
    }
    if (!text || n <= 0) return KM_LINE_END;
    HistEvent event;
    if (strspn(text, " \t\r\n") < (size_t)n) history(e->history, &event, H_ENTER, text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    km_text_put(out, text, (size_t)n);
    if (km_text_ok(out)) return KM_LINE_TEXT;
    km_error_set(err, KM_ERR_MEMORY, "a line does not fit in memory");
    return KM_LINE_FAILED;
}
#endif

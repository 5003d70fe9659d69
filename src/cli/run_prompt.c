/* Prompts for kermes run. */
#include "cli/run_prompt.h"
#include "base/file.h"
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES ((size_t)1 << 30)

km_status km_run_prompt_words(km_run_prompt *p, const km_args *args, const char **model,
                              km_text *joined, km_error *err) {
    int first = 0;
    if (args->n_words > 0 && !*model && km_model_known(args->words[0], args->n_words == 1)) {
        *model = args->words[0];
        first = 1;
    }
    for (int i = first; i < args->n_words; i++)
        km_text_printf(joined, "%s%s", i > first ? " " : "", args->words[i]);
    if (!km_text_ok(joined)) return km_error_set(err, KM_ERR_MEMORY, "run: out of memory");
    bool words = args->n_words > first;
    if (words + (p->given != NULL) + (p->file != NULL) > 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "run: give one prompt: the words, --prompt or --file");
    if (words) p->given = km_text_str(joined);
    return KM_OK;
}

static km_status read_input(km_text *out, km_error *err) {
    char buffer[65536];
    for (ssize_t n; (n = read(STDIN_FILENO, buffer, sizeof buffer)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return km_error_set(err, KM_ERR_FILE, "cannot read the input: %s", strerror(errno));
        km_text_put(out, buffer, (size_t)n);
        if (!km_text_ok(out) || out->len > MOST_BYTES)
            return km_error_set(err, KM_ERR_MEMORY, "the prompt does not fit in memory");
    }
    return KM_OK;
}

/* As an editor or echo leaves it: its last newline is none of the text's. */
static void drop_newline(km_text *t) {
    if (t->len > 0 && t->data[t->len - 1] == '\n') t->data[--t->len] = 0;
    if (t->len > 0 && t->data[t->len - 1] == '\r') t->data[--t->len] = 0;
}

km_status km_run_prompt_read(const km_run_prompt *p, km_text *out, km_error *err) {
    if (p->given) {
        km_text_add(out, p->given);
        return KM_OK;
    }
    if (p->file && strcmp(p->file, "-") != 0) {
        km_map map = {0};
        km_status s = km_map_open(&map, p->file, err);
        if (s == KM_OK) km_text_put(out, (const char *)map.data, map.size);
        return km_map_done(&map, s, err);
    }
    bool typed = isatty(STDIN_FILENO) == 1;
    if (!p->file && (!p->piped || typed)) {
        if (!p->piped) return KM_OK;
        return km_error_set(
            err, KM_ERR_RANGE,
            "run: give a prompt: kermes run 'TEXT', --file FILE, or a text by a pipe");
    }
    km_status s = read_input(out, err);
    if (s == KM_OK && !p->file) drop_newline(out);
    if (s == KM_OK && out->len == 0)
        return km_error_set(err, KM_ERR_RANGE,
                            "run: there is no prompt: the input is empty; give one as kermes run "
                            "'TEXT' or --file FILE");
    return s;
}

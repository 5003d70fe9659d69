/* Parsing of command lines, and help pages, from a table of options. */
#include "cli/args.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Near misses ---- */

/* Edits that turn a into b: insert, delete, replace a letter, or swap two neighbours. */
static int distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    int d[MAX][MAX];
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && d[i - 2][j - 2] + 1 < best) best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n][m];
}

const char *km_nearest(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    size_t length = strlen(word);
    int least = length < 4 ? 2 : 3; /* suggestions farther off than that are noise */
    for (int i = 0; i < n; i++) {
        if (!names[i]) continue;
        int d = distance(word, names[i]);
        if (length >= 3 && strncmp(word, names[i], length) == 0) d = 1; /* cut short */
        if (d < least && d < (int)strlen(names[i])) {
            least = d;
            best = names[i];
        }
    }
    return best;
}

static void tell_names(const char *what, const char *word, const char *const *names, int n,
                       km_error *err) {
    char all[160] = "";
    size_t used = 0;
    for (int i = 0; i < n && used < sizeof all; i++)
        if (names[i])
            used +=
                (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", names[i]);
    if (used && used < sizeof all)
        km_error_set(err, KM_ERR_RANGE, "unknown %s '%.60s': there are %s", what, word, all);
    else
        km_error_set(err, KM_ERR_RANGE, "unknown %s '%.60s'", what, word);
}

int km_choose(const char *what, const char *word, const char *const *names, int n, km_error *err) {
    for (int i = 0; i < n; i++)
        if (names[i] && strcmp(word, names[i]) == 0) return i;
    const char *near = km_nearest(word, names, n);
    if (near)
        km_error_set(err, KM_ERR_RANGE, "unknown %s '%.60s'; did you mean '%s'?", what, word, near);
    else
        tell_names(what, word, names, n, err);
    return -1;
}

/* ---- Values ---- */

static bool in_range(const km_option *o, double v) {
    return (o->lo == 0 && o->hi == 0) || (v >= o->lo && v <= o->hi);
}

static km_status range_error(const km_option *o, const char *text, km_error *err) {
    return km_error_set(err, KM_ERR_RANGE, "--%s must be between %.10g and %.10g, not '%.60s'",
                        o->name, o->lo, o->hi, text);
}

static km_status parse_int(const km_option *o, const char *text, km_error *err) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end)
        return km_error_set(err, KM_ERR_RANGE, "--%s takes a whole number, not '%.60s'", o->name,
                            text);
    if (errno == ERANGE)
        return km_error_set(err, KM_ERR_RANGE, "--%s: '%.60s' is too large", o->name, text);
    if (!in_range(o, (double)v)) return range_error(o, text, err);
    *(int64_t *)o->dest = v;
    return KM_OK;
}

static km_status parse_number(const km_option *o, const char *text, km_error *err) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return km_error_set(err, KM_ERR_RANGE, "--%s takes a number, not '%.60s'", o->name, text);
    if (!in_range(o, v)) return range_error(o, text, err);
    *(double *)o->dest = v;
    return KM_OK;
}

static km_status parse_sizes(const km_option *o, const char *text, km_error *err) {
    km_sizes sizes = {.n = 0};
    for (const char *s = text;; s++) {
        char *end;
        errno = 0;
        long long v = strtoll(s, &end, 10);
        int shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        bool ok = end != s && !errno && v >= 0 && v <= INT64_MAX >> shift;
        if (shift) end++;
        if (!ok || (*end && *end != ','))
            return km_error_set(err, KM_ERR_RANGE,
                                "--%s takes sizes such as 128,1K,64M, not '%.60s'", o->name, text);
        v <<= shift;
        if (!in_range(o, (double)v)) return range_error(o, text, err);
        if (sizes.n == KM_MAX_SIZES)
            return km_error_set(err, KM_ERR_RANGE, "--%s takes at most %d sizes", o->name,
                                KM_MAX_SIZES);
        sizes.value[sizes.n++] = v;
        s = end;
        if (!*s) break;
    }
    *(km_sizes *)o->dest = sizes;
    return KM_OK;
}

static km_status parse_device(const km_option *o, const char *text, km_error *err) {
    static const char *const names[] = {"auto", "ref", "cpu", "gpu", "metal", "cuda", "vulkan"};
    const int n = sizeof names / sizeof *names;
    const char *number = strncmp(text, "cuda:", 5) == 0     ? text + 5
                         : strncmp(text, "vulkan:", 7) == 0 ? text + 7
                                                            : "";
    bool known = *number && strspn(number, "0123456789") == strlen(number) && strlen(number) < 4;
    for (int i = 0; i < n; i++) known = known || strcmp(text, names[i]) == 0;
    if (!known) {
        const char *near = km_nearest(text, names, n);
        return km_error_set(err, KM_ERR_RANGE,
                            "--%s: no device is called '%.60s'%s%s%s; there are auto, ref, cpu, "
                            "gpu, metal, cuda, cuda:N, vulkan and vulkan:N",
                            o->name, text, near ? "; did you mean '" : "", near ? near : "",
                            near ? "'?" : "");
    }
    *(const char **)o->dest = text;
    return KM_OK;
}

static km_status parse_list(const km_option *o, const char *text, bool first, km_error *err) {
    km_words *list = o->dest;
    if (!*text) return km_error_set(err, KM_ERR_RANGE, "--%s needs a value", o->name);
    if (first) list->n = 0;
    if (list->n == KM_MAX_LIST)
        return km_error_set(err, KM_ERR_RANGE, "--%s can be given %d times at most", o->name,
                            KM_MAX_LIST);
    list->at[list->n++] = text;
    return KM_OK;
}

static km_status parse_value(const km_option *o, const char *text, bool first, km_error *err) {
    switch (o->kind) {
    case KM_OPTION_FLAG: *(bool *)o->dest = true; return KM_OK;
    case KM_OPTION_INT: return parse_int(o, text, err);
    case KM_OPTION_NUMBER: return parse_number(o, text, err);
    case KM_OPTION_SIZES: return parse_sizes(o, text, err);
    case KM_OPTION_DEVICE: return parse_device(o, text, err);
    case KM_OPTION_LIST: return parse_list(o, text, first, err);
    case KM_OPTION_TEXT: break;
    }
    if (!*text) return km_error_set(err, KM_ERR_RANGE, "--%s needs a value", o->name);
    *(const char **)o->dest = text;
    return KM_OK;
}

/* ---- The line ---- */

static km_status unknown_option(const km_spec *spec, const char *name, size_t length,
                                km_error *err) {
    char word[48];
    snprintf(word, sizeof word, "%.*s", (int)(length < 47 ? length : 47), name);
    const char *names[KM_MAX_OPTIONS + 1] = {"help"};
    int n = 1;
    for (const km_option *o = spec->options; o->name && n <= KM_MAX_OPTIONS; o++)
        names[n++] = o->name;
    const char *near = km_nearest(word, names, n);
    if (near)
        return km_error_set(err, KM_ERR_RANGE, "%s has no option --%s; did you mean --%s?",
                            spec->name, word, near);
    return km_error_set(err, KM_ERR_RANGE, "%s has no option --%s; 'kermes %s --help' lists them",
                        spec->name, word, spec->name);
}

static const km_option *find_option(const km_spec *spec, const char *name, size_t length) {
    for (const km_option *o = spec->options; o->name; o++)
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0) return o;
    return NULL;
}

static bool asks_for_help(const char *arg) {
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

/* Other names by which people know an option: one letter, or what other programs call it. */
static const struct {
    const char *known, *name;
} other_names[] = {
    {"-m", "model"},
    {"-n", "tokens"},
    {"-o", "out"},
    {"-k", "k"},
    {"-p", "prompt"},
    {"-f", "file"},
    {"-c", "context"},
    {"-t", "threads"},
    {"-s", "seed"},
    {"--temp", "temperature"},
    {"--max-tokens", "tokens"},
    {"--n-predict", "tokens"},
    {"--ctx-size", "context"},
    {"--n-ctx", "context"},
    {"--system-prompt", "system"},
    {"--n-gpu-layers", "gpu-layers"},
    {"--repeat-last-n", "repeat-last"},
};

/* The option that `arg` of that length, dashes included, is another name of; or NULL. */
static const km_option *find_other(const km_spec *spec, const char *arg, size_t length) {
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++) {
        const char *known = other_names[i].known, *name = other_names[i].name;
        if (strlen(known) == length && strncmp(known, arg, length) == 0)
            return find_option(spec, name, strlen(name));
    }
    return NULL;
}

km_status km_args_parse(const km_spec *spec, int argc, char **argv, km_args *args, km_error *err) {
    *args = (km_args){0};
    /* Help wins over everything, mistakes on the same line included. */
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (asks_for_help(argv[i])) {
            args->help = true;
            return KM_OK;
        }
    bool options = true;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i], *value = strchr(arg, '=');
        size_t length = value ? (size_t)(value - arg) : strlen(arg);
        bool twice = strncmp(arg, "--", 2) == 0;
        const km_option *o = !options ? NULL : find_other(spec, arg, length);
        if (!o && options && twice) o = find_option(spec, arg + 2, length - 2);
        if (options && strcmp(arg, "--") == 0) {
            options = false;
        } else if (options && (o || twice)) {
            if (!o) return unknown_option(spec, arg + 2, length - 2, err);
            if (value) value++;
            if (o->kind == KM_OPTION_FLAG && value)
                return km_error_set(err, KM_ERR_RANGE, "--%s takes no value", o->name);
            if (o->kind != KM_OPTION_FLAG && !value) {
                if (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0)
                    return km_error_set(err, KM_ERR_RANGE, "--%s needs a value: --%s %s", o->name,
                                        o->name, o->value);
                value = argv[++i];
            }
            ptrdiff_t row = o - spec->options;
            km_status s = parse_value(o, value, !args->given[row], err);
            if (s != KM_OK) return s;
            args->given[row] = true;
        } else if (options && arg[0] == '-' && arg[1]) {
            return km_error_set(err, KM_ERR_RANGE,
                                "%s has no option '%.60s'; most begin with two dashes, and 'kermes "
                                "%s --help' lists them",
                                spec->name, arg, spec->name);
        } else if (!spec->words) {
            return km_error_set(err, KM_ERR_RANGE, "%s takes options only, not '%.60s'", spec->name,
                                arg);
        } else if (args->n_words == KM_MAX_WORDS) {
            return km_error_set(err, KM_ERR_RANGE, "%s takes at most %d names", spec->name,
                                KM_MAX_WORDS);
        } else {
            args->words[args->n_words++] = arg;
        }
    }
    return KM_OK;
}

/* ---- Help ---- */

/* text with every line after the first indented */
static void print_indented(FILE *out, const char *text, int indent) {
    for (; *text; text++) {
        fputc(*text, out);
        if (*text == '\n' && text[1]) fprintf(out, "%*s", indent, "");
    }
}

void km_args_help(const km_spec *spec, FILE *out) {
    fprintf(out, "%s\n\nUsage: kermes %s%s%s [options]\n", spec->summary, spec->name,
            spec->words ? " " : "", spec->words ? spec->words : "");
    if (spec->details) fprintf(out, "\n%s", spec->details);
    int width = (int)strlen("help");
    for (const km_option *o = spec->options; o->name; o++) {
        int n = (int)strlen(o->name) + (o->value ? 1 + (int)strlen(o->value) : 0);
        if (n > width) width = n;
    }
    fprintf(out, "\nOptions:\n");
    for (const km_option *o = spec->options; o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->value ? " " : "",
                 o->value ? o->value : "");
        fprintf(out, "  --%-*s  ", width, left);
        print_indented(out, o->help, width + 6);
        fputc('\n', out);
    }
    fprintf(out, "  --%-*s  this page\n\nExamples:\n  ", width, "help");
    print_indented(out, spec->examples, 2);
}

/* kermes tokenize: text to ids and back, and tokenizers made from text. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "report/json.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define END_OF_TEXT "<|endoftext|>"

typedef struct tokenize_settings {
    km_common common;
    const char *tokenizer, *file, *train, *out, *special;
    bool decode, count, pieces, ids, no_special;
} tokenize_settings;

/* ---- Text in ---- */

typedef struct source { /* the text of an argument, a file or standard input */
    const char *data;
    size_t bytes;
    km_map map;
    km_text text;
} source;

static void source_free(source *s) {
    km_map_close(&s->map);
    km_text_free(&s->text);
}

static km_status read_stdin(km_text *text, km_error *err) {
    char buffer[65536];
    size_t n;
    while ((n = fread(buffer, 1, sizeof buffer, stdin)) > 0) km_text_put(text, buffer, n);
    if (ferror(stdin))
        return km_error_set(err, KM_ERR_FILE, "cannot read standard input: %s", strerror(errno));
    return km_text_ok(text) ? KM_OK
                            : km_error_set(err, KM_ERR_MEMORY, "the text is too large for memory");
}

static km_status open_source(source *s, const tokenize_settings *o, const km_args *args,
                             km_error *err) {
    if (args->n_words) {
        for (int i = 0; i < args->n_words; i++)
            km_text_printf(&s->text, "%s%s", i ? " " : "", args->words[i]);
        if (!km_text_ok(&s->text)) return km_no_memory(err);
    } else if (o->file) {
        km_status status = km_map_open(&s->map, o->file, err);
        if (status != KM_OK) return status;
        s->data = (const char *)s->map.data;
        s->bytes = s->map.size;
        return KM_OK;
    } else {
        km_status status = read_stdin(&s->text, err);
        if (status != KM_OK) return status;
    }
    s->data = km_text_str(&s->text);
    s->bytes = s->text.len;
    return KM_OK;
}

/* ---- Training ---- */

static bool show_progress(void *user, const char *stage, int64_t done, int64_t total) {
    km_progress *p = user;
    p->total = total;
    km_progress_step(p, done, stage);
    return true;
}

static int tell_trained(const tokenize_settings *o, int64_t tokens, size_t bytes, double seconds) {
    const char *kind = strcmp(o->train, "bytes") == 0   ? "bytes"
                       : strcmp(o->train, "chars") == 0 ? "chars"
                                                        : "bpe";
    if (o->common.json)
        return km_cli_print_json(json_pack(
            "{s:s, s:o, s:I, s:o, s:o, s:o}", "kind", kind, "out", km_json_text(o->out), "vocab",
            (json_int_t)tokens, "bytes", km_json_count((double)bytes), "seconds",
            km_json_number(seconds, 4), "bytes_per_s", km_json_number((double)bytes / seconds, 4)));
    char size[KM_NUMBER_TEXT], time[KM_NUMBER_TEXT];
    printf("%s: %lld tokens from %s of text in %s\n", o->out, (long long)tokens,
           km_format_bytes(size, (double)bytes), km_format_seconds(time, seconds));
    return KM_EXIT_OK;
}

static bool is_size(const char *word) {
    return *word && strspn(word, "0123456789") == strlen(word) && strlen(word) < 12;
}

static int run_train(const tokenize_settings *o, const km_args *args) {
    if (!o->out) return km_cli_usage("tokenize: --train needs --out FILE");
    if (!is_size(o->train) && strcmp(o->train, "bytes") != 0 && strcmp(o->train, "chars") != 0)
        return km_cli_usage("tokenize: --train takes a number of tokens, 'chars' or 'bytes', not "
                            "'%.60s'",
                            o->train);
    km_error err = {0};
    source in = {0};
    km_text_input texts[KM_MAX_WORDS + 1];
    int n = 0;
    size_t bytes = 0;
    for (; n < args->n_words; n++) {
        struct stat st;
        texts[n] = (km_text_input){.path = args->words[n]};
        if (stat(args->words[n], &st) == 0) bytes += (size_t)st.st_size;
    }
    if (n == 0 && strcmp(o->train, "bytes") != 0) {
        if (open_source(&in, o, args, &err) != KM_OK) {
            source_free(&in);
            return km_cli_fail("tokenize: %s", err.text);
        }
        texts[n++] = (km_text_input){.data = in.data, .bytes = in.bytes};
        bytes = in.bytes;
    }
    char kind[24];
    snprintf(kind, sizeof kind, "%s%.12s", is_size(o->train) ? "bpe:" : "", o->train);
    km_progress bar;
    km_tokenizer_options how = km_tokenizer_defaults();
    how.kind = kind;
    how.special = strcmp(o->special, "none") == 0 ? "" : o->special;
    how.threads = (int)o->common.threads;
    how.progress = show_progress;
    how.user = &bar;
    km_progress_begin(&bar, "tokenize", "", 0, o->common.quiet);
    double start = km_now();
    int64_t tokens = km_tokenizer_train(o->out, texts, n, &how);
    double seconds = km_now() - start;
    km_progress_end(&bar);
    int code = tokens >= 0 ? tell_trained(o, tokens, bytes, seconds)
                           : km_cli_fail("tokenize: %s", km_last_error());
    source_free(&in);
    return code;
}

/* ---- Encoding ---- */

typedef struct listing {
    const km_tokenizer *t;
    const tokenize_settings *o;
    json_t *ids, *pieces;
    int64_t n;
} listing;

/* The token's text on one line: control characters and bytes that are not UTF-8 as \xNN. */
static void put_piece(km_text *out, const km_tokenizer *t, int32_t id) {
    size_t n;
    const char *text = km_tokenizer_piece(t, id, &n);
    for (size_t i = 0; text && i < n;) {
        uint32_t cp = 0;
        int length = km_utf8_read(text + i, n - i, &cp);
        if (cp == '\n' || cp == '\t')
            km_text_add(out, cp == '\n' ? "\\n" : "\\t");
        else if (length == 0 || cp < 0x20 || cp == 0x7F || cp == '\\')
            km_text_printf(out, "\\x%02x", (unsigned char)text[i]);
        else
            km_text_put(out, text + i, (size_t)length);
        i += length ? (size_t)length : 1;
    }
}

static bool list_ids(void *user, const int32_t *ids, size_t n) {
    listing *l = user;
    km_text text = {0};
    for (size_t i = 0; i < n && !l->o->count; i++) {
        if (l->o->common.json) {
            json_array_append_new(l->ids, json_integer(ids[i]));
            if (!l->o->pieces) continue;
            text.len = 0;
            put_piece(&text, l->t, ids[i]);
            json_array_append_new(l->pieces, km_json_text(km_text_str(&text)));
        } else if (l->o->pieces) {
            text.len = 0;
            put_piece(&text, l->t, ids[i]);
            printf("%7d  '%s'\n", (int)ids[i], km_text_str(&text));
        } else {
            printf("%s%d", l->n + (int64_t)i ? " " : "", (int)ids[i]);
        }
    }
    l->n += (int64_t)n;
    km_text_free(&text);
    return !ferror(stdout);
}

static int tell_ids(listing *l, size_t bytes) {
    if (l->o->common.json) {
        json_t *v = json_pack("{s:I, s:o}", "tokens", (json_int_t)l->n, "bytes",
                              km_json_count((double)bytes));
        if (!l->o->count) json_object_set(v, "ids", l->ids);
        if (!l->o->count && l->o->pieces) json_object_set(v, "pieces", l->pieces);
        return km_cli_print_json(v);
    }
    if (l->o->count)
        printf("%lld\n", (long long)l->n);
    else if (!l->o->pieces)
        putchar('\n');
    return KM_EXIT_OK;
}

static int run_encode(const tokenize_settings *o, const km_tokenizer *t, const source *s) {
    km_error err = {0};
    listing l = {.t = t, .o = o, .ids = json_array(), .pieces = json_array()};
    unsigned flags =
        o->no_special ? KM_TOKENS_PLAIN : KM_TOKENS_ADD_SPECIAL | KM_TOKENS_PARSE_SPECIAL;
    km_status status = km_tokenizer_encode_large(t, s->data, s->bytes, flags,
                                                 (int)o->common.threads, list_ids, &l);
    int code;
    if (km_map_check(&s->map, &err) != KM_OK)
        code = km_cli_fail("tokenize: %s", err.text);
    else if (status != KM_OK)
        code =
            km_cli_fail("tokenize: %s", ferror(stdout) ? "cannot write the ids" : km_last_error());
    else
        code = tell_ids(&l, s->bytes);
    json_decref(l.ids);
    json_decref(l.pieces);
    return code;
}

/* ---- Decoding ---- */

typedef struct token_list {
    int32_t *at;
    size_t n, room;
} token_list;

static km_status read_ids(const source *text, token_list *ids, km_error *err) {
    const char *at = text->data, *end = at + text->bytes;
    for (;;) {
        while (at < end && (*at == ' ' || *at == ',' || *at == '[' || *at == ']' ||
                            (*at >= '\t' && *at <= '\r')))
            at++;
        if (at == end) return KM_OK;
        int64_t v = 0;
        const char *first = at;
        while (at < end && *at >= '0' && *at <= '9' && v < INT32_MAX) v = v * 10 + (*at++ - '0');
        if (at == first || v > INT32_MAX || (at < end && *at >= '0' && *at <= '9'))
            return km_error_set(err, KM_ERR_RANGE, "no id at byte %zu of the input",
                                (size_t)(first - text->data));
        if (!km_array_reserve(&ids->at, &ids->room, ids->n + 1)) return km_no_memory(err);
        ids->at[ids->n++] = (int32_t)v;
    }
}

/* The text of the ids; the caller frees it. NULL with the error set. */
static char *text_of(const km_tokenizer *t, const token_list *ids, unsigned flags, size_t *bytes,
                     km_error *err) {
    int64_t n = km_tokenizer_decode(t, ids->at, ids->n, flags, NULL, 0);
    char *text = n >= 0 ? km_alloc((size_t)n + 1) : NULL;
    if (n < 0)
        km_error_set(err, km_last_status(), "%s", km_last_error());
    else if (!text)
        km_no_memory(err);
    if (!text) return NULL;
    km_tokenizer_decode(t, ids->at, ids->n, flags, text, (size_t)n);
    text[n] = '\0';
    *bytes = (size_t)n;
    return text;
}

static int run_decode(const tokenize_settings *o, const km_tokenizer *t, const source *s) {
    km_error err = {0};
    token_list ids = {0};
    size_t bytes = 0;
    char *text = NULL;
    if (read_ids(s, &ids, &err) == KM_OK)
        text = text_of(t, &ids, o->no_special ? KM_TOKENS_SKIP_SPECIAL : KM_TOKENS_PLAIN, &bytes,
                       &err);
    int code = KM_EXIT_OK;
    if (!text)
        code = km_cli_fail("tokenize: %s", err.text);
    else if (o->common.json)
        code = km_cli_print_json(
            json_pack("{s:I, s:o}", "tokens", (json_int_t)ids.n, "text", km_json_text(text)));
    else
        fwrite(text, 1, bytes, stdout);
    km_free(ids.at);
    km_free(text);
    return code;
}

/* ---- The command ---- */

static int run_with_tokenizer(const tokenize_settings *o, const km_args *args) {
    km_error err = {0};
    source s = {0};
    km_tokenizer *t = km_tokenizer_open(o->tokenizer);
    int code;
    if (!t)
        code = km_cli_fail("tokenize: %s", km_last_error());
    else if (open_source(&s, o, args, &err) != KM_OK)
        code = km_cli_fail("tokenize: %s", err.text);
    else if (o->out)
        code = km_tokenizer_save(t, o->out) == KM_OK ? KM_EXIT_OK
                                                     : km_cli_fail("tokenize: %s", km_last_error());
    else
        code = (o->decode ? run_decode : run_encode)(o, t, &s);
    source_free(&s);
    km_tokenizer_close(t);
    return code;
}

int km_command_tokenize(int argc, char **argv) {
    tokenize_settings o = {.common = KM_COMMON_DEFAULTS, .special = END_OF_TEXT};
    const km_option options[] = {
        {"tokenizer", KM_OPTION_TEXT, "FILE", &o.tokenizer, 0, 0,
         "a tokenizer.json, a folder with one, a .gguf, or 'bytes'"},
        {"model", KM_OPTION_TEXT, "FILE", &o.tokenizer, 0, 0, "the same, as -m of other commands"},
        {"file", KM_OPTION_TEXT, "FILE", &o.file, 0, 0, "take the text from this file"},
        {"ids", KM_OPTION_FLAG, NULL, &o.ids, 0, 0, "print ids on one line (this is the default)"},
        {"pieces", KM_OPTION_FLAG, NULL, &o.pieces, 0, 0, "print each id with its text"},
        {"count", KM_OPTION_FLAG, NULL, &o.count, 0, 0, "print only how many tokens there are"},
        {"decode", KM_OPTION_FLAG, NULL, &o.decode, 0, 0, "the input is ids; print their text"},
        {"no-special", KM_OPTION_FLAG, NULL, &o.no_special, 0, 0,
         "put no special tokens around the text and find none in it;\n"
         "decoding: leave them out"},
        {"train", KM_OPTION_TEXT, "N", &o.train, 0, 0,
         "make a tokenizer of N tokens from text (the words name files):\n"
         "byte-level BPE; 'chars' or 'bytes' for those"},
        {"special", KM_OPTION_TEXT, "TEXT", &o.special, 0, 0,
         "training: the special token it has (default " END_OF_TEXT "; 'none')"},
        {"out", KM_OPTION_TEXT, "FILE", &o.out, 0, 0,
         "write the tokenizer there, as a tokenizer.json"},
        KM_OPTION_DEVICE_ROW(o.common, "accepted for uniformity; tokenizers run on the CPU"),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "tokenize",
        .words = "[TEXT ...]",
        .summary = "Turns text into the ids of its tokens, and back; makes tokenizers from text.",
        .details = "The text comes from the line, from --file, or from standard input.\n",
        .options = options,
        .examples = "kermes tokenize --tokenizer model.gguf \"Hello world\"\n"
                    "kermes tokenize --tokenizer tokenizer.json --file book.txt --count\n"
                    "echo 15496 995 | kermes tokenize --tokenizer gpt2/ --decode\n"
                    "kermes tokenize --train 8192 --out tokenizer.json book.txt more.txt\n"
                    "kermes tokenize --tokenizer model.gguf --out tokenizer.json </dev/null\n"};
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    km_cli_notes(o.common.quiet);
    if (o.decode + o.count + o.pieces + o.ids > 1)
        return km_cli_usage("tokenize: only one of --ids, --pieces, --count and --decode");
    if (args.n_words && o.file)
        return km_cli_usage("tokenize: text on the line and --file; give one of them");
    if (o.train && (o.tokenizer || o.decode || o.count || o.pieces || o.ids))
        return km_cli_usage("tokenize: --train makes a tokenizer and takes no --tokenizer, --ids, "
                            "--pieces, --count or --decode");
    if (o.train) return run_train(&o, &args);
    if (!o.tokenizer)
        return km_cli_usage("tokenize: which tokenizer? Give --tokenizer FILE, or --train N");
    return run_with_tokenizer(&o, &args);
}

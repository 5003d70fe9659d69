/* Commands that use a model: what the line says of it, its session, showing its text. */
#include "cli/use_model.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cli/progress.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Where it runs ---- */

#define MOST_DEVICES 8

static km_status layers_of(const char *text, int64_t *out, km_error *err) {
    *out = -2; /* all that fit, as kermes.h has it */
    if (!text) return KM_OK;
    *out = -1;
    if (strcmp(text, "auto") == 0) return KM_OK;
    char *end = NULL;
    long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n > 100000)
        return km_error_set(err, KM_ERR_RANGE, "--gpu-layers takes a number or auto, not '%.40s'",
                            text);
    *out = n;
    return KM_OK;
}

/* Names with commas between them. */
static km_status check_devices(const char *list, km_error *err) {
    int n = 0;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (length == 0 || length >= 24)
            return km_error_set(err, KM_ERR_RANGE,
                                "--devices takes names with commas between them, not '%.60s'",
                                list);
        if (n++ == MOST_DEVICES)
            return km_error_set(err, KM_ERR_RANGE, "--devices takes %d at most", MOST_DEVICES);
        at += length;
        if (!*at) return KM_OK;
    }
}

km_status km_cli_where_check(const km_cli_where *w, km_error *err) {
    int64_t layers;
    km_status s = layers_of(w->gpu_layers, &layers, err);
    if (s == KM_OK && w->split && strcmp(w->split, "layers") && strcmp(w->split, "tensor"))
        s = km_error_set(err, KM_ERR_RANGE, "--split takes layers or tensor, not '%.40s'",
                         w->split);
    bool tensor = w->split && strcmp(w->split, "tensor") == 0;
    if (s == KM_OK && tensor && (w->devices || w->gpu_layers))
        s = km_error_set(err, KM_ERR_RANGE,
                         "--split tensor gives every rank a device; --%s splits by layers",
                         w->devices ? "devices" : "gpu-layers");
    if (s == KM_OK && w->activations && w->activations != 8 && w->activations != 16)
        s = km_error_set(err, KM_ERR_RANGE, "--activations takes 8 or 16, not %lld",
                         (long long)w->activations);
    if (s == KM_OK && w->comm && !tensor)
        s = km_error_set(err, KM_ERR_RANGE, "--comm is for ranks: add --split tensor");
    return s == KM_OK && w->devices ? check_devices(w->devices, err) : s;
}

static bool asks_for_shares(const km_cli_where *where) {
    return where->split && strcmp(where->split, "tensor") == 0;
}

int km_cli_peer_failed(void) {
    sleep(2);
    return KM_EXIT_FAILED;
}

bool km_cli_silent(const km_cli_where *where) { return asks_for_shares(where) && km_rank() > 0; }

/* ---- Opening ---- */

km_status km_cli_model_options(const km_common *common, const km_cli_where *where,
                               const km_cli_session *session, km_model_options *out,
                               km_error *err) {
    int64_t layers = -2;
    *out = km_model_defaults();
    out->device = common->device;
    out->devices = where->devices;
    out->threads = (int)common->threads;
    out->activations = (int)where->activations;
    out->sequences = 1;
    out->tensor = asks_for_shares(where);
    out->comm = where->comm;
    km_status s = layers_of(where->gpu_layers, &layers, err);
    out->gpu_layers = (int)layers;
    if (s != KM_OK || !session) return s;
    out->context = session->context;
    return km_cli_cache_type(session->cache_type, &out->cache, err);
}

/* A number behind the last colon is a scale; a colon may be part of a path, too. */
static km_status lora_of(const char *word, char path[1024], km_adapter *out, km_error *err) {
    const char *colon = strrchr(word, ':');
    char *end = NULL;
    double scale = colon && colon[1] ? strtod(colon + 1, &end) : 0;
    *out = (km_adapter){.path = word};
    if (!end || *end) return KM_OK;
    if (!(fabs(scale) <= 1e6) || scale == 0)
        return km_error_set(err, KM_ERR_RANGE,
                            "--lora %.80s: a scale is a number other than 0, up to 1e6", word);
    int n = snprintf(path, 1024, "%.*s", (int)(colon - word), word);
    if (n < 1 || n >= 1024)
        return km_error_set(err, KM_ERR_RANGE, "--lora %.80s: the path is %s", word,
                            n < 1 ? "missing" : "too long");
    *out = (km_adapter){.path = path, .scale = scale};
    return KM_OK;
}

km_status km_cli_loras_open(km_cli_loras *l, km_model_options *out, km_error *err) {
    for (int i = 0; i < l->given.n; i++)
        if (lora_of(l->given.at[i], l->path[i], &l->adapter[i], err) != KM_OK) return err->code;
    out->adapters = l->adapter;
    out->n_adapters = (size_t)l->given.n;
    return KM_OK;
}

static bool on_loading(void *user, uint64_t done, uint64_t total) {
    km_progress *bar = user;
    bar->total = (int64_t)(total >> 20) + 1;
    km_progress_step(bar, (int64_t)(done >> 20), NULL);
    return true;
}

km_model *km_cli_model_open(const char *given, km_model_options *o, const km_common *common) {
    km_progress bar;
    if (!o->tensor && km_ranks() > 1 && km_rank() == 0)
        km_note(KM_LOG_WARN,
                "mpirun started %d ranks, and each runs the whole model; kermes run --split "
                "tensor shares it",
                km_ranks());
    km_progress_begin(&bar, "loading", "MiB", 1, common->quiet);
    o->progress = on_loading;
    o->user = &bar;
    km_model *m = km_model_open(given, o);
    km_progress_end(&bar);
    return m;
}

int km_cli_follow(km_model *m) {
    int code = km_model_follow(m) == KM_OK ? KM_EXIT_OK : km_cli_fail("%s", km_last_error());
    km_model_close(m);
    return code;
}

void km_cli_context_told(int64_t asked, int64_t models) {
    if (asked > models)
        km_note(KM_LOG_WARN,
                "--context %lld is beyond the model's context of %lld tokens, which is used",
                (long long)asked, (long long)models);
}

/* ---- Sessions ---- */

km_status km_cli_cache_type(const char *name, km_dtype *out, km_error *err) {
    static const km_dtype known[] = {KM_F16, KM_F32, KM_BF16, KM_Q8_0, KM_Q4_0};
    *out = known[0];
    if (!name) return KM_OK;
    for (int i = 0; i < 5; i++)
        if (strcmp(name, km_dtype_name(known[i])) == 0) {
            *out = known[i];
            return KM_OK;
        }
    return km_error_set(err, KM_ERR_RANGE,
                        "--cache-type takes f32, f16, bf16, q8_0 or q4_0, not '%.40s'", name);
}

km_status km_cli_session_check(const km_cli_session *o, km_error *err) {
    km_dtype dtype;
    if (o->no_reread && !o->file)
        return km_error_set(err, KM_ERR_RANGE, "--no-reread needs --session FILE");
    return km_cli_cache_type(o->cache_type, &dtype, err);
}

km_session *km_cli_session_open(km_model *m, const km_cli_session *o) {
    km_session *s = km_session_new(m);
    struct stat st;
    if (s && o->file && stat(o->file, &st) == 0 && km_session_restore(s, o->file) != KM_OK) {
        km_session_free(s);
        return NULL;
    }
    return s;
}

km_status km_cli_session_close(km_session *s, const km_cli_session *o) {
    km_status status = s && o->file ? km_session_save(s, o->file) : KM_OK;
    km_session_free(s);
    return status;
}

/* ---- Conversations ---- */

km_status km_cli_render(km_model *m, const char *name, const json_t *messages, km_text *out,
                        km_error *err) {
    return km_cli_render_tools(m, name, messages, NULL, out, err);
}

km_status km_cli_render_tools(km_model *m, const char *name, const json_t *messages,
                              const char *tools, km_text *out, km_error *err) {
    km_render_options o = km_render_defaults();
    o.chat_template = name;
    o.tools = tools;
    char *json = json_dumps(messages, JSON_COMPACT);
    char *text = json ? km_render_chat(m, json, &o) : NULL;
    if (text)
        km_text_add(out, text);
    else
        km_error_set(err, json ? km_last_status() : KM_ERR_MEMORY, "%s",
                     json ? km_last_error() : "out of memory for the conversation");
    free(json);
    km_string_free(text);
    return err->code;
}

json_t *km_cli_message(const char *role, const char *text, size_t bytes) {
    km_text clean = {0};
    for (size_t i = 0; i < bytes;) {
        size_t n = km_utf8_valid(text + i, bytes - i);
        const char *nul = memchr(text + i, 0, n);
        if (nul) n = (size_t)(nul - (text + i));
        km_text_put(&clean, text + i, n);
        i += n;
        size_t bad = i < bytes ? nul ? 1 : km_utf8_invalid(text + i, bytes - i) : 0;
        if (bad) km_text_add(&clean, "\xEF\xBF\xBD");
        i += bad;
    }
    json_t *v = km_text_ok(&clean) ? json_pack("{s:s, s:s%}", "role", role, "content",
                                               km_text_str(&clean), clean.len)
                                   : NULL;
    km_text_free(&clean);
    return v;
}

/* ---- Text on stdout ---- */

bool km_cli_put(const char *text, size_t bytes, bool terminal) {
    if (!terminal) return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
    size_t from = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        size_t skip = (c < 32 && c != '\n' && c != '\t') || c == 127 ? 1 : 0;
        if (c == 0xC2 && i + 1 < bytes && (unsigned char)text[i + 1] < 0xA0) skip = 2; /* C1 */
        if (!skip) continue;
        fwrite(text + from, 1, i - from, stdout);
        from = i + skip;
        i += skip - 1;
    }
    fwrite(text + from, 1, bytes - from, stdout);
    return fflush(stdout) == 0 && !ferror(stdout);
}

void km_cli_show_before(km_cli_text *t) {
    if (t->before) fputs(t->before, stdout);
    t->before = NULL;
}

bool km_cli_show(km_cli_text *t, const char *text, size_t bytes) {
    if (t->json) {
        km_text_put(&t->text, text, bytes);
        return km_text_ok(&t->text);
    }
    km_cli_show_before(t);
    return km_cli_put(text, bytes, isatty(STDOUT_FILENO) == 1);
}

/* Commands that use a model: finding it, opening it, its template, showing its text. */
#include "cli/use_model.h"
#include "base/log.h"
#include "engine/find.h"
#include "infer/follow.h"
#include "model/convert.h"
#include "base/utf8.h"
#include "train/checkpoint.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Finding and opening ---- */

km_status km_cli_model_open(km_cli_model *m, const char *given, const char *tokenizer,
                            const km_common *common, const km_open_options *how, km_error *err) {
    return km_cli_model_open_at(m, given, tokenizer, common, &(km_cli_where){0}, KM_F16, 1, how,
                                err);
}

km_status km_cli_model_find(km_cli_model *m, const char *given, const char *tokenizer,
                            km_error *err) {
    *m = (km_cli_model){0};
    if (km_find_model(given, m->path, err) != KM_OK) return err->code;
    m->token = km_token_load(tokenizer ? tokenizer : m->path, err);
    return m->token ? KM_OK : err->code;
}

void km_cli_model_close(km_cli_model *m) {
    km_lead_dismiss(m->model);
    km_net_free(m->model);
    km_comm_close(m->comm);
    km_ctx_free(m->ctx);
    km_token_free(m->token);
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

/* An empty one. */
static km_sequence *new_session(const km_cli_model *m, const km_cli_session *o, km_error *err) {
    km_sequences_options how = km_sequences_defaults();
    if (km_cli_cache_type(o->cache_type, &how.cache, err) != KM_OK) return NULL;
    how.shift = o->shift;
    how.keep = km_token_bos(m->token) >= 0; /* texts begin with it, shifted or not */
    return km_sequence_open(m->ctx, m->model, &how, err);
}

km_sequence *km_cli_session_open(const km_cli_model *m, const km_cli_session *o, km_error *err) {
    if (m->comm && o->file) {
        km_error_set(err, KM_ERR_UNSUPPORTED,
                     "--session keeps no file where ranks share the model");
        return NULL;
    }
    km_sequence *s = new_session(m, o, err);
    struct stat st;
    if (s && o->file && stat(o->file, &st) == 0 && km_sequence_restore(s, o->file, err) != KM_OK) {
        km_sequence_free(s);
        return NULL;
    }
    return s;
}

km_sequence *km_cli_rescue(km_cli_model *m, const km_cli_session *o, km_sequence **session,
                           const km_error *why) {
    km_sequence *failed = *session;
    km_error err = {0};
    if (m->comm || strcmp(m->devices, "cpu") == 0) return NULL; /* ranks cannot move alone */
    if (m->ctx->no_fallback) return NULL;
    size_t n = (size_t)km_sequence_length(failed), bytes = sizeof(int32_t) * n;
    int32_t *ids = malloc(bytes + 1);
    if (!ids) return NULL;
    memcpy(ids, km_sequence_tokens(failed), bytes);
    km_note(KM_LOG_WARN, "%s; going on with the CPU", why->text);
    km_sequence_free(failed);
    km_sequence *s = NULL;
    if (km_cli_model_to_cpu(m, &err) == KM_OK) s = new_session(m, o, &err);
    if (s && km_sequence_read(s, ids, n, &err) != KM_OK) {
        km_sequence_free(s);
        s = NULL;
    }
    if (!s) km_note(KM_LOG_WARN, "the CPU cannot go on either: %s", err.text);
    free(ids);
    return *session = s;
}

km_status km_cli_session_close(km_sequence *s, const km_cli_session *o, km_error *err) {
    km_status status = s && o->file ? km_sequence_save(s, o->file, err) : KM_OK;
    km_sequence_free(s);
    return status;
}

/* ---- Conversations ---- */

km_chat_template *km_cli_template(const km_cli_model *m, const char *name, km_error *err) {
    if (name) return km_chat_template_named(name, err);
    km_error inside = {0};
    km_chat_template *t = km_chat_template_load(m->path, &inside);
    if (!t && inside.code == KM_ERR_STATE)
        km_error_set(err, inside.code,
                     "%.200s has no chat template; choose one with --template NAME, such as chatml",
                     m->path);
    else if (!t)
        km_error_set(err, inside.code, "%.400s; --template NAME takes a built-in one", inside.text);
    return t;
}

static const char *token_text(const km_token *t, int32_t id, km_text *room) {
    size_t bytes = 0;
    const char *text = id >= 0 ? km_token_text(t, id, &bytes) : NULL;
    if (!text) return NULL;
    km_text_put(room, text, bytes);
    return km_text_ok(room) ? km_text_str(room) : NULL;
}

km_status km_cli_render(const km_cli_model *m, const km_chat_template *t, const json_t *messages,
                        km_text *out, km_error *err) {
    km_text bos = {0}, eos = {0};
    km_chat_options how = {.bos = token_text(m->token, km_token_bos(m->token), &bos),
                           .eos = token_text(m->token, km_token_eos(m->token), &eos),
                           .fold_system = true};
    km_status s = km_chat_render_json(t, messages, &how, out, err);
    km_text_free(&bos);
    km_text_free(&eos);
    return s;
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

bool km_cli_show(void *user, int32_t id, const char *text, size_t bytes) {
    km_cli_text *t = user;
    (void)id;
    if (t->json) {
        km_text_put(&t->text, text, bytes);
        return km_text_ok(&t->text);
    }
    km_cli_show_before(t);
    return km_cli_put(text, bytes, isatty(STDOUT_FILENO) == 1);
}

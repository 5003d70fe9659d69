/* From messages or text to ids. What users, tools and documents say never becomes a control token: where
 * their text holds the text of one, a mark is put into it before the template sees it; behind the
 * template, marked places are tokenised as plain letters. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <stdlib.h>
#include <string.h>

static const char mark[] = "\xef\xb7\x90"; /* U+FDD0, a noncharacter: no text means it */
enum { MARK = 3 };

/* ---- Control tokens ---- */

km_status km_guard_open(km_served *s, km_error *err) {
    size_t cap = 0;
    for (int32_t id = 0; id < s->info.vocab; id++) {
        size_t n = 0;
        const char *piece =
            km_token_special(s->model, id) ? km_token_piece(s->model, id, &n) : NULL;
        if (!piece || n < 3) continue;
        if (s->n_special == cap) {
            cap = cap ? 2 * cap : 64;
            km_special *more = km_realloc(s->special, cap * sizeof *more);
            if (!more) return km_error_set(err, KM_ERR_MEMORY, "serve: out of memory");
            s->special = more;
        }
        s->special[s->n_special++] = (km_special){piece, n};
        s->special_first[(unsigned char)piece[0]] = true;
    }
    return KM_OK;
}

/* The longest control token that the text begins with; 0: none. */
static size_t special_at(const km_served *s, const char *text, size_t n) {
    size_t best = 0;
    if (!s->special_first[(unsigned char)text[0]]) return 0;
    for (size_t i = 0; i < s->n_special; i++) {
        const km_special *p = &s->special[i];
        if (p->bytes <= n && p->bytes > best && memcmp(text, p->text, p->bytes) == 0)
            best = p->bytes;
    }
    return best;
}

/* Templates look for these in what the assistant said before, and they end nothing. */
static bool is_harmless(const char *text, size_t n) {
    static const char *const all[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strlen(all[i]) == n && memcmp(text, all[i], n) == 0) return true;
    return false;
}

static json_t *mark_string(const km_served *s, const json_t *v, bool assistant) {
    const char *text = json_string_value(v);
    size_t n = json_string_length(v), from = 0;
    km_text out = {0};
    for (size_t i = 0; i < n; i++) {
        if (n - i >= MARK && memcmp(text + i, mark, MARK) == 0) { /* ours alone */
            km_text_put(&out, text + from, i - from);
            km_text_add(&out, "\xef\xbf\xbd");
            i += MARK - 1;
            from = i + 1;
            continue;
        }
        size_t k = special_at(s, text + i, n - i);
        if (k == 0 || (assistant && is_harmless(text + i, k))) continue;
        size_t first = 1;
        while (first < k && ((unsigned char)text[i + first] & 0xC0) == 0x80) first++;
        km_text_put(&out, text + from, i + first - from);
        km_text_put(&out, mark, MARK);
        from = i + first;
        i += k - 1;
    }
    if (from == 0) {
        km_text_free(&out);
        return json_incref((json_t *)(uintptr_t)v);
    }
    km_text_put(&out, text + from, n - from);
    json_t *marked = km_text_ok(&out) ? json_stringn(km_text_str(&out), out.len) : NULL;
    km_text_free(&out);
    return marked;
}

json_t *km_guard_mark(const km_served *s, const json_t *v, bool assistant) {
    if (json_is_string(v)) return mark_string(s, v, assistant);
    if (json_is_array(v)) {
        json_t *all = json_array();
        for (size_t i = 0; i < json_array_size(v); i++)
            json_array_append_new(all, km_guard_mark(s, json_array_get(v, i), assistant));
        return all;
    }
    if (!json_is_object(v)) return json_incref((json_t *)(uintptr_t)v);
    json_t *all = json_object();
    const char *key;
    json_t *one;
    json_object_foreach((json_t *)(uintptr_t)v, key, one) {
        json_t *name = json_string(key), *safe = name ? mark_string(s, name, assistant) : NULL;
        if (safe)
            json_object_set_new(all, json_string_value(safe), km_guard_mark(s, one, assistant));
        json_decref(name);
        json_decref(safe);
    }
    return all;
}

/* ---- Tokens ---- */

static km_status put_ids(const km_served *s, const char *text, size_t bytes, unsigned flags,
                         int32_t **ids, size_t *n, size_t *cap, km_error *err) {
    if (bytes == 0) return KM_OK;
    for (;;) {
        int64_t got = km_tokenize(s->model, text, bytes, flags, *ids ? *ids + *n : NULL, *cap - *n);
        if (got < 0) return km_error_set(err, km_last_status(), "%s", km_last_error());
        if ((size_t)got <= *cap - *n) {
            *n += (size_t)got;
            return KM_OK;
        }
        size_t want = *n + (size_t)got + 64;
        int32_t *more = km_realloc(*ids, want * sizeof *more);
        if (!more) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
        *ids = more;
        *cap = want;
    }
}

km_status km_guard_tokenize(const km_served *s, const char *text, size_t bytes, int32_t **ids,
                            size_t *n, km_error *err) {
    size_t cap = bytes / 3 + 16, from = 0;
    *ids = km_alloc(cap * sizeof **ids);
    *n = 0;
    if (!*ids) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
    km_status status = KM_OK;
    km_text plain = {0};
    const char *hit;
    while (status == KM_OK && (hit = memmem(text + from, bytes - from, mark, MARK))) {
        size_t at = (size_t)(hit - text), start = at;
        do start--;
        while (start > from && ((unsigned char)text[start] & 0xC0) == 0x80);
        plain.len = 0;
        km_text_put(&plain, text + start, at - start);
        km_text_put(&plain, text + at + MARK, bytes - at - MARK < 256 ? bytes - at - MARK : 256);
        size_t k = special_at(s, km_text_str(&plain), plain.len), first = at - start;
        if (k < first) k = first; /* the template cut it up */
        status = put_ids(s, text + from, start - from, KM_TOKENS_PARSE_SPECIAL, ids, n, &cap, err);
        if (status == KM_OK)
            status = put_ids(s, km_text_str(&plain), k, KM_TOKENS_PLAIN, ids, n, &cap, err);
        from = at + MARK + (k - first);
    }
    km_text_free(&plain);
    if (status == KM_OK)
        status = put_ids(s, text + from, bytes - from, KM_TOKENS_PARSE_SPECIAL, ids, n, &cap, err);
    return status;
}

static km_prompt *add_prompt(km_api_call *c, km_error *err) {
    km_prompt *more = km_realloc(c->prompts, (size_t)(c->n_prompts + 1) * sizeof *more);
    if (!more) {
        km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
        return NULL;
    }
    c->prompts = more;
    more[c->n_prompts] = (km_prompt){0};
    return &more[c->n_prompts++];
}

/* Has the template opened the reasoning, so that the answer begins inside of it? */
static bool ends_in_thought(const char *text, size_t n) {
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' ')) n--;
    return n >= 7 && memcmp(text + n - 7, "<think>", 7) == 0;
}

km_status km_call_prompt_chat(km_api_call *c, km_error *err) {
    km_render_options o = km_render_defaults();
    o.tools = c->tools;
    o.variables = c->variables;
    o.thinking = c->thinking;
    char *text = km_render_chat(c->served->model, c->messages, &o);
    if (!text)
        return km_error_set(err, km_last_status() == KM_ERR_MEMORY ? KM_ERR_MEMORY : KM_ERR_FORMAT,
                            "the chat template refuses these messages: %s", km_last_error());
    km_prompt *p = add_prompt(c, err);
    km_status s =
        p ? km_guard_tokenize(c->served, text, strlen(text), &p->ids, &p->n, err) : KM_ERR_MEMORY;
    c->opened_thought = ends_in_thought(text, strlen(text));
    c->chat = true;
    c->how.rendered = true;
    km_string_free(text);
    return s;
}

km_status km_call_prompt_tokens_of(km_api_call *c, const char *text, size_t bytes, bool add_special,
                                   km_error *err) {
    km_prompt *p = add_prompt(c, err);
    if (!p) return KM_ERR_MEMORY;
    bool special = false;
    if (!km_field_bool(c, "parse_special", &special)) return KM_ERR_RANGE;
    size_t cap = bytes / 3 + 16;
    p->ids = km_alloc(cap * sizeof *p->ids);
    p->text = km_alloc(bytes + 1);
    if (!p->ids || !p->text) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
    memcpy(p->text, text, bytes);
    p->text[bytes] = '\0';
    unsigned flags =
        (add_special ? KM_TOKENS_ADD_SPECIAL : 0u) | (special ? KM_TOKENS_PARSE_SPECIAL : 0u);
    return put_ids(c->served, text, bytes, flags, &p->ids, &p->n, &cap, err);
}

km_status km_call_prompt_text(km_api_call *c, const char *text, size_t bytes, km_error *err) {
    km_status s = km_call_prompt_tokens_of(c, text, bytes, true, err);
    km_prompt *p = s == KM_OK ? &c->prompts[c->n_prompts - 1] : NULL;
    if (s == KM_OK && p->n == 0) { /* an empty prompt stands for the beginning of a text */
        int32_t id = km_model_bos(c->served->model);
        if (id < 0) id = km_model_eos(c->served->model);
        if (id >= 0) p->ids[p->n++] = id;
    }
    return s;
}

km_status km_call_prompt_ids(km_api_call *c, const json_t *ids, km_error *err) {
    km_prompt *p = add_prompt(c, err);
    size_t n = json_array_size(ids);
    if (p) p->ids = km_alloc((n + 1) * sizeof *p->ids);
    if (!p || !p->ids) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= c->served->info.vocab)
            return km_call_refuse(c, 400, "prompt", "prompt token %zu is none of this model's",
                                  i + 1);
        p->ids[p->n++] = (int32_t)id;
    }
    return KM_OK;
}

km_status km_call_prompt_pair(km_api_call *c, const json_t *query, const json_t *document, bool cut,
                              km_error *err) {
    const char *q = json_string_value(query), *d = json_string_value(document);
    size_t nq = json_string_length(query), nd = json_string_length(document);
    size_t cap = (nq + nd) / 2 + 256;
    km_prompt *p = add_prompt(c, err);
    for (int64_t n = -1; p;) {
        int32_t *more = km_realloc(p->ids, cap * sizeof *more);
        if (!more) return km_error_set(err, KM_ERR_MEMORY, "out of memory for a prompt");
        p->ids = more;
        n = km_relevance_tokens(c->served->model, q, nq, d, nd, cut, p->ids, cap);
        if (n < 0 && km_last_status() == KM_ERR_RANGE)
            return km_call_refuse(c, 400, "documents", "document %d: %s", c->n_prompts,
                                  km_last_error());
        if (n < 0) return km_error_set(err, km_last_status(), "%s", km_last_error());
        p->n = (size_t)n;
        if ((size_t)n <= cap) return KM_OK;
        cap = (size_t)n;
    }
    return KM_ERR_MEMORY;
}

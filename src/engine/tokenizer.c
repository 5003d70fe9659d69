/* Tokenizers without a model, behind km_tokenizer; and what they share with a model's own. */
#include "base/alloc.h"
#include "base/sized.h"
#include "engine/engine.h"
#include <string.h>

struct km_tokenizer {
    km_handle handle;
    atomic_int users; /* its owner, and calls whose callbacks may close it */
    km_token *token;
};

km_tokenizer *km_tokenizer_open(const char *path) {
    km_error err = {0};
    if (!path) {
        km_public_fail(KM_ERR_NULL, "km_tokenizer_open: no path given");
        return NULL;
    }
    km_tokenizer *t = km_calloc(1, sizeof *t);
    if (t)
        t->token = strcmp(path, "bytes") == 0 ? km_token_bytes(&err) : km_token_load(path, &err);
    else
        km_no_memory_for(&err, "a tokenizer");
    if (!t || !t->token) {
        km_free(t);
        km_last_error_set(&err);
        return NULL;
    }
    atomic_init(&t->users, 1);
    km_handle_add(&t->handle, KM_HANDLE_TOKENIZER);
    return t;
}

static void drop(void *tokenizer) {
    km_tokenizer *t = tokenizer;
    if (atomic_fetch_sub(&t->users, 1) > 1) return;
    km_token_free(t->token);
    km_free(t);
}

static const km_token *usable(km_holding *held, const char *call, const km_tokenizer *t) {
    bool open = km_hold(held, call, t, KM_HANDLE_TOKENIZER, offsetof(km_tokenizer, users), drop);
    return open ? t->token : NULL;
}

void km_tokenizer_close(km_tokenizer *t) {
    if (km_handle_remove(t, KM_HANDLE_TOKENIZER)) drop(t);
}

km_status km_tokenizer_save(const km_tokenizer *t, const char *path) {
    km_error err = {0};
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_save", t);
    if (!token) return km_last_status();
    if (!path) return km_public_fail(KM_ERR_NULL, "km_tokenizer_save: no path given");
    km_token_save(token, path, &err);
    return km_told(&err);
}

km_status km_tokenizer_describe_sized(const km_tokenizer *t, km_tokenizer_info *out, size_t size) {
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_describe", t);
    km_tokenizer_info own = {.bos = -1, .eos = -1, .unk = -1, .pad = -1};
    if (token)
        own = (km_tokenizer_info){.size = sizeof own,
                                  .kind = km_token_kind(token),
                                  .vocab = km_token_vocab(token),
                                  .bos = km_token_bos(token),
                                  .eos = km_token_eos(token),
                                  .unk = km_token_unk(token),
                                  .pad = km_token_pad(token)};
    return KM_HAND_OUT(out, size, &own, km_tokenizer_info);
}

/* ---- Text to ids and back ---- */

int64_t km_ids_of(const char *call, const km_token *token, const char *text, size_t bytes,
                  unsigned flags, int32_t *ids, size_t cap) {
    km_error err = {0};
    km_ids all = {0};
    if ((!text && bytes) || (!ids && cap)) {
        km_public_fail(KM_ERR_NULL, "%s: no %s given", call, text ? "room for ids" : "text");
        return -1;
    }
    km_status s = km_token_encode(token, text ? text : "", bytes, flags, &all, &err);
    int64_t n = s == KM_OK ? (int64_t)all.len : -1;
    if (s == KM_OK && cap && all.len)
        memcpy(ids, all.data, sizeof *ids * (cap < all.len ? cap : all.len));
    km_last_error_set(&err);
    km_ids_free(&all);
    return n;
}

int64_t km_text_of(const char *call, const km_token *token, const int32_t *ids, size_t n,
                   unsigned flags, char *text, size_t cap) {
    km_error err = {0};
    km_text all = {0};
    if ((!ids && n) || (!text && cap)) {
        km_public_fail(KM_ERR_NULL, "%s: no %s given", call, ids ? "room for text" : "ids");
        return -1;
    }
    km_status s = km_token_decode(token, ids, n, flags, &all, &err);
    if (s == KM_OK && !km_text_ok(&all)) s = km_no_memory_for(&err, "a text");
    if (s == KM_OK && cap && all.len) memcpy(text, all.data, cap < all.len ? cap : all.len);
    int64_t bytes = s == KM_OK ? (int64_t)all.len : -1;
    km_last_error_set(&err);
    km_text_free(&all);
    return bytes;
}

int64_t km_tokenizer_encode(const km_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                            int32_t *ids, size_t cap) {
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_encode", t);
    return token ? km_ids_of("km_tokenizer_encode", token, text, bytes, flags, ids, cap) : -1;
}

int64_t km_tokenizer_decode(const km_tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                            char *text, size_t cap) {
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_decode", t);
    return token ? km_text_of("km_tokenizer_decode", token, ids, n, flags, text, cap) : -1;
}

const char *km_tokenizer_piece(const km_tokenizer *t, int32_t id, size_t *bytes) {
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_piece", t);
    size_t n = 0;
    const char *text = token ? km_token_text(token, id, &n) : NULL;
    if (bytes) *bytes = text ? n : 0;
    return text;
}

typedef struct ids_sink {
    km_ids_fn fn;
    void *user;
} ids_sink;

static km_status pass_on(void *user, const int32_t *ids, size_t n, km_error *err) {
    const ids_sink *sink = user;
    return sink->fn(sink->user, ids, n) ? KM_OK : km_error_set(err, KM_ERR_STATE, "stopped");
}

km_status km_tokenizer_encode_large(const km_tokenizer *t, const char *text, size_t bytes,
                                    unsigned flags, int threads, km_ids_fn fn, void *user) {
    km_error err = {0};
    KM_HOLDING(held);
    const km_token *token = usable(&held, "km_tokenizer_encode_large", t);
    if (!token) return km_last_status();
    if ((!text && bytes) || !fn)
        return km_public_fail(KM_ERR_NULL, "km_tokenizer_encode_large: no %s given",
                              fn ? "text" : "callback");
    if (threads < 0)
        return km_public_fail(KM_ERR_RANGE, "km_tokenizer_encode_large: %d threads", threads);
    km_encode_options how = {.flags = flags, .threads = threads};
    ids_sink sink = {fn, user};
    km_token_encode_large(token, text ? text : "", bytes, &how, pass_on, &sink, &err);
    return km_told(&err);
}

/* The public call that makes a tokenizer from texts. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/sized.h"
#include "token/token.h"
#include <stdlib.h>
#include <string.h>

km_status km_tokenizer_defaults_sized(km_tokenizer_options *out, size_t size) {
    km_tokenizer_options own = {
        .size = sizeof(km_tokenizer_options), .kind = "bpe:4096", .special = KM_TOKEN_END};
    return KM_HAND_OUT(out, size, &own, km_tokenizer_options);
}

/* The number of tokens in "bpe:N"; -1: it is no such thing. */
static int64_t bpe_size(const char *kind) {
    const char *digits = kind + 4;
    bool whole = strncmp(kind, "bpe:", 4) == 0 && *digits && strlen(digits) < 12 &&
                 strspn(digits, "0123456789") == strlen(digits);
    return whole ? strtoll(digits, NULL, 10) : -1;
}

static km_token *make(const km_tokenizer_options *o, const km_span *texts, size_t n,
                      km_error *err) {
    if (strcmp(o->kind, "bytes") == 0) return km_token_bytes(err);
    if (strcmp(o->kind, "chars") == 0 || strcmp(o->kind, "char") == 0)
        return km_token_chars(texts, n, err);
    km_bpe_options bpe = {.vocab = bpe_size(o->kind),
                          .threads = o->threads,
                          .special = &o->special,
                          .n_special = o->special && *o->special,
                          .progress = o->progress,
                          .user = o->user};
    if (bpe.vocab >= 0) return km_token_train_bpe(texts, n, &bpe, err);
    km_error_set(err, KM_ERR_RANGE, "'%.40s' is no kind of tokenizer: bpe:N, chars or bytes",
                 o->kind);
    return NULL;
}

/* Maps the files among the texts; maps and spans have room for all. */
static km_status open_texts(const km_text_input *texts, int n, km_map *maps, km_span *spans,
                            km_error *err) {
    for (int i = 0; i < n; i++) {
        if (!texts[i].path && !texts[i].data && texts[i].bytes)
            return km_error_set(err, KM_ERR_NULL, "text %d is missing", i + 1);
        if (texts[i].path && km_map_open(&maps[i], texts[i].path, err) != KM_OK) return err->code;
        spans[i] = texts[i].path ? (km_span){(const char *)maps[i].data, maps[i].size}
                                 : (km_span){texts[i].data, texts[i].bytes};
    }
    return KM_OK;
}

int64_t km_tokenizer_train(const char *out, const km_text_input *texts, int n,
                           const km_tokenizer_options *options) {
    km_error err = {0};
    km_tokenizer_options o = km_tokenizer_defaults();
    km_map *maps = NULL;
    km_span *spans = NULL;
    km_token *t = NULL;
    int64_t tokens = -1;
    if (!out || n < 0 || (n && !texts)) {
        km_error_set(&err, KM_ERR_NULL, "km_tokenizer_train: an argument is missing or negative");
        goto done;
    }
    if (km_take_sized(&o, sizeof o, options, "km_tokenizer_options", &err) != KM_OK) goto done;
    if (!o.kind || o.threads < 0) {
        km_error_set(&err, KM_ERR_RANGE, "km_tokenizer_train: no kind, or %d threads", o.threads);
        goto done;
    }
    maps = km_calloc((size_t)n + 1, sizeof *maps);
    spans = km_calloc((size_t)n + 1, sizeof *spans);
    if (!maps || !spans) {
        km_error_set(&err, KM_ERR_MEMORY, "out of memory for texts");
        goto done;
    }
    if (open_texts(texts, n, maps, spans, &err) == KM_OK) t = make(&o, spans, (size_t)n, &err);
    for (int i = 0; i < n; i++)
        if (texts[i].path) km_map_done(&maps[i], err.code, &err);
    if (t && err.code == KM_OK && km_token_save(t, out, &err) == KM_OK) tokens = km_token_vocab(t);
done:
    km_token_free(t);
    km_free(maps);
    km_free(spans);
    if (tokens < 0) km_last_error_set(&err);
    return tokens;
}

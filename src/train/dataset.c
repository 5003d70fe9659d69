/* Making and finding token files, and dividing them into learning and validation. */
#include "train/dataset.h"
#include "base/alloc.h"
#include "base/log.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- The cache ---- */

static uint64_t hash_text(uint64_t hash, const char *s) {
    return XXH3_64bits_withSeed(s, strlen(s) + 1, hash);
}

/* Where a source's tokens lie. The name holds what they depend on but for the text itself, whose
 * sizes, times and hashes are in the file: a changed text replaces its old tokens. */
static void cache_path(char *out, size_t size, const km_text_source *s, const km_token *token,
                       const km_dataset_options *o) {
    uint64_t hash = km_token_hash(token) + o->special;
    char full[PATH_MAX];
    hash = hash_text(hash, realpath(s->path, full) ? full : s->path);
    snprintf(out, size, "%s/%016" PRIx64 ".tokens", o->cache, hash);
}

static uint64_t hash_file(const km_text_file *f) { return XXH3_64bits(f->text.data, f->text.size); }

/* Whether tokens were made from just this text by just this tokenizer. */
static bool fits(const km_tokens_meta *m, const km_text_source *s, const km_token *token,
                 const km_dataset_options *o) {
    if (m->tokenizer != km_token_hash(token) || m->special != o->special ||
        m->n_sources != s->n_files)
        return false;
    for (int i = 0; i < s->n_files; i++) {
        const km_text_file *f = &s->files[i];
        const km_tokens_source *was = &m->sources[i];
        if (was->bytes != f->text.size || strcmp(was->path, f->path) != 0) return false;
        if (was->mtime != f->mtime && was->hash != hash_file(f)) return false;
    }
    return true;
}

/* ---- Tokenising ---- */

typedef struct tokenize_job {
    km_tokens_writer *out;
    const km_dataset_options *options;
    int64_t done, total; /* bytes, of the source */
} tokenize_job;

static km_status take(void *user, const int32_t *ids, size_t n, km_error *err) {
    return km_tokens_put(((tokenize_job *)user)->out, ids, n, err);
}

static bool forward_progress(void *user, const char *stage, int64_t done, int64_t total) {
    tokenize_job *j = user;
    (void)total;
    return !j->options->progress ||
           j->options->progress(j->options->user, stage, j->done + done, j->total);
}

static km_status encode_files(tokenize_job *j, const km_text_source *s, const km_token *token,
                              km_error *err) {
    const km_dataset_options *o = j->options;
    km_encode_options how = {.flags = o->special ? KM_TOKEN_PARSE_SPECIAL : KM_TOKEN_PLAIN,
                             .threads = o->threads,
                             .progress = forward_progress,
                             .user = j};
    int32_t end = km_token_eos(token);
    for (int i = 0; i < s->n_files; i++) {
        const km_text_file *f = &s->files[i];
        km_error why = {0};
        km_status status = km_token_encode_large(token, (const char *)f->text.data, f->text.size,
                                                 &how, take, j, &why);
        if (km_map_check(&f->text, err) != KM_OK) return KM_ERR_FILE;
        if (status != KM_OK)
            return km_error_set(err, status, "cannot tokenise '%.200s': %.250s", f->path, why.text);
        /* The texts of a folder are documents; one text alone has no end inside it. */
        if (s->n_files > 1 && end >= 0) status = km_tokens_put(j->out, &end, 1, err);
        if (status != KM_OK) return status;
        j->done += (int64_t)f->text.size;
    }
    return KM_OK;
}

static km_status describe(km_tokens_meta *m, const km_text_source *s, const km_token *token,
                          const km_dataset_options *o, km_error *err) {
    *m = (km_tokens_meta){.tokenizer = km_token_hash(token),
                          .vocab = km_token_vocab(token),
                          .special = o->special,
                          .sources = km_calloc((size_t)s->n_files, sizeof *m->sources)};
    if (!m->sources) return km_no_memory_for(err, "the dataset");
    for (int i = 0; i < s->n_files; i++) {
        const km_text_file *f = &s->files[i];
        m->sources[m->n_sources++] = (km_tokens_source){.path = km_strdup(f->path),
                                                        .bytes = f->text.size,
                                                        .mtime = f->mtime,
                                                        .hash = hash_file(f)};
        if (!m->sources[i].path) return km_no_memory_for(err, "the dataset");
    }
    return KM_OK;
}

static km_status tokenise(const char *path, const km_text_source *s, const km_token *token,
                          const km_dataset_options *o, km_error *err) {
    tokenize_job j = {.options = o, .total = (int64_t)s->bytes};
    km_tokens_meta meta;
    km_status status = describe(&meta, s, token, o, err);
    if (status == KM_OK) {
        j.out = km_tokens_create(path, km_token_vocab(token), err);
        if (!j.out) status = KM_ERR_FILE;
    }
    if (status == KM_OK) status = encode_files(&j, s, token, err);
    if (status == KM_OK)
        status = km_tokens_commit(j.out, &meta, err);
    else
        km_tokens_abort(j.out);
    km_tokens_meta_clear(&meta);
    return status;
}

/* ---- Parts ---- */

static km_status open_given(km_dataset_part *p, const km_text_source *s, const km_token *token,
                            km_error *err) {
    km_status status = km_tokens_open(&p->tokens, s->path, err);
    if (status == KM_OK && p->tokens.meta.tokenizer != km_token_hash(token))
        return km_error_set(err, KM_ERR_STATE,
                            "the tokens in '%s' were made by another tokenizer; name it with "
                            "--tokenizer",
                            s->path);
    p->cached = true;
    return status;
}

static km_status open_part(km_dataset_part *p, const km_text_source *s, const km_token *token,
                           const km_dataset_options *o, km_error *err) {
    p->name = km_strdup(s->path);
    if (!p->name) return km_no_memory_for(err, "the dataset");
    if (s->tokenised) return open_given(p, s, token, err);
    char path[PATH_MAX];
    cache_path(path, sizeof path, s, token, o);
    if (access(path, F_OK) == 0) {
        km_error why = {0};
        km_status found = km_tokens_open(&p->tokens, path, &why);
        p->cached = found == KM_OK && fits(&p->tokens.meta, s, token, o);
        if (p->cached) return KM_OK;
        if (found != KM_OK) km_note(KM_LOG_WARN, "%s", why.text);
        km_tokens_close(&p->tokens);
    }
    km_status status = tokenise(path, s, token, o, err);
    return status == KM_OK ? km_tokens_open(&p->tokens, path, err) : status;
}

static km_status split(km_dataset_part *p, const km_dataset_options *o, km_error *err) {
    int64_t n = p->tokens.count;
    p->train = (int64_t)((double)n * (1 - o->val));
    p->val = n - p->train;
    if (p->train < o->context + 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "'%s' has %" PRId64 " tokens to learn from%s, and --context %" PRId64
                            " takes at least %" PRId64 ": give more text or a shorter context",
                            p->name, p->train, o->val > 0 ? " (the rest is for validation)" : "",
                            o->context, o->context + 1);
    if (o->val > 0 && p->val < 2)
        return km_error_set(err, KM_ERR_RANGE,
                            "'%s' leaves %" PRId64 " tokens for validation, and 2 are the least: "
                            "give more text, a larger --val, or --val 0 for none",
                            p->name, p->val);
    return KM_OK;
}

static km_status set_weights(km_dataset *d, const km_text_source *sources, km_error *err) {
    double given = 0, rest = 0;
    bool all = true;
    for (int i = 0; i < d->n; i++) {
        given += sources[i].weight;
        all = all && sources[i].weight > 0;
        if (!(sources[i].weight > 0)) rest += (double)d->parts[i].train;
    }
    if (!all && given >= 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "--data: the weights given sum to %g, which leaves nothing for the "
                            "sources without one",
                            given);
    for (int i = 0; i < d->n; i++) {
        double share = (1 - given) * (double)d->parts[i].train / rest;
        d->parts[i].weight = all                     ? sources[i].weight / given
                             : sources[i].weight > 0 ? sources[i].weight
                                                     : share;
    }
    return KM_OK;
}

km_status km_dataset_open(km_dataset *d, const km_text_source *sources, int n,
                          const km_token *token, const km_dataset_options *options, km_error *err) {
    *d = (km_dataset){0};
    if (n > KM_DATASET_MAX_PARTS)
        return km_error_set(err, KM_ERR_RANGE, "--data can be given %d times at most",
                            KM_DATASET_MAX_PARTS);
    d->parts = km_calloc((size_t)n, sizeof *d->parts);
    if (!d->parts) return km_no_memory_for(err, "the dataset");
    km_status status = KM_OK;
    for (int i = 0; i < n && status == KM_OK; i++) {
        d->n = i + 1;
        status = open_part(&d->parts[i], &sources[i], token, options, err);
        if (status == KM_OK) status = split(&d->parts[i], options, err);
        d->train += d->parts[i].train;
        d->val += d->parts[i].val;
    }
    if (status == KM_OK) status = set_weights(d, sources, err);
    if (status != KM_OK) km_dataset_close(d);
    return status;
}

void km_dataset_close(km_dataset *d) {
    for (int i = 0; i < d->n; i++) {
        km_tokens_close(&d->parts[i].tokens);
        km_free(d->parts[i].name);
    }
    km_free(d->parts);
    *d = (km_dataset){0};
}

km_status km_dataset_check(const km_dataset *d, km_error *err) {
    km_status s = KM_OK;
    for (int i = 0; i < d->n && s == KM_OK; i++) s = km_map_check(&d->parts[i].tokens.map, err);
    return s;
}

uint64_t km_dataset_hash(const km_dataset *d) {
    uint64_t hash = 0;
    for (int i = 0; i < d->n; i++) {
        const km_dataset_part *p = &d->parts[i];
        uint64_t weight;
        memcpy(&weight, &p->weight, sizeof weight);
        uint64_t all[4] = {
            XXH3_64bits(p->tokens.data, (size_t)p->tokens.count * (size_t)p->tokens.width),
            (uint64_t)p->train, (uint64_t)p->val, weight};
        hash = XXH3_64bits_withSeed(all, sizeof all, hash);
    }
    return hash;
}

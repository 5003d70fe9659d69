/* Sharing a model out to ranks: who gets which heads, columns and tokens. */
#include "model/share.h"
#include "model/cut.h"
#include "tensor/tensor.h"
#include <string.h>

#define UNIT 64 /* columns, and rows of the head, that kernels like to have together */

/* `total` things in units, as evenly as it goes: what rank r gets of them. */
static void portion(int64_t total, int64_t unit, int rank, int ranks, int64_t *first,
                    int64_t *count) {
    int64_t units = total / unit, least = units / ranks, more = units % ranks;
    *first = unit * (least * rank + (rank < more ? rank : more));
    *count = unit * (least + (rank < more));
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

static bool is_part(const km_layout_row *r, const char *part) {
    return strncmp(r->gguf, "blk.", 4) == 0 && strstr(r->gguf, part) != NULL;
}

/* The longest block among the matrices of that name: every other is a divisor of it. */
static int64_t block_of(const km_layout *l, const km_stored *found, const char *part,
                        km_dtype *which) {
    int64_t most = 1;
    *which = KM_F32;
    for (int i = 0; i < l->n; i++) {
        if (!is_part(&l->row[i], part)) continue;
        int64_t block = km_dtype_is_block(found[i].dtype) ? km_dtype_block(found[i].dtype) : 1;
        if (block > most) most = block, *which = found[i].dtype;
    }
    return most;
}

static km_status share_heads(const km_config *c, int64_t block, km_dtype d, km_share *s,
                             km_error *err) {
    int64_t wide = c->heads / c->kv_heads * c->head_dim; /* columns of a group */
    int64_t unit = block / common_divisor(block, wide), first, count;
    int64_t pieces = c->kv_heads / unit;
    if (s->ranks > c->kv_heads)
        return km_error_set(err, KM_ERR_RANGE,
                            "%d ranks cannot share %d key/value heads; %d is the most for this "
                            "model",
                            s->ranks, c->kv_heads, c->kv_heads);
    if (s->ranks > pieces)
        return km_error_set(err, KM_ERR_RANGE,
                            "%d ranks cannot share %d key/value heads of %lld columns in %s's "
                            "blocks of %lld; %lld is the most for this file",
                            s->ranks, c->kv_heads, (long long)wide, km_dtype_name(d),
                            (long long)block, (long long)(pieces > 0 ? pieces : 1));
    portion(c->kv_heads, unit, s->rank, s->ranks, &first, &count);
    s->kv_first = (int)first;
    s->kv_heads = (int)count;
    return KM_OK;
}

static km_status share_hidden(const km_config *c, int64_t block, km_dtype d, km_share *s,
                              km_error *err) {
    int64_t unit = block < UNIT ? UNIT : block; /* blocks are 32, 64 or 256 */
    if (c->hidden % unit || c->hidden / unit < s->ranks) unit = block;
    if (c->hidden % unit || c->hidden / unit < s->ranks)
        return km_error_set(err, KM_ERR_RANGE,
                            "%d ranks cannot share the MLP's %lld columns in %s's blocks of %lld; "
                            "%lld is the most for this file",
                            s->ranks, (long long)c->hidden, km_dtype_name(d), (long long)block,
                            (long long)(c->hidden >= block ? c->hidden / block : 1));
    portion(c->hidden, unit, s->rank, s->ranks, &s->hidden_first, &s->hidden);
    return KM_OK;
}

/* Equal parts but for the last one: they are gathered as they lie. */
static km_status share_tokens(const km_config *c, km_share *s, km_error *err) {
    int64_t part = (c->vocab + s->ranks - 1) / s->ranks, even = (part + UNIT - 1) / UNIT * UNIT;
    if (even * (s->ranks - 1) < c->vocab) part = even;
    s->token_part = part;
    s->token_first = part * s->rank;
    int64_t left = c->vocab - s->token_first;
    s->tokens = left < part ? left : part;
    if (s->tokens < 1 || c->vocab <= part * (s->ranks - 1))
        return km_error_set(err, KM_ERR_RANGE, "%d ranks cannot share %lld tokens", s->ranks,
                            (long long)c->vocab);
    return KM_OK;
}

km_status km_share_of(const km_config *c, const km_layout *l, const km_stored *found, int rank,
                      int ranks, km_share *out, km_error *err) {
    km_dtype output, down;
    int64_t block = block_of(l, found, ".attn_output.weight", &output);
    *out = (km_share){.rank = rank, .ranks = ranks};
    km_status s = share_heads(c, block, output, out, err);
    block = block_of(l, found, ".ffn_down.weight", &down);
    if (s == KM_OK) s = share_hidden(c, block, down, out, err);
    if (s == KM_OK) s = share_tokens(c, out, err);
    return s;
}

km_config km_share_config(const km_config *c, const km_share *s) {
    km_config own = *c;
    if (s->ranks < 1) return own;
    own.heads = c->heads / c->kv_heads * s->kv_heads;
    own.kv_heads = s->kv_heads;
    own.hidden = s->hidden;
    return own;
}

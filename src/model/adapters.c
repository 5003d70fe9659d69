/* Slots of adapters: each layer has the ranks of all adapters that correct it in one pair of matrices,
 * which is made anew when an adapter comes or goes. All new ones are there before the first old one
 * goes, so that a failure changes nothing. */
#include "model/adapters.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "model/lora.h"
#include "model/parts.h"
#include <string.h>
#include <xxhash.h>

typedef struct layer_change { /* what a layer is to have */
    km_ctx *ctx;
    km_nn_linear *l;
    km_nn_low low;
} layer_change;

typedef struct adapter_change {
    int slot;
    km_adapter_file *file; /* NULL: the slot is emptied */
    km_net *part;          /* whose layers are being visited */
    layer_change *layer;
    int n, room, tensors;
    bool counting; /* the first visit: what there is to do, and whether it fits */
    uint64_t print;
    km_error *err;
    km_status status;
} adapter_change;

static km_status context_failed(km_ctx *ctx, km_error *err) {
    km_error_set(err, km_ctx_status(ctx), "adapters: %s", km_ctx_error(ctx));
    km_ctx_clear_error(ctx);
    return err->code;
}

static void release_low(km_nn_low *low) {
    km_release(low->slot);
    km_release(low->a);
    km_release(low->b);
    *low = (km_nn_low){0};
}

/* Ranks [*from, *to) of a layer are the slot's; how many it has in all, or -1. */
static int64_t ranks_of(km_ctx *ctx, const km_nn_low *low, int slot, int64_t *from, int64_t *to) {
    *from = *to = 0;
    if (!low->slot) return 0;
    int64_t n = low->slot->shape.dim[0];
    int32_t *of = km_alloc(sizeof *of * (size_t)(n + 1));
    if (!of || km_read(ctx, low->slot, of, sizeof *of * (size_t)n) != KM_OK) {
        if (!of) km_fail(ctx, KM_ERR_MEMORY, "out of memory");
        km_free(of);
        return -1;
    }
    while (*from < n && of[*from] != slot) ++*from;
    *to = *from;
    while (*to < n && of[*to] == slot) ++*to;
    km_free(of);
    return n;
}

/* t without its rows [from, to), and with `more` behind it; kept. NULL: nothing is left, or a failure. */
static km_tensor *joined(km_ctx *ctx, km_tensor *t, int64_t from, int64_t to, km_tensor *more) {
    km_tensor *part[3];
    int n = 0;
    if (t && from > 0) part[n++] = km_narrow(ctx, t, 0, 0, from);
    if (t && to < t->shape.dim[0]) part[n++] = km_narrow(ctx, t, 0, to, t->shape.dim[0] - to);
    if (more) part[n++] = more;
    if (n == 0 || km_failed(ctx)) return NULL;
    return km_keep(ctx, n == 1 ? km_contiguous(ctx, part[0]) : km_concat(ctx, part, n, 0));
}

/* What the file has of a layer, as tensors of the step. */
static km_status read_layer(adapter_change *c, const km_nn_linear *l, const char *name, int rank,
                            km_tensor *out[3]) {
    int64_t in = l->w->shape.dim[1], outs = l->w->shape.dim[0];
    km_ctx *ctx = c->part->ctx;
    float *a = km_alloc(sizeof *a * (size_t)(rank * in)),
          *b = km_alloc(sizeof *b * (size_t)(rank * outs));
    int32_t *slot = km_alloc(sizeof *slot * (size_t)rank);
    km_status s = a && b && slot ? KM_OK : km_no_memory_for(c->err, "an adapter");
    km_rope_pairs pairs = KM_ROPE_HALVES;
    if (c->part->last > c->part->first) pairs = c->part->block[c->part->first].attention.pairs;
    if (s == KM_OK) s = km_adapter_file_read(c->file, name, pairs, a, b, c->err);
    if (s == KM_OK) {
        for (int i = 0; i < rank; i++) slot[i] = c->slot;
        c->print = XXH3_64bits_withSeed(a, sizeof *a * (size_t)(rank * in), c->print);
        c->print = XXH3_64bits_withSeed(b, sizeof *b * (size_t)(rank * outs), c->print);
        out[0] = km_from_data(ctx, KM_I32, KM_SHAPE(rank), slot);
        out[1] = km_from_data(ctx, KM_F32, KM_SHAPE(rank, in), a);
        out[2] = km_from_data(ctx, KM_F32, KM_SHAPE(rank, outs), b);
    }
    km_free(a);
    km_free(b);
    km_free(slot);
    return s;
}

static void change_layer(adapter_change *c, km_nn_linear *l, const char *name, int rank) {
    km_ctx *ctx = c->part->ctx;
    km_tensor *more[3] = {NULL, NULL, NULL};
    int64_t from, to;
    layer_change *to_be = &c->layer[c->n++];
    *to_be = (layer_change){.ctx = ctx, .l = l};
    km_scope_begin(ctx);
    int64_t had = ranks_of(ctx, &l->low, c->slot, &from, &to);
    if (had >= 0 && rank) c->status = read_layer(c, l, name, rank, more);
    if (had >= 0 && c->status == KM_OK) {
        to_be->low.slot = joined(ctx, l->low.slot, from, to, more[0]);
        to_be->low.a = joined(ctx, l->low.a, from, to, more[1]);
        to_be->low.b = joined(ctx, l->low.b, from, to, more[2]);
    }
    km_scope_end(ctx, NULL);
    if (c->status == KM_OK && km_failed(ctx)) c->status = context_failed(ctx, c->err);
    km_ctx_clear_error(ctx);
}

static void visit(void *user, km_nn_linear *l, const char *name) {
    adapter_change *c = user;
    int rank = 0, has = 0;
    if (c->status != KM_OK) return;
    if (c->file) {
        has = km_adapter_file_find(c->file, name, l->w, &rank, c->err);
        if (has < 0) c->status = c->err->code;
        if (has <= 0) return;
        c->tensors += c->counting ? 2 : 0;
    } else if (!l->low.slot) {
        return;
    }
    if (c->counting)
        c->room++;
    else
        change_layer(c, l, name, rank);
}

static void visit_all(adapter_change *c, km_net *m) {
    for (km_net *p = m; p && c->status == KM_OK; p = p->next) {
        c->part = p;
        km_lora_each(p, visit, c);
    }
}

/* Makes the layers what they are to be, or, after a failure, forgets that. */
static void settle(adapter_change *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->status == KM_OK) {
            km_nn_low old = c->layer[i].l->low;
            c->layer[i].l->low = c->layer[i].low;
            release_low(&old);
        } else {
            release_low(&c->layer[i].low);
        }
    }
    km_free(c->layer);
}

static km_status change(km_net *m, adapter_change *c) {
    km_error own = {0};
    char shown[KM_SHOWN];
    if (!c->err) c->err = &own;
    c->counting = true;
    visit_all(c, m);
    if (c->status == KM_OK && c->file) {
        const char *stray = km_adapter_file_stray(c->file);
        if (stray)
            c->status = km_error_set(
                c->err, KM_ERR_FORMAT,
                "'%s': %d of the %d tensors fit no layer of the model, '%s' among them",
                km_adapter_file_path(c->file), km_adapter_file_tensors(c->file) - c->tensors,
                km_adapter_file_tensors(c->file), km_shown(shown, stray));
        else if (c->tensors == 0)
            c->status = km_error_set(c->err, KM_ERR_FORMAT, "'%s' holds no adapter",
                                     km_adapter_file_path(c->file));
    }
    if (c->status != KM_OK) return c->status;
    c->layer = km_calloc((size_t)c->room + 1, sizeof *c->layer);
    if (!c->layer) return km_no_memory_for(c->err, "an adapter");
    c->counting = false;
    visit_all(c, m);
    settle(c);
    if (c->status == KM_OK) m->adapters.changes++;
    return c->status;
}

km_status km_adapter_load(km_net *m, int slot, const char *path, km_error *err) {
    km_error own = {0};
    if (!err) err = &own;
    if (slot < 0 || slot >= KM_ADAPTER_SLOTS)
        return km_error_set(err, KM_ERR_RANGE, "adapters: slot %d of %d", slot, KM_ADAPTER_SLOTS);
    if (m->comm)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "adapters: not where ranks share the model's tensors");
    adapter_change c = {.slot = slot, .err = err, .file = km_adapter_file_open(m, path, err)};
    if (!c.file) return err->code;
    km_status s = change(m, &c);
    km_adapter_file_close(c.file);
    if (s == KM_OK) m->adapters.print[slot] = c.print ? c.print : 1;
    return s;
}

km_status km_adapter_unload(km_net *m, int slot, km_error *err) {
    adapter_change c = {.slot = slot, .err = err};
    km_status s = change(m, &c);
    if (s == KM_OK) m->adapters.print[slot] = 0;
    return s;
}

void km_adapters_release(km_net *m) {
    km_nn_linear *l[KM_NN_BLOCK_LINEARS];
    for (int i = m->first; i < m->last; i++)
        for (int n = km_nn_block_linears(&m->block[i], l), k = 0; k < n; k++)
            release_low(&l[k]->low);
}

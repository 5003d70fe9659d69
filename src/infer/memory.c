/* Where layers go, and what they take there. */
#include "infer/memory.h"
#include "backend/backend.h"
#include "infer/streaming.h"
#include "model/arch.h"
#include "tensor/mempool.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Room ---- */

/* "24G" in bytes; NaN when it is no size. */
static double size_of(const char *text) {
    char *end = NULL;
    double v = strtod(text, &end);
    if (end == text || !(v >= 0)) return NAN;
    switch (*end) {
    case 'G':
    case 'g': return v * 0x1p30;
    case 'M':
    case 'm': return v * 0x1p20;
    case 'K':
    case 'k': return v * 0x1p10;
    default: return *end ? NAN : v;
    }
}

double km_device_room(const char *name) {
    km_device *d = km_device_find(name, &(km_error){0});
    const char *at_most = getenv("KERMES_GPU_MEMORY");
    double most = at_most ? size_of(at_most) : NAN, room = NAN;
    if (!d || strcmp(d->name, "cpu") == 0) return NAN;
    if (d->ops->room) room = (double)d->ops->room(d);
    return isnan(room) || most < room ? most : room;
}

static double room_on(const km_memory_ask *ask, const char *device) {
    double room = km_device_room(device);
    return ask->memory > 0 && room > ask->memory ? ask->memory : room;
}

/* ---- What is needed ---- */

static double pooled(double bytes) { return (double)km_mempool_rounded((size_t)bytes); }

static double cache_bytes(const km_config *c, const km_memory_ask *ask, int64_t context,
                          int layers) {
    km_cache_options o = {ask->cache, ask->sequences, context, 0};
    double pools = 2.0 * c->layers, each = (double)km_cache_bytes(c, &o) / pools;
    return 2.0 * layers * pooled(each);
}

/* The buffers of a prompt's chunk, the logits of a step, and what a device needs for itself. */
static double scratch_bytes(const km_config *c, const km_memory_ask *ask, const km_device *d,
                            bool head) {
    double wide =
        4.0 * (double)c->dim + 2.0 * (double)c->hidden + 3.0 * (double)(c->heads * c->head_dim);
    double most = (double)km_prompt_chunk(d), rows = fmin((double)c->context, most);
    double few = (double)(ask->sequences < 64 ? ask->sequences : 64) + 1;
    return 4 * (rows * wide + (head ? few * (double)c->vocab : 0)) + 32 * 0x1p20;
}

static double weights_of(const km_weighed *w, int first, int last) {
    return first < last ? km_weighed_part(w, first, last) : 0;
}

static km_memory_part part_of(const km_weighed *w, const km_memory_ask *ask, const char *device,
                              int first, int last, int64_t context) {
    const km_config *c = &w->config;
    km_device *d = km_device_find(device, &(km_error){0});
    km_memory_part p = {.first = first,
                        .last = last,
                        .weights = weights_of(w, first, last),
                        .cache = cache_bytes(c, ask, context, last - first),
                        .scratch = scratch_bytes(c, ask, d, last == c->layers),
                        .room = room_on(ask, device)};
    if (!d || !d->host) p.scratch += (p.weights + p.cache) / 64; /* what chunks leave over */
    snprintf(p.device, sizeof p.device, "%s", d ? d->name : device);
    return p;
}

/* The largest matrix of a layer, a little too large rather than too small: several of them are on
 * their way at once where weights are streamed. */
static double matrix_bytes(const km_weighed *w) {
    const km_config *c = &w->config;
    const km_traits *t = km_arch_traits(c->arch);
    double d = (double)c->dim, h = (double)c->hidden, q = (double)(c->heads * c->head_dim);
    double kv = (double)(c->kv_heads * c->head_dim), layer = 0;
    double block = d * (2 * q + 2 * kv) + (t->gated ? 3 : 2) * d * h;
    double most = fmax(d * h * (t->joined_up ? 2 : 1), d * (t->joined_qkv ? q + 2 * kv : q));
    for (int i = 0; i < c->layers; i++) layer = fmax(layer, w->layer[i]);
    return fmin(layer, 1.4 * layer * most / block); /* some have more bits than others */
}

/* All layers on one device, the first n over weights that stay in the host's memory. */
static km_memory_part streamed_part(const km_weighed *w, const km_memory_ask *ask, int n,
                                    int64_t context) {
    km_memory_part p = part_of(w, ask, ask->split.device[0], 0, w->config.layers, context);
    for (int i = 0; i < n; i++) p.streamed_weights += w->stays[i];
    p.streamed = n;
    p.weights -= p.streamed_weights;
    p.scratch += KM_STREAM_SLOTS * matrix_bytes(w);
    return p;
}

static double need(const km_memory_part *p) { return p->weights + p->cache + p->scratch; }
static bool fits(const km_memory_part *p) { return isnan(p->room) || need(p) <= p->room; }

/* ---- Where layers go ---- */

/* Layers from `first` on over the devices, each getting what its room is of all room. */
static void spread(const km_weighed *w, const km_memory_ask *ask, int first, int64_t context,
                   km_memory_plan *p) {
    int n = ask->split.n, layers = w->config.layers, at = first;
    double room[KM_MAX_PARTS], all = 0, total = 0, sum = 0, given = 0;
    for (int i = 0; i < n; i++) {
        room[i] = room_on(ask, ask->split.device[i]);
        if (!(room[i] >= 0)) room[i] = 1; /* not counted: equal shares */
        all += room[i];
    }
    for (int k = first; k < layers; k++) total += w->layer[k];
    for (int i = 0; i < n && at < layers; i++) {
        int last = at;
        given += all > 0 ? room[i] / all : 1;
        /* A layer goes to the device on whose side most of it lies. */
        while (last < layers && (i == n - 1 || sum + w->layer[last] / 2 <= total * given))
            sum += w->layer[last++];
        if (last == at) continue;
        p->part[p->n++] = part_of(w, ask, ask->split.device[i], at, last, context);
        at = last;
    }
}

/* The plan with the last n layers on the devices. */
static void arrange(const km_weighed *w, const km_memory_ask *ask, int n, int64_t context,
                    km_memory_plan *p) {
    int layers = w->config.layers, first = layers - n;
    *p = (km_memory_plan){.layers = layers, .context = context};
    if (first > 0) p->part[p->n++] = part_of(w, ask, "cpu", 0, first, context);
    spread(w, ask, first, context, p);
}

static bool all_fit(const km_memory_plan *p) {
    for (int i = 0; i < p->n; i++)
        if (!fits(&p->part[i])) return false;
    return true;
}

/* The most layers that fit with that context; 0: not even the head. */
static int most_layers(const km_weighed *w, const km_memory_ask *ask, int64_t context) {
    km_memory_plan p;
    int low = 0, high = w->config.layers;
    while (low < high) { /* low fits, high + 1 does not */
        int middle = (low + high + 1) / 2;
        arrange(w, ask, middle, context, &p);
        if (all_fit(&p))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The longest context that fits with n layers on the devices, in pages; 0: none does. */
static int64_t most_context(const km_weighed *w, const km_memory_ask *ask, int n) {
    km_memory_plan p;
    int64_t low = 0, high = (w->config.context + KM_KV_PAGE - 1) / KM_KV_PAGE;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        arrange(w, ask, n, middle * KM_KV_PAGE, &p);
        if (all_fit(&p))
            low = middle;
        else
            high = middle - 1;
    }
    int64_t tokens = low * KM_KV_PAGE;
    return tokens < w->config.context ? tokens : w->config.context;
}

static km_status too_much(const km_memory_plan *p, const char *fmt, long long a, km_error *err) {
    km_text told = {0}, hint = {0};
    km_memory_tell(p, &told);
    km_text_printf(&hint, fmt, a);
    km_error_set(err, KM_ERR_MEMORY, "not enough memory: %.260s; %s", km_text_str(&told),
                 km_text_str(&hint));
    km_text_free(&told);
    km_text_free(&hint);
    return KM_ERR_MEMORY;
}

/* All layers on the devices: with the context asked for, or with the longest that fits. */
static km_status whole(const km_weighed *w, const km_memory_ask *ask, km_memory_plan *out,
                       km_error *err) {
    int layers = w->config.layers;
    int64_t context = most_context(w, ask, layers);
    int64_t wanted = ask->context ? ask->context : w->config.context;
    arrange(w, ask, layers, wanted, out);
    if (all_fit(out)) return KM_OK;
    if (ask->context)
        return too_much(out, "the longest context that fits is %lld tokens (or --gpu-layers auto)",
                        (long long)context, err);
    arrange(w, ask, layers, context, out);
    return KM_OK;
}

/* ---- Streaming ---- */

/* Floating-point operations of a token in n layers: two for each weight. */
static double flops_of(const km_weighed *w, int n) {
    const km_config *c = &w->config;
    double q = (double)(c->heads * c->head_dim), kv = (double)(c->kv_heads * c->head_dim);
    double block = (double)c->dim * (2 * q + 2 * kv) +
                   (km_arch_traits(c->arch)->gated ? 3 : 2) * (double)(c->dim * c->hidden);
    return 2 * block * n;
}

/* Whether the plan, which leaves layers to the CPU, is turned into one that streams their weights:
 * KERMES_STREAM=1 and =0 say so, else what is faster. No error is one of the plan's: if nothing can
 * be measured, the CPU it is. */
static void consider_streaming(const km_weighed *w, const km_memory_ask *ask, km_memory_plan *p) {
    const char *said = getenv("KERMES_STREAM");
    int layers = w->config.layers, cpu = 0, n = 1;
    if (ask->split.n != 1 || (said && strcmp(said, "0") == 0)) return;
    for (int i = 0; i < p->n; i++)
        if (strcmp(p->part[i].device, "cpu") == 0) cpu = p->part[i].last - p->part[i].first;
    if (cpu == 0) return;
    km_memory_part part = streamed_part(w, ask, n, p->context);
    while (!fits(&part) && n < layers) part = streamed_part(w, ask, ++n, p->context);
    if (!fits(&part)) return;
    if (!said) {
        km_stream_rates r;
        km_device *d = km_device_find(ask->split.device[0], &(km_error){0});
        if (!d || d->host) return; /* the same memory */
        if (km_stream_measure(ask->split.device[0], &r, &(km_error){0}) != KM_OK) return;
        p->cpu_seconds = km_turn_on_cpu(&r, weights_of(w, 0, cpu), flops_of(w, cpu));
        p->streaming_seconds = km_turn_streamed(&r, part.streamed_weights, km_prompt_chunk(d));
        if (p->cpu_seconds <= p->streaming_seconds) return;
    }
    p->part[0] = part;
    p->n = 1;
}

/* ---- The plan ---- */

km_status km_memory_plan_make(const km_weighed *w, const km_memory_ask *given, km_memory_plan *out,
                              km_error *err) {
    km_memory_ask ask = *given;
    int layers = w->config.layers;
    int64_t wanted = ask.context ? ask.context : w->config.context;
    if (ask.sequences < 1) ask.sequences = 1;
    if (wanted > w->config.context) wanted = w->config.context;
    if (ask.gpu_layers == KM_GPU_LAYERS_UNSAID) {
        /* Room for the weights and a page: the context may have to be shorter than the model's. */
        if (most_layers(w, &ask, KM_KV_PAGE) == layers) return whole(w, &ask, out, err);
        ask.gpu_layers = KM_GPU_LAYERS_AUTO;
    }
    if (ask.gpu_layers == KM_GPU_LAYERS_AUTO) {
        int n = most_layers(w, &ask, wanted);
        if (n == 0 && !ask.context) /* better a shorter context than no GPU */
            n = most_layers(w, &ask, wanted = wanted < 4096 ? wanted : 4096);
        arrange(w, &ask, n, wanted, out);
        consider_streaming(w, &ask, out);
        return KM_OK;
    }
    int n = ask.gpu_layers > layers ? layers : (int)ask.gpu_layers;
    arrange(w, &ask, n, wanted, out);
    if (all_fit(out)) return KM_OK;
    int64_t context = most_context(w, &ask, n);
    if (context >= KM_KV_PAGE && !ask.context) {
        arrange(w, &ask, n, context, out);
        return KM_OK;
    }
    if (context >= KM_KV_PAGE)
        return too_much(out, "the longest context that fits is %lld tokens", (long long)context,
                        err);
    return too_much(out, "%lld layers fit", most_layers(w, &ask, wanted), err);
}

/* ---- Telling ---- */

km_open_split km_memory_split(const km_memory_plan *p) {
    km_open_split s = {.n = p->n};
    for (int i = 0; i < p->n; i++) {
        snprintf(s.device[i], sizeof s.device[i], "%s", p->part[i].device);
        s.layers[i] = p->part[i].last - p->part[i].first;
        s.streamed[i] = p->part[i].streamed;
    }
    return s;
}

bool km_memory_on_gpu(const km_memory_plan *p) {
    for (int i = 0; i < p->n; i++)
        if (!isnan(p->part[i].room)) return true;
    return false;
}

static void gigabytes(km_text *t, double bytes) {
    km_text_printf(t, bytes < 1e8 ? "%.2f GB" : bytes < 1e11 ? "%.1f GB" : "%.0f GB", bytes / 1e9);
}

void km_memory_tell(const km_memory_plan *p, km_text *t) {
    for (int i = 0; i < p->n; i++) {
        const km_memory_part *a = &p->part[i];
        km_text_printf(t, "%s%s: ", i ? "; " : "", a->device);
        if (p->n > 1) km_text_printf(t, "%d layers, ", a->last - a->first);
        km_text_add(t, "weights ");
        gigabytes(t, a->weights);
        if (a->streamed) {
            km_text_add(t, " and ");
            gigabytes(t, a->streamed_weights);
            km_text_printf(t, " of %d layers streamed from memory", a->streamed);
        }
        km_text_add(t, ", KV ");
        gigabytes(t, a->cache);
        km_text_add(t, ", scratch ");
        gigabytes(t, a->scratch);
        if (isnan(a->room)) continue;
        km_text_add(t, fits(a) ? ": fits in " : ": more than the ");
        gigabytes(t, a->room);
        if (!fits(a)) km_text_add(t, " free");
    }
    if (p->cpu_seconds > 0)
        km_text_printf(t,
                       "; a turn of %d + %d tokens spends %.2g s on streamed layers, %.2g s on "
                       "the CPU's",
                       KM_TURN_READ, KM_TURN_SAID, p->streaming_seconds, p->cpu_seconds);
}

/* ---- A step's bytes ---- */

double km_step_bytes(const km_net *whole_, km_dtype cache, int64_t sequences, int64_t tokens) {
    const km_config *c = &whole_->config;
    double bytes = 0;
    for (const km_net *m = whole_; m; m = m->next)
        for (int i = 0; i < m->params.n; i++) {
            const km_tensor *t = m->params.at[i].t;
            bool table = (t == m->wte.w || t == m->wpe.w) && t != m->head.w;
            if (!table) bytes += (double)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
        }
    for (int i = 0; i < c->layers; i++) {
        int64_t seen = km_config_layer_has_window(c, i) && c->window < tokens ? c->window : tokens;
        bytes += 2.0 * (double)sequences *
                 (double)km_dtype_bytes(cache, seen * c->kv_heads * c->head_dim);
    }
    return bytes;
}

/* Models: opening and closing them, what they are, and who holds them. */
#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/sized.h"
#include "engine/engine.h"
#include "engine/model_folder.h"
#include "infer/follow.h"
#include "model/convert.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

km_status km_model_defaults_sized(km_model_options *out, size_t size) {
    km_model_options own = {.size = sizeof(km_model_options),
                            .gpu_layers = KM_GPU_LAYERS_UNSAID,
                            .cache = KM_F16,
                            .dtype = KM_DTYPE_COUNT};
    return KM_HAND_OUT(out, size, &own, km_model_options);
}

/* ---- Who holds it ---- */

km_model *km_model_hold(km_model *m) {
    atomic_fetch_add(&m->users, 1);
    return m;
}

static void destroy(km_model *m) {
    if (m->draft) km_model_drop(m->draft);
    if (m->ground && m->ground->net) km_lead_dismiss(m->ground->net);
    km_ground_drop(m->ground);
    km_chat_template_free(m->template);
    km_trie_free(m->trie);
    km_adapters_close(m);
    km_token_free(m->token);
    if (m->lent) km_file_take_back(m->path);
    km_free_aligned(m->copy, m->copy_bytes);
    km_ranker_free(m->ranker);
    km_free(m->name);
    km_free(m->file_type);
    pthread_mutex_destroy(&m->lock);
    pthread_mutex_destroy(&m->gate.lock);
    km_free(m);
}

void km_model_drop(km_model *m) {
    if (m && atomic_fetch_sub(&m->users, 1) == 1) destroy(m);
}

void km_model_close(km_model *m) {
    if (km_handle_remove(m, KM_HANDLE_MODEL)) km_model_drop(m);
}

static void drop_model(void *model) { km_model_drop(model); }

bool km_model_usable(km_holding *held, const char *call, const km_model *m, bool weights) {
    if (!km_hold(held, call, m, KM_HANDLE_MODEL, offsetof(km_model, users), drop_model))
        return false;
    if (weights && !m->ground)
        km_public_fail(KM_ERR_STATE, "%s: the model was opened for its tokenizer only", call);
    else if (weights && m->comm && km_comm_rank(m->comm) != 0)
        km_public_fail(KM_ERR_STATE, "%s: this rank follows rank 0 (km_model_follow)", call);
    else
        return true;
    return false;
}

/* ---- Opening ---- */

static km_status check_options(const km_model_options *o, km_error *err) {
    static const km_dtype kept[] = {KM_F16, KM_F32, KM_BF16, KM_Q8_0, KM_Q4_0};
    bool known = false;
    for (int i = 0; i < 5; i++) known |= o->cache == kept[i];
    if (!known)
        return km_error_set(err, KM_ERR_DTYPE,
                            "keys and values are kept in f32, f16, bf16, q8_0 or q4_0, not %s",
                            km_dtype_name(o->cache));
    if (o->context < 0 || o->context > 1 << 24)
        return km_error_set(err, KM_ERR_RANGE, "a context of %lld tokens", (long long)o->context);
    if (o->sequences < 0 || o->sequences > 4096)
        return km_error_set(err, KM_ERR_RANGE, "%lld sequences; up to 4096 are possible",
                            (long long)o->sequences);
    if (o->dtype != KM_DTYPE_COUNT && o->dtype != KM_F32 && o->dtype != KM_F16 &&
        o->dtype != KM_BF16)
        return km_error_set(err, KM_ERR_DTYPE, "weights become f32, bf16 or f16, not %s",
                            km_dtype_name(o->dtype));
    if (o->n_adapters && !o->adapters)
        return km_error_set(err, KM_ERR_NULL, "%zu adapters, and none given", o->n_adapters);
    if (o->n_adapters && o->tensor && km_comm_env_size() > 1)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "adapters are not possible where ranks share the model");
    if (o->tensor && (o->devices || o->gpu_layers != KM_GPU_LAYERS_UNSAID))
        return km_error_set(err, KM_ERR_RANGE,
                            "a model that ranks share has a device a rank, and no other split");
    return KM_OK;
}

/* The part of the path that people call it by. */
static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static km_status describe(km_model *m, km_error *err) {
    const char *called = m->lent ? "model" : last_part(m->path);
    km_gguf *g = km_is_gguf(m->path) ? km_gguf_open(m->path, err) : NULL;
    if (g) {
        const char *name = NULL;
        int64_t count[KM_DTYPE_COUNT] = {0}, most = 0;
        km_error ignored = {0};
        if (km_gguf_string(g, "general.name", &name, &ignored) == KM_OK && name && *name)
            called = name;
        for (int i = 0; i < km_gguf_count(g); i++) {
            const km_gguf_tensor *t = km_gguf_at(g, i);
            int64_t n = km_shape_count(t->shape);
            m->parameters += n;
            m->bytes += (int64_t)t->bytes;
            km_dtype d = t->info->dtype;
            if (d >= KM_DTYPE_COUNT || (count[d] += n) <= most) continue;
            most = count[d];
            km_free(m->file_type);
            m->file_type = km_strdup(km_dtype_name(d));
        }
        km_config c;
        if (km_config_from_gguf(&c, g, &ignored) == KM_OK) {
            char key[96];
            m->trained_context = c.context;
            m->config = c;
            const char *arch = NULL;
            km_gguf_string(g, "general.architecture", &arch, &ignored);
            snprintf(key, sizeof key, "%.60s.pooling_type", arch ? arch : "");
            km_gguf_int(g, key, 0, 4, &m->pooling, &ignored);
            km_ranker_open(m, g, err);
        }
    } else if (err->code == KM_OK) {
        km_config c;
        if (km_config_load(&c, m->path, err) == KM_OK) {
            m->config = c;
            m->trained_context = c.context;
            m->parameters = km_config_parameters(&c);
        }
    }
    m->name = km_strdup(called);
    km_gguf_close(g);
    if (err->code != KM_OK) return err->code;
    return m->name ? KM_OK : km_no_memory_for(err, "a model");
}

/* Bytes of weights as they lie on devices, for what is not a GGUF file. */
static void weigh(km_model *m) {
    if (m->bytes || !m->ground) return;
    for (const km_net *p = m->ground->net; p; p = p->next)
        for (int i = 0; i < p->params.n; i++) {
            const km_tensor *t = p->params.at[i].t;
            m->bytes += (int64_t)km_dtype_bytes(t->dtype, km_shape_count(t->shape));
            if (!m->file_type) m->file_type = km_strdup(km_dtype_name(t->dtype));
        }
}

static km_status open_parts(km_model *m, const km_model_options *o, km_error *err) {
    const char *fault = getenv("KERMES_FAULT_STEP"); /* for tests: that step fails */
    km_placing where = {.device = o->device ? o->device : "auto",
                        .devices = o->devices,
                        .gpu_layers = o->gpu_layers,
                        .memory = o->memory,
                        .threads = o->threads,
                        .activations = o->activations};
    km_status s = km_placing_check(&where, err);
    if (s == KM_OK && !(m->token = km_token_load(o->tokenizer ? o->tokenizer : m->path, err)))
        s = err->code;
    if (s == KM_OK && o->chat_template && !(m->template = km_template_of(o->chat_template, err)))
        s = err->code;
    if (s == KM_OK) s = describe(m, err);
    if (s == KM_OK) m->sampling = km_sampling_suggested(m->path, m->sampling_from);
    if (s != KM_OK || o->tokenizer_only) return s;
    if (fault) km_plan_fail_at(strtoll(fault, NULL, 10));
    m->open = (km_open_options){.context = o->context, .dtype = o->dtype};
    s = o->tensor ? km_share_model(m, &where, o->comm, err) : km_place_model(m, &where, err);
    if (s != KM_OK) return s;
    m->config = km_net_end(m->ground->net)->config;
    weigh(m);
    if (s == KM_OK && o->n_adapters) s = km_adapters_open(m, o->adapters, o->n_adapters, err);
    if (s == KM_OK && o->draft) s = km_draft_open(m, o->draft, err);
    return s;
}

static km_model *new_model(km_error *err) {
    km_model *m = km_calloc(1, sizeof *m);
    if (!m) {
        km_no_memory_for(err, "a model");
        return NULL;
    }
    atomic_store(&m->users, 1);
    m->gate = (km_gate)KM_GATE(1);
    pthread_mutex_init(&m->lock, NULL);
    return m;
}

/* Fills a model whose path is known. */
static km_model *opened(km_model *m, km_status s, const km_model_options *o, km_error *err) {
    if (s == KM_OK) {
        m->how = *o;
        s = open_parts(m, o, err);
    }
    if (s != KM_OK && o->tensor) s = km_share_failed(m, s, o->comm, err);
    m->how.progress = NULL; /* what the caller had for the opening is not used again */
    m->how.device = m->how.devices = m->how.tokenizer = m->how.chat_template = NULL;
    m->how.draft = m->how.comm = NULL;
    m->how.adapters = NULL;
    if (s != KM_OK) {
        km_last_error_set(err);
        km_model_drop(m);
        return NULL;
    }
    km_handle_add(&m->handle, KM_HANDLE_MODEL);
    return m;
}

/* A model to be filled, and options that were checked. */
static km_model *begin(const char *call, const km_model_options *given, km_model_options *o,
                       km_error *err) {
    *o = km_model_defaults();
    if (km_take_options(call, o, sizeof *o, given) != KM_OK) return NULL;
    km_model *m = check_options(o, err) == KM_OK ? new_model(err) : NULL;
    if (!m) km_last_error_set(err);
    return m;
}

km_model *km_model_open(const char *path, const km_model_options *options) {
    km_model_options o;
    km_error err = {0};
    km_model *m = begin("km_model_open", options, &o, &err);
    return m ? opened(m, km_find_model(path, m->path, &err), &o, &err) : NULL;
}

/* ---- From elsewhere than a path ---- */

static km_model *open_lent(km_model *m, km_status s, const km_model_options *o, km_error *err) {
    m->lent = s == KM_OK;
    return opened(m, s, o, err);
}

km_model *km_model_open_fd(int fd, const km_model_options *options) {
    km_model_options o;
    km_error err = {0};
    km_model *m = begin("km_model_open_fd", options, &o, &err);
    return m ? open_lent(m, km_file_lend_fd(fd, m->path, sizeof m->path, &err), &o, &err) : NULL;
}

km_model *km_model_open_memory(const void *gguf, size_t bytes, const km_model_options *options) {
    km_model_options o;
    km_error err = {0};
    if (!gguf || bytes == 0) {
        km_public_fail(KM_ERR_NULL, "km_model_open_memory: no file given");
        return NULL;
    }
    km_model *m = begin("km_model_open_memory", options, &o, &err);
    if (!m) return NULL;
    return open_lent(m, km_file_lend(gguf, bytes, m->path, sizeof m->path, &err), &o, &err);
}

static km_status read_all(km_model *m, const km_reader *r, km_error *err) {
    const size_t piece = (size_t)64 << 20;
    if (r->bytes > SIZE_MAX / 2)
        return km_error_set(err, KM_ERR_RANGE, "a file of %llu bytes",
                            (unsigned long long)r->bytes);
    m->copy = km_alloc_aligned((size_t)r->bytes);
    if (!m->copy)
        return km_no_memory_for(err, "a file of %llu bytes", (unsigned long long)r->bytes);
    m->copy_bytes = (size_t)r->bytes;
    for (size_t at = 0, n; at < m->copy_bytes; at += n) {
        n = m->copy_bytes - at < piece ? m->copy_bytes - at : piece;
        km_status s = r->read(r->user, at, (char *)m->copy + at, n);
        if (s != KM_OK)
            return km_error_set(err, s, "the reader failed at byte %zu: %s", at, km_status_text(s));
    }
    return km_file_lend(m->copy, m->copy_bytes, m->path, sizeof m->path, err);
}

km_model *km_model_open_reader(const km_reader *r, const km_model_options *options) {
    km_model_options o;
    km_error err = {0};
    if (!r || !r->read || r->bytes == 0) {
        km_public_fail(KM_ERR_NULL, "km_model_open_reader: no reader given, or of nothing");
        return NULL;
    }
    km_model *m = begin("km_model_open_reader", options, &o, &err);
    return m ? open_lent(m, read_all(m, r, &err), &o, &err) : NULL;
}

/* ---- What it is ---- */

static km_model_info info_of(km_model *m) {
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_describe", m, false)) return (km_model_info){0};
    const km_config *c = &m->config;
    km_error err = {0};
    pthread_mutex_lock(&m->lock);
    const char *devices = m->ground ? m->ground->devices : "";
    bool embeds = m->ground && !m->ground->net->next && !m->comm;
    pthread_mutex_unlock(&m->lock);
    return (km_model_info){.size = sizeof(km_model_info),
                           .path = m->lent ? "" : m->path,
                           .name = m->name,
                           .architecture = km_arch_name(c->arch),
                           .devices = devices,
                           .file_type = m->file_type ? m->file_type : "",
                           .parameters = m->parameters,
                           .bytes = m->bytes,
                           .context = c->context,
                           .trained_context = m->trained_context,
                           .vocab = c->vocab,
                           .dim = c->dim,
                           .layers = c->layers,
                           .heads = c->heads,
                           .kv_heads = c->kv_heads,
                           .has_template = km_model_template(m, &err) != NULL,
                           .can_embed = embeds,
                           .sampling_from = m->sampling_from,
                           .can_rank = embeds && m->ranker};
}

km_status km_model_describe_sized(km_model *m, km_model_info *out, size_t size) {
    km_model_info own = info_of(m);
    return KM_HAND_OUT(out, size, &own, km_model_info);
}

int km_ranks(void) { return km_comm_env_size(); }

bool km_model_follows(const km_model *m) {
    KM_HOLDING(held); /* a question: of what is no model, no */
    return km_handle_is(m, KM_HANDLE_MODEL) &&
           km_model_usable(&held, "km_model_follows", m, false) && m->comm &&
           km_comm_rank(m->comm) != 0;
}

km_status km_model_follow(km_model *m) {
    km_error err = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_model_follow", m, false)) return km_last_status();
    if (!km_model_follows(m))
        return km_public_fail(KM_ERR_STATE, "km_model_follow: this rank leads");
    km_ctx *ctx = m->ground->ctx;
    if (km_follow(m->ground->net, &err) == KM_OK) return KM_OK;
    if (!km_failed(ctx)) km_fail(ctx, err.code, "%s", err.text); /* ends the others too */
    return km_public_fail(err.code, "rank %d: %s", km_comm_rank(m->comm), err.text);
}

/* Sessions: what a model has read, and generations in it, all at once or step by step. */
#include "base/alloc.h"
#include "base/log.h"
#include "base/sized.h"
#include "engine/engine.h"
#include <string.h>

struct km_session {
    km_handle handle;
    km_model *m;
    km_ground *ground; /* that `seq` runs on */
    km_sequence *seq;
    km_drafter *drafter; /* NULL: not made yet, or none */
    atomic_bool cancel;
    km_maker *maker; /* the generation under way; NULL: none */
    km_wish wish;
    km_adapter_mix mix; /* of what it holds */
    bool chose;         /* it was told, and generations that say nothing keep to it */
    km_generated last;
};

/* ---- One call at a time ---- */

/* What only tells something, also to the callbacks of a call on it. */
static bool look(km_inside *in, const char *call, const km_session *s) {
    return km_enter(in, call, s, KM_HANDLE_SESSION);
}

static bool enter(km_inside *in, const char *call, km_session *s) {
    if (!km_is_inside(s)) return look(in, call, s);
    km_public_fail(KM_ERR_STATE, "%s: the session is busy with the call that this one came from",
                   call);
    return false;
}

/* ---- Where it runs ---- */

/* A sequence on the model's ground that holds these tokens. */
static km_status settle(km_session *s, const int32_t *ids, size_t n, km_error *err) {
    km_ground *g = km_ground_hold(s->m);
    int turn = km_gate_enter(&s->m->gate, 1);
    km_sequences *pool = km_ground_pool(s->m, g, err);
    km_gate_leave(&s->m->gate, turn);
    km_sequence *seq = pool ? km_sequence_of(pool, err) : NULL;
    if (seq) km_sequence_set_mix(seq, &s->mix);
    if (seq && n && km_sequence_read(seq, ids, n, err) != KM_OK) {
        km_sequence_free(seq);
        seq = NULL;
    }
    if (!seq) {
        km_ground_drop(g);
        return err->code;
    }
    s->ground = g;
    s->seq = seq;
    return KM_OK;
}

/* Leaves the ground that failed for the model's, with all that the session holds. */
static km_status move(km_session *s, km_error *err) {
    size_t n = (size_t)km_sequence_length(s->seq);
    int32_t *ids = km_alloc(sizeof *ids * (n + 1));
    if (!ids) return km_no_memory_for(err, "a session");
    memcpy(ids, km_sequence_tokens(s->seq), sizeof *ids * n);
    km_sequence *old = s->seq;
    km_ground *from = s->ground;
    km_status status = settle(s, ids, n, err);
    km_free(ids);
    if (status != KM_OK) return status;
    km_sequence_free(old);
    km_ground_drop(from);
    return KM_OK;
}

static km_sequence *rescue(void *user, km_sequence *failed, const km_error *why) {
    km_session *s = user;
    km_error err = {0};
    (void)failed; /* s->seq */
    if (!km_ground_rescue(s->m, s->ground, why)) return NULL;
    if (move(s, &err) == KM_OK) return s->seq;
    km_note(KM_LOG_WARN, "the CPU cannot go on either: %s", err.text);
    return NULL;
}

/* After a failure that nobody made up for: the next call may work again. */
static void clear_errors(km_session *s) {
    int turn = km_gate_enter(&s->m->gate, 1);
    for (km_net *p = s->ground->net; p; p = p->next) km_ctx_clear_error(p->ctx);
    km_gate_leave(&s->m->gate, turn);
}

/* Ends the generation under way, and sees to it that the session is where the model is. */
static km_status ready(km_session *s, km_error *err) {
    if (s->maker) s->last = km_maker_got(s->maker);
    km_maker_free(s->maker);
    s->maker = NULL;
    km_wish_free(&s->wish);
    return km_ground_is(s->m, s->ground) ? KM_OK : move(s, err);
}

/* ---- Making and freeing ---- */

km_session *km_session_new(km_model *m) {
    km_error err = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_session_new", m, true)) return NULL;
    km_session *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_no_memory_for(&err, "a session");
    } else {
        s->m = km_model_hold(m);
        if (km_adapters_mix(m, NULL, -1, &s->mix, &err) == KM_OK &&
            settle(s, NULL, 0, &err) == KM_OK) {
            km_handle_add(&s->handle, KM_HANDLE_SESSION);
            return s;
        }
        km_adapters_drop(m, &s->mix);
        km_model_drop(m);
        km_free(s);
    }
    km_last_error_set(&err);
    return NULL;
}

static void destroy(void *session) {
    km_session *s = session;
    km_maker_free(s->maker);
    km_wish_free(&s->wish);
    km_drafter_free(s->drafter);
    km_sequence_free(s->seq);
    km_ground_drop(s->ground);
    km_adapters_drop(s->m, &s->mix);
    km_model_drop(s->m);
    km_free(s);
}

void km_session_free(km_session *s) {
    if (km_is_inside(s)) atomic_store(&s->cancel, true); /* by a callback: the call ends soon */
    km_handle_free("km_session_free", s, KM_HANDLE_SESSION, destroy);
}

km_session *km_session_fork(km_session *s) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_fork", s)) return NULL;
    km_session *f = km_calloc(1, sizeof *f);
    if (!f) km_no_memory_for(&err, "a session");
    if (f && ready(s, &err) == KM_OK && (f->seq = km_sequence_fork(s->seq, &err))) {
        atomic_fetch_add(&s->ground->users, 1);
        f->ground = s->ground;
        f->m = km_model_hold(s->m);
        km_adapters_hold(s->m, &s->mix);
        f->mix = s->mix;
        f->chose = s->chose;
        km_handle_add(&f->handle, KM_HANDLE_SESSION);
    } else {
        km_free(f);
        f = NULL;
    }
    km_told(&err);
    return f;
}

/* ---- Adapters ---- */

/* The session goes on with this mix, which it takes over. */
static void take_mix(km_session *s, km_adapter_mix *mix) {
    km_sequence_set_mix(s->seq, mix);
    km_adapters_drop(s->m, &s->mix);
    s->mix = *mix;
    *mix = (km_adapter_mix){0};
}

km_status km_session_set_adapters(km_session *s, const km_adapter *adapters, int64_t n) {
    km_error err = {0};
    km_adapter_mix mix = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_set_adapters", s)) return km_last_status();
    if (ready(s, &err) == KM_OK && km_adapters_mix(s->m, adapters, n, &mix, &err) == KM_OK) {
        take_mix(s, &mix);
        s->chose = n >= 0;
    }
    return km_told(&err);
}

/* ---- What it holds ---- */

km_status km_session_read(km_session *s, const int32_t *ids, size_t n) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_read", s)) return km_last_status();
    if (!ids && n)
        km_error_set(&err, KM_ERR_NULL, "km_session_read: no tokens given");
    else if (ready(s, &err) == KM_OK) {
        atomic_store(&s->cancel, false);
        km_sequence_cancel_by(s->seq, &s->cancel);
        km_sequence_read(s->seq, ids, n, &err);
        km_sequence_cancel_by(s->seq, NULL);
        if (err.code != KM_OK && err.code != KM_ERR_RANGE) clear_errors(s);
    }
    return km_told(&err);
}

const float *km_session_logits(km_session *s) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_logits", s)) return NULL;
    const float *logits = km_sequence_logits(s->seq);
    km_told(&err);
    return logits;
}

int64_t km_session_length(const km_session *s) {
    KM_INSIDE(in);
    return look(&in, "km_session_length", s) ? km_sequence_length(s->seq) : -1;
}

const int32_t *km_session_tokens(const km_session *s) {
    KM_INSIDE(in);
    return look(&in, "km_session_tokens", s) ? km_sequence_tokens(s->seq) : NULL;
}

km_status km_session_rewind(km_session *s, int64_t length) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_rewind", s)) return km_last_status();
    if (ready(s, &err) == KM_OK) {
        int64_t held = km_sequence_length(s->seq);
        if (length < 0 || length > held)
            km_error_set(&err, KM_ERR_RANGE, "km_session_rewind: to %lld tokens of %lld",
                         (long long)length, (long long)held);
        else
            km_sequence_rewind(s->seq, length);
    }
    return km_told(&err);
}

/* The two have no file where ranks share the model: what the others hold is not here. */
static km_status file_ready(km_session *s, const char *call, const char *path, km_error *err) {
    if (!path) return km_error_set(err, KM_ERR_NULL, "%s: no file given", call);
    if (s->m->comm)
        return km_error_set(err, KM_ERR_UNSUPPORTED,
                            "a session keeps no file where ranks share the model");
    return ready(s, err);
}

km_status km_session_save(km_session *s, const char *path) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_save", s)) return km_last_status();
    if (file_ready(s, "km_session_save", path, &err) == KM_OK) km_sequence_save(s->seq, path, &err);
    return km_told(&err);
}

km_status km_session_restore(km_session *s, const char *path) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_session_restore", s)) return km_last_status();
    if (file_ready(s, "km_session_restore", path, &err) == KM_OK)
        km_sequence_restore(s->seq, path, &err);
    return km_told(&err);
}

void km_session_cancel(km_session *s) {
    km_handle_pin(s);
    if (km_handle_is(s, KM_HANDLE_SESSION)) atomic_store(&s->cancel, true);
    km_handle_unpin(s);
}

/* ---- Generating ---- */

static bool on_prompt(void *user, int64_t done, int64_t total) {
    km_session *s = user;
    return s->wish.how.on_prompt(s->wish.how.user, done, total);
}

/* A maker for what the caller wants. */
static km_status begin(km_session *s, const char *call, const km_generation *how, bool rendered,
                       km_error *err) {
    s->last = (km_generated){.size = sizeof s->last};
    atomic_store(&s->cancel, false);
    km_status status = ready(s, err);
    if (status == KM_OK) status = km_wish_make(call, s->m, how, &s->wish, err);
    if (status != KM_OK) return status;
    if (s->wish.chose || !s->chose) take_mix(s, &s->wish.mix);
    if (!s->drafter && (s->m->draft || s->m->lookup) && !(s->drafter = km_draft_new(s->m, err)))
        return err->code;
    km_making *g = &s->wish.making;
    g->rendered |= rendered;
    g->draft = s->drafter;
    g->rescue = rescue;
    g->rescuer = s;
    g->cancel = &s->cancel;
    if (s->wish.how.on_prompt) g->on_prompt = on_prompt;
    g->user = s;
    s->maker = km_maker_new(s->seq, s->ground->net, s->m->token, g, err);
    return s->maker ? KM_OK : err->code;
}

static km_status begin_text(km_session *s, const char *call, const char *prompt, size_t bytes,
                            const km_generation *how, bool rendered, km_error *err) {
    km_ids ids = {0};
    if (!prompt && bytes) return km_error_set(err, KM_ERR_NULL, "%s: no prompt given", call);
    km_status status = begin(s, call, how, rendered, err);
    if (status == KM_OK)
        status = km_prompt_ids(s->m->token, prompt ? prompt : "", bytes, s->wish.making.rendered,
                               &ids, err);
    if (status == KM_OK) status = km_maker_read(s->maker, ids.data, ids.len, err);
    km_ids_free(&ids);
    return status;
}

/* What is left of a generation that failed. */
static km_status failed(km_session *s, km_error *err) {
    km_error ignored = {0};
    if (err->code == KM_ERR_GPU || err->code == KM_ERR_MEMORY || err->code == KM_ERR_FILE ||
        err->code == KM_ERR_DEVICE || err->code == KM_ERR_UNSUPPORTED)
        clear_errors(s);
    ready(s, &ignored);
    return err->code;
}

static km_status all(km_session *s, km_error *err) {
    km_piece_event e;
    for (int more; (more = km_maker_next(s->maker, &e, err)) != 0;) {
        if (more < 0) return err->code;
        bool on = !s->wish.how.on_token || s->wish.how.on_token(s->wish.how.user, &e);
        if (!on && e.end == KM_ENDED_NOT) {
            s->last = km_maker_got(s->maker);
            s->last.end = KM_ENDED_CANCELLED;
            km_maker_free(s->maker);
            s->maker = NULL;
            return KM_OK;
        }
    }
    s->last = km_maker_got(s->maker);
    return KM_OK;
}

static km_status generate(km_session *s, const char *call, const char *prompt, size_t bytes,
                          const km_generation *how, bool rendered, km_generated *out) {
    km_error err = {0};
    km_status status = begin_text(s, call, prompt, bytes, how, rendered, &err);
    if (status == KM_OK) status = all(s, &err);
    if (status == KM_OK)
        ready(s, &err);
    else
        failed(s, &err);
    km_give_sized(out, &s->last, sizeof s->last);
    return km_told(&err);
}

km_status km_generate(km_session *s, const char *prompt, size_t bytes, const km_generation *how,
                      km_generated *out) {
    KM_INSIDE(in);
    if (!enter(&in, "km_generate", s)) return km_last_status();
    return generate(s, "km_generate", prompt, bytes, how, false, out);
}

km_status km_generate_chat(km_session *s, const char *messages, const km_render_options *render,
                           const km_generation *how, km_generated *out) {
    KM_INSIDE(in);
    if (!enter(&in, "km_generate_chat", s)) return km_last_status();
    char *prompt = km_render_held(s->m, messages, render);
    km_status status = prompt
                           ? generate(s, "km_generate_chat", prompt, strlen(prompt), how, true, out)
                           : km_last_status();
    km_string_free(prompt);
    return status;
}

/* ---- Step by step ---- */

static km_status begun(km_session *s, km_status status, km_error *err) {
    if (status == KM_OK)
        s->last = km_maker_got(s->maker);
    else
        failed(s, err);
    return km_told(err);
}

km_status km_generate_begin(km_session *s, const char *prompt, size_t bytes,
                            const km_generation *how) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_generate_begin", s)) return km_last_status();
    return begun(s, begin_text(s, "km_generate_begin", prompt, bytes, how, false, &err), &err);
}

km_status km_generate_begin_ids(km_session *s, const int32_t *ids, size_t n,
                                const km_generation *how) {
    km_error err = {0};
    KM_INSIDE(in);
    if (!enter(&in, "km_generate_begin_ids", s)) return km_last_status();
    km_status status = KM_OK;
    if (!ids || n == 0)
        status = km_error_set(&err, KM_ERR_NULL, "km_generate_begin_ids: no tokens given");
    if (status == KM_OK) status = begin(s, "km_generate_begin_ids", how, false, &err);
    if (status == KM_OK) status = km_maker_read(s->maker, ids, n, &err);
    return begun(s, status, &err);
}

int km_generate_next(km_session *s, km_piece_event *event) {
    km_error err = {0};
    km_piece_event e = {.id = -1, .text = ""};
    KM_INSIDE(in);
    if (!enter(&in, "km_generate_next", s)) return -1;
    int more = -1;
    if (!event) {
        km_error_set(&err, KM_ERR_NULL, "km_generate_next: no event given");
    } else if (s->maker) {
        more = km_maker_next(s->maker, &e, &err);
        s->last = km_maker_got(s->maker);
        if (more < 0) failed(s, &err);
    } else if (s->last.end != KM_ENDED_NOT) {
        more = 0;
        e.end = s->last.end;
    } else {
        km_error_set(&err, KM_ERR_STATE, "km_generate_next: no generation was begun");
    }
    if (event) *event = e;
    km_told(&err);
    return more;
}

km_status km_generate_state_sized(const km_session *s, km_generated *out, size_t size) {
    km_generated own = {0};
    KM_INSIDE(in);
    if (look(&in, "km_generate_state", s)) {
        own = s->last;
        own.size = sizeof own;
    }
    return KM_HAND_OUT(out, size, &own, km_generated);
}

/* ---- All at once ---- */

static bool collect(void *user, const km_piece_event *e) {
    km_text_put(user, e->text, e->bytes);
    return km_text_ok(user);
}

char *km_generate_text(km_model *m, const char *prompt, const km_generation *how) {
    km_text text = {0};
    KM_HOLDING(held);
    if (!km_model_usable(&held, "km_generate_text", m, true)) return NULL;
    km_generation g = km_generation_defaults(m);
    if (km_take_options("km_generate_text", &g, sizeof g, how) != KM_OK) return NULL;
    if (!prompt) {
        km_public_fail(KM_ERR_NULL, "km_generate_text: no prompt given");
        return NULL;
    }
    g.on_token = collect;
    g.on_prompt = NULL;
    g.user = &text;
    km_session *s = km_session_new(m);
    km_status status = s ? km_generate(s, prompt, strlen(prompt), &g, NULL) : km_last_status();
    km_session_free(s);
    km_text_put(&text, "", 0);
    if (status == KM_OK && km_text_ok(&text) && (text.data || (text.data = km_strdup(""))))
        return text.data;
    if (status == KM_OK) km_public_fail(KM_ERR_MEMORY, "km_generate_text: out of memory");
    km_text_free(&text);
    return NULL;
}

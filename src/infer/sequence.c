/* One sequence of a batch, which lives as long as any session over it. */
#include "infer/sequence.h"
#include "base/alloc.h"
#include "infer/sequences_impl.h"

typedef struct shared {
    km_sequences *batch;
    int users;
    bool borrowed; /* the batch is somebody else's */
} shared;

struct km_sequence {
    shared *over;
    int at; /* its sequence */
};

/* A turn at the model, where several threads want one. */
static int enter(const shared *over) {
    km_gate *gate = km_sequences_how(over->batch)->gate;
    return gate ? km_gate_enter(gate, 1) : 0;
}

static void leave(const shared *over, int taken) {
    km_gate *gate = km_sequences_how(over->batch)->gate;
    if (gate) km_gate_leave(gate, taken);
}

/* The value of `call`, made in a turn. */
#define IN_TURN(type, s, call)                                                                     \
    do {                                                                                           \
        shared *over_ = (s)->over;                                                                 \
        int taken_ = enter(over_);                                                                 \
        type got_ = (call);                                                                        \
        leave(over_, taken_);                                                                      \
        return got_;                                                                               \
    } while (0)

static km_sequence *session_at(shared *over, int sequence, km_error *err) {
    km_sequence *s = sequence >= 0 ? km_calloc(1, sizeof *s) : NULL;
    if (!s) {
        if (sequence >= 0) {
            km_sequences_leave(over->batch, sequence);
            km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        }
        return NULL;
    }
    over->users++;
    *s = (km_sequence){over, sequence};
    return s;
}

static void drop(shared *over) {
    if (over->users > 0) return;
    if (!over->borrowed) km_sequences_free(over->batch);
    km_free(over);
}

km_sequence *km_sequence_open(km_ctx *ctx, km_net *m, const km_sequences_options *o,
                              km_error *err) {
    shared *over = km_calloc(1, sizeof *over);
    if (!over) {
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return NULL;
    }
    over->batch = km_sequences_new(ctx, m, o, err);
    km_sequence *s =
        over->batch ? session_at(over, km_sequences_join(over->batch, err), err) : NULL;
    if (!s) drop(over);
    return s;
}

km_sequence *km_sequence_of(km_sequences *b, km_error *err) {
    shared *over = km_calloc(1, sizeof *over);
    if (!over) {
        km_error_set(err, KM_ERR_MEMORY, "session: out of memory");
        return NULL;
    }
    *over = (shared){.batch = b, .borrowed = true};
    int taken = enter(over);
    km_sequence *s = session_at(over, km_sequences_join(b, err), err);
    leave(over, taken);
    if (!s) drop(over);
    return s;
}

km_sequence *km_sequence_new(km_ctx *ctx, km_net *m, km_error *err) {
    km_sequences_options o = km_sequences_defaults();
    o.shift = true;
    return km_sequence_open(ctx, m, &o, err);
}

km_sequence *km_sequence_fork(km_sequence *s, km_error *err) {
    IN_TURN(km_sequence *, s,
            session_at(s->over, km_sequences_fork(s->over->batch, s->at, err), err));
}

void km_sequence_free(km_sequence *s) {
    if (!s) return;
    shared *over = s->over;
    km_gate *gate = km_sequences_how(over->batch)->gate; /* outlives the batch */
    int taken = enter(over);
    km_sequences_leave(over->batch, s->at);
    over->users--;
    drop(over);
    if (gate) km_gate_leave(gate, taken);
    km_free(s);
}

km_status km_sequence_read(km_sequence *s, const int32_t *ids, size_t n, km_error *err) {
    IN_TURN(km_status, s, km_sequences_read(s->over->batch, s->at, ids, n, err));
}

km_status km_sequence_prompt(km_sequence *s, const int32_t *ids, size_t n, int64_t *reused,
                             km_error *err) {
    if (reused) *reused = 0;
    if (n > (size_t)km_sequence_context(s))
        return km_error_set(err, KM_ERR_RANGE,
                            "the prompt has %zu tokens and the model's context %lld", n,
                            (long long)km_sequence_context(s));
    int64_t same = km_sequence_match(s, ids, n > 0 ? n - 1 : 0);
    km_sequence_rewind(s, same);
    if (reused) *reused = same;
    return km_sequence_read(s, ids + same, n - (size_t)same, err);
}

km_status km_sequence_next(km_sequence *s, int32_t id, km_error *err) {
    km_sequences_token t = {s->at, id};
    IN_TURN(km_status, s, km_sequences_step(s->over->batch, &t, 1, err));
}

km_status km_sequence_choose(km_sequence *s, int32_t id, int64_t steps, km_chooser *chooser,
                             int32_t *out, km_error *err) {
    km_sequences_token t = {s->at, id};
    IN_TURN(km_status, s, km_sequences_choose(s->over->batch, &t, 1, steps, &chooser, out, err));
}

int km_sequence_check(km_sequence *s, const int32_t *ids, int n, km_chooser *chooser, int32_t *out,
                      km_error *err) {
    IN_TURN(int, s, km_sequences_check(s->over->batch, s->at, ids, n, chooser, out, err));
}

void km_sequence_set_shift(km_sequence *s, bool on, int64_t keep) {
    km_sequences_set_shift(s->over->batch, s->at, on, keep);
}

void km_sequence_set_mix(km_sequence *s, const km_adapter_mix *mix) {
    int taken = enter(s->over);
    km_sequences_set_mix(s->over->batch, s->at, mix);
    leave(s->over, taken);
}

void km_sequence_cancel_by(km_sequence *s, const atomic_bool *flag) {
    km_sequences_cancel_by(s->over->batch, s->at, flag);
}

int64_t km_sequence_ahead(const km_sequence *s) { return km_sequences_ahead(s->over->batch); }

bool km_sequence_on_host(const km_sequence *s) {
    return km_net_end(s->over->batch->m)->ctx->device->host;
}

const float *km_sequence_try(km_sequence *s, const int32_t *ids, int n, km_error *err) {
    IN_TURN(const float *, s, km_sequences_try(s->over->batch, s->at, ids, n, err));
}

void km_sequence_take(km_sequence *s, const int32_t *ids, int keep) {
    int taken = enter(s->over);
    km_sequences_take(s->over->batch, s->at, ids, keep);
    leave(s->over, taken);
}

void km_sequence_on_progress(km_sequence *s,
                             bool (*progress)(void *user, int64_t done, int64_t total),
                             void *user) {
    km_sequences_on_progress(s->over->batch, progress, user);
}

const float *km_sequence_logits(const km_sequence *s) {
    return km_sequences_logits(s->over->batch, s->at);
}

int64_t km_sequence_length(const km_sequence *s) {
    return km_sequences_length(s->over->batch, s->at);
}

const int32_t *km_sequence_tokens(const km_sequence *s) {
    return km_sequences_tokens(s->over->batch, s->at);
}

int64_t km_sequence_context(const km_sequence *s) {
    return km_sequences_how(s->over->batch)->context;
}

void km_sequence_reset(km_sequence *s) { km_sequence_rewind(s, 0); }

int64_t km_sequence_match(const km_sequence *s, const int32_t *ids, size_t n) {
    return km_sequences_match(s->over->batch, s->at, ids, n);
}

int64_t km_sequence_settled(const km_sequence *s, const int32_t *ids, size_t n) {
    return km_sequences_settled(s->over->batch, s->at, ids, n);
}

int64_t km_sequence_chunk(const km_sequence *s) { return km_sequences_chunk(s->over->batch); }

void km_sequence_rewind(km_sequence *s, int64_t length) {
    int taken = enter(s->over);
    km_sequences_rewind(s->over->batch, s->at, length);
    leave(s->over, taken);
}

km_status km_sequence_save(km_sequence *s, const char *path, km_error *err) {
    IN_TURN(km_status, s, km_sequences_save(s->over->batch, s->at, path, err));
}

km_status km_sequence_restore(km_sequence *s, const char *path, km_error *err) {
    IN_TURN(km_status, s, km_sequences_restore(s->over->batch, s->at, path, err));
}

/* Which ops make a chain, and the program of one. A chain names results by their address. Memory of
 * a result or an input that nobody holds any more may be handed out again while the chain waits, to
 * the result of a later step (all else runs the chain first): the same address then means the
 * newest result there. Ranges that overlap without being the same are never in one chain, since
 * threads of its kernel work on all tensors at the same index and in no order among each other. */
#include "backend/cuda/chain.h"
#include "backend/cuda/kernels/map/map_list.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/on_host.h"
#include "backend/cuda/walker.h"
#include "base/log.h"
#include "base/util.h"

static const bool may_join[KM_OP_COUNT] = {
#define ROW(OP, name, expression) [KM_OP_##OP] = true,
    KM_UNARY_CHAIN_LIST(ROW) KM_UNARY_GRAD_CHAIN_LIST(ROW) KM_BINARY_CHAIN_LIST(ROW)
#undef ROW
};

static km_cuda_kernel kernels[KM_CUDA_SLOTS] = KM_CUDA_WAITING("chain", "chain");

static size_t bytes_of(const km_cuda_link *l) { return (size_t)l->args.n * (l->slot == 0 ? 4 : 2); }

/* Some bytes in common, but not all. */
static bool askew(const void *p, const void *q, size_t bytes) {
    uintptr_t a = (uintptr_t)p, b = (uintptr_t)q;
    return a != b && a < b + bytes && b < a + bytes;
}

/* ---- Joining ---- */

/* The newest result at an address, or -1. */
static int result_at(const km_cuda_chain *c, const void *p) {
    for (int i = c->n - 1; i >= 0; i--)
        if (c->link[i].args.out == p) return i;
    return -1;
}

static bool fits(const km_cuda_chain *c, const km_cuda_link *l) {
    const km_map_args *m = &l->args;
    size_t bytes = bytes_of(l);
    int fresh = 0;
    const void *operand[2] = {m->a, m->b};
    if (c->n == KM_CHAIN_STEPS || l->slot != c->link[0].slot || m->n != c->link[0].args.n)
        return false;
    if (result_at(c, m->a) < 0 && (!m->b || result_at(c, m->b) < 0)) return false;
    for (int i = 0; i < c->n; i++) {
        const void *out = c->link[i].args.out;
        if (askew(m->a, out, bytes) || askew(m->out, out, bytes)) return false;
        if (m->b && askew(m->b, out, bytes)) return false;
    }
    for (int i = 0; i < c->n_in; i++)
        if (askew(m->out, c->in[i], bytes)) return false;
    for (int k = 0; k < 2; k++)
        if (operand[k] && result_at(c, operand[k]) < 0) {
            if (askew(m->out, operand[k], bytes)) return false;
            fresh++;
        }
    return c->n_in + fresh <= KM_CHAIN_INPUTS;
}

/* Where an operand comes from; what is not the chain's own becomes an input. */
static uint8_t source(km_cuda_chain *c, const void *p) {
    int i = result_at(c, p);
    if (i >= 0) return (uint8_t)(KM_CHAIN_INPUTS + i);
    for (i = 0; i < c->n_in; i++)
        if (c->in[i] == p) return (uint8_t)i;
    c->in[c->n_in] = p;
    return (uint8_t)c->n_in++;
}

static km_status launch_alone(km_lane *lane, const km_cuda_link *l) {
    km_cuda_grid g = km_cuda_grid_for(lane, (int64_t)(bytes_of(l) / 16), 1);
    return km_cuda_launch1(lane, l->kernel, g.blocks, g.threads, 0, &l->args);
}

km_status km_cuda_chain_push(km_lane *lane, const km_cuda_link *link) {
    km_cuda_held_flush(lane);
    km_cuda_chain *c = &km_cuda_queue_of(lane)->chain;
    if (c->off || !may_join[link->op]) return launch_alone(lane, link);
    if (c->n > 0 && !fits(c, link)) {
        km_status s = km_cuda_chain_flush(lane);
        if (s != KM_OK) return s;
    }
    km_cuda_link *l = &c->link[c->n];
    *l = *link;
    l->a = source(c, l->args.a);
    l->b = l->args.b ? source(c, l->args.b) : l->a;
    c->n++;
    return KM_OK;
}

/* ---- Running ---- */

/* Somebody can still read it. A record that has been used again since, for other memory, says no;
 * for the same memory, which has not been written yet, a store does no harm. */
static bool is_held(const km_lane *lane, const km_cuda_link *l) {
    const km_storage *s = l->storage;
    const char *p = l->args.out, *data = s->data;
    return s->lane == lane && s->refs > 0 && data && p >= data && p < data + s->cap;
}

/* Which results are stored, and which steps are needed for those. The last result always is: it is
 * what was asked for most recently. */
static void choose(const km_lane *lane, const km_cuda_chain *c, bool *stored, bool *needed) {
    for (int i = 0; i < c->n; i++) {
        bool newest = result_at(c, c->link[i].args.out) == i;
        stored[i] = needed[i] = i == c->n - 1 || (newest && is_held(lane, &c->link[i]));
    }
    for (int i = c->n - 1; i >= 0; i--) {
        if (!needed[i]) continue;
        if (c->link[i].a >= KM_CHAIN_INPUTS) needed[c->link[i].a - KM_CHAIN_INPUTS] = true;
        if (c->link[i].b >= KM_CHAIN_INPUTS) needed[c->link[i].b - KM_CHAIN_INPUTS] = true;
    }
}

/* The last of the needed steps that reads the result of step i, or -1. */
static int last_reader(const km_cuda_chain *c, const bool *needed, int i) {
    int result = KM_CHAIN_INPUTS + i;
    for (int j = c->n - 1; j > i; j--)
        if (needed[j] && (c->link[j].a == result || c->link[j].b == result)) return j;
    return -1;
}

/* The program, and in *only the one step that is left of it, or -1. Returns its places. */
static int program(const km_lane *lane, const km_cuda_chain *c, km_chain_args *args, int *only) {
    bool stored[KM_CHAIN_STEPS], needed[KM_CHAIN_STEPS];
    uint8_t place[KM_CHAIN_INPUTS + KM_CHAIN_STEPS];
    int places = 0, before = -1;
    choose(lane, c, stored, needed);
    *args = (km_chain_args){.n = c->link[0].args.n};
    *only = -1;
    for (int i = 0; i < c->n_in; i++) {
        for (int j = 0; j < c->n; j++) {
            if (!needed[j] || (c->link[j].a != i && c->link[j].b != i)) continue;
            place[i] = (uint8_t)places++;
            args->in[args->n_in++] = c->in[i];
            break;
        }
    }
    for (int i = 0; i < c->n; i++) {
        const km_cuda_link *l = &c->link[i];
        if (!needed[i]) continue;
        km_chain_step *s = &args->step[args->n_steps++];
        *s = (km_chain_step){.f0 = l->args.f0,
                             .f1 = l->args.f1,
                             .op = (uint16_t)l->op,
                             .out = stored[i] ? l->args.out : NULL,
                             .keep = KM_CHAIN_LAST};
        s->a = l->a == KM_CHAIN_INPUTS + before && before >= 0 ? KM_CHAIN_LAST : place[l->a];
        s->b = l->b == KM_CHAIN_INPUTS + before && before >= 0 ? KM_CHAIN_LAST : place[l->b];
        int next = i + 1, reader = last_reader(c, needed, i);
        while (next < c->n && !needed[next]) next++;
        if (reader > next) place[KM_CHAIN_INPUTS + i] = s->keep = (uint8_t)places++;
        before = i;
        *only = args->n_steps == 1 ? i : -1;
    }
    return places;
}

/* An op that was held back, by itself; by the CPU where its kernel does not start. */
static km_status run_held(km_lane *lane, const km_cuda_link *held) {
    static const km_dtype types[] = {KM_F32, KM_F16, KM_BF16};
    km_cuda_link l = *held;
    bool sound = !km_failed(lane->ctx);
    km_status s = launch_alone(lane, &l);
    if (s == KM_OK || !sound) return s;
    km_params p = {.f = {[KM_F_LO] = l.args.f0, [KM_F_HI] = l.args.f1}};
    km_dtype d = types[l.slot];
    const km_cuda_operand in[] = {{(void *)(uintptr_t)l.args.a, d, KM_SHAPE(l.args.n)},
                                  {(void *)(uintptr_t)l.args.b, d, KM_SHAPE(l.args.n)}},
                          out = {l.args.out, d, KM_SHAPE(l.args.n)};
    return km_cuda_on_host(lane, s, l.op, &p, in, l.args.b ? 2 : 1, &out, 1);
}

/* The fallback of a chain whose kernel does not start: its ops one by one, all results stored, which
 * is what would have happened had none been held back. */
static km_status run_apart(km_lane *lane, int n, km_status s) {
    km_ctx *ctx = lane->ctx;
    static atomic_bool said;
    if (ctx->no_fallback || atomic_load(&km_cuda_dev_of(lane)->lost)) return s;
    if (!atomic_exchange(&said, true))
        km_note(KM_LOG_WARN, "a chain of ops failed (%s); they run one by one", ctx->error.text);
    ctx->error = (km_error){0};
    ctx->fallbacks++;
    ctx->failed_kernels++;
    s = KM_OK;
    for (int i = 0; i < n && s == KM_OK; i++)
        s = run_held(lane, &km_cuda_queue_of(lane)->chain.link[i]);
    return s;
}

km_status km_cuda_chain_flush(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    km_chain_args args;
    int only = 0, places = 0;
    if (q->chain.n == 0) return KM_OK;
    if (q->chain.n > 1) places = program(lane, &q->chain, &args, &only);
    int n = q->chain.n;
    q->chain.n = q->chain.n_in = 0; /* launching asks for the stream, and comes here again */
    if (only >= 0) return run_held(lane, &q->chain.link[only]);
    q->chain.ops += (uint64_t)n;
    q->chain.kernels++;
    int slot = q->chain.link[0].slot;
    int64_t per = slot == 0 ? 4 : 8;
    km_cuda_grid g = km_cuda_grid_for(lane, km_ceil_div(args.n, per), 1);
    bool sound = !km_failed(lane->ctx);
    km_status s = km_cuda_launch1(lane, &kernels[slot], g.blocks, g.threads,
                                  (unsigned)places * g.threads.x * 16, &args);
    return s == KM_OK || !sound ? s : run_apart(lane, n, s);
}

/* The life of a call: made by the loop, read by a worker, submitted, fed by events, and ended by its
 * answer or by its client's leaving. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void free_choice(km_api_choice *ch) {
    km_answer_parser_free(ch->parser);
    km_text_free(&ch->content);
    km_text_free(&ch->reasoning);
    km_text_free(&ch->logprobs);
    for (int i = 0; i < ch->n_uses; i++) {
        km_free(ch->uses[i].name);
        km_text_free(&ch->uses[i].arguments);
    }
    km_free(ch->uses);
}

static void free_call(km_api_call *c) {
    km_served_leave(c);
    for (int i = 0; i < c->n_choices; i++) free_choice(&c->choices[i]);
    for (int i = 0; i < c->n_prompts; i++) {
        km_free(c->prompts[i].ids);
        km_free(c->prompts[i].text);
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        c->serve->calls = c->next;
    if (c->next) c->next->prev = c->prev;
    km_free(c->choices);
    km_free(c->prompts);
    km_free(c->tool_names);
    km_free(c->stops);
    km_free(c->bias);
    if (c->state) c->free_state(c->state);
    free(c->messages);
    free(c->tools);
    free(c->variables);
    free(c->schema);
    free(c->grammar);
    json_decref(c->request);
    km_text_free(&c->head);
    km_free(c->body);
    km_free(c);
}

/* Nobody is interested any more; it goes once nobody works on it. */
static void maybe_free(km_api_call *c) {
    if (c->exchange || c->working || c->held) return;
    for (int i = 0; i < c->n_choices; i++)
        if (c->choices[i].submitted && !c->choices[i].ended) return;
    free_call(c);
}

static void cancel_tasks(km_api_call *c) {
    for (int i = 0; i < c->n_choices; i++)
        if (c->choices[i].submitted && !c->choices[i].ended)
            km_scheduler_cancel(c->served->scheduler, &c->choices[i].task);
}

static void client_left(void *user) {
    km_api_call *c = user;
    c->exchange = NULL;
    atomic_store(&c->gone, true);
    if (c->working) return; /* a worker has it: it comes back, and goes then */
    cancel_tasks(c);
    maybe_free(c);
}

km_status km_call_refuse(km_api_call *c, int status, const char *param, const char *fmt, ...) {
    if (c->status) return KM_ERR_RANGE; /* the first reason stays */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->error, sizeof c->error, fmt, ap);
    va_end(ap);
    c->status = status;
    snprintf(c->param, sizeof c->param, "%s", param ? param : "");
    return KM_ERR_RANGE;
}

/* ---- Errors ---- */

static void answer_error(km_api_call *c) {
    km_exchange *x = c->exchange;
    if (c->begun && c->dialect->stream_error) {
        c->dialect->stream_error(c);
        x = c->exchange; /* it may have left meanwhile */
        c->exchange = NULL;
        if (x) km_exchange_end(x);
        return;
    }
    c->exchange = NULL;
    if (c->status == 429) {
        km_exchange_header(x, "Retry-After", "2");
        c->serve->metrics.refused_queue++;
    }
    if (!c->begun) {
        km_send_error(x, c->dialect, c->status, c->param[0] ? c->param : NULL, c->error);
        return;
    }
    km_text t = {0};
    c->dialect->error(&t, c->status, NULL, c->error, true);
    if (km_exchange_put(x, km_text_str(&t), t.len)) km_exchange_end(x);
    km_text_free(&t);
}

static void fail(km_api_call *c) {
    if (c->exchange) answer_error(c);
    cancel_tasks(c);
}

void km_call_fail(km_api_call *c) {
    c->held = true; /* whatever is written may find that the client has left */
    fail(c);
    c->held = false;
    maybe_free(c);
}

/* ---- Workers ---- */

static bool make_choices(km_api_call *c) {
    int n = c->n_prompts * c->n;
    c->choices = km_calloc((size_t)n, sizeof *c->choices);
    if (!c->choices) return false;
    c->n_choices = n;
    for (int i = 0; i < n; i++) {
        km_api_choice *ch = &c->choices[i];
        const km_prompt *p = &c->prompts[i / c->n];
        ch->call = c;
        ch->index = i;
        ch->block = -1;
        ch->how = c->how;
        ch->how.sampling.seed += (uint64_t)i;
        ch->task.ids = p->ids;
        ch->task.n_ids = p->n;
        ch->task.how = &ch->how;
        ch->task.owner = c->owner;
        ch->task.domain = c->serve->o.share_cache ? 0 : c->key.number;
        ch->task.variant = c->variant;
        ch->task.save_to = c->save_to;
        ch->task.restore_from = c->restore_from;
        ch->task.priority = c->key.priority;
        ch->task.user = ch;
    }
    return true;
}

static void check_room(km_api_call *c) {
    int64_t context = km_scheduler_count(c->served->scheduler).context;
    for (int i = 0; i < c->n_prompts; i++) {
        if ((int64_t)c->prompts[i].n >= context)
            km_call_refuse(c, 400, c->chat ? "messages" : "prompt",
                           "the prompt has %zu tokens, and the context holds %lld", c->prompts[i].n,
                           (long long)context);
        if (c->prompts[i].n == 0) km_call_refuse(c, 400, "prompt", "the prompt is empty");
    }
}

static void parse(km_api_call *c) {
    json_error_t where;
    c->request = json_loadb(c->body, c->bytes, 0, &where);
    if (c->request && !json_is_object(c->request))
        km_call_refuse(c, 400, NULL, "the request's body is no JSON object");
    else if (!c->request)
        km_call_refuse(c, 400, NULL, "the request's body is no JSON: %s (line %d, column %d)",
                       where.text, where.line, where.column);
    km_free(c->body);
    c->body = NULL;
}

/* Where there are several models, a call comes twice: which one it names is known once it is parsed. */
static void prepare(km_api_call *c) {
    km_error err = {0};
    if (!c->request) parse(c);
    if (c->status || (!c->using && !c->detached)) return;
    c->n = 1;
    c->logprobs = -1;
    c->how = km_generation_defaults(c->served->model);
    if (!c->detached && c->serve->n_adapters && km_call_adapters(c) != KM_OK) return;
    km_status s = c->dialect->read(c, &err);
    if (s != KM_OK && !c->status)
        km_call_refuse(c, s == KM_ERR_MEMORY ? 503 : 400, NULL, "%s", err.text);
    if (!c->status && !c->no_text) check_room(c);
    if (!c->status && !c->no_text && !make_choices(c))
        km_call_refuse(c, 503, NULL, "out of memory");
}

static void prepared(void *arg);

static void compute(km_api_call *c) {
    c->dialect->compute(c);
    c->computed = true;
}

static void *worker(void *user) {
    km_job_queue *q = user;
    km_serve *s = q->serve;
    pthread_setname_np(pthread_self(), q->name);
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!q->first && !s->stop) pthread_cond_wait(&q->wake, &s->lock);
        km_api_call *c = q->first;
        if (c) {
            q->first = c->next_job;
            if (!q->first) q->end = &q->first;
        }
        pthread_mutex_unlock(&s->lock);
        if (!c) return NULL;
        q->work(c);
        while (!km_http_post(s->http, prepared, c)) {}
    }
}

static bool start_queue(km_serve *s, km_job_queue *q, const char *name, int threads,
                        void (*work)(km_api_call *c)) {
    q->serve = s;
    q->name = name;
    q->work = work;
    q->end = &q->first;
    for (; q->n_threads < threads; q->n_threads++)
        if (pthread_create(&q->threads[q->n_threads], NULL, worker, q) != 0) break;
    return q->n_threads > 0;
}

bool km_workers_start(km_serve *s) {
    return start_queue(s, &s->reading, "km-worker", 2, prepare) &&
           start_queue(s, &s->computing, "km-compute", 1, compute);
}

void km_workers_stop(km_serve *s) {
    km_job_queue *const all[] = {&s->reading, &s->computing};
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    for (int q = 0; q < 2; q++) pthread_cond_broadcast(&all[q]->wake);
    pthread_mutex_unlock(&s->lock);
    for (int q = 0; q < 2; q++) {
        for (int i = 0; i < all[q]->n_threads; i++) pthread_join(all[q]->threads[i], NULL);
        all[q]->n_threads = 0;
    }
}

/* ---- Starting ---- */

static uint64_t hash_text(const char *s) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h | 1;
}

static int running_of_key(const km_serve *s, uint64_t number) {
    int n = 0;
    for (const km_api_call *c = s->calls; c; c = c->next)
        n += c->exchange && c->key.number == number;
    return n;
}

static void enqueue(km_job_queue *q, km_api_call *c) {
    c->working = true;
    c->next_job = NULL;
    pthread_mutex_lock(&q->serve->lock);
    *q->end = c;
    q->end = &c->next_job;
    pthread_cond_signal(&q->wake);
    pthread_mutex_unlock(&q->serve->lock);
}

void km_call_enqueue(km_api_call *c) { enqueue(&c->serve->reading, c); }

void km_call_start(km_serve *s, km_exchange *x, const km_dialect *d, const km_key *key) {
    const km_http_request *r = km_exchange_request(x);
    km_api_call *c = NULL;
    if (key && key->parallel && running_of_key(s, key->number) >= key->parallel) {
        km_exchange_header(x, "Retry-After", "1");
        s->metrics.refused_queue++;
        km_send_error(x, d, 429, NULL, "this key has as many requests under way as it may");
        return;
    }
    c = km_calloc(1, sizeof *c);
    if (c) c->body = km_alloc(r->bytes + 1);
    if (!c || !c->body) {
        km_free(c);
        km_send_error(x, d, 503, NULL, "out of memory");
        return;
    }
    memcpy(c->body, r->body, r->bytes);
    c->bytes = r->bytes;
    c->serve = s;
    c->exchange = x;
    c->dialect = d;
    c->created = (int64_t)time(NULL);
    c->began = km_now();
    if (key) c->key = *key;
    c->owner = key ? key->number : hash_text(km_exchange_peer(x));
    snprintf(c->id, sizeof c->id, "%08llx%08llx", (unsigned long long)(s->salt & 0xffffffffu),
             (unsigned long long)++s->ids);
    c->next = s->calls;
    if (c->next) c->next->prev = c;
    s->calls = c;
    km_exchange_keep(x, c, client_left);
    if (s->n_served > 1) {
        km_call_enqueue(c);
        return;
    }
    c->served = s->served[0];
    km_served_route(c);
}

static void begin_stream(km_api_call *c) {
    if (c->begun || !c->stream || !c->exchange) return;
    c->begun = true;
    km_exchange_begin(c->exchange, 200, c->dialect->stream_type, c->dialect->beat);
    if (c->dialect->begin) c->dialect->begin(c);
}

static void on_part(void *user, const km_answer_part *part);

static void submit(km_api_call *c) {
    km_serve *s = c->serve;
    for (int i = 0; i < c->n_choices && !c->status; i++) {
        km_api_choice *ch = &c->choices[i];
        km_error err = {0};
        bool thinking = c->opened_thought && !c->how.schema && !c->how.grammar;
        unsigned flags = (thinking ? KM_ANSWER_THINKING : 0) |
                         (c->keep_reasoning ? KM_ANSWER_KEEP_REASONING : 0);
        if (thinking) ch->last_kind = KM_ANSWER_REASONING;
        if (c->chat && !c->plain)
            ch->parser = km_answer_parser_new(c->tool_names, c->n_tools, flags, on_part, ch);
        double timeout = c->timeout > 0 ? c->timeout : s->o.timeout;
        ch->task.deadline = timeout > 0 ? km_now() + timeout : 0;
        if (c->chat && !c->plain && !ch->parser)
            km_call_refuse(c, 503, NULL, "out of memory");
        else if (km_scheduler_submit(c->served->scheduler, &ch->task, &err) == KM_OK)
            ch->submitted = true;
        else
            km_call_refuse(c, 429, NULL, "%s", err.text);
    }
    if (c->status) fail(c);
}

static void prepared(void *arg) {
    km_api_call *c = arg;
    c->working = false;
    c->held = true;
    if (c->exchange && c->status) {
        fail(c);
    } else if (c->exchange && !c->using && !c->detached) {
        c->held = false;
        km_served_route(c); /* it may be gone behind this */
        return;
    } else if (c->exchange && c->no_text && c->dialect->compute && !c->computed) {
        c->held = false;
        enqueue(&c->serve->computing, c);
        return;
    } else if (c->exchange && c->no_text) {
        km_exchange *x = c->exchange;
        km_text *t = km_scratch(c->serve);
        c->exchange = NULL;
        c->dialect->whole(c, t);
        km_send_text(x, c->dialect, "application/json", t);
    } else if (c->exchange) {
        submit(c);
    }
    c->held = false;
    maybe_free(c);
}

void km_call_tick(void *serve) {
    km_serve *s = serve;
    double now = km_now();
    for (km_api_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        if (c->working || !c->n_choices || now - c->began <= 1) continue;
        c->held = true;
        begin_stream(c);
        c->held = false;
        maybe_free(c);
    }
    km_served_tick(s);
    km_scheduler_counts n = km_served_counts(s);
    double passed = now - s->metrics.last_seconds;
    if (passed > 0 && s->metrics.last_seconds > 0)
        s->metrics.rate = (double)(n.tokens - s->metrics.last_tokens) / passed;
    s->metrics.last_seconds = now;
    s->metrics.last_tokens = n.tokens;
}

/* ---- Events ---- */

void km_call_put(km_api_call *c, const km_text *t) {
    /* A client that is gone or too slow: client_left has set exchange to NULL. */
    if (c->exchange && km_text_ok(t))
        km_exchange_put(c->exchange, km_text_str(t), t->len);
    else if (c->exchange)
        km_exchange_fail(c->exchange);
}

static void keep_call_part(km_api_choice *ch, const km_answer_part *part) {
    if (part->kind == KM_ANSWER_CALL) {
        km_tool_use *more = km_realloc(ch->uses, (size_t)(ch->n_uses + 1) * sizeof *more);
        if (!more) {
            ch->lost = true;
            return;
        }
        ch->uses = more;
        km_tool_use *u = &more[ch->n_uses++];
        *u = (km_tool_use){.name = km_alloc(part->bytes + 1)};
        if (u->name) memcpy(u->name, part->text, part->bytes), u->name[part->bytes] = '\0';
        snprintf(u->id, sizeof u->id, "call_%.12s%02d%02d", ch->call->id + 4, ch->index,
                 ch->n_uses);
        ch->call->serve->metrics.tool_calls++;
    } else if (part->kind == KM_ANSWER_ARGUMENTS && ch->n_uses) {
        km_text_put(&ch->uses[ch->n_uses - 1].arguments, part->text, part->bytes);
    }
}

static void on_part(void *user, const km_answer_part *part) {
    km_api_choice *ch = user;
    km_api_call *c = ch->call;
    if (ch->called) return;
    if (part->kind == KM_ANSWER_TEXT && (!c->stream || c->forced_tool))
        km_text_put(&ch->content, part->text, part->bytes);
    else if (part->kind == KM_ANSWER_REASONING && !c->stream)
        km_text_put(&ch->reasoning, part->text, part->bytes);
    keep_call_part(ch, part);
    ch->last_kind = part->kind;
    if ((c->stream || c->dialect->all_parts) && c->exchange) c->dialect->part(ch, part);
    if (part->kind != KM_ANSWER_CALL_END || !c->one_call) return;
    ch->called = true;
    if (ch->submitted && !ch->ended) km_scheduler_cancel(c->served->scheduler, &ch->task);
}

/* {"token":...,"logprob":...,"bytes":[...]} */
static void put_logprob(km_served *s, km_text *t, int32_t id, float logprob) {
    size_t n = 0;
    const char *piece = km_token_piece(s->model, id, &n);
    km_text_add(t, "{\"token\":");
    km_put_string(t, piece ? piece : "", n);
    km_text_printf(t, ",\"logprob\":%.6g,\"bytes\":[", logprob < -9999 ? -9999.0 : (double)logprob);
    for (size_t i = 0; piece && i < n; i++)
        km_text_printf(t, "%s%u", i ? "," : "", (unsigned char)piece[i]);
    km_text_add(t, "]");
}

static void keep_logprobs(km_api_choice *ch, const km_task_event *e) {
    km_text *t = &ch->logprobs;
    if (ch->call->logprobs < 0 || e->id < 0) return;
    if (t->len > ch->logprobs_sent) km_text_add(t, ",");
    put_logprob(ch->call->served, t, e->id, e->logprob);
    km_text_add(t, ",\"top_logprobs\":[");
    for (int i = 0; i < e->n_top; i++) {
        if (i) km_text_add(t, ",");
        put_logprob(ch->call->served, t, e->top[i].id, e->top[i].logprob);
        km_text_add(t, "}");
    }
    km_text_add(t, "]}");
}

static void take_text(km_api_choice *ch, const km_task_event *e) {
    km_served *s = ch->call->served;
    keep_logprobs(ch, e);
    if (!ch->parser) {
        if (e->bytes) on_part(ch, &(km_answer_part){KM_ANSWER_TEXT, e->text, e->bytes, 0});
        return;
    }
    if (e->bytes) {
        ch->lost |= km_answer_parser_put(ch->parser, e->text, e->bytes) != KM_OK;
    } else if (e->id >= 0 && km_token_special(s->model, e->id)) {
        size_t n = 0;
        const char *piece = km_token_piece(s->model, e->id, &n);
        if (piece) ch->lost |= km_answer_parser_special(ch->parser, piece, n) != KM_OK;
    }
    ch->reasoning_tokens += e->id >= 0 && ch->last_kind == KM_ANSWER_REASONING;
}

static void note_times(km_serve *s, const km_task *t) {
    if (t->started > 0) km_histogram_add(&s->metrics.queued, t->started - t->submitted);
    if (t->first > 0) km_histogram_add(&s->metrics.first_token, t->first - t->submitted);
    if (t->tokens > 1)
        km_histogram_add(&s->metrics.between_tokens,
                         (t->ended - t->first) / (double)(t->tokens - 1));
    km_histogram_add(&s->metrics.whole, t->ended - t->submitted);
    s->metrics.late += t->late;
}

/* Was there memory for all of it? */
static bool is_whole(const km_api_call *c) {
    for (int i = 0; i < c->n_choices; i++) {
        const km_api_choice *ch = &c->choices[i];
        bool ok = !ch->lost && km_text_ok(&ch->content) && km_text_ok(&ch->reasoning) &&
                  km_text_ok(&ch->logprobs);
        for (int k = 0; k < ch->n_uses && ok; k++)
            ok = ch->uses[k].name && km_text_ok(&ch->uses[k].arguments);
        if (!ok) return false;
    }
    return true;
}

static void end_call(km_api_call *c) {
    km_exchange *x = c->exchange;
    if (c->stream && !is_whole(c)) {
        km_exchange_fail(x);
        return;
    }
    if (c->stream) {
        begin_stream(c);
        c->dialect->end(c);
        x = c->exchange; /* it may have left meanwhile */
        c->exchange = NULL;
        if (x) km_exchange_end(x);
        return;
    }
    km_text *t = km_scratch(c->serve);
    if (is_whole(c))
        c->dialect->whole(c, t);
    else
        t->failed = true;
    c->exchange = NULL;
    km_send_text(x, c->dialect, "application/json", t);
}

static void take_end(km_api_choice *ch, const km_task_event *e) {
    km_api_call *c = ch->call;
    ch->ended = true;
    ch->end = e->end;
    c->n_ended++;
    note_times(c->serve, &ch->task);
    if (!c->exchange) return;
    if (e->status != KM_OK) {
        bool mine = e->status == KM_ERR_FORMAT || e->status == KM_ERR_RANGE ||
                    e->status == KM_ERR_UNSUPPORTED;
        int status = mine ? 400 : e->status == KM_ERR_MEMORY ? 503 : 500;
        km_call_refuse(c, status, NULL, "%.*s", (int)e->bytes, e->text);
        fail(c);
        return;
    }
    if (ch->task.late && ch->task.tokens == 0) {
        km_call_refuse(c, 504, NULL, "the request's time was over before its answer began");
        fail(c);
        return;
    }
    if (ch->parser) ch->lost |= km_answer_parser_end(ch->parser) != KM_OK;
    if (c->stream && c->exchange) begin_stream(c);
    if ((c->stream || c->dialect->all_parts) && c->exchange && c->dialect->end_choice)
        c->dialect->end_choice(ch);
    if (c->exchange && c->n_ended == c->n_choices) end_call(c);
}

/* Texts of whole answers only gather, and those of a few streams are a system call each. Many streams are
 * better served by one wake of the loop, while the engine goes on. */
bool km_call_can_now(void *serve, const km_task_event *events, size_t n) {
    enum { FEW = 4 };
    size_t streams = 0;
    (void)serve;
    for (size_t i = 0; i < n; i++) {
        const km_api_choice *ch = events[i].task->user;
        const km_api_call *c = ch->call;
        if (events[i].end != KM_ENDED_NOT) return false;
        if (!c->exchange || !c->stream) continue;
        if (!c->begun || !km_exchange_direct(c->exchange) || ++streams > FEW) return false;
    }
    return true;
}

void km_call_on_events(void *serve, const km_task_event *events, size_t n) {
    (void)serve;
    for (size_t i = 0; i < n; i++) {
        const km_task_event *e = &events[i];
        km_api_choice *ch = e->task->user;
        km_api_call *c = ch->call;
        /* The call stays while this task has not ended, and while its end is told. */
        if (c->exchange && e->end == KM_ENDED_NOT) {
            begin_stream(c);
            take_text(ch, e);
        }
        if (e->end == KM_ENDED_NOT) continue;
        c->held = true;
        take_end(ch, e);
        c->held = false;
        maybe_free(c);
    }
}

/* ---- Figures ---- */

int64_t km_call_prompt_tokens(const km_api_call *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_prompts; i++) n += (int64_t)c->prompts[i].n;
    return n;
}

int64_t km_call_tokens(const km_api_call *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_choices; i++) n += c->choices[i].task.tokens;
    return n;
}

int64_t km_call_reused(const km_api_call *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_choices; i += c->n) n += c->choices[i].task.reused;
    return n;
}

int64_t km_call_reasoning_tokens(const km_api_call *c) {
    int64_t n = 0;
    for (int i = 0; i < c->n_choices; i++) n += c->choices[i].reasoning_tokens;
    return n;
}

bool km_finish_is_length(const km_api_choice *ch) {
    return ch->end == KM_ENDED_TOKENS || ch->end == KM_ENDED_CONTEXT || ch->task.late;
}

/* What the files of the API share: the server, a call (one request for text and its answers), and the
 * dialects, which read requests and write answers.
 *
 * A call travels: the loop makes it, a worker reads and tokenises it, the loop submits its tasks, the
 * engine's events come back to the loop. Only one thread has it at a time, and the loop alone frees it. */
#ifndef KM_SERVE_API_API_H
#define KM_SERVE_API_API_H
#include "base/clock.h"
#include "base/text.h"
#include "serve/api/keys.h"
#include "serve/api/metrics.h"
#include "serve/api/response_store.h"
#include "serve/api/served.h"
#include "serve/http/server.h"
#include "serve/scheduler/scheduler.h"
#include "serve/serve.h"
#include <jansson.h>
#include <pthread.h>

typedef struct km_api_call km_api_call;
typedef struct km_dialect km_dialect;

typedef struct km_open_index {
    char name[64];
    km_index *index;
    km_index_info info;
} km_open_index;

typedef struct km_job_queue { /* calls that wait for one of its threads */
    struct km_serve *serve;
    km_api_call *first, **end;
    pthread_cond_t wake;
    void (*work)(km_api_call *c);
    const char *name;
    pthread_t threads[4];
    int n_threads;
} km_job_queue;

struct km_serve {
    km_serve_options o;
    km_http *http;
    km_served **served; /* the models, n_served of them; the first one is the default */
    int n_served, cap_served;
    int n_adapters;     /* of all of them */
    km_served *starved; /* waits for memory that others use */
    int64_t loads;      /* of models, so far */
    km_keys *keys;      /* NULL: nobody needs one */
    km_response_store *responses;
    km_open_index *indexes; /* n_indexes */
    int n_indexes, cap_indexes;
    km_metrics metrics;
    double began;    /* by km_now */
    int64_t created; /* seconds since 1970 */
    bool draining;
    int port;
    uint64_t ids;         /* of answers */
    uint64_t salt;        /* makes them unlike those of another run */
    km_text scratch;      /* of the loop */
    km_api_call *calls;   /* all that are alive */
    int log_fd;           /* -1: no log */
    pthread_mutex_t lock; /* of what follows */
    km_job_queue reading, computing;
    bool stop;
};

/* ---- Calls ---- */

typedef struct km_tool_use { /* a call of a tool, in an answer that is sent whole */
    char id[32];
    char *name;
    km_text arguments;
} km_tool_use;

typedef struct km_api_choice {
    km_api_call *call;
    int index;
    km_task task;
    km_generation how; /* the call's, with a seed of its own */
    km_answer_parser *parser;
    km_text content, reasoning, logprobs;
    size_t logprobs_sent; /* of these, in streams */
    km_tool_use *uses;
    int n_uses;
    km_end_reason end;
    bool submitted, ended, begun;
    bool lost;       /* memory ran out for a part of it */
    bool called;     /* its only call of a tool is there: what comes behind is not told */
    int64_t text_at; /* bytes of text so far: completions' text_offset */
    int block;       /* Anthropic: the content block that is open, and its kind */
    int block_kind;
    km_answer_kind last_kind;
    int64_t reasoning_tokens;
} km_api_choice;

typedef struct km_prompt {
    int32_t *ids;
    size_t n;
    char *text; /* for echo */
} km_prompt;

struct km_api_call {
    km_serve *serve;
    km_served *served;     /* its model; NULL: not known yet */
    km_exchange *exchange; /* NULL: the client is gone, or has its answer */
    const km_dialect *dialect;
    char *body;
    size_t bytes;
    char id[48];
    km_text head; /* of a stream's chunks, which is the same in all of them */
    int64_t created;
    double began;
    km_key key; /* all-zero: none was needed */
    uint64_t owner;
    /* Read from the request. */
    json_t *request;
    char *messages, *tools, *variables; /* JSON */
    const char **tool_names;
    size_t n_tools;
    km_prompt *prompts;
    int n_prompts, n;
    km_generation how;
    const char **stops;
    km_logit_bias *bias;
    char *schema, *grammar;
    km_adapter adapters[8]; /* how.n_adapters that were chosen */
    uint64_t variant;       /* of the model by these; 0: the plain one */
    const char
        *model_name; /* of the adapter that was asked for as a model; NULL: the model's own */
    int thinking;    /* as km_render_options has it */
    bool chat, stream, usage, echo, opened_thought, plain, forced_tool, random_seed;
    bool one_call;                      /* of a tool, at most */
    const char *save_to, *restore_from; /* a session's file */
    bool no_text;                       /* the answer needs no tokens: `read` has made all of it */
    bool keep_reasoning;
    int logprobs; /* -1: none */
    bool has_logprobs;
    double timeout, keep_alive;
    bool has_keep_alive; /* Ollama: for its model */
    /* Its answer. */
    km_api_choice *choices;
    int n_choices, n_ended;
    int status; /* of a failure; 0: none */
    char error[600], param[64];
    bool working; /* a worker has it */
    bool held;    /* by a function below that goes on with it, even if its client leaves in there */
    bool computed;    /* `compute` has been there */
    atomic_bool gone; /* the client, for those that compute */
    bool waiting;     /* for its model */
    bool detached;    /* it needs no model */
    bool using;       /* counted among its model's users */
    bool begun;       /* the stream */
    void *state;      /* of the dialect, and what frees it */
    void (*free_state)(void *state);
    km_api_call *next_job, *prev, *next;
};

struct km_dialect {
    const char *name;
    const char *stream_type;
    const char *beat;
    bool all_parts;                            /* parts are given to `part` in whole answers too */
    bool (*needs_model)(const km_api_call *c); /* NULL: it does */
    /* By a worker: fills the call from call->request. */
    km_status (*read)(km_api_call *c, km_error *err);
    /* By the thread for long computations, behind `read`, of a call without text; or NULL. */
    void (*compute)(km_api_call *c);
    /* By the loop, into the stream. */
    void (*begin)(km_api_call *c);
    void (*part)(km_api_choice *ch, const km_answer_part *part);
    void (*end_choice)(km_api_choice *ch);
    void (*end)(km_api_call *c);
    void (*whole)(km_api_call *c, km_text *out);
    void (*stream_error)(km_api_call *c); /* in a stream that has begun; NULL: error does it */
    void (*error)(km_text *out, int status, const char *param, const char *message, bool stream);
};
extern const km_dialect km_dialect_chat, km_dialect_completions, km_dialect_messages,
    km_dialect_count_tokens, km_dialect_responses, km_dialect_ollama_chat,
    km_dialect_ollama_generate, km_dialect_tokenize, km_dialect_detokenize, km_dialect_template,
    km_dialect_embeddings, km_dialect_ollama_embed, km_dialect_ollama_embed_old, km_dialect_rerank,
    km_dialect_search, km_dialect_session_save, km_dialect_session_restore;

void km_call_start(km_serve *s, km_exchange *x, const km_dialect *d, const km_key *key);
void km_call_on_events(void *serve, const km_task_event *events, size_t n);
bool km_call_can_now(void *serve, const km_task_event *events, size_t n);
void km_call_tick(void *serve); /* streams that wait get their beginning */
void km_call_put(km_api_call *c, const km_text *t);
void km_call_enqueue(km_api_call *c); /* for a worker to read */
void km_call_fail(km_api_call *c);    /* answers its error, and ends it */
bool km_workers_start(km_serve *s);
void km_workers_stop(km_serve *s);
/* Sets the call's error; returns KM_ERR_RANGE. */
km_status km_call_refuse(km_api_call *c, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int64_t km_call_prompt_tokens(const km_api_call *c);
int64_t km_call_tokens(const km_api_call *c);
int64_t km_call_reused(const km_api_call *c);
int64_t km_call_reasoning_tokens(const km_api_call *c);
bool km_finish_is_length(const km_api_choice *ch); /* ended for want of tokens, not by itself */

/* ---- Reading requests (fields.c) ---- */

/* Each reads a field that may be absent or null, and refuses what is not of its type or range. */
bool km_field_number(km_api_call *c, const char *key, double lo, double hi, double *out);
bool km_field_int(km_api_call *c, const char *key, int64_t lo, int64_t hi, int64_t *out);
bool km_field_bool(km_api_call *c, const char *key, bool *out);
km_status km_fields_sampling(km_api_call *c); /* all samplers, stop, seed, logit_bias, limits */
km_status km_fields_format(km_api_call *c);   /* response_format, grammar, json_schema */
km_status km_fields_tools(km_api_call *c, const json_t *tools, const json_t *choice);
km_status km_fields_messages(km_api_call *c, const json_t *messages); /* keeps them as OpenAI's */
km_status km_fields_keep_alive(km_api_call *c);                       /* Ollama's */
km_status km_force_tool(km_api_call *c, const char *name);            /* NULL: any of them */

/* ---- Prompts (prompt.c) ---- */

km_status km_call_prompt_chat(km_api_call *c, km_error *err);
km_status km_call_prompt_text(km_api_call *c, const char *text, size_t bytes, km_error *err);
/* The text as it is, with what the tokenizer adds if `special`; an empty one has no tokens. */
km_status km_call_prompt_tokens_of(km_api_call *c, const char *text, size_t bytes, bool special,
                                   km_error *err);
km_status km_call_prompt_ids(km_api_call *c, const json_t *ids, km_error *err);
/* A query and a document for a model that ranks; cut: a document too long is, else it is refused. */
km_status km_call_prompt_pair(km_api_call *c, const json_t *query, const json_t *document, bool cut,
                              km_error *err);
km_status km_guard_open(km_served *s, km_error *err);
json_t *km_guard_mark(const km_served *s, const json_t *v, bool assistant); /* a new reference */
km_status km_guard_tokenize(const km_served *s, const char *text, size_t bytes, int32_t **ids,
                            size_t *n, km_error *err);

/* ---- Embeddings (embeddings.c) ---- */

/* The texts of a field, as prompts; then, in the thread for computations, their embeddings
 * (n_prompts, dimensions), which km_free frees. NULL: the call has its error. dimensions 0: the prompts are
 * pairs, and what comes back is their scores (n_prompts). */
km_status km_embeddings_read(km_api_call *c, const char *key, bool truncate, km_error *err);
float *km_embeddings_compute(km_api_call *c, int64_t dimensions);

/* ---- Indexes (search.c) ---- */

km_status km_indexes_open(km_serve *s, km_error *err);
void km_indexes_close(km_serve *s);
km_open_index *km_indexes_find(km_serve *s, const char *name); /* NULL: the only one */

/* ---- Writing ---- */

km_text *km_scratch(km_serve *s);                        /* the loop's, empty */
void km_put_string(km_text *t, const char *s, size_t n); /* as JSON, with its quotes */
void km_put_string0(km_text *t, const char *s);
/* A named server-sent event whose data is an object with its name as "type", in the loop's scratch; more
 * fields may follow, each after a comma. */
km_text *km_event_begin(km_api_call *c, const char *name);
void km_event_send(km_api_call *c, km_text *t);
void km_send_json(km_exchange *x, int status, json_t *v); /* frees v */
/* A text that is whole, or 503 if memory ran out for it. d: whose error that is; NULL: OpenAI's. */
void km_send_text(km_exchange *x, const km_dialect *d, const char *type, const km_text *t);
void km_send_error(km_exchange *x, const km_dialect *d, int status, const char *param,
                   const char *message);
const char *km_error_type(int status); /* "invalid_request_error" */

/* ---- Endpoints that answer at once ---- */

void km_route(void *serve, km_exchange *x);
void km_endpoint_models(km_serve *s, km_exchange *x, const char *name, const km_key *key);
void km_endpoint_indexes(km_serve *s, km_exchange *x);
void km_endpoint_sessions(km_serve *s, km_exchange *x, const char *name, const km_key *key);
void km_endpoint_response(km_serve *s, km_exchange *x, const char *id, const km_key *key);
void km_endpoint_ollama(km_serve *s, km_exchange *x, const char *what, const km_key *key);
json_t *km_read_body(km_exchange *x); /* the request's object; NULL: an error was answered */
void km_endpoint_metrics(km_serve *s, km_exchange *x);
void km_endpoint_status(km_serve *s, km_exchange *x);
void km_endpoint_openapi(km_serve *s, km_exchange *x);
void km_endpoint_page(km_serve *s, km_exchange *x, bool status_page);
void km_endpoint_web(km_serve *s, km_exchange *x, const char *name); /* NULL: its index */
void km_log_end(void *serve, km_exchange *x, int status, uint64_t bytes, double seconds);

#endif

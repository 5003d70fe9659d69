/* What the commands that use a model share: finding and opening it with its tokenizer, putting a
 * conversation into its template, and showing text as it is made. */
#ifndef KM_CLI_USE_MODEL_H
#define KM_CLI_USE_MODEL_H
#include "cli/cli.h"
#include "text/chat_template.h"
#include "infer/generate.h"
#include "infer/memory.h"
#include <limits.h>

/* Which devices a model's layers go to, and how they compute there. */
typedef struct km_cli_where {
    const char *gpu_layers; /* "N" or "auto"; NULL: all that fit */
    const char *devices;    /* "cuda:0,cuda:1"; NULL: --device */
    const char *split;      /* "layers" (NULL) or "tensor" */
    const char *comm;       /* how ranks talk; NULL: auto */
    int64_t activations;    /* bits: 8 or 16; 0: the context's default */
} km_cli_where;

/* clang-format off */
#define KM_OPTION_WHERE_ROWS(w)                                                                    \
    {"gpu-layers", KM_OPTION_TEXT, "N|auto", &(w).gpu_layers, 0, 0,                                \
     "how many layers the GPU takes; the others are computed by the CPU from\n"                    \
     "the mapped file (default: all, or as many as fit)"},                                         \
    {"devices", KM_OPTION_TEXT, "LIST", &(w).devices, 0, 0,                                        \
     "several devices, as cuda:0,cuda:1: layers are spread over them"},                            \
    {"activations", KM_OPTION_INT, "BITS", &(w).activations, 8, 16,                                \
     "what activations keep where weights are quantised: 16 (default) is\n"                        \
     "faithful to the file, 8 reads prompts faster"}
/* For commands that ranks can run together. */
#define KM_OPTION_SPLIT_ROWS(w)                                                                    \
    {"split", KM_OPTION_TEXT, "HOW", &(w).split, 0, 0,                                             \
     "layers (default): over --devices; tensor: over the ranks of mpirun,\n"                       \
     "each of which holds a share of every layer"},                                                \
    {"comm", KM_OPTION_TEXT, "HOW", &(w).comm, 0, 0,                                               \
     "how the ranks talk: auto (default), mpi, nccl"}
/* clang-format on */

typedef struct km_cli_model {
    char path[PATH_MAX]; /* where it was found */
    km_token *token;
    km_ctx *ctx; /* of the model's first part */
    km_net *model;
    bool planned; /* a GPU is used, or could have been */
    km_memory_plan plan;
    char devices[160];        /* "cuda:0", "cpu 20 + cuda:0 16" */
    int64_t context;          /* as asked for; 0: none was */
    int threads, activations; /* 0: the default */
    km_open_options how;
    km_comm *comm; /* of the ranks that share the model; NULL: it is whole */
    bool silent;   /* an error is another rank's to tell */
} km_cli_model;

/* given: a GGUF file, a folder with a model, or a training run's, which stands for its model, its
 * best, or its newest checkpoint; or a name in the model folder; NULL: the only or newest model
 * there. tokenizer NULL: the model's own. KM_OK, or the error; close in either case. */
km_status km_cli_model_open(km_cli_model *m, const char *given, const char *tokenizer,
                            const km_common *common, const km_open_options *how, km_error *err);
/* The same on the devices that `where` says, with a plan of their memory, which is told as a note
 * where a GPU is used; cache and sequences are those of the session to come. */
km_status km_cli_model_open_at(km_cli_model *m, const char *given, const char *tokenizer,
                               const km_common *common, const km_cli_where *where, km_dtype cache,
                               int64_t sequences, const km_open_options *how, km_error *err);
/* Closes the model where it is and opens it on the CPU. */
km_status km_cli_model_to_cpu(km_cli_model *m, km_error *err);
void km_cli_model_close(km_cli_model *m);

/* ---- Ranks: --split tensor ---- */

/* The model's share of this rank, if the line asks for shares and there are ranks. Rank 0 goes on as
 * if it had the whole model; the others follow it, which is all they do, and then leave. */
bool km_cli_shares(const km_cli_where *where);
km_status km_cli_model_share(km_cli_model *m, const km_common *common, const km_cli_where *where,
                             km_dtype cache, int64_t sequences, km_error *err);
bool km_cli_silent(const km_cli_where *where); /* notes and mistakes are rank 0's to tell */
bool km_cli_follows(const km_cli_model *m);
int km_cli_follow(km_cli_model *m); /* closes it; the exit code */
/* Says what was wrong, unless another rank says so; the exit code. */
int km_cli_model_fail(const km_cli_model *m, const km_error *err);

/* The first half of opening: the path and the tokenizer. */
km_status km_cli_model_find(km_cli_model *m, const char *given, const char *tokenizer,
                            km_error *err);
/* What can be told without a model: a usage error if not KM_OK. */
km_status km_cli_where_check(const km_cli_where *w, km_error *err);
/* The plan for a model that was weighed, told as a note if a GPU is in it. */
km_status km_cli_plan(const km_weighed *w, const km_common *common, const km_cli_where *where,
                      int64_t context, int64_t sequences, km_dtype cache, km_memory_plan *out,
                      km_error *err);
json_t *km_cli_plan_json(const km_memory_plan *p);
/* Says so when more was asked for (0: nothing was) than the model's context. */
void km_cli_context_told(int64_t asked, int64_t models);
/* A bar for loading, as km_open_options and km_synthetic_model take it; user is a km_progress. */
bool km_cli_loading(void *user, uint64_t done, uint64_t total);

/* ---- Sessions ---- */

typedef struct km_cli_session {
    int64_t context;        /* 0: the model's */
    const char *cache_type; /* NULL: f16 */
    const char *file;       /* what it holds comes from here and goes there; or NULL */
    bool shift;
    bool no_reread; /* answers in the file are gone on from as they were made */
} km_cli_session;

/* clang-format off */
/* Rows of a command's options; `shift` says what that flag does. */
#define KM_OPTION_SESSION_ROWS(s, shift_)                                                          \
    {"context", KM_OPTION_INT, "N", &(s).context, 1, 1 << 24,                                      \
     "room for prompt and answer, in tokens (default: the model's)"},                              \
    {"shift", KM_OPTION_FLAG, NULL, &(s).shift, 0, 0, shift_},                                     \
    {"cache-type", KM_OPTION_TEXT, "T", &(s).cache_type, 0, 0,                                     \
     "keys and values in f32, f16, bf16, q8_0 or q4_0 (default f16)"},                             \
    {"session", KM_OPTION_TEXT, "FILE", &(s).file, 0, 0,                                           \
     "keep what was read in this file: the next time only answers are read\n"                      \
     "again, so that the text is that of reading everything at once"},                             \
    {"no-reread", KM_OPTION_FLAG, NULL, &(s).no_reread, 0, 0,                                      \
     "with --session: do not read answers again either; quicker, and the\n"                        \
     "text may be another one"}
/* clang-format on */

/* What can be told without a model: a usage error if not KM_OK. */
km_status km_cli_session_check(const km_cli_session *o, km_error *err);
/* The dtype of a --cache-type (NULL: f16). */
km_status km_cli_cache_type(const char *name, km_dtype *out, km_error *err);
/* A session over the model, with what the file holds if it is there; NULL with *err set. */
km_sequence *km_cli_session_open(const km_cli_model *m, const km_cli_session *o, km_error *err);
/* Writes the file, if one was named, and frees the session. */
km_status km_cli_session_close(km_sequence *s, const km_cli_session *o, km_error *err);

/* After a failure of the model's device: the model again, on the CPU, and a session there that
 * holds what *session did, which it takes the place of. NULL where there is no other device to go
 * to, or that fails too; *session is NULL then. For km_making's rescue. */
km_sequence *km_cli_rescue(km_cli_model *m, const km_cli_session *o, km_sequence **session,
                           const km_error *why);

/* ---- Drafts ---- */

/* What --draft opened: a drafter, and its model if it has one. */
typedef struct km_cli_draft {
    km_cli_model m;
    km_drafter *drafter;
} km_cli_draft;

#define KM_OPTION_DRAFT_ROW(dest)                                                                  \
    {                                                                                              \
        "draft", KM_OPTION_TEXT, "MODEL|lookup", &(dest), 0, 0,                                    \
            "guess several tokens at a time with a smaller model of the same\n"                    \
            "vocabulary, or by looking back in the text; the text stays the same"                  \
    }

/* given NULL: none, which is fine. Close in either case. */
km_status km_cli_draft_open(km_cli_draft *d, const char *given, const km_cli_model *m,
                            const km_common *common, km_error *err);
void km_cli_draft_close(km_cli_draft *d);

/* ---- Conversations ---- */

/* The model's own template, or the built-in of that name; NULL with *err set. */
km_chat_template *km_cli_template(const km_cli_model *m, const char *name, km_error *err);
/* Messages (an array of objects with role and content) as the text to go on with. */
km_status km_cli_render(const km_cli_model *m, const km_chat_template *t, const json_t *messages,
                        km_text *out, km_error *err);
/* A message; bytes that are no UTF-8, and NUL, become U+FFFD. NULL when out of memory. */
json_t *km_cli_message(const char *role, const char *text, size_t bytes);

/* ---- Text on stdout ---- */

/* Writes text. On a terminal, characters that would steer it are left out: a model's text comes
 * from strangers. False when it could not be written. */
bool km_cli_put(const char *text, size_t bytes, bool terminal);

/* For km_making's on_text. */
typedef struct km_cli_text {
    const char *before; /* still to be printed, once there is something to follow it; or NULL */
    bool json;          /* collect instead of printing */
    km_text text;
} km_cli_text;
void km_cli_show_before(km_cli_text *t);
bool km_cli_show(void *km_cli_text_, int32_t id, const char *text, size_t bytes);

#endif

/* What the commands that use a model share: finding and opening it with its tokenizer, putting a
 * conversation into its template, and showing text as it is made. */
#ifndef KM_CLI_USE_MODEL_H
#define KM_CLI_USE_MODEL_H
#include "cli/cli.h"
#include "base/text.h"
#include <jansson.h>

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

/* What can be told without a model: a usage error if not KM_OK. */
km_status km_cli_where_check(const km_cli_where *w, km_error *err);
/* Another rank tells what failed; the exit code. mpirun ends all ranks when the first one leaves
 * with an error, so this waits for the one that tells. */
int km_cli_peer_failed(void);
bool km_cli_silent(const km_cli_where *where); /* notes and mistakes are rank 0's to tell */

struct km_cli_session;
/* The options that the line asks for; session may be NULL. */
km_status km_cli_model_options(const km_common *common, const km_cli_where *where,
                               const struct km_cli_session *session, km_model_options *out,
                               km_error *err);
/* Opens it, with a bar where that takes long; NULL: km_last_error tells why. */
km_model *km_cli_model_open(const char *given, km_model_options *o, const km_common *common);
/* A rank that follows: until rank 0 is done. Closes it; the exit code. */
int km_cli_follow(km_model *m);
/* Says so when more was asked for (0: nothing was) than the model's context. */
void km_cli_context_told(int64_t asked, int64_t models);

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
/* A session over the model, with what the file holds if it is there; NULL: km_last_error. */
km_session *km_cli_session_open(km_model *m, const km_cli_session *o);
/* Writes the file, if one was named, and frees the session. */
km_status km_cli_session_close(km_session *s, const km_cli_session *o);

/* Adapters of the line, each "PATH" or "PATH:SCALE". */
typedef struct km_cli_loras {
    km_words given;
    km_adapter adapter[KM_MAX_LIST];
    char path[KM_MAX_LIST][1024]; /* of those with a scale */
} km_cli_loras;
/* Into the options of a model. */
km_status km_cli_loras_open(km_cli_loras *l, km_model_options *out, km_error *err);
#define KM_OPTION_LORA_ROW(l)                                                                      \
    {                                                                                              \
        "lora", KM_OPTION_LIST, "PATH[:SCALE]", &(l).given, 0, 0,                                  \
            "an adapter (LoRA): PEFT's folder, or a .gguf; may be given several times"             \
    }

#define KM_OPTION_DRAFT_ROW(dest)                                                                  \
    {                                                                                              \
        "draft", KM_OPTION_TEXT, "MODEL|lookup", &(dest), 0, 0,                                    \
            "guess several tokens at a time with a smaller model of the same\n"                    \
            "vocabulary, or by looking back in the text; the text stays the same"                  \
    }

/* ---- Conversations ---- */

/* Messages (an array of objects with role and content) as the text to go on with, in the model's own
 * template or the built-in of that name. */
km_status km_cli_render(km_model *m, const char *name, const json_t *messages, km_text *out,
                        km_error *err);
/* The same with tools for the model to call: a JSON array, as OpenAI has it; NULL: none. */
km_status km_cli_render_tools(km_model *m, const char *name, const json_t *messages,
                              const char *tools, km_text *out, km_error *err);
/* A message; bytes that are no UTF-8, and NUL, become U+FFFD. NULL when out of memory. */
json_t *km_cli_message(const char *role, const char *text, size_t bytes);

/* ---- Text on stdout ---- */

/* Writes text. On a terminal, characters that would steer it are left out: a model's text comes
 * from strangers. False when it could not be written. */
bool km_cli_put(const char *text, size_t bytes, bool terminal);

/* For km_generation's on_token. */
typedef struct km_cli_text {
    const char *before; /* still to be printed, once there is something to follow it; or NULL */
    bool json;          /* collect instead of printing */
    km_text text;
} km_cli_text;
void km_cli_show_before(km_cli_text *t);
bool km_cli_show(km_cli_text *t, const char *text, size_t bytes);

#endif

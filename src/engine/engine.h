/* The engine room: a model opened and ready to be used by anyone, over which sessions and batches go
 * on. Everything here is behind kermes.h; nothing prints, notes go through km_set_log. */
#ifndef KM_ENGINE_ENGINE_H
#define KM_ENGINE_ENGINE_H
#include "base/gate.h"
#include "base/handle.h"
#include "infer/generate.h"
#include "infer/memory.h"
#include "text/chat_template.h"
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- Options ---- */

/* *out receives the caller's struct of `size` bytes (its first member), over the defaults that are in
 * it; NULL: the defaults stay. KM_ERR_RANGE for a size that cannot be. */
km_status km_take_options(const char *call, void *out, size_t bytes, const void *given);

/* ---- Where a model runs ---- */

/* The devices asked for, as numbers and names that are there. */
typedef struct km_placing {
    const char *device, *devices;
    int64_t gpu_layers;
    size_t memory;
    int threads, activations;
} km_placing;

/* Weights on devices, and the cache of sessions over them. A model has one; a device that fails makes
 * it have another, and the old one goes when the last session has left it. */
typedef struct km_ground {
    atomic_int users;
    km_ctx *ctx; /* of the first part */
    km_net *net;
    km_sequences *pool; /* of sessions; NULL until the first */
    km_comm *comm;      /* of ranks that hold the net together, which ends before ctx; or NULL */
    bool planned;       /* a GPU is used, or could have been */
    km_memory_plan plan;
    char devices[160]; /* "cuda:0", "cpu 20 + cuda:0 16" */
} km_ground;

/* "FILE.gguf": its devices, checked; errors name options as the caller knows them. */
km_status km_placing_check(const km_placing *w, km_error *err);
km_status km_placing_plan(const km_weighed *w, const km_placing *where, int64_t context,
                          int64_t sequences, km_dtype cache, km_memory_plan *out, km_error *err);

/* An adapter of a model: its slot (model/adapters.h) is its place in the list. */
typedef struct km_held_adapter {
    char *name, *path; /* NULL: the slot is free */
    double scale;
    bool off;
    bool removed; /* nobody can choose it any more */
    int users;    /* mixes that have it */
} km_held_adapter;

struct km_model {
    km_handle handle;
    atomic_int users;    /* the caller's hold on it, and that of each session and batch */
    char path[PATH_MAX]; /* where it was found, or a lent file's name (base/file.h) */
    bool lent;           /* it is such a name, */
    void *copy;          /* and perhaps memory of our own */
    size_t copy_bytes;
    km_model_options how; /* texts in it are the caller's, and gone after opening */
    km_open_options open;
    km_token *token;
    km_comm *comm;        /* of the ranks that share it; NULL: it is whole */
    bool met;             /* ranks have talked, so that one of them tells what fails */
    km_gate gate;         /* one thread at a time runs the net */
    pthread_mutex_t lock; /* of what follows */
    km_ground *ground;    /* NULL: tokenizer_only */
    km_chat_template *template;
    km_error no_template; /* why there is none */
    bool template_sought;
    km_trie *trie;
    struct km_model *draft; /* that guesses; NULL: none, or it looks back in the text */
    bool lookup;
    int64_t pooling;          /* GGUF's pooling_type: 0 none, 1 mean, 2 first, 3 last, 4 rank */
    struct km_ranker *ranker; /* NULL: it does not rank */
    km_held_adapter adapter[KM_ADAPTER_SLOTS];
    char *name, *file_type;
    km_sampling sampling; /* as its file suggests */
    char sampling_from[64];
    km_config config; /* as opened */
    int64_t parameters, bytes, trained_context;
};

/* ---- In parts: place.c, share.c, draft.c, adapters.c ---- */

/* Places the weights: m->ground. */
km_status km_place_model(km_model *m, const km_placing *where, km_error *err);
/* The same on the CPU with the mapped file; *out is a ground of its own. */
km_status km_place_on_cpu(km_model *m, km_ground **out, km_error *err);
/* This rank's share of it. */
km_status km_share_model(km_model *m, const km_placing *where, const char *comm, km_error *err);
/* A failure `s` before there was a share: the ranks settle who of them tells it, as above. */
km_status km_share_failed(km_model *m, km_status s, const char *comm, km_error *err);
km_ground *km_ground_hold(km_model *m);             /* the model's, one user more */
void km_ground_drop(km_ground *g);                  /* NULL is fine */
bool km_ground_is(km_model *m, const km_ground *g); /* the model's, still */
/* After a failure there: whether the model has another ground, on the CPU perhaps, to move to. */
bool km_ground_rescue(km_model *m, const km_ground *failed, const km_error *why);
/* For work on one ground that failed and can be done again from its beginning: whether the model moved, with
 * *g then held anew and *err cleared. */
bool km_ground_again(km_model *m, km_ground **g, km_error *err);
/* Whether it is a device that failed, or memory, and not what was asked of it. */
bool km_ground_failed(const km_error *why);
/* The cache that sessions share, made when first asked for; by who has a turn. */
km_sequences *km_ground_pool(km_model *m, km_ground *g, km_error *err);
km_status km_draft_open(km_model *m, const char *given, km_error *err);
/* A drafter for one session; NULL: there is no draft, or *err is set. */
km_drafter *km_draft_new(km_model *m, km_error *err);

km_status km_adapters_open(km_model *m, const km_adapter *adapters, size_t n, km_error *err);
/* All that the model has, for weights on another device; by who has a turn. */
km_status km_adapters_again(km_model *m, km_net *net, km_error *err);
void km_adapters_close(km_model *m);
/* The mix that a caller chose (n -1: the model's own), which is then in use until it is dropped. */
km_status km_adapters_mix(km_model *m, const km_adapter *chosen, int64_t n, km_adapter_mix *out,
                          km_error *err);
void km_adapters_hold(km_model *m, const km_adapter_mix *mix); /* one user more */
void km_adapters_drop(km_model *m, km_adapter_mix *mix);       /* which is none then */

km_model *km_model_hold(km_model *m);
void km_model_drop(km_model *m);

/* Whether there is such a model, with weights if `weights`; otherwise the error is told. */
bool km_model_usable(km_holding *held, const char *call, const km_model *m, bool weights);
/* km_tokenize and km_detokenize for any tokenizer; `call` names the public one in errors. */
int64_t km_ids_of(const char *call, const km_token *token, const char *text, size_t bytes,
                  unsigned flags, int32_t *ids, size_t cap);
int64_t km_text_of(const char *call, const km_token *token, const int32_t *ids, size_t n,
                   unsigned flags, char *text, size_t cap);
/* The template that the options or the model have; NULL with *err set. */
const km_chat_template *km_model_template(km_model *m, km_error *err);
/* km_render_chat for who holds the model, which its owner may have closed. */
char *km_render_held(km_model *m, const char *messages, const km_render_options *options);
km_chat_template *km_template_of(const char *given, km_error *err); /* a name, a file, or Jinja */

/* ---- Whole texts: embed.c, rank.c ---- */

/* Texts as tokens, and who takes their hidden states (lengths[text], dim), in any order. */
typedef struct km_texts {
    const int32_t *const *ids;
    const size_t *lengths;
    size_t n;
    void (*take)(void *user, size_t text, const float *states, size_t n);
    void *user;
} km_texts;
/* Of the options, adapters, progress and its user count. The error is told. */
km_status km_texts_read(const char *call, km_model *m, const km_texts *x,
                        const km_embed_options *o);

/* What makes the model one that ranks: m->ranker, where its file has that. */
km_status km_ranker_open(km_model *m, const km_gguf *g, km_error *err);
void km_ranker_free(struct km_ranker *r); /* NULL is fine */

/* ---- Generations ---- */

/* A km_generation with its texts copied and its grammar ready: what a session or a sequence of a batch
 * works by. */
typedef struct km_wish {
    km_making making;
    km_generation how; /* callbacks and user are read from it */
    char **stops;
    km_logit_bias *biases;
    km_grammar *grammar;
    km_guide *guide;
    km_model *m;
    bool chose;         /* adapters: otherwise a session's own are meant, or the model's */
    km_adapter_mix mix; /* in use until somebody takes it over, or the wish is freed */
} km_wish;
km_sampling km_sampling_suggested(const char *path, char from[64]); /* NULL: of no model */
/* Free in either case. */
km_status km_wish_make(const char *call, km_model *m, const km_generation *how, km_wish *out,
                       km_error *err);
void km_wish_free(km_wish *w);

#endif

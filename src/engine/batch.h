/* Inside a batch: its slots, the texts being made, and what other threads have asked for. batch.c makes one
 * and takes requests, batch_keep.c sets sequences aside, batch_step.c does the step, batch_pass.c runs the
 * rows of a step in one pass. */
#ifndef KM_ENGINE_BATCH_H
#define KM_ENGINE_BATCH_H
#include "engine/engine.h"

/* Those behind IDLE have a text that is being made; PAUSED ones hold nothing. */
typedef enum slot_state {
    SLOT_FREE,
    SLOT_IDLE,
    SLOT_PAUSED,
    SLOT_READING,
    SLOT_RUNNING
} slot_state;

/* One start: what it wants, its text in the making, and its prompt. */
typedef struct batch_text {
    km_wish wish;
    km_voice voice;
    km_generated got;
    int32_t *ids; /* the prompt, or what is to be read again after a rescue */
    size_t n;
    int64_t again; /* tokens of the slot to be read again after a pause; 0: none */
    /* Tokens are chosen by the device, where a batch runs ahead of the host and the settings are such
     * as it knows; the voice's sampler then only remembers. */
    bool on_device;
    km_chooser chooser;
    double start;
    struct batch_text *next; /* of those that wait to be freed */
} batch_text;

typedef struct batch_slot {
    slot_state state;
    bool cancel;        /* to be ended by the next step */
    int at;             /* its sequence of the cache; -1: none yet */
    int32_t *tokens;    /* (context): what it holds, for every thread */
    int64_t length;     /* of these */
    int32_t last;       /* chosen, and not yet through the model; -1: none */
    batch_text *text;   /* NULL: none was started */
    km_adapter_mix mix; /* of what it holds */
    int part;           /* 1 + its place in the pass that runs; 0: none */
} batch_slot;

typedef enum batch_what {
    ASK_JOIN,
    ASK_FORK,
    ASK_LEAVE,
    ASK_START,
    ASK_PAUSE,
    ASK_RESUME
} batch_what;
typedef struct batch_ask { /* what the next step does first */
    struct batch_ask *next;
    batch_what what;
    int slot, from;
    int64_t length;
    batch_text *text;
} batch_ask;

struct km_batch {
    km_handle handle;
    km_model *m;
    km_ground *ground;
    km_sequences *seq;
    km_batch_options how;
    atomic_bool stepping;
    pthread_mutex_t lock; /* of what follows */
    batch_slot *slot;     /* (how.sequences) */
    batch_ask *first, *last;
    int turn;         /* whose prompt is read next */
    int reader;       /* whose prompt is being read; -1: none */
    atomic_bool cut;  /* that reading is to end */
    batch_text *done; /* texts that nobody needs, but for pieces that live until the next step */
    km_piece_event *event; /* (2 * sequences + 1), waiting to be given out */
    int n_event, given;
    km_sequences_token *row; /* (sequences) */
    int *row_slot;
    /* Where the model runs in passes (km_sequences_passes): the one that runs. */
    km_sequences_part *part; /* (sequences) */
    int *part_slot;          /* whose they are */
    int32_t *part_id;        /* (sequences): tokens that were chosen, as parts point at them */
    int32_t *chosen;         /* (sequences): what came of them */
    int n_parts, row_turn;
    bool flying; /* it has begun and not ended: between steps, where the device runs ahead */
    int ahead;   /* KERMES_RUN_AHEAD: 1 or -1 in place of what the device suggests; 0 */
    int64_t pages, pages_free, page_bytes;
};

/* ---- batch.c ---- */

/* Whether it is open; it stays so until `in` is left. */
bool km_batch_usable(km_inside *in, const char *call, km_batch *b);
/* The slot, with the batch locked; NULL, with the error told, if nobody joined as that. */
batch_slot *km_batch_slot(km_inside *in, const char *call, km_batch *b, int sequence);
/* Adds to the list of what the next step does first; the batch is locked. */
km_status km_batch_ask(km_batch *b, batch_ask what);
/* A cache over the model's ground as it is now; by who steps, or makes the batch. */
km_status km_batch_settle(km_batch *b, km_error *err);
void km_batch_text_free(batch_text *t); /* NULL is fine */
/* Texts that nobody needs are freed when the next step begins: their pieces live until then. */
void km_batch_bury(km_batch *b, batch_text *t);
void km_batch_free_done(km_batch *b);

/* ---- batch_pass.c: by who steps ---- */

/* Whether a step is one pass; otherwise rows and prompts run one after the other. */
bool km_batch_passes(const km_batch *b);
/* Whether the device runs a pass while the host sees to the tokens of the one before. */
bool km_batch_runs_ahead(const km_batch *b);
/* Whether the device is to choose a text's tokens; makes the chooser. */
bool km_batch_chooses(const km_batch *b, batch_text *t);
/* One pass of all rows that there are, from its beginning or its end on; with the batch unlocked. Slots
 * whose next token was chosen have it. */
void km_batch_pass(km_batch *b);
/* Pages that the passes of the next step take, at most. The batch is locked. */
int64_t km_batch_pass_pages(km_batch *b);
/* What a slot has in the pass that runs is not to count. */
void km_batch_drop(km_batch *b, int slot);

/* ---- batch_step.c: by who steps, with the batch locked ---- */

void km_batch_put_event(km_batch *b, int slot, const km_piece_event *e);
/* The text of a slot ends with an event of the error. */
void km_batch_fail(km_batch *b, int slot, const km_error *err);
/* The pass's or step's error: the model has another ground, with everything read again. The batch is not
 * locked. */
bool km_batch_rescued(km_batch *b, const km_error *why);
/* Takes the token in that was chosen for a slot, and tells of it; -1: the host chooses it first. */
void km_batch_take(km_batch *b, int slot, int32_t id);
/* Tokens of the next chunk of a prompt, after `at`, at most `chunk`. */
int64_t km_batch_chunk_at(const km_batch *b, const batch_text *t, int64_t at, int64_t chunk);

void km_batch_do_asks(km_batch *b);
void km_batch_mirror(km_batch *b, int slot); /* what the slot's sequence holds, for every thread */

#endif

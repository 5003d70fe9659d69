/* Objects that callers of kermes.h hold, known by address: one that was freed, or never was what a call
 * takes, is told from one that is there without being looked into. A call enters the object that it works
 * on, so that another thread's call, or its freeing, is refused until it has left. */
#ifndef KM_BASE_HANDLE_H
#define KM_BASE_HANDLE_H
#include "base/error.h"
#include <stdatomic.h>

/* X(name, what errors call it) */
#define KM_HANDLE_LIST(X)                                                                          \
    X(CONTEXT, "context")                                                                          \
    X(FILE, "file of tensors")                                                                     \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(MODEL, "model")                                                                              \
    X(SESSION, "session")                                                                          \
    X(BATCH, "batch")                                                                              \
    X(TOKENIZER, "tokenizer")                                                                      \
    X(PARSER, "answer parser")                                                                     \
    X(INDEX, "index")                                                                              \
    X(VECTORS, "file of vectors")                                                                  \
    X(SEARCHER, "searcher")

typedef enum km_handle_kind {
#define KM_HANDLE_ENUM(name, text) KM_HANDLE_##name,
    KM_HANDLE_LIST(KM_HANDLE_ENUM)
#undef KM_HANDLE_ENUM
        KM_HANDLE_KINDS
} km_handle_kind;

typedef struct km_handle { /* the first member of such an object */
    struct km_handle *next;
    km_handle_kind kind;
    atomic_int inside; /* calls of several threads; KM_ALONE: of one that wants no other */
} km_handle;

void km_handle_add(km_handle *h, km_handle_kind kind);
/* The object itself, NULL or anything else: false if it was not there; one of two that remove it at once gets true. */
bool km_handle_remove(void *h, km_handle_kind kind);
bool km_handle_is(const void *h, km_handle_kind kind);
/* The same at the beginning of a public call, which otherwise fails: "CALL: this is no open index". */
bool km_handle_open(const char *call, const void *h, km_handle_kind kind);

/* ---- Being held ---- */

typedef struct km_holding { /* by a call, on its stack */
    void *object;           /* NULL: nothing to let go */
    void (*drop)(void *object);
} km_holding;
/* Declares one that is let go where its scope ends. */
#define KM_HOLDING(held) __attribute__((cleanup(km_let_go))) km_holding held = {0}
/* At the beginning of a public call on what many threads use: one user more (an atomic_int at `users` bytes
 * into the object), so that another thread, or a callback, may close it meanwhile; the last user's drop()
 * destroys it. Otherwise the call fails as by km_handle_open. */
bool km_hold(km_holding *held, const char *call, const void *h, km_handle_kind kind, size_t users,
             void (*drop)(void *object));
void km_let_go(km_holding *held);

/* ---- Being inside ---- */

typedef struct km_inside { /* of a call, on its stack; all of a thread form a list */
    km_handle *at;         /* NULL: nothing to leave */
    bool shared;
    void (*drop)(void *object); /* set: it was freed meanwhile, and goes when the call leaves */
    struct km_inside *outer;
} km_inside;
/* Declares one that is left where its scope ends. */
#define KM_INSIDE(in) __attribute__((cleanup(km_leave))) km_inside in = {0}

typedef enum km_entry {
    KM_ENTERED,
    KM_ENTRY_BUSY,  /* another thread is inside */
    KM_ENTRY_CLOSED /* NULL, freed, or no such object */
} km_entry;
/* Enters alone. A thread that is inside already, as a callback is, comes in again, and nothing is left in
 * the end. Nobody waits, and the usual call takes no lock. */
km_entry km_try_enter(km_inside *in, const void *h, km_handle_kind kind);
/* The same at the beginning of a public call, which otherwise fails with KM_ERR_STATE (or of NULL KM_ERR_NULL). */
bool km_enter(km_inside *in, const char *call, const void *h, km_handle_kind kind);
/* Enters beside others that do so; only freeing is refused meanwhile. */
bool km_enter_shared(km_inside *in, const char *call, const void *h, km_handle_kind kind);
void km_leave(km_inside *in);
bool km_is_inside(const void *h); /* this thread is, alone or beside others */
/* Calls drop(object): at once, or when the call that this thread is inside of leaves. An object that another
 * thread is inside of stays as it is, and the error is told. Of what is not there, nothing. */
void km_handle_free(const char *call, void *h, km_handle_kind kind, void (*drop)(void *object));
/* While pinned, whatever is found at h is not freed: for a look of a few instructions from any thread. */
void km_handle_pin(const void *h);
void km_handle_unpin(const void *h);

#endif

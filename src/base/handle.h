/* Objects that callers of kermes.h hold, known by address: one that was freed, or never was what a call
 * takes, is told from one that is there without being looked into. */
#ifndef KM_BASE_HANDLE_H
#define KM_BASE_HANDLE_H
#include "base/error.h"

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
} km_handle;

void km_handle_add(km_handle *h, km_handle_kind kind);
/* The object itself, NULL or anything else: false if it was not there; one of two that remove it at once gets true. */
bool km_handle_remove(void *h, km_handle_kind kind);
bool km_handle_is(const void *h, km_handle_kind kind);
/* The same at the beginning of a public call, which otherwise fails: "CALL: this is no open index". */
bool km_handle_open(const char *call, const void *h, km_handle_kind kind);

#endif

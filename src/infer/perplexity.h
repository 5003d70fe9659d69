/* How well a model predicts a text, window after window. km_perplexity of kermes.h stands on it. */
#ifndef KM_INFER_PERPLEXITY_H
#define KM_INFER_PERPLEXITY_H
#include "base/gate.h"
#include "model/net.h"
#include "token/token.h"

typedef struct km_window_loss {
    int64_t tokens;  /* predicted */
    int64_t windows; /* read */
    double loss;     /* mean of -log p, in nats; perplexity is exp(loss) */
} km_window_loss;

typedef struct km_windows {
    int64_t context; /* tokens of a window */
    int64_t stride;  /* tokens of the text from one to the next; 0: as many as a window has */
    int64_t windows; /* at most this many; 0: all of the text */
    int32_t bos;     /* >= 0: stands before the text of every window, and takes a place */
    bool decode;     /* one token at a time through a session's cache, as when a text is written;
                      * else a window at once, as a prompt is read. Other kernels, other roundings. */
    km_gate *gate;   /* entered for each window; NULL: nobody else uses the net */
    /* Called after each window with the tokens read; returning false stops (KM_ERR_STATE). May be
     * NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    /* Called with the logits (vocab) of each prediction, on the host, and the token that came. May
     * be NULL. */
    km_status (*row)(void *user, const float *logits, int32_t came, km_error *err);
    void *user, *row_user; /* of the two */
} km_windows;

/* A window of a text of `total` tokens: the text's tokens from `begin` up to `end`, of which those from
 * `first` on are predicted; none are, where that is `end`. */
typedef struct km_window {
    int64_t begin, end, first;
    int64_t number; /* from 1; 0: none yet */
} km_window;
/* The next one after *w, which is all zero before the first; false: that was the last. */
bool km_windows_next(const km_windows *o, int64_t total, km_window *w);
/* How many tokens are predicted: the same for every model. */
int64_t km_windows_count(const km_ids *ids, const km_windows *o);

/* Predicts each token of a window from those before it in the window: but for the first, where there is
 * no bos, and for what the window before has predicted. */
km_status km_windows_loss(km_ctx *ctx, km_net *m, const km_ids *ids, const km_windows *o,
                          km_window_loss *out, km_error *err);

#endif

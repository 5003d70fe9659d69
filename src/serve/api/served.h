/* The models of a server. Each is known from the start by name; its weights and its engine's thread come
 * with the first request that names it, and go when it was idle for long enough or another one needs the
 * memory. All of this but the loading itself happens in the loop. */
#ifndef KM_SERVE_API_SERVED_H
#define KM_SERVE_API_SERVED_H
#include "serve/api/keys.h"
#include "serve/scheduler/scheduler.h"
#include <pthread.h>

struct km_api_call;
struct km_serve;

typedef struct km_special { /* a control token's text */
    const char *text;
    size_t bytes;
} km_special;

typedef enum km_served_state {
    KM_SERVED_DOWN,
    KM_SERVED_LOADING, /* a thread opens it */
    KM_SERVED_UP,
    KM_SERVED_CLOSING /* a thread ends it */
} km_served_state;

typedef struct km_served {
    struct km_serve *serve;
    char *path;
    char name[256];     /* as clients know it */
    km_model_info info; /* its texts are what follows, so that they stay when it is down */
    char architecture[64], file_type[64], devices[128];
    int64_t changed;      /* seconds since 1970, of its file */
    int64_t need;         /* bytes of weights and cache, as --memory counts them */
    km_adapter *adapters; /* n_adapters that are opened with it, each `off` unless it is chosen */
    size_t n_adapters, cap_adapters;
    /* While it is up. */
    km_model *model;
    km_scheduler *scheduler;
    km_special *special;
    size_t n_special;
    bool special_first[256]; /* bytes with which one begins */
    /* Of the loop. */
    km_served_state state;
    int users;                /* calls that are under way */
    double used;              /* when the last one ended, or it came up */
    double wanted;            /* since when calls wait for it; 0: none does */
    double keep_alive;        /* seconds without users; < 0: for ever */
    km_scheduler_counts past; /* of its schedulers that are gone */
    /* The thread that loads or ends it. */
    pthread_t thread;
    bool threaded; /* to be joined */
    km_error err;
} km_served;

/* ---- catalogue.c: which there are ---- */

/* Those of the options, and of the folder. A path that is no model is an error; in the folder it is
 * noted and left out. */
km_status km_catalogue_open(struct km_serve *s, km_error *err);
void km_catalogue_reload(struct km_serve *s); /* what is new in the folder */
void km_catalogue_free(struct km_serve *s);
/* By name, its own or an adapter's, as a client writes it; NULL: the default. NULL: there is none. */
km_served *km_served_find(struct km_serve *s, const char *name);
bool km_key_may_use(const km_key *key, const char *model); /* key NULL: yes */

/* ---- adapters.c: LoRAs of the models ---- */

km_status km_adapters_served(struct km_serve *s, km_error *err); /* those of the options */
void km_adapters_forget(km_served *m);
int km_served_adapter(const km_served *m, const char *name, size_t n); /* its number; -1: none */
/* By a worker: those that a request chooses, by its model's name or by its list. */
km_status km_call_adapters(struct km_api_call *c);
const char *km_call_model(const struct km_api_call *c);          /* as the answer names it */
bool km_key_may_use_some(const km_key *key, const km_served *m); /* it, or one of its adapters */

/* ---- served.c: which are up ---- */

km_model *km_served_load(struct km_serve *s, const char *path); /* NULL: km_last_error */
km_status km_served_open(km_served *m, km_error *err);          /* at once, in this thread; then: */
void km_served_up(km_served *m);
/* A call whose request is read finds its model: it goes on to a worker, waits, or is refused. */
void km_served_route(struct km_api_call *c);
void km_served_leave(struct km_api_call *c); /* it is over */
void km_served_tick(struct km_serve *s);
void km_served_stop(struct km_serve *s); /* all engines end; then, once http is gone: */
void km_served_free(struct km_serve *s);
km_scheduler_counts km_served_counts(struct km_serve *s); /* of all together */

#endif

/* kermes serve: a model behind HTTP, in the dialects of OpenAI, Anthropic and Ollama. */
#ifndef KM_SERVE_SERVE_H
#define KM_SERVE_SERVE_H
#include "base/error.h"

typedef struct km_serve km_serve;

typedef struct km_serve_options { /* all-zero but for listen is valid */
    const char *const *listen; /* n_listen addresses: "127.0.0.1:8080", "unix:/run/kermes.sock" */
    int n_listen;
    int first_fd, n_fds;       /* sockets of systemd's socket activation; 0: none */
    const char *const *models; /* n_models paths or names, as km_model_open takes them */
    int n_models;
    const char *const *indexes; /* n_indexes of vectors, NAME=FILE, for /v1/search */
    int n_indexes;
    const char *const *loras; /* n_loras adapters, [MODEL/]NAME=PATH[:SCALE] */
    int n_loras;
    const char *sessions;   /* a folder for those that clients save by name; NULL: none is kept */
    const char *folder;     /* every GGUF file in it is a model too; NULL: none */
    km_model_options model; /* how to open them; progress is the server's */
    const char *name;       /* of a single model, for clients; NULL: the file's */
    const char *keys;       /* a file of hashed keys (docs/serving.md); NULL: no keys */
    const char *log;        /* a file of JSON lines, "-": standard error; NULL: none */
    const char *const *origins; /* n_origins that web pages may call from; "*": all */
    int n_origins;
    const char *const *hosts; /* n_hosts names that requests may address, beside local ones */
    int n_hosts;
    const char *tls_cert, *tls_key;
    int compress;      /* 0: for clients elsewhere that ask for it; 1: for all; 2: for none */
    bool insecure;     /* a public address without keys is fine */
    bool share_cache;  /* prefixes are shared between keys */
    bool log_contents; /* requests with what they say */
    bool no_page;
    const char *web;   /* the folder of the page that runs in browsers; NULL: beside the command */
    bool reproducible; /* an answer never depends on what is in the prefix cache */
    int parallel, kept, queue, connections;
    int responses; /* kept for previous_response_id */
    int64_t context, chunk;
    int64_t reserve; /* tokens to count on for an answer whose length nobody limits; 0: 512 */
    size_t cache_memory, body;
    size_t shelf_bytes;       /* of conversations that left the KV cache; 0: they are dropped */
    const char *shelf_folder; /* a folder on disk for them; NULL: main memory */
    size_t memory;            /* of all models that are loaded, with their caches; 0: no limit */
    double keep_alive;    /* seconds that one of several stays without requests; < 0: for ever */
    double timeout;       /* seconds for one answer; 0: no limit */
    double drain_seconds; /* at most, after SIGTERM: 30 */
    int64_t max_tokens;   /* of an answer that does not say; 0: to the context's end */
} km_serve_options;

km_serve *km_serve_open(const km_serve_options *options, km_error *err);
const char *km_serve_model(const km_serve *s); /* its name, where there is one alone; else NULL */
int km_serve_models(const km_serve *s);        /* how many there are */
int km_serve_port(const km_serve *s);          /* of the first address; 0: a unix socket */
void km_serve_run(km_serve *s);                /* until SIGTERM or SIGINT */
void km_serve_free(km_serve *s);               /* NULL is fine */

/* "90s", "5m", "1h30m", "2.5" (seconds), "-1" (for ever: -1 comes out). False: none of these. */
bool km_serve_duration(const char *text, double *seconds);

/* A line for the file of keys, and the key itself (km_string_free both). */
km_status km_serve_new_key(const char *name, char **key, char **line, km_error *err);

#endif

/* kermes serve: a model behind HTTP, for programs that speak to OpenAI, Anthropic or Ollama. */
#include "cli/cli.h"
#ifdef KERMES_SERVE
#include "cli/use_model.h"
#include "serve/serve.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct serve_settings {
    km_common common;
    km_cli_where where;
    const char *template, *new_key, *keep_alive, *compress, *cache_type;
    km_words models, indexes, loras, listen, origins, hosts;
    km_serve_options o;
    int64_t parallel, kept, queue, connections, responses, cache_mb, body_mb, memory_mb, shelf_mb,
        port;
} serve_settings;

/* Sockets that systemd has opened for us: LISTEN_FDS from descriptor 3 on. */
static void take_activation(km_serve_options *o) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || atol(pid) != (long)getpid()) return;
    o->first_fd = 3;
    o->n_fds = atoi(n) > 0 && atoi(n) <= 8 ? atoi(n) : 0;
}

static int make_key(const char *name) {
    char *key = NULL, *line = NULL;
    km_error err = {0};
    if (km_serve_new_key(name, &key, &line, &err) != KM_OK)
        return km_cli_usage("serve: %s", err.text);
    printf("%s\n", line);
    fprintf(
        stderr,
        "kermes: this line goes into the file for --keys; the key itself, shown only now, is\n%s\n",
        key);
    km_string_free(key);
    km_string_free(line);
    return KM_EXIT_OK;
}

static km_status model_options(const serve_settings *o, km_model_options *m, km_error *err) {
    km_status s = km_cli_where_check(&o->where, err);
    if (s == KM_OK) s = km_cli_model_options(&o->common, &o->where, NULL, m, err);
    if (s == KM_OK) s = km_cli_cache_type(o->cache_type, &m->cache, err);
    m->context = o->o.context;
    m->chat_template = o->template;
    return s; /* one session; the batch has a cache of its own */
}

static int run_server(serve_settings *o) {
    km_error err = {0};
    if (model_options(o, &o->o.model, &err) != KM_OK) return km_cli_usage("serve: %s", err.text);
    km_serve *s = km_serve_open(&o->o, &err);
    if (!s) return km_cli_fail("%s", err.text);
    char what[300], several[40];
    snprintf(several, sizeof several, "%d models", km_serve_models(s));
    snprintf(what, sizeof what, "%s is", km_serve_model(s) ? km_serve_model(s) : "");
    if (!km_serve_model(s)) snprintf(what, sizeof what, "%s are", several);
    const char *at = o->o.n_listen ? o->o.listen[0] : "the given socket";
    if (!o->common.quiet && km_serve_port(s))
        fprintf(stderr, "kermes: %s served at http%s://%.*s:%d/\n", what, o->o.tls_cert ? "s" : "",
                (int)(strrchr(at, ':') - at), at, km_serve_port(s));
    else if (!o->common.quiet)
        fprintf(stderr, "kermes: %s served at %s\n", what, at);
    km_serve_run(s);
    km_serve_free(s);
    return KM_EXIT_OK;
}

int km_command_serve(int argc, char **argv) {
    serve_settings o = {
        .common = KM_COMMON_DEFAULTS, .port = 8080, .parallel = 16, .responses = 1000};
    char address[64];
    const km_option options[] = {
        {"model", KM_OPTION_LIST, "PATH", &o.models, 0, 0,
         "a GGUF file, a Hugging Face folder, or a training run's; also -m; given\nseveral times, each is loaded when a request names it\n(default: the newest in the model folder)"},
        {"models", KM_OPTION_TEXT, "FOLDER", &o.o.folder, 0, 0,
         "every GGUF file in it is a model to be asked for by name"},
        {"keep-alive", KM_OPTION_TEXT, "TIME", &o.keep_alive, 0, 0,
         "of several models, how long one stays loaded without requests: 90s, 5m\n(default), 1h, -1 for ever"},
        {"memory", KM_OPTION_INT, "MB", &o.memory_mb, 1, 1e9,
         "of all models that are loaded, with their caches (default: no limit);\nidle ones go when another needs the room"},
        {"port", KM_OPTION_INT, "N", &o.port, 0, 65535,
         "at 127.0.0.1 (default 8080; 0: any free one)"},
        {"listen", KM_OPTION_LIST, "ADDRESS", &o.listen, 0, 0,
         "HOST:PORT or unix:PATH in place of --port; may be given several times"},
        {"keys", KM_OPTION_TEXT, "FILE", &o.o.keys, 0, 0,
         "only those with a key of this file may ask"},
        {"new-key", KM_OPTION_TEXT, "NAME", &o.new_key, 0, 0,
         "print a line for the file of keys, and a new key"},
        {"insecure", KM_OPTION_FLAG, NULL, &o.o.insecure, 0, 0,
         "a public address without keys is fine"},
        {"allow-host", KM_OPTION_LIST, "NAME", &o.hosts, 0, 0,
         "a name that requests may address without a key (*: any)"},
        {"allow-origin", KM_OPTION_LIST, "URL", &o.origins, 0, 0,
         "web pages from there may ask (*: all)"},
        {"tls-cert", KM_OPTION_TEXT, "FILE", &o.o.tls_cert, 0, 0,
         "serve https with this certificate (PEM)"},
        {"tls-key", KM_OPTION_TEXT, "FILE", &o.o.tls_key, 0, 0, "and this key"},
        {"name", KM_OPTION_TEXT, "NAME", &o.o.name, 0, 0,
         "what clients call the model (default: its file's name)"},
        {"template", KM_OPTION_TEXT, "NAME", &o.template, 0, 0,
         "a built-in chat template (chatml, llama3, mistral, ...)"},
        {"parallel", KM_OPTION_INT, "N", &o.parallel, 1, 4096, "answers made at once (default 16)"},
        {"context", KM_OPTION_INT, "N", &o.o.context, 1, 1e9,
         "tokens of one conversation (default: the model's)"},
        {"cache-memory", KM_OPTION_INT, "MB", &o.cache_mb, 1, 1e9,
         "of keys and values, at most (default: no limit)"},
        {"keep", KM_OPTION_INT, "N", &o.kept, -1, 4096,
         "conversations kept for their next turn (default: as --parallel; -1: none)"},
        {"responses", KM_OPTION_INT, "N", &o.responses, 0, 1e6,
         "answers of /v1/responses kept for their next turn (default 1000)"},
        {"share-cache", KM_OPTION_FLAG, NULL, &o.o.share_cache, 0, 0,
         "what is kept serves all keys"},
        {"second-cache", KM_OPTION_INT, "MB", &o.shelf_mb, 1, 1e9,
         "main memory for conversations that left the KV cache (default: none)"},
        {"cache-disk", KM_OPTION_TEXT, "DIR", &o.o.shelf_folder, 0, 0,
         "keep these in files there instead (4096 MB, or --second-cache)"},
        {"sessions", KM_OPTION_TEXT, "DIR", &o.o.sessions, 0, 0,
         "keep conversations there that clients save by name (/v1/sessions)"},
        {"reserve", KM_OPTION_INT, "N", &o.o.reserve, 1, 1e9,
         "tokens to count on for an answer whose length nobody limits (default 512)"},
        {"reproducible", KM_OPTION_FLAG, NULL, &o.o.reproducible, 0, 0,
         "the same request with the same seed gives the same text, whatever was\n"
         "answered before: answers in the prefix cache are read again"},
        {"chunk", KM_OPTION_INT, "N", &o.o.chunk, 0, 1e6,
         "prompt tokens read in one step (default: chosen)"},
        {"queue", KM_OPTION_INT, "N", &o.queue, 1, 1e6,
         "requests that may wait; more get 429 (default 256)"},
        {"timeout", KM_OPTION_NUMBER, "S", &o.o.timeout, 0, 1e6,
         "seconds for one answer (default: no limit)"},
        {"tokens", KM_OPTION_INT, "N", &o.o.max_tokens, 0, 1e9,
         "of an answer that asks for no number (default: no limit); also -n"},
        {"connections", KM_OPTION_INT, "N", &o.connections, 1, 1e6, "at most (default 10000)"},
        {"index", KM_OPTION_LIST, "NAME=FILE", &o.indexes, 0, 0,
         "an index of vectors to be searched by /v1/search; may be given several\ntimes"},
        {"lora", KM_OPTION_LIST, "NAME=PATH[:SCALE]", &o.loras, 0, 0,
         "an adapter (LoRA) that requests ask for as a model of this name; of several\nmodels MODEL/NAME=PATH; may be given several times"},
        {"compress", KM_OPTION_TEXT, "WHEN", &o.compress, 0, 0,
         "gzip for clients that ask for it: remote (default: not for those on this\nmachine), always, never"},
        {"max-body", KM_OPTION_INT, "MB", &o.body_mb, 1, 4096, "of one request (default 64)"},
        {"drain", KM_OPTION_NUMBER, "S", &o.o.drain_seconds, 0, 1e6,
         "seconds that answers have to end after SIGTERM (default 30)"},
        {"log", KM_OPTION_TEXT, "FILE", &o.o.log, 0, 0,
         "a line of JSON for each request, without its contents (-: stderr)"},
        {"no-page", KM_OPTION_FLAG, NULL, &o.o.no_page, 0, 0,
         "no chat page at / and no status page"},
        {"web", KM_OPTION_TEXT, "FOLDER", &o.o.web, 0, 0,
         "the page that runs in browsers, at /web/ (default: what make wasm made, if\nit is there)"},
        {"cache-type", KM_OPTION_TEXT, "T", &o.cache_type, 0, 0,
         "numbers of the KV cache: f16 (default), f32, bf16, q8_0 or q4_0"},
        KM_OPTION_WHERE_ROWS(o.where),
        KM_OPTION_DEVICE_ROW(o.common, "where to compute (default: auto, a GPU if there is one)"),
        KM_OPTION_THREADS_ROW(o.common),
        KM_OPTION_OUTPUT_ROWS(o.common),
        {0},
    };
    const km_spec spec = {
        .name = "serve",
        .summary = "Serves a model to programs that speak to OpenAI, Anthropic or Ollama.",
        .details =
            "Answers to many users are made together. A chat page is at /, figures at /status\n"
            "and /metrics. Without --keys only this machine can ask.\n",
        .options = options,
        .examples =
            "  kermes serve -m SmolLM2.gguf\n"
            "  kermes serve -m model.gguf --port 9000 --parallel 32 --context 8192\n"
            "  kermes serve --models ~/models --memory 16000 --keep-alive 10m\n"
            "  kermes serve -m model.gguf --lora pirate=pirate-lora/ --lora sql=sql.gguf:0.8\n"
            "  kermes serve --new-key alice >> keys.txt\n"
            "  kermes serve -m model.gguf --listen 0.0.0.0:8080 --keys keys.txt --log -\n"
            "  kermes serve -m model.gguf --listen unix:/run/kermes.sock\n"
            "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\",\n"
            "      \"content\": \"Hello\"}]}'\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words)
        return km_cli_usage("serve: '%.60s' is no option; a model is given by -m", args.words[0]);
    if (o.new_key) return make_key(o.new_key);
    if (o.o.name && (o.models.n > 1 || o.o.folder))
        return km_cli_usage("serve: --name is for a single model; several have their files' names");
    static const char *const when[] = {"remote", "always", "never"};
    while (o.compress && o.o.compress < 3 && strcmp(o.compress, when[o.o.compress]) != 0)
        o.o.compress++;
    if (o.o.compress == 3)
        return km_cli_usage("serve: --compress is remote, always or never, and not '%.40s'",
                            o.compress);
    o.o.keep_alive = 300;
    if (o.keep_alive && !km_serve_duration(o.keep_alive, &o.o.keep_alive))
        return km_cli_usage("serve: --keep-alive is 90s, 5m, 1h or -1, and not '%.40s'",
                            o.keep_alive);
    if (!o.models.n && !o.o.folder) o.models.at[o.models.n++] = "";
    o.o.indexes = o.indexes.at;
    o.o.n_indexes = o.indexes.n;
    o.o.loras = o.loras.at;
    o.o.n_loras = o.loras.n;
    o.o.models = o.models.at;
    o.o.n_models = o.models.n;
    o.o.memory = (size_t)o.memory_mb << 20;
    take_activation(&o.o);
    snprintf(address, sizeof address, "127.0.0.1:%d", (int)o.port);
    if (!o.listen.n && !o.o.n_fds) o.listen.at[o.listen.n++] = address;
    o.o.listen = o.listen.at;
    o.o.n_listen = o.listen.n;
    o.o.origins = o.origins.at;
    o.o.n_origins = o.origins.n;
    o.o.hosts = o.hosts.at;
    o.o.n_hosts = o.hosts.n;
    o.o.parallel = (int)o.parallel;
    o.o.kept = (int)o.kept;
    o.o.queue = (int)o.queue;
    o.o.responses = (int)o.responses;
    o.o.connections = (int)o.connections;
    if (o.o.shelf_folder && !o.shelf_mb) o.shelf_mb = 4096;
    o.o.shelf_bytes = (size_t)o.shelf_mb << 20;
    o.o.cache_memory = (size_t)o.cache_mb << 20;
    o.o.body = (size_t)o.body_mb << 20;
    km_cli_notes(o.common.quiet);
    return run_server(&o);
}

#else

int km_command_serve(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    const km_option options[] = {KM_OPTION_OUTPUT_ROWS(common), {0}};
    const km_spec spec = {
        .name = "serve",
        .summary = "Serves a model to programs that speak to OpenAI, Anthropic or Ollama.",
        .details = "But this build has no server, since libevent was missing.\n",
        .options = options,
        .examples = "  scripts/setup && make\n",
    };
    km_args args;
    int code;
    if (argc > 0 && !km_begin(&spec, 1, argv, &args, &code)) return code;
    return km_cli_fail(
        "this build has no server, since libevent was missing: run scripts/setup (or "
        "install libevent-dev) and build again");
}

#endif

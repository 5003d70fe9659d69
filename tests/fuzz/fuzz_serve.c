/* Fuzzes the server whole, HTTP and JSON: a path and a body, or raw bytes behind a '!', to a server in this process.
 * Every request is answered, never by "internal error", and what says it is JSON is that.
 * seeds: tests/fixtures/http/calls/chat.txt tests/fixtures/http/calls/tools.txt tests/fixtures/http/calls/schema.txt tests/fixtures/http/calls/completions.txt tests/fixtures/http/calls/responses.txt tests/fixtures/http/calls/messages.txt tests/fixtures/http/calls/ollama.txt tests/fixtures/http/calls/embeddings.txt tests/fixtures/http/calls/session.txt tests/fixtures/http/calls/tokens.txt tests/fixtures/http/post.txt
 */
#include "base/text.h"
#include "serve/serve.h"
#include "train/checkpoint.h"
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/kermes-fuzz-XXXXXX", address[64];
static km_serve *server;
static pthread_t thread;

static void *run(void *user) {
    km_serve_run(user);
    return NULL;
}

static void stop(void) {
    kill(getpid(), SIGTERM);
    pthread_join(thread, NULL);
    km_serve_free(server);
    km_folder_remove(folder);
}

static void start(void) {
    static char model[4096], sessions[64];
    const char *models[] = {model}, *listen[] = {address}, *root = getenv("SRC_DIR");
    km_error err = {0};
    if (!mkdtemp(folder)) abort();
    snprintf(model, sizeof model, "%s/models/kermes-tiny.gguf", root ? root : ".");
    snprintf(address, sizeof address, "unix:%s/s", folder);
    snprintf(sessions, sizeof sessions, "%s/kept", folder);
    km_serve_options o = {.listen = listen,
                          .n_listen = 1,
                          .models = models,
                          .n_models = 1,
                          .model = km_model_defaults(),
                          .sessions = sessions,
                          .parallel = 4,
                          .max_tokens = 4,
                          .responses = 20,
                          .timeout = 5};
    o.model.device = "cpu";
    o.model.threads = 1;
    server = km_serve_open(&o, &err);
    if (!server) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    if (pthread_create(&thread, NULL, run, server) != 0 || atexit(stop) != 0) abort();
}

static void check(const char *answer, size_t n, bool whole) {
    const char *body = strstr(answer, "\r\n\r\n");
    if (n == 0 && !whole) return; /* bytes that are no request yet */
    if (strncmp(answer, "HTTP/1.1 ", 9) != 0 || strncmp(answer + 9, "500", 3) == 0 || !body) {
        fprintf(stderr, "%.600s\n", answer);
        __builtin_trap();
    }
    const char *type = strstr(answer, "Content-Type: application/json");
    if (!whole || !type || type > body || strncmp(answer + 9, "100", 3) == 0) return;
    json_t *v = json_loads(body + 4, 0, NULL);
    if (!v) __builtin_trap();
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!server) start();
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", address + 5);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&un, sizeof un) != 0) abort();
    km_text out = {0}, in = {0};
    const uint8_t *line = memchr(data, '\n', size);
    size_t path = line ? (size_t)(line - data) : 0;
    bool whole = path > 0 && data[0] == '/';
    for (size_t i = 0; i < path; i++) whole &= data[i] > ' ' && data[i] < 127;
    if (whole) {
        size_t bytes = size - path - 1;
        km_text_printf(&out, "POST %.*s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                       (int)path, (const char *)data);
        km_text_printf(&out, "Content-Length: %zu\r\n\r\n", bytes);
        km_text_put(&out, (const char *)line + 1, bytes);
    } else {
        km_text_put(&out, (const char *)data, size);
    }
    /* A server that has heard enough may close before all is sent. */
    for (size_t at = 0; at < out.len;) {
        ssize_t k = send(fd, out.data + at, out.len - at, MSG_NOSIGNAL);
        if (k <= 0) break;
        at += (size_t)k;
    }
    if (!whole) shutdown(fd, SHUT_WR);
    char piece[8192];
    for (ssize_t k; (k = recv(fd, piece, sizeof piece, 0)) > 0;) km_text_put(&in, piece, (size_t)k);
    check(km_text_str(&in), in.len, whole);
    close(fd);
    km_text_free(&out);
    km_text_free(&in);
    return 0;
}

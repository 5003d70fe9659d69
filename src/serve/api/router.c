/* Who may ask, and which endpoint answers. In this order: the host (against DNS rebinding), the origin
 * and CORS, the key, then the table of routes. */
#include "serve/api/api.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

typedef enum km_endpoint {
    TO_CHAT,
    TO_COMPLETIONS,
    TO_MESSAGES,
    TO_COUNT,
    TO_RESPONSES,
    TO_EMBEDDINGS,
    TO_RERANK,
    TO_SEARCH,
    TO_SAVE,
    TO_RESTORE,
    TO_OLLAMA_EMBED,
    TO_OLLAMA_EMBED_OLD,
    TO_OLLAMA_CHAT,
    TO_OLLAMA_GENERATE,
    TO_MODELS,
    TO_MODEL,
    TO_RESPONSE,
    TO_INDEXES,
    TO_SESSIONS,
    TO_SESSION,
    TO_TOKENIZE,
    TO_DETOKENIZE,
    TO_TEMPLATE,
    TO_TAGS,
    TO_SHOW,
    TO_PS,
    TO_VERSION,
    TO_HEALTH,
    TO_READY,
    TO_METRICS,
    TO_STATUS,
    TO_OPENAPI,
    TO_PAGE,
    TO_STATUS_PAGE,
    TO_WEB
} km_endpoint;

static const struct km_route_row {
    const char *method, *path; /* "/...": whatever follows the slash */
    km_endpoint to;
    bool open; /* needs no key */
} routes[] = {
    {"POST", "/v1/chat/completions", TO_CHAT, false},
    {"POST", "/v1/completions", TO_COMPLETIONS, false},
    {"POST", "/v1/messages", TO_MESSAGES, false},
    {"POST", "/v1/messages/count_tokens", TO_COUNT, false},
    {"POST", "/api/chat", TO_OLLAMA_CHAT, false},
    {"POST", "/api/generate", TO_OLLAMA_GENERATE, false},
    {"GET", "/v1/models", TO_MODELS, false},
    {"GET", "/v1/models/...", TO_MODEL, false},
    {"GET", "/api/tags", TO_TAGS, false},
    {"POST", "/api/show", TO_SHOW, false},
    {"GET", "/api/ps", TO_PS, false},
    {"GET", "/api/version", TO_VERSION, false},
    {"POST", "/tokenize", TO_TOKENIZE, false},
    {"POST", "/detokenize", TO_DETOKENIZE, false},
    {"POST", "/apply-template", TO_TEMPLATE, false},
    {"POST", "/v1/embeddings", TO_EMBEDDINGS, false},
    {"POST", "/v1/rerank", TO_RERANK, false},
    {"POST", "/v2/rerank", TO_RERANK, false}, /* Cohere's path */
    {"POST", "/v1/search", TO_SEARCH, false},
    {"GET", "/v1/indexes", TO_INDEXES, false},
    {"POST", "/v1/sessions/save", TO_SAVE, false},
    {"POST", "/v1/sessions/restore", TO_RESTORE, false},
    {"GET", "/v1/sessions", TO_SESSIONS, false},
    {"GET", "/v1/sessions/...", TO_SESSION, false},
    {"DELETE", "/v1/sessions/...", TO_SESSION, false},
    {"POST", "/v1/responses", TO_RESPONSES, false},
    {"GET", "/v1/responses/...", TO_RESPONSE, false},
    {"DELETE", "/v1/responses/...", TO_RESPONSE, false},
    {"POST", "/api/embed", TO_OLLAMA_EMBED, false},
    {"POST", "/api/embeddings", TO_OLLAMA_EMBED_OLD, false},
    {"GET", "/metrics", TO_METRICS, false},
    {"GET", "/status.json", TO_STATUS, false},
    {"GET", "/health", TO_HEALTH, true},
    {"GET", "/ready", TO_READY, true},
    {"GET", "/openapi.json", TO_OPENAPI, true},
    {"GET", "/", TO_PAGE, true},
    {"GET", "/status", TO_STATUS_PAGE, true},
    {"GET", "/web/", TO_WEB, true},
    {"GET", "/web/...", TO_WEB, true},
};
enum { N_ROUTES = sizeof routes / sizeof *routes };

/* ---- Who asks ---- */

static bool is_local_name(const char *host, size_t n) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && strncasecmp(host, names[i], n) == 0) return true;
    return false;
}

static size_t host_length(const char *host) {
    const char *end = host[0] == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end - host) + 1 : strcspn(host, ":");
}

/* Without keys, a page of the web that a browser shows could ask us under a name of its own; so only
 * names that are known to be ours are answered. With keys it would lack one. */
static bool host_is_ours(const km_serve *s, const km_http_request *r) {
    const char *host = km_http_header_get(r, "host");
    if (s->keys || s->o.insecure || !host || !*host) return true;
    size_t n = host_length(host);
    if (is_local_name(host, n)) return true;
    for (int i = 0; i < s->o.n_hosts; i++)
        if (strcmp(s->o.hosts[i], "*") == 0 ||
            (strlen(s->o.hosts[i]) == n && strncasecmp(host, s->o.hosts[i], n) == 0))
            return true;
    return false;
}

static bool origin_is_ours(const km_http_request *r, const char *origin) {
    const char *host = km_http_header_get(r, "host"), *scheme = strstr(origin, "://");
    return scheme && host && strcasecmp(scheme + 3, host) == 0;
}

static bool origin_is_allowed(const km_serve *s, const char *origin) {
    for (int i = 0; i < s->o.n_origins; i++)
        if (strcmp(s->o.origins[i], "*") == 0 || strcasecmp(s->o.origins[i], origin) == 0)
            return true;
    return false;
}

/* Pages from elsewhere are answered if the list has them. False: answered already. */
static bool check_origin(km_serve *s, km_exchange *x, const km_http_request *r) {
    const char *origin = km_http_header_get(r, "origin");
    bool preflight = strcmp(r->method, "OPTIONS") == 0;
    if (origin && !origin_is_ours(r, origin)) {
        if (!origin_is_allowed(s, origin)) {
            km_send_error(x, NULL, 403, NULL,
                          "pages from this origin may not ask; --allow-origin lets them");
            return false;
        }
        km_exchange_header(x, "Access-Control-Allow-Origin", origin);
        km_exchange_header(x, "Vary", "Origin");
    }
    if (!preflight) return true;
    km_exchange_header(x, "Allow", "GET, POST, DELETE, OPTIONS");
    if (origin) {
        km_exchange_header(x, "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
        km_exchange_header(
            x, "Access-Control-Allow-Headers",
            "Authorization, Content-Type, X-Api-Key, Anthropic-Version, Anthropic-Beta");
        km_exchange_header(x, "Access-Control-Max-Age", "600");
    }
    km_exchange_send(x, 204, NULL, "", 0);
    return false;
}

static const km_key *find_key(const km_serve *s, const km_http_request *r) {
    const char *bearer = km_http_header_get(r, "authorization"),
               *key = km_http_header_get(r, "x-api-key");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        return km_keys_find(s->keys, bearer + 7 + strspn(bearer + 7, " "));
    return key ? km_keys_find(s->keys, key) : NULL;
}

/* ---- Endpoints ---- */

static const km_dialect *dialect_of(const char *path) {
    if (strncmp(path, "/v1/messages", 12) == 0) return &km_dialect_messages;
    return strncmp(path, "/api/", 5) == 0 ? &km_dialect_ollama_chat : &km_dialect_chat;
}

static void answer_health(km_serve *s, km_exchange *x, bool ready) {
    bool fine = !(ready && s->draining);
    km_send_json(x, fine ? 200 : 503, json_pack("{s:s}", "status", fine ? "ok" : "draining"));
}

/* Does the path match the row's? *rest: what follows, of a row that leaves it open. */
static bool matches(const char *pattern, const char *path, const char **rest) {
    size_t n = strlen(pattern);
    if (n < 4 || strcmp(pattern + n - 4, "/...") != 0) return strcmp(pattern, path) == 0;
    if (strncmp(pattern, path, n - 3) != 0 || !path[n - 3]) return false;
    *rest = path + n - 3;
    return true;
}

static void go(km_serve *s, km_exchange *x, km_endpoint to, const char *rest, const km_key *key) {
    const km_http_request *r = km_exchange_request(x);
    if (s->draining && to <= TO_OLLAMA_GENERATE) {
        km_exchange_header(x, "Retry-After", "5");
        km_send_error(x, dialect_of(r->path), 503, NULL, "the server is about to end");
        return;
    }
    switch (to) {
    case TO_CHAT: km_call_start(s, x, &km_dialect_chat, key); break;
    case TO_COMPLETIONS: km_call_start(s, x, &km_dialect_completions, key); break;
    case TO_MESSAGES: km_call_start(s, x, &km_dialect_messages, key); break;
    case TO_RESPONSES: km_call_start(s, x, &km_dialect_responses, key); break;
    case TO_COUNT: km_call_start(s, x, &km_dialect_count_tokens, key); break;
    case TO_OLLAMA_CHAT: km_call_start(s, x, &km_dialect_ollama_chat, key); break;
    case TO_OLLAMA_GENERATE: km_call_start(s, x, &km_dialect_ollama_generate, key); break;
    case TO_MODELS: km_endpoint_models(s, x, NULL, key); break;
    case TO_MODEL: km_endpoint_models(s, x, rest, key); break;
    case TO_RESPONSE: km_endpoint_response(s, x, rest, key); break;
    case TO_TOKENIZE: km_call_start(s, x, &km_dialect_tokenize, key); break;
    case TO_DETOKENIZE: km_call_start(s, x, &km_dialect_detokenize, key); break;
    case TO_TEMPLATE: km_call_start(s, x, &km_dialect_template, key); break;
    case TO_TAGS: km_endpoint_ollama(s, x, "tags", key); break;
    case TO_SHOW: km_endpoint_ollama(s, x, "show", key); break;
    case TO_PS: km_endpoint_ollama(s, x, "ps", key); break;
    case TO_VERSION: km_endpoint_ollama(s, x, "version", key); break;
    case TO_EMBEDDINGS: km_call_start(s, x, &km_dialect_embeddings, key); break;
    case TO_SEARCH: km_call_start(s, x, &km_dialect_search, key); break;
    case TO_INDEXES: km_endpoint_indexes(s, x); break;
    case TO_SAVE: km_call_start(s, x, &km_dialect_session_save, key); break;
    case TO_RESTORE: km_call_start(s, x, &km_dialect_session_restore, key); break;
    case TO_SESSIONS: km_endpoint_sessions(s, x, NULL, key); break;
    case TO_SESSION: km_endpoint_sessions(s, x, rest, key); break;
    case TO_RERANK: km_call_start(s, x, &km_dialect_rerank, key); break;
    case TO_OLLAMA_EMBED: km_call_start(s, x, &km_dialect_ollama_embed, key); break;
    case TO_OLLAMA_EMBED_OLD: km_call_start(s, x, &km_dialect_ollama_embed_old, key); break;
    case TO_HEALTH: answer_health(s, x, false); break;
    case TO_READY: answer_health(s, x, true); break;
    case TO_METRICS: km_endpoint_metrics(s, x); break;
    case TO_STATUS: km_endpoint_status(s, x); break;
    case TO_OPENAPI: km_endpoint_openapi(s, x); break;
    case TO_PAGE: km_endpoint_page(s, x, false); break;
    case TO_STATUS_PAGE: km_endpoint_page(s, x, true); break;
    case TO_WEB: km_endpoint_web(s, x, rest); break;
    }
}

void km_route(void *serve, km_exchange *x) {
    km_serve *s = serve;
    const km_http_request *r = km_exchange_request(x);
    const struct km_route_row *row = NULL, *other = NULL;
    km_exchange_header(x, "Server", "kermes/" KM_VERSION);
    if (!host_is_ours(s, r)) {
        km_send_error(x, NULL, 421, NULL,
                      "this server does not answer under that host's name; --allow-host lets it");
        return;
    }
    if (!check_origin(s, x, r)) return;
    const char *method = strcmp(r->method, "HEAD") == 0 ? "GET" : r->method;
    const char *rest = NULL;
    for (int i = 0; i < N_ROUTES; i++) {
        if (!matches(routes[i].path, r->path, &rest)) continue;
        other = &routes[i];
        if (strcmp(routes[i].method, method) == 0) row = &routes[i];
    }
    const km_key *key = NULL;
    if (s->keys && !(row && row->open)) {
        key = find_key(s, r);
        if (!key) {
            s->metrics.refused_key++;
            km_exchange_header(x, "WWW-Authenticate", "Bearer");
            km_send_error(x, dialect_of(r->path), 401, NULL,
                          "a valid API key is needed: Authorization: Bearer KEY, or x-api-key");
            return;
        }
    }
    if (!row && other) {
        km_exchange_header(x, "Allow", other->method);
        km_send_error(x, dialect_of(r->path), 405, NULL, "this path takes another method");
    } else if (!row) {
        km_send_error(x, dialect_of(r->path), 404, NULL, "there is nothing at this path");
    } else {
        go(s, x, row->to, rest, key);
    }
}

/* ---- The log ---- */

/* One line of JSON, without what was said. A log that cannot be written is given up, not the server. */
void km_log_end(void *serve, km_exchange *x, int status, uint64_t bytes, double seconds) {
    km_serve *s = serve;
    const km_http_request *r = km_exchange_request(x);
    s->metrics.by_status[status == 499 ? 0 : status / 100 % 6]++;
    if (s->log_fd < 0) return;
    struct timespec now;
    km_text t = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    km_text_printf(&t, "{\"time\":%lld.%03ld,\"peer\":\"%s\",\"method\":", (long long)now.tv_sec,
                   now.tv_nsec / 1000000, km_exchange_peer(x));
    km_put_string0(&t, r->method ? r->method : "");
    km_text_add(&t, ",\"path\":");
    km_put_string0(&t, r->path ? r->path : "");
    km_text_printf(&t, ",\"status\":%d,\"bytes\":%llu,\"seconds\":%.6f}\n", status,
                   (unsigned long long)bytes, seconds);
    if (write(s->log_fd, km_text_str(&t), t.len) < 0 && s->log_fd > 2) {
        close(s->log_fd);
        s->log_fd = -1;
    }
    km_text_free(&t);
}

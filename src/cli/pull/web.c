/* The little of libcurl that pulling needs. */
#include "cli/pull/web.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool km_web_origin(const char *url, char out[300]) {
    size_t scheme = strncasecmp(url, "https://", 8) == 0  ? 8
                    : strncasecmp(url, "http://", 7) == 0 ? 7
                                                          : 0;
    if (!scheme) return false;
    size_t host = strcspn(url + scheme, "/?#");
    const char *at = memchr(url + scheme, '@', host);
    if (at || host == 0 || scheme + host + 8 > 300) return false; /* no names and passwords */
    for (size_t i = 0; i < scheme + host; i++) out[i] = (char)tolower((unsigned char)url[i]);
    out[scheme + host] = 0;
    if (!strchr(out + scheme, ':')) strcat(out, scheme == 8 ? ":443" : ":80");
    return true;
}

#ifndef KERMES_CURL

km_web *km_web_open(const char *token, const char *token_host, km_error *err) {
    (void)token, (void)token_host;
    km_error_set(
        err, KM_ERR_UNSUPPORTED,
        "this build cannot pull: curl/curl.h was missing (apt-get install libcurl4-openssl-dev, "
        "and build again)");
    return NULL;
}
void km_web_close(km_web *h) { (void)h; }
km_status km_web_text(km_web *h, const char *url, size_t most, km_text *out, km_web_head *head,
                      km_error *err) {
    (void)h, (void)url, (void)most, (void)out, (void)head;
    return err->code;
}
km_status km_web_find(km_web *h, const char *url, char **place, km_web_head *head, km_error *err) {
    (void)h, (void)url, (void)place, (void)head;
    return err->code;
}
km_transfer *km_web_start(km_web *h, const char *url, int64_t first, int64_t last, km_web_put put,
                          void *user, km_error *err) {
    (void)h, (void)url, (void)first, (void)last, (void)put, (void)user, (void)err;
    return NULL;
}
km_transfer *km_web_wait(km_web *h) { return (void)h, NULL; }
const km_web_head *km_web_headers(const km_transfer *t) { return (void)t, NULL; }
void *km_web_user(const km_transfer *t) { return (void)t, NULL; }
const char *km_web_failure(const km_transfer *t) { return (void)t, "no libcurl"; }
void km_web_free(km_transfer *t) { (void)t; }
#else
#include "base/alloc.h"
#include "base/log.h"
#include <ctype.h>
#include <curl/curl.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MOST_REDIRECTS = 10, MOST_TRIES = 6 };

typedef struct curl_calls {
    void *handle;
    CURLcode (*global_init)(long);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *, CURLoption, ...);
    CURLcode (*easy_perform)(CURL *);
    CURLcode (*easy_getinfo)(CURL *, CURLINFO, ...);
    void (*easy_cleanup)(CURL *);
    const char *(*easy_strerror)(CURLcode);
    struct curl_slist *(*slist_append)(struct curl_slist *, const char *);
    void (*slist_free_all)(struct curl_slist *);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_add_handle)(CURLM *, CURL *);
    CURLMcode (*multi_remove_handle)(CURLM *, CURL *);
    CURLMcode (*multi_perform)(CURLM *, int *);
    CURLMcode (*multi_wait)(CURLM *, struct curl_waitfd *, unsigned, int, int *);
    CURLMsg *(*multi_info_read)(CURLM *, int *);
    CURLMcode (*multi_cleanup)(CURLM *);
    curl_version_info_data *(*version_info)(CURLversion);
} curl_calls;

struct km_web {
    curl_calls c;
    CURLM *multi;
    char token_host[300]; /* the origin that the token is for; "": no token */
    char *authorization;  /* the header's line; or NULL */
    const char *bundle;   /* the file of certificates to trust; NULL: libcurl's own choice */
};

struct km_transfer {
    km_web *http;
    CURL *easy;
    struct curl_slist *headers;
    km_web_head head;
    km_web_put put;
    void *user;
    int64_t at; /* where the next byte goes */
    char error[CURL_ERROR_SIZE];
    CURLcode result;
    bool added;
};

/* ---- Opening ---- */

static bool find_calls(curl_calls *c) {
    const struct {
        const char *name;
        void *where;
    } wanted[] = {
        {"curl_global_init", &c->global_init},
        {"curl_easy_init", &c->easy_init},
        {"curl_easy_setopt", &c->easy_setopt},
        {"curl_easy_perform", &c->easy_perform},
        {"curl_easy_getinfo", &c->easy_getinfo},
        {"curl_easy_cleanup", &c->easy_cleanup},
        {"curl_easy_strerror", &c->easy_strerror},
        {"curl_slist_append", &c->slist_append},
        {"curl_slist_free_all", &c->slist_free_all},
        {"curl_multi_init", &c->multi_init},
        {"curl_multi_add_handle", &c->multi_add_handle},
        {"curl_multi_remove_handle", &c->multi_remove_handle},
        {"curl_multi_perform", &c->multi_perform},
        {"curl_multi_wait", &c->multi_wait},
        {"curl_multi_info_read", &c->multi_info_read},
        {"curl_multi_cleanup", &c->multi_cleanup},
        {"curl_version_info", &c->version_info},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = dlsym(c->handle, wanted[i].name);
        if (!found) return false;
        memcpy(wanted[i].where, &found, sizeof found);
    }
    return true;
}

/* The certificate bundle: what the environment names; libcurl's own where that file is here; and else
 * the first place in which a distribution keeps one, for a libcurl that was built for another. */
static const char *find_bundle(const curl_calls *c) {
    static const char *const named[] = {"CURL_CA_BUNDLE", "SSL_CERT_FILE"};
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt",                /* Debian, Ubuntu, Arch, Gentoo */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* Fedora, RHEL */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* their newer place */
        "/etc/ssl/ca-bundle.pem",                            /* SUSE */
        "/var/lib/ca-certificates/ca-bundle.pem",            /* its newer place */
        "/etc/ssl/cert.pem",                                 /* Alpine, Void */
    };
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const char *file = getenv(named[i]);
        if (file && *file) return file;
    }
    const curl_version_info_data *about = c->version_info(CURLVERSION_NOW);
    if (about && about->age >= CURLVERSION_SEVENTH && about->cainfo &&
        access(about->cainfo, R_OK) == 0)
        return NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

km_web *km_web_open(const char *token, const char *token_host, km_error *err) {
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl-nss.so.4"};
    km_web *h = km_calloc(1, sizeof *h);
    if (!h) {
        km_error_set(err, KM_ERR_MEMORY, "pull: out of memory");
        return NULL;
    }
    for (int i = 0; i < 3 && !h->c.handle; i++) h->c.handle = dlopen(names[i], RTLD_NOW);
    if (!h->c.handle || !find_calls(&h->c) || h->c.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK ||
        !(h->multi = h->c.multi_init())) {
        km_error_set(err, KM_ERR_UNSUPPORTED,
                     "pull needs libcurl, which is not here (apt-get install libcurl4)");
        km_web_close(h);
        return NULL;
    }
    h->bundle = find_bundle(&h->c);
    if (token && *token && km_web_origin(token_host, h->token_host)) {
        km_text line = {0};
        km_text_printf(&line, "Authorization: Bearer %s", token);
        h->authorization = km_strdup(km_text_str(&line));
        km_text_free(&line);
    }
    return h;
}

void km_web_close(km_web *h) {
    if (!h) return;
    if (h->multi) h->c.multi_cleanup(h->multi);
    km_free(h->authorization);
    km_free(h); /* the library stays: its threads and TLS may outlive us */
}

/* ---- One request ---- */

static void take_range(km_web_head *head, const char *value) {
    long long first, last, total;
    if (sscanf(value, " bytes %lld-%lld/%lld", &first, &last, &total) == 3 && first >= 0 &&
        last >= first && total > last) {
        head->first = first;
        head->total = total;
    }
}

static void take_sum(km_web_head *head, const char *value, size_t n) {
    char sum[65];
    size_t k = 0;
    for (size_t i = 0; i < n && k < 65; i++)
        if (isxdigit((unsigned char)value[i])) sum[k++] = (char)tolower((unsigned char)value[i]);
    if (k != 64) return;
    memcpy(head->sum, sum, 64);
    head->sum[64] = 0;
}

static void take_next(km_web_head *head, const char *value, size_t n) {
    const char *open = memchr(value, '<', n),
               *close = open ? memchr(open, '>', n - (size_t)(open - value)) : NULL;
    if (!close || !memmem(close, n - (size_t)(close - value), "next", 4)) return;
    size_t length = (size_t)(close - open - 1);
    if (length >= sizeof head->next) return;
    memcpy(head->next, open + 1, length);
    head->next[length] = 0;
}

static size_t on_header(char *line, size_t size, size_t count, void *user) {
    km_transfer *t = user;
    size_t n = size * count;
    const char *colon = memchr(line, ':', n);
    if (!colon) return n;
    size_t name = (size_t)(colon - line), rest = n - name - 1;
    char value[1200];
    if (rest < sizeof value) {
        memcpy(value, colon + 1, rest);
        value[rest] = 0;
        if (name == 13 && strncasecmp(line, "Content-Range", 13) == 0) take_range(&t->head, value);
        if (name == 11 && strncasecmp(line, "Retry-After", 11) == 0)
            t->head.retry_after = strtol(value, NULL, 10);
        if (name == 4 && strncasecmp(line, "ETag", 4) == 0 && !t->head.sum[0])
            take_sum(&t->head, value, rest);
        if (name == 13 && strncasecmp(line, "X-Linked-ETag", 13) == 0)
            take_sum(&t->head, value, rest);
        if (name == 4 && strncasecmp(line, "Link", 4) == 0) take_next(&t->head, value, rest);
    }
    return n;
}

static size_t on_body(char *data, size_t size, size_t count, void *user) {
    km_transfer *t = user;
    size_t n = size * count;
    if (t->head.status == 0)
        t->http->c.easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->head.status);
    if (t->head.status / 100 != 2) return n; /* an error's page */
    if (!t->put(t->user, t->at, data, n)) return 0;
    t->at += (int64_t)n;
    return n;
}

static km_transfer *new_transfer(km_web *h, const char *url, const char *range, km_web_put put,
                                 void *user) {
    km_transfer *t = km_calloc(1, sizeof *t);
    char origin[300];
    if (!t) return NULL;
    t->http = h;
    t->put = put;
    t->user = user;
    t->head = (km_web_head){.length = -1, .first = -1, .total = -1};
    t->easy = h->c.easy_init();
    if (!t->easy || !km_web_origin(url, origin)) {
        km_web_free(t);
        return NULL;
    }
    if (h->authorization && strcmp(origin, h->token_host) == 0)
        t->headers = h->c.slist_append(NULL, h->authorization);
    curl_calls *c = &h->c;
    c->easy_setopt(t->easy, CURLOPT_URL, url);
    c->easy_setopt(t->easy, CURLOPT_USERAGENT, "kermes");
    c->easy_setopt(t->easy, CURLOPT_NOSIGNAL, 1L);
    c->easy_setopt(t->easy, CURLOPT_FOLLOWLOCATION, 0L);
    c->easy_setopt(t->easy, CURLOPT_CONNECTTIMEOUT, 20L);
    c->easy_setopt(t->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    c->easy_setopt(t->easy, CURLOPT_LOW_SPEED_TIME, 30L);
    c->easy_setopt(t->easy, CURLOPT_ERRORBUFFER, t->error);
    c->easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers);
    c->easy_setopt(t->easy, CURLOPT_HEADERFUNCTION, on_header);
    c->easy_setopt(t->easy, CURLOPT_HEADERDATA, t);
    c->easy_setopt(t->easy, CURLOPT_WRITEFUNCTION, on_body);
    c->easy_setopt(t->easy, CURLOPT_WRITEDATA, t);
    c->easy_setopt(t->easy, CURLOPT_PRIVATE, t);
    if (range) c->easy_setopt(t->easy, CURLOPT_RANGE, range);
    if (h->bundle) c->easy_setopt(t->easy, CURLOPT_CAINFO, h->bundle);
    return t;
}

static void finish(km_transfer *t, CURLcode result) {
    curl_off_t length = -1;
    t->result = result;
    t->http->c.easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &t->head.status);
    if (t->http->c.easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length) == CURLE_OK)
        t->head.length = length;
}

void km_web_free(km_transfer *t) {
    if (!t) return;
    if (t->added) t->http->c.multi_remove_handle(t->http->multi, t->easy);
    if (t->easy) t->http->c.easy_cleanup(t->easy);
    t->http->c.slist_free_all(t->headers);
    km_free(t);
}

const km_web_head *km_web_headers(const km_transfer *t) { return &t->head; }
void *km_web_user(const km_transfer *t) { return t->user; }

const char *km_web_failure(const km_transfer *t) {
    if (t->result == CURLE_OK) return NULL;
    return t->error[0] ? t->error : t->http->c.easy_strerror(t->result);
}

/* ---- Whole answers ---- */

typedef struct answer_text {
    km_text text;
    size_t most;
} answer_text;

static bool keep_text(void *user, int64_t at, const void *data, size_t n) {
    answer_text *a = user;
    (void)at;
    if (a->text.len + n > a->most) return false;
    km_text_put(&a->text, data, n);
    return km_text_ok(&a->text);
}

static bool keep_nothing(void *user, int64_t at, const void *data, size_t n) {
    (void)user, (void)data;
    return at + (int64_t)n <= 1 << 20; /* a server without ranges sends it all: enough seen */
}

/* The same request to where each redirect points. From https nothing leads to http. */
static km_transfer *follow(km_web *h, char **url, const char *range, km_web_put put, void *user,
                           km_error *err) {
    char sum[65] = ""; /* the hub's own word on the file; what it leads to may not know it */
    for (int i = 0; i <= MOST_REDIRECTS; i++) {
        km_transfer *t = new_transfer(h, *url, range, put, user);
        if (!t) {
            km_error_set(err, KM_ERR_RANGE, "'%.200s' is no http or https address", *url);
            return NULL;
        }
        finish(t, h->c.easy_perform(t->easy));
        char *next = NULL;
        if (t->head.status / 100 == 3) h->c.easy_getinfo(t->easy, CURLINFO_REDIRECT_URL, &next);
        if (sum[0]) memcpy(t->head.sum, sum, sizeof sum);
        if (!next) return t;
        bool down = strncasecmp(*url, "https:", 6) == 0 && strncasecmp(next, "https:", 6) != 0;
        char *copy = down ? NULL : km_strdup(next);
        memcpy(sum, t->head.sum, sizeof sum);
        km_web_free(t);
        if (down) {
            km_error_set(err, KM_ERR_FILE,
                         "%.200s leads to an address without https, which is refused", *url);
            return NULL;
        }
        km_free(*url);
        if (!(*url = copy)) break;
    }
    km_error_set(err, KM_ERR_FILE, "too many redirects");
    return NULL;
}

void km_web_pause(int64_t seconds) {
    if (!getenv("KERMES_PULL_NO_WAIT")) sleep((unsigned)seconds);
}

static void wait_before(int try, int64_t asked, const char *why) {
    int64_t seconds = asked > 0 ? asked : (int64_t)1 << (try > 5 ? 5 : try);
    if (seconds > 300) seconds = 300;
    km_note(KM_LOG_INFO, "%s; trying again in %lld s", why, (long long)seconds);
    km_web_pause(seconds);
}

static km_status status_error(long status, const char *url, bool token, km_error *err) {
    if (status == 401 || status == 403)
        return km_error_set(
            err, KM_ERR_FILE, "%.200s: %s (%ld)", url,
            token ? "the token may not read this: has the licence been accepted there?"
                  : "it needs a token: set HF_TOKEN, or accept its licence first",
            status);
    if (status == 404)
        return km_error_set(err, KM_ERR_FILE, "%.200s: there is no such thing (404)", url);
    return km_error_set(err, KM_ERR_FILE, "%.200s: the server answered %ld", url, status);
}

/* A request that is tried again while the server is busy or the connection fails. *url becomes the
 * place that answered. */
static km_transfer *persist(km_web *h, char **url, const char *range, km_web_put put, void *user,
                            km_error *err) {
    for (int try = 0;; try++) {
        char *place = km_strdup(*url);
        if (!place) return km_error_set(err, KM_ERR_MEMORY, "pull: out of memory"), NULL;
        km_transfer *t = follow(h, &place, range, put, user, err);
        if (!t) {
            km_free(place);
            return NULL;
        }
        long status = t->head.status;
        bool stopped = t->result == CURLE_WRITE_ERROR && status / 100 == 2; /* by us */
        const char *failure = stopped ? NULL : km_web_failure(t);
        bool busy = status == 429 || status / 100 == 5;
        if (!failure && !busy) {
            km_free(*url);
            *url = place;
            return t;
        }
        bool hopeless = t->result == CURLE_PEER_FAILED_VERIFICATION ||
                        t->result == CURLE_UNSUPPORTED_PROTOCOL ||
                        t->result == CURLE_SSL_CACERT_BADFILE;
        if (try + 1 >= MOST_TRIES || hopeless) {
            if (t->result == CURLE_PEER_FAILED_VERIFICATION ||
                t->result == CURLE_SSL_CACERT_BADFILE)
                km_error_set(err, KM_ERR_FILE,
                             "%.200s: its certificate is not trusted (%.100s): is ca-certificates "
                             "installed, and the clock right? SSL_CERT_FILE names a bundle",
                             *url, failure);
            else if (failure)
                km_error_set(err, KM_ERR_FILE, "%.200s: %.200s", *url, failure);
            else
                status_error(status, *url, h->authorization != NULL, err);
            km_web_free(t);
            km_free(place);
            return NULL;
        }
        wait_before(try, t->head.retry_after,
                    failure         ? failure
                    : status == 429 ? "the server asks to wait"
                                    : "the server is busy");
        km_web_free(t);
        km_free(place);
    }
}

km_status km_web_text(km_web *h, const char *url, size_t most, km_text *out, km_web_head *head,
                      km_error *err) {
    answer_text a = {.most = most};
    char *place = km_strdup(url);
    km_transfer *t = place ? persist(h, &place, NULL, keep_text, &a, err) : NULL;
    km_status s = t ? KM_OK : err->code != KM_OK ? err->code : KM_ERR_MEMORY;
    if (t && t->result == CURLE_WRITE_ERROR)
        s = km_error_set(err, KM_ERR_FORMAT, "%.200s: the answer is too long", url);
    else if (t && t->head.status / 100 != 2)
        s = status_error(t->head.status, url, h->authorization != NULL, err);
    if (t && head) *head = t->head;
    if (s == KM_OK) km_text_put(out, km_text_str(&a.text), a.text.len);
    km_text_free(&a.text);
    km_web_free(t);
    km_free(place);
    return s;
}

km_status km_web_find(km_web *h, const char *url, char **place, km_web_head *head, km_error *err) {
    *place = km_strdup(url);
    km_transfer *t = *place ? persist(h, place, "0-0", keep_nothing, NULL, err) : NULL;
    if (!t) return err->code != KM_OK ? err->code : KM_ERR_MEMORY;
    *head = t->head;
    km_web_free(t);
    if (head->status == 416) return KM_OK; /* an empty file has no byte 0 */
    if (head->status / 100 != 2)
        return status_error(head->status, url, h->authorization != NULL, err);
    return KM_OK;
}

/* ---- Several at a time ---- */

km_transfer *km_web_start(km_web *h, const char *url, int64_t first, int64_t last, km_web_put put,
                          void *user, km_error *err) {
    char range[64];
    snprintf(range, sizeof range, "%lld-%lld", (long long)first, (long long)last);
    km_transfer *t = new_transfer(h, url, first < 0 ? NULL : range, put, user);
    if (!t || h->c.multi_add_handle(h->multi, t->easy) != CURLM_OK) {
        km_web_free(t);
        km_error_set(err, KM_ERR_MEMORY, "pull: cannot begin a transfer");
        return NULL;
    }
    t->added = true;
    t->at = first < 0 ? 0 : first;
    return t;
}

km_transfer *km_web_wait(km_web *h) {
    int running = 0, left;
    h->c.multi_perform(h->multi, &running);
    for (CURLMsg *m; (m = h->c.multi_info_read(h->multi, &left));) {
        km_transfer *t = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        CURLcode result = m->data.result;
        h->c.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t);
        finish(t, result);
        return t;
    }
    if (running) h->c.multi_wait(h->multi, NULL, 0, 200, &left);
    return NULL;
}
#endif

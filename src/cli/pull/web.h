/* HTTP for `kermes pull`, by the machine's own libcurl, which is opened when it is needed and by this
 * command alone: its certificates, proxies (https_proxy, no_proxy) and protocols are the machine's.
 * Redirects are followed here and not by libcurl, so that a token stays with the host it is for. */
#ifndef KM_CLI_PULL_WEB_H
#define KM_CLI_PULL_WEB_H
#include "base/error.h"
#include "base/text.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct km_web km_web;
typedef struct km_transfer km_transfer;

km_web *km_web_open(const char *token, const char *token_host, km_error *err); /* token or NULL */
void km_web_close(km_web *h);

/* What a request found before its body; for the last of its redirects. */
typedef struct km_web_head {
    long status;
    int64_t length;       /* of the body; -1: not told */
    int64_t first, total; /* of Content-Range; -1: none */
    int64_t retry_after;  /* seconds; 0: not told */
    char sum[65];         /* X-Linked-ETag or ETag, where it is a SHA-256; "" otherwise */
    char next[1024];      /* the URL of Link: rel="next"; or "" */
} km_web_head;

/* A document of at most `most` bytes. Waits where the server says so, and tries again where it
 * fails. */
km_status km_web_text(km_web *h, const char *url, size_t most, km_text *out, km_web_head *head,
                      km_error *err);
/* Where a file really lies (redirects followed) and how long it is; *url must be freed. Whether the
 * server gives ranges shows in head->status, 206. */
km_status km_web_find(km_web *h, const char *url, char **place, km_web_head *head, km_error *err);

/* ---- Several transfers at a time ---- */

/* Takes bytes of the body, at that place in the file; false: cannot go on. */
typedef bool (*km_web_put)(void *user, int64_t at, const void *data, size_t n);

/* Asks for bytes first .. last of url (first < 0: for all of it), a place that km_web_find gave. */
km_transfer *km_web_start(km_web *h, const char *url, int64_t first, int64_t last, km_web_put put,
                          void *user, km_error *err);
/* Waits until something happens; a transfer that is over, or NULL. */
km_transfer *km_web_wait(km_web *h);
const km_web_head *km_web_headers(const km_transfer *t);
void *km_web_user(const km_transfer *t);
/* Why it did not go through; NULL: it did. Status codes are the caller's to judge. */
const char *km_web_failure(const km_transfer *t);
void km_web_free(km_transfer *t);
/* What a server or a failure asks to wait for; not at all with KERMES_PULL_NO_WAIT. */
void km_web_pause(int64_t seconds);

/* scheme://host:port of a URL, in small letters; false: that is no http or https URL. */
bool km_web_origin(const char *url, char out[300]);

#endif

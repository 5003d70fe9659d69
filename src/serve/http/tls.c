/* TLS by OpenSSL, where the build has libevent's part for it. */
#include "serve/http/internal.h"
#ifdef KERMES_TLS
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

static km_status fail(const char *what, const char *path, km_error *err) {
    char text[200];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    return km_error_set(err, KM_ERR_FILE, "cannot use the %s '%.200s': %s", what, path, text);
}

static km_status read_files(const km_http_options *o, SSL_CTX *ctx, km_error *err) {
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION);
    if (SSL_CTX_use_certificate_chain_file(ctx, o->tls_cert) != 1)
        return fail("certificate", o->tls_cert, err);
    if (SSL_CTX_use_PrivateKey_file(ctx, o->tls_key, SSL_FILETYPE_PEM) != 1)
        return fail("key", o->tls_key, err);
    return SSL_CTX_check_private_key(ctx) == 1 ? KM_OK : fail("key", o->tls_key, err);
}

/* Connections that are open keep the certificate they began with. */
km_status km_http_tls_open(km_http *h, km_error *err) {
    if (!h->options.tls_cert) return KM_OK;
    if (km_openssl_open(err) != KM_OK) return err->code;
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx) return km_error_set(err, KM_ERR_MEMORY, "cannot set up TLS: out of memory");
    ERR_clear_error();
    km_status s = read_files(&h->options, ctx, err);
    if (s != KM_OK) {
        SSL_CTX_free(ctx);
        return s;
    }
    if (h->tls) SSL_CTX_free(h->tls);
    h->tls = ctx;
    return KM_OK;
}

void km_http_tls_close(km_http *h) {
    if (h->tls) SSL_CTX_free(h->tls);
}

struct bufferevent *km_http_bufferevent(km_http *h, int fd) {
    if (!h->tls) return bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    SSL *ssl = SSL_new(h->tls);
    if (!ssl) return NULL;
    struct bufferevent *bev = bufferevent_openssl_socket_new(
        h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) SSL_free(ssl);
    if (bev) bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

#else

km_status km_http_tls_open(km_http *h, km_error *err) {
    if (!h->options.tls_cert) return KM_OK;
    return km_error_set(err, KM_ERR_UNSUPPORTED,
                        "this build has no TLS: install libssl-dev and build again");
}

void km_http_tls_close(km_http *h) { (void)h; }

struct bufferevent *km_http_bufferevent(km_http *h, int fd) {
    return bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
}

#endif

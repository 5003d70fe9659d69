/* OpenSSL opened at run time, for builds that are carried elsewhere (KERMES_TLS_OPENED): systems differ
 * in its version, 1.1 or 3, and keep it up to date themselves. What libevent and tls.c call of it stands
 * here under the same names and passes its arguments on. All of these take at most four integers or
 * pointers and return one or nothing, which travel in registers on x86-64 and on 64-bit ARM. */
#include "serve/http/internal.h"
#ifdef KERMES_TLS_OPENED
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

typedef uintptr_t any_function(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d);

/* clang-format off */
#define NAMES(X) \
    X(BIO_clear_flags) X(BIO_ctrl) X(BIO_free) X(BIO_get_data) X(BIO_get_init) \
    X(BIO_get_shutdown) X(BIO_meth_new) X(BIO_meth_set_create) X(BIO_meth_set_ctrl) \
    X(BIO_meth_set_destroy) X(BIO_meth_set_puts) X(BIO_meth_set_read) X(BIO_meth_set_write) \
    X(BIO_new) X(BIO_new_socket) X(BIO_number_read) X(BIO_number_written) X(BIO_set_data) \
    X(BIO_set_flags) X(BIO_set_init) X(BIO_set_shutdown) X(ERR_clear_error) \
    X(ERR_error_string_n) X(ERR_get_error) X(ERR_peek_error) X(SSL_CTX_check_private_key) \
    X(SSL_CTX_ctrl) X(SSL_CTX_free) X(SSL_CTX_new) X(SSL_CTX_set_options) \
    X(SSL_CTX_use_PrivateKey_file) X(SSL_CTX_use_certificate_chain_file) X(SSL_clear) \
    X(SSL_ctrl) X(SSL_do_handshake) X(SSL_free) X(SSL_get_error) X(SSL_get_rbio) \
    X(SSL_get_shutdown) X(SSL_get_wbio) X(SSL_new) X(SSL_pending) X(SSL_read) X(SSL_renegotiate) \
    X(SSL_set_accept_state) X(SSL_set_bio) X(SSL_set_connect_state) X(SSL_write) \
    X(TLS_server_method)
/* clang-format on */

static struct {
    char why[200];
#define POINTER(name) any_function *name;
    NAMES(POINTER)
} opened;

#define FORWARD(name)                                                                              \
    uintptr_t name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d);                            \
    uintptr_t name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d) {                           \
        return opened.name(a, b, c, d);                                                            \
    }
NAMES(FORWARD)

static void look(void) {
    static const char *const files[] = {"libssl.so.3", "libssl.so.1.1"};
    void *library = NULL;
    for (int i = 0; i < 2 && !library; i++) library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(opened.why, sizeof opened.why,
                 "TLS needs OpenSSL, and libssl.so.3 is not here: apt-get install libssl3");
        return;
    }
    /* A library's symbols are those of what it depends on, too: libcrypto's are found here. */
#define FIND(name)                                                                                 \
    if (!(opened.name = (any_function *)(uintptr_t)dlsym(library, #name)))                         \
        snprintf(opened.why, sizeof opened.why, "TLS: this OpenSSL lacks " #name);
    NAMES(FIND)
}

km_status km_openssl_open(km_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, look);
    return *opened.why ? km_error_set(err, KM_ERR_UNSUPPORTED, "%s", opened.why) : KM_OK;
}

#else

km_status km_openssl_open(km_error *err) {
    (void)err;
    return KM_OK;
}

#endif

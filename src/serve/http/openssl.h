/* Whether OpenSSL can be used: always where it is linked, and where it could be opened otherwise. */
#ifndef KM_SERVE_HTTP_OPENSSL_H
#define KM_SERVE_HTTP_OPENSSL_H
#include "base/error.h"

/* To be called before anything of OpenSSL; any number of times. */
km_status km_openssl_open(km_error *err);

#endif

/* Renderings by Jinja2, read from tests/fixtures/chat (made by scripts/fixtures/make_chat.py). */
#ifndef KM_TESTS_INFER_CHAT_FIXTURES_H
#define KM_TESTS_INFER_CHAT_FIXTURES_H
#include "base/error.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static inline json_t *load_json(const char *path) {
    json_error_t error;
    json_t *j = json_load_file(path, 0, &error);
    if (!j) fail_msg("%s: line %d: %s", path, error.line, error.text);
    return j;
}

static inline json_t *chat_fixture(const char *name) {
    char path[1024];
    const char *root = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/chat/%s", root ? root : ".", name);
    return load_json(path);
}

static inline int use_utc(void **state) { /* dates in fixtures are in it */
    (void)state;
    return setenv("TZ", "UTC", 1);
}

#endif

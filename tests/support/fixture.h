/* Files under tests/fixtures, wherever the tests are run from. */
#ifndef KM_TESTS_SUPPORT_FIXTURE_H
#define KM_TESTS_SUPPORT_FIXTURE_H
#include <stdio.h>
#include <stdlib.h>

/* The path of tests/fixtures/<name><end>, good until the second call from this one. */
static inline const char *fixture(const char *name, const char *end) {
    static char path[2][600];
    static int turn;
    const char *root = getenv("SRC_DIR");
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/tests/fixtures/%s%s", root ? root : ".", name, end);
    return path[turn];
}

#endif

/* A checker of JSON files for the scripts beside it, and the tests of that checker.
 *
 *   test_cli_json_file FILE PATH...     exits with 0 when FILE is one JSON value with all PATHs
 *
 * A path is keys and indices with dots between them: results.0.op. With =TEXT at its end the value
 * must print as TEXT; with :KIND it must be a number, string, boolean, array, object or null. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const json_t *walk(const json_t *v, const char *path, size_t length) {
    while (v && length) {
        size_t n = 0;
        while (n < length && path[n] != '.') n++;
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, strtoul(key, NULL, 10)) : json_object_get(v, key);
        path += n + (n < length);
        length -= n + (n < length);
    }
    return v;
}

static const char *kind(const json_t *v) {
    if (json_is_number(v)) return "number";
    if (json_is_string(v)) return "string";
    if (json_is_boolean(v)) return "boolean";
    if (json_is_array(v)) return "array";
    return json_is_object(v) ? "object" : "null";
}

static bool prints_as(const json_t *v, const char *text) {
    if (json_is_string(v)) return strcmp(json_string_value(v), text) == 0;
    char *dump = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(12));
    bool same = dump && strcmp(dump, text) == 0;
    free(dump);
    return same;
}

static bool holds(const json_t *root, const char *claim) {
    size_t length = strcspn(claim, "=:");
    const json_t *v = walk(root, claim, length);
    if (!v) return false;
    if (claim[length] == '=') return prints_as(v, claim + length + 1);
    return claim[length] != ':' || strcmp(kind(v), claim + length + 1) == 0;
}

static int check_file(int argc, char **argv) {
    json_error_t error;
    json_t *root = json_load_file(argv[1], JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        fprintf(stderr, "%s:%d: %s\n", argv[1], error.line, error.text);
        return 1;
    }
    int wrong = 0;
    for (int i = 2; i < argc; i++)
        if (!holds(root, argv[i])) {
            fprintf(stderr, "%s: not so: %s\n", argv[1], argv[i]);
            wrong++;
        }
    json_decref(root);
    return wrong ? 1 : 0;
}

static void paths_values_and_kinds_are_told_apart(void **state) {
    (void)state;
    json_t *v = json_loads("{\"a\": [1, {\"b\": \"x\"}, 0.5], \"t\": true, \"n\": null}", 0, NULL);
    assert_non_null(v);
    assert_true(holds(v, "a.0=1"));
    assert_true(holds(v, "a.1.b=x"));
    assert_true(holds(v, "a.2=0.5"));
    assert_true(holds(v, "a:array"));
    assert_true(holds(v, "a.1:object"));
    assert_true(holds(v, "t=true"));
    assert_true(holds(v, "n:null"));
    assert_false(holds(v, "a.0=2"));
    assert_false(holds(v, "a.3"));
    assert_false(holds(v, "a.1.c"));
    assert_false(holds(v, "t:string"));
    json_decref(v);
}

int main(int argc, char **argv) {
    if (argc > 1) return check_file(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(paths_values_and_kinds_are_told_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

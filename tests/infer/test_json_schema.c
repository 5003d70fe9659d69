/* Schemas: texts that fit and texts that do not; that whatever a model could write under one is
 * JSON; keywords we do not know. */
#include "base/alloc.h"
#include "infer/json_schema.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

typedef struct schema_case {
    const char *schema;
    const char *fit[10], *unfit[10];
} schema_case;

static const schema_case cases[] = {
    {"{}", {"1", "\"a\"", "{\"a\":[1, {}]}", "null"}, {"", "{a:1}", "[1,]", "nul", "\"a"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"aé漢\\n\\u00e9\"", "\"\\ud83d\\ude00\""},
     {"\"\\q\"", "\"\n\"", "1", "\"\\ud83d\"", "\"a\"b"}},
    {"{\"type\":\"integer\"}", {"0", "-12", "123456"}, {"01", "1.0", "-", "+1", "1e3"}},
    {"{\"type\":\"number\"}", {"0", "-1.5", "2e10", "1E-3"}, {".5", "1.", "00", "e1"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"True", "1"}},
    {"{\"type\":[\"string\",\"null\"]}", {"\"x\"", "null"}, {"1"}},
    {"{\"enum\":[\"red\",2,null,[1,\"x\"]]}",
     {"\"red\"", "2", "null", "[1,\"x\"]"},
     {"\"blue\"", "3"}},
    {"{\"const\":{\"a\":\"q\\\"\\n\"}}", {"{\"a\":\"q\\\"\\n\"}"}, {"{}"}},
    /* objects */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"},\"c\":{}},\"required\":[\"b\"]}",
     {"{\"b\":\"x\"}", "{\"a\":1,\"b\":\"x\"}", "{\"a\": 1, \"b\": \"x\", \"c\": [true]}",
      "{\n  \"b\":\"\"\n}", "{\"b\":\"\",\"c\":1}"},
     {"{}", "{\"a\":1}", "{\"b\":1}", "{\"b\":\"x\",\"a\":1}", "{\"b\":\"x\",}", "{,\"b\":\"x\"}",
      "{\"b\":\"x\",\"d\":1}"}},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}}}", {"{}", "{\"a\":5}"}, {"{\"b\":5}"}},
    {"{\"properties\":{\"ab\":{\"type\":\"integer\"},\"ac\":true},\"additionalProperties\":{\"type\":\"string\"}}",
     {"{}", "{\"ab\":1}", "{\"x\":\"y\"}", "{\"ab\":1,\"abc\":\"y\",\"a\":\"z\"}", "{\"b\":\"\"}"},
     {"{\"ab\":\"x\"}", "{\"x\":1}", "{\"ac\":1,\"ab\":\"s\"}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"a\":1, \"b\":2}"},
     {"{\"a\":\"x\"}"}},
    {"{\"type\":\"object\"}", {"{}", "{\"a\":{\"b\":[]}}"}, {"[]"}},
    {"{\"type\":\"object\",\"required\":[\"z\"]}", {"{\"z\":1}", "{\"z\":[]}"}, {"{}"}},
    {"{\"properties\":{\"q\\\"\\\\\":{\"type\":\"null\"}},\"required\":[\"q\\\"\\\\\"]}",
     {"{\"q\\\"\\\\\":null}"},
     {"{}"}},
    /* arrays */
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}",
     {"[]", "[1]", "[1, 2,3]"},
     {"[,]", "[1 2]", "[\"a\"]"}},
    {"{\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1,2,3]"},
     {"[1]", "[1,2,3,4]", "[]"}},
    {"{\"items\":{\"type\":\"integer\"},\"maxItems\":1}", {"[]", "[1]"}, {"[1,2]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", {"[]"}, {"[1]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}",
     {"[]", "[1]", "[1,\"a\"]"},
     {"[\"a\"]", "[1,\"a\",2]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"string\"},\"minItems\":2}",
     {"[1,\"a\"]", "[1,\"a\",\"b\"]"},
     {"[1]", "[\"a\",\"b\"]"}},
    /* strings */
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"漢é😀\"", "\"\\n\\n\""},
     {"\"a\"", "\"abcd\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+$\"}",
     {"\"AB-1\"", "\"XY-123\""},
     {"\"AB-\"", "\"ab-1\"", "\"AB-1x\""}},
    {"{\"type\":\"string\",\"pattern\":\"b.d\"}",
     {"\"b-d\"", "\"abcde\"", "\"a\\nbxdz\""},
     {"\"bd\"", "\"x\"", "\"b\\nd\""}},
    {"{\"pattern\":\"^(?:a|b\\\\.)*?[^\\\\w\\\"\\\\s]?(x|\\\\\\\\|\\\"|)$\"}",
     {"\"\"", "\"ab.a-x\"", "\"a\\\\\\\\\"", "\"\\\"\""},
     {"\"bx\"", "\"a_\"", "\"  \""}},
    {"{\"format\":\"date\"}", {"\"2024-02-29\""}, {"\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-29T23:59:59Z\"", "\"2024-02-29T00:00:00.25+01:00\""},
     {"\"2024-02-29\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"192.168.0.255\""},
     {"\"256.1.1.1\"", "\"1.2.3\""}},
    {"{\"type\":\"string\",\"format\":\"color\"}", {"\"anything\""}, {"1"}},
    /* numbers */
    {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":17}",
     {"-5", "0", "9", "10", "17"},
     {"-6", "18", "-10", "100", "-0"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":99,\"maximum\":1050}",
     {"100", "999", "1000", "1050"},
     {"99", "1051", "2000", "10"}},
    {"{\"type\":\"integer\",\"minimum\":1}", {"1", "12345"}, {"0", "-1"}},
    {"{\"type\":\"integer\",\"maximum\":-7.5}", {"-8", "-100"}, {"-7", "0", "8"}},
    {"{\"type\":\"number\",\"minimum\":0}", {"0", "1.5"}, {"-1"}},
    /* together */
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"type\":\"null\"}}]}",
     {"1", "[null]"},
     {"\"a\"", "[1]"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"oneOf\":[{\"required\":[\"a\"]},{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":null}", "{\"a\":1,\"b\":null}"},
     {"{}", "{\"b\":1}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"properties\":{\"a\":{\"minimum\":3},\"b\":{\"type\":\"null\"}}}]}",
     {"{\"a\":3}", "{\"a\":10,\"b\":null}"},
     {"{\"a\":2}", "{\"b\":null}"}},
    {"{\"$defs\":{\"p\":{\"type\":\"integer\"}},\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/p\"}}",
     {"[1,2]"},
     {"[\"a\"]"}},
    {"{\"$ref\":\"#/definitions/node\",\"definitions\":{\"node\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
     "\"next\":{\"anyOf\":[{\"$ref\":\"#/definitions/node\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {"{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}}}",
     {"{\"kids\":[{},{\"kids\":[]}]}"},
     {"{\"kids\":[1]}"}},
    {"{\"$defs\":{\"a/b\":{\"type\":\"null\"}},\"items\":{\"$ref\":\"#/$defs/a~1b\",\"description\":\"a note\"}}",
     {"[null]"},
     {"[1]"}},
    {"{\"$defs\":{\"o\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"}}}},\"$ref\":\"#/$defs/o\",\"required\":[\"a\"]}",
     {"{\"a\":null}"},
     {"{}"}},
    {"{\"title\":\"T\",\"description\":\"D\",\"type\":\"null\",\"default\":null}", {"null"}, {"1"}},
};

static int fits(const km_grammar *g, const char *text) {
    km_error err = {0};
    km_guide *m = km_guide_new(g, NULL, &err);
    if (!m) fail_msg("%s", err.text);
    bool whole = km_guide_feed(m, text, strlen(text), &err) == KM_OK && km_guide_may_end(m);
    if (err.code != KM_OK && err.code != KM_ERR_RANGE) fail_msg("%s", err.text);
    km_guide_free(m);
    return whole;
}

static void texts_fit_as_their_schemas_say(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const schema_case *c = &cases[i];
        km_error err = {0};
        km_grammar *g = km_json_schema_grammar(c->schema, strlen(c->schema), &err);
        if (!g) fail_msg("%s\n%s", c->schema, err.text);
        for (int k = 0; c->fit[k]; k++)
            if (!fits(g, c->fit[k])) fail_msg("%s\nshould take %s", c->schema, c->fit[k]);
        for (int k = 0; c->unfit[k]; k++)
            if (fits(g, c->unfit[k])) fail_msg("%s\nshould not take %s", c->schema, c->unfit[k]);
        km_grammar_free(g);
    }
}

/* Bytes one after another, any that may come, until the text may end and a coin says so. */
static void everything_that_fits_is_json(void **state) {
    (void)state;
    uint64_t seed = 3;
    km_span bytes[257];
    char all[256];
    int32_t end = 256;
    km_error err = {0};
    for (int b = 0; b < 256; b++) {
        all[b] = (char)b;
        bytes[b] = (km_span){&all[b], 1};
    }
    bytes[256] = (km_span){0};
    km_trie *t = km_trie_of(bytes, 257, &end, 1, &err);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        km_grammar *g = km_json_schema_grammar(cases[i].schema, strlen(cases[i].schema), &err);
        km_guide *m = km_guide_new(g, t, &err);
        for (int round = 0; round < 20; round++) {
            km_text text = {0};
            km_guide_reset(m);
            for (int n = 0; n < 4000; n++) {
                const uint64_t *mask = km_guide_mask(m, &err);
                if (!mask) fail_msg("%s", err.text);
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                if (km_mask_has(mask, end) && (seed >> 60) < 4) break;
                int32_t id = (int32_t)(seed >> 33) & 255;
                /* Closing brackets and quotes more often than others, or texts would not end. */
                static const char closing[] = "\"]}";
                for (int k = 0; k < 3 && (seed >> 50 & 3); k++)
                    if (km_mask_has(mask, closing[k])) id = closing[k];
                while (id == end || !km_mask_has(mask, id)) {
                    id = (id + 1) % 257;
                    if (id == end && km_mask_has(mask, end)) break;
                }
                if (id == end) break;
                assert_int_equal(km_guide_accept(m, id, &err), KM_OK);
                km_text_put(&text, all + id, 1);
            }
            if (km_guide_may_end(m)) {
                json_error_t wrong;
                json_t *j =
                    json_loadb(km_text_str(&text), text.len,
                               JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &wrong);
                if (!j)
                    fail_msg("%s\ngave %s\nwhich is no JSON: %s", cases[i].schema,
                             km_text_str(&text), wrong.text);
                json_decref(j);
            }
            km_text_free(&text);
        }
        km_guide_free(m);
        km_grammar_free(g);
    }
    km_trie_free(t);
}

static void integers_between_bounds_are_all_there(void **state) {
    (void)state;
    static const int64_t bounds[][2] = {{0, 0},     {0, 9},    {3, 7},      {-3, 3},
                                        {8, 12},    {95, 105}, {-120, -95}, {-15, 1234},
                                        {100, 999}, {199, 201}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        char schema[100], text[24];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%lld,\"maximum\":%lld}",
                 (long long)bounds[i][0], (long long)bounds[i][1]);
        km_error err = {0};
        km_grammar *g = km_json_schema_grammar(schema, strlen(schema), &err);
        if (!g) fail_msg("%s", err.text);
        for (int64_t v = bounds[i][0] - 130; v <= bounds[i][1] + 130; v++) {
            snprintf(text, sizeof text, "%lld", (long long)v);
            if (fits(g, text) != (v >= bounds[i][0] && v <= bounds[i][1]))
                fail_msg("%s: %s", schema, text);
        }
        km_grammar_free(g);
    }
}

static void expect_error(const char *schema, km_status code, const char *part) {
    km_error err = {0};
    km_grammar *g = km_json_schema_grammar(schema, strlen(schema), &err);
    if (g) fail_msg("%.200s: was taken", schema);
    if (err.code != code || !strstr(err.text, part))
        fail_msg("%.200s: \"%s\" lacks \"%s\"", schema, err.text, part);
}

static void what_cannot_be_kept_is_refused_with_its_place(void **state) {
    (void)state;
    expect_error("{\"not\":{}}", KM_ERR_UNSUPPORTED, "at #: 'not' is not supported");
    expect_error("{\"properties\":{\"a\":{\"items\":{\"multipleOf\":2}}}}", KM_ERR_UNSUPPORTED,
                 "at #/a/items: 'multipleOf' is not supported");
    expect_error("{\"type\":\"array\",\"uniqueItems\":true}", KM_ERR_UNSUPPORTED, "'uniqueItems'");
    expect_error("{\"type\":\"number\",\"maximum\":2.5}", KM_ERR_UNSUPPORTED, "bounds of numbers");
    expect_error("{\"pattern\":\"a(?=b)\"}", KM_ERR_UNSUPPORTED, "looking ahead");
    expect_error("{\"pattern\":\"\\\\bx\"}", KM_ERR_UNSUPPORTED, "a boundary");
    expect_error("{\"pattern\":\"^a|b$\"}", KM_ERR_UNSUPPORTED, "put the alternatives in a group");
    expect_error("{\"pattern\":\"(a\"}", KM_ERR_UNSUPPORTED, "a group does not end");
    expect_error("{\"pattern\":\"a)\"}", KM_ERR_UNSUPPORTED, "a bracket fits no other");
    expect_error("{\"pattern\":\"a\",\"minLength\":3}", KM_ERR_UNSUPPORTED,
                 "a length together with a pattern");
    expect_error("{\"$ref\":\"other.json\"}", KM_ERR_UNSUPPORTED, "another document");
    expect_error("{\"$ref\":\"#/nowhere\"}", KM_ERR_UNSUPPORTED, "points to nothing");
    expect_error("{\"$ref\":\"#\"}", KM_ERR_UNSUPPORTED, "begins with itself");
    expect_error("{\"type\":\"thing\"}", KM_ERR_FORMAT, "type is none of JSON's");
    expect_error("{\"minLength\":-1}", KM_ERR_FORMAT, "minLength is no count");
    expect_error("{\"minLength\":3,\"maxLength\":2}", KM_ERR_FORMAT, "below");
    expect_error("{\"maxLength\":1000000}", KM_ERR_RANGE, "beyond 10000");
    expect_error("{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", KM_ERR_FORMAT,
                 "no integer lies between");
    expect_error("{\"enum\":[]}", KM_ERR_FORMAT, "enum is no list");
    expect_error("{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", KM_ERR_UNSUPPORTED,
                 "nothing fits both");
    expect_error("{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", KM_ERR_UNSUPPORTED,
                 "cannot be joined");
    expect_error("{\"properties\":{\"a\":false}}", KM_ERR_UNSUPPORTED, "nothing fits");
    expect_error("[1", KM_ERR_FORMAT, "JSON schema");
    expect_error("3", KM_ERR_FORMAT, "");
}

static void deep_and_endless_schemas_are_bounded(void **state) {
    (void)state;
    km_text t = {0};
    for (int i = 0; i < 500; i++) km_text_add(&t, "{\"items\":");
    km_text_add(&t, "{}");
    for (int i = 0; i < 500; i++) km_text_add(&t, "}");
    expect_error(t.data, KM_ERR_RANGE, "nested too deeply");
    km_text_free(&t);
    expect_error(
        "{\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"$ref\":\"#/$defs/a\"}},\"allOf\":[{\"$ref\":\"#/$defs/a\"}]}",
        KM_ERR_UNSUPPORTED, "circle");
    expect_error("{\"minItems\":1,\"items\":{\"$ref\":\"#\",\"maxItems\":2}}", KM_ERR_RANGE,
                 "nested too deeply");
    /* Two choices in each of two choices, again and again. */
    km_text_add(&t, "{\"type\":\"null\"}");
    for (int i = 0; i < 14; i++) {
        km_text other = {0};
        km_text_printf(&other, "{\"anyOf\":[{\"items\":%s},{\"items\":%s}]}", t.data, t.data);
        km_text_free(&t);
        t = other;
    }
    km_error err = {0};
    km_grammar *g = km_json_schema_grammar(t.data, t.len, &err);
    if (!g) assert_int_equal(err.code, KM_ERR_RANGE);
    km_grammar_free(g);
    km_text_free(&t);
}

static void a_large_schema_makes_a_grammar_of_its_size(void **state) {
    (void)state;
    json_t *schema = json_object(), *properties = json_object();
    for (int i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "member_%d", i);
        json_object_set_new(properties, name,
                            json_pack("{s:s}", "type", i % 2 ? "string" : "integer"));
    }
    json_object_set_new(schema, "properties", properties);
    json_object_set_new(schema, "additionalProperties", json_pack("{s:s}", "type", "null"));
    km_text gbnf = {0};
    km_error err = {0};
    assert_int_equal(km_json_schema_gbnf(schema, &gbnf, &err), KM_OK);
    assert_true(gbnf.len < 200000);
    km_grammar *g = km_grammar_parse(gbnf.data, gbnf.len, &err);
    assert_non_null(g);
    assert_true(fits(g, "{\"member_0\":1,\"member_95\":\"s\",\"x\":null,\"member\":null}"));
    assert_false(fits(g, "{\"x\":null,\"member_0\":1}"));
    assert_false(fits(g, "{\"member_0\":null}"));
    km_grammar_free(g);
    km_text_free(&gbnf);
    json_decref(schema);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fit_as_their_schemas_say),
        cmocka_unit_test(everything_that_fits_is_json),
        cmocka_unit_test(integers_between_bounds_are_all_there),
        cmocka_unit_test(what_cannot_be_kept_is_refused_with_its_place),
        cmocka_unit_test(deep_and_endless_schemas_are_bounded),
        cmocka_unit_test(a_large_schema_makes_a_grammar_of_its_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

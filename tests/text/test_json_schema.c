/* Schemas: texts that fit and texts that do not; that whatever a model could write under one is
 * JSON; keywords we do not know. */
#include "text/schema_texts.h"

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
    /* constants beside other keywords */
    {"{\"type\":\"string\",\"enum\":[\"a\",1,null]}", {"\"a\""}, {"1", "null"}},
    {"{\"enum\":[1,2.0,30],\"type\":\"integer\",\"maximum\":9}", {"1", "2.0"}, {"30"}},
    {"{\"properties\":{\"ab\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"string\"}}",
     {"{\"\\n\":\"x\",\"b\\u0061\":\"y\"}"},
     {"{\"\\u0061b\":\"x\"}", "{\"a\\u0062\":\"x\"}"}},
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
     {"{\"a\":1}", "{\"b\":null}"},
     {"{}", "{\"b\":1}", "{\"a\":1,\"b\":null}"}},
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

static void texts_fit_as_their_schemas_say(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

static void everything_that_fits_is_json(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) write_texts(cases[i].schema, 20);
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
        km_grammar *g = km_json_schema_grammar(schema, strlen(schema), false, &err);
        if (!g) fail_msg("%s", err.text);
        for (int64_t v = bounds[i][0] - 130; v <= bounds[i][1] + 130; v++) {
            snprintf(text, sizeof text, "%lld", (long long)v);
            if (fits(g, text) != (v >= bounds[i][0] && v <= bounds[i][1]))
                fail_msg("%s: %s", schema, text);
        }
        km_grammar_free(g);
    }
}

static void what_cannot_be_kept_is_refused_with_its_place(void **state) {
    (void)state;
    expect_error("{\"not\":{}}", KM_ERR_UNSUPPORTED, "at #: 'not' is not supported");
    expect_error("{\"properties\":{\"a\":{\"items\":{\"multipleOf\":2}}}}", KM_ERR_UNSUPPORTED,
                 "at #/properties/a/items: 'multipleOf' is not supported");
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
    expect_error("{\"type\":\"string\",\"enum\":[1,2]}", KM_ERR_FORMAT,
                 "no value of const or enum");
    expect_error("{\"const\":5,\"maximum\":4}", KM_ERR_FORMAT, "no value of const or enum");
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
    km_grammar *g = km_json_schema_grammar(t.data, t.len, false, &err);
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
    assert_int_equal(km_json_schema_gbnf(schema, false, &gbnf, &err), KM_OK);
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

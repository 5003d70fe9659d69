/* Formats: what they take and refuse; that unknown ones are noted once, and refused when strict. */
#include "text/schema_texts.h"

static const schema_case cases[] = {
    {"{\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"0004-02-29\"", "\"2023-04-30\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-02-30\"", "\"2024-13-01\"",
      "\"24-01-01\"", "\"2024-00-10\"", "\"2024-01-00\"", "\"0000-01-01\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"time\"}",
     {"\"23:59:59Z\"", "\"00:00:00.123456+05:30\""},
     {"\"24:00:00Z\"", "\"12:60:00Z\"", "\"12:00:00\"", "\"12:00Z\"", "\"12:00:00.Z\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-02-29T23:59:59Z\"", "\"2024-02-29T00:00:00.25+01:00\""},
     {"\"2024-02-29\"", "\"2023-02-29T00:00:00Z\"", "\"2024-02-29 00:00:00Z\"",
      "\"2024-02-29T00:00:00\""}},
    {"{\"type\":\"string\",\"format\":\"duration\"}",
     {"\"P1D\"", "\"P3Y6M4DT12H30M5S\"", "\"PT36H\"", "\"P2W\"", "\"PT1M\"", "\"P1M\""},
     {"\"P\"", "\"PT\"", "\"P1\"", "\"P1W2D\"", "\"1D\"", "\"P1DT\"", "\"PT1H5S\"", "\"P1Y1D\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}",
     {"\"a@b.co\"", "\"first.last+tag@sub.example-site.org\"", "\"o'neil@x1.example\""},
     {"\"a\"", "\"@b.co\"", "\"a@\"", "\"a@b\"", "\"a..b@c.de\"", "\".a@c.de\"", "\"a@-b.co\"",
      "\"a b@c.de\"", "\"a@b.c-\"", "\"a@b@c.de\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567\"", "\"123e4567e89b12d3a456426614174000\"",
      "\"123e4567-e89b-12d3-a456-42661417400g\""}},
    {"{\"type\":\"string\",\"format\":\"uuid4\"}",
     {"\"123e4567-e89b-42d3-a456-426614174000\""},
     {"\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567-e89b-42d3-c456-426614174000\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"192.168.0.255\"", "\"0.0.0.0\""},
     {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\"", "\"1.2.3.4.5\""}},
    {"{\"type\":\"string\",\"format\":\"ipv6\"}",
     {"\"::\"", "\"::1\"", "\"2001:db8::8a2e:370:7334\"", "\"1:2:3:4:5:6:7:8\"", "\"1::\"",
      "\"::ffff:192.0.2.1\"", "\"1:2:3:4:5:6:7::\"", "\"1:2:3:4:5:6:10.0.0.1\"", "\"fe80::1:2\""},
     {"\":\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7\"", "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\"",
      "\"g::\"", "\":1\"", "\"1:\"", "\"1:2:3:4:5:6:7::8\"", "\"::1.2.3\""}},
    {"{\"type\":\"string\",\"format\":\"hostname\"}",
     {"\"a\"", "\"localhost\"", "\"www.example.com\"", "\"x-1.example.org\""},
     {"\"\"", "\"-a.com\"", "\"a-.com\"", "\"a..b\"", "\"a_b.com\"", "\"1.2.3.4\"", "\"a.\""}},
    {"{\"type\":\"string\",\"format\":\"uri\"}",
     {"\"https://example.com\"", "\"http://u:p@h.org:8080/a/b%20c?q=1&r=a/b#top\"",
      "\"urn:isbn:0451450523\"", "\"mailto:a@b.co\"", "\"file:///etc\"", "\"ftp://[::1]/x\"",
      "\"http://127.0.0.1:80/\""},
     {"\"example.com\"", "\"/a\"", "\"http://a b\"", "\"http://a/%2\"", "\"1http://a\"",
      "\"http://a/\\\"\"", "\"\"", "\"http://a/{x}\""}},
    {"{\"type\":\"string\",\"format\":\"uri-reference\"}",
     {"\"https://example.com/x\"", "\"/a/b?c#d\"", "\"../up\"", "\"//host/x\"", "\"a/b:c\""},
     {"\"a b\"", "\"1:b\"", "\"%zz\""}},
    {"{\"type\":\"string\",\"format\":\"uri-template\"}",
     {"\"/users/{id}/posts{?page,size*}\"", "\"\""},
     {"\"{\"", "\"/a/{}\"", "\"/a/{b\"", "\"}\""}},
    {"{\"type\":\"string\",\"format\":\"json-pointer\"}",
     {"\"\"", "\"/a/0\"", "\"/a~1b/~0\""},
     {"\"a\"", "\"/~\"", "\"/~2\""}},
    {"{\"type\":\"string\",\"format\":\"relative-json-pointer\"}",
     {"\"0\"", "\"1/a\"", "\"2#\""},
     {"\"/a\"", "\"01\"", "\"1#/a\""}},
    {"{\"type\":\"string\",\"format\":\"byte\"}",
     {"\"\"", "\"QQ==\"", "\"QUI=\"", "\"QUJD\""},
     {"\"Q\"", "\"QUJ\"", "\"Q===\"", "\"QUJD=\"", "\"QR==\""}},
    /* as pydantic writes HttpUrl: the lengths hold by themselves */
    {"{\"format\":\"uri\",\"maxLength\":2083,\"minLength\":1,\"type\":\"string\"}",
     {"\"https://a.example/b\""},
     {"\"\""}},
    {"{\"pattern\":\"^[a-z]{2,4}(-x)?$\",\"minLength\":2,\"maxLength\":6}",
     {"\"ab-x\""},
     {"\"a\""}},
    {"{\"type\":[\"string\",\"null\"],\"format\":\"date\"}", {"null", "\"2024-01-01\""}, {"\"x\""}},
    {"{\"allOf\":[{\"type\":\"string\"},{\"format\":\"ipv4\"}]}", {"\"1.2.3.4\""}, {"\"1.2\""}},
    /* a format is about its own type alone */
    {"{\"type\":\"integer\",\"format\":\"date\"}", {"1"}, {"\"2024-01-01\""}},
    {"{\"type\":\"integer\",\"format\":\"int32\"}",
     {"2147483647", "-2147483648"},
     {"2147483648", "-2147483649"}},
    {"{\"type\":\"integer\",\"format\":\"uint8\",\"minimum\":-5}", {"0", "255"}, {"-1", "256"}},
    {"{\"type\":\"number\",\"format\":\"float\"}", {"-1.5"}, {"1e99"}},
    {"{\"type\":\"number\",\"format\":\"double\"}", {"1e99"}, {"x"}},
    {"{\"type\":\"string\",\"format\":\"password\"}", {"\"anything at all\""}, {"1"}},
};

static void texts_have_the_format_that_is_asked_for(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

static void what_is_written_under_a_format_is_json(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) write_texts(cases[i].schema, 3);
}

static int notes;
static char last_note[400];

static void count_note(void *user, km_log_level level, const char *text) {
    (void)level, (void)user;
    notes++;
    snprintf(last_note, sizeof last_note, "%s", text);
}

static void an_unknown_format_is_noted_once_and_refused_when_strict(void **state) {
    (void)state;
    static const char twice[] =
        "{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"phone\"},"
        "\"b\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"format\":\"phone\"}}}}";
    static const char known[] =
        "{\"properties\":{\"a\":{\"type\":\"string\",\"format\":\"date\"}}}";
    static const char both[] = "{\"format\":\"date\",\"pattern\":\"^2\"}";
    km_error err = {0};
    km_set_log(count_note, NULL);
    notes = 0;
    km_grammar *g = km_json_schema_grammar(twice, strlen(twice), false, &err);
    assert_non_null(g);
    assert_true(fits(g, "{\"a\":\"anything\"}"));
    km_grammar_free(g);
    assert_int_equal(notes, 1);
    assert_non_null(strstr(last_note, "at #/properties/a: format 'phone' is not known here"));
    assert_null(km_json_schema_grammar(twice, strlen(twice), true, &err));
    assert_int_equal(err.code, KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "at #/properties/a: format 'phone' is not known here"));

    err = (km_error){0};
    notes = 0;
    g = km_json_schema_grammar(known, strlen(known), true, &err);
    assert_non_null(g);
    km_grammar_free(g);
    assert_int_equal(notes, 0);
    g = km_json_schema_grammar(both, strlen(both), false, &err);
    assert_non_null(g);
    km_grammar_free(g);
    assert_int_equal(notes, 1);
    assert_non_null(strstr(last_note, "beside a pattern"));
    assert_null(km_json_schema_grammar(both, strlen(both), true, &err));
    km_set_log(NULL, NULL);
}

static void a_format_that_cannot_be_held_is_an_error(void **state) {
    (void)state;
    expect_error("{\"type\":\"string\",\"format\":5}", KM_ERR_FORMAT, "format is no string");
    expect_error("{\"format\":\"date\",\"maxLength\":5}", KM_ERR_UNSUPPORTED, "such a length");
    expect_error("{\"format\":\"email\",\"minLength\":50}", KM_ERR_UNSUPPORTED, "such a length");
    expect_error("{\"allOf\":[{\"format\":\"date\"},{\"format\":\"time\"}]}", KM_ERR_UNSUPPORTED,
                 "cannot be joined");
    expect_error("{\"type\":\"integer\",\"format\":\"int8\",\"minimum\":500}", KM_ERR_FORMAT,
                 "no integer lies between");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_the_format_that_is_asked_for),
        cmocka_unit_test(what_is_written_under_a_format_is_json),
        cmocka_unit_test(an_unknown_format_is_noted_once_and_refused_when_strict),
        cmocka_unit_test(a_format_that_cannot_be_held_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

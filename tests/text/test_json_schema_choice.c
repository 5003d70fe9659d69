/* oneOf: held where branches exclude each other, narrowed where that helps, refused elsewhere with
 * its place; the unions that pydantic and OpenAPI write. */
#include "text/json_schema_choice.h"
#include "text/schema_texts.h"

/* Union[Cat, Dog, Lizard] with Field(discriminator="pet_type"): the tags have defaults, so they are
 * not required, and a text without one would be none of the three. */
static const char pets[] =
    "{\"$defs\":{"
    "\"Cat\":{\"properties\":{\"pet_type\":{\"const\":\"cat\",\"default\":\"cat\",\"title\":\"Pet Type\",\"type\":\"string\"},"
    "\"meows\":{\"title\":\"Meows\",\"type\":\"integer\"}},\"required\":[\"meows\"],\"title\":\"Cat\",\"type\":\"object\"},"
    "\"Dog\":{\"properties\":{\"pet_type\":{\"const\":\"dog\",\"default\":\"dog\",\"title\":\"Pet Type\",\"type\":\"string\"},"
    "\"barks\":{\"title\":\"Barks\",\"type\":\"number\"}},\"required\":[\"barks\"],\"title\":\"Dog\",\"type\":\"object\"},"
    "\"Lizard\":{\"properties\":{\"pet_type\":{\"enum\":[\"reptile\",\"lizard\"],\"title\":\"Pet Type\",\"type\":\"string\"},"
    "\"scales\":{\"title\":\"Scales\",\"type\":\"boolean\"}},\"required\":[\"pet_type\",\"scales\"],\"title\":\"Lizard\",\"type\":\"object\"}},"
    "\"properties\":{\"pet\":{\"discriminator\":{\"mapping\":{\"cat\":\"#/$defs/Cat\",\"dog\":\"#/$defs/Dog\","
    "\"lizard\":\"#/$defs/Lizard\",\"reptile\":\"#/$defs/Lizard\"},\"propertyName\":\"pet_type\"},"
    "\"oneOf\":[{\"$ref\":\"#/$defs/Cat\"},{\"$ref\":\"#/$defs/Dog\"},{\"$ref\":\"#/$defs/Lizard\"}],\"title\":\"Pet\"},"
    "\"n\":{\"title\":\"N\",\"type\":\"integer\"}},\"required\":[\"pet\",\"n\"],\"title\":\"Model\",\"type\":\"object\"}";

/* A union within a union, which pydantic writes out in the mapping; tags that are integers. */
static const char nested[] =
    "{\"$defs\":{"
    "\"Black\":{\"properties\":{\"kind\":{\"const\":\"cat\",\"type\":\"string\"},\"color\":{\"const\":\"black\",\"type\":\"string\"}},\"required\":[\"kind\",\"color\"],\"type\":\"object\"},"
    "\"White\":{\"properties\":{\"kind\":{\"const\":\"cat\",\"type\":\"string\"},\"color\":{\"const\":\"white\",\"type\":\"string\"}},\"required\":[\"kind\",\"color\"],\"type\":\"object\"},"
    "\"Dog\":{\"properties\":{\"kind\":{\"const\":\"dog\",\"type\":\"string\"}},\"required\":[\"kind\"],\"type\":\"object\"}},"
    "\"discriminator\":{\"mapping\":{\"cat\":{\"discriminator\":{\"mapping\":{\"black\":\"#/$defs/Black\",\"white\":\"#/$defs/White\"},\"propertyName\":\"color\"},\"oneOf\":[{\"$ref\":\"#/$defs/Black\"},{\"$ref\":\"#/$defs/White\"}]},\"dog\":\"#/$defs/Dog\"},\"propertyName\":\"kind\"},"
    "\"oneOf\":[{\"discriminator\":{\"mapping\":{\"black\":\"#/$defs/Black\",\"white\":\"#/$defs/White\"},\"propertyName\":\"color\"},\"oneOf\":[{\"$ref\":\"#/$defs/Black\"},{\"$ref\":\"#/$defs/White\"}]},{\"$ref\":\"#/$defs/Dog\"}]}";

static const char numbered[] =
    "{\"$defs\":{\"A\":{\"properties\":{\"v\":{\"const\":1,\"type\":\"integer\"},\"a\":{\"type\":\"string\"}},\"required\":[\"v\",\"a\"],\"type\":\"object\"},"
    "\"B\":{\"properties\":{\"v\":{\"const\":2,\"type\":\"integer\"},\"a\":{\"type\":\"string\"}},\"required\":[\"v\",\"a\"],\"type\":\"object\"}},"
    "\"items\":{\"discriminator\":{\"mapping\":{\"1\":\"#/$defs/A\",\"2\":\"#/$defs/B\"},\"propertyName\":\"v\"},\"oneOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/B\"}]},\"type\":\"array\"}";

/* A tree of expressions: the union contains itself. */
static const char recursive[] =
    "{\"$defs\":{\"Num\":{\"properties\":{\"op\":{\"const\":\"num\",\"default\":\"num\",\"type\":\"string\"},\"value\":{\"type\":\"integer\"}},\"required\":[\"value\"],\"type\":\"object\"},"
    "\"Add\":{\"properties\":{\"op\":{\"const\":\"add\",\"default\":\"add\",\"type\":\"string\"},"
    "\"left\":{\"discriminator\":{\"mapping\":{\"add\":\"#/$defs/Add\",\"num\":\"#/$defs/Num\"},\"propertyName\":\"op\"},\"oneOf\":[{\"$ref\":\"#/$defs/Num\"},{\"$ref\":\"#/$defs/Add\"}]}},"
    "\"required\":[\"left\"],\"type\":\"object\"}},\"$ref\":\"#/$defs/Add\"}";

/* OpenAPI: the property is any string, and the mapping or the schema's name says which. */
static const char openapi[] =
    "{\"components\":{\"schemas\":{"
    "\"Card\":{\"type\":\"object\",\"required\":[\"type\",\"x\"],\"properties\":{\"type\":{\"type\":\"string\"},\"x\":{\"type\":\"integer\"}}},"
    "\"Iban\":{\"type\":\"object\",\"required\":[\"type\",\"x\"],\"properties\":{\"type\":{\"type\":\"string\"},\"x\":{\"type\":\"integer\"}}}}},"
    "\"oneOf\":[{\"$ref\":\"#/components/schemas/Card\"},{\"$ref\":\"#/components/schemas/Iban\"}],"
    "\"discriminator\":{\"propertyName\":\"type\",\"mapping\":{\"visa\":\"Card\",\"master\":\"#/components/schemas/Card\"}}}";

/* A model with a member of most types that pydantic knows. */
static const char model[] =
    "{\"$defs\":{\"Cat\":{\"properties\":{\"pet_type\":{\"const\":\"cat\",\"default\":\"cat\",\"ti"
    "tle\":\"Pet Type\",\"type\":\"string\"},\"age\":{\"title\":\"Age\",\"type\":\"integer\"}},\"re"
    "quired\":[\"age\"],\"title\":\"Cat\",\"type\":\"object\"},\"Color\":{\"enum\":[\"red\",\"blue\""
    "],\"title\":\"Color\",\"type\":\"string\"},\"Dog\":{\"properties\":{\"pet_type\":{\"const\":"
    "\"dog\",\"title\":\"Pet Type\",\"type\":\"string\"},\"name\":{\"title\":\"Name\",\"type\":\"str"
    "ing\"}},\"required\":[\"pet_type\",\"name\"],\"title\":\"Dog\",\"type\":\"object\"}},\"prope"
    "rties\":{\"pet\":{\"discriminator\":{\"mapping\":{\"cat\":\"#/$defs/Cat\",\"dog\":\"#/$def"
    "s/Dog\"},\"propertyName\":\"pet_type\"},\"oneOf\":[{\"$ref\":\"#/$defs/Cat\"},{\"$ref\":\""
    "#/$defs/Dog\"}],\"title\":\"Pet\"},\"pets\":{\"items\":{\"discriminator\":{\"mapping\":{\""
    "cat\":\"#/$defs/Cat\",\"dog\":\"#/$defs/Dog\"},\"propertyName\":\"pet_type\"},\"oneOf\":["
    "{\"$ref\":\"#/$defs/Cat\"},{\"$ref\":\"#/$defs/Dog\"}]},\"title\":\"Pets\",\"type\":\"array"
    "\"},\"d\":{\"format\":\"date\",\"title\":\"D\",\"type\":\"string\"},\"dt\":{\"format\":\"date-ti"
    "me\",\"title\":\"Dt\",\"type\":\"string\"},\"t\":{\"format\":\"time\",\"title\":\"T\",\"type\":\"s"
    "tring\"},\"td\":{\"format\":\"duration\",\"title\":\"Td\",\"type\":\"string\"},\"u\":{\"format"
    "\":\"uuid\",\"title\":\"U\",\"type\":\"string\"},\"u4\":{\"format\":\"uuid4\",\"title\":\"U4\",\"t"
    "ype\":\"string\"},\"e\":{\"format\":\"email\",\"title\":\"E\",\"type\":\"string\"},\"url\":{\"fo"
    "rmat\":\"uri\",\"minLength\":1,\"title\":\"Url\",\"type\":\"string\"},\"ip4\":{\"format\":\"ip"
    "v4\",\"title\":\"Ip4\",\"type\":\"string\"},\"ip6\":{\"format\":\"ipv6\",\"title\":\"Ip6\",\"typ"
    "e\":\"string\"},\"ipa\":{\"format\":\"ipvanyaddress\",\"title\":\"Ipa\",\"type\":\"string\"},"
    "\"c\":{\"$ref\":\"#/$defs/Color\"},\"o\":{\"anyOf\":[{\"format\":\"date\",\"type\":\"string\"}"
    ",{\"type\":\"null\"}],\"default\":null,\"title\":\"O\"},\"b\":{\"format\":\"binary\",\"title\""
    ":\"B\",\"type\":\"string\"},\"b64\":{\"format\":\"base64\",\"title\":\"B64\",\"type\":\"string\""
    "},\"ip6i\":{\"format\":\"ipv6interface\",\"title\":\"Ip6I\",\"type\":\"string\"},\"p\":{\"for"
    "mat\":\"password\",\"title\":\"P\",\"type\":\"string\",\"writeOnly\":true}},\"required\":[\""
    "pet\",\"pets\",\"d\",\"dt\",\"t\",\"td\",\"u\",\"u4\",\"e\",\"url\",\"ip4\",\"ip6\",\"ipa\",\"c\",\"b\",\""
    "b64\",\"ip6i\",\"p\"],\"title\":\"M\",\"type\":\"object\"}";

static const schema_case cases[] = {
    {model, {0}, {"{}", "{\"pet\":{\"age\":1}}"}},
    {pets,
     {"{\"pet\":{\"pet_type\":\"cat\",\"meows\":3},\"n\":1}",
      "{\"pet\":{\"pet_type\":\"dog\",\"barks\":3.5},\"n\":1}",
      "{\"pet\":{\"pet_type\":\"lizard\",\"scales\":true},\"n\":1}"},
     {"{\"pet\":{\"meows\":3},\"n\":1}", "{\"pet\":{\"pet_type\":\"dog\",\"meows\":3},\"n\":1}",
      "{\"pet\":{\"pet_type\":\"fish\",\"scales\":true},\"n\":1}"}},
    {nested,
     {"{\"kind\":\"cat\",\"color\":\"black\"}", "{\"kind\":\"cat\",\"color\":\"white\"}",
      "{\"kind\":\"dog\"}"},
     {"{\"kind\":\"cat\"}", "{\"kind\":\"dog\",\"color\":\"white\"}", "{\"kind\":\"cow\"}"}},
    {numbered, {"[]", "[{\"v\":1,\"a\":\"\"},{\"v\":2,\"a\":\"x\"}]"}, {"[{\"v\":3,\"a\":\"\"}]"}},
    {recursive,
     {"{\"op\":\"add\",\"left\":{\"op\":\"num\",\"value\":1}}",
      "{\"op\":\"add\",\"left\":{\"op\":\"add\",\"left\":{\"op\":\"num\",\"value\":1}}}"},
     {"{\"op\":\"add\",\"left\":{\"value\":1}}", "{\"op\":\"num\",\"left\":{}}"}},
    {openapi,
     {"{\"type\":\"visa\",\"x\":1}", "{\"type\":\"master\",\"x\":1}",
      "{\"type\":\"Iban\",\"x\":1}"},
     {"{\"type\":\"Card\",\"x\":1}", "{\"type\":\"other\",\"x\":1}", "{\"x\":1}"}},
    /* by type, constant, bound, length */
    {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"},{\"type\":[\"integer\",\"boolean\"]}]}",
     {"\"a\"", "null", "1", "true"},
     {"1.5", "[]"}},
    {"{\"oneOf\":[{\"const\":\"a\",\"title\":\"A\"},{\"const\":\"b\"},{\"enum\":[\"c\",1]}]}",
     {"\"a\"", "\"b\"", "\"c\"", "1"},
     {"\"d\""}},
    {"{\"type\":\"integer\",\"oneOf\":[{\"maximum\":5},{\"minimum\":6,\"maximum\":8},{\"exclusiveMinimum\":8}]}",
     {"5", "6", "9"},
     {"5.5"}},
    {"{\"type\":\"string\",\"oneOf\":[{\"maxLength\":2},{\"minLength\":4}]}",
     {"\"ab\"", "\"abcd\""},
     {"\"abc\""}},
    {"{\"type\":\"array\",\"oneOf\":[{\"maxItems\":1},{\"minItems\":2,\"items\":{\"type\":\"null\"}}]}",
     {"[1]", "[null,null]"},
     {"[1,2]"}},
    {"{\"oneOf\":[{\"prefixItems\":[{\"const\":\"a\"}],\"minItems\":1,\"type\":\"array\"},{\"prefixItems\":[{\"const\":\"b\"}],\"minItems\":1,\"type\":\"array\"}]}",
     {"[\"a\"]", "[\"b\",1]"},
     {"[]", "[\"c\"]"}},
    /* by a member that one requires and the other forbids, or does not write */
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"],\"additionalProperties\":false},"
     "{\"type\":\"object\",\"properties\":{\"b\":{}},\"required\":[\"b\"],\"additionalProperties\":false}]}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"]},{\"type\":\"object\",\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}"},
     {"{}", "{\"a\":1,\"b\":1}"}},
    /* either of two members, which is said by what is required */
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":\"null\"}},\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"c\":null}"},
     {"{\"a\":null,\"b\":null}", "{\"c\":null}", "{}"}},
    /* through references, allOf and members of members */
    {"{\"$defs\":{\"base\":{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"required\":[\"k\"]}},"
     "\"oneOf\":[{\"allOf\":[{\"$ref\":\"#/$defs/base\"},{\"properties\":{\"k\":{\"const\":\"x\"}}}]},{\"allOf\":[{\"$ref\":\"#/$defs/base\"},{\"properties\":{\"k\":{\"const\":\"y\"}}}]}]}",
     {"{\"k\":\"x\"}", "{\"k\":\"y\"}"},
     {"{\"k\":\"z\"}"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"m\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}},\"required\":[\"t\"]}},\"required\":[\"m\"]},"
     "{\"type\":\"object\",\"properties\":{\"m\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":2}},\"required\":[\"t\"]}},\"required\":[\"m\"]}]}",
     {"{\"m\":{\"t\":1}}", "{\"m\":{\"t\":2}}"},
     {"{\"m\":{\"t\":3}}"}},
};

static void one_branch_holds_and_no_other(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

static void what_is_written_under_a_choice_is_json(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) write_texts(cases[i].schema, 5);
}

static void branches_that_may_hold_together_are_refused_by_place(void **state) {
    (void)state;
    expect_error(
        "{\"properties\":{\"a\":{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}}}",
        KM_ERR_UNSUPPORTED, "at #/properties/a: oneOf: branches 0 and 1 may hold together");
    expect_error(
        "{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"string\"},{\"type\":\"string\",\"minLength\":2}]}",
        KM_ERR_UNSUPPORTED, "at #: oneOf: branches 1 and 2");
    expect_error(
        "{\"$defs\":{\"A\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"string\"}}},"
        "\"B\":{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"string\"}}}},"
        "\"oneOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/B\"}]}",
        KM_ERR_UNSUPPORTED, "branches 0 (A) and 1 (B) may hold together");
    /* a string is valid where only objects are restricted */
    expect_error("{\"oneOf\":[{\"type\":\"string\"},{\"required\":[\"a\"]}]}", KM_ERR_UNSUPPORTED,
                 "may hold together");
    /* formats are notes to a validator, and 1.0 is 1 */
    expect_error(
        "{\"oneOf\":[{\"type\":\"string\",\"format\":\"date\"},{\"type\":\"string\",\"format\":\"ipv4\"}]}",
        KM_ERR_UNSUPPORTED, "may hold together");
    expect_error("{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", KM_ERR_UNSUPPORTED, "may hold");
    /* an optional tag decides nothing without a discriminator */
    expect_error(
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}}},{\"type\":\"object\",\"properties\":{\"t\":{\"const\":2}}}]}",
        KM_ERR_UNSUPPORTED, "may hold together");
    /* objects that may have more members */
    expect_error(
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"],\"additionalProperties\":true},"
        "{\"type\":\"object\",\"properties\":{\"b\":{}},\"required\":[\"b\"]}]}",
        KM_ERR_UNSUPPORTED, "may hold together");
    expect_error(
        "{\"discriminator\":{\"propertyName\":\"t\"},\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}}},"
        "{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\"}}}]}",
        KM_ERR_UNSUPPORTED, "the discriminator maps no value");
    expect_error(
        "{\"discriminator\":{\"propertyName\":\"t\"},\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":1}}},"
        "{\"type\":\"object\",\"properties\":{\"t\":{\"enum\":[2,1]}}}]}",
        KM_ERR_UNSUPPORTED, "may hold together");
    expect_error("{\"oneOf\":[]}", KM_ERR_UNSUPPORTED, "no list of schemas");
    expect_error("{\"oneOf\":5}", KM_ERR_UNSUPPORTED, "no list of schemas");
}

/* Schemas that contain themselves, and many branches of many branches. */
static void proofs_end_on_hostile_schemas(void **state) {
    (void)state;
    expect_error(
        "{\"$defs\":{\"a\":{\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}},\"$ref\":\"#/$defs/a\"}",
        KM_ERR_UNSUPPORTED, "may hold together");
    expect_error("{\"oneOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", KM_ERR_UNSUPPORTED, "");
    km_text t = {0};
    km_text_add(&t, "{\"oneOf\":[");
    for (int i = 0; i < 60; i++) {
        km_text_printf(&t, "%s{\"anyOf\":[", i ? "," : "");
        for (int k = 0; k < 60; k++)
            km_text_printf(
                &t,
                "%s{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}",
                k ? "," : "");
        km_text_add(&t, "]}");
    }
    km_text_add(&t, "]}");
    expect_error(t.data, KM_ERR_UNSUPPORTED, "may hold together");
    km_text_free(&t);
}

static void fifty_tagged_branches_are_told_apart(void **state) {
    (void)state;
    km_text t = {0};
    km_text_add(&t, "{\"$defs\":{");
    for (int i = 0; i < 50; i++)
        km_text_printf(
            &t,
            "%s\"T%d\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"t%d\"},\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]}",
            i ? "," : "", i, i);
    km_text_add(&t, "},\"discriminator\":{\"propertyName\":\"t\"},\"oneOf\":[");
    for (int i = 0; i < 50; i++)
        km_text_printf(&t, "%s{\"$ref\":\"#/$defs/T%d\"}", i ? "," : "", i);
    km_text_add(&t, "]}");
    km_error err = {0};
    km_grammar *g = km_json_schema_grammar(t.data, t.len, true, &err);
    if (!g) fail_msg("%s", err.text);
    assert_true(fits(g, "{\"t\":\"t49\",\"x\":1}"));
    assert_false(fits(g, "{\"t\":\"t50\",\"x\":1}"));
    assert_false(fits(g, "{\"x\":1}"));
    km_grammar_free(g);
    km_text_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_branch_holds_and_no_other),
        cmocka_unit_test(what_is_written_under_a_choice_is_json),
        cmocka_unit_test(branches_that_may_hold_together_are_refused_by_place),
        cmocka_unit_test(proofs_end_on_hostile_schemas),
        cmocka_unit_test(fifty_tagged_branches_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The template language: every construct against what Jinja2 makes of it, and templates that are
 * wrong, endless, deep or greedy. */
#include "base/alloc.h"
#include "text/chat_fixtures.h"
#include "text/jinja.h"

/* Renders; the text in *out, or the error. */
static km_status render(const char *text, json_t *variables, km_text *out, km_error *err) {
    km_jinja_limits limits = {.now = 1700000000};
    km_jinja *t = km_jinja_parse(text, strlen(text), "template", err);
    if (t) km_jinja_render(t, variables, &limits, out, err);
    km_jinja_free(t);
    return err->code;
}

static void expect_error(const char *text, km_status code, const char *part) {
    km_error err = {0};
    km_text out = {0};
    km_jinja_limits limits = {.steps = 300000, .memory = 32 << 20};
    km_jinja *t = km_jinja_parse(text, strlen(text), "template", &err);
    if (t) km_jinja_render(t, NULL, &limits, &out, &err);
    km_jinja_free(t);
    if (err.code != code || !strstr(err.text, part))
        fail_msg("%.200s: got \"%s\", not one with \"%s\"", text, err.text, part);
    assert_int_equal(out.len, 0);
    km_text_free(&out);
}

static void every_construct_renders_as_in_jinja2(void **state) {
    (void)state;
    json_t *f = chat_fixture("language.json"), *cases = json_object_get(f, "cases");
    assert_true(json_array_size(cases) > 600);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        const char *text = json_string_value(json_object_get(c, "text"));
        json_t *is = json_object_get(c, "is");
        km_text out = {0};
        km_error err = {0};
        render(text, json_object_get(f, "variables"), &out, &err);
        if (is && err.code) fail_msg("%s\nfails: %s", text, err.text);
        if (!is && !err.code)
            fail_msg("%s\ngives \"%s\", but Jinja2 refuses it", text, km_text_str(&out));
        if (is && (out.len != json_string_length(is) ||
                   memcmp(km_text_str(&out), json_string_value(is), out.len) != 0))
            fail_msg("%s\ngives \"%s\",\nJinja2 \"%s\"", text, km_text_str(&out),
                     json_string_value(is));
        if (!is && !strstr(err.text, "template, line "))
            fail_msg("%s: no line in \"%s\"", text, err.text);
        km_text_free(&out);
    }
    json_decref(f);
}

static void errors_name_the_line_and_what_is_wrong(void **state) {
    (void)state;
    expect_error("a\nb\n{{ 1 + }}", KM_ERR_FORMAT, "template, line 3: an expression is missing");
    expect_error("a\n{% if x %}\nb", KM_ERR_FORMAT,
                 "line 2: the block that begins here lacks its {% endif %}");
    expect_error("{{ 1 }}\n{{ 'x'|frobnicate }}", KM_ERR_UNSUPPORTED,
                 "line 2: the filter 'frobnicate' is not supported");
    expect_error("{{ 1 is frob }}", KM_ERR_UNSUPPORTED, "the test 'frob' is not supported");
    expect_error("\n\n{% include 'x' %}", KM_ERR_UNSUPPORTED,
                 "line 3: the statement {% include %} is not supported");
    expect_error("{% for i in x recursive %}{% endfor %}", KM_ERR_UNSUPPORTED,
                 "recursive loops are not supported");
    expect_error("{{ f(*x) }}", KM_ERR_UNSUPPORTED, "* and ** are not supported");
    expect_error("{{ {}.update({}) }}", KM_ERR_UNSUPPORTED, "dict.update is not supported");
    expect_error("{{\n\nfoo.bar }}", KM_ERR_FORMAT, "line 3: 'foo' is undefined");
    expect_error("{{ 'a' + 1 }}", KM_ERR_FORMAT, "str + int is not possible");
    expect_error("{{ raise_exception('No tools, please.') }}", KM_ERR_STATE,
                 "refuses this conversation: No tools, please.");
    expect_error("{{ 99999999999999999999 }}", KM_ERR_FORMAT, "does not fit in 64 bits");
    expect_error("{{ 9223372036854775807 + 1 }}", KM_ERR_RANGE, "does not fit in 64 bits");
    expect_error("a\n\xff", KM_ERR_FORMAT, "line 2: the template is not valid UTF-8");
}

static void endless_and_greedy_templates_are_stopped(void **state) {
    (void)state;
    expect_error("{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}"
                 "{% endfor %}{% endfor %}{% endfor %}",
                 KM_ERR_RANGE, "runs for too long");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", KM_ERR_RANGE,
                 "nested more than");
    expect_error("{% macro f(x=f()) %}{% endmacro %}{{ f() }}", KM_ERR_RANGE, "nested more than");
    expect_error("{{ 'x' * 1000000000 }}", KM_ERR_RANGE, "too long");
    expect_error("{{ [1] * 1000000000 }}", KM_ERR_RANGE, "");
    expect_error("{{ range(1000000000)|list }}", KM_ERR_RANGE, "more than 100000 numbers");
    expect_error("{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(60) %}"
                 "{% set ns.s = ns.s + ns.s %}{% endfor %}",
                 KM_ERR_RANGE, "");
    expect_error("{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
                 KM_ERR_RANGE, "");
    expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", KM_ERR_RANGE,
                 "nested more than");
    expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", KM_ERR_RANGE,
                 "nested more than");
    expect_error(
        "{% set l = [] %}{% set _ = l.append(l) %}{% set k = [] %}{% set _ = k.append(k) %}"
        "{{ l == k }}",
        KM_ERR_RANGE, "nested more than");
    expect_error("{{ 2 ** 100000 }}", KM_ERR_RANGE, "64 bits");
}

/* n times `open`, then `middle`, then n times `close`. */
static char *nest(const char *open, const char *middle, const char *close, int n) {
    km_text t = {0};
    for (int i = 0; i < n; i++) km_text_add(&t, open);
    km_text_add(&t, middle);
    for (int i = 0; i < n; i++) km_text_add(&t, close);
    assert_true(km_text_ok(&t));
    return t.data;
}

static void deep_templates_are_refused_and_long_ones_are_not(void **state) {
    (void)state;
    static const struct {
        const char *before, *open, *middle, *close, *after;
    } deep[] = {
        {"{{ ", "(", "1", ")", " }}"},
        {"{{ ", "[", "1", "]", " }}"},
        {"{{ ", "{1:", "1", "}", " }}"},
        {"{{ ", "not ", "1", "", " }}"},
        {"{{ ", "-", "1", "", " }}"},
        {"{{ ", "a[", "1", "]", " }}"},
        {"{{ ", "f(", "1", ")", " }}"},
        {"{{ x", "|abs", "", "", " }}"},
        {"{{ x", ".y", "", "", " }}"},
        {"{{ ", "1 if ", "1", " else 2", " }}"},
        {"", "{% if 1 %}", "", "{% endif %}", ""},
        {"", "{% for i in x %}", "", "{% endfor %}", ""},
        {"{% set ", "(", "a", ")", " = 1 %}"},
        {"{{ ", "1 * ", "1", "", " }}"},
        {"{{ ", "a and ", "1", "", " }}"},
    };
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *inside = nest(deep[i].open, deep[i].middle, deep[i].close, 50000);
        km_text t = {0};
        km_text_printf(&t, "%s%s%s", deep[i].before, inside, deep[i].after);
        km_error err = {0};
        km_jinja *j = km_jinja_parse(t.data, t.len, "template", &err);
        assert_null(j);
        assert_non_null(strstr(err.text, "nested"));
        km_text_free(&t);
        km_free(inside);
    }
    km_text t = {0}, out = {0};
    km_error err = {0};
    km_text_add(&t, "{{ 'a'");
    for (int i = 0; i < 2000; i++) km_text_add(&t, " + 'b'");
    km_text_add(&t, " }}{% if 0 %}");
    for (int i = 0; i < 2000; i++) km_text_add(&t, "{% elif 0 %}");
    km_text_add(&t, "{% else %}!{% endif %}");
    assert_int_equal(render(t.data, NULL, &out, &err), KM_OK);
    assert_int_equal(out.len, 2002);
    km_text_free(&t);
    km_text_free(&out);
}

static void a_template_tells_what_it_reads(void **state) {
    (void)state;
    km_error err = {0};
    static const char text[] =
        "{% for m in messages %}{{ m.tools }}{% endfor %}{{ enable_thinking }}";
    km_jinja *t = km_jinja_parse(text, strlen(text), "template", &err);
    assert_non_null(t);
    assert_true(km_jinja_reads(t, "messages"));
    assert_true(km_jinja_reads(t, "enable_thinking"));
    assert_false(km_jinja_reads(t, "tools"));
    km_jinja_free(t);
}

static void lists_can_be_built_by_append(void **state) {
    (void)state;
    km_text out = {0};
    km_error err = {0};
    static const char text[] =
        "{% set l = [] %}{% for i in range(3) %}{% set _ = l.append(i * i) %}{% endfor %}{{ l }}"
        "{% do l.append('x') %}{{ l|length }}";
    assert_int_equal(render(text, NULL, &out, &err), KM_OK);
    assert_string_equal(km_text_str(&out), "[0, 1, 4]4");
    km_text_free(&out);
}

static void running_out_of_memory_is_an_error_without_a_leak(void **state) {
    (void)state;
    static const char text[] =
        "{% macro f(a) %}{{ a|tojson(indent=2) }}{% endmacro %}"
        "{% for i in range(40) %}{{ f({'k': [i, 'text ' ~ i]}) }}{% endfor %}";
    for (int64_t nth = 0;; nth++) {
        km_text out = {0};
        km_error err = {0};
        int64_t live = km_alloc_live();
        km_alloc_fail_nth(nth);
        km_status status = render(text, NULL, &out, &err);
        km_alloc_fail_nth(-1);
        km_text_free(&out);
        assert_int_equal(km_alloc_live(), live);
        if (status == KM_OK) {
            assert_true(nth > 5);
            break;
        }
        assert_int_equal(status, KM_ERR_MEMORY);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_construct_renders_as_in_jinja2),
        cmocka_unit_test(errors_name_the_line_and_what_is_wrong),
        cmocka_unit_test(endless_and_greedy_templates_are_stopped),
        cmocka_unit_test(deep_templates_are_refused_and_long_ones_are_not),
        cmocka_unit_test(a_template_tells_what_it_reads),
        cmocka_unit_test(lists_can_be_built_by_append),
        cmocka_unit_test(running_out_of_memory_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, use_utc, NULL);
}

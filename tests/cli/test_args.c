/* The parser of command lines. It belongs to the command, not to the library, so it is compiled
 * into this test. */
#include "cli/args.c"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool quick;
static int64_t threads;
static double rate;
static const char *html, *device;
static km_sizes sizes;
static km_words data;

static const km_option options[] = {
    {"quick", KM_OPTION_FLAG, NULL, &quick, 0, 0, "fewer rounds"},
    {"threads", KM_OPTION_INT, "N", &threads, 0, 64, "threads\non the CPU"},
    {"seed", KM_OPTION_INT, "N", &threads, 0, 0, "any number"},
    {"rate", KM_OPTION_NUMBER, "X", &rate, 0.5, 2, "a number"},
    {"html", KM_OPTION_TEXT, "FILE", &html, 0, 0, "a file"},
    {"device", KM_OPTION_DEVICE, "NAME", &device, 0, 0, "where"},
    {"sizes", KM_OPTION_SIZES, "LIST", &sizes, 1, 1 << 30, "sizes"},
    {"data", KM_OPTION_LIST, "FILE", &data, 0, 0, "files"},
    {0},
};
static const km_spec spec = {.name = "bench",
                             .words = "[SUITE ...]",
                             .summary = "Measures.",
                             .options = options,
                             .examples = "kermes bench\nkermes bench --quick\n"};

static km_args args;
static km_error err;

/* Parses up to eight arguments, NULL-terminated by the macro. */
static km_status parse_line(const km_spec *s, const char *const *line) {
    char *argv[9];
    int argc = 0;
    while (line[argc]) {
        argv[argc] = (char *)line[argc];
        argc++;
    }
    err = (km_error){0};
    return km_args_parse(s, argc, argv, &args, &err);
}
#define PARSE(...) parse_line(&spec, (const char *const[]){__VA_ARGS__, NULL})

/* The line is refused, and the message names `part`. */
#define REFUSED(part, ...)                                                                         \
    do {                                                                                           \
        assert_int_not_equal(PARSE(__VA_ARGS__), KM_OK);                                           \
        if (!strstr(err.text, part)) fail_msg("'%s' does not say '%s'", err.text, part);           \
        assert_null(strchr(err.text, '\n'));                                                       \
    } while (0)

static int reset(void **state) {
    (void)state;
    quick = false;
    threads = 0;
    rate = 1;
    html = NULL;
    device = "auto";
    sizes = (km_sizes){.n = 0};
    return 0;
}

static void values_come_after_a_space_or_an_equals_sign(void **state) {
    (void)state;
    assert_int_equal(PARSE("--threads", "4", "--html=a=b.html", "--quick", "--rate=1.5"), KM_OK);
    assert_int_equal(threads, 4);
    assert_string_equal(html, "a=b.html");
    assert_true(quick);
    assert_true(rate == 1.5);
    assert_int_equal(args.n_words, 0);
}

static void words_mix_with_options_and_may_follow_two_dashes(void **state) {
    (void)state;
    assert_int_equal(PARSE("matmul", "--quick", "rows", "--", "--odd-name"), KM_OK);
    assert_int_equal(args.n_words, 3);
    assert_string_equal(args.words[0], "matmul");
    assert_string_equal(args.words[1], "rows");
    assert_string_equal(args.words[2], "--odd-name");
}

static void the_last_of_two_equal_options_counts(void **state) {
    (void)state;
    assert_int_equal(PARSE("--threads", "1", "--threads", "2"), KM_OK);
    assert_int_equal(threads, 2);
}

static void an_unknown_option_is_refused_with_the_nearest_known_one(void **state) {
    (void)state;
    REFUSED("no option --quik; did you mean --quick?", "--quik");
    REFUSED("--thraeds; did you mean --threads?", "--thraeds=4");
    REFUSED("--dev; did you mean --device?", "--dev", "cpu");
    REFUSED("'kermes bench --help'", "--zzzzzz");
    REFUSED("two dashes", "-q");
}

static void a_missing_or_needless_value_is_refused(void **state) {
    (void)state;
    REFUSED("--threads needs a value", "--threads");
    REFUSED("--html needs a value", "--html", "--quick");
    REFUSED("--html needs a value", "--html=");
    REFUSED("--quick takes no value", "--quick=yes");
}

static void numbers_are_checked_to_the_last_letter(void **state) {
    (void)state;
    REFUSED("whole number", "--threads", "4x");
    REFUSED("whole number", "--threads", "");
    REFUSED("whole number", "--threads", "1.5");
    REFUSED("between 0 and 64", "--threads", "65");
    REFUSED("between 0 and 64", "--threads", "-1");
    REFUSED("too large", "--seed", "99999999999999999999");
    REFUSED("takes a number", "--rate", "nan");
    REFUSED("takes a number", "--rate", "fast");
    REFUSED("between 0.5 and 2", "--rate", "0.4");
    assert_int_equal(threads, 0); /* nothing was stored */
}

static void sizes_take_binary_suffixes(void **state) {
    (void)state;
    assert_int_equal(PARSE("--sizes", "128,1K,64M,1G"), KM_OK);
    assert_int_equal(sizes.n, 4);
    assert_int_equal(sizes.value[0], 128);
    assert_int_equal(sizes.value[1], 1024);
    assert_int_equal(sizes.value[2], 64 << 20);
    assert_int_equal(sizes.value[3], 1 << 30);
    REFUSED("128,1K,64M", "--sizes", "1,,2");
    REFUSED("128,1K,64M", "--sizes", "1,");
    REFUSED("128,1K,64M", "--sizes", "1T");
    REFUSED("128,1K,64M", "--sizes", "99999999999999999G");
    REFUSED("between", "--sizes", "0");
    REFUSED("between", "--sizes", "2G");
    REFUSED("at most 32", "--sizes",
            "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,"
            "32,33");
    assert_int_equal(sizes.n, 4);
}

static void device_names_are_known_ones(void **state) {
    (void)state;
    const char *const good[] = {"auto", "ref", "cpu", "gpu", "metal", "cuda", "cuda:0", "cuda:15"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(PARSE("--device", good[i]), KM_OK);
        assert_string_equal(device, good[i]);
    }
    REFUSED("did you mean 'cpu'?", "--device", "cpuu");
    REFUSED("no device is called 'toaster'", "--device", "toaster");
    REFUSED("no device is called", "--device", "cuda:");
    REFUSED("no device is called", "--device", "cuda:x");
    REFUSED("no device is called", "--device", "cuda:99999999999");
}

static void help_wins_over_mistakes_on_the_same_line(void **state) {
    (void)state;
    assert_int_equal(PARSE("--nonsense", "--help"), KM_OK);
    assert_true(args.help);
    assert_int_equal(PARSE("-h"), KM_OK);
    assert_true(args.help);
    assert_int_equal(PARSE("--", "--help"), KM_OK);
    assert_false(args.help);
}

static void a_command_without_words_refuses_them(void **state) {
    (void)state;
    km_spec plain = spec;
    plain.words = NULL;
    assert_int_not_equal(parse_line(&plain, (const char *const[]){"matmul", NULL}), KM_OK);
    assert_non_null(strstr(err.text, "options only"));
}

static void help_lists_every_option_and_example(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    km_args_help(&spec, f);
    fclose(f);
    for (const km_option *o = options; o->name; o++) {
        char name[32];
        snprintf(name, sizeof name, "  --%s", o->name);
        assert_non_null(strstr(text, name));
    }
    assert_non_null(strstr(text, "Usage: kermes bench [SUITE ...] [options]"));
    assert_non_null(strstr(text, "  kermes bench\n  kermes bench --quick\n"));
    assert_non_null(strstr(text, "threads\n                 on the CPU"));
    free(text);
}

static void a_choice_is_found_or_the_nearest_or_all_are_named(void **state) {
    (void)state;
    const char *const names[] = {"matmul", NULL, "rows"};
    err = (km_error){0};
    assert_int_equal(km_choose("suite", "rows", names, 3, &err), 2);
    assert_int_equal(km_choose("suite", "matmull", names, 3, &err), -1);
    assert_string_equal(err.text, "unknown suite 'matmull'; did you mean 'matmul'?");
    err = (km_error){0};
    assert_int_equal(km_choose("suite", "x", names, 3, &err), -1);
    assert_string_equal(err.text, "unknown suite 'x': there are matmul, rows");
}

static void a_list_grows_with_each_option_and_replaces_what_was_there(void **state) {
    (void)state;
    data = (km_words){.at = {"old"}, .n = 1};
    assert_int_equal(PARSE("--quick"), KM_OK);
    assert_int_equal(data.n, 1);
    assert_false(args.given[7]);
    assert_int_equal(PARSE("--data", "a:0.7", "--data=b"), KM_OK);
    assert_int_equal(data.n, 2);
    assert_string_equal(data.at[0], "a:0.7");
    assert_string_equal(data.at[1], "b");
    assert_true(args.given[7]);
    REFUSED("--data needs a value", "--data=");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(values_come_after_a_space_or_an_equals_sign, reset),
        cmocka_unit_test_setup(words_mix_with_options_and_may_follow_two_dashes, reset),
        cmocka_unit_test_setup(the_last_of_two_equal_options_counts, reset),
        cmocka_unit_test_setup(an_unknown_option_is_refused_with_the_nearest_known_one, reset),
        cmocka_unit_test_setup(a_missing_or_needless_value_is_refused, reset),
        cmocka_unit_test_setup(numbers_are_checked_to_the_last_letter, reset),
        cmocka_unit_test_setup(sizes_take_binary_suffixes, reset),
        cmocka_unit_test_setup(device_names_are_known_ones, reset),
        cmocka_unit_test_setup(help_wins_over_mistakes_on_the_same_line, reset),
        cmocka_unit_test_setup(a_command_without_words_refuses_them, reset),
        cmocka_unit_test_setup(help_lists_every_option_and_example, reset),
        cmocka_unit_test_setup(a_list_grows_with_each_option_and_replaces_what_was_there, reset),
        cmocka_unit_test_setup(a_choice_is_found_or_the_nearest_or_all_are_named, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Sampling that a model asks for: from its file, from its family, and nonsense that is left out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model_sampling.h"
#include "format/gguf.h"

static char folder[64], path[96];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kermes-sampling-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state) {
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

static void write_text(const char *name, const char *text) {
    char file[160];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* A GGUF file of metadata only: a name, a temperature, a top-k as they are, or none (NAN). */
static km_suggested of_file(const char *name, double temperature, double k) {
    km_error err = {0};
    km_gguf_out *o = km_gguf_out_new(&err);
    assert_non_null(o);
    km_gguf_put_string(o, "general.architecture", "llama");
    if (name) km_gguf_put_string(o, "general.name", name);
    if (!isnan(temperature)) km_gguf_put_f32(o, "general.sampling.temp", (float)temperature);
    if (!isnan(k)) km_gguf_put_i32(o, "general.sampling.top_k", (int32_t)k);
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    assert_int_equal(km_gguf_write(o, path, &err), KM_OK);
    km_gguf_out_free(o);
    return km_suggested_of(path);
}

static void a_file_says_how_it_is_sampled(void **state) {
    (void)state;
    km_suggested s = of_file("SmolLM2 135M", 0.5, 17);
    assert_true(s.value[KM_SUGGEST_TEMPERATURE] == 0.5);
    assert_true(s.value[KM_SUGGEST_TOP_K] == 17);
    assert_true(isnan(s.value[KM_SUGGEST_TOP_P])); /* the family is not asked as well */
    assert_string_equal(s.from, "general.sampling");
}

static void a_family_is_known_by_its_name(void **state) {
    (void)state;
    assert_true(of_file("Smollm2 135M 8k", NAN, NAN).value[KM_SUGGEST_TEMPERATURE] == 0.2);
    assert_true(of_file("Qwen2.5 7B Instruct", NAN, NAN).value[KM_SUGGEST_TOP_P] == 0.8);
    assert_true(of_file("Meta Llama 3.1 8B", NAN, NAN).value[KM_SUGGEST_TEMPERATURE] == 0.6);
    assert_true(of_file("unsloth/gemma-3-1b-it", NAN, NAN).value[KM_SUGGEST_TOP_K] == 64);
    assert_true(isnan(of_file("Llama 2", NAN, NAN).value[KM_SUGGEST_TEMPERATURE]));
    assert_true(isnan(of_file("qwen25", NAN, NAN).value[KM_SUGGEST_TEMPERATURE]));
    assert_true(isnan(of_file("notsmollm2", NAN, NAN).value[KM_SUGGEST_TEMPERATURE]));
    assert_true(isnan(of_file(NULL, NAN, NAN).value[KM_SUGGEST_TEMPERATURE]));
}

static void nonsense_is_left_out(void **state) {
    (void)state;
    km_suggested s = of_file("a model", -3, -1);
    for (int i = 0; i < KM_SUGGEST_COUNT; i++) assert_true(isnan(s.value[i]));
    s = of_file("a model", INFINITY, 5);
    assert_true(isnan(s.value[KM_SUGGEST_TEMPERATURE]) && s.value[KM_SUGGEST_TOP_K] == 5);
    assert_true(isnan(km_suggested_of("/nowhere").value[0]));
    assert_true(isnan(km_suggested_of("/dev/null").value[0]));
}

static void a_folder_has_a_generation_config(void **state) {
    (void)state;
    write_text("config.json", "{\"_name_or_path\": \"HuggingFaceTB/SmolLM2-135M\"}");
    assert_true(km_suggested_of(folder).value[KM_SUGGEST_TEMPERATURE] == 0.2);
    write_text("generation_config.json",
               "{\"temperature\": 0.7, \"top_p\": 4, \"top_k\": null, \"min_p\": \"x\", "
               "\"repetition_penalty\": 1.05}");
    km_suggested s = km_suggested_of(folder);
    assert_true(s.value[KM_SUGGEST_TEMPERATURE] == 0.7);
    assert_true(s.value[KM_SUGGEST_REPEAT_PENALTY] == 1.05);
    assert_true(isnan(s.value[KM_SUGGEST_TOP_P]) && isnan(s.value[KM_SUGGEST_TOP_K]));
    assert_true(isnan(s.value[KM_SUGGEST_MIN_P]));
    assert_string_equal(s.from, "generation_config.json");
    write_text("generation_config.json", "{\"temperature\": ");
    assert_true(km_suggested_of(folder).value[KM_SUGGEST_TEMPERATURE] == 0.2);
    write_text("generation_config.json", "[1]");
    write_text("config.json", "3");
    assert_true(isnan(km_suggested_of(folder).value[KM_SUGGEST_TEMPERATURE]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_says_how_it_is_sampled),
        cmocka_unit_test(a_family_is_known_by_its_name),
        cmocka_unit_test(nonsense_is_left_out),
        cmocka_unit_test(a_folder_has_a_generation_config),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}

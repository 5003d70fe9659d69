/* Configurations: presets, JSON there and back, and hostile JSON, which is refused in one line. */
#include "base/alloc.h"
#include "model/config.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void presets_are_complete_and_of_known_size(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {{"gpt2", 124439808},
                 {"gpt2-medium", 354823168},
                 {"gpt2-large", 774030080},
                 {"gpt2-xl", 1557611200}};
    km_error err = {0};
    for (int i = 0; i < 4; i++) {
        km_config c;
        assert_int_equal(km_config_preset(&c, known[i].name, &err), KM_OK);
        assert_int_equal(km_config_parameters(&c), known[i].parameters);
    }
    char names[256];
    snprintf(names, sizeof names, "%s", km_config_presets());
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        km_config c, full;
        assert_int_equal(km_config_preset(&c, name, &err), KM_OK);
        full = c;
        assert_int_equal(km_config_complete(&full, &err), KM_OK);
        assert_memory_equal(&c, &full, sizeof c); /* nothing was left to fill in */
    }
    km_config c;
    assert_int_equal(km_config_preset(&c, "gpt3", &err), KM_ERR_RANGE);
    assert_string_equal(
        err.text, "no model is called 'gpt3'; there are gpt2, gpt2-medium, gpt2-large, gpt2-xl, "
                  "tiny, mini, small, llama, llama-tiny, llama-mini, llama-small");
}

static void json_holds_all_of_a_config(void **state) {
    (void)state;
    static const char *const names[] = {"gpt2", "mini", "llama", "llama-tiny"};
    for (int i = 0; i < 8; i++) {
        km_error err = {0};
        km_config c, back;
        km_config_preset(&c, names[i % 4], &err);
        if (i >= 4) {
            c.vocab_pad = 64;
            c.dropout = 0.2;
            c.norm_eps = 3e-6;
            c.tied = !c.tied;
            if (c.arch == KM_ARCH_GPT2)
                c.bias = false;
            else
                c.rope_base = 500000.5, c.head_dim = 80;
        }
        char *text = km_config_text(&c, &err);
        assert_non_null(text);
        assert_int_equal(km_config_parse(&back, text, strlen(text), &err), KM_OK);
        assert_memory_equal(&c, &back, sizeof c);
        km_free(text);
    }
}

static void old_and_sparse_files_get_their_defaults(void **state) {
    (void)state;
    km_error err = {0};
    km_config c;
    const char *gpt2 =
        "{\"model_type\": \"gpt2\", \"n_layer\": 12, \"n_head\": 12, \"n_embd\": 768, "
        "\"n_ctx\": 1024, \"vocab_size\": 50257, \"n_inner\": null, \"extra\": [1]}";
    assert_int_equal(km_config_parse(&c, gpt2, strlen(gpt2), &err), KM_OK);
    assert_int_equal(c.hidden, 3072);
    assert_int_equal(c.context, 1024);
    assert_true(c.tied && c.bias && c.norm_eps == 1e-5 && c.dropout == 0.1);
    const char *llama =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "
        "\"num_attention_heads\": 4, \"intermediate_size\": 128, \"vocab_size\": 300, "
        "\"max_position_embeddings\": 64, \"rope_scaling\": null, "
        "\"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}}";
    assert_int_equal(km_config_parse(&c, llama, strlen(llama), &err), KM_OK);
    assert_int_equal(c.kv_heads, 4);
    assert_true(!c.tied && !c.bias && c.norm_eps == 1e-6 && c.rope_base == 5e5);
}

#define GPT2 "\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8"
#define SIZES ", \"n_positions\": 16, \"vocab_size\": 9"
#define LLAMA                                                                                      \
    "\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"hidden_size\": 64, "                   \
    "\"num_attention_heads\": 4, \"intermediate_size\": 128, \"vocab_size\": 300, "                \
    "\"max_position_embeddings\": 64"

static void what_does_not_fit_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *json, *text;
    } bad[] = {
        {"",
         "'config.json' is not valid JSON: line 1, column 0: '[' or '{' expected near end of file"},
        {"[]", "'config.json' is not a JSON object"},
        {"{}", "'config.json': \"model_type\" is missing"},
        {"{\"model_type\": 3}", "'config.json': \"model_type\" must be a string, not a number"},
        {"{\"model_type\": \"bert\"}",
         "'config.json': models of type 'bert' are not supported; gpt2, llama, mistral, "
         "qwen2 and qwen3 are"},
        {"{" GPT2 "}", "'config.json': \"n_ctx\" is missing"},
        {"{" GPT2 ", \"n_positions\": 16}", "'config.json': \"vocab_size\" is missing"},
        {"{" GPT2 SIZES ", \"n_inner\": -4}",
         "'config.json': \"n_inner\" is -4, not between 1 and 2147483648"},
        {"{" GPT2 SIZES ", \"n_inner\": 99999999999}",
         "'config.json': \"n_inner\" is 99999999999, not between 1 and 2147483648"},
        {"{" GPT2 SIZES ", \"n_inner\": 2147483648}",
         "'config.json': model: hidden is 2147483648 and must be in 1 .. 4194304"},
        {"{" GPT2 SIZES ", \"layer_norm_epsilon\": \"small\"}",
         "'config.json': \"layer_norm_epsilon\" must be a number, not a string"},
        {"{" GPT2 SIZES ", \"layer_norm_epsilon\": 1}",
         "'config.json': model: norm_eps is 1 and must be in (0, 1)"},
        {"{" GPT2 SIZES ", \"resid_pdrop\": 1.0}",
         "'config.json': model: dropout is 1 and must be in [0, 1)"},
        {"{" GPT2 SIZES ", \"activation_function\": \"gelu\"}",
         "'config.json': \"activation_function\" is 'gelu'; only 'gelu_new' is supported"},
        {"{" GPT2 SIZES ", \"scale_attn_weights\": false}",
         "'config.json': \"scale_attn_weights\": false is not supported"},
        {"{" GPT2 SIZES ", \"add_cross_attention\": true}",
         "'config.json': \"add_cross_attention\": true is not supported"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 8" SIZES "}",
         "'config.json': model: dim 8 is no multiple of heads 3"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2147483648, \"n_head\": 2, \"n_embd\": 8" SIZES
         "}",
         "'config.json': \"n_layer\" is 2147483648, not between 1 and 65536"},
        {"{" LLAMA ", \"num_key_value_heads\": 3}",
         "'config.json': model: heads 4 is no multiple of kv_heads 3"},
        {"{" LLAMA ", \"head_dim\": 7}",
         "'config.json': model: head_dim 7 is odd and cannot be rotated"},
        {"{" LLAMA ", \"attention_bias\": true}",
         "'config.json': \"attention_bias\": true is not supported"},
        {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"dynamic\"}}",
         "'config.json': \"rope_scaling\" of type 'dynamic' is not supported"},
        {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"low_freq_factor\": 4}}",
         "'config.json': \"high_freq_factor\" must be above low_freq_factor"},
        {"{" LLAMA ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}",
         "'config.json': \"factor\" is 0, not between 1 and 1e+06"},
        {"{" LLAMA ", \"rope_scaling\": 8}", "'config.json': \"rope_scaling\" must be an object"},
        {"{" LLAMA ", \"hidden_act\": \"relu\"}",
         "'config.json': \"hidden_act\" is 'relu'; only 'silu' is supported"},
        {"{" LLAMA ", \"rope_theta\": 0}",
         "'config.json': \"rope_theta\" is 0, not between 1 and 1e+12"},
        {"{" LLAMA ", \"vocab_size\": 300}",
         "'config.json' is not valid JSON: line 1, column 181: duplicate object key near "
         "'\"vocab_size\"'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        km_error err = {0};
        km_config c;
        assert_int_not_equal(km_config_parse(&c, bad[i].json, strlen(bad[i].json), &err), KM_OK);
        assert_string_equal(err.text, bad[i].text);
    }
}

/* Every cut and every changed byte of a good file is a config or an error, never anything else. */
static void damaged_json_never_makes_a_bad_config(void **state) {
    (void)state;
    km_error err = {0};
    km_config c, full;
    km_config_preset(&c, "llama-tiny", &err);
    char *text = km_config_text(&c, &err);
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) {
        err = (km_error){0};
        if (i + 2 < n) assert_int_not_equal(km_config_parse(&c, text, i, &err), KM_OK);
        for (int bit = 0; bit < 8; bit += 3) {
            text[i] ^= (char)(1 << bit);
            err = (km_error){0};
            if (km_config_parse(&c, text, n, &err) == KM_OK) {
                full = c;
                assert_int_equal(km_config_complete(&full, &err), KM_OK);
            } else {
                assert_true(err.text[0] && !strchr(err.text, '\n'));
            }
            text[i] ^= (char)(1 << bit);
        }
    }
    km_free(text);
}

static void missing_files_are_named(void **state) {
    (void)state;
    km_error err = {0};
    km_config c;
    assert_int_equal(km_config_load(&c, "/nowhere/at/all", &err), KM_ERR_FILE);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_are_complete_and_of_known_size),
        cmocka_unit_test(json_holds_all_of_a_config),
        cmocka_unit_test(old_and_sparse_files_get_their_defaults),
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(damaged_json_never_makes_a_bad_config),
        cmocka_unit_test(missing_files_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

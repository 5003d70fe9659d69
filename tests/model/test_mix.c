/* Mixes: the types that llama.cpp's quantiser gives to the same tensors, found out by asking it. */
#include "model/mix.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const km_mix_model eight_b = {.layers = 32, .gqa = 4};

static const char *type_of(const char *mix, const km_mix_model *m, const char *name, int64_t in) {
    return km_dtype_name(km_mix_dtype(km_mix_find(mix), m, name, KM_SHAPE(512, in)));
}

/* The layers, as "0 1 2", where that tensor has that type. */
static const char *layers_of(const char *mix, const km_mix_model *m, const char *part,
                             const char *type) {
    static char text[400];
    char name[64];
    text[0] = 0;
    for (int i = 0; i < m->layers; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, part);
        if (strcmp(type_of(mix, m, name, 4096), type) == 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", text[0] ? " " : "",
                     i);
    }
    return text;
}

static void q4_k_m_gives_q6_k_to_half_of_the_values_and_ways_down(void **state) {
    (void)state;
    const char *half = "0 1 2 3 6 9 12 15 18 21 24 27 28 29 30 31";
    assert_string_equal(layers_of("q4_k_m", &eight_b, "attn_v", "q6_k"), half);
    assert_string_equal(layers_of("q4_k_m", &eight_b, "ffn_down", "q6_k"), half);
    assert_string_equal(layers_of("q5_k_m", &eight_b, "ffn_down", "q6_k"), half);
    assert_string_equal(layers_of("q4_k_m", &eight_b, "ffn_up", "q6_k"), "");
    assert_string_equal(type_of("q4_k_m", &eight_b, "blk.5.attn_q.weight", 4096), "q4_k");
    assert_string_equal(type_of("q4_k_m", &eight_b, "output.weight", 4096), "q6_k");
    assert_string_equal(type_of("q4_k_m", &eight_b, "token_embd.weight", 4096), "q4_k");
}

static void smaller_mixes_favour_the_first_layers(void **state) {
    (void)state;
    assert_string_equal(layers_of("q4_k_s", &eight_b, "attn_v", "q5_k"), "0 1 2 3");
    assert_string_equal(layers_of("q4_k_s", &eight_b, "ffn_down", "q5_k"), "0 1 2 3");
    assert_string_equal(layers_of("q3_k_m", &eight_b, "attn_v", "q5_k"), "0 1");
    assert_string_equal(layers_of("q3_k_m", &eight_b, "ffn_down", "q5_k"), "0 1");
    assert_string_equal(type_of("q3_k_m", &eight_b, "blk.9.ffn_down.weight", 4096), "q4_k");
    assert_string_equal(type_of("q3_k_m", &eight_b, "blk.9.attn_output.weight", 4096), "q4_k");
    assert_string_equal(type_of("q3_k_l", &eight_b, "blk.9.attn_output.weight", 4096), "q5_k");
    assert_string_equal(type_of("q3_k_s", &eight_b, "blk.9.attn_v.weight", 4096), "q3_k");
    assert_string_equal(type_of("q2_k", &eight_b, "blk.9.attn_v.weight", 4096), "q4_k");
    assert_string_equal(type_of("q2_k", &eight_b, "blk.9.ffn_down.weight", 4096), "q3_k");
    km_mix_model even = {.layers = 32, .gqa = 1};
    assert_string_equal(type_of("q2_k", &even, "blk.9.attn_v.weight", 4096), "q3_k");
    assert_string_equal(type_of("q2_k", &even, "blk.9.attn_qkv.weight", 4096), "q3_k");
    assert_string_equal(layers_of("iq4_xs", &even, "ffn_down", "q5_k"), "0 1 2 3");
    assert_string_equal(type_of("iq4_xs", &eight_b, "blk.9.attn_v.weight", 4096), "q5_k");
}

static void an_importance_matrix_changes_the_first_ways_down(void **state) {
    (void)state;
    km_mix_model m = {.layers = 16, .gqa = 4, .importance = true};
    assert_string_equal(layers_of("q4_0", &m, "ffn_down", "q4_1"), "0 1");
    assert_string_equal(layers_of("q5_0", &m, "ffn_down", "q5_1"), "0 1");
    assert_string_equal(layers_of("iq4_nl", &m, "ffn_down", "q5_k"), "");
}

static void rows_that_are_no_whole_blocks_get_a_type_of_smaller_ones(void **state) {
    (void)state;
    km_mix_model smol = {.layers = 30, .gqa = 3, .tied = true};
    assert_string_equal(type_of("q4_k_m", &smol, "blk.5.attn_q.weight", 576), "q5_0");
    assert_string_equal(type_of("q4_k_m", &smol, "blk.0.attn_v.weight", 576), "q8_0");
    assert_string_equal(type_of("q5_k_s", &smol, "blk.5.attn_q.weight", 576), "q5_1");
    assert_string_equal(type_of("q2_k", &smol, "blk.5.attn_q.weight", 576), "q4_0");
    assert_string_equal(type_of("iq4_xs", &smol, "blk.5.attn_q.weight", 576), "iq4_nl");
    assert_string_equal(type_of("q4_k_m", &smol, "token_embd.weight", 576), "q8_0");
    assert_string_equal(type_of("q4_0", &smol, "token_embd.weight", 576), "q8_0");
    assert_string_equal(type_of("q4_0", &smol, "token_embd.weight", 1024), "q6_k");
    assert_string_equal(type_of("q4_0", &smol, "blk.5.ffn_up.weight", 100), "f16");
}

static void what_is_no_matrix_stays_f32(void **state) {
    (void)state;
    for (int i = 0; km_mix_at(i); i++) {
        const km_mix *m = km_mix_at(i);
        assert_int_equal(km_mix_dtype(m, &eight_b, "blk.0.attn_q.bias", KM_SHAPE(64)), KM_F32);
        assert_int_equal(km_mix_dtype(m, &eight_b, "output_norm.weight", KM_SHAPE(64)), KM_F32);
        assert_int_equal(km_mix_dtype(m, &eight_b, "position_embd.weight", KM_SHAPE(64, 64)),
                         KM_F32);
    }
}

static void names_are_found_in_any_case(void **state) {
    (void)state;
    assert_ptr_equal(km_mix_find("Q4_K_M"), km_mix_find("q4_k_m"));
    assert_ptr_equal(km_mix_find("q4_K"), km_mix_find("q4_k_m"));
    assert_int_equal(km_mix_find("q5_k")->file_type, 17);
    assert_null(km_mix_find("q4"));
    assert_string_equal(type_of("mxfp4", &eight_b, "blk.0.ffn_up.weight", 4096), "mxfp4");
    assert_string_equal(type_of("mxfp4", &eight_b, "blk.0.attn_q.weight", 4096), "q8_0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q4_k_m_gives_q6_k_to_half_of_the_values_and_ways_down),
        cmocka_unit_test(smaller_mixes_favour_the_first_layers),
        cmocka_unit_test(an_importance_matrix_changes_the_first_ways_down),
        cmocka_unit_test(rows_that_are_no_whole_blocks_get_a_type_of_smaller_ones),
        cmocka_unit_test(what_is_no_matrix_stays_f32),
        cmocka_unit_test(names_are_found_in_any_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

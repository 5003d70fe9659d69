/* Shaders with cooperative matrices: what glslc made of them as drivers take it. */
#include "backend/vulkan/dev.h"
#include "backend/vulkan/modules.h"
#include "base/alloc.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { HEADER = 5, CONSTANT = 43, TYPE = 4456, LOAD = 4457, STORE = 4458, MUL_ADD = 4459 };

static const km_vulkan_module *module(const char *name) {
    for (int i = 0; i < km_vulkan_module_count; i++)
        if (strcmp(km_vulkan_modules[i].name, name) == 0) return &km_vulkan_modules[i];
    fail_msg("no shader %s", name);
    return NULL;
}

/* The value of a 32-bit constant. */
static uint32_t value_of(const uint32_t *code, size_t words, uint32_t id) {
    for (size_t i = HEADER; i < words; i += code[i] >> 16)
        if ((code[i] & 0xffff) == CONSTANT && code[i + 2] == id) return code[i + 3];
    fail_msg("%u is no constant", id);
    return 0;
}

static void only_shaders_with_matrices_are_rewritten(void **state) {
    const km_vulkan_module *with = module("layer_matrix"), *without = module("layer_stream");
    size_t made = 0;
    assert_true(km_vulkan_has_matrices(with->code, with->bytes / 4));
    assert_false(km_vulkan_has_matrices(without->code, without->bytes / 4));
    assert_null(km_vulkan_matrix_code(without->code, without->bytes / 4, &made));
}

static void factors_and_sums_get_their_use_and_layout(void **state) {
    const km_vulkan_module *m = module("layer_matrix");
    size_t words = 0, types = 0, loads = 0, products = 0;
    uint32_t left = 0, right = 0, sums = 0;
    uint32_t *code = km_vulkan_matrix_code(m->code, m->bytes / 4, &words);
    assert_non_null(code);
    assert_false(km_vulkan_has_matrices(code, words));
    for (size_t i = HEADER, len; i < words; i += len) {
        uint32_t op = code[i] & 0xffff;
        len = code[i] >> 16;
        assert_true(len > 0 && i + len <= words);
        assert_false(op >= 5358 && op <= 5362); /* nothing of the other extension is left */
        if (op == TYPE) {
            uint32_t *of[] = {&left, &right, &sums}, use = value_of(code, words, code[i + 6]);
            assert_int_equal(len, 7);
            assert_true(use < 3);
            *of[use] = code[i + 1];
            types++;
        }
        if (op == LOAD) { /* the left factor by rows, the right one by columns, five words apart */
            assert_true(code[i + 1] == left || code[i + 1] == right);
            assert_int_equal(value_of(code, words, code[i + 4]), code[i + 1] == right);
            assert_int_equal(value_of(code, words, code[i + 5]), 5);
            loads++;
        }
        if (op == STORE) {
            assert_int_equal(value_of(code, words, code[i + 3]), 0);
            assert_int_equal(value_of(code, words, code[i + 4]), 4);
        }
        if (op == MUL_ADD) {
            assert_int_equal(code[i + 1], sums);
            products++;
        }
    }
    assert_int_equal(types, 3);
    assert_true(loads >= 2 && products >= 1);
    km_free(code);
}

static void code_that_is_cut_off_is_refused(void **state) {
    const km_vulkan_module *m = module("layer_matrix");
    size_t made = 0;
    assert_null(km_vulkan_matrix_code(m->code, HEADER - 2, &made));
    assert_null(km_vulkan_matrix_code(m->code, HEADER + 1, &made)); /* in its first instruction */
}

int main(void) {
    if (km_vulkan_module_count == 0) {
        printf("skipped: this build has no shaders\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(only_shaders_with_matrices_are_rewritten),
                                       cmocka_unit_test(factors_and_sums_get_their_use_and_layout),
                                       cmocka_unit_test(code_that_is_cut_off_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Blocks of quantised weights: decoded bit for bit as the package gguf decodes them, encoded no
 * worse than the obvious way, and never into anything that is not a number. */
#include "tensor/quant.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 1 << 16 };

static void blocks_decode_to_the_bits_of_ggml(void **state) {
    (void)state;
    static unsigned char file[MOST];
    const char *src = getenv("SRC_DIR");
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++) {
        char path[512];
        snprintf(path, sizeof path, "%s/tests/fixtures/quant/%s.bin", src ? src : ".",
                 km_dtype_name((km_dtype)d));
        FILE *f = fopen(path, "rb");
        if (!f) fail_msg("no %s", path);
        size_t bytes = fread(file, 1, MOST, f), block = (size_t)km_dtype_block((km_dtype)d);
        fclose(f);
        size_t each = km_dtype_size((km_dtype)d) + block * sizeof(float), blocks = bytes / each;
        assert_true(blocks > 3 && blocks * each == bytes);
        float *out = malloc(blocks * block * sizeof *out);
        km_dequantise((km_dtype)d, file, (int64_t)(blocks * block), out);
        const unsigned char *want = file + blocks * km_dtype_size((km_dtype)d);
        if (memcmp(out, want, blocks * block * sizeof *out) != 0)
            fail_msg("%s decodes to other bits", km_dtype_name((km_dtype)d));
        free(out);
    }
}

/* Squared error over squared size of n floats encoded and decoded. */
static double lost(km_dtype d, const float *x, const float *w, int n) {
    unsigned char blocks[2048];
    float y[1024];
    double far = 0, size = 0;
    km_quantise(d, x, w, n, blocks);
    km_dequantise(d, blocks, n, y);
    for (int i = 0; i < n; i++) {
        assert_true(isfinite(y[i]));
        far += (w ? w[i] : 1) * (double)(x[i] - y[i]) * (x[i] - y[i]);
        size += (w ? w[i] : 1) * (double)x[i] * x[i];
    }
    return size > 0 ? far / size : far;
}

static void fill(float *x, int n, unsigned seed) { /* roughly normal, the same every time */
    for (int i = 0; i < n; i++) {
        float s = 0;
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525u + 1013904223u;
            s += (float)(seed >> 8) / 0x1p24f;
        }
        x[i] = (s - 6) * 0.02f;
    }
}

static void encoding_keeps_what_the_bits_can_hold(void **state) {
    (void)state;
    static const double most[KM_DTYPE_COUNT] = {
        [KM_Q4_0] = 8.5e-3, [KM_Q4_1] = 6e-3, [KM_Q5_0] = 2e-3,   [KM_Q5_1] = 1.4e-3,
        [KM_Q8_0] = 4e-5,   [KM_Q2_K] = 8e-2, [KM_Q3_K] = 2.8e-2, [KM_Q4_K] = 6e-3,
        [KM_Q5_K] = 1.6e-3, [KM_Q6_K] = 4e-4, [KM_IQ4_NL] = 7e-3, [KM_IQ4_XS] = 7e-3,
        [KM_MXFP4] = 1.6e-2};
    float x[1024], w[1024];
    fill(x, 1024, 1);
    for (int i = 0; i < 1024; i++) w[i] = i % 32 < 8 ? 100 : 1;
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++) {
        double plain = lost((km_dtype)d, x, NULL, 1024);
        if (!(plain > 0 && plain < most[d]))
            fail_msg("%s loses %g", km_dtype_name((km_dtype)d), plain);
        /* Elements that matter a hundred times as much are kept better than the rest. */
        double weighed = lost((km_dtype)d, x, w, 1024);
        if (!(weighed < 1.2 * most[d]))
            fail_msg("%s loses %g", km_dtype_name((km_dtype)d), weighed);
    }
}

static void odd_blocks_are_no_trouble(void **state) {
    (void)state;
    float x[256] = {0};
    for (int d = KM_Q4_0; d < KM_DTYPE_COUNT; d++) {
        assert_true(lost((km_dtype)d, x, NULL, 256) == 0); /* all zero stays all zero */
        float one[256] = {[7] = 1e-3f};
        assert_true(lost((km_dtype)d, one, NULL, 256) < 0.1);
        float same[256];
        for (int i = 0; i < 256; i++) same[i] = -0.25f;
        assert_true(lost((km_dtype)d, same, NULL, 256) < 0.01);
        unsigned char blocks[512];
        float bad[256], y[256];
        for (int i = 0; i < 256; i++) bad[i] = i % 3 ? NAN : i % 2 ? INFINITY : 1;
        km_quantise((km_dtype)d, bad, NULL, 256, blocks); /* anything, but no crash */
        km_dequantise((km_dtype)d, blocks, 256, y);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_decode_to_the_bits_of_ggml),
        cmocka_unit_test(encoding_keeps_what_the_bits_can_hold),
        cmocka_unit_test(odd_blocks_are_no_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

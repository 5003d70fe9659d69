/* Vectors in files: every format gives the same numbers, in blocks as in one go, and what is cut
 * short or damaged is refused in one line. */
#include "format/formats.h"
#include "tensor/dtype.h"
#include "vector/input.h"
#include <math.h>

enum { ROWS = 5, DIM = 6 };

static float wanted(int64_t i, int64_t j) { return (float)((7 * i + 3 * j) % 100); }

static const char *vectors(const char *name) {
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/tests/fixtures/vectors/%s", getenv("SRC_DIR"), name);
    return path;
}

static void assert_rows(km_input *in, int64_t first, int64_t n) {
    km_error err = {0};
    float *x = malloc(sizeof(float) * (size_t)(n * DIM)); /* exact, for a sanitizer to see */
    if (km_input_read(in, first, n, x, &err) != KM_OK) fail_msg("%s", err.text);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < DIM; j++)
            assert_float_equal(x[i * DIM + j], wanted(first + i, j), 0);
    free(x);
}

static void every_format_gives_the_same_rows(void **state) {
    (void)state;
    static const char *const names[] = {
        "f4.npy",     "f2.npy",       "f8.npy",  "u1.npy",  "i1.npy",         "big-f4.npy",
        "big-f8.npy", "big-f2.npy",   "i4.npy",  "i8.npy",  "columns-f4.npy", "columns-big-f8.npy",
        "cube.npy",   "version2.npy", "x.fvecs", "x.ivecs", "x.bvecs",        "x.idx",
        "x-f32.idx",  "x.safetensors"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        km_error err = {0};
        km_input *in = km_input_open(vectors(names[k]), NULL, &err);
        if (!in) fail_msg("%s: %s", names[k], err.text);
        assert_int_equal(km_input_rows(in), ROWS);
        assert_int_equal(km_input_dim(in), DIM);
        assert_rows(in, 0, ROWS);
        assert_rows(in, 1, 3);
        for (int64_t i = 0; i < ROWS; i++) assert_rows(in, i, 1);
        float none;
        assert_int_equal(km_input_read(in, 3, 3, &none, &err), KM_ERR_RANGE);
        km_input_close(in);
    }
}

static void raw_bytes_and_named_tensors_need_a_word_more(void **state) {
    (void)state;
    km_error err = {0};
    assert_null(km_input_open(vectors("x.raw"), NULL, &err));
    assert_non_null(strstr(err.text, "--dim N"));
    km_input *in = km_input_open(vectors("x.raw"), &(km_input_options){.dim = DIM}, NULL);
    assert_non_null(in);
    assert_rows(in, 0, ROWS);
    km_input_close(in);
    err = (km_error){0};
    assert_null(km_input_open(vectors("x.raw"), &(km_input_options){.dim = 7}, &err));
    assert_non_null(strstr(err.text, "whole vector"));
    in = km_input_open(vectors("x.safetensors"), &(km_input_options){.tensor = "wanted"}, NULL);
    assert_non_null(in);
    assert_rows(in, 0, ROWS);
    km_input_close(in);
    err = (km_error){0};
    assert_null(km_input_open(vectors("x.safetensors"), &(km_input_options){.tensor = "w"}, &err));
    assert_non_null(strstr(err.text, "no tensor 'w'"));
}

static void one_axis_is_one_vector(void **state) {
    (void)state;
    km_input *in = km_input_open(vectors("one.npy"), NULL, NULL);
    assert_non_null(in);
    assert_int_equal(km_input_rows(in), 1);
    assert_int_equal(km_input_dim(in), DIM);
    assert_rows(in, 0, 1);
    km_input_close(in);
}

static void files_cut_short_anywhere_are_refused(void **state) {
    static const char *const names[] = {"f4.npy", "columns-f4.npy", "x.fvecs", "x.bvecs", "x.idx"};
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        blob b = read_blob(vectors(names[k]));
        for (size_t n = 0; n < b.size; n++) {
            const char *path = in_folder(names[k]);
            FILE *f = fopen(path, "wb");
            assert_int_equal(fwrite(b.data, 1, n, f), n);
            fclose(f);
            km_error err = {0};
            km_input *in = km_input_open(path, NULL, &err);
            bool whole = k == 2 ? n % 28 == 0 : k == 3 && n % 10 == 0; /* fewer vectors */
            if (n > 0 && whole) {
                assert_non_null(in);
                km_input_close(in);
                continue;
            }
            assert_null(in);
            assert_int_not_equal(err.code, KM_OK);
            assert_null(strchr(err.text, '\n'));
        }
        free(b.data);
    }
}

static void a_vector_of_another_dimension_is_named(void **state) {
    (void)state;
    blob b = read_blob(vectors("x.fvecs"));
    b.data[3 * 28] = 5;
    FILE *f = fopen(in_folder("x.fvecs"), "wb");
    fwrite(b.data, 1, b.size, f);
    fclose(f);
    free(b.data);
    km_error err = {0};
    km_input *in = km_input_open(in_folder("x.fvecs"), NULL, &err);
    assert_non_null(in);
    assert_rows(in, 0, 3);
    float x[ROWS * DIM];
    assert_int_equal(km_input_read(in, 0, ROWS, x, &err), KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "vector 3 says it has 5 dimensions"));
    km_input_close(in);
}

static void other_types_and_packed_files_are_named(void **state) {
    (void)state;
    km_error err = {0};
    assert_null(km_input_open(vectors("complex.npy"), NULL, &err));
    assert_non_null(strstr(err.text, "'<c8'"));
    FILE *f = fopen(in_folder("x.gz"), "wb");
    fwrite("\x1f\x8b\x08\0\0\0\0\0", 1, 8, f);
    fclose(f);
    err = (km_error){0};
    assert_null(km_input_open(in_folder("x.gz"), NULL, &err));
    assert_non_null(strstr(err.text, "gunzip"));
    err = (km_error){0};
    assert_null(km_input_open(in_folder("none.npy"), NULL, &err));
    assert_int_equal(err.code, KM_ERR_FILE);
}

static void whole_numbers_of_16_bits_are_read(void **state) {
    (void)state;
    static const char *const types[] = {"<u2", ">u2", "<i2", ">i2"};
    for (int t = 0; t < 4; t++) {
        char head[KM_NPY_HEAD];
        size_t n = km_npy_head(head, types[t], 2, 2);
        const uint8_t little[8] = {1, 0, 0xff, 0x7f, 0xff, 0xff, 0, 0x80};
        FILE *f = fopen(in_folder("words.npy"), "wb");
        fwrite(head, 1, n, f);
        for (int i = 0; i < 8; i++) fputc(little[types[t][0] == '>' ? i ^ 1 : i], f);
        fclose(f);
        km_error err = {0};
        km_input *in = km_input_open(in_folder("words.npy"), NULL, &err);
        if (!in) fail_msg("%s", err.text);
        assert_string_equal(km_row_layout_type(km_input_layout(in)), t < 2 ? "u16" : "i16");
        float x[4];
        assert_int_equal(km_input_read(in, 0, 2, x, &err), KM_OK);
        assert_true(x[0] == 1 && x[1] == 32767);
        assert_true(x[2] == (t < 2 ? 65535 : -1) && x[3] == (t < 2 ? 32768 : -32768));
        km_input_close(in);
    }
}

static void what_is_written_as_npy_reads_back(void **state) {
    (void)state;
    char head[KM_NPY_HEAD];
    size_t n = km_npy_head(head, "<f4", 123456789012, 4096);
    km_row_layout l;
    km_error err = {0};
    uint64_t size = n + (uint64_t)123456789012 * 4096 * 4;
    assert_int_equal(km_npy_parse(&l, head, n, size, "x", &err), KM_OK);
    assert_true(l.rows == 123456789012 && l.dim == 4096 && l.dtype == KM_F32 && l.offset == n);
    assert_int_equal(n % 64, 0);
    assert_int_equal(km_npy_parse(&l, head, n, size - 1, "x", &err), KM_ERR_FORMAT);
}

static void rows_that_are_not_finite_are_found(void **state) {
    (void)state;
    float x[6] = {1, 2, 3, 4, 5, 6};
    assert_int_equal(km_first_bad_row(x, 3, 2), -1);
    x[3] = NAN;
    assert_int_equal(km_first_bad_row(x, 3, 2), 1);
    x[0] = -INFINITY;
    assert_int_equal(km_first_bad_row(x, 3, 2), 0);
}

static void ids_are_whole_numbers(void **state) {
    (void)state;
    const uint64_t ids[3] = {7, UINT64_MAX, 0};
    char head[KM_NPY_HEAD];
    km_npy_head(head, "<u8", 3, 0);
    FILE *f = fopen(in_folder("ids.npy"), "wb");
    fwrite(head, 1, sizeof head, f);
    fwrite(ids, 1, sizeof ids, f);
    fclose(f);
    uint64_t got[3];
    km_error err = {0};
    km_input *in = km_input_open(in_folder("ids.npy"), NULL, &err);
    assert_non_null(in);
    assert_int_equal(km_input_read_ids(in, 3, got, &err), KM_OK);
    assert_memory_equal(got, ids, sizeof ids);
    assert_int_equal(km_input_read_ids(in, 2, got, &err), KM_ERR_RANGE);
    km_input_close(in);
    in = km_input_open(vectors("one.npy"), NULL, &err);
    assert_int_equal(km_input_read_ids(in, 6, got, &(km_error){0}), KM_ERR_FORMAT);
    km_input_close(in);
}

#define IN_FOLDER(test) cmocka_unit_test_teardown(test, empty_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_gives_the_same_rows),
        cmocka_unit_test(raw_bytes_and_named_tensors_need_a_word_more),
        cmocka_unit_test(one_axis_is_one_vector),
        IN_FOLDER(files_cut_short_anywhere_are_refused),
        IN_FOLDER(a_vector_of_another_dimension_is_named),
        IN_FOLDER(other_types_and_packed_files_are_named),
        cmocka_unit_test(whole_numbers_of_16_bits_are_read),
        cmocka_unit_test(what_is_written_as_npy_reads_back),
        cmocka_unit_test(rows_that_are_not_finite_are_found),
        IN_FOLDER(ids_are_whole_numbers),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* Files of tensors through the public calls: what goes in comes out, and bad input is one error. */
#include "base/alloc.h"
#include "support/engine.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static const char *in_folder(const char *name) {
    static char path[16][160];
    static int turn;
    char *p = path[turn++ % 16];
    snprintf(p, 160, "%s/%s", folder, name);
    return p;
}

static void same_floats(km_ctx *ctx, km_tensor *t, const float *want, int n) {
    float got[32];
    assert_non_null(t);
    assert_int_equal(km_read(ctx, t, got, sizeof *got * (size_t)n), KM_OK);
    assert_memory_equal(got, want, sizeof *got * (size_t)n);
}

static void tensors_come_back_from_every_format(void **state) {
    km_ctx *ctx = *state;
    const float x[] = {1, 2, 3, 4, 5, 6};
    const int64_t ids[] = {7, -8};
    km_tensor *a = km_from_data(ctx, KM_F32, KM_SHAPE(2, 3), x);
    km_tensor *b = km_from_data(ctx, KM_I64, KM_SHAPE(2), ids);
    km_named_tensor both[] = {{"layer.a", km_transpose(ctx, a, 0, 1)}, {"b", b}};
    const char *paths[] = {in_folder("t.safetensors"), in_folder("t.gguf")};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(km_save(ctx, paths[i], both, 2, "{\"made.by\": \"a test\"}"), KM_OK);
        km_file *f = km_file_open(paths[i]);
        assert_non_null(f);
        assert_int_equal(km_file_count(f), 2);
        assert_string_equal(km_file_meta(f, "made.by"), "a test");
        assert_null(km_file_meta(f, "made"));
        const km_file_tensor *t = km_file_find(f, "layer.a");
        assert_non_null(t);
        assert_int_equal(t->dtype, KM_F32);
        assert_int_equal(t->shape.dim[0], 3);
        assert_int_equal(t->bytes, sizeof x);
        assert_null(km_file_find(f, "layer"));
        assert_null(km_file_at(f, 2));
        same_floats(ctx, km_file_load(ctx, f, "layer.a"), (float[]){1, 4, 2, 5, 3, 6}, 6);
        km_file_close(f);
        assert_int_equal((int)km_item(ctx, km_select(ctx, km_load(ctx, paths[i], "b"), 0, 1)), -8);
    }
}

static void npy_holds_every_shape_and_plain_dtype(void **state) {
    km_ctx *ctx = *state;
    const km_shape shapes[] = {KM_SCALAR, KM_SHAPE(3), KM_SHAPE(0, 4), KM_SHAPE(2, 1, 3, 1, 2)};
    const char *path = in_folder("t.npy");
    for (int i = 0; i < 4; i++)
        for (int d = KM_F32; d <= KM_BOOL; d++) {
            km_tensor *t = km_cast(ctx, km_uniform(ctx, KM_F32, shapes[i], 0, 3), (km_dtype)d);
            km_status s = km_save(ctx, path, &(km_named_tensor){NULL, t}, 1, NULL);
            if (d == KM_BF16) {
                assert_int_equal(s, KM_ERR_DTYPE);
                km_ctx_clear_error(ctx);
                continue;
            }
            assert_int_equal(s, KM_OK);
            km_tensor *back = km_load(ctx, path, NULL);
            assert_non_null(back);
            assert_int_equal(km_tensor_dtype(back), d);
            assert_int_equal(km_tensor_ndim(back), shapes[i].ndim);
            uint8_t x[256], y[256];
            size_t bytes = (size_t)km_tensor_count(t) * km_dtype_size((km_dtype)d);
            assert_int_equal(km_read(ctx, t, x, bytes), KM_OK);
            assert_int_equal(km_read(ctx, back, y, bytes), KM_OK);
            assert_memory_equal(x, y, bytes);
        }
}

static void put_npy(const char *path, const char *dict, const void *data, size_t bytes) {
    FILE *f = fopen(path, "wb");
    size_t n = strlen(dict);
    const uint8_t front[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)n, 0};
    fwrite(front, 1, 10, f);
    fwrite(dict, 1, n, f);
    fwrite(data, 1, bytes, f);
    assert_int_equal(fclose(f), 0);
}

static void npy_in_fortran_order_and_big_endian_is_turned(void **state) {
    km_ctx *ctx = *state;
    const uint8_t big[] = {0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6};
    const char *path = in_folder("odd.npy");
    put_npy(path, "{'descr': '>i4', 'fortran_order': False, 'shape': (3,), }\n", big, 12);
    km_tensor *t = km_load(ctx, path, NULL);
    assert_non_null(t);
    assert_int_equal((int)km_item(ctx, km_select(ctx, t, 0, 1)), 0x00030004);
    const float x[] = {1, 2, 3, 4, 5, 6};
    put_npy(path, "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", x, sizeof x);
    same_floats(ctx, km_load(ctx, path, NULL), (float[]){1, 3, 5, 2, 4, 6}, 6);
}

static void refused(km_ctx *ctx, km_tensor *t, km_status code) {
    assert_null(t);
    assert_int_equal(km_ctx_status(ctx), code);
    assert_true(*km_ctx_error(ctx) != 0);
    km_ctx_clear_error(ctx);
}

static void bad_files_are_one_error(void **state) {
    km_ctx *ctx = *state;
    const char *path = in_folder("bad.npy");
    float x[6] = {0};
    put_npy(path, "{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }\n", x, sizeof x);
    refused(ctx, km_load(ctx, path, NULL), KM_ERR_FORMAT);
    put_npy(path, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1), }\n", x, 4);
    refused(ctx, km_load(ctx, path, NULL), KM_ERR_SHAPE);
    put_npy(path, "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999), }\n",
            x, 4);
    refused(ctx, km_load(ctx, path, NULL), KM_ERR_FORMAT);
    put_npy(path, "{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }\n", x, 8);
    refused(ctx, km_load(ctx, path, NULL), KM_ERR_UNSUPPORTED);
    put_npy(path, "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }\n", x, 16);
    refused(ctx, km_load(ctx, path, NULL), KM_ERR_FORMAT);
    put_npy(path, "{'descr': '|b1', 'fortran_order': False, 'shape': ()}\n", x, 1);
    assert_non_null(km_load(ctx, path, NULL));
    refused(ctx, km_load(ctx, in_folder("none"), NULL), KM_ERR_FILE);
    refused(ctx, km_load(ctx, NULL, NULL), KM_ERR_NULL);
    assert_null(km_file_open(NULL));
    assert_null(km_file_open(in_folder("none")));
    assert_non_null(strstr(km_last_error(), "none"));
    assert_int_equal(km_file_count(NULL), 0);
    assert_null(km_file_at(NULL, 0));
    assert_null(km_file_find(NULL, "x"));
    assert_null(km_file_meta(NULL, "x"));
    refused(ctx, km_file_load(ctx, NULL, NULL), KM_ERR_NULL);
    km_file_close(NULL);
}

static void a_save_that_fails_leaves_the_old_file(void **state) {
    km_ctx *ctx = *state;
    const float x[] = {1, 2};
    const char *path = in_folder("keep.safetensors");
    km_tensor *t = km_from_data(ctx, KM_F32, KM_SHAPE(2), x);
    km_named_tensor one = {"x", t}, twice[] = {{"x", t}, {"x", t}}, nameless = {NULL, t};
    assert_int_equal(km_save(ctx, path, &one, 1, NULL), KM_OK);
    const struct {
        const char *path;
        const km_named_tensor *in;
        int n;
        const char *meta;
    } bad[] = {{path, twice, 2, NULL},
               {path, &nameless, 1, NULL},
               {path, &(km_named_tensor){"y", NULL}, 1, NULL},
               {path, NULL, 1, NULL},
               {path, &one, -1, NULL},
               {NULL, &one, 1, NULL},
               {path, &one, 1, "[]"},
               {path, &one, 1, "{\"a\": 1}"},
               {path, &one, 1, "{"},
               {in_folder("x.gguf"), &one, 1, "{\"a\": []}"},
               {in_folder("x.txt"), &one, 1, NULL},
               {in_folder("x.npy"), twice, 2, NULL},
               {in_folder("no/such/x.npy"), &one, 1, NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(km_save(ctx, bad[i].path, bad[i].in, bad[i].n, bad[i].meta), KM_OK);
        assert_true(*km_ctx_error(ctx) != 0);
        km_ctx_clear_error(ctx);
    }
    same_floats(ctx, km_load(ctx, path, "x"), x, 2);
    assert_int_not_equal(access(in_folder("x.npy"), F_OK), 0);
    refused(ctx, km_load(ctx, path, "y"), KM_ERR_RANGE);
    /* a foreign context's tensor */
    km_ctx *other = km_ctx_new("cpu", 1);
    assert_int_not_equal(km_save(other, path, &one, 1, NULL), KM_OK);
    km_ctx_free(other);
}

static void no_allocation_that_fails_loses_anything(void **state) {
    km_ctx *ctx = *state;
    const float x[] = {1, 2};
    km_tensor *t = km_keep(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(2), x));
    km_named_tensor one = {"x", t};
    const char *endings[] = {"f.safetensors", "f.gguf", "f.npy"};
    for (int e = 0; e < 3; e++) {
        const char *path = in_folder(endings[e]);
        assert_int_equal(km_save(ctx, path, &one, 1, NULL), KM_OK);
        bool done = false;
        for (int nth = 0; nth < 200 && !done; nth++) {
            km_step_end(ctx);
            int64_t live = km_alloc_live();
            km_alloc_fail_nth(nth);
            km_status s = km_save(ctx, path, &one, 1, e < 2 ? "{\"k\": \"v\"}" : NULL);
            if (s == KM_OK) {
                km_tensor *back = km_load(ctx, path, e < 2 ? "x" : NULL);
                done = back != NULL;
            }
            km_alloc_fail_nth(-1);
            km_ctx_clear_error(ctx);
            km_step_end(ctx);
            assert_true(km_alloc_live() <= live + 2); /* the pool and the arena may have grown */
            km_tensor *still = km_load(ctx, path, e < 2 ? "x" : NULL);
            assert_non_null(still);
            same_floats(ctx, still, x, 2);
        }
        assert_true(done);
    }
    km_release(t);
}

static void devices_are_listed_and_described(void **state) {
    (void)state;
    assert_true(km_device_count() >= 2);
    const km_device_info *d = km_device_describe(0);
    assert_non_null(d);
    assert_string_equal(d->name, "cpu");
    assert_true(d->usable && d->memory > 0);
    assert_null(km_device_describe(-1));
    assert_null(km_device_describe(km_device_count()));
    char *all = km_devices_json(NULL);
    assert_non_null(all);
    assert_non_null(strstr(all, "\"asked\": \"auto\""));
    km_string_free(all);
    km_string_free(NULL);
    assert_null(km_devices_json("cuda:99"));
    assert_null(km_devices_json("toaster"));
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/kermes-files-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return system(line);
}

#define ON_CPU(f) cmocka_unit_test_prestate_setup_teardown(f, engine_open, engine_close, "cpu")

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_CPU(tensors_come_back_from_every_format),
        ON_CPU(npy_holds_every_shape_and_plain_dtype),
        ON_CPU(npy_in_fortran_order_and_big_endian_is_turned),
        ON_CPU(bad_files_are_one_error),
        ON_CPU(a_save_that_fails_leaves_the_old_file),
        ON_CPU(no_allocation_that_fails_loses_anything),
        cmocka_unit_test(devices_are_listed_and_described),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

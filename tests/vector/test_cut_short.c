/* Index files that become shorter while they are used: searching, decoding and saving fail with a
 * line that names the file, also where the blocks had been found right before. */
#include "vector/index.h"
#include "vector/vectors.h"
#include <unistd.h>

enum { N = 4000, DIM = 40, K = 5 };

static void names_the_file(km_status s, const char *path) {
    assert_int_equal(s, KM_ERR_FILE);
    if (!strstr(km_last_error(), path) || !strstr(km_last_error(), "changed while it was in use"))
        fail_msg("%s", km_last_error());
}

static void use_while_it_is_cut(off_t left, bool searched, const float *base, const char *path) {
    static uint64_t ids[200 * K];
    static float dist[200 * K], out[DIM];
    km_index *x = km_index_open(path);
    assert_non_null(x);
    if (searched) assert_int_equal(km_index_search(x, base, 200, K, NULL, 2, ids, dist), KM_OK);
    assert_int_equal(truncate(path, left), 0);
    names_the_file(km_index_search(x, base, 200, K, NULL, 2, ids, dist), path);
    names_the_file(
        km_index_search(x, base, 1, K,
                        &(km_search_options){.size = sizeof(km_search_options), .rerank = 50}, 1,
                        ids, dist),
        path);
    uint64_t one = 17;
    names_the_file(km_index_decode(x, &one, 1, out), path);
    names_the_file(km_index_delete(x, &one, 1), path);
    names_the_file(km_index_save(x, in_folder("copy.kmx"), true), path);
    assert_int_not_equal(access(in_folder("copy.kmx"), F_OK), 0);
    km_index_close(x);
}

static void an_index_that_is_cut_short_in_use_is_named(void **state) {
    km_ctx *ctx = km_ctx_new("cpu", 2);
    float *base = clustered(N, DIM, 3);
    km_index *x = km_index_build(ctx, base, N, DIM, NULL,
                                 &(km_index_options){.size = sizeof(km_index_options),
                                                     .bytes = 30,
                                                     .rerank = KM_VECTORS_INT8});
    char path[300];
    snprintf(path, sizeof path, "%s", in_folder("cut.kmx"));
    assert_non_null(x);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(km_index_save(x, path, false), KM_OK);
        use_while_it_is_cut(i < 2 ? 0 : 65536, i % 2, base, path);
    }
    km_index_close(x);
    km_ctx_free(ctx);
    free(base);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(an_index_that_is_cut_short_in_use_is_named, empty_folder),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

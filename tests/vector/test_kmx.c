/* Index files: one flipped bit in any block is found before it is used, and damage that checksums
 * cannot see is refused in one line. */
#include "support/sanitized.h"
#include "vector/index.h"
#include "vector/kmx_bytes.h"
#include "vector/vectors.h"

enum { N = 3000, DIM = 40 };

static blob file; /* a true one, with every section and several blocks */
static float *base;

static int set_up(void **state) {
    km_ctx *ctx = km_ctx_new("cpu", 2);
    base = clustered(N, DIM, 3);
    km_index *x = km_index_build(ctx, base, N, DIM, NULL,
                                 &(km_index_options){.size = sizeof(km_index_options),
                                                     .bytes = 30,
                                                     .rerank = KM_VECTORS_INT8});
    uint64_t gone[] = {1, 2, 2999};
    int failed = make_folder(state) || !x || km_index_delete(x, gone, 3) != KM_OK ||
                 km_index_save(x, in_folder("true.kmx"), false) != KM_OK;
    km_index_close(x);
    km_ctx_free(ctx);
    if (!failed) file = read_blob(in_folder("true.kmx"));
    return failed;
}

static int tear_down(void **state) {
    free(file.data);
    free(base);
    empty_folder(state);
    return remove_folder(state);
}

/* Uses everything in it: finds, re-ranks, decodes. Returns the first error. */
static km_error use(const uint8_t *data, size_t size) {
    km_error err = {0};
    uint64_t *aligned = malloc(size + 8); /* exact but for the alignment */
    memcpy(aligned, data, size);
    km_kmx *f = km_kmx_parse(aligned, size, "x.kmx", &err);
    km_index *x = f ? km_index_from_file(f, &err) : NULL;
    if (x && x->dim == DIM) {
        uint64_t ids[20];
        float dist[20];
        km_search_options o = {.size = sizeof(km_search_options),
                               .rerank = x->vector_bytes ? N : 0};
        if (km_index_find(x, base, 1, 20, &o, NULL, ids, dist, &err) == KM_OK) {
            int64_t n;
            uint64_t *all = km_index_live_ids(x, &n, &err);
            km_snapshot *v = km_index_rows(x);
            km_row_place *places = all ? km_index_places(x, v, all, n, &err) : NULL;
            float *out = malloc(sizeof *out * (size_t)(n * DIM + 1));
            if (places) km_index_restore(x, v, NULL, places, n, out, &err);
            km_snapshot_drop(v);
            free(out);
            km_free(all);
            km_free(places);
        }
    }
    km_index_close(x);
    free(aligned);
    return err;
}

static void a_true_file_is_used_without_complaint(void **state) {
    (void)state;
    km_error err = use(file.data, file.size);
    if (err.code != KM_OK) fail_msg("%s", err.text);
}

static void one_flipped_bit_in_any_block_is_found(void **state) {
    (void)state;
    uint64_t table = 0, rows = 0, blocks = 0;
    assert_true(kmx_table(file.data, file.size, &table, &rows, &blocks));
    assert_true(blocks >= 10);
    int tried = 0;
    for (uint64_t i = 0; i < rows; i++) {
        const uint8_t *row = file.data + table + 64 * i;
        uint64_t at = kmx_u64(row + 8), bytes = kmx_u64(row + 16);
        /* META is told, not used: a search need not know that it is damaged. */
        bool used = memcmp(row, "META", 4) != 0;
        for (uint64_t b = 0; b < bytes; b += 65536) {
            uint64_t left = bytes - b < 65536 ? bytes - b : 65536;
            const uint64_t places[] = {0, left / 2, left - 1};
            for (int k = 0; k < 3; k++) {
                uint8_t *byte = file.data + at + b + places[k];
                *byte ^= (uint8_t)(1u << (tried % 8));
                if (used) {
                    km_error err = use(file.data, file.size);
                    if (err.code == KM_OK)
                        fail_msg("section %.8s, byte %llu", (const char *)row,
                                 (unsigned long long)(b + places[k]));
                    assert_one_line(&err);
                }
                write_blob(in_folder("bad.kmx"), file.data, file.size);
                km_kmx *f = km_kmx_open(in_folder("bad.kmx"), NULL);
                assert_non_null(f);
                km_error why = {0};
                assert_int_not_equal(km_kmx_verify(f, NULL, &why), KM_OK);
                assert_one_line(&why);
                km_kmx_close(f);
                *byte ^= (uint8_t)(1u << (tried++ % 8));
            }
        }
    }
    assert_true(tried >= 30);
}

static void one_flipped_bit_outside_of_blocks_is_found(void **state) {
    (void)state;
    uint64_t table = 0, rows = 0, blocks = 0, end = 4096;
    assert_true(kmx_table(file.data, file.size, &table, &rows, &blocks));
    for (size_t i = 0; i < file.size; i++) {
        bool inside = false;
        for (uint64_t r = 0; r < rows; r++) {
            const uint8_t *row = file.data + table + 64 * r;
            uint64_t at = kmx_u64(row + 8), bytes = kmx_u64(row + 16);
            if (i >= at && i < at + bytes) {
                inside = true;
                end = at + bytes;
            }
        }
        if (inside) {
            i = end - 1;
            continue;
        }
        if (i > 200 && i < 4000 && i % 64) continue; /* zeros of the header: some of them */
        file.data[i] ^= (uint8_t)(1u << (i % 8));
        km_error err = {0};
        km_kmx *f = km_kmx_parse(file.data, file.size, "x.kmx", &err);
        if (f) fail_msg("byte %zu", i);
        assert_one_line(&err);
        file.data[i] ^= (uint8_t)(1u << (i % 8));
    }
}

static void files_cut_short_are_refused(void **state) {
    (void)state;
    for (size_t n = 0; n < file.size; n += n < 200 ? 1 : SANITIZED ? 9777 : 977) {
        km_error err = use(file.data, n);
        assert_one_line(&err);
    }
}

static void a_newer_version_is_named(void **state) {
    (void)state;
    uint8_t *copy = malloc(file.size);
    memcpy(copy, file.data, file.size);
    copy[8] = 9;
    kmx_seal(copy, file.size);
    km_error err = use(copy, file.size); /* newer, but readable by version 1 */
    assert_int_equal(err.code, KM_OK);
    copy[12] = 2;
    kmx_seal(copy, file.size);
    err = use(copy, file.size);
    assert_int_equal(err.code, KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "version 9, which takes a newer Kermes"));
    memcpy(copy + 16, "\x0a\x0b\x0c\x0d", 4);
    err = use(copy, file.size);
    assert_non_null(strstr(err.text, "big-endian"));
    free(copy);
}

/* Sizes in the header that do not fit what follows, under checksums that are right. */
static void lies_under_right_checksums_are_refused(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
    } lies[] = {{32, DIM + 1},    {32, 0},  {32, 1u << 30}, {40, N + 1},
                {40, UINT64_MAX}, {48, 4},  {48, N + 1},    {56, 0},
                {56, UINT64_MAX}, {64, 31}, {64, 0},        {64, 1u << 31},
                {88, 0},          {88, 60}, {88, 13},       {88, 1ull << 32}};
    uint8_t *copy = malloc(file.size);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        memcpy(copy, file.data, file.size);
        kmx_put(copy + lies[i].at, lies[i].value);
        if (memcmp(copy, file.data, 4088) == 0) continue;
        kmx_seal(copy, file.size);
        km_error err = use(copy, file.size);
        if (err.code == KM_OK)
            fail_msg("header at %zu = %llu", lies[i].at, (unsigned long long)lies[i].value);
        assert_one_line(&err);
    }
    free(copy);
}

static void packed_ids_come_back(void **state) {
    (void)state;
    assert_int_equal(km_id_bits(0), 1);
    assert_int_equal(km_id_bits(255), 8);
    assert_int_equal(km_id_bits(256), 9);
    assert_int_equal(km_id_bits(UINT64_MAX), 64);
    for (int bits = 1; bits <= 64; bits++) {
        if (bits > 56 && bits < 64) continue;
        uint8_t *p = calloc(km_id_bytes(100, bits), 1);
        uint64_t mask = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
        for (int64_t i = 0; i < 100; i++)
            km_id_put(p, i, bits, ((uint64_t)i * 0x9e3779b97f4a7c15u) & mask);
        for (int64_t i = 0; i < 100; i++)
            assert_true(km_id_get(p, i, bits) == (((uint64_t)i * 0x9e3779b97f4a7c15u) & mask));
        free(p);
    }
}

static void a_write_that_fails_leaves_the_old_index(void **state) {
    (void)state;
    km_index *x = km_index_open(in_folder("true.kmx"));
    assert_non_null(x);
    int before = entries();
    for (int64_t nth = 0; nth < 40; nth++) { /* memory that runs out at any moment */
        km_alloc_fail_nth(nth);
        km_status s = km_index_save(x, in_folder("true.kmx"), true);
        km_alloc_fail_nth(-1);
        if (s == KM_OK) break;
        blob b = read_blob(in_folder("true.kmx"));
        assert_int_equal(b.size, file.size);
        assert_memory_equal(b.data, file.data, b.size);
        free(b.data);
        assert_int_equal(entries(), before);
    }
    assert_int_not_equal(km_index_save(x, in_folder("no/such/folder.kmx"), true), KM_OK);
    km_index_close(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_file_is_used_without_complaint),
        cmocka_unit_test(one_flipped_bit_in_any_block_is_found),
        cmocka_unit_test(one_flipped_bit_outside_of_blocks_is_found),
        cmocka_unit_test(files_cut_short_are_refused),
        cmocka_unit_test(a_newer_version_is_named),
        cmocka_unit_test(lies_under_right_checksums_are_refused),
        cmocka_unit_test(packed_ids_come_back),
        cmocka_unit_test(a_write_that_fails_leaves_the_old_index),
    };
    const struct CMUnitTest few[] = {cmocka_unit_test(a_true_file_is_used_without_complaint)};
    return THREADS_SANITIZED ? cmocka_run_group_tests(few, set_up, tear_down) /* no threads here */
                             : cmocka_run_group_tests(tests, set_up, tear_down);
}

/* Safetensors: what is written comes back, what is wrong is refused in one line, and a write that
 * fails leaves everything as it was. */
#include "format/formats.h"
#include "format/safetensors.h"
#include <signal.h>
#include <sys/resource.h>

/* ---- Round trips ---- */

static const float floats[6] = {1, 2, 3, 4, 5, -0.5f};
static const uint8_t small[3] = {7, 8, 9};

static void what_is_written_comes_back(void **state) {
    const uint16_t half[4] = {0x3c00, 0, 1, 0xffff};
    km_st_item items[] = {
        {.name = "small", .dtype = KM_U8, .shape = KM_SHAPE(3), .data = small},
        {.name = "floats", .dtype = KM_F32, .shape = KM_SHAPE(2, 3), .data = floats},
        {.name = "half", .dtype = KM_BF16, .shape = KM_SHAPE(1, 2, 1, 2, 1), .data = half},
        {.name = "empty", .dtype = KM_I64, .shape = KM_SHAPE(0, 3)},
        {.name = "scalar", .dtype = KM_F32, .shape = KM_SCALAR, .data = floats + 4},
    };
    km_st_pair meta[] = {{"step", "12"}, {"ünïcode \"key\"", "two\nlines"}};
    km_error err = {0};
    assert_int_equal(km_safetensors_write(in_folder("a"), items, 5, meta, 2, &err), KM_OK);
    km_safetensors *f = km_safetensors_open(in_folder("a"), &err);
    assert_non_null(f);
    assert_int_equal(km_safetensors_count(f), 5);
    for (int i = 0; i < 5; i++) {
        const km_st_tensor *t = km_safetensors_find(f, items[i].name);
        assert_non_null(t);
        assert_string_equal(t->name, items[i].name);
        assert_int_equal(t->dtype, items[i].dtype);
        assert_int_equal(t->shape.ndim, items[i].shape.ndim);
        for (int d = 0; d < t->shape.ndim; d++)
            assert_int_equal(t->shape.dim[d], items[i].shape.dim[d]);
        assert_true(t->aligned);
        if (t->bytes) assert_memory_equal(t->data, items[i].data, t->bytes);
        if (!t->bytes) assert_null(t->data);
    }
    assert_null(km_safetensors_find(f, "other"));
    assert_null(km_safetensors_at(f, 5));
    assert_null(km_safetensors_at(f, -1));
    assert_int_equal(km_safetensors_meta_count(f), 2);
    assert_string_equal(km_safetensors_meta(f, "step"), "12");
    assert_string_equal(km_safetensors_meta(f, "ünïcode \"key\""), "two\nlines");
    assert_null(km_safetensors_meta(f, "none"));
    km_safetensors_close(f);
}

static void data_begins_at_64_bytes_and_larger_dtypes_come_first(void **state) {
    const int64_t wide[1] = {3};
    km_st_item items[] = {
        {.name = "a", .dtype = KM_U8, .shape = KM_SHAPE(3), .data = small},
        {.name = "b", .dtype = KM_F32, .shape = KM_SHAPE(1), .data = floats},
        {.name = "c", .dtype = KM_I64, .shape = KM_SHAPE(1), .data = wide},
    };
    assert_int_equal(km_safetensors_write(in_folder("a"), items, 3, NULL, 0, NULL), KM_OK);
    blob b = read_blob(in_folder("a"));
    assert_int_equal((b.data[0] + 256 * b.data[1] + 8) % 64, 0);
    free(b.data);
    km_safetensors *f = km_safetensors_open(in_folder("a"), NULL);
    assert_string_equal(km_safetensors_at(f, 0)->name, "c");
    assert_string_equal(km_safetensors_at(f, 1)->name, "b");
    assert_string_equal(km_safetensors_at(f, 2)->name, "a");
    km_safetensors_close(f);
}

static void a_file_without_tensors_is_one(void **state) {
    assert_int_equal(km_safetensors_write(in_folder("a"), NULL, 0, NULL, 0, NULL), KM_OK);
    km_safetensors *f = km_safetensors_open(in_folder("a"), NULL);
    assert_non_null(f);
    assert_int_equal(km_safetensors_count(f), 0);
    assert_int_equal(km_safetensors_meta_count(f), 0);
    assert_null(km_safetensors_meta(f, "x"));
    km_safetensors_close(f);
}

typedef struct counting {
    size_t calls, next, fail_at;
    km_status code;
    bool say_why;
} counting;

static km_status fill_bytes(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    counting *c = user;
    assert_int_equal(offset, c->next); /* in order, without gaps */
    assert_true(bytes > 0 && bytes <= KM_FILL_PIECE && bytes % 4 == 0);
    c->calls++;
    c->next += bytes;
    if (c->fail_at == c->calls)
        return c->say_why ? km_error_set(err, c->code, "the device went away") : c->code;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)dst)[i] = (uint8_t)((offset + i) * 7 >> 3);
    return KM_OK;
}

static void a_tensor_behind_a_callback_is_streamed_in_pieces(void **state) {
    int64_t n = 9 * ((int64_t)KM_FILL_PIECE / 4) / 4; /* two pieces and a quarter */
    counting c = {0};
    km_st_item item = {
        .name = "t", .dtype = KM_F32, .shape = KM_SHAPE(n), .fill = fill_bytes, .user = &c};
    assert_int_equal(km_safetensors_write(in_folder("a"), &item, 1, NULL, 0, NULL), KM_OK);
    assert_int_equal(c.calls, 3);
    km_safetensors *f = km_safetensors_open(in_folder("a"), NULL);
    const km_st_tensor *t = km_safetensors_find(f, "t");
    assert_int_equal(t->bytes, 4 * n);
    const uint8_t *p = t->data;
    for (size_t i = 0; i < t->bytes; i += 997) assert_int_equal(p[i], (uint8_t)(i * 7 >> 3));
    km_safetensors_close(f);
}

/* ---- Writes that fail ---- */

static void write_old(void) { write_blob(in_folder("a"), "old", 3); }

static void assert_old(void) {
    blob b = read_blob(in_folder("a"));
    assert_int_equal(b.size, 3);
    assert_memory_equal(b.data, "old", 3);
    free(b.data);
    assert_int_equal(entries(), 1);
}

static void a_callback_that_fails_leaves_the_target_as_it_was(void **state) {
    for (int say = 0; say < 2; say++) {
        write_old();
        counting c = {.fail_at = 2, .code = KM_ERR_GPU, .say_why = say};
        km_st_item item = {.name = "t",
                           .dtype = KM_F32,
                           .shape = KM_SHAPE((int64_t)KM_FILL_PIECE / 2),
                           .fill = fill_bytes,
                           .user = &c};
        km_error err = {0};
        assert_int_equal(km_safetensors_write(in_folder("a"), &item, 1, NULL, 0, &err), KM_ERR_GPU);
        assert_string_equal(err.text,
                            say ? "the device went away" : "tensor 't' cannot be read: GPU error");
        assert_int_equal(c.calls, 2);
        assert_old();
    }
}

static void a_full_disk_leaves_the_target_as_it_was(void **state) {
    write_old();
    struct rlimit was, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){1 << 20, was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    counting c = {0};
    km_st_item item = {
        .name = "t", .dtype = KM_F32, .shape = KM_SHAPE(1 << 20), .fill = fill_bytes, .user = &c};
    km_error err = {0};
    km_status status = km_safetensors_write(in_folder("a"), &item, 1, NULL, 0, &err);
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, KM_ERR_FILE);
    assert_one_line(&err);
    assert_old();
}

static void what_cannot_be_written_is_refused(void **state) {
    static const struct {
        km_st_item items[2];
        int n;
        km_st_pair meta[2];
        int n_meta;
        const char *why;
    } cases[] = {
        {{{.name = NULL, .dtype = KM_U8}}, 1, {{0}}, 0, "'' cannot name a tensor"},
        {{{.name = "__metadata__", .dtype = KM_U8}}, 1, {{0}}, 0, "cannot name a tensor"},
        {{{.name = "a", .dtype = KM_DTYPE_COUNT}}, 1, {{0}}, 0, "tensor 'a' has no dtype"},
        {{{.name = "a", .dtype = KM_U8, .shape = {1, {-1}}}}, 1, {{0}}, 0, "no valid shape"},
        {{{.name = "a", .dtype = KM_F32, .shape = {2, {1LL << 40, 1LL << 40}}}},
         1,
         {{0}},
         0,
         "no valid shape"},
        {{{.name = "a", .dtype = KM_U8, .shape = {6, {0}}}}, 1, {{0}}, 0, "no valid shape"},
        {{{.name = "a", .dtype = KM_U8, .shape = {1, {3}}}}, 1, {{0}}, 0, "has no data"},
        {{{.name = "a", .dtype = KM_U8, .shape = {1, {0}}},
          {.name = "a", .dtype = KM_U8, .shape = {1, {0}}}},
         2,
         {{0}},
         0,
         "tensor 'a' twice"},
        {{{.name = "\xff", .dtype = KM_U8, .shape = {1, {0}}}}, 1, {{0}}, 0, "not UTF-8"},
        {{{0}}, 0, {{"k", "v"}, {"k", "w"}}, 2, "metadata 'k' twice"},
        {{{0}}, 0, {{"k", "\xc3"}}, 1, "not UTF-8"},
        {{{0}}, 0, {{"k", NULL}}, 1, "metadata 'k'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_old();
        km_error err = {0};
        assert_int_not_equal(km_safetensors_write(in_folder("a"), cases[i].items, cases[i].n,
                                                  cases[i].meta, cases[i].n_meta, &err),
                             KM_OK);
        assert_one_line(&err);
        if (!strstr(err.text, cases[i].why)) fail_msg("'%s' lacks '%s'", err.text, cases[i].why);
        assert_old();
    }
}

static void running_out_of_memory_anywhere_is_an_error(void **state) {
    km_st_item items[] = {
        {.name = "a", .dtype = KM_U8, .shape = KM_SHAPE(3), .data = small},
        {.name = "b", .dtype = KM_F32, .shape = KM_SHAPE(2, 3), .data = floats},
    };
    km_st_pair meta[] = {{"k", "v"}};
    int64_t live = km_alloc_live();
    bool done = false;
    for (int n = 0; !done; n++) {
        write_old();
        km_error err = {0};
        km_alloc_fail_nth(n);
        done = km_safetensors_write(in_folder("a"), items, 2, meta, 1, &err) == KM_OK;
        km_alloc_fail_nth(-1);
        if (done) break;
        assert_int_equal(err.code, KM_ERR_MEMORY);
        assert_old();
        assert_int_equal(km_alloc_live(), live);
    }
    done = false;
    for (int n = 0; !done; n++) {
        km_error err = {0};
        km_alloc_fail_nth(n);
        km_safetensors *f = km_safetensors_open(in_folder("a"), &err);
        km_alloc_fail_nth(-1);
        done = f != NULL;
        if (!f) assert_int_equal(err.code, KM_ERR_MEMORY);
        km_safetensors_close(f);
        assert_int_equal(km_alloc_live(), live);
    }
}

/* ---- Files that are wrong ---- */

/* A file of that header and `data` bytes after it. */
static void assert_bad(const char *header, size_t data, const char *why) {
    size_t n = strlen(header), size = 8 + n + data;
    uint8_t *bytes = calloc(size, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
    memcpy(bytes + 8, header, n);
    km_error err = {0};
    int64_t live = km_alloc_live();
    km_safetensors *f = km_safetensors_parse(bytes, size, "x", &err);
    if (why) {
        assert_null(f);
        assert_one_line(&err);
        if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    } else {
        if (!f) fail_msg("%s", err.text);
    }
    km_safetensors_close(f);
    assert_int_equal(km_alloc_live(), live);
    free(bytes);
}

#define T(dtype, shape, offsets)                                                                   \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void hostile_headers_are_refused_in_one_line(void **state) {
    assert_bad("{}", 0, NULL);
    assert_bad("{}    ", 0, NULL);
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") "}", 8, NULL);
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("U8", "[0]", "[8,8]") "}", 8, NULL);
    assert_bad("{\"a\":" T("F4", "[2]", "[0,1]") "}", 1, NULL);

    assert_bad("[]", 0, "not safetensors");
    assert_bad("{", 0, "not safetensors");
    assert_bad("{]", 0, "not valid JSON");
    assert_bad("{} x", 0, "not valid JSON");
    assert_bad("{}{}", 0, "not valid JSON");
    assert_bad("{\"a\\u0000b\":" T("F32", "[2]", "[0,8]") "}", 8, "not valid JSON");
    assert_bad("{\"\xff\":" T("F32", "[2]", "[0,8]") "}", 8, "not valid JSON");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"a\":" T("F32", "[2]", "[0,8]") "}", 8,
               "not valid JSON");
    assert_bad("{\"a\":3}", 0, "no dtype");
    assert_bad("{\"a\":{}}", 0, "no dtype");
    assert_bad("{\"a\":{\"dtype\":5}}", 0, "no dtype");
    assert_bad("{\"a\\nb\":" T("F33", "[2]", "[0,8]") "}", 8, "'a?b' has the unknown dtype 'F33'");
    assert_bad("{\"a\":{\"dtype\":\"F32\"}}", 0, "no shape");
    assert_bad("{\"a\":" T("F32", "{}", "[0,8]") "}", 8, "no shape");
    assert_bad("{\"a\":" T("F32", "[2.0]", "[0,8]") "}", 8, "no whole number");
    assert_bad("{\"a\":" T("F32", "[-2]", "[0,8]") "}", 8, "no whole number");
    assert_bad("{\"a\":" T("F32", "[99999999999999999999]", "[0,8]") "}", 8, "not valid JSON");
    assert_bad("{\"a\":" T("F32", "[1,1,1,1,1,2]", "[0,8]") "}", 8, "6 dimensions");
    assert_bad("{\"a\":" T("F32", "[2]", "[0]") "}", 8, "data_offsets");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8,9]") "}", 8, "data_offsets");
    assert_bad("{\"a\":" T("F32", "[2]", "[8,0]") "}", 8, "data_offsets");
    assert_bad("{\"a\":" T("F32", "[2]", "[-8,0]") "}", 8, "data_offsets");
    assert_bad("{\"a\":" T("F32", "[2]", "\"0\"") "}", 8, "data_offsets");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") "}", 7, "cut short");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,9223372036854775807]") "}", 8, "cut short");
    assert_bad("{\"a\":" T("F32", "[3]", "[0,8]") "}", 8, "shape and dtype");
    assert_bad("{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "shape and dtype");
    assert_bad("{\"a\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "shape and dtype");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") "}", 9, "1 bytes at the end");
    assert_bad("{\"a\":" T("F32", "[2]", "[4,12]") "}", 12, "does not begin where");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[4,12]") "}", 12,
               "'b' overlaps");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[0,8]") "}", 8,
               "overlaps");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("F32", "[2]", "[12,20]") "}", 20,
               "'b' does not begin where");
    assert_bad("{\"a\":" T("F32", "[2]", "[0,8]") ",\"b\":" T("U8", "[0]", "[4,4]") "}", 8,
               "overlaps");
    assert_bad("{\"__metadata__\":[]}", 0, "must be an object");
    assert_bad("{\"__metadata__\":{\"a\":1}}", 0, "metadata 'a' is no string");
}

static void lengths_that_lie_are_refused(void **state) {
    static const struct {
        const char *bytes;
        size_t size;
        const char *why;
    } cases[] = {
        {"", 0, "too few"},
        {"\2\0\0\0\0\0\0", 7, "too few"},
        {"\2\0\0\0\0\0\0\0", 8, "cut short"},
        {"\2\0\0\0\0\0\0\0{", 9, "cut short"},
        {"\0\0\0\0\0\0\0\0{}", 10, "not safetensors"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "at most 100 MiB"},
        {"\x01\x00\x40\x06\0\0\0\0{}", 10, "at most 100 MiB"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS pointer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *exact = malloc(cases[i].size ? cases[i].size : 1);
        memcpy(exact, cases[i].bytes, cases[i].size);
        km_error err = {0};
        assert_null(km_safetensors_parse(exact, cases[i].size, "x", &err));
        assert_one_line(&err);
        if (!strstr(err.text, cases[i].why)) fail_msg("'%s' lacks '%s'", err.text, cases[i].why);
        free(exact);
    }
}

static void unaligned_data_is_marked(void **state) {
    const char *header = "{\"a\":" T("F32", "[1]", "[0,4]") "}"; /* of any length */
    for (size_t pad = 0; pad < 4; pad++) {
        size_t n = strlen(header) + pad;
        uint8_t *bytes = aligned_alloc(64, 256);
        memset(bytes, ' ', 256);
        for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n >> 8 * i);
        memcpy(bytes + 8, header, strlen(header));
        km_safetensors *f = km_safetensors_parse(bytes, 8 + n + 4, "x", NULL);
        assert_non_null(f);
        assert_int_equal(km_safetensors_at(f, 0)->aligned, (8 + n) % 4 == 0);
        km_safetensors_close(f);
        free(bytes);
    }
}

static bool try_safetensors(const uint8_t *data, size_t size) {
    km_error err = {0};
    int64_t live = km_alloc_live();
    km_safetensors *f = km_safetensors_parse(data, size, "x", &err);
    if (!f) assert_one_line(&err);
    uint64_t h = 0;
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        h += fnv(t->data, t->bytes) + strlen(t->name);
        assert_ptr_equal(km_safetensors_find(f, t->name), t);
    }
    for (int i = 0; i < km_safetensors_meta_count(f); i++)
        h += strlen(km_safetensors_meta(f, km_safetensors_meta_key(f, i)));
    km_safetensors_close(f);
    assert_int_equal(km_alloc_live(), live);
    static volatile uint64_t sink;
    sink = h;
    (void)sink;
    return f != NULL;
}

static void no_damage_gets_past_the_reader(void **state) {
    blob b = fixture("every.safetensors");
    maul(&b, 8 + b.data[0] + 256u * b.data[1], false, try_safetensors);
    free(b.data);
}

/* ---- Several files ---- */

static void assert_no_open(const char *path, km_status code, const char *why) {
    km_error err = {0};
    assert_null(km_safetensors_open(path, &err));
    assert_one_line(&err);
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    assert_int_equal(err.code, code);
}

static void write_one(const char *file, const char *tensor) {
    km_st_item item = {.name = tensor, .dtype = KM_F32, .shape = KM_SHAPE(2), .data = floats};
    assert_int_equal(km_safetensors_write(in_folder(file), &item, 1, NULL, 0, NULL), KM_OK);
}

static void write_index(const char *map) {
    char text[512];
    int n = snprintf(text, sizeof text, "{\"weight_map\":%s}", map);
    write_blob(in_folder("model.safetensors.index.json"), text, (size_t)n);
}

static void a_folder_opens_by_its_model_or_its_index(void **state) {
    assert_no_open(folder, KM_ERR_FILE, "holds no model.safetensors");
    write_one("one.safetensors", "a");
    write_one("two.safetensors", "b");
    write_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
    const char *paths[] = {folder, in_folder("model.safetensors.index.json")};
    for (int i = 0; i < 2; i++) {
        km_safetensors *f = km_safetensors_open(paths[i], NULL);
        assert_non_null(f);
        assert_int_equal(km_safetensors_files(f), 2);
        assert_int_equal(km_safetensors_count(f), 2);
        assert_int_equal(km_safetensors_find(f, "a")->file, 0);
        assert_int_equal(km_safetensors_find(f, "b")->file, 1);
        assert_string_equal(km_safetensors_file(f, 1), in_folder("two.safetensors"));
        km_safetensors_close(f);
    }
    write_one("model.safetensors", "whole");
    km_safetensors *f = km_safetensors_open(folder, NULL);
    assert_int_equal(km_safetensors_files(f), 1);
    assert_non_null(km_safetensors_find(f, "whole"));
    km_safetensors_close(f);
}

static void an_index_that_lies_is_refused(void **state) {
    write_one("one.safetensors", "a");
    write_one("two.safetensors", "a");
    write_index("{}");
    assert_no_open(folder, KM_ERR_FORMAT, "no weight_map");
    write_index("3");
    assert_no_open(folder, KM_ERR_FORMAT, "no weight_map");
    write_index("{\"a\":3}");
    assert_no_open(folder, KM_ERR_FORMAT, "in no valid file");
    write_index("{\"a\":\"../one.safetensors\"}");
    assert_no_open(folder, KM_ERR_FORMAT, "in no valid file");
    write_index("{\"a\":\"..\"}");
    assert_no_open(folder, KM_ERR_FILE, "is a folder");
    write_index("{\"a\":\"none.safetensors\"}");
    assert_no_open(folder, KM_ERR_FILE, "No such file");
    write_index("{\"x\":\"one.safetensors\"}");
    assert_no_open(folder, KM_ERR_FORMAT, "lacks tensor 'x'");
    write_index("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}");
    assert_no_open(folder, KM_ERR_FORMAT, "lacks tensor 'b'");
    write_one("two.safetensors", "b");
    km_st_item both[] = {
        {.name = "a", .dtype = KM_F32, .shape = KM_SHAPE(1), .data = floats},
        {.name = "b", .dtype = KM_F32, .shape = KM_SHAPE(1), .data = floats},
    };
    assert_int_equal(km_safetensors_write(in_folder("two.safetensors"), both, 2, NULL, 0, NULL), 0);
    assert_no_open(folder, KM_ERR_FORMAT, "both hold a tensor 'a'");
}

static void what_is_no_file_is_refused(void **state) {
    assert_no_open("", KM_ERR_NULL, "no file name");
    assert_no_open(in_folder("none"), KM_ERR_FILE, "No such file");
    assert_no_open("/dev/null", KM_ERR_FILE, "not a regular file");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_written_comes_back, empty_folder),
        cmocka_unit_test_teardown(data_begins_at_64_bytes_and_larger_dtypes_come_first,
                                  empty_folder),
        cmocka_unit_test_teardown(a_file_without_tensors_is_one, empty_folder),
        cmocka_unit_test_teardown(a_tensor_behind_a_callback_is_streamed_in_pieces, empty_folder),
        cmocka_unit_test_teardown(a_callback_that_fails_leaves_the_target_as_it_was, empty_folder),
        cmocka_unit_test_teardown(a_full_disk_leaves_the_target_as_it_was, empty_folder),
        cmocka_unit_test_teardown(what_cannot_be_written_is_refused, empty_folder),
        cmocka_unit_test_teardown(running_out_of_memory_anywhere_is_an_error, empty_folder),
        cmocka_unit_test(hostile_headers_are_refused_in_one_line),
        cmocka_unit_test(lengths_that_lie_are_refused),
        cmocka_unit_test(unaligned_data_is_marked),
        cmocka_unit_test(no_damage_gets_past_the_reader),
        cmocka_unit_test_teardown(a_folder_opens_by_its_model_or_its_index, empty_folder),
        cmocka_unit_test_teardown(an_index_that_lies_is_refused, empty_folder),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

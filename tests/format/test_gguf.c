/* GGUF: what is written comes back, split models open whole, what is wrong is refused in one line,
 * and a write that fails leaves everything as it was. */
#include "format/formats.h"
#include "format/gguf.h"
#include <signal.h>
#include <sys/resource.h>

static const float floats[6] = {1, 2, 3, 4, 5, -0.5f};

/* ---- Round trips ---- */

static km_gguf_out *some(void) {
    km_gguf_out *o = km_gguf_out_new(NULL);
    assert_non_null(o);
    km_gguf_put_string(o, "general.architecture", "gpt2");
    km_gguf_put_u32(o, "u32", 4000000000u);
    km_gguf_put_u64(o, "u64", UINT64_MAX);
    km_gguf_put_i32(o, "i32", -7);
    km_gguf_put_f32(o, "f32", 0.25f);
    km_gguf_put_bool(o, "yes", true);
    km_gguf_put_bool(o, "no", false);
    km_gguf_put_array(o, "ints", KM_GGUF_I32, (int32_t[]){1, -2, 3}, 3);
    km_gguf_put_strings(o, "words", (const char *[]){"", "a", "b\0c"}, (size_t[]){0, 1, 3}, 3);
    km_gguf_add(o, "matrix", KM_GGML_F32, KM_SHAPE(2, 3), floats, NULL, NULL);
    km_gguf_add(o, "vector", KM_GGML_F32, KM_SHAPE(5), floats, NULL, NULL);
    return o;
}

static void what_is_written_comes_back(void **state) {
    km_gguf_out *o = some();
    km_error err = {0};
    assert_int_equal(km_gguf_write(o, in_folder("a"), &err), KM_OK);
    km_gguf_out_free(o);
    km_gguf *g = km_gguf_open(in_folder("a"), &err);
    assert_non_null(g);
    assert_int_equal(km_gguf_version(g), 3);
    assert_int_equal(km_gguf_files(g), 1);
    assert_int_equal(km_gguf_meta_count(g), 9);
    assert_string_equal(km_gguf_meta_key(g, 1), "u32");
    assert_int_equal(km_gguf_meta_at(g, 1)->u, 4000000000u);
    assert_true(km_gguf_get(g, "u64")->u == UINT64_MAX);
    assert_int_equal(km_gguf_get(g, "i32")->i, -7);
    assert_true(km_gguf_get(g, "f32")->f == 0.25);
    assert_true(km_gguf_get(g, "yes")->b);
    assert_false(km_gguf_get(g, "no")->b);
    assert_string_equal(km_gguf_get(g, "general.architecture")->text.data, "gpt2");
    assert_null(km_gguf_get(g, "none"));
    assert_null(km_gguf_meta_key(g, 9));
    km_gguf_value v;
    km_gguf_iter it = km_gguf_begin(km_gguf_get(g, "ints"));
    for (int i = 0; i < 3; i++) {
        assert_true(km_gguf_next(&it, &v));
        assert_int_equal(v.i, ((int[]){1, -2, 3})[i]);
    }
    assert_false(km_gguf_next(&it, &v));
    it = km_gguf_begin(km_gguf_get(g, "words"));
    assert_true(km_gguf_next(&it, &v) && v.text.size == 0);
    assert_true(km_gguf_next(&it, &v) && v.text.size == 1);
    assert_true(km_gguf_next(&it, &v) && v.text.size == 3);
    assert_memory_equal(v.text.data, "b\0c", 3);
    it = km_gguf_begin(km_gguf_get(g, "u32")); /* no array */
    assert_false(km_gguf_next(&it, &v));
    assert_int_equal(km_gguf_count(g), 2);
    const km_gguf_tensor *t = km_gguf_find(g, "matrix");
    assert_int_equal(t->shape.ndim, 2);
    assert_int_equal(t->shape.dim[0], 2);
    assert_int_equal(t->shape.dim[1], 3);
    assert_int_equal(t->info->dtype, KM_F32);
    assert_memory_equal(t->data, floats, 24);
    assert_int_equal((uintptr_t)km_gguf_find(g, "vector")->data % 32, 0);
    assert_null(km_gguf_find(g, "none"));
    km_gguf_close(g);
}

static void what_was_put_can_be_seen_and_dropped(void **state) {
    km_gguf_out *o = some();
    km_gguf_value v;
    assert_true(km_gguf_out_get(o, "i32", &v));
    assert_int_equal(v.i, -7);
    assert_true(km_gguf_out_get(o, "words", &v));
    assert_int_equal(v.array.count, 3);
    assert_false(km_gguf_out_get(o, "none", &v));
    km_gguf_drop(o, "i32");
    km_gguf_drop(o, "none");
    assert_false(km_gguf_out_get(o, "i32", &v));
    km_gguf_drop(o, "words"); /* the last one */
    km_gguf_put_u32(o, "words", 3);
    assert_int_equal(km_gguf_write(o, in_folder("a"), NULL), KM_OK);
    km_gguf_out_free(o);
    km_gguf *g = km_gguf_open(in_folder("a"), NULL);
    assert_non_null(g);
    assert_int_equal(km_gguf_meta_count(g), 8);
    assert_null(km_gguf_get(g, "i32"));
    assert_int_equal(km_gguf_get(g, "words")->u, 3);
    assert_true(km_gguf_get(g, "f32")->f == 0.25);
    km_gguf_close(g);
}

static void a_file_copied_value_by_value_is_the_same(void **state) {
    blob b = fixture("every.gguf");
    km_gguf *g = km_gguf_parse(b.data, b.size, "every.gguf", NULL);
    assert_non_null(g);
    km_gguf_out *o = km_gguf_out_new(NULL);
    for (int i = 0; i < km_gguf_meta_count(g); i++)
        km_gguf_put_value(o, km_gguf_meta_key(g, i), km_gguf_meta_at(g, i));
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        km_gguf_add(o, t->name, t->info->type, t->shape, t->data, NULL, NULL);
    }
    km_error err = {0};
    assert_int_equal(km_gguf_write(o, in_folder("copy"), &err), KM_OK);
    blob copy = read_blob(in_folder("copy"));
    assert_int_equal(copy.size, b.size);
    assert_memory_equal(copy.data, b.data, b.size);
    free(copy.data);
    km_gguf_out_free(o);
    km_gguf_close(g);
    free(b.data);
}

static void version_2_is_read_like_version_3(void **state) {
    blob b = fixture("every.gguf");
    b.data[4] = 2;
    km_gguf *g = km_gguf_parse(b.data, b.size, "x", NULL);
    assert_non_null(g);
    assert_int_equal(km_gguf_version(g), 2);
    km_gguf_close(g);
    free(b.data);
}

static km_status fill_blocks(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    size_t *next = user;
    assert_int_equal(offset, *next);
    assert_int_equal(bytes % 34, 0);
    assert_true(bytes <= KM_FILL_PIECE);
    *next += bytes;
    memset(dst, (int)(offset & 0xff), bytes);
    return offset > (40 << 20) ? km_error_set(err, KM_ERR_GPU, "the device went away") : KM_OK;
}

static void pieces_of_a_quantised_tensor_hold_whole_blocks(void **state) {
    km_gguf_out *o = km_gguf_out_new(NULL);
    size_t next = 0;
    km_gguf_add(o, "q", KM_GGML_Q8_0, KM_SHAPE(5000, 3200), NULL, fill_blocks, &next);
    km_error err = {0};
    assert_int_equal(km_gguf_write(o, in_folder("a"), &err), KM_OK);
    assert_int_equal(next, 5000 * 100 * 34);
    km_gguf_out_free(o);
}

/* ---- Keys with checks ---- */

static void keys_are_read_with_their_type_and_range_checked(void **state) {
    km_gguf_out *o = some();
    assert_int_equal(km_gguf_write(o, in_folder("a"), NULL), KM_OK);
    km_gguf_out_free(o);
    km_gguf *g = km_gguf_open(in_folder("a"), NULL);
    int64_t n = 5;
    double x = 5;
    bool b = true;
    const char *s = "five";
    assert_int_equal(km_gguf_int(g, "none", 0, 1, &n, NULL), KM_OK);
    assert_int_equal(n, 5); /* the default stays */
    assert_int_equal(km_gguf_int(g, "u32", 0, INT64_MAX, &n, NULL), KM_OK);
    assert_int_equal(n, 4000000000);
    assert_int_equal(km_gguf_real(g, "f32", 0, 1, &x, NULL), KM_OK);
    assert_true(x == 0.25);
    assert_int_equal(km_gguf_bool(g, "no", &b, NULL), KM_OK);
    assert_false(b);
    assert_int_equal(km_gguf_string(g, "general.architecture", &s, NULL), KM_OK);
    assert_string_equal(s, "gpt2");
    km_error err = {0};
    assert_int_equal(km_gguf_int(g, "u32", 0, 10, &n, &err), KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "u32 is 4000000000, not between 0 and 10"));
    err = (km_error){0};
    assert_int_equal(km_gguf_int(g, "u64", 0, INT64_MAX - 1, &n, &err), KM_ERR_FORMAT);
    err = (km_error){0};
    assert_int_equal(km_gguf_int(g, "f32", 0, 10, &n, &err), KM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "f32 must be a whole number, and its type is f32"));
    assert_int_equal(km_gguf_real(g, "u32", 0, 1, &x, NULL), KM_ERR_FORMAT);
    assert_int_equal(km_gguf_real(g, "f32", 1, 2, &x, NULL), KM_ERR_FORMAT);
    assert_int_equal(km_gguf_bool(g, "u32", &b, NULL), KM_ERR_FORMAT);
    assert_int_equal(km_gguf_string(g, "u32", &s, NULL), KM_ERR_FORMAT);
    km_gguf_close(g);
}

/* ---- Writes that fail ---- */

static void write_old(void) { write_blob(in_folder("a"), "old", 3); }

static void assert_old(void) {
    blob b = read_blob(in_folder("a"));
    assert_int_equal(b.size, 3);
    free(b.data);
    assert_int_equal(entries(), 1);
}

static void assert_no_write(km_gguf_out *o, const char *why) {
    write_old();
    km_error err = {0};
    assert_int_not_equal(km_gguf_write(o, in_folder("a"), &err), KM_OK);
    assert_one_line(&err);
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    assert_old();
    km_gguf_out_free(o);
}

static void what_cannot_be_written_is_refused(void **state) {
    km_gguf_out *o = some();
    km_gguf_put_u32(o, "yes", 1);
    assert_no_write(o, "metadata 'yes' is there twice");
    o = some();
    km_gguf_add(o, "vector", KM_GGML_F32, KM_SHAPE(1), floats, NULL, NULL);
    assert_no_write(o, "tensor 'vector' is there twice");
    o = some();
    km_gguf_add(o, "q", KM_GGML_Q8_0, KM_SHAPE(64, 31), floats, NULL, NULL);
    assert_no_write(o, "the shape of 'q' does not fit Q8_0");
    o = some();
    km_gguf_add(o, "q", KM_GGML_F32, KM_SHAPE(1, 1, 1, 1, 1), floats, NULL, NULL);
    assert_no_write(o, "the shape of 'q'");
    o = some();
    km_gguf_add(o, "q", (km_ggml_type)4, KM_SHAPE(1), floats, NULL, NULL);
    assert_no_write(o, "the shape of 'q' does not fit its type");
    o = some();
    km_gguf_add(o, "q", KM_GGML_F32, KM_SHAPE(1), NULL, NULL, NULL);
    assert_no_write(o, "tensor 'q' has no data");
    o = some();
    km_gguf_add(o, "", KM_GGML_F32, KM_SHAPE(1), floats, NULL, NULL);
    assert_no_write(o, "tensor name ''");
    o = some();
    km_gguf_add(o, "1234567890123456789012345678901234567890123456789012345678901234", KM_GGML_F32,
                KM_SHAPE(1), floats, NULL, NULL);
    assert_no_write(o, "not of 1 to 63 bytes");
    o = some();
    km_gguf_put_u32(o, "", 1);
    assert_no_write(o, "key is empty");
    o = some();
    km_gguf_put_array(o, "k", KM_GGUF_STRING, floats, 1);
    assert_no_write(o, "'k' is no array of numbers");
    o = some();
    size_t next = 0;
    km_gguf_add(o, "q", KM_GGML_Q8_0, KM_SHAPE(5000, 32 * 300), NULL, fill_blocks, &next);
    assert_no_write(o, "the device went away");
}

static void a_full_disk_leaves_the_target_as_it_was(void **state) {
    km_gguf_out *o = some();
    size_t next = 0;
    km_gguf_add(o, "q", KM_GGML_Q8_0, KM_SHAPE(5000, 320), NULL, fill_blocks, &next);
    struct rlimit was, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    limit = (struct rlimit){1 << 20, was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_no_write(o, "cannot write");
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, handler);
}

static void running_out_of_memory_anywhere_is_an_error(void **state) {
    int64_t live = km_alloc_live();
    bool done = false;
    for (int n = 0; !done; n++) {
        write_old();
        km_error err = {0};
        km_gguf_out *o = some();
        km_alloc_fail_nth(n);
        done = km_gguf_write(o, in_folder("a"), &err) == KM_OK;
        km_alloc_fail_nth(-1);
        km_gguf_out_free(o);
        assert_int_equal(km_alloc_live(), live);
        if (done) break;
        assert_int_equal(err.code, KM_ERR_MEMORY);
        assert_old();
    }
    for (done = false; !done;) {
        static int n;
        km_error err = {0};
        km_alloc_fail_nth(n++);
        km_gguf *g = km_gguf_open(in_folder("a"), &err);
        km_alloc_fail_nth(-1);
        done = g != NULL;
        if (!g) assert_int_equal(err.code, KM_ERR_MEMORY);
        km_gguf_close(g);
        assert_int_equal(km_alloc_live(), live);
    }
}

/* ---- Files that are wrong ---- */

typedef struct builder {
    uint8_t data[4096];
    size_t n;
} builder;

static void add(builder *b, const void *data, size_t n) {
    memcpy(b->data + b->n, data, n);
    b->n += n;
}
static void add32(builder *b, uint32_t v) { add(b, &v, 4); }
static void add64(builder *b, uint64_t v) { add(b, &v, 8); }
static void add_text(builder *b, const char *s) {
    add64(b, strlen(s));
    add(b, s, strlen(s));
}
static builder front(uint32_t version, uint64_t tensors, uint64_t pairs) {
    builder b = {.n = 0};
    add(&b, "GGUF", 4);
    add32(&b, version);
    add64(&b, tensors);
    add64(&b, pairs);
    return b;
}
static void add_tensor(builder *b, const char *name, uint64_t ne0, uint64_t ne1, uint32_t type,
                       uint64_t offset) {
    add_text(b, name);
    add32(b, 2);
    add64(b, ne0);
    add64(b, ne1);
    add32(b, type);
    add64(b, offset);
}

/* Pads to 32, adds `data` zero bytes, and tries. why NULL: it must open. */
static void assert_bad(builder *b, size_t data, const char *why) {
    if (data) b->n = (b->n + 31) / 32 * 32 + data;
    uint8_t *exact = malloc(b->n ? b->n : 1);
    memcpy(exact, b->data, b->n);
    km_error err = {0};
    int64_t live = km_alloc_live();
    km_gguf *g = km_gguf_parse(exact, b->n, "x", &err);
    if (why) {
        assert_null(g);
        assert_one_line(&err);
        if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    } else if (!g) {
        fail_msg("%s", err.text);
    }
    km_gguf_close(g);
    assert_int_equal(km_alloc_live(), live);
    free(exact);
}

static void hostile_heads_are_refused_in_one_line(void **state) {
    builder b = {.n = 0};
    assert_bad(&b, 0, "is not GGUF");
    add(&b, "GGML", 4);
    assert_bad(&b, 0, "is not GGUF");
    b = (builder){.n = 0};
    add(&b, "GGUF", 4);
    assert_bad(&b, 0, "the head");
    b = front(1, 0, 0);
    assert_bad(&b, 0, "GGUF version 1");
    b = front(4, 0, 0);
    assert_bad(&b, 0, "GGUF version 4");
    b = front(0x03000000, 0, 0);
    assert_bad(&b, 0, "big-endian");
    b = front(3, 0, 0);
    assert_bad(&b, 0, NULL);
    b = front(3, UINT64_MAX, 0);
    assert_bad(&b, 0, "claims 18446744073709551615 tensors");
    b = front(3, 0, UINT64_MAX);
    assert_bad(&b, 0, "claims 18446744073709551615 metadata pairs");
    b = front(3, 0, 1ull << 61); /* times the size of a pair is 0 */
    assert_bad(&b, 64, "metadata pairs");
    b = front(3, 1000, 0);
    assert_bad(&b, 512, "claims 1000 tensors");
}

static builder one_pair(const char *key, uint32_t type) {
    builder b = front(3, 0, 1);
    add_text(&b, key);
    add32(&b, type);
    return b;
}

static void hostile_metadata_is_refused_in_one_line(void **state) {
    builder b = one_pair("", KM_GGUF_U32);
    add64(&b, 1);
    assert_bad(&b, 0, "is empty");
    b = front(3, 0, 1);
    add64(&b, 3);
    add(&b, "a\0b", 3);
    add32(&b, KM_GGUF_U32);
    add32(&b, 1);
    assert_bad(&b, 0, "holds a NUL");
    b = front(3, 0, 1);
    add64(&b, UINT64_MAX);
    add64(&b, 0);
    assert_bad(&b, 0, "metadata pair 0 reaches beyond the end");
    b = one_pair("a\nb", 13);
    add64(&b, 0);
    assert_bad(&b, 0, "'a?b' has an unknown type");
    b = one_pair("key", KM_GGUF_F64);
    add32(&b, 0);
    assert_bad(&b, 0, "'key' reaches beyond");
    b = one_pair("key", KM_GGUF_BOOL);
    add32(&b, 2);
    assert_bad(&b, 0, "neither 0 nor 1");
    b = one_pair("key", KM_GGUF_STRING);
    add64(&b, UINT64_MAX);
    assert_bad(&b, 0, "reaches beyond");
    b = one_pair("key", KM_GGUF_ARRAY);
    add32(&b, 99);
    add64(&b, 0);
    assert_bad(&b, 0, "array of an unknown type");
    b = one_pair("key", KM_GGUF_ARRAY);
    add32(&b, KM_GGUF_U64);
    add64(&b, 1ull << 61); /* times 8 is 0 */
    assert_bad(&b, 0, "reaches beyond");
    b = one_pair("key", KM_GGUF_ARRAY);
    add32(&b, KM_GGUF_STRING);
    add64(&b, UINT64_MAX);
    assert_bad(&b, 64, "reaches beyond");
    b = one_pair("key", KM_GGUF_ARRAY);
    add32(&b, KM_GGUF_BOOL);
    add64(&b, 3);
    add(&b, "\1\0\5", 3);
    assert_bad(&b, 0, "holds a bool");
    b = one_pair("key", KM_GGUF_ARRAY);
    for (int i = 0; i < 100; i++) {
        add32(&b, KM_GGUF_ARRAY);
        add64(&b, 1);
    }
    assert_bad(&b, 0, "too deeply");
    b = front(3, 0, 2);
    for (int i = 0; i < 2; i++) {
        add_text(&b, "key");
        add32(&b, KM_GGUF_U32);
        add32(&b, 1);
    }
    assert_bad(&b, 0, "'key' is there twice");
    static const uint32_t alignments[] = {0, 3, 1u << 21, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        b = one_pair("general.alignment", KM_GGUF_U32);
        add32(&b, alignments[i]);
        assert_bad(&b, 0, "align");
    }
    b = one_pair("general.alignment", KM_GGUF_STRING);
    add_text(&b, "32");
    assert_bad(&b, 0, "must be a whole number");
}

static void hostile_tensors_are_refused_in_one_line(void **state) {
    builder b = front(3, 1, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_F32, 0);
    builder good = b;
    assert_bad(&b, 32, NULL);
    b = good;
    assert_bad(&b, 31, "ends beyond the file");
    assert_bad(&good, 0, "ends beyond the file");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_F32, 16);
    assert_bad(&b, 64, "not a multiple of the alignment");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_F32, UINT64_MAX - 31);
    assert_bad(&b, 64, "ends beyond the file");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 4, 2, 5, 0);
    assert_bad(&b, 64, "has type 5");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_Q4_0, 0);
    assert_bad(&b, 64, "does not fit Q4_0");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 1ull << 40, 1ull << 40, KM_GGML_F32, 0);
    assert_bad(&b, 64, "too large");
    b = front(3, 1, 0);
    add_tensor(&b, "t", 1ull << 62, 4, KM_GGML_F32, 0); /* 2^66 bytes */
    assert_bad(&b, 64, "too large");
    b = front(3, 1, 0);
    add_tensor(&b, "t", UINT64_MAX, 1, KM_GGML_F32, 0);
    assert_bad(&b, 64, "has a dimension of");
    b = front(3, 1, 0);
    add_text(&b, "t");
    add32(&b, 5);
    assert_bad(&b, 256, "has 5 dimensions");
    b = front(3, 2, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_F32, 0);
    add_tensor(&b, "t", 4, 2, KM_GGML_F32, 32);
    assert_bad(&b, 64, "'t' is there twice");
    b = front(3, 2, 0);
    add_tensor(&b, "a", 4, 4, KM_GGML_F32, 0);
    add_tensor(&b, "b", 4, 2, KM_GGML_F32, 32);
    assert_bad(&b, 64, "'b' overlaps");
    b = front(3, 2, 0);
    add_tensor(&b, "a", 0, 4, KM_GGML_F32, 0); /* empty ones share bytes with nobody */
    add_tensor(&b, "b", 4, 2, KM_GGML_F32, 0);
    assert_bad(&b, 32, NULL);
}

static uint64_t walk(const km_gguf_value *v) {
    uint64_t h = v->u;
    if (v->type == KM_GGUF_STRING) return fnv(v->text.data, v->text.size);
    km_gguf_value item;
    uint64_t n = 0;
    for (km_gguf_iter it = km_gguf_begin(v); km_gguf_next(&it, &item); n++) h += walk(&item);
    if (v->type == KM_GGUF_ARRAY) assert_int_equal(n, v->array.count);
    return h;
}

static bool try_gguf(const uint8_t *data, size_t size) {
    km_error err = {0};
    int64_t live = km_alloc_live();
    km_gguf *g = km_gguf_parse(data, size, "x", &err);
    if (!g) assert_one_line(&err);
    uint64_t h = 0;
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        h += fnv(t->data, t->bytes);
        assert_ptr_equal(km_gguf_find(g, t->name), t);
    }
    for (int i = 0; i < km_gguf_meta_count(g); i++) {
        assert_ptr_equal(km_gguf_get(g, km_gguf_meta_key(g, i)), km_gguf_meta_at(g, i));
        h += walk(km_gguf_meta_at(g, i));
    }
    km_gguf_close(g);
    assert_int_equal(km_alloc_live(), live);
    static volatile uint64_t sink;
    sink = h;
    (void)sink;
    return g != NULL;
}

static void no_damage_gets_past_the_reader(void **state) {
    km_gguf_out *o = some(); /* all of it is front; the fixture of every type comes after */
    km_gguf_write(o, in_folder("a"), NULL);
    km_gguf_out_free(o);
    blob b = read_blob(in_folder("a"));
    maul(&b, b.size, true, try_gguf); /* short of padding it still opens */
    free(b.data);
    b = fixture("every.gguf");
    size_t n = 3200; /* its front, and a little more */
    for (size_t i = 0; i < n; i++) {
        uint8_t was = b.data[i];
        b.data[i] ^= (uint8_t)(1u << i % 8);
        try_gguf(b.data, b.size);
        b.data[i] = was;
        uint8_t *cut = malloc(i + 1);
        memcpy(cut, b.data, i);
        assert_false(try_gguf(cut, i));
        free(cut);
    }
    free(b.data);
}

/* ---- Split models ---- */

static void write_part(const char *name, int no, int count, int total, const char *tensor) {
    km_gguf_out *o = km_gguf_out_new(NULL);
    uint16_t number = (uint16_t)no, of = (uint16_t)count;
    km_gguf_put_value(o, "split.no", &(km_gguf_value){.type = KM_GGUF_U16, .u = number});
    km_gguf_put_value(o, "split.count", &(km_gguf_value){.type = KM_GGUF_U16, .u = of});
    km_gguf_put_i32(o, "split.tensors.count", total);
    km_gguf_add(o, tensor, KM_GGML_F32, KM_SHAPE(2), floats, NULL, NULL);
    assert_int_equal(km_gguf_write(o, in_folder(name), NULL), KM_OK);
    km_gguf_out_free(o);
}

static void assert_no_open(const char *name, const char *why) {
    km_error err = {0};
    assert_null(km_gguf_open(in_folder(name), &err));
    assert_one_line(&err);
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
}

static void a_split_model_opens_by_its_first_file(void **state) {
    write_part("m-00001-of-00003.gguf", 0, 3, 3, "a");
    write_part("m-00002-of-00003.gguf", 1, 3, 3, "b");
    write_part("m-00003-of-00003.gguf", 2, 3, 3, "c");
    km_gguf *g = km_gguf_open(in_folder("m-00001-of-00003.gguf"), NULL);
    assert_non_null(g);
    assert_int_equal(km_gguf_files(g), 3);
    assert_int_equal(km_gguf_count(g), 3);
    assert_int_equal(km_gguf_find(g, "c")->file, 2);
    assert_memory_equal(km_gguf_find(g, "c")->data, floats, 8);
    km_gguf_close(g);

    assert_no_open("m-00002-of-00003.gguf", "is file 2 of a split model");
    write_part("m-00003-of-00003.gguf", 1, 3, 3, "c");
    assert_no_open("m-00001-of-00003.gguf", "is not file 3 of 3");
    write_part("m-00003-of-00003.gguf", 2, 3, 3, "a");
    assert_no_open("m-00001-of-00003.gguf", "'a' is there twice");
    unlink(in_folder("m-00003-of-00003.gguf"));
    assert_no_open("m-00001-of-00003.gguf", "No such file");
    write_part("other.gguf", 0, 3, 3, "a");
    assert_no_open("other.gguf", "should end in '-00001-of-00003.gguf'");
    write_part("n-00001-of-00002.gguf", 0, 2, 7, "a");
    write_part("n-00002-of-00002.gguf", 1, 2, 7, "b");
    assert_no_open("n-00001-of-00002.gguf", "promises 7 tensors, and its 2 files hold 2");
}

static void what_is_no_file_is_refused(void **state) {
    assert_no_open("none.gguf", "No such file");
    km_error err = {0};
    assert_null(km_gguf_open("", &err));
    assert_int_equal(err.code, KM_ERR_NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_written_comes_back, empty_folder),
        cmocka_unit_test_teardown(what_was_put_can_be_seen_and_dropped, empty_folder),
        cmocka_unit_test_teardown(a_file_copied_value_by_value_is_the_same, empty_folder),
        cmocka_unit_test(version_2_is_read_like_version_3),
        cmocka_unit_test_teardown(pieces_of_a_quantised_tensor_hold_whole_blocks, empty_folder),
        cmocka_unit_test_teardown(keys_are_read_with_their_type_and_range_checked, empty_folder),
        cmocka_unit_test_teardown(what_cannot_be_written_is_refused, empty_folder),
        cmocka_unit_test_teardown(a_full_disk_leaves_the_target_as_it_was, empty_folder),
        cmocka_unit_test_teardown(running_out_of_memory_anywhere_is_an_error, empty_folder),
        cmocka_unit_test(hostile_heads_are_refused_in_one_line),
        cmocka_unit_test(hostile_metadata_is_refused_in_one_line),
        cmocka_unit_test(hostile_tensors_are_refused_in_one_line),
        cmocka_unit_test_teardown(no_damage_gets_past_the_reader, empty_folder),
        cmocka_unit_test_teardown(a_split_model_opens_by_its_first_file, empty_folder),
        cmocka_unit_test(what_is_no_file_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* Files written by the packages `safetensors` and `gguf` hold what those packages say they hold:
 * tests/fixtures/formats/formats.txt, made by scripts/fixtures/make_formats.py. */
#include "format/formats.h"
#include "format/gguf.h"
#include "base/json_read.h"
#include "format/safetensors.h"

typedef struct opened { /* whichever kind the line "file" named */
    km_safetensors *st;
    km_gguf *gguf;
    int tensors, pairs; /* lines seen */
} opened;

static void close_file(opened *o) {
    if (o->st) {
        assert_int_equal(km_safetensors_meta_count(o->st), o->pairs);
        assert_in_range(km_safetensors_count(o->st), o->tensors, o->tensors + 1);
    }
    if (o->gguf) {
        assert_int_equal(km_gguf_meta_count(o->gguf), o->pairs);
        assert_int_equal(km_gguf_count(o->gguf), o->tensors);
    }
    km_safetensors_close(o->st);
    km_gguf_close(o->gguf);
    *o = (opened){0};
}

static void open_file(opened *o, const char *name) {
    km_error err = {0};
    const char *path = fixture_path(name);
    if (strstr(name, ".gguf"))
        o->gguf = km_gguf_open(path, &err);
    else
        o->st = km_safetensors_open(path, &err);
    if (!o->gguf && !o->st) fail_msg("%s", err.text);
}

static void check_tensor(const opened *o, const char *line) {
    char name[64], type[16], dims[64];
    unsigned long long bytes, hash;
    if (sscanf(line, "tensor %63s %15s [%63[^]]] %llu %llx", name, type, dims, &bytes, &hash) !=
        5) {
        dims[0] = 0;
        assert_int_equal(sscanf(line, "tensor %63s %15s [] %llu %llx", name, type, &bytes, &hash),
                         4);
    }
    const km_st_tensor *t = km_safetensors_find(o->st, name);
    const km_gguf_tensor *g = km_gguf_find(o->gguf, name);
    if (!t && !g) fail_msg("no tensor %s", name);
    assert_string_equal(t ? t->type : g->info->name, type);
    km_shape shape = t ? t->shape : g->shape;
    char got[64] = "";
    for (int i = 0; i < shape.ndim; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%lld", i ? "," : "",
                 (long long)shape.dim[i]);
    assert_string_equal(got, dims);
    assert_int_equal(t ? t->bytes : g->bytes, bytes);
    if (fnv(t ? t->data : g->data, bytes) != hash) fail_msg("%s has other data", name);
}

/* The value as JSON; nested arrays are flattened, as the package gives them. */
static void append_value(json_t *list, const km_gguf_value *v) {
    switch (v->type) {
    case KM_GGUF_F32:
    case KM_GGUF_F64: json_array_append_new(list, json_real(v->f)); return;
    case KM_GGUF_BOOL: json_array_append_new(list, json_boolean(v->b)); return;
    case KM_GGUF_STRING:
        json_array_append_new(list, json_stringn(v->text.data, v->text.size));
        return;
    case KM_GGUF_ARRAY: {
        km_gguf_value item;
        for (km_gguf_iter it = km_gguf_begin(v); km_gguf_next(&it, &item);)
            append_value(list, &item);
        return;
    }
    default: /* signed and unsigned alike: none of the fixture's is above INT64_MAX */
        json_array_append_new(list, json_integer(v->i));
    }
}

/* "array/array/int32" */
static void type_text(const km_gguf_value *v, char *text, size_t n) {
    static const struct {
        const char *ours, *theirs;
    } names[] = {{"u8", "uint8"},    {"i8", "int8"},    {"u16", "uint16"}, {"i16", "int16"},
                 {"u32", "uint32"},  {"i32", "int32"},  {"u64", "uint64"}, {"i64", "int64"},
                 {"f32", "float32"}, {"f64", "float64"}};
    km_gguf_value item = *v;
    text[0] = 0;
    while (item.type == KM_GGUF_ARRAY) {
        snprintf(text + strlen(text), n - strlen(text), "array/");
        km_gguf_iter it = km_gguf_begin(&item);
        assert_true(km_gguf_next(&it, &item));
    }
    const char *name = km_gguf_type_name(item.type);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].ours, name) == 0) name = names[i].theirs;
    snprintf(text + strlen(text), n - strlen(text), "%s", name);
}

static void check_pair(const opened *o, const char *line) {
    char key[64], type[32], got_type[32] = "string";
    int at = 0;
    assert_int_equal(sscanf(line, "meta %63s %31s %n", key, type, &at), 2);
    json_t *want = json_loads(line + at, JSON_DECODE_ANY, NULL);
    assert_non_null(want);
    json_t *got = json_array();
    const km_gguf_value *v = km_gguf_get(o->gguf, key);
    if (v) {
        type_text(v, got_type, sizeof got_type);
        append_value(got, v);
    } else {
        json_array_append_new(got, json_string(km_safetensors_meta(o->st, key)));
    }
    assert_string_equal(got_type, type);
    if (!json_equal(json_is_array(want) ? got : json_array_get(got, 0), want))
        fail_msg("%s has another value", key);
    json_decref(got);
    json_decref(want);
}

static void files_of_the_reference_packages_hold_what_those_say(void **state) {
    FILE *f = fopen(fixture_path("formats.txt"), "r");
    assert_non_null(f);
    opened o = {0};
    char line[512];
    int files = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "file ", 5) == 0) {
            close_file(&o);
            open_file(&o, line + 5);
            files++;
        } else if (strncmp(line, "tensor ", 7) == 0) {
            check_tensor(&o, line);
            o.tensors++;
        } else if (strncmp(line, "meta ", 5) == 0) {
            check_pair(&o, line);
            o.pairs++;
        }
    }
    close_file(&o);
    fclose(f);
    assert_int_equal(files, 4);
}

static void a_name_may_hold_anything(void **state) {
    km_safetensors *f = km_safetensors_open(fixture_path("every.safetensors"), NULL);
    const km_st_tensor *t = km_safetensors_find(f, "a name with spaces, ümläuts and \"quotes\"");
    assert_non_null(t);
    assert_int_equal(t->bytes, 8);
    km_safetensors_close(f);
}

static void shards_open_by_the_index(void **state) {
    km_error err = {0};
    km_safetensors *f = km_safetensors_open(fixture_path("model.safetensors.index.json"), &err);
    if (!f) fail_msg("%s", err.text);
    assert_int_equal(km_safetensors_files(f), 2);
    assert_int_equal(km_safetensors_find(f, "b.weight")->file, 1);
    assert_string_equal(km_safetensors_meta(f, "format"), "pt");
    km_safetensors_close(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_of_the_reference_packages_hold_what_those_say),
        cmocka_unit_test(a_name_may_hold_anything),
        cmocka_unit_test(shards_open_by_the_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

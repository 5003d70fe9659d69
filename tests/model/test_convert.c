/* Conversion: GGUF files hold what the package `gguf` would put into them (fixtures by
 * scripts/fixtures/make_convert.py), the way back gives the same bits, and models that do not fit
 * their configuration are refused in one line. */
#include "format/formats.h"
#include "base/json_read.h"
#include "model/convert.h"
#include "model/layout.h"
#include "tensor/dtype.h"
#include "token/token.h"

static const char *model_path(const char *name) {
    static char path[4][PATH_MAX];
    static int turn;
    char *p = path[turn++ % 4];
    const char *src = getenv("SRC_DIR");
    snprintf(p, PATH_MAX, "%s/tests/fixtures/models/%s", src ? src : ".", name);
    return p;
}

/* in_folder(name), as an empty folder */
static const char *new_folder(const char *name) {
    const char *path = in_folder(name);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static int clean(void **state) { /* folders in the test's folder, too */
    char command[PATH_MAX + 32];
    km_alloc_fail_nth(-1);
    snprintf(command, sizeof command, "rm -rf '%s'/*", folder);
    return system(command);
}

static void convert(const char *in, const char *out, km_dtype dtype) {
    km_conversion o = {.in = in, .out = out, .dtype = dtype};
    km_conversion_done done;
    km_error err = {0};
    int64_t live = km_alloc_live();
    if (km_convert_weights(&o, &done, &err) != KM_OK) fail_msg("%s", err.text);
    assert_true(done.tensors > 20 && done.parameters > 1000 && done.bytes > done.parameters);
    assert_int_equal(km_alloc_live(), live);
}

/* ---- What GGUF must hold ---- */

static void check_pair(const km_gguf *g, const char *line) {
    char key[96], want[96], got[96];
    assert_int_equal(sscanf(line, "meta %95s %95s", key, want), 2);
    const km_gguf_value *v = km_gguf_get(g, key);
    if (!v) fail_msg("no %s", key);
    if (v->type == KM_GGUF_STRING) {
        snprintf(got, sizeof got, "%s", v->text.data);
        assert_string_equal(got, want);
    } else if (v->type == KM_GGUF_F32) {
        assert_true((float)v->f == strtof(want, NULL));
    } else {
        assert_int_equal(v->type, KM_GGUF_U32);
        assert_int_equal(v->u, strtoull(want, NULL, 10));
    }
}

static void check_tensor(const km_gguf *g, const char *line) {
    char name[64], type[16], dims[64], got[64] = "";
    unsigned long long bytes, hash;
    assert_int_equal(
        sscanf(line, "tensor %63s %15s [%63[^]]] %llu %llx", name, type, dims, &bytes, &hash), 5);
    const km_gguf_tensor *t = km_gguf_find(g, name);
    if (!t) fail_msg("no tensor %s", name);
    assert_string_equal(t->info->name, type);
    for (int i = 0; i < t->shape.ndim; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%lld", i ? "," : "",
                 (long long)t->shape.dim[i]);
    assert_string_equal(got, dims);
    assert_int_equal(t->bytes, bytes);
    if (fnv(t->data, t->bytes) != hash) fail_msg("%s has other data", name);
}

static void a_gguf_file_holds_what_the_package_says(void **state) {
    FILE *f = fopen(model_path("gguf.txt"), "r");
    assert_non_null(f);
    char line[256], name[16], kind[8];
    km_gguf *g = NULL;
    int models = 0, tensors = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "model %15s %7s", name, kind) == 2) {
            assert_int_equal(km_gguf_count(g), tensors);
            km_gguf_close(g);
            convert(model_path(name), in_folder("a.gguf"),
                    strcmp(kind, "F16") == 0 ? KM_F16 : KM_DTYPE_COUNT);
            km_error err = {0};
            g = km_gguf_open(in_folder("a.gguf"), &err);
            if (!g) fail_msg("%s", err.text);
            models++;
            tensors = 0;
        } else if (strncmp(line, "tensor ", 7) == 0) {
            check_tensor(g, line);
            tensors++;
        } else if (strncmp(line, "meta ", 5) == 0) {
            check_pair(g, line);
        }
    }
    assert_int_equal(km_gguf_count(g), tensors);
    km_gguf_close(g);
    fclose(f);
    assert_int_equal(models, 4);
}

/* ---- There and back ---- */

static void assert_same_tensors(const char *a, const char *b) {
    km_error err = {0};
    km_safetensors *x = km_safetensors_open(a, &err), *y = km_safetensors_open(b, &err);
    if (!x || !y) fail_msg("%s", err.text);
    assert_int_equal(km_safetensors_count(x), km_safetensors_count(y));
    assert_string_equal(km_safetensors_meta(y, "format"), "pt");
    for (int i = 0; i < km_safetensors_count(x); i++) {
        const km_st_tensor *t = km_safetensors_at(x, i), *u = km_safetensors_find(y, t->name);
        if (!u) fail_msg("%s is missing", t->name);
        assert_string_equal(t->type, u->type);
        assert_int_equal(t->bytes, u->bytes);
        assert_memory_equal(t->data, u->data, t->bytes);
    }
    km_safetensors_close(x);
    km_safetensors_close(y);
}

static void assert_same_config(const char *a, const char *b) {
    km_config x, y;
    km_error err = {0};
    assert_int_equal(km_config_load(&x, a, &err), KM_OK);
    assert_int_equal(km_config_load(&y, b, &err), KM_OK);
    assert_int_equal(x.arch, y.arch);
    assert_int_equal(x.layers, y.layers);
    assert_int_equal(x.heads, y.heads);
    assert_int_equal(x.kv_heads, y.kv_heads);
    assert_int_equal(x.head_dim, y.head_dim);
    assert_int_equal(x.dim, y.dim);
    assert_int_equal(x.hidden, y.hidden);
    assert_int_equal(x.context, y.context);
    assert_int_equal(x.vocab, y.vocab);
    assert_true(x.norm_eps == y.norm_eps && x.rope_base == y.rope_base);
    assert_true(x.tied == y.tied && x.bias == y.bias);
}

static void the_way_through_gguf_and_back_changes_nothing(void **state) {
    static const char *const names[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++) {
        const char *in = model_path(names[i]);
        convert(in, new_folder("same"), KM_DTYPE_COUNT);
        assert_same_tensors(in, in_folder("same"));
        assert_same_config(in, in_folder("same"));
        convert(in, in_folder("a.gguf"), KM_DTYPE_COUNT);
        convert(in_folder("a.gguf"), in_folder("b.gguf"), KM_DTYPE_COUNT);
        convert(in_folder("b.gguf"), new_folder("back"), KM_DTYPE_COUNT);
        assert_same_tensors(in, in_folder("back"));
        assert_same_config(in, in_folder("back"));
        clean(NULL);
    }
}

static void a_gguf_file_of_the_package_becomes_the_model_it_came_from(void **state) {
    convert(model_path("gpt2.gguf"), new_folder("gpt2"), KM_DTYPE_COUNT);
    convert(model_path("llama.gguf"), new_folder("llama"), KM_DTYPE_COUNT);
    assert_same_tensors(model_path("gpt2"), in_folder("gpt2"));
    assert_same_tensors(model_path("llama"), in_folder("llama"));
    assert_same_config(model_path("gpt2"), in_folder("gpt2"));
    assert_same_config(model_path("llama"), in_folder("llama"));
}

static void weights_are_rounded_to_the_nearest(void **state) {
    convert(model_path("llama"), new_folder("bf16"), KM_BF16);
    km_safetensors *x = km_safetensors_open(model_path("llama"), NULL);
    km_safetensors *y = km_safetensors_open(in_folder("bf16"), NULL);
    for (int i = 0; i < km_safetensors_count(x); i++) {
        const km_st_tensor *t = km_safetensors_at(x, i), *u = km_safetensors_find(y, t->name);
        assert_int_equal(u->dtype, KM_BF16);
        for (size_t k = 0; k < t->bytes / 4; k++) {
            float v;
            uint16_t h;
            memcpy(&v, (const char *)t->data + 4 * k, 4);
            memcpy(&h, (const char *)u->data + 2 * k, 2);
            assert_int_equal(h, km_f32_to_bf16(v));
        }
    }
    km_safetensors_close(x);
    km_safetensors_close(y);
    json_t *o = km_json_load(in_folder("bf16/config.json"), NULL);
    const char *said = json_string_value(json_object_get(o, "dtype"));
    assert_string_equal(said, "bfloat16");
    json_decref(o);
    /* 16 bits into f32 and back is the same again. */
    convert(in_folder("bf16"), in_folder("a.gguf"), KM_F32);
    convert(in_folder("a.gguf"), new_folder("back"), KM_BF16);
    assert_same_tensors(in_folder("bf16"), in_folder("back"));
}

/* A matrix of many pieces' worth of transposing, by both ways through the loops. */
static void any_range_of_elements_can_be_copied(void **state) {
    enum { OUT = 37, IN = 23, N = OUT * IN };
    static float src[N], whole[N], piece[N];
    for (int i = 0; i < N; i++) src[i] = (float)i;
    km_layout_row conv = {.shape = KM_SHAPE(OUT, IN), .conv1d = true};
    km_layout_row rope = {.shape = KM_SHAPE(24, IN), .rope_heads = 3};
    const km_stored stored = {KM_F32, src};
    for (int which = 0; which < 2; which++) {
        const km_layout_row *r = which ? &rope : &conv;
        size_t n = which ? 24 * IN : N;
        for (int to = 0; to < 2; to++) {
            km_store from = to ? KM_STORE_HF : KM_STORE_GGUF,
                     into = to ? KM_STORE_GGUF : KM_STORE_HF;
            assert_int_equal(km_layout_copy(r, &stored, from, into, KM_F32, 0, n, whole, NULL), 0);
            if (!which && to) /* (in, out) in the file, (out, in) wanted */
                for (int i = 0; i < OUT; i++)
                    for (int k = 0; k < IN; k++) assert_true(whole[i * IN + k] == src[k * OUT + i]);
            for (size_t step = 1; step < n; step += step < 50 ? 7 : 101) {
                for (size_t at = 0; at < n; at += step) {
                    size_t m = n - at < step ? n - at : step;
                    km_layout_copy(r, &stored, from, into, KM_F32, at, m, piece + at, NULL);
                }
                assert_memory_equal(piece, whole, n * sizeof *whole);
            }
            /* And back again. */
            const km_stored there = {KM_F32, whole};
            km_layout_copy(r, &there, into, from, KM_F32, 0, n, piece, NULL);
            assert_memory_equal(piece, src, n * sizeof *src);
        }
    }
}

/* ---- Tokenizers ---- */

static const char *token_path(const char *name) {
    static char path[PATH_MAX];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/fixtures/token/%s", src ? src : ".", name);
    return path;
}

/* A small GPT-2 of zeros for that many tokens in in_folder(name). */
static void write_model(const char *name, int64_t vocab) {
    static const float zeros[64 * 1024];
    km_config c = {.layers = 1,
                   .heads = 2,
                   .dim = 8,
                   .context = 16,
                   .vocab = vocab,
                   .tied = true,
                   .bias = true};
    km_error err = {0};
    km_layout l;
    if (km_config_complete(&c, &err) != KM_OK) fail_msg("%s", err.text);
    assert_int_equal(km_layout_of(&c, &l, &err), KM_OK);
    km_st_item items[64];
    for (int i = 0; i < l.n; i++)
        items[i] = (km_st_item){.name = l.row[i].name,
                                .dtype = KM_F32,
                                .shape = km_layout_shape(&l.row[i], KM_STORE_HF),
                                .data = zeros};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/model.safetensors", new_folder(name));
    if (km_safetensors_write(path, items, l.n, NULL, 0, &err) != KM_OK) fail_msg("%s", err.text);
    assert_int_equal(km_config_save(&c, in_folder(name), &err), KM_OK);
    km_layout_free(&l);
}

static void copy_token(const char *from, const char *to) {
    blob b = read_blob(token_path(from));
    write_blob(in_folder(to), b.data, b.size);
    free(b.data);
}

/* Both tokenizers give these ids the same texts, and this text the same ids. */
static void assert_same_tokens(const char *a, const char *b) {
    static const char text[] =
        "The quick brown fox\n  jumps over 12345 lazy dogs' tails; na\xc3\xafve!";
    km_error err = {0};
    km_token *x = km_token_load(a, &err), *y = km_token_load(b, &err);
    if (!x || !y) fail_msg("%s", err.text);
    assert_true(km_token_vocab(y) >= km_token_vocab(x));
    assert_int_equal(km_token_eos(x), km_token_eos(y));
    km_ids i = {0}, k = {0};
    if (km_token_encode(x, text, sizeof text - 1, KM_TOKEN_ADD_SPECIAL, &i, &err) != KM_OK ||
        km_token_encode(y, text, sizeof text - 1, KM_TOKEN_ADD_SPECIAL, &k, &err) != KM_OK)
        fail_msg("%s, %s: %s", a, b, err.text);
    assert_int_equal(i.len, k.len);
    assert_memory_equal(i.data, k.data, i.len * sizeof *i.data);
    km_ids_free(&i);
    km_ids_free(&k);
    km_token_free(x);
    km_token_free(y);
}

static void the_tokenizer_comes_along_through_gguf_and_back(void **state) {
    static const char *const names[] = {"gpt2.json", "llama3.json", "tinyllama.json"};
    for (int i = 0; i < 3; i++) {
        km_error err = {0};
        km_token *t = km_token_load(token_path(names[i]), &err);
        if (!t) fail_msg("%s", err.text);
        int64_t n = km_token_vocab(t);
        km_token_free(t);
        write_model("m", n + 7); /* rows that no token uses */
        copy_token(names[i], "m/tokenizer.json");
        km_conversion_done done;
        km_conversion o = {
            .in = in_folder("m"), .out = in_folder("a.gguf"), .dtype = KM_DTYPE_COUNT};
        if (km_convert_weights(&o, &done, &err) != KM_OK) fail_msg("%s", err.text);
        assert_int_equal(done.tokens, n);
        km_gguf *g = km_gguf_open(in_folder("a.gguf"), NULL);
        assert_int_equal(km_gguf_get(g, "tokenizer.ggml.tokens")->array.count, n + 7);
        assert_int_equal(km_gguf_get(g, "tokenizer.ggml.token_type")->array.count, n + 7);
        const km_gguf_value *scores = km_gguf_get(g, "tokenizer.ggml.scores");
        if (scores) assert_int_equal(scores->array.count, n + 7);
        km_gguf_close(g);
        assert_same_tokens(token_path(names[i]), in_folder("a.gguf"));
        o = (km_conversion){
            .in = in_folder("a.gguf"), .out = new_folder("back"), .dtype = KM_DTYPE_COUNT};
        if (km_convert_weights(&o, &done, &err) != KM_OK) fail_msg("%s", err.text);
        assert_same_tokens(token_path(names[i]), in_folder("back"));
        clean(NULL);
    }
}

static void a_folder_keeps_its_tokenizer_files(void **state) {
    write_model("m", 2000);
    copy_token("gpt2.json", "m/tokenizer.json");
    write_blob(in_folder("m/merges.txt"), "a b\n", 4);
    km_conversion o = {.in = in_folder("m"), .out = new_folder("copy"), .dtype = KM_DTYPE_COUNT};
    km_error err = {0};
    if (km_convert_weights(&o, NULL, &err) != KM_OK) fail_msg("%s", err.text);
    static const char *const files[] = {"tokenizer.json", "merges.txt"};
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "m/%s", files[i]);
        blob a = read_blob(in_folder(path));
        snprintf(path, sizeof path, "copy/%s", files[i]);
        blob b = read_blob(in_folder(path));
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data, b.data, a.size);
        free(a.data);
        free(b.data);
    }
    json_t *v = km_json_load(in_folder("copy/tokenizer_config.json"), &err);
    assert_non_null(json_object_get(v, "tokenizer_class"));
    json_decref(v);
}

static void another_tokenizer_may_be_given_or_none(void **state) {
    write_model("m", 2000);
    copy_token("llama3.json", "m/tokenizer.json");
    km_conversion o = {.in = in_folder("m"),
                       .out = in_folder("a.gguf"),
                       .dtype = KM_DTYPE_COUNT,
                       .tokenizer = token_path("gpt2.json")};
    km_error err = {0};
    if (km_convert_weights(&o, NULL, &err) != KM_OK) fail_msg("%s", err.text);
    assert_same_tokens(token_path("gpt2.json"), in_folder("a.gguf"));
    o.tokenizer = NULL;
    o.no_tokenizer = true;
    km_conversion_done done;
    assert_int_equal(km_convert_weights(&o, &done, &err), KM_OK);
    assert_int_equal(done.tokens, 0);
    km_gguf *g = km_gguf_open(in_folder("a.gguf"), NULL);
    assert_null(km_gguf_get(g, "tokenizer.ggml.model"));
    km_gguf_close(g);
}

static void a_tokenizer_that_does_not_fit_is_refused(void **state) {
    write_model("m", 100);
    copy_token("gpt2.json", "m/tokenizer.json");
    km_error err = {0};
    km_conversion o = {.in = in_folder("m"), .out = in_folder("a.gguf"), .dtype = KM_DTYPE_COUNT};
    assert_int_equal(km_convert_weights(&o, NULL, &err), KM_ERR_RANGE);
    assert_non_null(strstr(err.text, "but the model was made for 100"));
    write_blob(in_folder("m/tokenizer.json"), "{", 1);
    err = (km_error){0};
    assert_int_not_equal(km_convert_weights(&o, NULL, &err), KM_OK);
    assert_one_line(&err);
    clean(NULL);
    write_model("m", 2000);
    copy_token("words.json", "m/tokenizer.json"); /* whole words: GGUF has nothing like it */
    err = (km_error){0};
    o.in = in_folder("m");
    o.out = in_folder("a.gguf");
    assert_int_equal(km_convert_weights(&o, NULL, &err), KM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "it can be left out"));
    assert_int_not_equal(access(in_folder("a.gguf"), F_OK), 0);
}

/* ---- Models that do not fit ---- */

static km_status try(const char *in, const char *out, km_dtype dtype, km_error *err) {
    km_conversion o = {.in = in, .out = out, .dtype = dtype};
    int64_t live = km_alloc_live();
    *err = (km_error){0};
    km_status s = km_convert_weights(&o, NULL, err);
    assert_int_equal(km_alloc_live(), live);
    return s;
}

static void assert_refused(const char *in, km_dtype dtype, km_status code, const char *why) {
    km_error err;
    km_status s = try(in, in_folder("never.gguf"), dtype, &err);
    assert_one_line(&err);
    if (!strstr(err.text, why)) fail_msg("'%s' lacks '%s'", err.text, why);
    assert_int_equal(s, code);
    assert_int_not_equal(access(in_folder("never.gguf"), F_OK), 0);
}

/* The GPT-2 fixture in in_folder("m"), with one tensor left out, added or changed. */
typedef enum change { NOTHING, WITHOUT, RENAMED, OTHER_SHAPE, OTHER_TYPE, LARGE } change;

static void write_changed(const char *name, change what) {
    km_safetensors *f = km_safetensors_open(model_path("gpt2"), NULL);
    static float large[64 * 1024];
    large[7] = 1e30f;
    km_st_item items[64];
    int n = 0;
    for (int i = 0; i < km_safetensors_count(f); i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        km_st_item item = {.name = t->name, .dtype = t->dtype, .shape = t->shape, .data = t->data};
        if (strcmp(t->name, name) == 0) {
            if (what == WITHOUT) continue;
            if (what == RENAMED) item.name = "no\nbody knows me";
            if (what == OTHER_SHAPE) item.shape = KM_SHAPE(t->shape.dim[0], t->shape.dim[1] / 2, 2);
            if (what == OTHER_TYPE) item.dtype = KM_I32;
            if (what == LARGE) item.data = large;
        }
        items[n++] = item;
    }
    mkdir(in_folder("m"), 0777);
    assert_int_equal(
        km_safetensors_write(in_folder("m/model.safetensors"), items, n, NULL, 0, NULL), KM_OK);
    km_safetensors_close(f);
    blob config = read_blob(model_path("gpt2/config.json"));
    write_blob(in_folder("m/config.json"), config.data, config.size);
    free(config.data);
}

static void weights_that_do_not_fit_their_config_are_refused(void **state) {
    const char *name = "transformer.h.1.mlp.c_fc.weight";
    write_changed(name, NOTHING);
    km_error err;
    assert_int_equal(try(in_folder("m"), in_folder("a.gguf"), KM_F16, &err), KM_OK);
    write_changed(name, WITHOUT);
    assert_refused(in_folder("m"), KM_F32, KM_ERR_FORMAT, "c_fc.weight' is missing");
    write_changed(name, RENAMED);
    assert_refused(in_folder("m"), KM_F32, KM_ERR_FORMAT, "c_fc.weight' is missing");
    write_changed("transformer.h.0.attn.bias", WITHOUT); /* is not there: all as it was */
    write_changed(name, OTHER_SHAPE);
    assert_refused(in_folder("m"), KM_F32, KM_ERR_SHAPE, "but the config makes it");
    write_changed(name, OTHER_TYPE);
    assert_refused(in_folder("m"), KM_F32, KM_ERR_UNSUPPORTED, "is of type I32");
    write_changed(name, LARGE);
    assert_refused(in_folder("m"), KM_F16, KM_ERR_RANGE, "holds numbers that f16 cannot");
    assert_int_equal(try(in_folder("m"), in_folder("a.gguf"), KM_BF16, &err), KM_OK);
}

static void a_tensor_too_many_is_refused_by_name(void **state) {
    km_safetensors *f = km_safetensors_open(model_path("gpt2"), NULL);
    km_st_item items[64];
    int n = km_safetensors_count(f);
    for (int i = 0; i < n; i++) {
        const km_st_tensor *t = km_safetensors_at(f, i);
        items[i] =
            (km_st_item){.name = t->name, .dtype = t->dtype, .shape = t->shape, .data = t->data};
    }
    mkdir(in_folder("m"), 0777);
    blob config = read_blob(model_path("gpt2/config.json"));
    write_blob(in_folder("m/config.json"), config.data, config.size);
    free(config.data);
    static const struct {
        const char *name, *why; /* NULL: fine */
    } more[] = {
        {"transformer.h.0.attn.masked_bias", NULL},
        {"lm_head.weight", NULL}, /* tied: of no use */
        {"transformer.h.2.ln_1.weight", "no place for tensor 'transformer.h.2.ln_1.weight'"},
        {"a\nb", "no place for tensor 'a?b'"}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        km_error err;
        items[n] = (km_st_item){.name = more[i].name, .dtype = KM_F32, .shape = KM_SHAPE(0)};
        assert_int_equal(
            km_safetensors_write(in_folder("m/model.safetensors"), items, n + 1, NULL, 0, NULL), 0);
        if (more[i].why)
            assert_refused(in_folder("m"), KM_F32, KM_ERR_FORMAT, more[i].why);
        else
            assert_int_equal(try(in_folder("m"), in_folder("a.gguf"), KM_F32, &err), KM_OK);
    }
    km_safetensors_close(f);
}

static void what_is_no_model_is_refused(void **state) {
    assert_refused(in_folder("none"), KM_F32, KM_ERR_FILE, "No such file");
    write_blob(in_folder("text"), "hello", 5);
    assert_refused(in_folder("text"), KM_F32, KM_ERR_FORMAT, "is no GGUF file");
    new_folder("empty");
    assert_refused(in_folder("empty"), KM_F32, KM_ERR_FILE, "config.json");
    write_blob(in_folder("empty/config.json"), "{\"model_type\":\"mamba\"}", 22);
    assert_refused(in_folder("empty"), KM_F32, KM_ERR_UNSUPPORTED, "'mamba'");
    km_error err;
    assert_int_equal(try(model_path("gpt2"), in_folder("no/such/folder.gguf"), KM_F32, &err),
                     KM_ERR_FILE);
}

/* A copy of a GGUF model with one pair of metadata replaced, or left out (type of an array). */
static void write_with(const char *key, km_gguf_value v) {
    km_gguf *g = km_gguf_open(model_path("llama.gguf"), NULL);
    km_gguf_out *o = km_gguf_out_new(NULL);
    for (int i = 0; i < km_gguf_meta_count(g); i++)
        if (strcmp(km_gguf_meta_key(g, i), key) != 0)
            km_gguf_put_value(o, km_gguf_meta_key(g, i), km_gguf_meta_at(g, i));
    if (v.type != KM_GGUF_ARRAY) km_gguf_put_value(o, key, &v);
    for (int i = 0; i < km_gguf_count(g); i++) {
        const km_gguf_tensor *t = km_gguf_at(g, i);
        km_gguf_add(o, t->name, t->info->type, t->shape, t->data, NULL, NULL);
    }
    km_error err = {0};
    if (km_gguf_write(o, in_folder("a.gguf"), &err) != KM_OK) fail_msg("%s", err.text);
    km_gguf_out_free(o);
    km_gguf_close(g);
}

static void metadata_that_does_not_fit_is_refused(void **state) {
    const km_gguf_value none = {.type = KM_GGUF_ARRAY};
    static const struct {
        const char *key;
        uint32_t value;
        km_status code;
        const char *why;
    } numbers[] = {
        {"llama.block_count", 3, KM_ERR_FORMAT, "blk.2.attn_norm.weight' is missing"},
        {"llama.block_count", 1, KM_ERR_FORMAT, "no place for tensor 'blk.1."},
        {"llama.block_count", 0, KM_ERR_FORMAT, "is 0, not between"},
        {"llama.block_count", UINT32_MAX, KM_ERR_FORMAT, "not between"},
        {"llama.block_count", 1000000, KM_ERR_RANGE, "layers is 1000000"},
        {"llama.embedding_length", 32, KM_ERR_UNSUPPORTED, "rotated in part"},
        {"llama.attention.head_count", 5, KM_ERR_UNSUPPORTED, "rotated in part"},
        {"llama.attention.head_count_kv", 3, KM_ERR_RANGE, "no multiple of kv_heads"},
        {"llama.attention.head_count_kv", 4, KM_ERR_SHAPE, "but the config makes it"},
        {"llama.feed_forward_length", 7, KM_ERR_SHAPE, "but the config makes it"},
        {"llama.rope.dimension_count", 2, KM_ERR_UNSUPPORTED, "rotated in part"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        write_with(numbers[i].key, (km_gguf_value){.type = KM_GGUF_U32, .u = numbers[i].value});
        assert_refused(in_folder("a.gguf"), KM_F32, numbers[i].code, numbers[i].why);
    }
    write_with("llama.context_length", none);
    assert_refused(in_folder("a.gguf"), KM_F32, KM_ERR_FORMAT, "llama.context_length is missing");
    km_gguf_value text = {.type = KM_GGUF_STRING, .text = {"ntk?", 4}};
    write_with("llama.rope.scaling.type", text);
    assert_refused(in_folder("a.gguf"), KM_F32, KM_ERR_UNSUPPORTED, "rope scaling of type 'ntk?'");
    text.text.data = "none";
    write_with("llama.rope.scaling.type", text);
    km_error err;
    assert_int_equal(try(in_folder("a.gguf"), in_folder("b.gguf"), KM_F32, &err), KM_OK);
    text.text.data = "mamb";
    write_with("general.architecture", text);
    assert_refused(in_folder("a.gguf"), KM_F32, KM_ERR_UNSUPPORTED, "architecture 'mamb'");
    write_with("general.architecture", none);
    assert_refused(in_folder("a.gguf"), KM_F32, KM_ERR_UNSUPPORTED, "architecture ''");
}

static void running_out_of_memory_anywhere_is_an_error(void **state) {
    bool done = false;
    for (int n = 0; !done; n += n < 200 ? 1 : 17) {
        km_error err;
        km_alloc_fail_nth(n);
        done = try(model_path("llama"), in_folder("a.gguf"), KM_F16, &err) == KM_OK;
        km_alloc_fail_nth(-1);
        if (!done) assert_int_equal(err.code, KM_ERR_MEMORY);
        if (!done) assert_int_not_equal(access(in_folder("a.gguf"), F_OK), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_gguf_file_holds_what_the_package_says, clean),
        cmocka_unit_test_teardown(the_way_through_gguf_and_back_changes_nothing, clean),
        cmocka_unit_test_teardown(a_gguf_file_of_the_package_becomes_the_model_it_came_from, clean),
        cmocka_unit_test_teardown(weights_are_rounded_to_the_nearest, clean),
        cmocka_unit_test(any_range_of_elements_can_be_copied),
        cmocka_unit_test_teardown(the_tokenizer_comes_along_through_gguf_and_back, clean),
        cmocka_unit_test_teardown(a_folder_keeps_its_tokenizer_files, clean),
        cmocka_unit_test_teardown(another_tokenizer_may_be_given_or_none, clean),
        cmocka_unit_test_teardown(a_tokenizer_that_does_not_fit_is_refused, clean),
        cmocka_unit_test_teardown(weights_that_do_not_fit_their_config_are_refused, clean),
        cmocka_unit_test_teardown(a_tensor_too_many_is_refused_by_name, clean),
        cmocka_unit_test_teardown(what_is_no_model_is_refused, clean),
        cmocka_unit_test_teardown(metadata_that_does_not_fit_is_refused, clean),
        cmocka_unit_test_teardown(running_out_of_memory_anywhere_is_an_error, clean),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

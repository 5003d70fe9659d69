/* kermes info: what a file or folder is and what it holds, as text or as JSON. */
#include "cli/cli.h"
#include "base/shown.h"
#include "report/json.h"
#include "report/table.h"
#include "base/text.h"
#include <string.h>

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static long long whole(const json_t *o, const char *key) { return (long long)number(o, key); }

/* Texts of the file go through here: one line, no control characters. */
static const char *safe(const char *s) {
    static char buffer[4][KM_SHOWN];
    static int turn;
    return km_shown(buffer[turn++ % 4], s);
}

static void print_head(const json_t *v) {
    const char *kind = km_json_text_at(v, "kind");
    static const struct {
        const char *kind, *words;
    } kinds[] = {{"gguf", "GGUF"},
                 {"safetensors", "safetensors"},
                 {"folder", "a model in a folder"},
                 {"checkpoint", "a Kermes checkpoint"},
                 {"run", "a training run"},
                 {"tokenizer", "a tokenizer"},
                 {"config", "a model's config.json"},
                 {"tokens", "a tokenised text"},
                 {"index", "an index of vectors"},
                 {"vectors", "vectors"}};
    const char *words = kind;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].kind, kind) == 0) words = kinds[i].words;
    printf("%s: %s", km_json_text_at(v, "path"), words);
    if (json_object_get(v, "version")) printf(" version %lld", whole(v, "version"));
    if (whole(v, "files") > 1) printf(" in %lld files", whole(v, "files"));
    putchar('\n');
    if (json_object_get(v, "folder")) printf("  %-11s %s\n", "shown", km_json_text_at(v, "folder"));
    if (json_object_get(v, "latest_checkpoint"))
        printf("  %-11s step %lld\n", "latest", whole(v, "latest_checkpoint"));
}

static void print_model(const json_t *m) {
    if (!m) return;
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    printf("  %-11s %s", "model", safe(km_json_text_at(m, "architecture")));
    if (whole(m, "layers"))
        printf(", %lld layers, %lld heads (%lld for keys and values), %lld wide, %lld in the MLP",
               whole(m, "layers"), whole(m, "heads"), whole(m, "kv_heads"), whole(m, "dim"),
               whole(m, "hidden"));
    putchar('\n');
    if (whole(m, "context"))
        printf("  %-11s %lld tokens, a vocabulary of %lld%s\n", "context", whole(m, "context"),
               whole(m, "vocab"), json_is_true(json_object_get(m, "tied")) ? ", tied head" : "");
    if (json_object_get(m, "cache_bytes"))
        printf("  %-11s %s for %lld tokens in %s, %s each\n", "cache",
               km_format_bytes(a, number(m, "cache_bytes")), whole(m, "cache_context"),
               km_json_text_at(m, "cache_type"),
               km_format_bytes(b, number(m, "cache_bytes_per_token")));
    if (json_object_get(m, "memory_bytes"))
        printf("  %-11s %s for weights and cache\n", "memory",
               km_format_bytes(a, number(m, "memory_bytes")));
    if (json_object_get(m, "unsupported"))
        printf("  %-11s Kermes cannot run it: %s\n", "note", km_json_text_at(m, "unsupported"));
}

static void print_weights(const json_t *v) {
    if (!json_object_get(v, "types")) return;
    char a[KM_NUMBER_TEXT], b[KM_NUMBER_TEXT];
    printf("  %-11s %s parameters in %lld tensors, %s\n", "weights",
           km_format_si(a, number(v, "parameters")), whole(v, "tensors"),
           km_format_bytes(b, number(v, "bytes")));
    const char *type;
    json_t *one;
    json_object_foreach(json_object_get(v, "types"), type, one)
        printf("  %-11s   %-7s %5lld tensors  %s\n", "", type, whole(one, "tensors"),
               km_format_bytes(a, number(one, "bytes")));
}

static void print_tokenizer(const json_t *t) {
    if (!t) return;
    if (json_object_get(t, "unsupported")) {
        printf("  %-11s Kermes cannot use it: %s\n", "tokenizer",
               km_json_text_at(t, "unsupported"));
        return;
    }
    printf("  %-11s %s", "tokenizer", safe(km_json_text_at(t, "kind")));
    if (json_object_get(t, "family")) printf(" (%s)", safe(km_json_text_at(t, "family")));
    printf(", %lld tokens", whole(t, "tokens"));
    static const char *const names[] = {"bos", "eos", "unk", "pad"};
    for (int i = 0; i < 4; i++)
        if (json_object_get(t, names[i])) printf(", %s %lld", names[i], whole(t, names[i]));
    if (json_is_true(json_object_get(t, "chat_template"))) printf(", with a chat template");
    putchar('\n');
    const json_t *special = json_object_get(t, "special");
    for (size_t i = 0; i < json_array_size(special); i++)
        printf("%s%s", i ? " " : "              special: ",
               safe(json_string_value(json_array_get(special, i))));
    if (json_array_size(special)) putchar('\n');
}

static void print_state(const json_t *s) {
    if (!s) return;
    char a[KM_NUMBER_TEXT];
    printf("  %-11s step %lld", "training", whole(s, "step"));
    if (json_is_number(json_object_get(s, "train_loss")))
        printf(", loss %.4f", number(s, "train_loss"));
    if (json_is_number(json_object_get(s, "val_loss")))
        printf(", validation %.4f", number(s, "val_loss"));
    if (json_is_number(json_object_get(s, "best_val")))
        printf(" (best %.4f at step %lld)", number(s, "best_val"), whole(s, "best_step"));
    if (number(s, "tokens") > 0) printf(", %s tokens", km_format_si(a, number(s, "tokens")));
    putchar('\n');
}

static void print_text(const json_t *t) {
    if (!t) return;
    printf("  %-11s %lld of %lld bytes each, from a vocabulary of %lld\n", "tokens",
           whole(t, "count"), whole(t, "bytes_per_token"), whole(t, "vocab"));
    size_t i;
    json_t *path;
    json_array_foreach(json_object_get(t, "sources"), i, path)
        printf("  %-11s %s\n", i ? "" : "made from", json_string_value(path));
}

static void print_index(const json_t *x) {
    if (!x) return;
    char a[KM_NUMBER_TEXT];
    printf("  %-11s %.0f of %.0f dimensions, %s, %s", "vectors", number(x, "vectors"),
           number(x, "dim"), km_json_text_at(x, "dtype"), km_json_text_at(x, "metric"));
    if (number(x, "deleted") > 0) printf(", %.0f more are deleted", number(x, "deleted"));
    if (number(x, "parts") > 1) printf(", in %.0f parts", number(x, "parts"));
    printf("\n  %-11s %.0f anchors, %.0f bytes each, %s", "codes", number(x, "anchors"),
           number(x, "code_bytes"), km_json_text_at(x, "mode"));
    if (strcmp(km_json_text_at(x, "rerank"), "none") != 0)
        printf(", vectors kept as %s", km_json_text_at(x, "rerank"));
    printf("\n  %-11s %s, %.1f bytes a vector all counted, %.1f times smaller\n", "size",
           km_format_bytes(a, number(x, "bytes")), number(x, "bytes_per_vector"),
           number(x, "ratio"));
    printf("  %-11s energy %s", "measured", km_format_number(a, number(x, "energy")));
    const json_t *m = json_object_get(json_object_get(x, "meta"), "measured");
    if (json_is_number(json_object_get(m, "mse")))
        printf(", mse %s", km_format_number(a, number(m, "mse")));
    if (json_is_number(json_object_get(m, "recall@10")))
        printf(", recall@10 %.3f", number(m, "recall@10"));
    printf("\n  %-11s next %.0f\n", "ids", number(x, "next_id"));
    size_t i;
    json_t *s;
    json_array_foreach(json_object_get(x, "sections"), i, s)
        printf("  %-11s %-8s %s\n", i ? "" : "sections", km_json_text_at(s, "name"),
               km_format_bytes(a, number(s, "bytes")));
    if (json_object_get(x, "verified_blocks"))
        printf("  %-11s all %.0f blocks are as they were written\n", "verified",
               number(x, "verified_blocks"));
}

static void print_rows(const json_t *r) {
    if (!r) return;
    printf("  %-11s %.0f of %.0f dimensions, %s%s%s\n", "vectors", number(r, "vectors"),
           number(r, "dim"), km_json_text_at(r, "dtype"),
           json_is_true(json_object_get(r, "big_endian")) ? ", big-endian" : "",
           strcmp(km_json_text_at(r, "order"), "columns") == 0 ? ", column after column" : "");
}

static void print_metadata(const json_t *meta) {
    if (json_object_size(meta) == 0) return;
    printf("  metadata\n");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)meta, key, v) {
        printf("    %s = ", safe(key));
        if (json_is_string(v)) {
            printf("%s\n", safe(json_string_value(v)));
        } else if (json_is_object(v)) {
            printf("%lld x %s\n", whole(v, "count"), km_json_text_at(v, "array"));
        } else {
            char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(7));
            char shown[KM_SHOWN];
            printf("%s\n", text ? km_shown(shown, text) : "");
            free(text);
        }
    }
}

static bool print_tensors(const json_t *list) {
    if (!list) return true;
    km_table t;
    km_table_init(&t, "llrr", (const char *[]){"tensor", "type", "shape", "bytes"});
    size_t i;
    json_t *one, *d;
    json_array_foreach(list, i, one) {
        char shape[128] = "";
        size_t k;
        json_array_foreach(json_object_get(one, "shape"), k, d) {
            size_t n = strlen(shape);
            snprintf(shape + n, sizeof shape - n, "%s%lld", k ? " x " : "",
                     (long long)json_integer_value(d));
        }
        km_table_cell(&t, "%s", safe(km_json_text_at(one, "name")));
        km_table_cell(&t, "%s", km_json_text_at(one, "type"));
        km_table_cell(&t, "%s", shape);
        km_table_cell(&t, "%lld", whole(one, "bytes"));
    }
    putchar('\n');
    bool ok = km_table_print(&t, stdout, 2);
    km_table_free(&t);
    return ok;
}

/* One of the types that a cache may have; KM_DTYPE_COUNT with the error set. */
static km_dtype cache_type(const char *name, km_error *err) {
    static const char *const names[] = {"f16", "bf16", "q8_0", "q4_0", "f32"};
    static const km_dtype types[] = {KM_F16, KM_BF16, KM_Q8_0, KM_Q4_0, KM_F32};
    int i = km_choose("cache type", name, names, 5, err);
    return i < 0 ? KM_DTYPE_COUNT : types[i];
}

/* Whether kermes chat and run can use it, and if not, why. */
static void print_runs(const json_t *v) {
    const json_t *m = json_object_get(v, "model");
    if (!m) return;
    if (!whole(m, "layers"))
        printf("  %-11s no: the architecture '%s' is not known here\n", "runs",
               safe(km_json_text_at(m, "architecture")));
    else if (!json_is_object(json_object_get(v, "tokenizer")))
        printf("  %-11s only with a tokenizer from elsewhere: it has none (run --tokenizer FILE)\n",
               "runs");
    else
        printf("  %-11s yes, by kermes chat and kermes run\n", "runs");
}

int km_command_info(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    km_describe_options o = km_describe_defaults();
    const char *cache = "f16";
    const km_option options[] = {
        {"tensors", KM_OPTION_FLAG, NULL, &o.tensors, 0, 0, "list every tensor"},
        {"verify", KM_OPTION_FLAG, NULL, &o.verify, 0, 0, "check every block of an index"},
        {"context", KM_OPTION_INT, "N", &o.context, 1, 1 << 30,
         "how much memory the cache takes for so many tokens (default: the model's own)"},
        {"cache-type", KM_OPTION_TEXT, "T", &cache, 0, 0,
         "with keys and values of f16 (default), bf16, q8_0, q4_0 or f32"},
        KM_OPTION_DEVICE_ROW(common, "looking at files takes the CPU alone"),
        KM_OPTION_OUTPUT_ROWS(common),
        {0},
    };
    const km_spec spec = {
        .name = "info",
        .words = "FILE|FOLDER",
        .summary = "What a file or folder is: its model, weights, tokenizer and metadata.",
        .details =
            "Knows safetensors (alone, or an index with its files), GGUF (split ones by their "
            "first\nfile), tokenizer.json, config.json, Hugging Face folders, the checkpoints and "
            "runs of\nkermes train, files of vectors (.npy, .fvecs, .bvecs, .ivecs, IDX) and "
            "indexes of them.\nAll of a file's structure is checked on the way.\n",
        .options = options,
        .examples = "kermes info model.gguf\n"
                    "kermes info model.gguf --tensors\n"
                    "kermes info model.gguf --context 32768 --cache-type q8_0\n"
                    "kermes info gpt2/ --json\n"
                    "kermes info runs/shakespeare\n"
                    "kermes info v.kmx --verify\n",
    };
    km_args args;
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1)
        return km_cli_usage("info takes one file or folder, as in 'kermes info model.gguf'");
    km_cli_notes(common.quiet);
    km_error err = {0};
    o.cache = cache_type(cache, &err);
    if (o.cache == KM_DTYPE_COUNT)
        return km_cli_usage("%s; there are f16, bf16, q8_0, q4_0 and f32", err.text);
    char *all = km_describe_file(args.words[0], &o);
    if (!all) return km_cli_fail("%s", km_last_error());
    if (common.json) {
        puts(all);
        km_string_free(all);
        return KM_EXIT_OK;
    }
    json_t *v = json_loads(all, 0, NULL);
    km_string_free(all);
    if (!v) return km_cli_fail("out of memory");
    print_head(v);
    print_model(json_object_get(v, "model"));
    print_weights(v);
    print_tokenizer(json_object_get(v, "tokenizer"));
    print_runs(v);
    print_state(json_object_get(v, "state"));
    print_text(json_object_get(v, "text"));
    print_index(json_object_get(v, "index"));
    print_rows(json_object_get(v, "rows"));
    print_metadata(json_object_get(v, "metadata"));
    bool ok = print_tensors(json_object_get(v, "tensor_list"));
    json_decref(v);
    return ok ? KM_EXIT_OK : km_cli_fail("out of memory");
}

/* Inputs of the commands on vectors. */
#include "cli/vectors.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/file.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const km_metric_names[3] = {"l2", "ip", "cosine"};
const char *const km_mode_names[3] = {"fast", "dense", "anchors-only"};
const char *const km_rerank_names[3] = {"none", "f16", "int8"};

bool km_choose_3(const char *what, const char *word, const char *const names[3], int *out,
                 km_error *err) {
    *out = km_choose(what, word, names, 3, err);
    return *out >= 0;
}

km_search_options km_look_options(const km_look_line *line) {
    km_search_options o = {.size = sizeof(km_search_options), .probe = line->probe};
    if (line->rerank) o.rerank = line->candidates ? line->candidates : 10 * line->k;
    return o;
}

int km_look_check(const km_look_line *line, const char *command) {
    if (line->candidates && !line->rerank)
        return km_cli_usage("%s: --candidates goes with --exact-rerank", command);
    return KM_EXIT_OK;
}

/* What the library said last, as *err. */
static km_status taken(km_error *err) {
    return km_error_set(err, km_last_status(), "%s", km_last_error());
}

km_vectors *km_open_vectors(const char *path, const km_input_line *line, km_error *err) {
    static const char *const names[] = {"f32", "f16", "bf16", "f64", "u8", "i8"};
    static const km_dtype types[] = {KM_F32, KM_F16, KM_BF16, KM_F64, KM_U8, KM_I8};
    int i = km_choose("dtype", line->dtype, names, 6, err);
    if (i < 0) return NULL;
    km_vectors_options o = km_vectors_defaults();
    o.tensor = line->tensor;
    o.dim = line->dim;
    o.dtype = types[i];
    km_vectors *v = km_vectors_open(path, &o);
    if (!v) taken(err);
    return v;
}

/* ---- Text ---- */

typedef struct numbers {
    float *at;
    int64_t n, cap;
} numbers;

static bool put(numbers *v, float x) {
    if (!km_array_reserve(&v->at, &v->cap, v->n + 1)) return false;
    v->at[v->n++] = x;
    return true;
}

/* Numbers between spaces, commas and brackets; each line that has any is one query. */
static float *parse_text(const char *text, int64_t dim, int64_t *n, km_error *err) {
    numbers v = {0};
    int64_t rows = 0, line = 1, in_row = 0;
    for (const char *p = text;; p++) {
        if (*p == '\n' || *p == 0) {
            if (in_row && in_row != dim) {
                km_error_set(err, KM_ERR_SHAPE,
                             "the query in line %lld has %lld numbers, the index %lld dimensions",
                             (long long)line, (long long)in_row, (long long)dim);
                break;
            }
            rows += in_row > 0;
            in_row = 0;
            line++;
            if (*p == 0) break;
            continue;
        }
        if (isspace((unsigned char)*p) || strchr(",;[]", *p)) continue;
        char *end;
        float x = strtof(p, &end);
        if (end == p || (*end && !isspace((unsigned char)*end) && !strchr(",;[]", *end))) {
            km_error_set(err, KM_ERR_FORMAT,
                         "line %lld of the queries holds something that is no "
                         "number",
                         (long long)line);
            break;
        }
        if (!put(&v, x)) {
            km_no_memory_for(err, "the queries");
            break;
        }
        in_row++;
        p = end - 1;
    }
    if (err->code == KM_OK && rows == 0) km_error_set(err, KM_ERR_RANGE, "there are no queries");
    if (err->code != KM_OK) {
        km_free(v.at);
        return NULL;
    }
    *n = rows;
    return v.at;
}

static char *read_stdin(size_t *size, km_error *err) {
    size_t cap = 65536, n = 0;
    char *text = km_alloc(cap);
    while (text) {
        ssize_t got = read(STDIN_FILENO, text + n, cap - n - 1);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            km_error_set(err, KM_ERR_FILE, "cannot read stdin: %s", strerror(errno));
            km_free(text);
            return NULL;
        }
        if (got == 0) break;
        n += (size_t)got;
        if (cap - n < 4096) {
            char *more = km_realloc(text, cap *= 2);
            if (!more) km_free(text);
            text = more;
        }
    }
    if (!text) {
        km_no_memory_for(err, "the queries");
        return NULL;
    }
    text[n] = 0;
    *size = n;
    return text;
}

static bool is_npy(const void *data, size_t size) {
    static const char magic[] = "\x93NUMPY";
    return size >= sizeof magic - 1 && memcmp(data, magic, sizeof magic - 1) == 0;
}

static float *read_all(km_vectors *in, const char *shown, int64_t dim, int64_t *n, km_error *err) {
    if (!in) return NULL;
    float *x = NULL;
    *n = km_vectors_count(in);
    if (km_vectors_dim(in) != dim)
        km_error_set(err, KM_ERR_SHAPE, "'%s' holds queries of %lld dimensions, the index has %lld",
                     shown, (long long)km_vectors_dim(in), (long long)dim);
    else if (!(x = km_alloc(sizeof *x * (size_t)(*n * dim))))
        km_no_memory_for(err, "the queries");
    else if (km_vectors_read(in, 0, *n, x) != KM_OK) {
        taken(err);
        km_free(x);
        x = NULL;
    }
    km_vectors_close(in);
    return x;
}

static float *read_npy(const char *data, size_t size, int64_t dim, int64_t *n, km_error *err) {
    km_vectors *in = km_vectors_open_memory(data, size, "stdin");
    if (!in) taken(err);
    return read_all(in, "stdin", dim, n, err);
}

float *km_read_queries(const char *path, const char *text, const km_input_line *line, int64_t dim,
                       int64_t *n, km_error *err) {
    if (text) return parse_text(text, dim, n, err);
    if (strcmp(path, "-") != 0)
        return read_all(km_open_vectors(path, line, err), path, dim, n, err);
    size_t size;
    char *all = read_stdin(&size, err);
    if (!all) return NULL;
    float *x = is_npy(all, size) ? read_npy(all, size, dim, n, err) : parse_text(all, dim, n, err);
    km_free(all);
    return x;
}

/* ---- Ids ---- */

typedef struct id_list {
    uint64_t *at;
    int64_t n, cap;
} id_list;

static bool put_id(id_list *v, uint64_t id) {
    if (!km_array_reserve(&v->at, &v->cap, v->n + 1)) return false;
    v->at[v->n++] = id;
    return true;
}

static uint64_t *refuse(id_list *v, km_error *err, km_status code, const char *fmt,
                        const char *text) {
    km_error_set(err, code, fmt, text);
    km_free(v->at);
    return NULL;
}

/* "3, 7, 10-19" in any spacing. */
static uint64_t *parse_ids(const char *text, int64_t *n, const char *shown, km_error *err) {
    id_list v = {0};
    for (const char *p = text; *p;) {
        if (isspace((unsigned char)*p) || *p == ',') {
            p++;
            continue;
        }
        char *end;
        errno = 0;
        uint64_t a = strtoull(p, &end, 10), b = a;
        bool ok = isdigit((unsigned char)*p) && errno == 0;
        if (ok && *end == '-') {
            p = end + 1;
            b = strtoull(p, &end, 10);
            ok = isdigit((unsigned char)*p) && errno == 0 && b >= a && b - a < 1u << 31;
        }
        if (!ok || (*end && *end != ',' && !isspace((unsigned char)*end)))
            return refuse(&v, err, KM_ERR_RANGE, "'%.60s' is no list of ids, as in 3,7,10-19",
                          shown);
        for (uint64_t i = a;; i++) {
            if (!put_id(&v, i)) return refuse(&v, err, KM_ERR_MEMORY, "no memory for %s", "ids");
            if (i == b) break;
        }
        p = end;
    }
    *n = v.n;
    return v.at ? v.at : refuse(&v, err, KM_ERR_RANGE, "'%.60s' holds no ids", shown);
}

static uint64_t *read_id_file(const char *path, int64_t wanted, int64_t *n, km_error *err) {
    km_map m;
    if (km_map_open(&m, path, err) != KM_OK) return NULL;
    uint64_t *ids = NULL;
    if (m.size && is_npy(m.data, m.size)) {
        km_vectors *in = km_vectors_open(path, NULL);
        if (!in) taken(err);
        if (in) {
            *n = km_vectors_count(in) * km_vectors_dim(in);
            ids = km_alloc(sizeof *ids * (size_t)*n);
            if (!ids) km_no_memory_for(err, "the ids");
            if (ids && km_vectors_read_ids(in, ids, wanted >= 0 ? wanted : *n) != KM_OK) {
                taken(err);
                km_free(ids);
                ids = NULL;
            }
        }
        km_vectors_close(in);
    } else {
        char *text = km_alloc(m.size + 1);
        if (text) {
            if (m.size) memcpy(text, m.data, m.size);
            text[m.size] = 0;
            ids = parse_ids(text, n, path, err);
        } else {
            km_no_memory_for(err, "the ids");
        }
        km_free(text);
    }
    if (km_map_done(&m, KM_OK, err) == KM_OK) return ids;
    km_free(ids);
    return NULL;
}

static int by_id(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

uint64_t *km_read_ids(const char *text, int64_t *n, km_error *err) {
    bool list = isdigit((unsigned char)text[0]) && access(text, F_OK) != 0;
    uint64_t *ids = list ? parse_ids(text, n, text, err) : read_id_file(text, -1, n, err);
    if (ids) qsort(ids, (size_t)*n, sizeof *ids, by_id);
    return ids;
}

uint64_t *km_read_ids_of(const char *path, int64_t n, km_error *err) {
    int64_t have;
    uint64_t *ids = read_id_file(path, n, &have, err);
    if (ids && have != n) {
        km_error_set(err, KM_ERR_RANGE, "'%s' holds %lld ids for %lld vectors", path,
                     (long long)have, (long long)n);
        km_free(ids);
        ids = NULL;
    }
    return ids;
}

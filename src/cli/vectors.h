/* What the commands on vectors share: options that name inputs and steer searches, queries from a
 * file, a line or stdin, and lists of ids. */
#ifndef KM_CLI_VECTORS_H
#define KM_CLI_VECTORS_H
#include "cli/cli.h"
#include "kermes.h"

typedef struct km_input_line { /* options of a command that reads vectors */
    const char *tensor, *dtype;
    int64_t dim;
} km_input_line;

#define KM_INPUT_DEFAULTS                                                                          \
    { .dtype = "f32" }
#define KM_INPUT_ROWS(i)                                                                           \
    {"tensor",                                                                                     \
     KM_OPTION_TEXT,                                                                               \
     "NAME",                                                                                       \
     &(i).tensor,                                                                                  \
     0,                                                                                            \
     0,                                                                                            \
     "the tensor of a safetensors file (default: the only matrix)"},                               \
        {"dim",                                                                                    \
         KM_OPTION_INT,                                                                            \
         "N",                                                                                      \
         &(i).dim,                                                                                 \
         1,                                                                                        \
         1 << 20,                                                                                  \
         "read files without a head as raw numbers, N a vector"},                                  \
    {                                                                                              \
        "dtype", KM_OPTION_TEXT, "T", &(i).dtype, 0, 0,                                            \
            "of raw numbers: f32 (default), f16, bf16, f64, u8 or i8"                              \
    }

#define KM_SKIP_BAD_ROW(dest)                                                                      \
    {                                                                                              \
        "skip-bad", KM_OPTION_FLAG, NULL, &(dest), 0, 0,                                           \
            "leave out vectors with NaN or infinity instead of refusing them"                      \
    }
#define KM_OVER_INDEX_ROW(dest)                                                                    \
    { "out", KM_OPTION_TEXT, "FILE", &(dest), 0, 0, "write there instead of over INDEX (-o)" }
#define KM_NEW_INDEX_ROW(dest)                                                                     \
    { "out", KM_OPTION_TEXT, "FILE", &(dest), 0, 0, "the index to write (-o)" }
/* Of a command that computes wherever it is told to. */
#define KM_COMPUTE_ROWS(c)                                                                         \
    KM_OPTION_DEVICE_ROW(c, "where to compute: auto, cpu, gpu, metal, cuda:N, vulkan:N"),          \
        KM_OPTION_THREADS_ROW(c), KM_OPTION_OUTPUT_ROWS(c)

typedef struct km_look_line { /* options of a command that searches */
    int64_t k, probe, candidates;
    bool rerank;
} km_look_line;

#define KM_LOOK_DEFAULTS                                                                           \
    { .k = 10 }
#define KM_LOOK_ROWS(w, most, k_help, rerank_help)                                                 \
    {"k", KM_OPTION_INT, "N", &(w).k, 1, most, k_help},                                            \
        {"probe",                                                                                  \
         KM_OPTION_INT,                                                                            \
         "N",                                                                                      \
         &(w).probe,                                                                               \
         0,                                                                                        \
         1 << 24,                                                                                  \
         "look at the N cells nearest to the query only (default: 0, all)"},                       \
        {"exact-rerank", KM_OPTION_FLAG, NULL, &(w).rerank, 0, 0, rerank_help}, {                  \
        "candidates", KM_OPTION_INT, "N", &(w).candidates, 1, 1000000,                             \
            "how many of them (default: 10 times k)"                                               \
    }

/* What they ask of a search; candidates without re-ranking are told as a mistake of `command`:
 * KM_EXIT_USAGE, else KM_EXIT_OK. */
km_search_options km_look_options(const km_look_line *line);
int km_look_check(const km_look_line *line, const char *command);

/* NULL with the error set; KM_ERR_RANGE for an unknown dtype. */
km_vectors *km_open_vectors(const char *path, const km_input_line *line, km_error *err);

/* Queries (n, dim), to be freed with km_free: a file, "-" for stdin (.npy, or lines of numbers), or the
 * numbers themselves. dim must be that of the index. */
float *km_read_queries(const char *path, const char *numbers, const km_input_line *line,
                       int64_t dim, int64_t *n, km_error *err);

/* Ids, ascending, to be freed with km_free: "3,7,10-19", or a file: .npy, or one a line. */
uint64_t *km_read_ids(const char *text, int64_t *n, km_error *err);
/* The ids of n vectors, in their order, from a file. */
uint64_t *km_read_ids_of(const char *path, int64_t n, km_error *err);

extern const char *const km_metric_names[3], *const km_mode_names[3], *const km_rerank_names[3];
/* Finds the word in three names; false with the error set. */
bool km_choose_3(const char *what, const char *word, const char *const names[3], int *out,
                 km_error *err);

#endif

/* What the commands on vectors share: options that name inputs, queries from a file, a line or stdin,
 * and lists of ids. */
#ifndef KM_CLI_VECTORS_H
#define KM_CLI_VECTORS_H
#include "cli/cli.h"
#include "vector/input.h"

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

/* NULL with the error set; KM_ERR_RANGE for an unknown dtype. */
km_input *km_open_vectors(const char *path, const km_input_line *line, km_error *err);

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

/* What `--data` names: text files, folders of them, or token files, each with an optional weight
 * ("a.txt:0.7"). Files are mapped, so a text of any size is never copied. */
#ifndef KM_TRAIN_SOURCE_H
#define KM_TRAIN_SOURCE_H
#include "base/file.h"
#include <stdbool.h>

typedef struct km_text_file {
    char *path; /* absolute */
    km_map text;
    int64_t mtime; /* nanoseconds */
} km_text_file;

typedef struct km_text_source {
    char *path;     /* as given, without the weight */
    double weight;  /* 0: none was given */
    bool tokenised; /* a token file; files is empty then */
    km_text_file *files;
    int n_files;    /* in order of their names */
    uint64_t bytes; /* of all of them */
} km_text_source;

/* Parses each argument and maps its files. A folder stands for all regular files in it and below,
 * hidden ones left out. Empty text, or none at all, is an error. */
km_status km_sources_open(km_text_source **sources, const char *const *arguments, int n,
                          km_error *err);
void km_sources_close(km_text_source *sources, int n); /* NULL is fine */

/* An error that names file, byte and line when a text is not UTF-8. */
km_status km_sources_check_utf8(const km_text_source *sources, int n, km_error *err);

#endif

/* What a name given to `kermes pull` stands for, and which files that is: a repository of a hub that
 * speaks Hugging Face's protocol, an address, or a short name. */
#ifndef KM_CLI_PULL_HUB_H
#define KM_CLI_PULL_HUB_H
#include "cli/pull/web.h"
#include <jansson.h>

typedef struct km_pull_name {
    char repo[200];     /* "owner/name"; "": an address */
    char quant[48];     /* "Q4_K_M"; "": choose */
    char revision[100]; /* "main" */
    const char *url;    /* the address; or NULL */
} km_pull_name;

typedef struct km_pull_file {
    char path[512]; /* in the repository; checked: no way out of a folder */
    int64_t size;
    char sum[65]; /* of large files; "" of others */
} km_pull_file;

typedef struct km_pull_list {
    km_pull_file *at;
    size_t n, room;
} km_pull_list;

#define KM_PULL_HUB "https://huggingface.co"

/* KM_ERR_RANGE: that is no name. */
km_status km_pull_parse(const char *given, km_pull_name *out, km_error *err);
/* The short names, as "name<tab>what it stands for" lines. */
void km_pull_short_names(km_text *out);

/* All files of the repository. Names that would lead out of a folder are refused. */
km_status km_pull_files(km_web *h, const char *endpoint, const km_pull_name *name,
                        km_pull_list *out, km_error *err);
/* Keeps those that make up the model that was asked for: one GGUF file (with all its parts), or a
 * folder of safetensors; *folder tells which. */
km_status km_pull_choose(const km_pull_name *name, km_pull_list *list, bool *folder, km_error *err);
void km_pull_list_free(km_pull_list *l);
/* Whether a path from a server stays below the folder it is put into. */
bool km_pull_safe(const char *path);

#endif

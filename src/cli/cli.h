/* What the commands share: how they start, fail and write to stdout. A command is one function
 * that gets its arguments and returns the exit code. */
#ifndef KM_CLI_CLI_H
#define KM_CLI_CLI_H
#include "cli/args.h"
#include <jansson.h>

enum { KM_EXIT_OK = 0, KM_EXIT_FAILED = 1, KM_EXIT_USAGE = 2 };

/* The options that every command has. */
typedef struct km_common {
    const char *device;
    int64_t threads;
    bool json, quiet;
} km_common;

#define KM_COMMON_DEFAULTS                                                                         \
    { .device = "auto" }
#define KM_OPTION_DEVICE_ROW(c, help)                                                              \
    { "device", KM_OPTION_DEVICE, "NAME", &(c).device, 0, 0, help }
#define KM_OPTION_THREADS_ROW(c)                                                                   \
    {                                                                                              \
        "threads", KM_OPTION_INT, "N", &(c).threads, 0, 1024,                                      \
            "threads on the CPU (default: one per core)"                                           \
    }
#define KM_OPTION_OUTPUT_ROWS(c)                                                                   \
    {"json", KM_OPTION_FLAG, NULL, &(c).json, 0, 0, "print JSON instead of text"}, {               \
        "quiet", KM_OPTION_FLAG, NULL, &(c).quiet, 0, 0, "no progress bar and no notes on stderr"  \
    }

int km_command_devices(int argc, char **argv);
int km_command_verify(int argc, char **argv);
int km_command_bench(int argc, char **argv);
int km_command_tokenize(int argc, char **argv);
int km_command_train(int argc, char **argv);
int km_command_info(int argc, char **argv);
int km_command_convert(int argc, char **argv);
int km_command_sample(int argc, char **argv);
int km_command_run(int argc, char **argv);
int km_command_chat(int argc, char **argv);
int km_command_serve(int argc, char **argv);
int km_command_perplexity(int argc, char **argv);
int km_command_compress(int argc, char **argv);
int km_command_search(int argc, char **argv);
int km_command_add(int argc, char **argv);
int km_command_delete(int argc, char **argv);
int km_command_merge(int argc, char **argv);
int km_command_decompress(int argc, char **argv);
int km_command_recall(int argc, char **argv);
int km_command_compare(int argc, char **argv);
int km_command_pull(int argc, char **argv);
int km_command_models(int argc, char **argv);
int km_command_rm(int argc, char **argv);
int km_command_doctor(int argc, char **argv);
int km_command_completion(int argc, char **argv);
int km_command_complete(int argc, char **argv); /* what the shells ask; not listed */
int km_command_man(int argc, char **argv);      /* manual pages, for the build; not listed */

/* The commands, in the order of the help. */
typedef struct km_cli_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} km_cli_command;
const km_cli_command *km_cli_at(int i); /* NULL behind the last */
/* Shows a command's options to `visit`, and runs nothing. */
typedef void (*km_spec_visitor)(void *user, const km_spec *spec);
void km_cli_visit(const km_cli_command *c, km_spec_visitor visit, void *user);

/* Parses; prints help or the error. Returns true when the command should go on; otherwise
 * *exit_code is what to return. */
bool km_begin(const km_spec *spec, int argc, char **argv, km_args *args, int *exit_code);

/* "kermes: " and the message, one line on stderr. Each returns its exit code. */
int km_cli_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));  /* 1 */
int km_cli_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* 2 */

void km_cli_notes(bool quiet);    /* the library's notes go to stderr, or nowhere */
int km_cli_print_json(json_t *v); /* prints and frees v; the exit code */
/* Whether what failed was a GPU that is lost to the process, so that the command may do all of it again on
 * the CPU, which `c` then names. Says so. Not under mpirun: ranks cannot move alone. */
bool km_cli_lost(const km_ctx *ctx, km_common *c);
/* Whether a file can be written there: better to hear it now than after two minutes. */
bool km_cli_can_write(const char *path, km_error *err);

#endif

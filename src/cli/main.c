/* The kermes command: finds the command by its first word, and makes sure that what was printed
 * really got out before it reports success. */
#include "base/file.h"
#include "cli/cli.h"
#include "report/json.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const km_cli_command commands[] = {
    {"devices", "what is here: CPU, BLAS, GPUs, and why something is missing", km_command_devices},
    {"verify", "check every op on a device against the reference", km_command_verify},
    {"bench", "measure the speed of ops against plain C and the hardware's limit",
     km_command_bench},
    {"tokenize", "text to token ids and back; train a tokenizer", km_command_tokenize},
    {"train", "train a language model on text, or go on with one", km_command_train},
    {"info", "what a file or folder is: its model, weights, tokenizer, metadata", km_command_info},
    {"convert", "turn a model from one format into another", km_command_convert},
    {"sample", "the same as run, for a model that was just trained", km_command_sample},
    {"chat", "talk with a model", km_command_chat},
    {"serve", "serve a model to programs that speak to OpenAI, Anthropic or Ollama",
     km_command_serve},
    {"run", "go on with one prompt, or answer it", km_command_run},
    {"perplexity", "how well a model predicts a text", km_command_perplexity},
    {"pull", "fetch a model", km_command_pull},
    {"models", "the models on this machine", km_command_models},
    {"rm", "remove a model", km_command_rm},
    {"doctor", "what is here, what is missing, and what to do", km_command_doctor},
    {"completion", "completion of commands for bash, zsh and fish", km_command_completion},
    {"compress", "turn embeddings into a small index that can be searched", km_command_compress},
    {"search", "find the nearest vectors in an index", km_command_search},
    {"add", "add vectors to an index", km_command_add},
    {"delete", "delete vectors from an index", km_command_delete},
    {"merge", "make one index of several", km_command_merge},
    {"decompress", "write an index's vectors back to a file", km_command_decompress},
    {"recall", "measure an index against exact search", km_command_recall},
    {"compare", "learn anchors on the CPU and on a GPU, and compare", km_command_compare},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* ---- Shared by the commands ---- */

/* The library knows no flags: what to write on the line goes behind its words. */
static const char *advice(const char *message) {
    static const struct {
        const char *words, *advice;
    } known[] = {
        {"and there is no model folder", ": give one with -m FILE"},
        {"no model is named", ": give one with -m FILE, or put a GGUF file there"},
        {"and no built-in one was chosen", "; choose one with --template NAME, such as chatml"},
        {"; a built-in one can be chosen", " with --template NAME"},
        {"(it can be left out)", ": --no-tokenizer"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(message, known[i].words)) return known[i].advice;
    return "";
}

static void print_error(const char *fmt, va_list ap) {
    char message[2 * KM_ERROR_TEXT]; /* to look at; what is longer is printed whole */
    va_list again;
    va_copy(again, ap);
    vsnprintf(message, sizeof message, fmt, again);
    va_end(again);
    fflush(stdout);
    fputs("kermes: ", stderr);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "%s\n", advice(message));
}

int km_cli_fail(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_error(fmt, ap);
    va_end(ap);
    return KM_EXIT_FAILED;
}

int km_cli_usage(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_error(fmt, ap);
    va_end(ap);
    return KM_EXIT_USAGE;
}

const km_cli_command *km_cli_at(int i) { return i < N_COMMANDS ? &commands[i] : NULL; }

static km_spec_visitor visitor;
static void *visitor_user;

void km_cli_visit(const km_cli_command *c, km_spec_visitor visit, void *user) {
    visitor = visit;
    visitor_user = user;
    c->run(0, (char *[]){NULL});
    visitor = NULL;
}

bool km_begin(const km_spec *spec, int argc, char **argv, km_args *args, int *exit_code) {
    km_error err = {0};
    if (visitor) {
        visitor(visitor_user, spec);
        *exit_code = KM_EXIT_OK;
        return false;
    }
    if (km_args_parse(spec, argc, argv, args, &err) != KM_OK) {
        *exit_code = km_cli_usage("%s", err.text);
        return false;
    }
    if (args->help) {
        km_args_help(spec, stdout);
        *exit_code = KM_EXIT_OK;
        return false;
    }
    return true;
}

static void print_note(void *user, km_log_level level, const char *line) {
    (void)user;
    const char *term = getenv("TERM");
    bool bars = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    /* On a terminal, over a progress bar that may stand there; it comes back by itself. */
    fprintf(stderr, "%skermes: %s%s\n", bars ? "\r\033[K" : "",
            level == KM_LOG_WARN ? "warning: " : "", line);
}

void km_cli_notes(bool quiet) { km_set_log(quiet ? NULL : print_note, NULL); }

bool km_cli_lost(const km_ctx *ctx, km_common *c) {
    const char *fallback = getenv("KERMES_FALLBACK");
    if (!ctx || !km_ctx_lost(ctx) || km_ranks() > 1 || (fallback && strcmp(fallback, "0") == 0))
        return false;
    if (!c->quiet) {
        char line[KM_ERROR_TEXT + 64];
        snprintf(line, sizeof line, "%s; all of it again with the CPU", km_ctx_error(ctx));
        print_note(NULL, KM_LOG_WARN, line);
    }
    c->device = "cpu";
    return true;
}

bool km_cli_can_write(const char *path, km_error *err) {
    km_writer *w = km_writer_open(path, err);
    km_writer_abort(w);
    return w != NULL;
}

int km_cli_print_json(json_t *v) {
    bool ok = km_json_print(v, stdout);
    json_decref(v);
    return ok ? KM_EXIT_OK : km_cli_fail("cannot print the JSON: out of memory or disk");
}

/* ---- The command itself ---- */

static void print_help(FILE *out) {
    fputs("Kermes, a local AI engine: runs and trains language models, compresses and searches\n"
          "vectors, in one small binary.\n"
          "\n"
          "Usage: kermes COMMAND [options]\n"
          "\n"
          "Commands:\n",
          out);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs(
        "\n"
        "'kermes COMMAND --help' has a command's options and examples. Every command takes\n"
        "--json and --quiet, and where it computes --device auto|ref|cpu|gpu|metal|cuda:N|vulkan:N.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong usage.\n"
        "\n"
        "Examples:\n"
        "  kermes chat -m model.gguf\n"
        "  echo 'What is a kermes?' | kermes chat\n"
        "  kermes devices\n"
        "  kermes verify --device cpu\n"
        "  kermes bench --quick --html bench.html\n"
        "  kermes compress vectors.npy -o v.kmx\n",
        out);
}

static const km_cli_command *find_command(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(name, commands[i].name) == 0) return &commands[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i].name;
    const char *near = km_nearest(name, names, N_COMMANDS);
    if (near) return km_cli_usage("unknown command '%.60s'; did you mean '%s'?", name, near);
    return km_cli_usage("unknown command '%.60s'; 'kermes --help' lists them", name);
}

static int run_help(int argc, char **argv) {
    if (argc == 0) {
        print_help(stdout);
        return KM_EXIT_OK;
    }
    const km_cli_command *c = find_command(argv[0]);
    if (!c) return unknown_command(argv[0]);
    char help[] = "--help";
    return c->run(1, (char *[]){help, NULL});
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return KM_EXIT_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) return run_help(0, NULL);
    if (strcmp(word, "help") == 0) return run_help(argc - 2, argv + 2);
    if (strcmp(word, "--version") == 0 || strcmp(word, "-v") == 0 || strcmp(word, "-V") == 0) {
        printf("kermes %s\n", km_version());
        return KM_EXIT_OK;
    }
    if (word[0] == '-')
        return km_cli_usage("kermes itself has no option %.60s; 'kermes --help' shows what it does",
                            word);
    if (strcmp(word, "man") == 0) return km_command_man(argc - 2, argv + 2);
    if (strcmp(word, "complete") == 0) return km_command_complete(argc - 2, argv + 2);
    const km_cli_command *c = find_command(word);
    return c ? c->run(argc - 2, argv + 2) : unknown_command(word);
}

int main(int argc, char **argv) {
    int code = run(argc, argv);
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout))
        code = km_cli_fail("cannot write the output: %s", strerror(errno ? errno : EIO));
    return code;
}

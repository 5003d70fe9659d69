/* kermes completion: scripts for bash, zsh and fish, which ask `kermes complete` what a word could
 * become: commands, options, models, devices. Where it knows nothing, the shell offers files. */
#include "cli/cli.h"
#include "cli/model_stores.h"
#include "kermes.h"
#include <stdlib.h>
#include <string.h>

static const char bash_script[] =
    "# Completion of kermes for bash:  kermes completion bash >~/.local/share/bash-completion/completions/kermes\n"
    "_kermes() {\n"
    "    local IFS=$'\\n'\n"
    "    COMPREPLY=($(kermes complete -- \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null))\n"
    "}\n"
    "complete -o default -F _kermes kermes\n";

static const char zsh_script[] =
    "#compdef kermes\n"
    "# Completion of kermes for zsh:  kermes completion zsh >\"${fpath[1]}/_kermes\"\n"
    "_kermes() {\n"
    "    local -a found\n"
    "    found=(${(f)\"$(kermes complete -- \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"})\n"
    "    if (( $#found )); then compadd -a found; else _files; fi\n"
    "}\n"
    "if [ \"$funcstack[1]\" = _kermes ]; then _kermes \"$@\"; else compdef _kermes kermes; fi\n";

static const char fish_script[] =
    "# Completion of kermes for fish:  kermes completion fish >~/.config/fish/completions/kermes.fish\n"
    "complete -c kermes -a '(kermes complete -- (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'\n";

int km_command_completion(int argc, char **argv) {
    km_common common = KM_COMMON_DEFAULTS;
    static const char *const shells[] = {"bash", "zsh", "fish"};
    static const char *const scripts[] = {bash_script, zsh_script, fish_script};
    const km_option options[] = {KM_OPTION_OUTPUT_ROWS(common), {0}};
    const km_spec spec = {
        .name = "completion",
        .words = "SHELL",
        .summary = "Prints what completes the words of kermes in bash, zsh or fish.",
        .details = "Commands, options, models and devices are completed; files elsewhere.\n",
        .options = options,
        .examples = "  eval \"$(kermes completion bash)\"\n"
                    "  kermes completion zsh >\"${fpath[1]}/_kermes\"\n"
                    "  kermes completion fish >~/.config/fish/completions/kermes.fish\n",
    };
    km_args args;
    km_error err = {0};
    int code;
    if (!km_begin(&spec, argc, argv, &args, &code)) return code;
    if (args.n_words != 1) return km_cli_usage("completion: name a shell: bash, zsh or fish");
    int i = km_choose("shell", args.words[0], shells, 3, &err);
    if (i < 0) return km_cli_usage("completion: %s", err.text);
    fputs(scripts[i], stdout);
    return KM_EXIT_OK;
}

/* ---- What the shells ask ---- */

typedef struct completing {
    const char *before, *word; /* the word before, and the beginning of this one */
    bool models;               /* words of this command are models */
} completing;

static void offer(const char *word, const char *begin) {
    if (strncmp(word, begin, strlen(begin)) == 0) puts(word);
}

static void offer_models(const char *begin) {
    km_found_models m = {0};
    km_stores_kermes(&m);
    for (size_t i = 0; i < m.n; i++) {
        const char *slash = strrchr(m.at[i].name, '/');
        if (!strpbrk(m.at[i].name, " '\"\n")) offer(slash ? slash + 1 : m.at[i].name, begin);
    }
    km_stores_free(&m);
}

static void offer_devices(const char *begin) {
    static const char *const fixed[] = {"auto", "cpu", "gpu", "ref"};
    char *all = km_devices_json("auto");
    json_t *v = all ? json_loads(all, 0, NULL) : NULL, *name;
    size_t i;
    for (int k = 0; k < 4; k++) offer(fixed[k], begin);
    json_array_foreach(json_object_get(v, "devices"), i, name) {
        const char *s = json_string_value(name);
        if (s && strchr(s, ':')) offer(s, begin);
    }
    json_decref(v);
    km_string_free(all);
}

static void complete_option(void *user, const km_spec *spec) {
    const completing *c = user;
    const km_option *asked = NULL;
    for (const km_option *o = spec->options; o->name; o++)
        if (strncmp(c->before, "--", 2) == 0 && strcmp(c->before + 2, o->name) == 0) asked = o;
    bool model = strcmp(c->before, "-m") == 0 || (asked && strcmp(asked->name, "model") == 0) ||
                 (asked && strcmp(asked->name, "draft") == 0);
    if (model) {
        offer_models(c->word);
    } else if (asked && asked->kind == KM_OPTION_DEVICE) {
        offer_devices(c->word);
    } else if (asked && asked->kind != KM_OPTION_FLAG) {
        return; /* a file, or something that cannot be known */
    } else if (c->word[0] == '-') {
        char flag[64];
        for (const km_option *o = spec->options; o->name; o++) {
            snprintf(flag, sizeof flag, "--%s", o->name);
            offer(flag, c->word);
        }
        offer("--help", c->word);
    } else if (c->models) {
        offer_models(c->word);
    }
}

/* argv: "--", then the words of the line up to the one that is being typed. */
int km_command_complete(int argc, char **argv) {
    static const char *const with_models[] = {"chat", "run", "rm", "info", "sample"};
    if (argc > 0 && strcmp(argv[0], "--") == 0) argc--, argv++;
    if (argc <= 1) {
        const char *begin = argc ? argv[0] : "";
        for (int i = 0; km_cli_at(i); i++) offer(km_cli_at(i)->name, begin);
        offer("help", begin);
        return KM_EXIT_OK;
    }
    completing c = {.before = argc > 2 ? argv[argc - 2] : "", .word = argv[argc - 1]};
    for (int i = 0; i < 5; i++) c.models = c.models || strcmp(argv[0], with_models[i]) == 0;
    if (strcmp(argv[0], "completion") == 0 && argc == 2) {
        static const char *const shells[] = {"bash", "zsh", "fish"};
        for (int i = 0; i < 3; i++) offer(shells[i], c.word);
    }
    for (int i = 0; km_cli_at(i); i++) {
        if (strcmp(argv[0], "help") == 0) offer(km_cli_at(i)->name, c.word);
        if (strcmp(km_cli_at(i)->name, argv[0]) == 0)
            km_cli_visit(km_cli_at(i), complete_option, &c);
    }
    return KM_EXIT_OK;
}

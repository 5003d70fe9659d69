/* kermes man: manual pages, from the same tables as --help; the build calls it for each command. */
#include "cli/cli.h"
#include "kermes.h"
#include <string.h>

/* Text as troff takes it: backslashes doubled, no line that looks like a request. */
static void put_text(const char *text) {
    bool line = true;
    for (; *text; text++) {
        if (line && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        line = *text == '\n';
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
    }
}

static void begin_page(const char *title, const char *section) {
    printf(".TH \"%s\" \"%s\" \"\" \"Kermes %s\" \"Kermes Manual\"\n", title, section,
           km_version());
}

static void put_example(const char *examples) {
    fputs(".SH EXAMPLES\n.nf\n", stdout);
    put_text(examples);
    fputs(".fi\n", stdout);
}

static void put_page(void *user, const km_spec *spec) {
    char title[64];
    (void)user;
    snprintf(title, sizeof title, "kermes-%s", spec->name);
    begin_page(title, "1");
    fputs(".SH NAME\n", stdout);
    put_text(title);
    fputs(" \\- ", stdout);
    put_text(spec->summary);
    printf("\n.SH SYNOPSIS\n.B kermes %s\n", spec->name);
    if (spec->words) put_text(spec->words);
    fputs("\n[\\fIoptions\\fR]\n", stdout);
    if (spec->details) {
        fputs(".SH DESCRIPTION\n", stdout);
        put_text(spec->details);
    }
    fputs(".SH OPTIONS\n", stdout);
    for (const km_option *o = spec->options; o->name; o++) {
        fputs(".TP\n\\fB\\-\\-", stdout);
        put_text(o->name);
        fputs("\\fR", stdout);
        if (o->value) {
            fputs(" \\fI", stdout);
            put_text(o->value);
            fputs("\\fR", stdout);
        }
        putchar('\n');
        put_text(o->help);
        putchar('\n');
    }
    fputs(".TP\n\\fB\\-\\-help\\fR\nthis page, shorter\n", stdout);
    put_example(spec->examples);
    fputs(
        ".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage; an error is one line on standard error.\n"
        ".SH SEE ALSO\n.BR kermes (1)\n",
        stdout);
}

static void put_overview(void) {
    begin_page("kermes", "1");
    fputs(".SH NAME\nkermes \\- a local AI engine: runs and trains language models, compresses and "
          "searches vectors\n.SH SYNOPSIS\n.B kermes\n\\fIcommand\\fR [\\fIoptions\\fR]\n"
          ".SH COMMANDS\n",
          stdout);
    for (int i = 0; km_cli_at(i); i++) {
        fputs(".TP\n\\fB", stdout);
        put_text(km_cli_at(i)->name);
        fputs("\\fR\n", stdout);
        put_text(km_cli_at(i)->summary);
        putchar('\n');
    }
    fputs(".SH ENVIRONMENT\n"
          ".TP\n\\fBKERMES_MODELS\\fR\nthe model folder (else ~/.local/share/kermes/models)\n"
          ".TP\n\\fBKERMES_HISTORY\\fR\nthe file that keeps the lines of a chat; empty: none\n"
          ".TP\n\\fBHF_TOKEN\\fR, \\fBHF_ENDPOINT\\fR\nfor \\fBkermes pull\\fR\n"
          ".SH SEE ALSO\n",
          stdout);
    for (int i = 0; km_cli_at(i); i++)
        printf(".BR kermes\\-%s (1)%s\n", km_cli_at(i)->name, km_cli_at(i + 1) ? "," : "");
    fputs(".br\n.BR kermes (3)\n", stdout);
}

int km_command_man(int argc, char **argv) {
    if (argc == 0) {
        put_overview();
        return KM_EXIT_OK;
    }
    if (strcmp(argv[0], "--names") == 0) {
        for (int i = 0; km_cli_at(i); i++) puts(km_cli_at(i)->name);
        return KM_EXIT_OK;
    }
    for (int i = 0; km_cli_at(i); i++)
        if (strcmp(km_cli_at(i)->name, argv[0]) == 0) {
            km_cli_visit(km_cli_at(i), put_page, NULL);
            return KM_EXIT_OK;
        }
    return km_cli_usage("man: there is no command '%.60s'", argv[0]);
}

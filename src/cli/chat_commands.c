/* Lines with a slash: what can be done to a conversation besides going on with it. */
#include "cli/chat.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

typedef struct chat_command {
    const char *name, *value, *about;
    void (*run)(km_chat *c, const char *value);
} chat_command;

static void show_help(km_chat *c, const char *value);

static void set_system(km_chat *c, const char *value) {
    km_error err = {0};
    if (!*value) {
        const char *system = km_talk_get_system(&c->talk);
        km_chat_say(c, "%s", system ? system : "there is no system message");
    } else if (km_talk_system(&c->talk, strcmp(value, "none") == 0 ? NULL : value, &err) != KM_OK) {
        km_chat_complain(c, "%s", err.text);
    } else {
        km_chat_say(c, "the system message is %s from now on",
                    km_talk_get_system(&c->talk) ? "this" : "none");
    }
}

static void clear(km_chat *c, const char *value) {
    (void)value;
    km_talk_clear(&c->talk);
    c->cleared = true;
    km_chat_say(c, "a new conversation");
}

static void retry(km_chat *c, const char *value) {
    (void)value;
    if (km_talk_ends_with(&c->talk, "assistant")) {
        km_talk_drop_last(&c->talk);
        km_chat_answer(c);
    } else {
        km_chat_complain(c, "there is no answer to give again");
    }
}

/* A leading "~/" is the home folder; the shell is not here to say so. */
static bool path_of(km_chat *c, const char *what, const char *value, char out[PATH_MAX]) {
    const char *home = getenv("HOME");
    bool tilde = value[0] == '~' && value[1] == '/' && home;
    int n = snprintf(out, PATH_MAX, "%s%s", tilde ? home : "", tilde ? value + 1 : value);
    if (!*value)
        km_chat_complain(c, "/%s needs a file: /%s talk.json", what, what);
    else if (n < 0 || n >= PATH_MAX)
        km_chat_complain(c, "/%s: the path is too long", what);
    else
        return true;
    return false;
}

/* "1 message is", "3 messages are" */
static const char *counted(const km_chat *c, char out[48], const char *one, const char *many) {
    size_t n = json_array_size(c->talk.messages);
    snprintf(out, 48, "%zu message%s", n, n == 1 ? one : many);
    return out;
}

static void save(km_chat *c, const char *value) {
    char path[PATH_MAX], count[48];
    km_error err = {0};
    if (!path_of(c, "save", value, path)) return;
    if (km_talk_save(&c->talk, path, c->about.path, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_say(c, "%s in %s", counted(c, count, " is", "s are"), path);
}

static void load(km_chat *c, const char *value) {
    char path[PATH_MAX], count[48];
    km_error err = {0};
    if (!path_of(c, "load", value, path)) return;
    if (km_talk_load(&c->talk, path, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_say(c, "%s from %s", counted(c, count, "", "s"), path);
}

static void show_stats(km_chat *c, const char *value) {
    (void)value;
    char rate[KM_NUMBER_TEXT];
    km_chat_say(c, "%s on %s", c->about.path, km_model_describe(c->m).devices);
    km_chat_say(c, "context: %lld of %lld tokens",
                c->cleared ? 0 : (long long)km_session_length(c->session),
                (long long)c->about.context);
    if (c->answers == 0) return;
    km_chat_tell_last(c);
    km_chat_say(
        c, "in all %llu answer%s, %lld token%s (%s a second)", (unsigned long long)c->answers,
        c->answers == 1 ? "" : "s", (long long)c->tokens_made, c->tokens_made == 1 ? "" : "s",
        km_format_number(rate, c->seconds_made > 0 ? (double)c->tokens_made / c->seconds_made : 0));
}

static void settings(km_chat *c, const char *value) {
    (void)value;
    km_chat_show_settings(c);
}

static void quit(km_chat *c, const char *value) {
    (void)value;
    c->quit = true;
}

static const chat_command commands[] = {
    {"help", "", "this list", show_help},
    {"system", "[TEXT]", "set the system message ('none': without one), or show it", set_system},
    {"clear", "", "begin a new conversation", clear},
    {"retry", "", "answer the last question once more", retry},
    {"save", "FILE", "write the conversation, as JSON", save},
    {"load", "FILE", "go on with a conversation that was saved", load},
    {"stats", "", "figures: model, context, speed", show_stats},
    {"settings", "", "how answers are made", settings},
    {"set", "NAME VALUE", "change a setting, as /set temperature 0.7", km_chat_set},
    {"bye", "", "leave; so do /exit, /quit and Ctrl-D", quit},
    {"exit", "", NULL, quit}, /* not listed */
    {"quit", "", NULL, quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void show_help(km_chat *c, const char *value) {
    (void)value;
    for (int i = 0; i < N_COMMANDS; i++) {
        char left[32];
        if (!commands[i].about) continue;
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].value);
        km_chat_say(c, "%-18s %s", left, commands[i].about);
    }
    km_chat_say(
        c, "A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of "
           "many lines.");
    if (km_lines_edited(c->lines))
        km_chat_say(c,
                    "Up and Down bring back earlier lines, Ctrl-R searches them, Tab completes.");
    km_chat_say(c, "A line that begins with // is sent with one slash. Ctrl-C stops an answer.");
}

void km_chat_command(km_chat *c, const char *line) {
    const char *name = line + 1;
    size_t length = strcspn(name, " \t\n");
    const char *value = name + length + strspn(name + length, " \t\n");
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strlen(names[i]) != length || strncmp(names[i], name, length) != 0) continue;
        if (*value && !*commands[i].value)
            km_chat_complain(c, "/%s takes nothing after it", names[i]);
        else
            commands[i].run(c, value);
        return;
    }
    char word[40];
    snprintf(word, sizeof word, "%.*s", (int)(length < 39 ? length : 39), name);
    const char *near = km_nearest(word, names, N_COMMANDS);
    if (near)
        km_chat_complain(c, "there is no /%s; did you mean /%s?", word, near);
    else
        km_chat_complain(c,
                         "there is no /%s; /help lists the commands, and // sends a line that "
                         "begins with a slash",
                         word);
}

/* ---- Tab ---- */

static void add_files(const char *begin, km_text *out) {
    char folder[PATH_MAX], typed[PATH_MAX];
    const char *slash = strrchr(begin, '/'), *home = getenv("HOME");
    bool tilde = begin[0] == '~' && begin[1] == '/' && home;
    int n = snprintf(typed, sizeof typed, "%.*s", slash ? (int)(slash - begin + 1) : 0, begin);
    if (n < 0 || n >= (int)sizeof typed) return;
    n = snprintf(folder, sizeof folder, "%s%s", tilde ? home : "", tilde ? typed + 1 : typed);
    if (n < 0 || n >= (int)sizeof folder) return;
    DIR *d = opendir(*folder ? folder : ".");
    const char *name = slash ? slash + 1 : begin;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strncmp(e->d_name, name, strlen(name)) == 0 &&
            (e->d_name[0] != '.' || name[0] == '.') && !strchr(e->d_name, '\n'))
            km_text_printf(out, "%s%s%s\n", typed, e->d_name, e->d_type == DT_DIR ? "/" : "");
    if (d) closedir(d);
}

void km_chat_complete(void *user, const char *line, km_text *out) {
    (void)user;
    if (line[0] != '/') return;
    const char *space = strchr(line, ' ');
    if (!space) {
        for (int i = 0; i < N_COMMANDS; i++)
            if (strncmp(commands[i].name, line + 1, strlen(line + 1)) == 0)
                km_text_printf(out, "/%s%s\n", commands[i].name, *commands[i].value ? " " : "");
        return;
    }
    const char *value = space + strspn(space, " ");
    if (strncmp(line, "/save ", 6) == 0 || strncmp(line, "/load ", 6) == 0) add_files(value, out);
    if (strncmp(line, "/set ", 5) == 0) km_chat_setting_names(value, out);
}

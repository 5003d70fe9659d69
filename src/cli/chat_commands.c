/* Lines with a slash: what can be done to a conversation besides going on with it. */
#include "cli/chat.h"
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

static void save(km_chat *c, const char *value) {
    char path[PATH_MAX];
    km_error err = {0};
    if (!path_of(c, "save", value, path)) return;
    if (km_talk_save(&c->talk, path, c->m.path, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_say(c, "%zu messages are in %s", json_array_size(c->talk.messages), path);
}

static void load(km_chat *c, const char *value) {
    char path[PATH_MAX];
    km_error err = {0};
    if (!path_of(c, "load", value, path)) return;
    if (km_talk_load(&c->talk, path, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_say(c, "%zu messages from %s", json_array_size(c->talk.messages), path);
}

static void show_stats(km_chat *c, const char *value) {
    (void)value;
    char rate[KM_NUMBER_TEXT];
    km_chat_say(c, "%s on %s", c->m.path, km_ctx_device(c->m.ctx));
    km_chat_say(c, "context: %lld of %lld tokens", (long long)km_sequence_length(c->session),
                (long long)km_sequence_context(c->session));
    if (c->answers == 0) return;
    km_chat_tell_last(c);
    km_chat_say(
        c, "in all %llu answers, %lld tokens (%s a second)", (unsigned long long)c->answers,
        (long long)c->tokens_made,
        km_format_number(rate, c->seconds_made > 0 ? (double)c->tokens_made / c->seconds_made : 0));
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
    {"quit", "", "leave; so does Ctrl-D", quit},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void show_help(km_chat *c, const char *value) {
    (void)value;
    for (int i = 0; i < N_COMMANDS; i++) {
        char left[32];
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].value);
        km_chat_say(c, "%-16s %s", left, commands[i].about);
    }
    km_chat_say(
        c, "A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of "
           "many lines.");
    if (km_lines_edited(c->lines))
        km_chat_say(c, "Up and Down bring back earlier lines, Ctrl-R searches them.");
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

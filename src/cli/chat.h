/* kermes chat, in parts: the command and its loop (chat.c), what a line with a slash does
 * (chat_commands.c), and answers (chat_answer.c). */
#ifndef KM_CLI_CHAT_H
#define KM_CLI_CHAT_H
#include "cli/chat_talk.h"
#include "cli/line.h"
#include "cli/sampling.h"
#include "cli/use_model.h"

typedef struct km_chat {
    /* as the line said */
    km_common common;
    const char *model, *template_name, *system, *draft_name;
    int64_t tokens;
    bool stats;
    km_cli_where where;
    km_cli_session room;
    km_cli_sampling sampling;
    /* what is open */
    km_cli_model m;
    km_cli_draft draft;
    km_sequence *session;
    km_chat_template *template;
    km_talk talk;
    km_lines *lines;
    bool terminal; /* somebody types */
    bool screen;   /* and reads: stdout is a terminal */
    bool colour;
    bool quit, failed;
    /* what happened */
    uint64_t answers; /* each draws from a seed of its own */
    km_generated last;
    int64_t tokens_made;
    double seconds_made;
    json_t *log; /* with --json: figures of each answer */
} km_chat;

/* A line for the person, on stderr; dimmed on a terminal. */
void km_chat_say(const km_chat *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An error that does not end the conversation. */
void km_chat_complain(km_chat *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Answers the last question: shows the answer as it is made and adds it to the conversation. When
 * there is no answer, the question is taken out again. */
void km_chat_answer(km_chat *c);

/* The figures of the last answer, on one line. */
void km_chat_tell_last(const km_chat *c);

/* What a line that begins with a slash asks for. */
void km_chat_command(km_chat *c, const char *line);

#endif

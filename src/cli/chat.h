/* kermes chat, in parts: the command and its loop (chat.c), what a line with a slash does
 * (chat_commands.c, chat_settings.c), and answers (chat_answer.c). */
#ifndef KM_CLI_CHAT_H
#define KM_CLI_CHAT_H
#include "cli/chat_talk.h"
#include "cli/chat_tools.h"
#include "cli/line.h"
#include "cli/sampling.h"
#include "cli/use_model.h"

#define KM_CHAT_TOKENS 2048 /* of an answer, where nobody says how many */

typedef struct km_chat {
    /* as the line said */
    km_common common;
    const char *model, *template_name, *system, *draft_name, *tools_file;
    int64_t tokens;
    bool stats, allow_loops;
    km_cli_loras loras;
    km_cli_where where;
    km_cli_session room;
    km_cli_sampling sampling;
    /* what is open */
    km_model *m;
    km_model_info about;
    km_session *session;
    km_talk talk;
    km_chat_tools tools;
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
    bool cleared; /* the conversation is empty again, though the session is not */
    json_t *log;  /* with --json: figures of each answer */
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

/* Every setting with its value, a line each. */
void km_chat_show_settings(const km_chat *c);
/* "/set NAME VALUE" without the "/set". */
void km_chat_set(km_chat *c, const char *value);
/* Names of settings that begin so, a line each. */
void km_chat_setting_names(const char *begin, km_text *out);

/* What Tab makes of a line that begins with a slash (line.h). */
void km_chat_complete(void *km_chat_, const char *line, km_text *out);

/* What a line that begins with a slash asks for. */
void km_chat_command(km_chat *c, const char *line);

#endif

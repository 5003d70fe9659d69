/* Tools of a conversation (kermes chat --tools FILE): functions as OpenAI describes them, each with a
 * command that answers its calls, or none: then the person does. */
#ifndef KM_CLI_CHAT_TOOLS_H
#define KM_CLI_CHAT_TOOLS_H
#include "base/error.h"
#include "base/text.h"
#include <jansson.h>

#define KM_CHAT_ROUNDS 8 /* calls answered for one question, one after the other */

struct km_chat;

typedef struct km_chat_tools { /* all-zero: none */
    json_t *list;              /* as templates get them: without commands */
    json_t *commands;          /* by name: a text for the shell, or a list of words */
    char *text;                /* list, as JSON */
    const char **names;
    size_t n;
} km_chat_tools;

typedef struct km_chat_call {
    char *name;
    km_text arguments; /* JSON, as the model wrote it */
} km_chat_call;

/* The file's list, checked: [{"type": "function", "function": {"name": ..., "description": ...,
 * "parameters": {...}}, "command": "..."}]. */
km_status km_chat_tools_open(km_chat_tools *t, const char *path, km_error *err);
void km_chat_tools_close(km_chat_tools *t);

/* The calls of an answer join the conversation, with what answers each of them: its command, which gets
 * the arguments on standard input, or the next line typed. False: that line never came, or Ctrl-C did. */
bool km_chat_tools_answer(struct km_chat *c, const char *said, size_t bytes,
                          const km_chat_call *calls, size_t n);

#endif

/* A conversation: messages of a system, a user and an assistant, in the form that templates and
 * files take them, an array of JSON objects with role and content. */
#ifndef KM_CLI_CHAT_TALK_H
#define KM_CLI_CHAT_TALK_H
#include "base/error.h"
#include <jansson.h>

typedef struct km_talk {
    json_t *messages;
} km_talk;

km_status km_talk_begin(km_talk *t, km_error *err);
void km_talk_end(km_talk *t);

/* Sets the system message, which comes first; NULL or "": there is none. */
km_status km_talk_system(km_talk *t, const char *text, km_error *err);
const char *km_talk_get_system(const km_talk *t); /* NULL: there is none */

km_status km_talk_add(km_talk *t, const char *role, const char *text, size_t bytes, km_error *err);
size_t km_talk_questions(const km_talk *t);
bool km_talk_ends_with(const km_talk *t, const char *role);
void km_talk_drop_last(km_talk *t);
void km_talk_clear(km_talk *t); /* all but the system message */
/* Drops the oldest question with what answers it, if it is not the last one; whether it was. */
bool km_talk_drop_oldest(km_talk *t);

/* {"format": "kermes conversation", "version": 1, "model": ..., "messages": [...]} */
km_status km_talk_save(const km_talk *t, const char *path, const char *model, km_error *err);
/* Replaces the conversation by that of a file; on an error it stays as it is. Roles and their order
 * are checked: a system message may come first, then questions and answers take turns. */
km_status km_talk_load(km_talk *t, const char *path, km_error *err);

#endif

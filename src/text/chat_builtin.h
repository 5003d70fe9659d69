/* Built-in chat formats: which marks stand around a turn. Rows of a table, no code of their own. */
#ifndef KM_TEXT_CHAT_BUILTIN_H
#define KM_TEXT_CHAT_BUILTIN_H
#include "text/chat_template.h"

/* In the texts of a row, these stand for the tokens that the caller names. */
#define KM_CHAT_BOS "\001"
#define KM_CHAT_EOS "\002"

typedef struct km_chat_marks { /* around a message */
    const char *before, *after;
} km_chat_marks;

typedef struct km_chat_builtin {
    const char *name, *about;
    const char *start; /* of the whole text */
    km_chat_marks system, user, assistant;
    const char *answer;     /* how an answer begins */
    const char *no_thought; /* after that, when thinking is off; NULL: it cannot be */
    bool in_question;       /* the system message goes into the first question, after its mark */
    bool trim;              /* space around messages goes */
} km_chat_builtin;

const km_chat_builtin *km_chat_builtin_find(const char *name); /* NULL: no such */
km_status km_chat_builtin_render(const km_chat_builtin *b, const json_t *messages,
                                 const km_chat_options *options, km_text *out, km_error *err);

#endif

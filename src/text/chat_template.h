/* Chat templates: a conversation as the text that a model was trained to go on with. A template
 * comes with the model (GGUF metadata, tokenizer_config.json, chat_template.jinja) and is Jinja, or
 * it is one of our own, by the name of a family.
 *
 * The text holds special tokens as they are written, the beginning of text included: encode it with
 * KM_TOKEN_PARSE_SPECIAL and without KM_TOKEN_ADD_SPECIAL. */
#ifndef KM_TEXT_CHAT_TEMPLATE_H
#define KM_TEXT_CHAT_TEMPLATE_H
#include "base/error.h"
#include "base/text.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct km_chat_template km_chat_template; /* never changes; usable by several threads */

/* ---- Making one ---- */

/* From Jinja text; `name` stands for it in messages. */
km_chat_template *km_chat_template_parse(const char *text, size_t bytes, const char *name,
                                         km_error *err);
/* A built-in by name ("chatml", "llama3", ...); an unknown name is an error that lists them. */
km_chat_template *km_chat_template_named(const char *name, km_error *err);
/* The template of a model: a .gguf file, a folder, a tokenizer_config.json, or a .jinja file. A
 * model without one is KM_ERR_STATE, so that a caller can choose a built-in. */
km_chat_template *km_chat_template_load(const char *path, km_error *err);
void km_chat_template_free(km_chat_template *t); /* NULL is fine */

/* The built-ins by number; NULL after the last. *about may be NULL, or gets one line about it. */
const char *km_chat_template_builtin(size_t i, const char **about);

/* ---- Using it ---- */

typedef enum km_thinking {
    KM_THINKING_DEFAULT, /* as the template has it */
    KM_THINKING_ON,      /* enable_thinking is true */
    KM_THINKING_OFF
} km_thinking;

typedef struct km_chat_options { /* all-zero is the usual: the text ends where an answer begins */
    const char *bos, *eos;       /* the texts of these tokens; NULL: there is none */
    bool complete;               /* the text ends with the last message */
    bool fold_system; /* where the template refuses system messages, put the first one in front of
                       * the first question */
    km_thinking thinking;
    const json_t *tools; /* an array, NULL: none */
    const json_t *more;  /* an object: further variables; NULL: none */
    int64_t now;         /* seconds since 1970, for templates that say the date; 0: the clock's */
} km_chat_options;

typedef struct km_message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} km_message;

/* Adds the text of the conversation to *out, which stays as it was on an error. */
km_status km_chat_render(const km_chat_template *t, const km_message *messages, size_t n,
                         const km_chat_options *options, km_text *out, km_error *err);
/* The same for messages as JSON: an array of objects with role, content and what else a template
 * may read. */
km_status km_chat_render_json(const km_chat_template *t, const json_t *messages,
                              const km_chat_options *options, km_text *out, km_error *err);

/* Whether thinking can be switched with this template. */
bool km_chat_template_thinks(const km_chat_template *t);

#endif

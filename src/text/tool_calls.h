/* What a model's answer is made of: text, reasoning, and tool calls in the forms that model families
 * write them. The parser is fed with text as it is made and gives out each part as soon as it is sure of
 * it; how the text was cut into pieces makes no difference.
 *
 *     Hermes, Qwen, Granite 4    <tool_call>{"name": "f", "arguments": {...}}</tool_call>
 *     Qwen3-Coder                <tool_call><function=f><parameter=a>1</parameter></function></tool_call>
 *     Llama 3                    <|python_tag|>{"name": "f", "parameters": {...}}, or without the tag
 *     Mistral                    [TOOL_CALLS][{"name": ...}], or [TOOL_CALLS]f[ARGS]{...}
 *     DeepSeek                   <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
 *     gpt-oss (harmony)          <|channel|>commentary to=functions.f<|message|>{...}<|call|>
 *     Gemma                      ```tool_code, ```tool_call or ```json, with JSON in it
 *     Phi, Granite 3             <|tool_call|>[{"name": ...}]<|/tool_call|>
 *     others                     an answer that is {"name": ..., "arguments": {...}}, or a list of these
 *
 * Reasoning is what stands in <think>...</think>, and harmony's analysis channel. */
#ifndef KM_TEXT_TOOL_CALLS_H
#define KM_TEXT_TOOL_CALLS_H
#include <stdbool.h>
#include <stddef.h>

typedef enum km_answer_kind {
    KM_ANSWER_TEXT,
    KM_ANSWER_REASONING,
    KM_ANSWER_CALL,      /* a call begins: text is the function's name */
    KM_ANSWER_ARGUMENTS, /* a piece of the call's arguments, which are JSON */
    KM_ANSWER_CALL_END
} km_answer_kind;

typedef struct km_answer_part {
    km_answer_kind kind;
    const char *text; /* of the call's end: none */
    size_t bytes;
    int call; /* 0, 1, ...: which one */
} km_answer_part;
typedef void (*km_answer_sink)(void *user, const km_answer_part *part);

typedef struct km_answer_options {
    const char *const *tools; /* n_tools names; without any, no text is taken for a call */
    size_t n_tools;
    bool keep_reasoning; /* as text, tags included */
    bool thinking;       /* the prompt has opened the reasoning already */
} km_answer_options;

typedef struct km_answer_parser km_answer_parser;
/* The names must outlive it. NULL: out of memory. */
km_answer_parser *km_answer_parser_new(const km_answer_options *options, km_answer_sink sink,
                                       void *user);
void km_answer_parser_free(km_answer_parser *p); /* NULL is fine */
/* False: out of memory. */
bool km_answer_parser_put(km_answer_parser *p, const char *text, size_t bytes);
/* The text of a special token, which is no text of the answer: taken where it marks something. */
bool km_answer_parser_special(km_answer_parser *p, const char *text, size_t bytes);
bool km_answer_parser_end(km_answer_parser *p);        /* what is held back comes out */
int km_answer_parser_calls(const km_answer_parser *p); /* how many there are so far */

#endif

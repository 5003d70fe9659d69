/* The formats of well-known families, for models that come without a template or with one that is
 * not supported: --template NAME. */
#include "text/chat_builtin.h"
#include "text/jinja_chars.h"
#include <string.h>

#define BOS KM_CHAT_BOS
#define EOS KM_CHAT_EOS
#define NO_THOUGHT "<think>\n\n</think>\n\n"

static const km_chat_builtin builtins[] = {
    {.name = "chatml",
     .about = "SmolLM2, Qwen 2.5, Yi, Hermes and many others",
     .start = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .answer = "<|im_start|>assistant\n"},
    {.name = "qwen3",
     .about = "chatml, with thinking that can be switched off",
     .start = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .answer = "<|im_start|>assistant\n",
     .no_thought = NO_THOUGHT},
    {.name = "llama2",
     .about = "Llama 2 chat",
     .start = "",
     .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
     .user = {BOS "[INST] ", " [/INST]"},
     .assistant = {" ", " " EOS},
     .answer = "",
     .in_question = true,
     .trim = true},
    {.name = "llama3",
     .about = "Llama 3, 3.1, 3.2 and 3.3",
     .start = BOS,
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .trim = true},
    {.name = "mistral",
     .about = "Mistral 7B v0.3 and Mixtral, by SentencePiece",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", EOS},
     .answer = "",
     .in_question = true},
    {.name = "mistral-v1",
     .about = "Mistral 7B v0.1 and v0.2",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {" [INST] ", " [/INST]"},
     .assistant = {" ", EOS},
     .answer = "",
     .in_question = true},
    {.name = "mistral-nemo",
     .about = "Mistral Nemo and Ministral, without spaces",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", EOS},
     .answer = "",
     .in_question = true},
    {.name = "mistral-v7",
     .about = "Mistral Small and Large, with a system turn",
     .start = BOS,
     .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", EOS},
     .answer = ""},
    {.name = "gemma",
     .about = "Gemma 1, 2 and 3",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
     .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
     .answer = "<start_of_turn>model\n",
     .in_question = true,
     .trim = true},
    {.name = "phi3",
     .about = "Phi-3 and Phi-3.5",
     .start = "",
     .system = {"<|system|>\n", "<|end|>\n"},
     .user = {"<|user|>\n", "<|end|>\n"},
     .assistant = {"<|assistant|>\n", "<|end|>\n"},
     .answer = "<|assistant|>\n"},
    {.name = "phi4",
     .about = "Phi-4",
     .start = "",
     .system = {"<|im_start|>system<|im_sep|>", "<|im_end|>"},
     .user = {"<|im_start|>user<|im_sep|>", "<|im_end|>"},
     .assistant = {"<|im_start|>assistant<|im_sep|>", "<|im_end|>"},
     .answer = "<|im_start|>assistant<|im_sep|>"},
    {.name = "zephyr",
     .about = "Zephyr, TinyLlama chat, StableLM 2 Zephyr",
     .start = "",
     .system = {"<|system|>\n", EOS "\n"},
     .user = {"<|user|>\n", EOS "\n"},
     .assistant = {"<|assistant|>\n", EOS "\n"},
     .answer = "<|assistant|>\n"},
    {.name = "vicuna",
     .about = "Vicuna and WizardLM",
     .start = BOS,
     .system = {"", " "},
     .user = {"USER: ", " "},
     .assistant = {"ASSISTANT: ", EOS},
     .answer = "ASSISTANT:"},
    {.name = "alpaca",
     .about = "Alpaca and models tuned in its way",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"### Instruction:\n", "\n\n"},
     .assistant = {"### Response:\n", EOS "\n\n"},
     .answer = "### Response:\n"},
    {.name = "deepseek",
     .about = "DeepSeek LLM and V2",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant: ", EOS},
     .answer = "Assistant:"},
    {.name = "deepseek-r1",
     .about = "DeepSeek V3, R1 and its distilled models",
     .start = BOS,
     .system = {"", ""},
     .user = {"<｜User｜>", ""},
     .assistant = {"<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .answer = "<｜Assistant｜>",
     .no_thought = NO_THOUGHT},
    {.name = "command-r",
     .about = "Command R and R+",
     .start = BOS,
     .system = {"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .user = {"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .assistant = {"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"},
     .answer = "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
     .trim = true},
    {.name = "granite",
     .about = "Granite 3",
     .start = "",
     .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
     .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
     .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"},
     .answer = "<|start_of_role|>assistant<|end_of_role|>"},
    {.name = "openchat",
     .about = "OpenChat 3.5 and Starling",
     .start = BOS,
     .system = {"", "<|end_of_turn|>"},
     .user = {"GPT4 Correct User: ", "<|end_of_turn|>"},
     .assistant = {"GPT4 Correct Assistant: ", "<|end_of_turn|>"},
     .answer = "GPT4 Correct Assistant:"},
    {.name = "plain",
     .about = "names and colons, for models that were not tuned to chat",
     .start = BOS,
     .system = {"", "\n\n"},
     .user = {"User: ", "\n"},
     .assistant = {"Assistant: ", "\n"},
     .answer = "Assistant:",
     .trim = true},
};

#define COUNT (sizeof builtins / sizeof *builtins)

/* Families whose format is that of another. */
static const char *const aliases[][2] = {
    {"smollm2", "chatml"},   {"smollm", "chatml"},      {"qwen", "chatml"},
    {"qwen2", "chatml"},     {"qwen2.5", "chatml"},     {"llama-2", "llama2"},
    {"llama-3", "llama3"},   {"llama3.1", "llama3"},    {"llama3.2", "llama3"},
    {"gemma2", "gemma"},     {"gemma3", "gemma"},       {"phi-3", "phi3"},
    {"tinyllama", "zephyr"}, {"mistral-v3", "mistral"}, {"deepseek-v3", "deepseek-r1"},
};

const km_chat_builtin *km_chat_builtin_find(const char *name) {
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i][0], name) == 0) name = aliases[i][1];
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(builtins[i].name, name) == 0) return &builtins[i];
    return NULL;
}

const char *km_chat_template_builtin(size_t i, const char **about) {
    if (i >= COUNT) return NULL;
    if (about) *about = builtins[i].about;
    return builtins[i].name;
}

static void put_marks(km_text *out, const char *s, const km_chat_options *o) {
    for (; *s; s++) {
        const char *token = *s == KM_CHAT_BOS[0] ? o->bos : *s == KM_CHAT_EOS[0] ? o->eos : NULL;
        if (token)
            km_text_add(out, token);
        else if ((unsigned char)*s > 2)
            km_text_put(out, s, 1);
    }
}

static void put_content(km_text *out, const km_chat_builtin *b, const char *s, size_t n) {
    size_t begin = b->trim ? km_leading_space(s, n) : 0;
    if (b->trim) n = begin + km_trim_end(s + begin, n - begin);
    km_text_put(out, s + begin, n - begin);
}

static void put_message(km_text *out, const km_chat_builtin *b, const km_chat_marks *marks,
                        const char *s, size_t n, const km_chat_options *o) {
    put_marks(out, marks->before, o);
    put_content(out, b, s, n);
    put_marks(out, marks->after, o);
}

km_status km_chat_builtin_render(const km_chat_builtin *b, const json_t *messages,
                                 const km_chat_options *o, km_text *out, km_error *err) {
    const json_t *waiting = NULL; /* a system message for the next question */
    size_t start = out->len, n = json_array_size(messages);
    put_marks(out, b->start, o);
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(messages, i), *content = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        const char *text = json_string_value(content);
        const km_chat_marks *marks = !role                            ? NULL
                                     : strcmp(role, "system") == 0    ? &b->system
                                     : strcmp(role, "user") == 0      ? &b->user
                                     : strcmp(role, "assistant") == 0 ? &b->assistant
                                                                      : NULL;
        if (!marks || !text) {
            out->len = start;
            if (out->data) out->data[start] = '\0';
            if (!marks)
                return km_error_set(err, KM_ERR_UNSUPPORTED, "template %s knows no role '%s'",
                                    b->name, role ? role : "");
            return km_error_set(err, KM_ERR_UNSUPPORTED, "template %s: message %zu has no text",
                                b->name, i + 1);
        }
        if (marks == &b->system && b->in_question) {
            waiting = content;
            continue;
        }
        if (marks == &b->user && waiting) {
            put_marks(out, marks->before, o);
            put_message(out, b, &b->system, json_string_value(waiting), json_string_length(waiting),
                        o);
            put_content(out, b, text, json_string_length(content));
            put_marks(out, marks->after, o);
            waiting = NULL;
            continue;
        }
        put_message(out, b, marks, text, json_string_length(content), o);
    }
    if (!o->complete) put_marks(out, b->answer, o);
    if (!o->complete && o->thinking == KM_THINKING_OFF && b->no_thought)
        km_text_add(out, b->no_thought);
    return km_text_ok(out)
               ? KM_OK
               : km_error_set(err, KM_ERR_MEMORY, "cannot write a conversation: out of memory");
}

/* /openapi.json: what this server understands, for tools that read OpenAPI 3. It is made from one small
 * table of schemas, so that it stays near the code that reads the fields. */
#include "serve/api/api.h"
#include <stdlib.h>
#include <string.h>

static const char sampling[] =
    "\"temperature\":{\"type\":\"number\",\"minimum\":0,\"maximum\":100},"
    "\"top_p\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},"
    "\"top_k\":{\"type\":\"integer\",\"minimum\":-1,\"maximum\":1073741824},"
    "\"min_p\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},"
    "\"frequency_penalty\":{\"type\":\"number\",\"minimum\":-2,\"maximum\":2},"
    "\"presence_penalty\":{\"type\":\"number\",\"minimum\":-2,\"maximum\":2},"
    "\"repeat_penalty\":{\"type\":\"number\",\"minimum\":0,\"maximum\":100},"
    "\"seed\":{\"type\":\"integer\"},\"stream\":{\"type\":\"boolean\"},"
    "\"max_tokens\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1073741824},"
    "\"stop\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":1000},{\"type\":\"array\",\"maxItems\":64,\"items\":{\"type\":\"string\",\"maxLength\":1000}}]},"
    "\"logit_bias\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}";

static const char message[] =
    "{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{\"role\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":40},"
    "\"content\":{\"type\":\"string\"}}}";

static const struct km_openapi_row {
    const char *method, *path, *about, *request, *response;
} rows[] = {
    {"post", "/v1/chat/completions", "An answer to a conversation (OpenAI).",
     "{\"type\":\"object\",\"required\":[\"messages\"],\"properties\":{\"model\":{\"type\":\"string\"},\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":%M},%S,"
     "\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":16},\"logprobs\":{\"type\":\"boolean\"},\"top_logprobs\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":20},"
     "\"tools\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},\"tool_choice\":{},\"response_format\":{\"type\":\"object\"},\"stream_options\":{\"type\":\"object\"}}}",
     "{\"type\":\"object\",\"required\":[\"id\",\"object\",\"created\",\"model\",\"choices\",\"usage\"]}"},
    {"post", "/v1/completions", "A text gone on with (OpenAI).",
     "{\"type\":\"object\",\"required\":[\"prompt\"],\"properties\":{\"model\":{\"type\":\"string\"},\"prompt\":{\"type\":\"string\"},%S,\"echo\":{\"type\":\"boolean\"}}}",
     "{\"type\":\"object\",\"required\":[\"id\",\"object\",\"choices\",\"usage\"]}"},
    {"post", "/v1/responses", "An answer to items (OpenAI).",
     "{\"type\":\"object\",\"required\":[\"input\"],\"properties\":{\"model\":{\"type\":\"string\"},\"input\":{\"type\":\"string\"},\"instructions\":{\"type\":\"string\"},"
     "\"previous_response_id\":{\"type\":\"string\"},\"store\":{\"type\":\"boolean\"},\"max_output_tokens\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1073741824},"
     "\"temperature\":{\"type\":\"number\",\"minimum\":0,\"maximum\":100},\"top_p\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1},\"stream\":{\"type\":\"boolean\"},"
     "\"tools\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},\"tool_choice\":{},\"metadata\":{\"type\":\"object\"}}}",
     "{\"type\":\"object\",\"required\":[\"id\",\"object\",\"created_at\",\"status\",\"model\",\"output\",\"usage\"]}"},
    {"post", "/v1/messages", "An answer to a conversation (Anthropic).",
     "{\"type\":\"object\",\"required\":[\"messages\",\"max_tokens\"],\"properties\":{\"model\":{\"type\":\"string\"},\"system\":{\"type\":\"string\"},"
     "\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{\"role\":{\"enum\":[\"user\",\"assistant\"]},"
     "\"content\":{\"type\":\"string\"}}}},%S}}",
     "{\"type\":\"object\",\"required\":[\"id\",\"type\",\"role\",\"content\",\"stop_reason\",\"usage\"]}"},
    {"post", "/v1/messages/count_tokens", "How many tokens a conversation has (Anthropic).",
     "{\"type\":\"object\",\"required\":[\"messages\"],\"properties\":{\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{\"role\":{\"enum\":[\"user\",\"assistant\"]},\"content\":{\"type\":\"string\"}}}}}}",
     "{\"type\":\"object\",\"required\":[\"input_tokens\"]}"},
    {"post", "/api/chat", "An answer to a conversation (Ollama).",
     "{\"type\":\"object\",\"required\":[\"messages\"],\"properties\":{\"model\":{\"type\":\"string\"},\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":%M},\"stream\":{\"type\":\"boolean\"},"
     "\"options\":{\"type\":\"object\"}}}",
     "{\"type\":\"object\"}"},
    {"post", "/api/generate", "An answer to a prompt (Ollama).",
     "{\"type\":\"object\",\"properties\":{\"model\":{\"type\":\"string\"},\"prompt\":{\"type\":\"string\"},\"stream\":{\"type\":\"boolean\"},\"options\":{\"type\":\"object\"}}}",
     "{\"type\":\"object\"}"},
    {"post", "/v1/embeddings", "Vectors of texts (OpenAI).",
     "{\"type\":\"object\",\"required\":[\"input\"],\"properties\":{\"model\":{\"type\":\"string\"},\"input\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":100},"
     "\"encoding_format\":{\"enum\":[\"float\",\"base64\"]}}}",
     "{\"type\":\"object\",\"required\":[\"object\",\"data\",\"model\",\"usage\"]}"},
    {"post", "/v1/rerank",
     "Documents by how well they answer a query; 501 where the model has no ranking head.",
     "{\"type\":\"object\",\"required\":[\"query\",\"documents\"],\"properties\":{\"model\":{\"type\":\"string\"},\"query\":{\"type\":\"string\"},"
     "\"documents\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"top_n\":{\"type\":\"integer\",\"minimum\":1},\"return_documents\":{\"type\":\"boolean\"}}}",
     "{\"type\":\"object\",\"required\":[\"model\",\"results\",\"usage\"]}"},
    {"post", "/v2/rerank", "The same (Cohere).",
     "{\"type\":\"object\",\"required\":[\"query\",\"documents\"],\"properties\":{\"model\":{\"type\":\"string\"},\"query\":{\"type\":\"string\"},"
     "\"documents\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"top_n\":{\"type\":\"integer\",\"minimum\":1},\"return_documents\":{\"type\":\"boolean\"}}}",
     "{\"type\":\"object\",\"required\":[\"model\",\"results\",\"usage\"]}"},
    {"post", "/v1/search", "The nearest vectors of an index.",
     "{\"type\":\"object\",\"properties\":{\"model\":{\"type\":\"string\"},\"index\":{\"type\":\"string\"},\"input\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":100},"
     "\"vector\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}},\"k\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000}}}",
     "{\"type\":\"object\",\"required\":[\"object\",\"index\",\"data\"]}"},
    {"get", "/v1/responses/{id}", "An answer that was kept (OpenAI).", NULL,
     "{\"type\":\"object\",\"required\":[\"id\",\"object\",\"status\",\"output\"]}"},
    {"delete", "/v1/responses/{id}", "Forgets it.", NULL,
     "{\"type\":\"object\",\"required\":[\"id\",\"deleted\"]}"},
    {"get", "/v1/responses/{id}/input_items", "What it answers.", NULL,
     "{\"type\":\"object\",\"required\":[\"object\",\"data\"]}"},
    {"post", "/v1/sessions/save", "Keeps what the model has read of a conversation, by name.",
     "{\"type\":\"object\",\"required\":[\"session\"],\"properties\":{\"model\":{\"type\":\"string\"},\"session\":{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$\"},"
     "\"messages\":{\"type\":\"array\",\"minItems\":1,\"items\":%M},\"prompt\":{\"type\":\"string\"}}}",
     "{\"type\":\"object\",\"required\":[\"object\",\"session\",\"model\",\"tokens\",\"saved\"]}"},
    {"post", "/v1/sessions/restore", "Brings it back into the prefix cache.",
     "{\"type\":\"object\",\"required\":[\"session\"],\"properties\":{\"model\":{\"type\":\"string\"},\"session\":{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$\"}}}",
     "{\"type\":\"object\",\"required\":[\"object\",\"session\",\"model\",\"tokens\",\"restored\"]}"},
    {"get", "/v1/sessions", "The sessions that were saved.", NULL,
     "{\"type\":\"object\",\"required\":[\"object\",\"data\"]}"},
    {"get", "/v1/sessions/{id}", "One of them.", NULL,
     "{\"type\":\"object\",\"required\":[\"object\",\"session\",\"model\",\"tokens\",\"bytes\",\"created\"]}"},
    {"delete", "/v1/sessions/{id}", "Deletes it.", NULL,
     "{\"type\":\"object\",\"required\":[\"session\",\"deleted\"]}"},
    {"post", "/api/embed", "Vectors of texts (Ollama).",
     "{\"type\":\"object\",\"required\":[\"input\"],\"properties\":{\"model\":{\"type\":\"string\"},\"input\":{\"type\":\"string\",\"minLength\":1}}}",
     "{\"type\":\"object\",\"required\":[\"model\",\"embeddings\"]}"},
    {"post", "/api/embeddings", "The vector of a text (Ollama's older form).",
     "{\"type\":\"object\",\"required\":[\"prompt\"],\"properties\":{\"model\":{\"type\":\"string\"},\"prompt\":{\"type\":\"string\",\"minLength\":1}}}",
     "{\"type\":\"object\",\"required\":[\"embedding\"]}"},
    {"post", "/tokenize", "Text to tokens.",
     "{\"type\":\"object\",\"required\":[\"content\"],\"properties\":{\"content\":{\"type\":\"string\"},\"add_special\":{\"type\":\"boolean\"},\"parse_special\":{\"type\":\"boolean\"},"
     "\"with_pieces\":{\"type\":\"boolean\"}}}",
     "{\"type\":\"object\",\"required\":[\"count\",\"tokens\"]}"},
    {"post", "/detokenize", "Tokens to text.",
     "{\"type\":\"object\",\"required\":[\"tokens\"],\"properties\":{\"tokens\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}}}}",
     "{\"type\":\"object\",\"required\":[\"content\"]}"},
    {"post", "/apply-template", "The text that a conversation becomes.",
     "{\"type\":\"object\",\"required\":[\"messages\"],\"properties\":{\"messages\":{\"type\":\"array\",\"items\":%M}}}",
     "{\"type\":\"object\",\"required\":[\"prompt\"]}"},
    {"get", "/v1/models", "The models here.", NULL,
     "{\"type\":\"object\",\"required\":[\"object\",\"data\"]}"},
    {"get", "/v1/models/{id}", "One of them.", NULL,
     "{\"type\":\"object\",\"required\":[\"id\",\"object\"]}"},
    {"post", "/api/show", "What a model is (Ollama).",
     "{\"type\":\"object\",\"properties\":{\"model\":{\"type\":\"string\"}}}",
     "{\"type\":\"object\",\"required\":[\"details\",\"model_info\",\"capabilities\"]}"},
    {"get", "/api/tags", "The models here (Ollama).", NULL,
     "{\"type\":\"object\",\"required\":[\"models\"]}"},
    {"get", "/api/ps", "The models that are loaded (Ollama).", NULL,
     "{\"type\":\"object\",\"required\":[\"models\"]}"},
    {"get", "/v1/indexes", "The indexes that can be searched.", NULL,
     "{\"type\":\"object\",\"required\":[\"object\",\"data\"]}"},
    {"get", "/api/version", "The version (Ollama).", NULL,
     "{\"type\":\"object\",\"required\":[\"version\"]}"},
    {"get", "/health", "Is the server alive?", NULL,
     "{\"type\":\"object\",\"required\":[\"status\"]}"},
    {"get", "/ready", "Does it take requests?", NULL,
     "{\"type\":\"object\",\"required\":[\"status\"]}"},
    {"get", "/status.json", "Figures, for the status page.", NULL,
     "{\"type\":\"object\",\"required\":[\"model\"]}"},
};

static void put_schema(km_text *t, const char *pattern) {
    for (const char *c = pattern; *c; c++) {
        if (c[0] == '%' && c[1] == 'S')
            km_text_add(t, sampling), c++;
        else if (c[0] == '%' && c[1] == 'M')
            km_text_add(t, message), c++;
        else
            km_text_put(t, c, 1);
    }
}

void km_endpoint_openapi(km_serve *s, km_exchange *x) {
    km_text *t = km_scratch(s);
    km_text_add(t, "{\"openapi\":\"3.0.3\",\"info\":{\"title\":\"Kermes\",\"version\":\"" KM_VERSION
                   "\"},\"paths\":{");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct km_openapi_row *r = &rows[i];
        /* Methods of one path stand together. */
        bool same = i > 0 && strcmp(rows[i - 1].path, r->path) == 0;
        if (same)
            km_text_printf(t, ",\"%s\":{\"summary\":\"%s\",", r->method, r->about);
        else
            km_text_printf(t, "%s\"%s\":{\"%s\":{\"summary\":\"%s\",", i ? "}," : "", r->path,
                           r->method, r->about);
        if (strstr(r->path, "{id}"))
            km_text_add(
                t,
                "\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":\"string\"}}],");
        if (r->request) {
            km_text_add(
                t,
                "\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":");
            put_schema(t, r->request);
            km_text_add(t, "}}},");
        }
        km_text_printf(
            t,
            "\"responses\":{\"200\":{\"description\":\"done\",\"content\":{\"application/json\":{\"schema\":%s}",
            r->response);
        if (r->request)
            km_text_add(
                t,
                /* streams: readers differ in whether a schema is of the text or of each event */
                ",\"text/event-stream\":{\"schema\":{}},\"application/x-ndjson\":{\"schema\":{}}");
        km_text_add(t, "}}");
        km_text_add(
            t,
            ",\"default\":{\"description\":\"why not\",\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\"}}}}}}");
    }
    km_text_add(
        t,
        "}},\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}}}}\n");
    km_send_text(x, NULL, "application/json", t);
}

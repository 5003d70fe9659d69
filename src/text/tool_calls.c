/* The parser of answers: a text that grows, a mode, and what is left to look at. Markers switch the
 * mode; while the end of the text could become a marker it is held back.
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
#include "base/alloc.h"
#include "base/handle.h"
#include "base/text.h"
#include <ctype.h>
#include <jansson.h>
#include <string.h>

typedef enum km_answer_mode {
    IN_TEXT,
    IN_THOUGHT,
    AT_START,   /* nothing but space so far: a call may stand here without a marker */
    IN_BARE,    /* JSON without a marker: a call, or text after all */
    IN_CALLS,   /* JSON after a marker: an object, a list, or several objects */
    IN_XML,     /* <function=f> of Qwen3-Coder, whole */
    IN_DEEP,    /* DeepSeek's, whole */
    IN_CHANNEL, /* harmony's header, up to <|message|> */
    IN_FENCE    /* Gemma's, whole */
} km_answer_mode;

/* JSON that is looked at while it comes: where a call's name and arguments are. */
typedef struct km_call_scan {
    size_t at; /* looked at so far, in held */
    int depth; /* of { and [ */
    bool in_string, escaped, key_next, done;
    int object;               /* the depth of the call's object; 0: outside */
    size_t string, arguments; /* where a string and the arguments begin */
    size_t sent;              /* of the arguments, given out up to there */
    char key[16];
    char name[128];
    bool has_name, in_arguments, streaming, ended_arguments;
    size_t arguments_end;
} km_call_scan;

struct km_answer_parser {
    km_handle handle;
    const char *const *tools; /* n_tools names */
    size_t n_tools;
    bool keep_reasoning;
    km_answer_sink sink;
    void *user;
    km_answer_mode mode;
    const char *closer; /* of IN_CALLS: what ends it, if it comes; NULL: nothing does */
    km_text held;
    km_call_scan scan;
    int calls;
    bool harmony, trim;
    bool doomed; /* freed by its sink: nothing more comes */
};

static const char mistral[] = "[TOOL_CALLS]";
static const char think[] = "<think>", think_end[] = "</think>";
static const char deep_begin[] = "<\xef\xbd\x9ctool\xe2\x96\x81"
                                 "call\xe2\x96\x81"
                                 "begin\xef\xbd\x9c>";
static const char deep_end[] = "<\xef\xbd\x9ctool\xe2\x96\x81"
                               "call\xe2\x96\x81"
                               "end\xef\xbd\x9c>";
static const char deep_sep[] = "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>";
static const char deep_calls[] = "<\xef\xbd\x9ctool\xe2\x96\x81"
                                 "calls\xe2\x96\x81"
                                 "begin\xef\xbd\x9c>";
static const char deep_calls_end[] = "<\xef\xbd\x9ctool\xe2\x96\x81"
                                     "calls\xe2\x96\x81"
                                     "end\xef\xbd\x9c>";

/* What a marker in text does. `drop`: it goes, and the mode stays. */
static const struct km_answer_marker {
    const char *text;
    km_answer_mode mode;
    const char *closer;
    bool drop, tools; /* tools: only where there are some */
} markers[] = {
    {think, IN_THOUGHT, NULL, false, false},
    {"<tool_call>", IN_CALLS, "</tool_call>", false, true},
    {"<|tool_call|>", IN_CALLS, "<|/tool_call|>", false, true},
    {"<|python_tag|>", IN_CALLS, NULL, false, true},
    {mistral, IN_CALLS, NULL, false, true},
    {deep_calls, IN_TEXT, NULL, true, true},
    {deep_calls_end, IN_TEXT, NULL, true, true},
    {deep_begin, IN_DEEP, NULL, false, true},
    {"```tool_code\n", IN_FENCE, NULL, false, true},
    {"```tool_call\n", IN_FENCE, NULL, false, true},
    {"```json\n", IN_FENCE, NULL, false, true},
    {"<|channel|>", IN_CHANNEL, NULL, false, false},
    {"<|start|>assistant", IN_TEXT, NULL, true, false},
    {"<|end|>", IN_TEXT, NULL, true, false},
    {"<|return|>", IN_TEXT, NULL, true, false},
};
enum { N_MARKERS = sizeof markers / sizeof *markers };

km_answer_parser *km_answer_parser_new(const char *const *tools, size_t n_tools, unsigned flags,
                                       km_answer_sink sink, void *user) {
    if (!sink || (n_tools && !tools)) {
        km_missing("km_answer_parser_new");
        return NULL;
    }
    for (size_t i = 0; i < n_tools; i++)
        if (!tools[i]) {
            km_missing("km_answer_parser_new");
            return NULL;
        }
    km_answer_parser *p = km_calloc(1, sizeof *p);
    if (!p) {
        km_public_fail(KM_ERR_MEMORY, "km_answer_parser_new: out of memory");
        return NULL;
    }
    p->tools = tools;
    p->n_tools = n_tools;
    p->keep_reasoning = flags & KM_ANSWER_KEEP_REASONING;
    p->sink = sink;
    p->user = user;
    p->mode = flags & KM_ANSWER_THINKING ? IN_THOUGHT : n_tools ? AT_START : IN_TEXT;
    km_handle_add(&p->handle, KM_HANDLE_PARSER);
    return p;
}

static void destroy(void *parser) {
    km_answer_parser *p = parser;
    km_text_free(&p->held);
    km_free(p);
}

/* A call that may give parts out; a sink may free the parser, and nothing more. */
static bool call_begins(km_inside *in, const char *call, km_answer_parser *p) {
    if (!km_is_inside(p)) return km_enter(in, call, p, KM_HANDLE_PARSER);
    km_public_fail(KM_ERR_STATE, "%s: called from the parser's own sink", call);
    return false;
}

void km_answer_parser_free(km_answer_parser *p) {
    if (km_is_inside(p)) p->doomed = true;
    km_handle_free("km_answer_parser_free", p, KM_HANDLE_PARSER, destroy);
}

int km_answer_parser_calls(const km_answer_parser *p) {
    KM_INSIDE(in);
    return km_enter(&in, "km_answer_parser_calls", p, KM_HANDLE_PARSER) ? p->calls : -1;
}

/* ---- Giving out ---- */

static void give(km_answer_parser *p, km_answer_kind kind, const char *text, size_t n) {
    while (kind == KM_ANSWER_TEXT && p->trim && n && isspace((unsigned char)*text)) text++, n--;
    if (n == 0 && kind != KM_ANSWER_CALL_END) return;
    p->trim = kind >= KM_ANSWER_CALL; /* the space between calls is nobody's */
    if (!p->doomed)
        p->sink(p->user, &(km_answer_part){kind, text, n, kind >= KM_ANSWER_CALL ? p->calls : 0});
    if (kind == KM_ANSWER_CALL_END) p->calls++;
}

static void drop(km_answer_parser *p, size_t n) {
    memmove(p->held.data, p->held.data + n, p->held.len - n + 1);
    p->held.len -= n;
}

static void give_held(km_answer_parser *p, km_answer_kind kind, size_t n) {
    if (n == 0) return;
    give(p, kind, p->held.data, n);
    drop(p, n);
}

static bool is_tool(const km_answer_parser *p, const char *name) {
    for (size_t i = 0; i < p->n_tools; i++)
        if (strcmp(p->tools[i], name) == 0) return true;
    return false;
}

/* A whole call whose arguments are at hand. */
static void give_call(km_answer_parser *p, const char *name, const char *arguments) {
    give(p, KM_ANSWER_CALL, name, strlen(name));
    give(p, KM_ANSWER_ARGUMENTS, arguments, strlen(arguments));
    give(p, KM_ANSWER_CALL_END, NULL, 0);
}

static const char *trimmed(const char *s, size_t *n) {
    while (*n && isspace((unsigned char)*s)) s++, --*n;
    while (*n && isspace((unsigned char)s[*n - 1])) --*n;
    return s;
}

/* ---- Markers ---- */

static size_t common(const char *held, size_t n, const char *marker) {
    size_t k = 0;
    while (k < n && marker[k] && held[k] == marker[k]) k++;
    return k;
}

/* The first marker in the text, or NULL; *at: where it is, or from where on one may still begin. */
static const struct km_answer_marker *find_marker(const km_answer_parser *p, size_t *at) {
    const char *s = km_text_str(&p->held);
    size_t n = p->held.len;
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '<' && s[i] != '[' && s[i] != '`') continue;
        bool maybe = false;
        for (int m = 0; m < N_MARKERS; m++) {
            if (markers[m].tools && !p->n_tools) continue;
            if (markers[m].text == think && p->keep_reasoning) continue;
            if (markers[m].mode == IN_TEXT && !markers[m].tools && !p->harmony) continue;
            size_t k = common(s + i, n - i, markers[m].text);
            *at = i;
            if (!markers[m].text[k]) return &markers[m];
            maybe |= k == n - i;
        }
        if (maybe) return NULL;
    }
    *at = n;
    return NULL;
}

/* Where `end` begins in the text, and *whole; or from where on it may still begin. */
static size_t find_end(const km_answer_parser *p, const char *end, bool *whole) {
    const char *s = km_text_str(&p->held);
    for (size_t i = 0; i < p->held.len; i++) {
        size_t k = common(s + i, p->held.len - i, end);
        *whole = !end[k];
        if (*whole || k == p->held.len - i) return i;
    }
    *whole = false;
    return p->held.len;
}

static void enter(km_answer_parser *p, km_answer_mode mode, const char *closer) {
    p->mode = mode;
    p->closer = closer;
    p->scan = (km_call_scan){0};
}

/* ---- JSON calls ---- */

static void end_string(km_answer_parser *p, km_call_scan *c, size_t end) {
    const char *s = p->held.data + c->string;
    size_t n = end - c->string;
    if (c->depth != c->object || c->object == 0) return;
    if (c->key_next) {
        size_t k = n < sizeof c->key - 1 ? n : sizeof c->key - 1;
        memcpy(c->key, s, k);
        c->key[n > k ? 0 : k] = '\0';
    } else if (strcmp(c->key, "name") == 0 && n < sizeof c->name && n > 0 && !c->has_name) {
        memcpy(c->name, s, n);
        c->name[n] = '\0';
        c->has_name = true;
    }
}

static bool is_arguments(const char *key) {
    return strcmp(key, "arguments") == 0 || strcmp(key, "parameters") == 0;
}

/* Arguments that are told as a string with JSON in it. */
static char *decoded(const char *s, size_t n) {
    json_t *v = json_loadb(s, n, JSON_DECODE_ANY, NULL);
    char *text = v && json_is_string(v) ? km_strdup(json_string_value(v)) : NULL;
    json_decref(v);
    return text;
}

static void give_arguments(km_answer_parser *p, km_call_scan *c, size_t end) {
    if (end <= c->sent) return;
    give(p, KM_ANSWER_ARGUMENTS, p->held.data + c->sent, end - c->sent);
    c->sent = end;
}

/* Gives out what is known of the arguments up to `end`. */
static void stream_arguments(km_answer_parser *p, km_call_scan *c, size_t end) {
    if (p->mode == IN_BARE || !c->has_name || !c->arguments || p->held.data[c->arguments] != '{')
        return;
    if (!c->streaming) {
        give(p, KM_ANSWER_CALL, c->name, strlen(c->name));
        c->streaming = true;
        c->sent = c->arguments;
    }
    give_arguments(p, c, c->ended_arguments ? c->arguments_end : end);
}

/* The object is whole. False: it is no call. */
static bool end_call(km_answer_parser *p, km_call_scan *c) {
    if (!c->has_name) return false;
    if (p->mode == IN_BARE && (!is_tool(p, c->name) || !c->arguments)) return false;
    if (p->mode == IN_BARE) p->mode = IN_CALLS; /* it is sure now */
    stream_arguments(p, c, c->arguments_end);
    if (c->streaming) {
        give(p, KM_ANSWER_CALL_END, NULL, 0);
        return true;
    }
    const char *s = p->held.data + c->arguments;
    size_t n = c->arguments ? c->arguments_end - c->arguments : 0;
    char *text = n && *s == '"' ? decoded(s, n) : NULL;
    give_call(p, c->name, text ? text : "{}");
    km_free(text);
    return true;
}

static void begin_value(km_call_scan *c, size_t at) {
    if (c->object && c->depth == c->object && !c->key_next && is_arguments(c->key) &&
        !c->arguments) {
        c->arguments = at;
        c->in_arguments = true;
    }
}

static void end_value(km_call_scan *c, size_t end) {
    if (!c->in_arguments || c->depth != c->object) return;
    c->in_arguments = false;
    c->ended_arguments = true;
    c->arguments_end = end;
}

/* Looks at one more byte; false: this is no call. */
static bool scan_byte(km_answer_parser *p, km_call_scan *c, size_t at) {
    char b = p->held.data[at];
    if (c->in_string) {
        if (c->escaped)
            c->escaped = false;
        else if (b == '\\')
            c->escaped = true;
        else if (b == '"') {
            c->in_string = false;
            end_string(p, c, at);
            end_value(c, at + 1);
        }
        return true;
    }
    if (isspace((unsigned char)b)) return true;
    switch (b) {
    case '"':
        begin_value(c, at);
        c->in_string = true;
        c->string = at + 1;
        return c->depth > 0;
    case '{':
    case '[':
        begin_value(c, at);
        c->depth++;
        if (b == '{' && !c->object) {
            size_t depth = (size_t)c->depth;
            *c = (km_call_scan){.at = c->at, .depth = (int)depth, .object = (int)depth};
            c->key_next = true;
        }
        return true;
    case '}':
    case ']':
        if (c->depth == 0) return false;
        if (c->object && c->depth == c->object && c->in_arguments) end_value(c, at); /* 1} */
        c->depth--;
        if (c->object && c->depth == c->object) end_value(c, at + 1);
        if (c->object && c->depth < c->object) {
            if (!end_call(p, c)) return false;
            c->object = 0;
            c->done = c->depth == 0;
        } else if (c->depth == 0) {
            c->done = true;
        }
        return true;
    case ':':
        if (c->depth == c->object) c->key_next = false;
        return true;
    case ',':
        if (c->object && c->depth == c->object) {
            if (c->in_arguments) end_value(c, at);
            c->key_next = true;
            c->key[0] = '\0';
        }
        return true;
    case ';': return c->depth == 0; /* Llama 3 puts it between calls */
    default: begin_value(c, at); return c->depth > 0;
    }
}

/* A bare object that does not begin as a call's does is text; so one need not wait for its end. */
static bool hopeless(const km_answer_parser *p, const km_call_scan *c) {
    if (p->mode != IN_BARE) return false;
    if (c->has_name) return !is_tool(p, c->name);
    if (!c->object || c->key_next || !c->key[0]) return false;
    return strcmp(c->key, "name") && strcmp(c->key, "type") && !is_arguments(c->key) &&
           strcmp(c->key, "id");
}

/* Mistral's newer form, f[ARGS]{...}, and f{...}: the name is taken, and the object that follows is the
 * arguments. 0: more is needed to tell; -1: it is no call. */
static int read_name(km_answer_parser *p) {
    static const char args[] = "[ARGS]";
    const char *s = km_text_str(&p->held);
    size_t n = 0;
    while (n < p->held.len && (isalnum((unsigned char)s[n]) || strchr("_-.", s[n]))) n++;
    if (n == 0 || n >= sizeof p->scan.name) return -1;
    size_t left = p->held.len - n, k = common(s + n, left, args);
    if (k == left) return 0;
    size_t skip = args[k] ? 0 : k;
    if (s[n + skip] != '{') return -1;
    memcpy(p->scan.name, s, n);
    p->scan.name[n] = '\0';
    p->scan.has_name = true;
    drop(p, n + skip);
    return 1;
}

/* The arguments alone, after a name (Mistral, DeepSeek V3.1 and harmony in one piece). */
static size_t object_end(const char *s, size_t n) {
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (in_string) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                in_string = false;
        } else if (s[i] == '"') {
            in_string = true;
        } else if (s[i] == '{' || s[i] == '[') {
            depth++;
        } else if ((s[i] == '}' || s[i] == ']') && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

static void back_to_text(km_answer_parser *p) { enter(p, IN_TEXT, NULL); }

/* IN_CALLS and IN_BARE. True: the mode changed, or something was taken. */
static bool read_calls(km_answer_parser *p, bool last) {
    km_call_scan *c = &p->scan;
    while (p->held.len && c->at == 0 && c->depth == 0 && isspace((unsigned char)p->held.data[0]))
        drop(p, 1);
    if (p->mode == IN_CALLS && c->depth == 0 && p->held.len && c->at == 0) {
        const char *s = p->held.data;
        size_t k = p->closer ? common(s, p->held.len, p->closer) : 0;
        if (p->closer && !p->closer[k]) return drop(p, k), back_to_text(p), true;
        if (p->closer && k == p->held.len && !last) return false;
        k = common(s, p->held.len, mistral); /* once more in front of each call */
        if (!mistral[k]) return drop(p, k), true;
        if (k == p->held.len && !last) return false;
        if (common(s, p->held.len, "<function=") == 10) return p->mode = IN_XML, true;
        if (common(s, p->held.len, "<function=") == p->held.len && !last) return false;
        if (c->has_name) { /* the arguments of a named call */
            size_t n = object_end(s, p->held.len);
            if (!n) return false;
            give(p, KM_ANSWER_CALL, c->name, strlen(c->name));
            give_held(p, KM_ANSWER_ARGUMENTS, n);
            give(p, KM_ANSWER_CALL_END, NULL, 0);
            return enter(p, IN_CALLS, p->closer), true;
        }
        if (!strchr("{[;,", *s)) {
            int named = read_name(p);
            if (named == 0 && !last) return false;
            if (named <= 0) back_to_text(p); /* prose after all */
            return true;
        }
    }
    while (c->at < p->held.len) {
        if (!scan_byte(p, c, c->at++) || hopeless(p, c)) return back_to_text(p), true;
        if (!c->done) continue;
        if (p->mode == IN_BARE) return back_to_text(p), true; /* whole, and no call in it */
        drop(p, c->at);
        enter(p, IN_CALLS, p->closer);
        return true;
    }
    if (c->object && c->arguments) stream_arguments(p, c, c->at);
    return false;
}

/* ---- Forms that are read whole ---- */

static void put_xml_parameters(km_text *out, const char *s) {
    const char *key, *end;
    bool first = true;
    km_text_add(out, "{");
    while ((key = strstr(s, "<parameter="))) {
        key += 11;
        const char *close = strchr(key, '>');
        if (!close || !(end = strstr(close, "</parameter>"))) break;
        size_t n = (size_t)(end - close - 1);
        const char *value = trimmed(close + 1, &n);
        json_t *v = json_loadb(value, n, JSON_DECODE_ANY, NULL);
        if (!v) v = json_stringn(value, n);
        json_t *k = json_stringn(key, (size_t)(close - key));
        char *name = k ? json_dumps(k, JSON_ENCODE_ANY) : NULL;
        char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        if (name && text)
            km_text_printf(out, "%s%s:%s", first ? "" : ",", name, text), first = false;
        free(name);
        free(text);
        json_decref(k);
        json_decref(v);
        s = end + 12;
    }
    km_text_add(out, "}");
}

static bool read_xml(km_answer_parser *p) {
    char *end = strstr(p->held.data, "</function>");
    if (!end) return false;
    *end = '\0';
    char *name = p->held.data + 10, *close = strchr(name, '>');
    km_text arguments = {0};
    if (close) {
        *close = '\0';
        put_xml_parameters(&arguments, close + 1);
        give_call(p, name, km_text_str(&arguments));
    }
    km_text_free(&arguments);
    drop(p, (size_t)(end - p->held.data) + 11);
    enter(p, IN_CALLS, "</tool_call>");
    return true;
}

/* "function<sep>name\n```json\n{...}\n```" of R1, "name<sep>{...}" of V3.1. */
static bool read_deep(km_answer_parser *p) {
    char *end = strstr(p->held.data, deep_end);
    if (!end) return false;
    *end = '\0';
    char *sep = strstr(p->held.data, deep_sep);
    size_t taken = (size_t)(end - p->held.data) + strlen(deep_end);
    if (sep) {
        *sep = '\0';
        char *rest = sep + strlen(deep_sep), *name = p->held.data;
        if (strcmp(name, "function") == 0) {
            name = rest;
            rest = strchr(rest, '\n');
            if (rest) *rest++ = '\0';
        }
        char *open = rest ? strchr(rest, '{') : NULL;
        size_t n = open ? object_end(open, strlen(open)) : 0;
        size_t length = strlen(name);
        const char *clean = trimmed(name, &length);
        if (open) open[n] = '\0';
        name[clean - name + (ptrdiff_t)length] = '\0';
        give_call(p, clean, n ? open : "{}");
    }
    drop(p, taken);
    back_to_text(p);
    return true;
}

/* A header of harmony: which channel, and to whom. */
static bool read_channel(km_answer_parser *p) {
    static const char message[] = "<|message|>";
    char *end = strstr(p->held.data, message);
    p->harmony = true;
    if (!end) return false;
    *end = '\0';
    char *to = strstr(p->held.data, "to=functions."), name[128] = "";
    bool thought = strncmp(p->held.data, "analysis", 8) == 0;
    if (to) {
        size_t n = strcspn(to + 13, " <\n\t");
        if (n < sizeof name) memcpy(name, to + 13, n), name[n] = '\0';
    }
    drop(p, (size_t)(end - p->held.data) + strlen(message));
    if (name[0] && p->n_tools) {
        enter(p, IN_CALLS, "<|call|>");
        strcpy(p->scan.name, name);
        p->scan.has_name = true;
    } else {
        enter(p, thought && !p->keep_reasoning ? IN_THOUGHT : IN_TEXT, NULL);
    }
    return true;
}

/* A call in JSON, as an object or a list; otherwise the block is text. */
static bool give_json_calls(km_answer_parser *p, const char *s, size_t n) {
    json_t *v = json_loadb(s, n, 0, NULL), *one = NULL;
    if (json_is_object(v)) one = json_pack("[O]", v);
    json_t *all = one ? one : v;
    bool ok = json_is_array(all) && json_array_size(all) > 0;
    for (size_t i = 0; ok && i < json_array_size(all); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(all, i), "name"));
        ok = name && is_tool(p, name);
    }
    for (size_t i = 0; ok && i < json_array_size(all); i++) {
        json_t *call = json_array_get(all, i), *a = json_object_get(call, "arguments");
        if (!a) a = json_object_get(call, "parameters");
        char *text = json_is_object(a) ? json_dumps(a, JSON_COMPACT) : NULL;
        give_call(p, json_string_value(json_object_get(call, "name")), text ? text : "{}");
        free(text);
    }
    json_decref(one);
    json_decref(v);
    return ok;
}

static bool read_fence(km_answer_parser *p, bool last) {
    size_t from =
        strcspn(p->held.data, "\n") + 1; /* the marker was kept for the case that it is text */
    char *end = from < p->held.len ? strstr(p->held.data + from, "```") : NULL;
    if (!end && !last) return false;
    size_t n = end ? (size_t)(end - p->held.data) + 3 : p->held.len;
    if (end && give_json_calls(p, p->held.data + from, n - 3 - from))
        drop(p, n);
    else
        give_held(p, KM_ANSWER_TEXT, n);
    back_to_text(p);
    return true;
}

/* ---- The loop ---- */

static bool read_text(km_answer_parser *p, bool last) {
    size_t at = 0;
    const struct km_answer_marker *m = find_marker(p, &at);
    give_held(p, KM_ANSWER_TEXT, m || !last ? at : p->held.len);
    if (!m) return false;
    if (m->mode != IN_FENCE) drop(p, strlen(m->text));
    if (!m->drop) enter(p, m->mode, m->closer);
    return true;
}

static bool read_thought(km_answer_parser *p, bool last) {
    const char *end = p->harmony ? "<|end|>" : think_end;
    bool whole = false;
    size_t at = find_end(p, end, &whole);
    give_held(p, KM_ANSWER_REASONING, whole || !last ? at : p->held.len);
    if (!whole) return false;
    drop(p, strlen(end));
    enter(p, p->n_tools ? AT_START : IN_TEXT, NULL);
    return true;
}

static bool read_start(km_answer_parser *p) {
    size_t space = 0;
    while (space < p->held.len && isspace((unsigned char)p->held.data[space])) space++;
    if (space == p->held.len) return false;
    char c = p->held.data[space];
    if (c == '{' || c == '[') {
        size_t k = common(p->held.data + space, p->held.len - space, mistral);
        if (k == p->held.len - space && k < sizeof mistral - 1) return false;
        if (k > 1) return enter(p, IN_TEXT, NULL), drop(p, space), true;
        drop(p, space);
        enter(p, IN_BARE, NULL);
    } else {
        enter(p, IN_TEXT, NULL);
    }
    return true;
}

static bool read_some(km_answer_parser *p, bool last) {
    if (p->held.len == 0) return false;
    switch (p->mode) {
    case IN_TEXT: return read_text(p, last);
    case IN_THOUGHT: return read_thought(p, last);
    case AT_START: return read_start(p);
    case IN_BARE:
    case IN_CALLS: return read_calls(p, last);
    case IN_XML: return read_xml(p);
    case IN_DEEP: return read_deep(p);
    case IN_CHANNEL: return read_channel(p);
    case IN_FENCE: return read_fence(p, last);
    }
    return false;
}

static km_status no_room(void) {
    return km_public_fail(KM_ERR_MEMORY, "km_answer_parser: out of memory");
}

static km_status put(km_answer_parser *p, const char *text, size_t bytes) {
    if (bytes == 0) return KM_OK;
    km_text_put(&p->held, text, bytes);
    if (!km_text_ok(&p->held)) return no_room();
    while (!p->doomed && read_some(p, false)) {}
    return KM_OK;
}

km_status km_answer_parser_put(km_answer_parser *p, const char *text, size_t bytes) {
    KM_INSIDE(in);
    if (!call_begins(&in, "km_answer_parser_put", p)) return km_last_status();
    return bytes && !text ? km_missing("km_answer_parser_put") : put(p, text, bytes);
}

static bool begins(const char *marker, const char *text, size_t n) {
    return strncmp(marker, text, n) == 0;
}

km_status km_answer_parser_special(km_answer_parser *p, const char *text, size_t n) {
    KM_INSIDE(in);
    if (!call_begins(&in, "km_answer_parser_special", p)) return km_last_status();
    if (n && !text) return km_missing("km_answer_parser_special");
    static const char *const inner[] = {deep_end, deep_sep, "[ARGS]", "</tool_call>",
                                        "<|/tool_call|>"};
    static const char *const harmony[] = {"<|message|>", "<|call|>", "<|constrain|>", "<|end|>",
                                          think_end};
    bool known = false;
    for (int i = 0; i < N_MARKERS && n; i++)
        known |= begins(markers[i].text, text, n) && (!markers[i].tools || p->n_tools) &&
                 (markers[i].mode != IN_TEXT || markers[i].tools || p->harmony);
    for (size_t i = 0; i < sizeof inner / sizeof *inner && n; i++)
        known |= p->n_tools && begins(inner[i], text, n);
    for (size_t i = 0; i < sizeof harmony / sizeof *harmony && n; i++)
        known |= begins(harmony[i], text, n) &&
                 (p->mode == IN_CHANNEL || p->mode == IN_THOUGHT || p->harmony);
    return known ? put(p, text, n) : KM_OK;
}

km_status km_answer_parser_end(km_answer_parser *p) {
    KM_INSIDE(in);
    if (!call_begins(&in, "km_answer_parser_end", p)) return km_last_status();
    while (!p->doomed && read_some(p, true)) {}
    if (p->scan.streaming && p->scan.object)
        give(p, KM_ANSWER_CALL_END, NULL, 0); /* cut off */
    else if (p->held.len)
        give_held(p, p->mode == IN_THOUGHT ? KM_ANSWER_REASONING : KM_ANSWER_TEXT, p->held.len);
    p->held.len = 0;
    p->scan = (km_call_scan){0};
    return km_text_ok(&p->held) ? KM_OK : no_room();
}

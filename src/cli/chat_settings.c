/* /settings and /set: how answers are made, shown and changed while talking. The names are those of
 * the command's flags, and so are the checks. */
#include "cli/chat.h"
#include <string.h>

typedef struct chat_table {
    km_option rows[24];
    int n;
} chat_table;

/* The settings that can be changed: rows of numbers among the sampling flags, and the length. */
static void make_table(km_chat *c, chat_table *t) {
    const km_option all[] = {
        KM_OPTION_SAMPLING_ROWS(c->sampling, "", "", ""),
        {"tokens", KM_OPTION_INT, "N", &c->tokens, 1, 1e9, "at most this many for an answer"},
        {0},
    };
    t->n = 0;
    for (const km_option *o = all; o->name && t->n < 23; o++)
        if (o->kind == KM_OPTION_NUMBER || o->kind == KM_OPTION_INT) t->rows[t->n++] = *o;
    t->rows[t->n] = (km_option){0};
}

static void show(const km_chat *c, const km_option *o) {
    bool whole = o->kind == KM_OPTION_INT;
    if (whole)
        km_chat_say(c, "  %-19s %lld", o->name, (long long)*(const int64_t *)o->dest);
    else
        km_chat_say(c, "  %-19s %g", o->name, *(const double *)o->dest);
}

void km_chat_show_settings(const km_chat *c) {
    chat_table t;
    km_chat copy = *c;
    make_table(&copy, &t);
    for (int i = 0; i < t.n; i++) show(c, &t.rows[i]);
    const char *system = km_talk_get_system(&c->talk);
    km_chat_say(c, "  %-19s %s", "system", system ? system : "none");
    if (c->sampling.from[0])
        km_chat_say(c, "Where nothing else was said, sampling is as %s has it.", c->sampling.from);
    km_chat_say(c, "/set NAME VALUE changes one.");
}

static void set_system(km_chat *c, const char *text) {
    km_error err = {0};
    if (km_talk_system(&c->talk, strcmp(text, "none") == 0 ? NULL : text, &err) != KM_OK)
        km_chat_complain(c, "%s", err.text);
    else
        km_chat_say(c, "system is %s", text);
}

static void set_number(km_chat *c, const chat_table *t, const char *name, const char *value) {
    char flag[64], number[64];
    km_error err = {0};
    km_args args;
    const km_spec spec = {.name = "/set", .options = t->rows};
    const km_cli_sampling before = c->sampling;
    snprintf(flag, sizeof flag, "--%.60s", name);
    snprintf(number, sizeof number, "%.60s", value);
    km_status s = km_args_parse(&spec, 2, (char *[]){flag, number}, &args, &err);
    if (s == KM_OK) s = km_cli_sampling_check(&c->sampling, &err);
    for (int i = 0; s == KM_OK && i < t->n; i++)
        if (args.given[i]) km_chat_say(c, "%s is %s", t->rows[i].name, number);
    if (s == KM_OK) return;
    c->sampling = before;
    km_chat_complain(c, "%s", strncmp(err.text, "--", 2) == 0 ? err.text + 2 : err.text);
}

void km_chat_set(km_chat *c, const char *value) {
    chat_table t;
    make_table(c, &t);
    value += strncmp(value, "parameter ", 10) == 0 ? 10 : 0; /* as elsewhere */
    size_t length = strcspn(value, " \t=");
    const char *rest = value + length + strspn(value + length, " \t=");
    char name[48];
    const char *names[25] = {"system", "temp"};
    for (int i = 0; i < t.n; i++) names[i + 2] = t.rows[i].name;
    snprintf(name, sizeof name, "%.*s", (int)(length < 47 ? length : 47), value);
    for (char *s = name; *s; s++)
        if (*s == '_') *s = '-';
    const km_error none = {0};
    km_error err = none;
    if (!*name)
        km_chat_show_settings(c);
    else if (km_choose("setting", name, names, t.n + 2, &err) < 0)
        km_chat_complain(c, "%s", err.text);
    else if (!*rest)
        km_chat_complain(c, "/set %s needs a value", name);
    else if (strcmp(name, "system") == 0)
        set_system(c, rest);
    else
        set_number(c, &t, name, rest);
}

void km_chat_setting_names(const char *begin, km_text *out) {
    chat_table t;
    km_chat none = {0};
    make_table(&none, &t);
    if (strncmp("system", begin, strlen(begin)) == 0) km_text_add(out, "system \n");
    for (int i = 0; i < t.n; i++)
        if (strncmp(t.rows[i].name, begin, strlen(begin)) == 0)
            km_text_printf(out, "%s \n", t.rows[i].name);
}

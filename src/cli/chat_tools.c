/* Calls of tools in a conversation: shown, answered by a command or by the person, and put into it. */
#include "cli/chat_tools.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/chat.h"
#include "cli/interrupt.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TOOLS = 256, MOST_OUTPUT = 1 << 20, MOST_SECONDS = 120 };
extern char **environ;

/* ---- The file ---- */

static km_status bad(km_error *err, const char *path, size_t i, const char *what) {
    return km_error_set(err, KM_ERR_FORMAT, "%.200s: tool %zu %s", path, i + 1, what);
}

static bool is_command(const json_t *c) {
    if (json_is_string(c)) return json_string_length(c) > 0;
    for (size_t i = 0; i < json_array_size(c); i++)
        if (!json_is_string(json_array_get(c, i))) return false;
    return json_is_array(c) && json_array_size(c) > 0 && json_array_size(c) < 256;
}

/* OpenAI's two forms: {"type": "function", "function": {...}} and the function alone. */
static km_status take_tool(km_chat_tools *t, const char *path, size_t i, const json_t *tool,
                           km_error *err) {
    const json_t *f = json_object_get(tool, "function"),
                 *command = json_object_get(tool, "command");
    if (!f) f = tool;
    const char *name = json_string_value(json_object_get(f, "name"));
    const json_t *parameters = json_object_get(f, "parameters");
    if (!json_is_object(tool) || !json_is_object(f)) return bad(err, path, i, "is no object");
    if (!name || !*name || strlen(name) > 100) return bad(err, path, i, "has no name");
    if (parameters && !json_is_object(parameters))
        return bad(err, path, i, "has parameters that are no JSON schema");
    if (command && !is_command(command))
        return bad(err, path, i, "has a command that is neither a text nor a list of words");
    for (size_t k = 0; k < t->n; k++)
        if (strcmp(t->names[k], name) == 0) return bad(err, path, i, "has a name that is taken");
    json_t *own = json_deep_copy(f);
    json_object_del(own, "command");
    json_object_del(own, "type");
    json_t *one = json_pack("{s:s, s:o}", "type", "function", "function", own);
    if (!one || json_array_append_new(t->list, one) != 0) return km_no_memory(err);
    if (command && json_object_set(t->commands, name, (json_t *)(uintptr_t)command) != 0)
        return km_no_memory(err);
    t->names[t->n++] = json_string_value(json_object_get(own, "name"));
    return KM_OK;
}

km_status km_chat_tools_open(km_chat_tools *t, const char *path, km_error *err) {
    km_map map = {0};
    json_error_t where;
    km_status s = km_map_open(&map, path, err);
    if (s != KM_OK) return s;
    json_t *v = map.size < (size_t)16 << 20
                    ? json_loadb(map.data ? (const char *)map.data : "", map.size, 0, &where)
                    : NULL;
    if (!v)
        s = km_error_set(err, KM_ERR_FORMAT, "%.200s is no JSON: %s", path,
                         map.size < (size_t)16 << 20 ? where.text : "it is larger than 16 MiB");
    s = km_map_done(&map, s, err);
    size_t n = json_array_size(v);
    if (s == KM_OK && (!json_is_array(v) || n == 0 || n > MOST_TOOLS))
        s = km_error_set(err, KM_ERR_FORMAT, "%.200s is no list of 1 to %d tools", path,
                         MOST_TOOLS);
    if (s == KM_OK) {
        t->list = json_array();
        t->commands = json_object();
        t->names = km_calloc(n, sizeof *t->names);
        if (!t->list || !t->commands || !t->names) s = km_no_memory(err);
    }
    for (size_t i = 0; i < n && s == KM_OK; i++)
        s = take_tool(t, path, i, json_array_get(v, i), err);
    json_decref(v);
    if (s == KM_OK && !(t->text = json_dumps(t->list, JSON_COMPACT))) s = km_no_memory(err);
    if (s != KM_OK) km_chat_tools_close(t);
    return s;
}

void km_chat_tools_close(km_chat_tools *t) {
    json_decref(t->list);
    json_decref(t->commands);
    km_free(t->names);
    free(t->text);
    *t = (km_chat_tools){0};
}

/* ---- Commands ---- */

/* Arguments lie in a file without a name, so that a command which does not read them loses nothing. */
static int arguments_file(const km_text *arguments) {
    int fd = memfd_create("arguments", MFD_CLOEXEC);
    size_t done = 0;
    while (fd >= 0 && done < arguments->len) {
        ssize_t n = write(fd, arguments->data + done, arguments->len - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (fd >= 0 && (done < arguments->len || lseek(fd, 0, SEEK_SET) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static pid_t start(const json_t *command, int in, int out) {
    const char *words[260] = {"/bin/sh", "-c", json_string_value(command)};
    for (size_t i = 0; i < json_array_size(command); i++)
        words[i] = json_string_value(json_array_get(command, i));
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    pid_t pid = -1;
    if (posix_spawn_file_actions_init(&files) != 0) return -1;
    if (posix_spawnattr_init(&how) == 0) {
        /* A group of its own, so that all it starts can be ended with it. */
        posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP);
        posix_spawnattr_setpgroup(&how, 0);
        posix_spawn_file_actions_adddup2(&files, in, 0);
        posix_spawn_file_actions_adddup2(&files, out, 1);
        if (posix_spawnp(&pid, words[0], &files, &how, (char *const *)(uintptr_t)words, environ))
            pid = -1;
        posix_spawnattr_destroy(&how);
    }
    posix_spawn_file_actions_destroy(&files);
    return pid;
}

/* What it writes, until it ends; why it was ended before, or NULL. */
static const char *gather(int fd, km_text *out) {
    double until = km_now() + MOST_SECONDS;
    char piece[4096];
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int ready = poll(&p, 1, 100);
        if (km_interrupted()) return "stopped";
        if (km_now() > until) return "it took longer than two minutes";
        if (ready <= 0) continue;
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return NULL;
        km_text_put(out, piece, (size_t)n);
        if (out->len > MOST_OUTPUT) return "it wrote more than a megabyte";
    }
}

/* The result: what the command wrote, and that it failed, if it did. */
static void run_command(km_chat *c, const char *name, const json_t *command,
                        const km_text *arguments, km_text *out) {
    int in = arguments_file(arguments), pipes[2] = {-1, -1}, status = 0;
    pid_t pid = in >= 0 && pipe2(pipes, O_CLOEXEC) == 0 ? start(command, in, pipes[1]) : -1;
    if (in >= 0) close(in);
    if (pipes[1] >= 0) close(pipes[1]);
    const char *ended = pid > 0 ? gather(pipes[0], out) : NULL;
    if (pipes[0] >= 0) close(pipes[0]);
    if (pid <= 0) {
        km_chat_complain(c, "the command of '%s' cannot be run", name);
        km_text_add(out, "error: the tool cannot be run");
        return;
    }
    while (out->len && out->data[out->len - 1] == '\n') out->data[--out->len] = '\0';
    if (ended) kill(-pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (ended) {
        km_chat_say(c, "the command of '%s' was ended: %s", name, ended);
        km_text_printf(out, "\nerror: the tool was ended: %s", ended);
    } else if (status != 0) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        km_chat_say(c, "the command of '%s' failed with %d", name, code);
        km_text_printf(out, "\nerror: the tool failed with code %d", code);
    }
}

/* ---- Results ---- */

/* A result is a stranger's text: a control token in it is taken apart by a space of no width. */
static void put_harmless(km_chat *c, const km_text *from, km_text *to) {
    int64_t vocab = c->about.vocab;
    km_text_put(to, km_text_str(from), from->len);
    for (int32_t id = 0; id < vocab; id++) {
        size_t n = 0;
        const char *piece = km_token_special(c->m, id) ? km_token_piece(c->m, id, &n) : NULL;
        const char *hit;
        if (!piece || n < 3) continue;
        while ((hit = memmem(km_text_str(to), to->len, piece, n))) {
            size_t at = (size_t)(hit - to->data) + 1;
            while (((unsigned char)to->data[at] & 0xC0) == 0x80) at++;
            km_text rest = {0};
            km_text_put(&rest, to->data + at, to->len - at);
            to->len = at;
            km_text_add(to, "\xE2\x80\x8B");
            km_text_put(to, km_text_str(&rest), rest.len);
            km_text_free(&rest);
        }
    }
}

static bool ask_person(km_chat *c, const char *name, km_text *out) {
    km_error err = {0};
    char prompt[140];
    snprintf(prompt, sizeof prompt, "%.100s returns: ", name);
    if (c->terminal) km_interrupts_catch(true);
    km_line got = km_lines_read(c->lines, prompt, out, &err);
    if (c->terminal) km_interrupts_catch(false);
    if (got == KM_LINE_FAILED) km_chat_complain(c, "%s", err.text);
    return got == KM_LINE_TEXT;
}

/* Its beginning, with nothing in it that would steer a terminal. */
static void show_result(km_chat *c, const km_text *result) {
    enum { SHOWN = 200 };
    json_t *m =
        km_cli_message("tool", km_text_str(result), result->len < SHOWN ? result->len : SHOWN);
    char *text = json_dumps(json_object_get(m, "content"), JSON_ENSURE_ASCII | JSON_ENCODE_ANY);
    if (text) km_chat_say(c, "= %s%s", text, result->len > SHOWN ? " ..." : "");
    free(text);
    json_decref(m);
}

static bool answer_call(km_chat *c, const km_chat_call *call, const char *id) {
    const json_t *command = json_object_get(c->tools.commands, call->name);
    json_t *arguments = json_loads(km_text_str(&call->arguments), JSON_DECODE_ANY, NULL);
    char *shown = arguments ? json_dumps(arguments, JSON_ENSURE_ASCII | JSON_ENCODE_ANY) : NULL;
    km_text raw = {0}, result = {0};
    bool ok = true;
    km_chat_say(c, "%s(%s)", call->name, shown ? shown : "arguments that are no JSON");
    if (!arguments)
        km_text_add(&raw, "error: the arguments are no JSON");
    else if (command)
        run_command(c, call->name, command, &call->arguments, &raw);
    else
        ok = ask_person(c, call->name, &raw);
    put_harmless(c, &raw, &result);
    json_t *m = ok && !km_interrupted() && km_text_ok(&result)
                    ? km_cli_message("tool", km_text_str(&result), result.len)
                    : NULL;
    ok = m && json_object_set_new(m, "tool_call_id", json_string(id)) == 0 &&
         json_object_set_new(m, "name", json_string(call->name)) == 0;
    if (ok && command) show_result(c, &result);
    if (ok) ok = json_array_append(c->talk.messages, m) == 0;
    json_decref(m);
    json_decref(arguments);
    free(shown);
    km_text_free(&raw);
    km_text_free(&result);
    return ok;
}

bool km_chat_tools_answer(km_chat *c, const char *said, size_t bytes, const km_chat_call *calls,
                          size_t n) {
    json_t *message = km_cli_message("assistant", said, bytes), *list = json_array();
    char id[40];
    bool ok = message && list;
    for (size_t i = 0; i < n && ok; i++) {
        json_t *arguments = json_loads(km_text_str(&calls[i].arguments), 0, NULL);
        snprintf(id, sizeof id, "call_%zu_%zu", json_array_size(c->talk.messages), i + 1);
        ok = json_array_append_new(list, json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type",
                                                   "function", "function", "name", calls[i].name,
                                                   "arguments",
                                                   arguments ? arguments : json_object())) == 0;
    }
    size_t at = json_array_size(c->talk.messages);
    if (ok)
        ok = json_object_set(message, "tool_calls", list) == 0 &&
             json_array_append(c->talk.messages, message) == 0;
    for (size_t i = 0; i < n && ok; i++) {
        snprintf(id, sizeof id, "call_%zu_%zu", at, i + 1);
        ok = answer_call(c, &calls[i], id);
    }
    while (!ok && json_array_size(c->talk.messages) > at) km_talk_drop_last(&c->talk);
    json_decref(message);
    json_decref(list);
    return ok;
}

/* The output of kermes run --prompts: a line of JSON for each prompt, written whole as soon as it is
 * there. A second call learns from the file what is done. Each line holds a hash of the line it answers,
 * so that answers to other prompts are never taken for these. */
#include "base/alloc.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/run_many.h"
#include "report/json.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLUSH_EVERY 5.0 /* seconds: what a machine that stops at once may lose */

/* ---- What is there ---- */

static bool note_answer(km_run_answers *a, const char *line, size_t bytes) {
    json_t *v = json_loadb(line, bytes, 0, NULL);
    json_t *index = json_object_get(v, "index");
    const char *text = json_string_value(json_object_get(v, "input"));
    char *end = NULL;
    int64_t i = json_is_integer(index) ? json_integer_value(index) : -1;
    uint64_t hash = text && strlen(text) == 16 ? strtoull(text, &end, 16) : 0;
    bool ok = i >= 0 && i < INT32_MAX && hash && end && !*end;
    if (ok && i >= a->cap) {
        int64_t had = a->cap;
        ok = km_array_reserve(&a->hash, &a->cap, i + 1);
        if (ok) memset(a->hash + had, 0, (size_t)(a->cap - had) * sizeof *a->hash);
    }
    if (ok) {
        a->done += a->hash[i] == 0;
        a->hash[i] = hash;
        if (i >= a->n) a->n = i + 1;
    }
    json_decref(v);
    return ok;
}

/* Half a last line is cut off: its prompt is answered again. */
static km_status learn(km_run_answers *a, km_error *err) {
    km_map map = {0};
    size_t keep = 0;
    int64_t lines = 0;
    km_status s = km_map_open(&map, a->name, err);
    const char *data = (const char *)map.data;
    while (s == KM_OK && keep < map.size) {
        const char *end = memchr(data + keep, '\n', map.size - keep);
        if (!end) break;
        size_t next = (size_t)(end - data) + 1;
        lines++;
        if (!note_answer(a, data + keep, next - keep)) {
            if (next == map.size) break;
            s = km_error_set(err, KM_ERR_STATE,
                             "line %lld of '%.200s' is no answer of kermes run --prompts; name "
                             "another file",
                             (long long)lines, a->name);
        }
        if (s == KM_OK) keep = next;
    }
    bool cut = s == KM_OK && keep < map.size;
    s = km_map_done(&map, s, err);
    if (s == KM_OK && cut && ftruncate(a->fd, (off_t)keep) != 0)
        s = km_error_set(err, KM_ERR_FILE, "cannot cut '%.200s' to its whole lines: %s", a->name,
                         strerror(errno));
    return s;
}

static bool same_file(const km_run_many *o, const struct stat *out) {
    struct stat in;
    int failed = strcmp(o->prompts, "-") == 0 ? fstat(STDIN_FILENO, &in) : stat(o->prompts, &in);
    return failed == 0 && in.st_dev == out->st_dev && in.st_ino == out->st_ino;
}

km_status km_run_answers_open(km_run_answers *a, const km_run_many *o, km_error *err) {
    struct stat st;
    *a = (km_run_answers){.fd = STDOUT_FILENO, .name = "standard output", .flushed = km_now()};
    if (strcmp(o->out, "-") == 0) return KM_OK;
    a->name = o->out;
    a->fd = open(o->out, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (a->fd < 0 || fstat(a->fd, &st) != 0)
        return km_error_set(err, KM_ERR_FILE, "cannot write '%.200s': %s", o->out, strerror(errno));
    if (same_file(o, &st))
        return km_error_set(err, KM_ERR_RANGE, "'%.200s' cannot be read and written at once",
                            o->out);
    if (!S_ISREG(st.st_mode)) return KM_OK;
    if (flock(a->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return km_error_set(err, KM_ERR_STATE, "another kermes run writes '%.200s' just now",
                            o->out);
    return st.st_size > 0 ? learn(a, err) : KM_OK;
}

km_status km_run_answers_has(const km_run_answers *a, int64_t index, uint64_t hash, bool *has,
                             km_error *err) {
    *has = index < a->n && a->hash[index] != 0;
    if (!*has || a->hash[index] == hash) return KM_OK;
    return km_error_set(err, KM_ERR_STATE,
                        "'%.200s' answers another line %lld than there is now; name another file",
                        a->name, (long long)index + 1);
}

/* ---- What is new ---- */

static json_t *text_of(const km_text *t) {
    json_t *v = json_stringn(km_text_str(t), t->len);
    return v ? v : km_json_text(km_text_str(t));
}

static json_t *answer_json(const km_run_line *l, km_end_reason end, const char *why) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, l->hash);
    json_t *v = json_pack("{s:I}", "index", (json_int_t)l->index);
    if (l->id) json_object_set(v, "id", l->id);
    if (why) {
        json_object_set_new(v, "error", json_pack("{s:o}", "message", km_json_text(why)));
    } else {
        json_object_set_new(v, "text", text_of(&l->text));
        json_object_set_new(v, "end", json_string(km_end_name(end)));
        json_object_set_new(v, "prompt_tokens", json_integer((json_int_t)l->n));
        json_object_set_new(v, "tokens", json_integer(l->tokens));
        json_object_set_new(v, "seed", json_integer((json_int_t)l->how.sampling.seed));
    }
    json_object_set_new(v, "input", json_string(hash));
    return v;
}

km_status km_run_answers_put(km_run_answers *a, const km_run_line *l, km_end_reason end,
                             const char *why, km_error *err) {
    json_t *v = answer_json(l, end, why);
    char *dump = v ? json_dumps(v, JSON_COMPACT) : NULL;
    size_t n = dump ? strlen(dump) : 0, at = 0;
    json_decref(v);
    if (!dump) return km_no_memory(err);
    dump[n++] = '\n'; /* over the end */
    while (at < n) {
        ssize_t wrote = write(a->fd, dump + at, n - at);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            km_error_set(err, KM_ERR_FILE, "cannot write to %.200s: %s", a->name, strerror(errno));
            break;
        }
        at += (size_t)wrote;
    }
    free(dump);
    if (km_now() - a->flushed > FLUSH_EVERY) {
        fdatasync(a->fd); /* a pipe or a terminal has nothing to flush */
        a->flushed = km_now();
    }
    return err->code;
}

km_status km_run_answers_close(km_run_answers *a, km_error *err) {
    km_status s = KM_OK;
    if (a->fd > STDERR_FILENO) {
        if (fdatasync(a->fd) != 0 && errno != EINVAL && errno != EROFS)
            s = km_error_set(err, KM_ERR_FILE, "cannot write '%.200s': %s", a->name,
                             strerror(errno));
        close(a->fd);
    }
    km_free(a->hash);
    *a = (km_run_answers){.fd = -1};
    return s;
}

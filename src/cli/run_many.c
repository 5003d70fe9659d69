/* kermes run --prompts: many prompts through one batch. The feeder, a thread of its own, reads lines,
 * renders, tokenises and starts them, so that templates and grammars never hold up a step; this thread
 * steps the batch and writes answers in the order in which they end. A sequence that has ended waits with
 * what it holds, so that the next prompt with the same beginning need not read that again. */
#include "cli/run_many.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/progress.h"
#include "cli/use_model.h"
#include "report/json.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_BYTES ((size_t)64 << 20) /* of a line */

typedef struct lines_in { /* the input, line by line */
    int fd;
    char *data; /* (65536) */
    size_t at, n;
    bool ended;
    int64_t index; /* of the next line */
} lines_in;

typedef struct many_run {
    const km_run_many *o;
    km_model *m;
    km_batch *b;
    int parallel;
    int64_t pages, page_tokens, context;
    lines_in in;
    km_run_answers out;
    km_progress bar;
    double began;
    pthread_mutex_t lock; /* of what follows, and of `out` */
    pthread_cond_t changed;
    km_run_line **line; /* (parallel): by sequence; NULL: free */
    int *idle;          /* sequences that have joined and wait */
    int n_idle, n_running;
    int64_t promised;         /* pages that those which run may come to need */
    bool fed, stop, starting; /* starting: the feeder is in km_batch_start */
    int64_t starts;
    int64_t answered, failed, skipped, read, made; /* read, made: tokens */
    km_error error;
} many_run;

/* ---- The input ---- */

/* The next line, without its end; 1: there is one, 0: the input has ended, -1: it cannot be read.
 * *longer: it has more bytes than any prompt, and the rest was skipped. */
static int next_line(lines_in *in, km_text *line, bool *longer, km_error *err) {
    line->len = 0;
    *longer = false;
    bool any = false;
    for (;;) {
        if (in->at == in->n && !in->ended) {
            ssize_t n = read(in->fd, in->data, 65536);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) {
                km_error_set(err, KM_ERR_FILE, "cannot read the prompts: %s", strerror(errno));
                return -1;
            }
            in->ended = n == 0;
            in->at = 0;
            in->n = (size_t)n;
        }
        if (in->at == in->n) {
            in->index += any;
            return any;
        }
        const char *from = in->data + in->at, *end = memchr(from, '\n', in->n - in->at);
        size_t n = end ? (size_t)(end - from) : in->n - in->at;
        any = true;
        if (line->len + n > MOST_BYTES) *longer = true;
        if (!*longer) km_text_put(line, from, n);
        in->at += n + (end != NULL);
        if (!km_text_ok(line)) {
            km_no_memory(err);
            return -1;
        }
        if (!end) continue;
        in->index++;
        return 1;
    }
}

static bool is_blank(const km_text *line) {
    return strspn(km_text_str(line), " \t\r") == line->len;
}

/* For the bar: how many lines the file has; 0 where that cannot be told beforehand. */
static int64_t count_lines(int fd) {
    struct stat st;
    char buffer[65536];
    int64_t lines = 0;
    char last = '\n';
    off_t at = 0;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return 0;
    for (ssize_t n; (n = pread(fd, buffer, sizeof buffer, at)) > 0; at += n) {
        for (ssize_t i = 0; i < n; i++) lines += buffer[i] == '\n';
        last = buffer[n - 1];
    }
    return lines + (last != '\n');
}

/* ---- Answers: with the lock held ---- */

static void stop_with(many_run *r, const km_error *err) {
    if (r->error.code == KM_OK) r->error = *err;
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
}

static void put_answer(many_run *r, km_run_line *l, km_end_reason end, const char *why) {
    km_error err = {0};
    char note[64], a[KM_NUMBER_TEXT];
    if (why && r->o->strict) {
        km_error_set(&err, KM_ERR_RANGE, "line %lld: %s", (long long)l->index + 1, why);
        stop_with(r, &err);
        return;
    }
    r->answered++;
    r->failed += why != NULL;
    if (km_run_answers_put(&r->out, l, end, why, &err) != KM_OK) stop_with(r, &err);
    snprintf(note, sizeof note, "%s tokens/s",
             km_format_number(a, (double)r->made / (km_now() - r->began + 1e-9)));
    km_progress_step(&r->bar, r->answered + r->skipped, note);
}

/* ---- The feeder ---- */

static int64_t pages_for(const many_run *r, const km_run_line *l) {
    int64_t most = l->how.max_tokens > 0 ? l->how.max_tokens : r->context;
    int64_t tokens = (int64_t)l->n + most;
    if (tokens > r->context) tokens = r->context;
    return r->page_tokens > 0 ? tokens / r->page_tokens + 2 : 0;
}

/* A sequence for the line, once there is one and room for its pages; -1: nothing more is to start. */
static int take_sequence(many_run *r, km_run_line *l) {
    int i = -1;
    l->pages = pages_for(r, l);
    pthread_mutex_lock(&r->lock);
    while (!r->stop && i < 0) {
        bool room = r->n_running == 0 || (r->n_running < r->parallel &&
                                          (r->pages <= 0 || r->promised + l->pages <= r->pages));
        if (room) i = r->n_idle > 0 ? r->idle[--r->n_idle] : km_batch_join(r->b);
        if (i < 0) pthread_cond_wait(&r->changed, &r->lock);
    }
    if (i >= 0) {
        r->line[i] = l; /* before the first event can come */
        r->promised += l->pages;
        r->n_running++;
        r->starting = true;
    }
    pthread_mutex_unlock(&r->lock);
    return i;
}

/* With the lock held. Where memory is short, pages are worth more than what they hold. */
static void give_sequence(many_run *r, int i) {
    r->promised -= r->line[i]->pages;
    r->line[i] = NULL;
    r->n_running--;
    if (r->o->cache_memory)
        km_batch_leave(r->b, i);
    else
        r->idle[r->n_idle++] = i;
    pthread_cond_broadcast(&r->changed);
}

static void start_line(many_run *r, km_run_line *l) {
    int i = take_sequence(r, l);
    if (i < 0) {
        km_run_line_free(l);
        return;
    }
    km_status s = km_batch_start(r->b, i, l->ids, l->n, &l->how);
    pthread_mutex_lock(&r->lock);
    r->starting = false;
    r->starts++;
    if (s != KM_OK) {
        put_answer(r, l, KM_ENDED_CANCELLED, km_last_error());
        give_sequence(r, i);
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (s != KM_OK) km_run_line_free(l);
}

static void feed_line(many_run *r, const km_text *text, bool longer) {
    km_error err = {0};
    bool has = false;
    km_run_line *l = km_calloc(1, sizeof *l);
    pthread_mutex_lock(&r->lock);
    if (l) {
        l->index = r->in.index - 1;
        l->hash = km_run_line_hash(text);
        km_run_answers_has(&r->out, l->index, l->hash, &has, &err);
        r->skipped += has && err.code == KM_OK;
    } else {
        km_no_memory(&err);
    }
    if (err.code != KM_OK) stop_with(r, &err);
    bool wanted = l && !has && !r->stop;
    pthread_mutex_unlock(&r->lock);
    km_status s = wanted ? km_run_line_read(l, r->o, r->m, text, &err) : KM_ERR_STATE;
    if (wanted && longer)
        s = km_error_set(&err, KM_ERR_RANGE, "this line is longer than %zu MiB", MOST_BYTES >> 20);
    if (s == KM_OK) {
        start_line(r, l);
        return;
    }
    pthread_mutex_lock(&r->lock);
    if (wanted) put_answer(r, l, KM_ENDED_NOT, err.text);
    pthread_mutex_unlock(&r->lock);
    km_run_line_free(l);
}

static bool goes_on(many_run *r) {
    pthread_mutex_lock(&r->lock);
    bool stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    return !stop;
}

static void *feeder(void *user) {
    many_run *r = user;
    km_text line = {0};
    km_error err = {0};
    bool longer;
    while (goes_on(r) && next_line(&r->in, &line, &longer, &err) == 1)
        if (longer || !is_blank(&line)) feed_line(r, &line, longer);
    pthread_mutex_lock(&r->lock);
    if (err.code != KM_OK) stop_with(r, &err);
    r->fed = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    km_text_free(&line);
    return NULL;
}

/* ---- Steps ---- */

static void take_event(many_run *r, const km_piece_event *e) {
    km_run_line *l = e->sequence >= 0 && e->sequence < r->parallel ? r->line[e->sequence] : NULL;
    if (!l) return;
    if (e->status == KM_OK) km_text_put(&l->text, e->text, e->bytes);
    if (e->id >= 0) l->tokens++, r->made++;
    if (e->end == KM_ENDED_NOT) return;
    r->read += (int64_t)l->n;
    if (e->status != KM_OK)
        put_answer(r, l, e->end, e->bytes ? e->text : "the batch failed");
    else
        put_answer(r, l, e->end, km_text_ok(&l->text) ? NULL : "out of memory for its text");
    give_sequence(r, e->sequence);
    km_run_line_free(l);
}

static bool all_ended(const many_run *r) { return r->fed && r->n_running == 0; }

/* Until all is answered, or nothing more is to start and what runs has ended. */
static void step_all(many_run *r) {
    km_piece_event e[64];
    km_error err = {0};
    pthread_mutex_lock(&r->lock);
    while (!all_ended(r) && err.code == KM_OK) {
        int64_t starts = r->starts;
        bool starting = r->starting;
        pthread_mutex_unlock(&r->lock);
        int n = km_batch_step(r->b, e, 64);
        if (n < 0) km_error_set(&err, km_last_status(), "%s", km_last_error());
        pthread_mutex_lock(&r->lock);
        for (int i = 0; i < n; i++) take_event(r, &e[i]);
        pthread_cond_broadcast(&r->changed); /* sequences that were left are free now */
        if (n == 0 && !starting && r->starts == starts && !r->starting && r->n_running > 0)
            km_error_set(&err, KM_ERR_STATE, "the batch has lost a prompt");
        if (err.code != KM_OK) stop_with(r, &err);
        while (n == 0 && r->starts == starts && !all_ended(r) && err.code == KM_OK)
            pthread_cond_wait(&r->changed, &r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- All of it ---- */

static km_status open_batch(many_run *r, km_error *err) {
    km_batch_options b = km_batch_defaults();
    b.memory = (size_t)r->o->cache_memory << 20;
    b.context = km_model_describe(r->m).context;
    for (b.sequences = r->o->parallel;; b.sequences /= 2) {
        r->b = km_batch_new(r->m, &b);
        if (r->b) break;
        if (km_last_status() != KM_ERR_MEMORY || b.sequences <= 1)
            return km_error_set(err, km_last_status(), "%s", km_last_error());
    }
    km_batch_state state = km_batch_describe(r->b);
    r->parallel = (int)state.sequences;
    r->pages = r->o->cache_memory ? state.pages : 0;
    r->page_tokens = state.page_tokens;
    r->context = b.context;
    if (r->parallel < r->o->parallel)
        km_note(KM_LOG_WARN, "memory holds %d sequences at once, and not %lld", r->parallel,
                (long long)r->o->parallel);
    r->line = km_calloc((size_t)r->parallel, sizeof(km_run_line *));
    r->idle = km_calloc((size_t)r->parallel, sizeof *r->idle);
    return r->line && r->idle ? KM_OK : km_no_memory(err);
}

static km_status open_input(many_run *r, km_error *err) {
    const char *name = r->o->prompts;
    r->in.fd = strcmp(name, "-") == 0 ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);
    if (r->in.fd < 0)
        return km_error_set(err, KM_ERR_FILE, "cannot open '%.200s': %s", name, strerror(errno));
    r->in.data = km_alloc(65536);
    return r->in.data ? KM_OK : km_no_memory(err);
}

static km_status run_all(many_run *r, km_error *err) {
    pthread_t thread;
    km_progress_begin(&r->bar, "prompts", "answers", count_lines(r->in.fd), r->o->common->quiet);
    r->bar.first = r->out.done;
    r->began = km_now();
    if (pthread_create(&thread, NULL, feeder, r) != 0)
        return km_error_set(err, KM_ERR_STATE, "run: cannot start a thread");
    step_all(r);
    pthread_join(thread, NULL);
    km_progress_end(&r->bar);
    if (r->error.code != KM_OK) *err = r->error;
    return r->error.code;
}

static void tell(const many_run *r, double seconds) {
    char a[KM_NUMBER_TEXT];
    if (r->failed)
        km_note(KM_LOG_WARN, "%lld line%s could not be answered: \"error\" in the output says why",
                (long long)r->failed, r->failed == 1 ? "" : "s");
    if (r->o->common->quiet) return;
    fprintf(stderr, "kermes: %lld answer%s in %.1f s", (long long)(r->answered - r->failed),
            r->answered - r->failed == 1 ? "" : "s", seconds);
    if (r->skipped) fprintf(stderr, ", %lld were there already", (long long)r->skipped);
    fprintf(stderr, "; %lld tokens read, %lld made (%s a second)\n", (long long)r->read,
            (long long)r->made, km_format_number(a, (double)r->made / seconds));
}

static int print_json(const many_run *r, double seconds) {
    return km_cli_print_json(json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o}", "answered",
        (json_int_t)(r->answered - r->failed), "failed", (json_int_t)r->failed, "there_already",
        (json_int_t)r->skipped, "prompt_tokens", (json_int_t)r->read, "tokens", (json_int_t)r->made,
        "parallel", r->parallel, "seconds", km_json_number(seconds, 4), "tokens_per_s",
        km_json_number((double)r->made / seconds, 4)));
}

int km_run_many_all(const km_run_many *o, km_model *m) {
    many_run r = {.o = o, .m = m, .in = {.fd = -1}, .out = {.fd = -1}};
    km_error err = {0}, closing = {0};
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.changed, NULL);
    km_status s = open_input(&r, &err);
    if (s == KM_OK) s = km_run_answers_open(&r.out, o, &err);
    if (s == KM_OK) s = open_batch(&r, &err);
    double began = km_now();
    if (s == KM_OK) s = run_all(&r, &err);
    double seconds = km_now() - began;
    if (km_run_answers_close(&r.out, &closing) != KM_OK && s == KM_OK) {
        err = closing;
        s = closing.code;
    }
    if (s == KM_OK) tell(&r, seconds);
    for (int i = 0; r.line && i < r.parallel; i++) km_run_line_free(r.line[i]);
    km_free(r.line);
    km_free(r.idle);
    km_free(r.in.data);
    if (r.in.fd > STDERR_FILENO) close(r.in.fd);
    km_batch_free(r.b);
    pthread_cond_destroy(&r.changed);
    pthread_mutex_destroy(&r.lock);
    if (s != KM_OK) return km_cli_fail("%s", err.text);
    return o->common->json && strcmp(o->out, "-") != 0 ? print_json(&r, seconds) : KM_EXIT_OK;
}

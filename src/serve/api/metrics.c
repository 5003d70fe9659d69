/* /metrics in Prometheus' text form, /status.json for the page, and histograms. */
#include "serve/api/api.h"
#include <string.h>

/* From 1 ms on, each a half-decade or so apart. */
static const double bounds[KM_HISTOGRAM_BUCKETS] = {
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

void km_histogram_add(km_histogram *h, double seconds) {
    int i = 0;
    while (i < KM_HISTOGRAM_BUCKETS && seconds > bounds[i]) i++;
    h->count[i]++;
    h->n++;
    h->sum += seconds;
}

double km_histogram_quantile(const km_histogram *h, double share) {
    double want = share * (double)h->n, seen = 0;
    for (int i = 0; i <= KM_HISTOGRAM_BUCKETS && h->n; i++) {
        double low = i ? bounds[i - 1] : 0, high = i < KM_HISTOGRAM_BUCKETS ? bounds[i] : low;
        if (seen + (double)h->count[i] >= want && h->count[i])
            return low + (high - low) * (want - seen) / (double)h->count[i];
        seen += (double)h->count[i];
    }
    return 0;
}

static void put(km_text *t, const char *name, const char *type, const char *help, double value) {
    km_text_printf(t, "# HELP kermes_%s %s\n# TYPE kermes_%s %s\nkermes_%s %.17g\n", name, help,
                   name, type, name, value);
}

static void put_histogram(km_text *t, const char *name, const char *help, const km_histogram *h) {
    int64_t sum = 0;
    km_text_printf(t, "# HELP kermes_%s %s\n# TYPE kermes_%s histogram\n", name, help, name);
    for (int i = 0; i < KM_HISTOGRAM_BUCKETS; i++) {
        sum += h->count[i];
        km_text_printf(t, "kermes_%s_bucket{le=\"%g\"} %lld\n", name, bounds[i], (long long)sum);
    }
    km_text_printf(t,
                   "kermes_%s_bucket{le=\"+Inf\"} %lld\nkermes_%s_sum %.9g\nkermes_%s_count %lld\n",
                   name, (long long)h->n, name, h->sum, name, (long long)h->n);
}

/* ---- Memory ---- */

static void put_label(km_text *t, const char *s) {
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') km_text_add(t, "\\");
        if (*s == '\n')
            km_text_add(t, "\\n");
        else
            km_text_put(t, s, 1);
    }
}

static void put_head(km_text *t, const char *name, const char *help) {
    km_text_printf(t, "# HELP kermes_%s %s\n# TYPE kermes_%s gauge\n", name, help, name);
}

static void put_labelled(km_text *t, const char *name, const char *key, const char *label,
                         double value) {
    km_text_printf(t, "kermes_%s{%s=\"", name, key);
    put_label(t, label);
    km_text_printf(t, "\"} %.17g\n", value);
}

/* Is the device one of "cpu 20 + cuda:0 16"? */
static bool is_among(const char *devices, const char *name) {
    size_t n = strlen(name);
    for (const char *at = devices; (at = strstr(at, name)); at += n)
        if ((at == devices || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

/* Of the models that are up: weights, KV cache, and the devices that these are on. */
static void put_memory(const km_serve *s, km_text *t) {
    static const char *const names[] = {"model_weights_bytes", "kv_cache_bytes",
                                        "kv_cache_used_bytes"};
    static const char *const helps[] = {"Weights of a model that is loaded.",
                                        "What its KV cache may come to hold.",
                                        "Of this, what pages in use take."};
    for (int k = 0; k < 3; k++) {
        put_head(t, names[k], helps[k]);
        for (int i = 0; i < s->n_served; i++) {
            const km_served *m = s->served[i];
            if (m->state != KM_SERVED_UP) continue;
            km_scheduler_counts c = km_scheduler_count(m->scheduler);
            int64_t pages = k == 1 ? c.pages : c.pages - c.pages_free;
            put_labelled(t, names[k], "model", m->name,
                         (double)(k ? pages * c.page_bytes : m->info.bytes));
        }
    }
    km_text used = {0};
    int n = 0,
        most = 1; /* the CPU alone, unless a model is elsewhere: asking drivers takes its time */
    for (int i = 0; i < s->n_served; i++)
        if (s->served[i]->state == KM_SERVED_UP &&
            strcmp(km_model_describe(s->served[i]->model).devices, "cpu") != 0)
            most = km_device_count();
    put_head(t, "device_memory_bytes", "Memory of a device that models are on.");
    for (int d = 0; d < most; d++) {
        const km_device_info *about = km_device_describe(d);
        bool has = false;
        for (int i = 0; i < s->n_served && about; i++)
            has |= s->served[i]->state == KM_SERVED_UP &&
                   is_among(km_model_describe(s->served[i]->model).devices, about->name);
        if (!has || !about->memory) continue;
        put_labelled(t, "device_memory_bytes", "device", about->name, (double)about->memory);
        put_labelled(&used, "device_memory_used_bytes", "device", about->name,
                     (double)(about->memory - about->memory_free));
        n++;
    }
    put_head(t, "device_memory_used_bytes", "Of this, what is in use, by whomever.");
    if (n) km_text_put(t, km_text_str(&used), used.len);
    km_text_free(&used);
}

/* ---- /metrics ---- */

void km_endpoint_metrics(km_serve *s, km_exchange *x) {
    km_scheduler_counts c = km_served_counts(s);
    km_http_counts h = km_http_count(s->http);
    km_metrics *m = &s->metrics;
    km_text *t = km_scratch(s);
    static const char *const classes[] = {"client_left", "1xx", "2xx", "3xx", "4xx", "5xx"};
    put(t, "requests_running", "gauge", "Answers that are being made.", (double)c.running);
    put(t, "requests_reading", "gauge", "Of these, whose prompts are still being read.",
        (double)c.reading);
    put(t, "requests_queued", "gauge", "Requests that wait.", (double)c.queued);
    int up = 0;
    for (int i = 0; i < s->n_served; i++) up += s->served[i]->state == KM_SERVED_UP;
    put(t, "models_loaded", "gauge", "Models that are loaded.", up);
    put(t, "model_loads_total", "counter", "How often one was loaded.", (double)s->loads);
    put(t, "deliveries_direct_total", "counter", "Steps whose tokens the engine sent itself.",
        (double)h.tries);
    put(t, "deliveries_direct_cpu_seconds_total", "counter", "CPU time of sending them.",
        h.try_seconds);
    put(t, "connections", "gauge", "Open connections.", (double)h.connections);
    put(t, "streams", "gauge", "Of these, that carry a stream.", (double)h.streams);
    put(t, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)c.prompt_tokens);
    put(t, "prompt_tokens_reused_total", "counter", "Of these, found in the prefix cache.",
        (double)c.reused_tokens);
    put(t, "tokens_total", "counter", "Tokens made.", (double)c.tokens);
    put(t, "steps_total", "counter", "Steps of the engine.", (double)c.steps);
    put(t, "busy_seconds_total", "counter", "Time spent in steps.", c.busy);
    put(t, "answers_finished_total", "counter", "Answers that came to their end.",
        (double)c.finished);
    put(t, "answers_cancelled_total", "counter", "Answers cut short by clients or time.",
        (double)c.cancelled);
    put(t, "answers_failed_total", "counter", "Answers that failed.", (double)c.failed);
    put(t, "answers_set_aside_total", "counter",
        "Answers set aside for want of pages, and resumed.", (double)c.set_aside);
    put(t, "answers_paused", "gauge", "Of these, that wait for pages now.", (double)c.paused);
    put(t, "prefixes_kept", "gauge", "Sequences in the prefix cache.", (double)c.kept);
    put(t, "prefixes_evicted_total", "counter", "Sequences dropped from it.", (double)c.evicted);
    put(t, "prefix_tokens_evicted_total", "counter", "Tokens of its leaves that were dropped.",
        (double)c.evicted_tokens);
    put(t, "prefix_nodes", "gauge", "Runs of tokens in its radix tree.", (double)c.nodes);
    put(t, "prefixes_shelved", "gauge", "Sequences in the second level.", (double)c.shelved);
    put(t, "prefixes_shelved_bytes", "gauge", "What they take.", (double)c.shelf_bytes);
    put(t, "prefixes_brought_back_total", "counter", "Sequences brought back from it.",
        (double)c.brought_back);
    put(t, "pages", "gauge", "Pages of the KV cache.", (double)c.pages);
    put(t, "pages_free", "gauge", "Of these, free.", (double)c.pages_free);
    put_memory(s, t);
    put(t, "refused_queue_total", "counter", "Requests refused since too many were waiting.",
        (double)m->refused_queue);
    put(t, "refused_key_total", "counter", "Requests refused for want of a key.",
        (double)m->refused_key);
    put(t, "late_total", "counter", "Answers whose time was over.", (double)m->late);
    put(t, "tool_calls_total", "counter", "Calls of tools in answers.", (double)m->tool_calls);
    put(t, "received_bytes_total", "counter", "Bytes of requests.", (double)h.bytes_in);
    put(t, "sent_bytes_total", "counter", "Bytes of answers' bodies.", (double)h.bytes_out);
    km_text_add(
        t,
        "# HELP kermes_http_requests_total Requests by the class of their status.\n# TYPE kermes_http_requests_total counter\n");
    for (int i = 0; i < 6; i++)
        km_text_printf(t, "kermes_http_requests_total{class=\"%s\"} %lld\n", classes[i],
                       (long long)m->by_status[i]);
    put_histogram(t, "queue_seconds", "From a request to its beginning.", &m->queued);
    put_histogram(t, "first_token_seconds", "From a request to its first token.", &m->first_token);
    put_histogram(t, "token_seconds", "Between two tokens of an answer, on average.",
                  &m->between_tokens);
    put_histogram(t, "request_seconds", "From a request to its end.", &m->whole);
    km_send_text(x, NULL, "text/plain; version=0.0.4; charset=utf-8", t);
}

static json_t *latency(const km_histogram *h) {
    return json_pack("{s:f, s:f, s:f, s:I}", "p50", km_histogram_quantile(h, 0.5), "p90",
                     km_histogram_quantile(h, 0.9), "p99", km_histogram_quantile(h, 0.99), "count",
                     (json_int_t)h->n);
}

/* The one that was used last, of those that are up. */
static const km_served *shown_model(const km_serve *s) {
    const km_served *best = s->served[0];
    for (int i = 0; i < s->n_served; i++) {
        const km_served *m = s->served[i];
        if (m->state != KM_SERVED_UP) continue;
        if (best->state != KM_SERVED_UP || m->users > best->users ||
            (m->users == best->users && m->used > best->used))
            best = m;
    }
    return best;
}

void km_endpoint_status(km_serve *s, km_exchange *x) {
    km_scheduler_counts c = km_served_counts(s);
    km_http_counts h = km_http_count(s->http);
    km_metrics *m = &s->metrics;
    const km_served *m0 = shown_model(s);
    json_t *v = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o}",
        "model", m0->name, "devices", m0->devices, "version", KM_VERSION, "context",
        (json_int_t)c.context, "parameters", (json_int_t)m0->info.parameters, "uptime",
        km_now() - s->began, "tokens_per_second", m->rate, "running", (json_int_t)c.running,
        "queued", (json_int_t)c.queued, "reading", (json_int_t)c.reading, "kept",
        (json_int_t)c.kept, "connections", (json_int_t)h.connections, "streams",
        (json_int_t)h.streams, "prompt_tokens", (json_int_t)c.prompt_tokens, "reused_tokens",
        (json_int_t)c.reused_tokens, "tokens", (json_int_t)c.tokens, "finished",
        (json_int_t)c.finished, "pages", (json_int_t)c.pages, "pages_free",
        (json_int_t)c.pages_free, "busy", c.busy, "first_token", latency(&m->first_token),
        "between_tokens", latency(&m->between_tokens), "queue", latency(&m->queued), "request",
        latency(&m->whole));
    km_send_json(x, 200, v);
}

/* Adapters (LoRA) of the models that are served: each is a model of its own to clients, by its name, and
 * requests can choose several with scales. All of them are opened with their model and run in the same
 * batch; a request without any gets the plain model. */
#include "serve/api/api.h"
#include "base/alloc.h"
#include "base/array.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MOST_CHOSEN = 8, MOST_ADAPTERS = 32, LONGEST_NAME = 128 };

/* ---- --lora [MODEL/]NAME=PATH[:SCALE] ---- */

static km_served *model_named(km_serve *s, const char *name, size_t n) {
    for (int i = 0; i < s->n_served; i++)
        if (strlen(s->served[i]->name) == n && strncasecmp(s->served[i]->name, name, n) == 0)
            return s->served[i];
    return NULL;
}

static bool name_is_taken(const km_serve *s, const char *name) {
    for (int i = 0; i < s->n_served; i++)
        if (strcasecmp(s->served[i]->name, name) == 0 ||
            km_served_adapter(s->served[i], name, strlen(name)) >= 0)
            return true;
    return false;
}

/* A number behind the last colon is the scale; a colon may be part of the path, too. */
static char *split_scale(const char *text, double *scale) {
    char *path = km_strdup(text), *colon = path ? strrchr(path, ':') : NULL, *end = NULL;
    *scale = 1;
    if (!colon || !colon[1]) return path;
    double v = strtod(colon + 1, &end);
    if (*end) return path;
    *scale = v;
    *colon = '\0';
    return path;
}

static km_status add(km_serve *s, const char *given, km_error *err) {
    const char *equals = strchr(given, '='), *name = given;
    size_t n = equals ? (size_t)(equals - given) : 0;
    const char *slash = n ? memchr(given, '/', n) : NULL;
    km_served *m = s->n_served == 1 ? s->served[0] : NULL;
    if (slash) {
        m = model_named(s, given, (size_t)(slash - given));
        if (!m) return km_error_set(err, KM_ERR_RANGE, "--lora %.80s: no such model", given);
        name = slash + 1;
        n = (size_t)(equals - name);
    }
    if (n == 0 || n >= LONGEST_NAME || !equals[1])
        return km_error_set(err, KM_ERR_RANGE, "--lora %.80s: give NAME=PATH", given);
    if (!m)
        return km_error_set(err, KM_ERR_RANGE,
                            "--lora %.80s: of which model? There are several: give MODEL/NAME=PATH",
                            given);
    for (size_t i = 0; i < n; i++)
        if (iscntrl((unsigned char)name[i]))
            return km_error_set(err, KM_ERR_RANGE, "--lora %.80s: this is no name", given);
    km_adapter a = {.off = true};
    char *own = km_alloc(n + 1), *path = split_scale(equals + 1, &a.scale);
    if (own) memcpy(own, name, n), own[n] = '\0';
    if (!own || !path || !km_array_reserve(&m->adapters, &m->cap_adapters, m->n_adapters + 1))
        km_no_memory(err);
    else if (!isfinite(a.scale) || fabs(a.scale) > 1e6 || a.scale == 0)
        km_error_set(err, KM_ERR_RANGE, "--lora %.80s: a scale is a number other than 0, up to 1e6",
                     given);
    else if (name_is_taken(s, own))
        km_error_set(err, KM_ERR_STATE, "two models or adapters are called '%s'", own);
    else if (m->n_adapters == MOST_ADAPTERS)
        km_error_set(err, KM_ERR_RANGE, "a model has up to %d adapters", MOST_ADAPTERS);
    else if (access(path, R_OK) != 0)
        km_error_set(err, KM_ERR_FILE, "cannot read the adapter '%.200s': %s", path,
                     strerror(errno));
    if (err->code != KM_OK) {
        km_free(own);
        km_free(path);
        return err->code;
    }
    a.name = own;
    a.path = path;
    m->adapters[m->n_adapters++] = a;
    s->n_adapters++;
    return KM_OK;
}

km_status km_adapters_served(km_serve *s, km_error *err) {
    for (int i = 0; i < s->o.n_loras; i++)
        if (add(s, s->o.loras[i], err) != KM_OK) return err->code;
    return KM_OK;
}

void km_adapters_forget(km_served *m) {
    for (size_t i = 0; i < m->n_adapters; i++) {
        km_free((void *)(uintptr_t)m->adapters[i].name);
        km_free((void *)(uintptr_t)m->adapters[i].path);
    }
    km_free(m->adapters);
    m->adapters = NULL;
    m->n_adapters = m->cap_adapters = 0;
}

int km_served_adapter(const km_served *m, const char *name, size_t n) {
    for (size_t i = 0; i < m->n_adapters; i++)
        if (strlen(m->adapters[i].name) == n && strncasecmp(m->adapters[i].name, name, n) == 0)
            return (int)i;
    return -1;
}

/* ---- Choosing, by a worker ---- */

static km_status put(km_api_call *c, int i, double scale) {
    const km_adapter *a = &c->served->adapters[i];
    int n = (int)c->how.n_adapters, at = n;
    for (int k = 0; k < n; k++)
        if (c->adapters[k].name == a->name)
            return km_call_refuse(c, 400, "adapters", "the adapter '%.80s' is chosen twice",
                                  a->name);
    if (n == MOST_CHOSEN)
        return km_call_refuse(c, 400, "adapters", "at most %d adapters at once", MOST_CHOSEN);
    /* In the order of the model's own list, so that equal sets look equal. */
    while (at > 0 && km_served_adapter(c->served, c->adapters[at - 1].name,
                                       strlen(c->adapters[at - 1].name)) > i) {
        c->adapters[at] = c->adapters[at - 1];
        at--;
    }
    c->adapters[at] = (km_adapter){.name = a->name, .scale = scale};
    c->how.n_adapters = n + 1;
    return KM_OK;
}

/* A name; {"name": ..., "scale": ...}; or llama.cpp's {"id": ..., "scale": ...}. */
static km_status put_one(km_api_call *c, const json_t *v) {
    const json_t *name = json_is_object(v) ? json_object_get(v, "name") : v,
                 *id = json_object_get(v, "id"), *scale = json_object_get(v, "scale");
    json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
    int i = -1;
    if (json_is_string(name))
        i = km_served_adapter(c->served, json_string_value(name), json_string_length(name));
    else if (number >= 0 && number < (json_int_t)c->served->n_adapters)
        i = (int)number;
    else if (!json_is_integer(id))
        return km_call_refuse(c, 400, "adapters",
                              "'adapters' is a list of names, or of objects with name and scale");
    if (i < 0)
        return km_call_refuse(
            c, 400, "adapters", "the model '%.80s' has no adapter '%.80s'; /v1/models lists them",
            c->served->name, json_is_string(name) ? json_string_value(name) : "of this number");
    double by =
        scale && !json_is_null(scale) ? json_number_value(scale) : c->served->adapters[i].scale;
    if ((scale && !json_is_null(scale) && !json_is_number(scale)) || !(fabs(by) <= 1e6))
        return km_call_refuse(c, 400, "adapters", "'scale' is a number from -1e6 to 1e6");
    return (float)by == 0 ? KM_OK : put(c, i, by); /* none of it: left out */
}

static bool allowed(const km_api_call *c, const char *name) {
    return km_key_may_use(c->key.number ? &c->key : NULL, name);
}

static km_status check_key(km_api_call *c) {
    if (c->how.n_adapters <= 0 && !allowed(c, c->served->name))
        return km_call_refuse(c, 403, "model", "this key may not use the model '%.100s'",
                              c->served->name);
    for (int64_t i = 0; i < c->how.n_adapters; i++)
        if (!allowed(c, c->adapters[i].name))
            return km_call_refuse(c, 403, "adapters", "this key may not use the adapter '%.100s'",
                                  c->adapters[i].name);
    return KM_OK;
}

/* Equal for equal sets, 0 for none. */
static uint64_t variant_of(const km_api_call *c) {
    uint64_t h = 0xcbf29ce484222325u;
    for (int64_t i = 0; i < c->how.n_adapters; i++) {
        float scale = (float)c->adapters[i].scale;
        uint32_t bits;
        memcpy(&bits, &scale, sizeof bits);
        for (const char *p = c->adapters[i].name; *p; p++)
            h = (h ^ (unsigned char)*p) * 0x100000001b3u;
        h = (h ^ 0x100 ^ (uint64_t)bits << 9) * 0x100000001b3u;
    }
    return c->how.n_adapters > 0 ? h | 1 : 0;
}

/* Ollama's clients write "name:latest", others the file's name. */
static bool means(const char *known, const char *name) {
    size_t n = strlen(known);
    return strncasecmp(known, name, n) == 0 &&
           (!name[n] || strcmp(name + n, ":latest") == 0 || strcmp(name + n, ".gguf") == 0);
}

km_status km_call_adapters(km_api_call *c) {
    const json_t *model = json_object_get(c->request, "model"),
                 *list = json_object_get(c->request, "adapters"), *one;
    const km_served *m = c->served;
    size_t i;
    if (!model) model = json_object_get(c->request, "name");
    if (!list || json_is_null(list)) list = json_object_get(c->request, "lora");
    if (json_is_null(list)) list = NULL;
    c->how.adapters = c->adapters;
    c->how.n_adapters = 0;
    const char *name = json_is_string(model) ? json_string_value(model) : "";
    size_t n = strlen(name);
    int named = km_served_adapter(m, name, n);
    if (named < 0 && n > 7 && strcmp(name + n - 7, ":latest") == 0)
        named = km_served_adapter(m, name, n - 7);
    if (named >= 0) c->model_name = m->adapters[named].name;
    /* Of a model alone with its adapters a wrong name would get the plain one unnoticed. */
    if (named < 0 && *name && !means(m->name, name))
        return km_call_refuse(c, 404, "model",
                              "there is no model '%.100s' here; /v1/models lists them", name);
    if (list && !json_is_array(list) && !json_is_string(list))
        return km_call_refuse(c, 400, "adapters", "'adapters' is a list of names");
    if (json_is_string(list) && put_one(c, list) != KM_OK) return KM_ERR_RANGE;
    json_array_foreach(list, i, one) {
        if (put_one(c, one) != KM_OK) return KM_ERR_RANGE;
    }
    if (!list && named >= 0 && put(c, named, m->adapters[named].scale) != KM_OK)
        return KM_ERR_RANGE;
    c->variant = variant_of(c);
    return check_key(c);
}

const char *km_call_model(const km_api_call *c) {
    return c->model_name ? c->model_name : c->served->name;
}

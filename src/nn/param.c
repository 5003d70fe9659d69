/* Lists of named parameters, and patterns over their names. */
#include "nn/param.h"
#include "base/alloc.h"
#include "base/array.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool make_room(km_ctx *ctx, km_param_list *list) {
    if (km_array_reserve(&list->at, &list->cap, list->n + 1)) return true;
    km_fail(ctx, KM_ERR_MEMORY, "parameters: out of memory");
    return false;
}

km_tensor *km_param_add(km_ctx *ctx, km_param_list *list, km_dtype dtype, km_shape shape,
                        bool decay, const char *name, ...) {
    KM_CTX_CALL(ctx, NULL);
    char text[256] = "";
    va_list ap;
    va_start(ap, name);
    int length = name ? vsnprintf(text, sizeof text, name, ap) : 0;
    va_end(ap);
    if (length < 0 || length >= (int)sizeof text) *text = 0; /* no name that could be kept */
    if (km_failed(ctx)) return NULL;
    if (!list || *text == 0) {
        km_fail(ctx, list ? KM_ERR_RANGE : KM_ERR_NULL, "param_add: no %s", list ? "name" : "list");
        return NULL;
    }
    if (list->users || km_param_find(list, text)) {
        km_fail(ctx, KM_ERR_STATE,
                list->users ? "param_add: '%.100s' comes too late: an optimiser has the list"
                            : "param_add: there is a parameter '%.100s' already",
                text);
        return NULL;
    }
    if (!make_room(ctx, list)) return NULL;
    km_scope_begin(ctx);
    km_tensor *t = km_keep(ctx, km_zeros(ctx, dtype, shape));
    km_scope_end(ctx, NULL);
    char *own = km_strdup(text);
    if (!t || !own) {
        km_release(t);
        km_free(own);
        km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", text); /* the first error stays */
        return NULL;
    }
    list->at[list->n++] = (km_param){.name = own, .t = t, .decay = decay};
    km_require_grad(ctx, t, true);
    return t;
}

km_tensor *km_param_adopt(km_ctx *ctx, km_param_list *list, km_tensor *t, const char *name) {
    char *own = t && !km_failed(ctx) && make_room(ctx, list) ? km_strdup(name) : NULL;
    if (!own) {
        km_release(t);
        if (!km_failed(ctx)) km_fail(ctx, KM_ERR_MEMORY, "%s: out of memory", name);
        return NULL;
    }
    list->at[list->n++] = (km_param){.name = own, .t = t, .frozen = true};
    return t;
}

km_param *km_param_find(const km_param_list *list, const char *name) {
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->at[i].name, name) == 0) return &list->at[i];
    return NULL;
}

void km_param_clear(km_param_list *list) {
    for (int i = 0; i < list->n; i++) {
        km_release(list->at[i].t);
        km_free(list->at[i].name);
    }
    km_free(list->at);
    *list = (km_param_list){0};
}

/* One pattern, `bytes` long. On a mismatch after a '*', that star takes one character more. */
static bool fits(const char *pattern, size_t bytes, const char *name) {
    size_t p = 0, star = bytes, n = 0, retry = 0;
    while (name[n]) {
        if (p < bytes && pattern[p] == '*') {
            star = p++;
            retry = n;
        } else if (p < bytes && (pattern[p] == '?' || pattern[p] == name[n])) {
            p++, n++;
        } else if (star < bytes) {
            p = star + 1;
            n = ++retry;
        } else {
            return false;
        }
    }
    while (p < bytes && pattern[p] == '*') p++;
    return p == bytes;
}

bool km_name_matches(const char *pattern, const char *name) {
    while (*pattern) {
        size_t bytes = strcspn(pattern, ",");
        if (bytes && fits(pattern, bytes, name)) return true;
        pattern += bytes + (pattern[bytes] == ',');
    }
    return false;
}

int km_param_freeze(km_ctx *ctx, km_param_list *list, const char *pattern, bool frozen) {
    KM_CTX_CALL(ctx, -1);
    int n = 0;
    if (km_failed(ctx)) return -1;
    if (!list || !pattern || list->users) {
        km_fail(ctx, list && pattern ? KM_ERR_STATE : KM_ERR_NULL,
                list && pattern ? "param_freeze: an optimiser has the list"
                                : "param_freeze: an argument is missing");
        return -1;
    }
    for (int i = 0; i < list->n; i++) {
        km_param *p = &list->at[i];
        if (!km_name_matches(pattern, p->name)) continue;
        n++;
        p->frozen = frozen;
        if (frozen) km_zero_grad(ctx, &p->t, 1);
        km_require_grad(ctx, p->t, !frozen);
    }
    return n;
}

int64_t km_param_elements(const km_param_list *list, bool trainable_only) {
    int64_t n = 0;
    for (int i = 0; i < list->n; i++)
        if (!trainable_only || !list->at[i].frozen) n += km_shape_count(list->at[i].t->shape);
    return n;
}

/* ---- Lists of the user's own ---- */

km_param_list *km_param_list_new(void) {
    km_param_list *list = km_calloc(1, sizeof *list);
    km_error err = {0};
    if (list) return list;
    km_error_set(&err, KM_ERR_MEMORY, "out of memory for a list of parameters");
    km_last_error_set(&err);
    return NULL;
}

void km_param_list_free(km_param_list *list) {
    if (!list) return;
    km_ctx *ctx = list->n ? list->at[0].t->ctx : NULL;
    KM_INSIDE(in);
    if (km_try_enter(&in, ctx, KM_HANDLE_CONTEXT) == KM_ENTRY_BUSY) {
        km_public_fail(KM_ERR_STATE, "param_list: another thread is using its context");
        return;
    }
    list->doomed = true;
    if (list->users) return;
    km_param_clear(list);
    km_free(list);
}

void km_param_list_use(km_param_list *list) { list->users++; }

void km_param_list_unuse(km_param_list *list) {
    list->users--;
    if (list->doomed) km_param_list_free(list);
}

int km_param_count(const km_param_list *list) { return list ? list->n : 0; }

km_tensor *km_param_at(const km_param_list *list, int i) {
    return list && i >= 0 && i < list->n ? list->at[i].t : NULL;
}

const char *km_param_name(const km_param_list *list, int i) {
    return list && i >= 0 && i < list->n ? list->at[i].name : NULL;
}

km_tensor *km_param_named(const km_param_list *list, const char *name) {
    const km_param *p = list && name ? km_param_find(list, name) : NULL;
    return p ? p->t : NULL;
}

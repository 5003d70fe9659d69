/* PCRE2, with limits so that a hostile pattern ends in an error and not in a hung program. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "token/pattern.h"
#include "base/alloc.h"
#include "base/shown.h"
#include "token/scan.h"
#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

#define LONGEST_PATTERN 65536
#define MATCH_LIMIT 4000000u /* steps of one match, interpreted or compiled */
#define JIT_STACK ((size_t)1 << 20)

struct km_pattern {
    pcre2_code *code;
    bool jit;
    char *source;
    km_scan_fn scan; /* the same by hand, for the patterns that everybody uses; NULL: none */
};

struct km_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static km_pattern *make(const char *source, size_t n, uint32_t options, km_error *err) {
    km_pattern *p = km_calloc(1, sizeof *p);
    if (!p) {
        km_no_memory_for(err, "a pattern");
        return NULL;
    }
    int code;
    PCRE2_SIZE at;
    p->code = n <= LONGEST_PATTERN
                  ? pcre2_compile((PCRE2_SPTR)source, n, PCRE2_UTF | options, &code, &at, NULL)
                  : NULL;
    if (!p->code) {
        char shown[KM_SHOWN], why[120] = "it is too long";
        if (n <= LONGEST_PATTERN) pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        km_error_set(err, KM_ERR_FORMAT, "pattern '%s' cannot be used: %s",
                     km_shown_bytes(shown, source, n), why);
        km_free(p);
        return NULL;
    }
    p->source = km_alloc(n + 1);
    if (!p->source) {
        km_pattern_free(p);
        km_no_memory_for(err, "a pattern");
        return NULL;
    }
    memcpy(p->source, source, n);
    p->source[n] = 0;
    p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
    p->scan = options & PCRE2_LITERAL ? NULL : km_scan_for(source, n);
    return p;
}

km_pattern *km_pattern_new(const char *source, size_t n, km_error *err) {
    return make(source, n, PCRE2_UCP, err);
}

km_pattern *km_pattern_literal(const char *text, size_t n, km_error *err) {
    return make(text, n, PCRE2_LITERAL, err);
}

const char *km_pattern_source(const km_pattern *p) {
    return p->scan == km_scan_gpt2 ? KM_PATTERN_GPT2 : p->source;
}

void km_pattern_free(km_pattern *p) {
    if (!p) return;
    pcre2_code_free(p->code);
    km_free(p->source);
    km_free(p);
}

km_matcher *km_matcher_new(km_error *err) {
    km_matcher *m = km_calloc(1, sizeof *m);
    if (!m) goto fail;
    m->data = pcre2_match_data_create(16, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) goto fail;
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    m->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK, NULL); /* NULL: a small one serves */
    if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m;
fail:
    km_matcher_free(m);
    km_no_memory_for(err, "matching");
    return NULL;
}

void km_matcher_free(km_matcher *m) {
    if (!m) return;
    pcre2_jit_stack_free(m->stack);
    pcre2_match_context_free(m->context);
    pcre2_match_data_free(m->data);
    km_free(m);
}

int km_pattern_find(const km_pattern *p, km_matcher *m, const char *text, size_t n, size_t from,
                    size_t *begin, size_t *end, km_error *err) {
    if (p->scan) {
        *begin = from;
        *end = from < n ? p->scan(text, n, from) : from;
        return from < n;
    }
    int rc = p->jit ? pcre2_jit_match(p->code, (PCRE2_SPTR)text, n, from, 0, m->data, m->context)
                    : pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, m->data,
                                  m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter takes its stack from the heap */
        rc = pcre2_match(p->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->data, m->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        char why[120] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        km_error_set(err, KM_ERR_UNSUPPORTED, "splitting the text by its pattern failed: %s", why);
        return -1;
    }
    const PCRE2_SIZE *where = pcre2_get_ovector_pointer(m->data);
    *begin = where[0];
    *end = where[1] < where[0] ? where[0] : where[1];
    return 1;
}

/* What every part of the web interface needs: errors, settings, and the calls into JavaScript. */
#include "web.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EM_JS(int, web_read, (int handle, double offset, void *to, int n),
      { return Module.kermes.read(handle, offset, to >>> 0, n); });
EM_JS(int, web_tell, (const char *json), { return Module.kermes.tell(UTF8ToString(json >>> 0)); });

static char why[400]; /* of a failure in this layer; "": the library's */

void web_fail(const char *text) { snprintf(why, sizeof why, "%s", text); }

WEB const char *web_error(void) { return why[0] ? why : km_last_error(); }
WEB void web_clear_error(void) { why[0] = 0; }
WEB void *web_alloc(double bytes) {
    return bytes >= 0 && bytes < PTRDIFF_MAX ? malloc((size_t)bytes + 1) : NULL;
}
WEB void web_free(void *p) { free(p); }
WEB const char *web_version(void) { return km_version(); }

json_t *web_settings(const char *json) {
    json_error_t e;
    json_t *v = json_loads(json, 0, &e);
    if (json_is_object(v)) return v;
    json_decref(v);
    web_fail("the settings are no JSON object");
    return NULL;
}

double web_number(const json_t *settings, const char *name, double otherwise) {
    const json_t *v = json_object_get(settings, name);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

const char *web_text(const json_t *settings, const char *name) {
    return json_string_value(json_object_get(settings, name));
}

char *web_dump(json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
    if (!text) web_fail("out of memory");
    return text;
}

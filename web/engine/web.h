/* The engine behind a flat interface that JavaScript calls: numbers and texts go in, numbers and texts
 * come out. It stands on kermes.h alone. Texts that a call returns are the caller's (web_free); NULL, 0
 * or a negative number means failure, and web_error says why. */
#ifndef KM_WEB_H
#define KM_WEB_H
#include "kermes.h"
#include <emscripten.h>
#include <jansson.h>

#define WEB EMSCRIPTEN_KEEPALIVE

/* ---- What JavaScript offers (engine.js) ---- */

/* n bytes of the file `handle` from `offset` on, to `to`; 0: done. */
int web_read(int handle, double offset, void *to, int n);
/* A long job tells where it is, as JSON; 0: it is to stop. */
int web_tell(const char *json);

/* ---- Settings ---- */

/* A JSON object's text as a value; NULL with the error set where it is none. */
json_t *web_settings(const char *json);
double web_number(const json_t *settings, const char *name, double otherwise);
const char *web_text(const json_t *settings, const char *name); /* NULL: none */
char *web_dump(json_t *value);                                  /* takes the reference */
void web_fail(const char *why);

#endif

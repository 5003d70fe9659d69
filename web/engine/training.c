/* Training for JavaScript, in slices: a call trains until JavaScript's clock says that it is enough, saves
 * a checkpoint and returns; the next one resumes, to the same bits as a run that was never stopped. So the
 * worker can hear messages in between, and what it has is never older than a slice. */
#include "web.h"
#include <math.h>
#include <stdlib.h>

typedef struct slice {
    bool stopping;
} slice;

static json_t *known(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    static const char *const names[] = {"prepare", "start", "step",   "log",
                                        "eval",    "save",  "sample", "note"};
    slice *now = user;
    json_t *o = json_pack("{s:s, s:I, s:I}", "event", names[e], "step", (json_int_t)s->step,
                          "steps", (json_int_t)s->steps);
    json_object_set_new(o, "train_loss", known(s->train_loss));
    json_object_set_new(o, "val_loss", known(s->val_loss));
    json_object_set_new(o, "tokens_per_s", known(s->tokens_per_s));
    json_object_set_new(o, "seconds", known(s->seconds));
    if (text) json_object_set_new(o, "text", json_string(text));
    char *told = web_dump(o);
    if (told && web_tell(told) == 0) now->stopping = true;
    free(told);
}

static bool stop(void *user) { return ((const slice *)user)->stopping; }

/* settings: as km_train_json takes them. The answer: {"end": "done" | "stopped" | "early", "step": ...}. */
WEB char *web_train(const char *settings) {
    static const char *const ends[] = {"done", "early", "stopped"};
    slice now = {0};
    km_train_hooks hooks = {.size = sizeof hooks, .event = on_event, .stop = stop, .user = &now};
    km_train_result r = {.size = sizeof r};
    if (km_train_json(settings, &hooks, &r) != KM_OK) return NULL;
    json_t *o =
        json_pack("{s:s, s:I, s:I, s:I}", "end", ends[r.end], "step", (json_int_t)r.status.step,
                  "steps", (json_int_t)r.status.steps, "parameters", (json_int_t)r.parameters);
    json_object_set_new(o, "val_loss", known(r.status.val_loss));
    json_object_set_new(o, "tokens_per_s", known(r.tokens_per_s));
    return web_dump(o);
}

/* A model in a folder of the module's file system, such as a run's. */
WEB km_model *web_model_open_folder(const char *path) {
    km_model_options o = km_model_defaults();
    o.device = "cpu";
    o.sequences = 1;
    return km_model_open(path, &o);
}

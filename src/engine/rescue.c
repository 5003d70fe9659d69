/* A device that fails: the model goes on on the CPU, with the file it came from, and whoever ran on
 * that device follows, each when it notices. */
#include "base/log.h"
#include "engine/engine.h"
#include <string.h>

bool km_ground_is(km_model *m, const km_ground *g) {
    pthread_mutex_lock(&m->lock);
    bool is = m->ground == g;
    pthread_mutex_unlock(&m->lock);
    return is;
}

static bool open_elsewhere(km_model *m, const km_ground *failed, const km_error *why) {
    km_error err = {0};
    km_ground *other = NULL;
    if (m->how.no_rescue || m->comm || failed->ctx->no_fallback ||
        strcmp(failed->devices, "cpu") == 0)
        return false; /* ranks cannot move alone */
    km_note(KM_LOG_WARN, "%s; going on with the CPU", why->text);
    if (km_place_on_cpu(m, &other, &err) != KM_OK ||
        km_adapters_again(m, other->net, &err) != KM_OK) {
        km_ground_drop(other);
        km_note(KM_LOG_WARN, "the CPU cannot go on either: %s", err.text);
        return false;
    }
    pthread_mutex_lock(&m->lock);
    km_ground *old = m->ground;
    m->ground = other;
    pthread_mutex_unlock(&m->lock);
    km_ground_drop(old);
    return true;
}

bool km_ground_failed(const km_error *why) {
    return why->code == KM_ERR_GPU || why->code == KM_ERR_MEMORY || why->code == KM_ERR_DEVICE ||
           why->code == KM_ERR_UNSUPPORTED;
}

bool km_ground_again(km_model *m, km_ground **g, km_error *err) {
    if (!km_ground_failed(err) || !km_ground_rescue(m, *g, err)) return false;
    km_ground_drop(*g);
    *g = km_ground_hold(m);
    *err = (km_error){0};
    return true;
}

bool km_ground_rescue(km_model *m, const km_ground *failed, const km_error *why) {
    int turn = km_gate_enter(&m->gate, 1);
    bool there = !km_ground_is(m, failed) || open_elsewhere(m, failed, why);
    km_gate_leave(&m->gate, turn);
    return there;
}

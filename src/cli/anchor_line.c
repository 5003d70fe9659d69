/* Options of the training of anchors, and its rounds. */
#include "cli/anchor_line.h"
#include "base/alloc.h"
#include "base/array.h"
#include "base/error.h"
#include "report/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool parse_robust(const char *name, km_robust *robust) {
    static const char *const names[] = {
        [KM_ROBUST_HUBER] = "huber", [KM_ROBUST_TRIMMED] = "trimmed", [KM_ROBUST_MEAN] = "mean"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) {
            *robust = (km_robust)i;
            return true;
        }
    return false;
}

/* "linear", which is 0, or "exponential:R". */
static bool parse_cooling(const char *name, double *rate) {
    static const char word[] = "exponential:";
    char *end = NULL;
    *rate = 0;
    if (strcmp(name, "linear") == 0) return true;
    if (strncmp(name, word, sizeof word - 1) != 0) return false;
    *rate = strtod(name + sizeof word - 1, &end);
    return end != name + sizeof word - 1 && !*end && *rate > 0 && *rate < 1;
}

bool km_anchor_parse(const km_anchor_line *line, km_anchor_training *out, km_error *err) {
    *out = (km_anchor_training){.size = sizeof(km_anchor_training),
                                .rounds = (int)line->rounds,
                                .temperature = line->temperature,
                                .momentum = line->momentum,
                                .maintain_every = (int)line->maintain_every,
                                .merge = line->merge,
                                .split = line->split,
                                .tolerance = line->tolerance > 0 ? line->tolerance : -1};
    if (!parse_robust(line->robust, &out->robust))
        km_error_set(err, KM_ERR_RANGE, "--robust is huber, trimmed or mean, not '%.60s'",
                     line->robust);
    else if (!parse_cooling(line->cooling, &out->cooling))
        km_error_set(err, KM_ERR_RANGE,
                     "--cooling is linear or exponential:R with R between 0 and 1, not '%.60s'",
                     line->cooling);
    return err->code == KM_OK;
}

/* ---- Rounds ---- */

static void show_round(const km_round_log *log, const km_anchor_round *r) {
    if (log->bar) km_progress_hide(log->bar);
    if (log->n == 0)
        fprintf(stderr, "%5s  %11s  %11s  %9s  %10s  %6s  %5s  %7s\n", "round", "temperature",
                "energy", "change", "reassigned", "merged", "split", "anchors");
    fprintf(stderr, "%5d  %11.4g  %11.6g  %8.3f%%  %10lld  %6lld  %5lld  %7lld\n", r->round,
            r->temperature, r->energy, 100 * r->change, (long long)r->reassigned,
            (long long)r->merged, (long long)r->split, (long long)r->anchors);
    if (r->converged) fprintf(stderr, "converged after %d rounds\n", r->round);
}

void km_round_keep(void *user, const km_anchor_round *r) {
    km_round_log *log = user;
    if (log->lines) show_round(log, r);
    snprintf(log->note, sizeof log->note, "temperature %.2g, energy %.4g, %lld reassigned",
             r->temperature, r->energy, (long long)r->reassigned);
    if (log->bar) km_progress_step(log->bar, r->round, log->note);
    if (!km_array_reserve(&log->at, &log->room, log->n + 1))
        return; /* told less, trained all the same */
    log->at[log->n++] = *r;
}

void km_round_clear(km_round_log *log) { log->n = 0; }

json_t *km_round_json(const km_round_log *log) {
    json_t *all = json_array();
    for (int i = 0; i < log->n; i++) {
        const km_anchor_round *r = &log->at[i];
        json_array_append_new(
            all, json_pack("{s:i, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:b}", "round", r->round,
                           "temperature", km_json_number(r->temperature, 6), "energy",
                           km_json_number(r->energy, 9), "change", km_json_number(r->change, 6),
                           "reassigned", (json_int_t)r->reassigned, "merged", (json_int_t)r->merged,
                           "split", (json_int_t)r->split, "anchors", (json_int_t)r->anchors,
                           "converged", r->converged));
    }
    return all;
}

bool km_round_converged(const km_round_log *log) {
    return log->n > 0 && log->at[log->n - 1].converged;
}

void km_round_free(km_round_log *log) {
    km_free(log->at);
    *log = (km_round_log){0};
}

/* What the model writes while it learns: the same beginning and the same draws each time, so that
 * samples can be compared. */
#include "base/alloc.h"
#include "base/utf8.h"
#include "infer/generate.h"
#include "train/trainer.h"
#include <stdio.h>
#include <string.h>

static bool collect(void *user, int32_t id, const char *text, size_t bytes) {
    (void)id;
    km_text_put(user, text, bytes);
    return true;
}

/* The first line of the text, cut to some length at a character's border. */
static km_span first_line(const km_trainer *t) {
    const km_text_source *s = &t->sources[0];
    if (s->n_files == 0) return (km_span){"", 0}; /* a token file: the tokenizer's own beginning */
    const char *text = (const char *)s->files[0].text.data;
    size_t n = s->files[0].text.size < 60 ? s->files[0].text.size : 60;
    const char *end = memchr(text, '\n', n);
    if (end) n = (size_t)(end - text) + 1;
    while (n > 0 && n < s->files[0].text.size && km_utf8_continues(text[n])) n--;
    return (km_span){text, n};
}

/* Cuts the prompt to what the context holds: a given one at its front, since the sample goes on from
 * its end; the text's first line at its end. Says so the first time. */
static km_status fit(km_trainer *t, km_span *prompt) {
    size_t context = (size_t)t->model->config.context, had = 0;
    km_status s = KM_OK;
    for (;;) {
        km_ids ids = {0};
        s = km_prompt_ids(t->token, prompt->data, prompt->bytes, false, &ids, t->err);
        size_t n = ids.len;
        km_ids_free(&ids);
        if (s != KM_OK || n <= context || prompt->bytes == 0) break;
        if (!had) had = n;
        size_t keep = prompt->bytes * context / n; /* less than before, so that this ends */
        if (t->s->sample_prompt) {
            prompt->data += prompt->bytes - keep;
            for (; keep > 0 && km_utf8_continues(*prompt->data); keep--) prompt->data++;
        } else {
            while (keep > 0 && km_utf8_continues(prompt->data[keep])) keep--;
        }
        prompt->bytes = keep;
    }
    if (s != KM_OK || !had || t->prompt_told) return s;
    char note[160];
    snprintf(note, sizeof note,
             "samples begin with %s of their prompt: it has %zu tokens, and the context %zu",
             t->s->sample_prompt ? "the end" : "a part", had, context);
    km_trainer_tell(t, KM_TRAIN_NOTE, note);
    t->prompt_told = true;
    return KM_OK;
}

km_status km_trainer_sample(km_trainer *t) {
    km_text text = {0};
    km_generated made;
    const char *given = t->s->sample_prompt;
    km_span prompt = given ? (km_span){given, strlen(given)} : first_line(t);
    km_status s = fit(t, &prompt);
    if (s != KM_OK) return s;
    km_text_put(&text, prompt.data, prompt.bytes);
    km_making how = {.tokens = t->s->sample_tokens,
                     .past_end = true,
                     .shift = true,
                     .sampling = km_sampling_defaults(),
                     .on_text = collect,
                     .user = &text};
    how.sampling.temperature = t->s->sample_temperature;
    how.sampling.seed = (uint64_t)t->s->seed;
    t->model->train = false;
    s = km_make_text(t->ctx, t->model, t->token, prompt.data, prompt.bytes, &how, &made, t->err);
    t->model->train = true;
    if (s == KM_OK && !km_text_ok(&text))
        s = km_error_set(t->err, KM_ERR_MEMORY, "out of memory for a sample");
    if (s == KM_OK) km_trainer_tell(t, KM_TRAIN_SAMPLE, km_text_str(&text));
    km_text_free(&text);
    return s;
}

/* What the model writes while it learns: the same beginning and the same draws each time, so that
 * samples can be compared. */
#include "base/alloc.h"
#include "infer/generate.h"
#include "train/trainer.h"
#include <string.h>

static bool collect(void *user, int32_t id, const char *text, size_t bytes) {
    (void)id;
    km_text_put(user, text, bytes);
    return true;
}

/* The first line of the text, cut to some length at a character's border. */
static void first_line(const km_trainer *t, km_text *out) {
    const km_text_source *s = &t->sources[0];
    if (s->n_files == 0) return; /* a token file: the tokenizer's own beginning */
    const char *text = (const char *)s->files[0].text.data;
    size_t n = s->files[0].text.size < 60 ? s->files[0].text.size : 60;
    const char *end = memchr(text, '\n', n);
    if (end) n = (size_t)(end - text) + 1;
    while (n > 0 && n < s->files[0].text.size && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    km_text_put(out, text, n);
}

km_status km_trainer_sample(km_trainer *t) {
    km_text text = {0};
    km_generated made;
    if (t->s->sample_prompt)
        km_text_add(&text, t->s->sample_prompt);
    else
        first_line(t, &text);
    size_t prompt = text.len;
    char *copy = NULL;
    if (prompt && !(copy = km_strdup(km_text_str(&text))))
        return km_error_set(t->err, KM_ERR_MEMORY, "out of memory for a sample");
    km_making how = {.tokens = t->s->sample_tokens,
                     .past_end = true,
                     .shift = true,
                     .sampling = km_sampling_defaults(),
                     .on_text = collect,
                     .user = &text};
    how.sampling.temperature = t->s->sample_temperature;
    how.sampling.seed = (uint64_t)t->s->seed;
    t->model->train = false;
    km_status s =
        km_make_text(t->ctx, t->model, t->token, copy ? copy : "", prompt, &how, &made, t->err);
    t->model->train = true;
    if (s == KM_OK) km_trainer_tell(t, KM_TRAIN_SAMPLE, km_text_str(&text));
    km_free(copy);
    km_text_free(&text);
    return s;
}

/* Trains a language model on a small text for 20 steps, with a line for each evaluation. The folder that
 * comes out is a model like any other: kermes chat, km_model_open and Hugging Face's tools take it. */
#include <kermes.h>
#include <stdio.h>
#include <stdlib.h>

static void on_event(void *user, km_train_event e, const km_train_status *s, const char *text) {
    (void)user;
    if (e == KM_TRAIN_START) printf("%s\n", text);
    if (e == KM_TRAIN_EVAL)
        printf("step %d: loss %.3f, validation %.3f\n", (int)s->step, s->train_loss, s->val_loss);
    if (e == KM_TRAIN_SAMPLE) printf("it writes: %s\n", text);
}

int main(void) {
    char folder[] = "/tmp/kermes-example-XXXXXX", data[64], out[64];
    if (!mkdtemp(folder)) return 1;
    snprintf(data, sizeof data, "%s/text.txt", folder);
    snprintf(out, sizeof out, "%s/run", folder);
    km_train_demo_text(data, 1, 20000); /* or a text of your own */

    km_train_settings s = km_train_defaults();
    s.data.at[s.data.n++] = data;
    s.out = out;
    s.layers = 2;
    s.heads = 2;
    s.dim = 32;
    s.context = 64;
    s.steps = 20;
    s.warmup = 2;
    s.log_every = s.eval_every = 10;
    s.eval_batches = 2;
    s.sample_every = 20;
    s.sample_tokens = 30;
    km_train_hooks hooks = {.size = sizeof hooks, .event = on_event};
    km_train_result result = {.size = sizeof result};
    km_status status = km_train(&s, &hooks, &result);
    if (status == KM_OK)
        printf("%d parameters, loss %.3f, in %s/model\n", (int)result.parameters,
               result.status.train_loss, out);
    else
        printf("%s\n", km_last_error());
    char line[96];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    return status != KM_OK || system(line) != 0;
}

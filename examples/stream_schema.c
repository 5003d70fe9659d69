/* A text that a JSON schema holds to its form, shown as it is made, with how likely each token was:
 * stream_schema [MODEL]. Without a model the small one that comes with Kermes is used. */
#include <kermes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char schema[] = "{\"type\": \"object\", \"properties\": {"
                             "\"name\": {\"type\": \"string\", \"maxLength\": 12},"
                             "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 99}},"
                             "\"required\": [\"name\", \"age\"], \"additionalProperties\": false}";

int main(int argc, char **argv) {
    const char *source = getenv("SRC_DIR");
    char own[4096];
    snprintf(own, sizeof own, "%s/models/kermes-tiny.gguf", source ? source : ".");
    km_model *m = km_model_open(argc > 1 ? argv[1] : own, NULL);
    km_session *s = m ? km_session_new(m) : NULL;
    if (!s) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    km_generation how = km_generation_defaults(m);
    how.schema = schema;
    how.max_tokens = 200;
    how.logprobs = 0; /* of the chosen token, and of no others */
    double sum = 0;
    int tokens = 0, more = -1;
    km_piece_event e = {0};
    if (km_generate_begin(s, "A person, as JSON: ", 19, &how) == KM_OK)
        while ((more = km_generate_next(s, &e)) > 0) {
            fwrite(e.text, 1, e.bytes, stdout);
            fflush(stdout);
            if (e.id >= 0) sum += e.logprob, tokens++;
        }
    if (more < 0)
        fprintf(stderr, "%s\n", km_last_error());
    else
        printf("\n%d tokens, ended by %s; the model alone would have said this with e^%.1f\n",
               tokens, km_end_name(e.end), sum);
    km_session_free(s);
    km_model_close(m);
    return more < 0 || !isfinite(sum);
}

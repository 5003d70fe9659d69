/* A conversation with a model, typed line by line: chat MODEL. Without a model, or when nobody types,
 * the small one that comes with Kermes answers one question. */
#include <kermes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool show(void *user, const km_piece_event *e) {
    (void)user;
    fwrite(e->text, 1, e->bytes, stdout);
    fflush(stdout);
    return true;
}

/* The prompt so far, and a message more in ChatML, which this example writes by itself;
 * km_generate_chat renders a model's own template from JSON. */
static char *add(char *prompt, const char *role, const char *text) {
    size_t n = prompt ? strlen(prompt) : 0, room = n + strlen(text) + 64;
    prompt = realloc(prompt, room);
    if (prompt)
        snprintf(prompt + n, room - n, "<|im_start|>%s\n%s<|im_end|>\n<|im_start|>assistant\n",
                 role, text);
    return prompt;
}

int main(int argc, char **argv) {
    const char *source = getenv("SRC_DIR"), *path = argc > 1 ? argv[1] : NULL;
    char own[4096], line[4096];
    if (!path) {
        snprintf(own, sizeof own, "%s/models/kermes-tiny.gguf", source ? source : ".");
        path = own;
    }
    km_model *m = km_model_open(path, NULL);
    km_session *s = m ? km_session_new(m) : NULL;
    if (!s) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    km_generation how = km_generation_defaults(m);
    how.max_tokens = argc > 1 ? 512 : 16;
    how.on_token = show;
    how.rendered = true;
    char *prompt = NULL;
    bool failed = false;
    do {
        strcpy(line, "Why is the sky blue?");
        if (argc > 1 && (printf("> "), !fgets(line, sizeof line, stdin))) break;
        line[strcspn(line, "\n")] = 0;
        if (!(prompt = add(prompt, "user", line))) break;
        /* What the session holds of the prompt's beginning is not read again. */
        failed = km_generate(s, prompt, strlen(prompt), &how, NULL) != KM_OK;
        puts(failed ? km_last_error() : "");
    } while (argc > 1 && !failed);
    free(prompt);
    km_session_free(s);
    km_model_close(m);
    return failed;
}

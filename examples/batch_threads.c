/* Several threads ask, one answers them all together: each question is a sequence of one batch, and a
 * step makes a token of every answer. batch_threads [MODEL] */
#include <kermes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ASKERS = 4, TOKENS = 12 };

static const char *const questions[ASKERS] = {"The sea is", "Once upon a time", "My dog", "Today"};

typedef struct asker {
    km_model *m;
    km_batch *b;
    int which, sequence; /* sequence -1: it could not start */
    char answer[1024];
} asker;

/* Joins and starts; what comes is collected by the thread that steps. */
static void *ask(void *user) {
    asker *a = user;
    int32_t ids[64];
    const char *text = questions[a->which];
    km_generation how = km_generation_defaults(a->m);
    how.max_tokens = TOKENS;
    how.sampling.seed = (uint64_t)a->which + 1;
    int64_t n = km_tokenize(a->m, text, strlen(text), KM_TOKENS_ADD_SPECIAL, ids, 64);
    a->sequence = n > 0 ? km_batch_join(a->b) : -1;
    if (a->sequence >= 0 && km_batch_start(a->b, a->sequence, ids, (size_t)n, &how) != KM_OK)
        a->sequence = -1;
    if (a->sequence < 0) fprintf(stderr, "%s: %s\n", text, km_last_error());
    return NULL;
}

int main(int argc, char **argv) {
    const char *source = getenv("SRC_DIR");
    char own[4096];
    snprintf(own, sizeof own, "%s/models/kermes-tiny.gguf", source ? source : ".");
    km_model *m = km_model_open(argc > 1 ? argv[1] : own, NULL);
    km_batch *b = m ? km_batch_new(m, NULL) : NULL;
    if (!b) {
        fprintf(stderr, "%s\n", km_last_error());
        return 1;
    }
    asker a[ASKERS] = {{0}};
    pthread_t thread[ASKERS];
    for (int i = 0; i < ASKERS; i++) {
        a[i] = (asker){.m = m, .b = b, .which = i};
        pthread_create(&thread[i], NULL, ask, &a[i]);
    }
    for (int i = 0; i < ASKERS; i++) pthread_join(thread[i], NULL); /* they may also go on asking */
    km_piece_event e[ASKERS];
    int steps = 0, failed = 0;
    for (int n; (n = km_batch_step(b, e, ASKERS)) > 0; steps++)
        for (int i = 0; i < n; i++)
            for (int k = 0; k < ASKERS; k++)
                if (e[i].sequence == a[k].sequence)
                    strncat(a[k].answer, e[i].text, sizeof a[k].answer - strlen(a[k].answer) - 1);
    for (int i = 0; i < ASKERS; i++) {
        printf("%s|%s\n", questions[i], a[i].answer);
        failed |= a[i].sequence < 0;
    }
    printf("%d answers in %d steps\n", ASKERS, steps);
    km_batch_free(b);
    km_model_close(m);
    return failed;
}

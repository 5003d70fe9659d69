/* Two ranks, one model: each holds a share of every layer, and what comes out is what the whole model
 * gives, for every architecture and type, in prompts, single tokens, batches, forks and guesses. Rank
 * 0 leads and compares, rank 1 follows; a difference ends both at once. On a GPU (one will do):
 * KM_TEST_DEVICE=cuda build/release/tests/test_infer_shares */
#include "format/safetensors.h"
#include "infer/follow.h"
#include "infer/generate.h"
#include "infer/perplexity.h"
#include "model/arch.h"
#include "model/open.h"
#include "support/engine.h"
#include "support/fixture.h"
#include "support/random_model.h"
#include "support/ranks.h"
#include "support/sanitized.h"
#include <math.h>

static km_ctx *ctx;
static km_comm *comm;
static int rank;
static bool gpu; /* ctx is a GPU's */
static char file[] = "/tmp/kermes-shares-XXXXXX.gguf";

/* A rank that fails must not leave the other waiting: mpirun ends it. */
#define must(what, ...)                                                                            \
    do {                                                                                           \
        if (what) break;                                                                           \
        fprintf(stderr, "%s:%d: rank %d: ", __FILE__, __LINE__, rank);                             \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        _exit(1);                                                                                  \
    } while (0)

static km_net *opened(const char *path, km_comm *c) {
    km_error err = {0};
    km_net *m = km_net_open(ctx, path, &(km_open_options){.comm = c}, &err);
    must(m, "%s", err.text);
    return m;
}

/* Opens the file on all ranks and runs `lead` on rank 0, with the whole model beside it. */
static void together(const char *path, void (*lead)(km_net *shared, km_net *whole, void *user),
                     void *user) {
    km_error err = {0};
    km_net *shared = opened(path, comm);
    must(shared->comm == comm && shared->share.ranks == 2, "the model is not shared");
    if (rank != 0) {
        must(km_follow(shared, &err) == KM_OK, "%s", err.text);
    } else {
        km_net *whole = opened(path, NULL);
        lead(shared, whole, user);
        km_net_free(whole);
        km_lead_dismiss(shared);
    }
    km_net_free(shared);
    must(!km_failed(ctx), "%s", km_ctx_error(ctx));
}

static km_sequence *session_of(km_net *m, km_dtype cache, int64_t sequences) {
    km_sequences_options o = km_sequences_defaults();
    km_error err = {0};
    o.cache = cache;
    o.sequences = sequences;
    km_sequence *s = km_sequence_open(ctx, m, &o, &err);
    must(s, "%s", err.text);
    return s;
}

/* Over a cache a GPU multiplies heads of 8 elements and more in f16 (others, and all heads of a text
 * read without a cache, in f32). A sum over ranks is taken in another order, so what is rounded to f16
 * may fall to the other side, by 2^-10 of itself at most: once for values and once for weights of the
 * softmax, and for queries and keys twice as much as scores are large, which is about 1 here. So a
 * layer may add 4 / 1024 of its size; in truth few elements fall to the other side. */
static double heads_in_f16(const km_net *m) {
    return gpu && m->config.head_dim % 8 == 0 ? m->config.layers * 4 / 1024.0 : 0;
}

static void near(const km_net *m, const char *what, const float *got, const float *want, int64_t n,
                 double bound) {
    double apart = logits_apart(got, want, n);
    bound += heads_in_f16(m);
    must(apart <= bound, "%s: logits are %.3g apart, and may be %.3g", what, apart, bound);
}

/* ---- Against transformers ---- */

static void compare_with_fixture(km_net *shared, km_net *whole, void *user) {
    const char *name = user;
    km_error err = {0};
    km_safetensors *f = km_safetensors_open(fixture(name, ".safetensors"), &err);
    must(f, "%s", err.text);
    const int32_t *ids = km_safetensors_find(f, "ids")->data;
    const km_st_tensor *logits = km_safetensors_find(f, "logits");
    int64_t t = logits->shape.dim[1], v = logits->shape.dim[2];
    km_sequence *s = session_of(shared, KM_F32, 1);
    must(v == whole->config.vocab && shared->config.heads < whole->config.heads, "no share");
    for (int64_t at = 0, n = 5; at < t; at += n, n = at == 5 ? 6 : 1) { /* 5, 6, then one by one */
        must(km_sequence_read(s, ids + at, (size_t)n, &err) == KM_OK, "%s", err.text);
        near(whole, name, km_sequence_logits(s), (const float *)logits->data + (at + n - 1) * v, v,
             2e-5);
    }
    km_sequence_free(s);
    km_safetensors_close(f);
}

static void every_architecture_gives_the_logits_of_transformers(void **state) {
    static const char *const names[] = {"llama3", "linear", "mistral", "qwen2", "yarn",
                                        "qwen3",  "gemma2", "gemma3",  "phi3"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "archs/%s", names[i]);
        together(fixture(name, ".gguf"), compare_with_fixture, name);
    }
}

/* ---- Against the whole model ---- */

enum { VOCAB = 301, CONTEXT = 256, PROMPT = 70 };

static km_config config_of(km_arch arch) {
    const km_traits *t = km_arch_traits(arch);
    bool gpt2 = arch == KM_ARCH_GPT2;
    km_config c = {.arch = arch,
                   .layers = 2,
                   .heads = gpt2 ? 4 : 6,
                   .kv_heads = gpt2 ? 4 : 3, /* two for one rank, one for the other */
                   .head_dim = gpt2 ? 0 : 32,
                   .dim = 128,
                   .hidden = 320,
                   .context = CONTEXT,
                   .vocab = VOCAB,
                   .bias = gpt2,
                   .rope_base = t->rope_base,
                   .local_rope_base = t->local_rope_base,
                   .attn_softcap = t->attn_softcap,
                   .logit_softcap = t->logit_softcap,
                   .tied = arch != KM_ARCH_QWEN2 && arch != KM_ARCH_PHI3};
    if (t->full_every) c.window = 40, c.full_every = 2;
    return random_config(c);
}

/* Rank 0 writes, the other waits for it. */
static void write_model(const km_config *c, const char *mix) {
    km_error err = {0};
    if (rank == 0)
        must(km_synthetic_write(file, c, km_mix_find(mix), 5, NULL, NULL, &err) == KM_OK, "%s",
             err.text);
    must(km_comm_barrier(comm, &err) == KM_OK, "%s", err.text);
}

/* A prompt longer than a page, tokens one by one, a fork, back again and on. */
static void talk(km_net *m, float out[4][VOCAB]) {
    km_error err = {0};
    int32_t ids[CONTEXT];
    random_ids(ids, CONTEXT, VOCAB);
    km_sequence *s = session_of(m, KM_F32, 2);
#define SAY(call) must((call) == KM_OK, "%s", err.text)
#define KEEP(i, from) memcpy(out[i], km_sequence_logits(from), sizeof out[i])
    SAY(km_sequence_read(s, ids, PROMPT, &err));
    KEEP(0, s);
    for (int i = PROMPT; i < PROMPT + 6; i++) SAY(km_sequence_next(s, ids[i], &err));
    KEEP(1, s);
    km_sequence *fork = km_sequence_fork(s, &err);
    must(fork, "%s", err.text);
    SAY(km_sequence_next(fork, 7, &err));
    KEEP(2, fork);
    km_sequence_free(fork);
    km_sequence_rewind(s, PROMPT - 3);
    SAY(km_sequence_read(s, ids + PROMPT, 12, &err));
    KEEP(3, s);
    km_sequence_free(s);
}

typedef struct trial {
    const char *name;
    double bound;
} trial;

static void compare_talks(km_net *shared, km_net *whole, void *user) {
    static float a[4][VOCAB], b[4][VOCAB];
    const trial *t = user;
    talk(whole, a);
    talk(shared, b);
    for (int i = 0; i < 4; i++) near(whole, t->name, b[i], a[i], VOCAB, t->bound);
}

static void shares_add_up_to_the_whole_for_every_architecture(void **state) {
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch++) {
        km_config c = config_of((km_arch)arch);
        trial t = {km_arch_name((km_arch)arch), 2e-5};
        write_model(&c, "f32");
        together(file, compare_talks, &t);
    }
}

/* Activations are rounded to 8 bits before products with blocks, so a sum taken in another order
 * shows; a share that is not the right one gives quite other logits. */
static void shares_of_every_type_add_up_to_the_whole(void **state) {
    static const char *const mixes[] = {"f16",    "bf16",   "q8_0",   "q4_0", "q4_1",
                                        "q5_0",   "q5_1",   "q6_k",   "q5_k", "q4_k_m",
                                        "q3_k_m", "iq4_nl", "iq4_xs", "q2_k"};
    (void)state;
    km_config c = config_of(KM_ARCH_LLAMA), joined = config_of(KM_ARCH_PHI3);
    c.heads = 16, c.kv_heads = 4, c.head_dim = 64; /* a group is one block of 256 */
    c.dim = joined.dim = 256;
    c.hidden = joined.hidden = 768; /* two blocks for one rank, one for the other */
    joined.heads = 8, joined.kv_heads = 2, joined.head_dim = 64;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i += SANITIZED ? 4 : 1) {
        trial t = {mixes[i], i < 2 ? 1e-4 : 0.04};
        write_model(i % 3 == 1 ? &joined : &c, mixes[i]);
        together(file, compare_talks, &t);
    }
}

/* Nobody leads here: all ranks read the same text at once, without a cache. */
static void a_text_is_as_likely_as_for_the_whole_model(void **state) {
    (void)state;
    int32_t list[100];
    random_ids(list, 100, VOCAB);
    km_ids ids = {.data = list, .len = 100};
    km_windows how = {.context = 64, .bos = -1};
    for (int arch = 0; arch < KM_ARCH_COUNT; arch += SANITIZED ? 3 : 1) {
        km_config c = config_of((km_arch)arch);
        km_window_loss loss[2];
        write_model(&c, "f32");
        for (int shared = 0; shared < 2; shared++) {
            km_error err = {0};
            km_net *m = opened(file, shared ? comm : NULL);
            SAY(km_windows_loss(ctx, m, &ids, &how, &loss[shared], &err));
            km_net_free(m);
        }
        must(fabs(loss[0].loss - loss[1].loss) < 1e-5, "%s: %.6f, not %.6f",
             km_arch_name((km_arch)arch), loss[1].loss, loss[0].loss);
        km_comm_barrier(comm, NULL); /* before the file is written anew */
    }
}

/* ---- Choosing ---- */

/* Tokens are the same where logits are as near as sums in f32: on a GPU with heads of 4 elements, which
 * no tensor core takes, and a cache that rounds nothing. */
static km_config config_for_tokens(km_arch arch) {
    km_config c = config_of(arch);
    if (!gpu) return c;
    c.head_dim = 4;
    if (arch == KM_ARCH_GPT2) c.heads = c.kv_heads = (int)(c.dim / 4);
    return c;
}

static km_dtype cache_for_tokens(void) { return gpu ? KM_F32 : KM_F16; }

static void take_greedily(km_net *m, int32_t *out, int n) {
    km_error err = {0};
    int32_t ids[CONTEXT];
    random_ids(ids, CONTEXT, VOCAB);
    km_sequence *s = session_of(m, cache_for_tokens(), 1);
    SAY(km_sequence_read(s, ids, 20, &err));
    for (int i = 0; i < n; i++) {
        out[i] = km_likeliest(km_sequence_logits(s), VOCAB);
        SAY(km_sequence_next(s, out[i], &err));
    }
    km_sequence_free(s);
}

static void compare_tokens(km_net *shared, km_net *whole, void *user) {
    int32_t a[40], b[40];
    take_greedily(whole, a, 40);
    take_greedily(shared, b, 40);
    must(memcmp(a, b, sizeof a) == 0, "%s: other tokens", (const char *)user);
}

static void greedy_tokens_are_those_of_the_whole_model(void **state) {
    (void)state;
    for (int arch = 0; arch < KM_ARCH_COUNT; arch += SANITIZED ? 3 : 1) {
        km_config c = config_for_tokens((km_arch)arch);
        write_model(&c, "f32");
        together(file, compare_tokens, (void *)km_arch_name((km_arch)arch));
    }
}

/* Through km_make_text: drawn tokens, tokens chosen by the op ahead of the host, and guesses. */
static void generate(km_net *m, int choose, bool lookup, double temperature, int32_t *out,
                     int64_t *n) {
    km_error err = {0};
    km_token *token = km_token_load(file, &err);
    must(token, "%s", err.text);
    km_sequence *s = session_of(m, cache_for_tokens(), 1);
    km_making g = {
        .tokens = 32, .past_end = true, .choose = choose, .sampling = km_sampling_defaults()};
    g.sampling.temperature = temperature;
    g.sampling.top_k = 20;
    g.sampling.seed = 11;
    if (lookup) g.draft = km_drafter_lookup(&err);
    must(!lookup || g.draft, "%s", err.text);
    km_generated got;
    static const char prompt[] = "one two one two one two one";
    SAY(km_make_text_in(s, m, token, prompt, sizeof prompt - 1, &g, &got, &err));
    *n = km_sequence_length(s);
    memcpy(out, km_sequence_tokens(s), sizeof *out * (size_t)*n);
    km_drafter_free(g.draft);
    km_sequence_free(s);
    km_token_free(token);
}

static void compare_texts(km_net *shared, km_net *whole, void *user) {
    static const struct {
        int choose;
        bool lookup;
        double temperature;
    } ways[] = {{KM_CHOOSE_HOST, false, 0},   {KM_CHOOSE_HOST, false, 0.9},
                {KM_CHOOSE_DEVICE, false, 0}, {KM_CHOOSE_DEVICE, false, 0.9},
                {KM_CHOOSE_HOST, true, 0},    {KM_CHOOSE_DEVICE, true, 0.9}};
    (void)user;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int32_t a[CONTEXT], b[CONTEXT];
        int64_t n, k;
        generate(whole, ways[i].choose, ways[i].lookup, ways[i].temperature, a, &n);
        generate(shared, ways[i].choose, ways[i].lookup, ways[i].temperature, b, &k);
        must(n == k && memcmp(a, b, sizeof *a * (size_t)n) == 0, "way %zu: another text", i);
    }
}

static void drawn_and_guessed_texts_are_those_of_the_whole_model(void **state) {
    (void)state;
    km_config c = config_for_tokens(KM_ARCH_LLAMA);
    write_model(&c, "f32");
    together(file, compare_texts, NULL);
}

/* ---- Several sequences; what cannot be ---- */

static void step_together(km_net *m, float out[3][VOCAB]) {
    km_error err = {0};
    km_sequences_options o = {.cache = KM_Q8_0, .sequences = 3};
    int32_t ids[CONTEXT];
    int at[3];
    random_ids(ids, CONTEXT, VOCAB);
    km_sequences *b = km_sequences_new(ctx, m, &o, &err);
    must(b, "%s", err.text);
    for (int i = 0; i < 3; i++) {
        at[i] = km_sequences_join(b, &err);
        must(at[i] >= 0, "%s", err.text);
        SAY(km_sequences_read(b, at[i], ids + i, (size_t)(3 + 5 * i), &err));
    }
    km_sequences_leave(b, at[1]); /* its place is another's then */
    at[1] = km_sequences_fork(b, at[2], &err);
    for (int k = 0; k < 4; k++) {
        km_sequences_token t[3];
        for (int i = 0; i < 3; i++) t[i] = (km_sequences_token){at[i], ids[30 + 3 * k + i]};
        SAY(km_sequences_step(b, t, 3, &err));
    }
    for (int i = 0; i < 3; i++) memcpy(out[i], km_sequences_logits(b, at[i]), sizeof out[i]);
    km_error why = {0};
    if (m->comm) {
        must(km_sequences_save(b, at[0], "/tmp/kermes-no-session", &why) == KM_ERR_UNSUPPORTED,
             "saved");
        must(km_sequences_pretend(b, at[0], 8, &why) == KM_ERR_UNSUPPORTED, "pretended");
    }
    /* A token that is none is refused before anybody is told. */
    must(km_sequences_read(b, at[0], (int32_t[]){VOCAB}, 1, &why) == KM_ERR_RANGE, "read");
    km_sequences_free(b);
}

static void compare_batches(km_net *shared, km_net *whole, void *user) {
    static float a[3][VOCAB], b[3][VOCAB];
    (void)user;
    step_together(whole, a);
    step_together(shared, b);
    for (int i = 0; i < 3; i++)
        near(whole, "batch", b[i], a[i], VOCAB, 0.02); /* the cache is of 8 bits */
}

static void sequences_run_together_on_ranks_too(void **state) {
    (void)state;
    km_config c = config_of(KM_ARCH_GEMMA3);
    write_model(&c, "f32");
    together(file, compare_batches, NULL);
}

static void what_cannot_be_shared_is_refused_by_all_ranks(void **state) {
    (void)state;
    km_error err = {0};
    km_config c = config_of(KM_ARCH_LLAMA);
    c.heads = 4, c.kv_heads = 1;
    write_model(&c, "f32");
    must(!km_net_open(ctx, file, &(km_open_options){.comm = comm}, &err), "one head was shared");
    must(!strcmp(err.text, "2 ranks cannot share 1 key/value heads; 1 is the most for this model"),
         "%s", err.text);
    km_open_split both = {.device = {"cpu", "cpu"}, .layers = {1, 1}, .n = 2};
    err = (km_error){0};
    must(!km_net_open(ctx, file, &(km_open_options){.comm = comm, .split = &both}, &err),
         "split in both ways");
    must(!strcmp(err.text, "a model can be split over devices or over ranks, not over both"), "%s",
         err.text);
    err = (km_error){0};
    must(!km_net_open(ctx, fixture("models/gpt2", ""),
                      &(km_open_options){.comm = comm, .dtype = KM_F32}, &err),
         "a folder was shared");
    must(!strcmp(err.text, "only a GGUF file can be split over ranks; kermes convert makes one"),
         "%s", err.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_gives_the_logits_of_transformers),
        cmocka_unit_test(shares_add_up_to_the_whole_for_every_architecture),
        cmocka_unit_test(shares_of_every_type_add_up_to_the_whole),
        cmocka_unit_test(a_text_is_as_likely_as_for_the_whole_model),
        cmocka_unit_test(greedy_tokens_are_those_of_the_whole_model),
        cmocka_unit_test(drawn_and_guessed_texts_are_those_of_the_whole_model),
        cmocka_unit_test(sequences_run_together_on_ranks_too),
        cmocka_unit_test(what_cannot_be_shared_is_refused_by_all_ranks),
    };
    int code = run_as_ranks(2);
    if (code >= 0) return code;
    km_error err = {0};
    const char *device = getenv("KM_TEST_DEVICE");
    ctx = km_ctx_new(device ? device : "cpu", 1);
    must(ctx, "%s", km_last_error());
    gpu = !ctx->device->host;
    comm = km_comm_open("auto", ctx, &err);
    must(comm && km_comm_size(comm) == 2, "%s", err.text);
    rank = km_comm_rank(comm);
    int fd = rank == 0 ? mkstemps(file, 5) : 0;
    must(fd >= 0, "no temporary file");
    if (fd > 0) close(fd);
    must(km_comm_broadcast(comm, 0, file, sizeof file, &err) == KM_OK, "%s", err.text);
    code = cmocka_run_group_tests(tests, NULL, NULL);
    km_comm_barrier(comm, NULL); /* all are done with the file */
    if (rank == 0) unlink(file);
    km_comm_close(comm);
    km_ctx_free(ctx);
    return code;
}

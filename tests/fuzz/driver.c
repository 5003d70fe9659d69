/* Drives a fuzz target without libFuzzer: mutates the seed files named on the command line for a
 * few seconds, a minute in the long tests. Each input is a function of its number alone, and the
 * number is printed when a sanitizer stops the run: --only N tries just that one. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

#define MAX_SEEDS 64
#define MAX_SIZE ((size_t)1 << 20)

typedef struct seed {
    uint8_t *data;
    size_t size;
} seed;

static seed seeds[MAX_SEEDS];
static int n_seeds;
static uint64_t current, state;

static uint64_t next(void) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static size_t below(size_t n) { return n ? (size_t)(next() % n) : 0; }

static void say_which(void) {
    fprintf(stderr, "input %llu: run again with --only %llu\n", (unsigned long long)current,
            (unsigned long long)current);
}

static void on_signal(int number) {
    char text[64];
    int n =
        snprintf(text, sizeof text, "signal %d, input %llu\n", number, (unsigned long long)current);
    if (write(STDERR_FILENO, text, (size_t)n) < 0) _exit(2);
    _exit(1);
}

static void load(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) {
        fprintf(stderr, "cannot open seed %s\n", path);
        exit(1);
    }
    seed *s = &seeds[n_seeds++];
    s->data = malloc(MAX_SIZE);
    s->size = fread(s->data, 1, MAX_SIZE, f);
    fclose(f);
}

/* One change to buf, which has room for MAX_SIZE; returns its new size. */
static size_t mutate(uint8_t *buf, size_t n) {
    static const uint64_t odd[] = {0,     1,         2,          7,          8,         31,
                                   32,    127,       128,        255,        256,       65535,
                                   65536, INT32_MAX, UINT32_MAX, 1ull << 32, INT64_MAX, UINT64_MAX};
    /* Half of the changes go to the first kilobyte, where headers are. */
    size_t reach = next() % 2 && n > 1024 ? 1024 : n, at = below(reach), length;
    switch (next() % 8) {
    case 0:
        if (n) buf[at] ^= (uint8_t)(1u << next() % 8);
        return n;
    case 1:
        if (n) buf[at] = (uint8_t)next();
        return n;
    case 2: { /* a number, little-endian, of 1, 2, 4 or 8 bytes */
        length = (size_t)1 << next() % 4;
        uint64_t v = odd[next() % (sizeof odd / sizeof *odd)];
        if (at + length <= n) memcpy(buf + at, &v, length);
        return n;
    }
    case 3: /* cut short */ return next() % 4 ? n : at;
    case 4: /* leave a piece out */
        length = below(n - at < 64 ? n - at : 64);
        memmove(buf + at, buf + at + length, n - at - length);
        return n - length;
    case 5: /* repeat a piece */
        length = below(n - at < 64 ? n - at : 64);
        if (n + length > MAX_SIZE) return n;
        memmove(buf + at + length, buf + at, n - at);
        return n + length;
    case 6: { /* a piece of a seed */
        const seed *s = &seeds[below((size_t)n_seeds)];
        size_t from = below(s->size);
        length = below(s->size - from < 256 ? s->size - from : 256);
        if (at + length <= n) memcpy(buf + at, s->data + from, length);
        return n;
    }
    default: /* a character that means something to a parser */
        if (n) buf[at] = (uint8_t) "{}[]\":,\\0123456789-.eE tfn\n/"[next() % 28];
        return n;
    }
}

static void try_input(uint64_t number) {
    static uint8_t buf[MAX_SIZE];
    current = number;
    state = number * 0x2545f4914f6cdd1du + 1;
    const seed *s = &seeds[below((size_t)n_seeds)];
    size_t n = s->size;
    memcpy(buf, s->data, n);
    if (number >= (uint64_t)n_seeds) { /* the first ones are the seeds themselves */
        for (uint64_t changes = 1 + next() % 6; changes > 0; changes--) n = mutate(buf, n);
    } else {
        n = seeds[number].size;
        memcpy(buf, seeds[number].data, n);
    }
    uint8_t *exact = malloc(n ? n : 1); /* of its own, so that one byte too far is seen */
    memcpy(exact, buf, n);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc)
            only = argv[++i];
        else if (n_seeds < MAX_SEEDS)
            load(argv[i]);
    }
    if (n_seeds == 0) {
        fprintf(stderr, "usage: %s [--only N] SEED...\n", argv[0]);
        return 2;
    }
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_which);
    else
        for (int s = 0; s < 4; s++) signal((int[]){SIGSEGV, SIGBUS, SIGFPE, SIGABRT}[s], on_signal);
    if (only) {
        try_input(strtoull(only, NULL, 10));
        return 0;
    }
#if defined(__SANITIZE_ADDRESS__)
    double limit = 2;
#else
    double limit = 1;
#endif
    if (getenv("KERMES_TEST_LONG")) limit = 60;
    double end = seconds() + limit;
    uint64_t n = 0;
    for (; n < (uint64_t)n_seeds || seconds() < end; n++) try_input(n);
    printf("%llu inputs\n", (unsigned long long)n);
    for (int i = 0; i < n_seeds; i++) free(seeds[i].data);
    return 0;
}

/* Fuzzes session files. An input changes bytes of a true one, and puts its checksums right again, so
 * that what is behind them is reached: what is restored can be gone on with, and what is refused
 * leaves the session as it was, and has a reason.
 * seeds: tests/fixtures/formats/importance.dat tests/fixtures/formats/importance.gguf tests/fixtures/token/chars.json
 */
#include "base/file.h"
#include "infer/sequence.h"
#include "model/open.h"
#include "model/synthetic.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEADER = 128, PAYLOAD_HASH = 80, HASH = 120, MOST = 1 << 18 };

static km_ctx *ctx;
static km_sequence *session;
static uint8_t whole[MOST];
static size_t whole_bytes;
static const int32_t read_before[] = {72, 105, 33};

static void must(bool ok) {
    if (!ok) abort();
}

/* A small model in a file, a session that has read a few tokens, and its file. */
static void prepare(void) {
    char model[64], saved[64];
    km_config c = {.arch = KM_ARCH_LLAMA,
                   .layers = 1,
                   .heads = 2,
                   .kv_heads = 1,
                   .dim = 64,
                   .hidden = 64,
                   .context = 128,
                   .vocab = 260,
                   .rope_base = 1e4,
                   .norm_eps = 1e-5,
                   .tied = true};
    km_error err = {0};
    km_map map;
    snprintf(model, sizeof model, "/tmp/kermes-fuzz-%ld.gguf", (long)getpid());
    snprintf(saved, sizeof saved, "/tmp/kermes-fuzz-%ld", (long)getpid());
    ctx = km_ctx_new("cpu", 1);
    must(km_config_complete(&c, &err) == KM_OK);
    must(km_synthetic_write(model, &c, km_mix_find("q8_0"), 1, NULL, NULL, &err) == KM_OK);
    km_net *m = km_net_open(ctx, model, NULL, &err);
    must(m != NULL);
    session = km_sequence_new(ctx, m, &err);
    must(session && km_sequence_read(session, read_before, 3, &err) == KM_OK);
    must(km_sequence_save(session, saved, &err) == KM_OK);
    must(km_map_open(&map, saved, &err) == KM_OK && map.size > HEADER && map.size <= MOST);
    memcpy(whole, map.data, map.size);
    whole_bytes = map.size;
    km_map_close(&map);
    unlink(saved);
    unlink(model);
}

/* Three bytes of input are a change: where (the header more often than the rest), and to what. */
static size_t changed(const uint8_t *data, size_t size, uint8_t *file) {
    size_t n = whole_bytes;
    memcpy(file, whole, n);
    for (size_t i = 1; i + 3 <= size && i < 64; i += 3) {
        size_t at = (size_t)(data[i] | data[i + 1] << 8);
        file[at & 0x8000 ? at % n : at % (HEADER + 64)] = data[i + 2];
    }
    if (size && data[0] % 8 == 1) n = n * data[0] / 256; /* cut short */
    if (n >= HEADER && (!size || data[0] % 4 != 2)) {
        uint64_t h = XXH3_64bits(file + HEADER, n - HEADER);
        memcpy(file + PAYLOAD_HASH, &h, 8);
        h = XXH3_64bits(file, HASH);
        memcpy(file + HASH, &h, 8);
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t file[MOST];
    char path[64];
    km_error err = {0};
    if (!ctx) prepare();
    size_t n = changed(data, size, file);
    int fd = memfd_create("session", 0);
    must(fd >= 0 && write(fd, file, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    km_sequence_reset(session);
    must(km_sequence_read(session, read_before, 2, &err) == KM_OK);
    km_status s = km_sequence_restore(session, path, &err);
    if (s != KM_OK && err.code == KM_OK) __builtin_trap(); /* a refusal without a reason */
    if (s != KM_OK && km_sequence_length(session) != 2) __builtin_trap();
    km_error later = {0};
    if (km_sequence_length(session) < 100) must(km_sequence_next(session, 7, &later) == KM_OK);
    close(fd);
    return 0;
}

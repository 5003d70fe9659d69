/* A grammar that writes small stories. */
#include "train/demo.h"
#include "base/file.h"
#include "base/rng.h"
#include <string.h>

typedef struct writer {
    km_text *out;
    uint64_t seed, drawn;
} writer;

static unsigned draw(writer *w, unsigned n) {
    return km_philox(w->seed, 0xDE50, w->drawn++).v[0] % n;
}

#define PICK(w, list) (list)[draw(w, sizeof(list) / sizeof *(list))]

static const char *const people[] = {"sailor", "baker", "farmer", "queen", "painter", "teacher"};
static const char *const animals[] = {"fox", "owl", "horse", "cat", "goose"};
static const char *const things[] = {"lamp", "stone", "letter", "boat", "basket", "map"};
static const char *const places[] = {"river", "tower", "garden", "harbour", "mill", "forest"};
static const char *const colours[] = {"red", "green", "silver", "grey", "yellow"};
static const char *const names[] = {"Anna", "Boris", "Clara", "David", "Emma"};
static const char *const weather[] = {"rains", "snows", "is warm", "is dark", "is windy"};

typedef struct verb {
    const char *one, *many; /* "finds", "find" */
} verb;
static const verb takes[] = {
    {"finds", "find"}, {"carries", "carry"}, {"loses", "lose"}, {"hides", "hide"}, {"sees", "see"}};
static const verb goes[] = {{"walks", "walk"}, {"runs", "run"}, {"rides", "ride"}};

static void subject(writer *w, const char *name, int many) {
    if (!many) {
        km_text_add(w->out, name);
        return;
    }
    km_text_printf(w->out, "the two %ss", PICK(w, people));
}

/* A sentence of one of five forms about `name`. Numbers, articles and the story's thing agree. */
static void sentence(writer *w, const char *name, const char *colour, const char *thing) {
    int many = draw(w, 4) == 0;
    const verb *take = &takes[draw(w, sizeof takes / sizeof *takes)];
    const verb *go = &goes[draw(w, sizeof goes / sizeof *goes)];
    switch (draw(w, 5)) {
    case 0:
        subject(w, name, many);
        km_text_printf(w->out, " %s the %s %s near the %s. ", many ? take->many : take->one, colour,
                       thing, PICK(w, places));
        break;
    case 1:
        subject(w, name, many);
        km_text_printf(w->out, " %s to the %s with the %s. ", many ? go->many : go->one,
                       PICK(w, places), PICK(w, animals));
        break;
    case 2:
        km_text_printf(w->out, "it %s, and the %s waits at the %s. ", PICK(w, weather),
                       PICK(w, animals), PICK(w, places));
        break;
    case 3:
        km_text_printf(w->out, "\"where is the %s %s?\" asks the %s. ", colour, thing,
                       PICK(w, people));
        break;
    default: km_text_printf(w->out, "\"it is in the %s,\" says %s. ", PICK(w, places), name); break;
    }
}

void km_demo_text(km_text *out, uint64_t seed, size_t bytes) {
    writer w = {.out = out, .seed = seed};
    size_t start = out->len;
    while (out->len - start < bytes && km_text_ok(out)) {
        const char *name = PICK(&w, names), *colour = PICK(&w, colours), *thing = PICK(&w, things);
        km_text_printf(out, "the story of %s and the %s %s.\n", name, colour, thing);
        for (unsigned n = 3 + draw(&w, 4); n > 0; n--) sentence(&w, name, colour, thing);
        km_text_add(out, "\n\n");
    }
}

km_status km_demo_write(const char *path, uint64_t seed, size_t bytes, km_error *err) {
    km_text text = {0};
    km_demo_text(&text, seed, bytes);
    km_status s = KM_OK;
    if (!km_text_ok(&text)) s = km_no_memory_for(err, "the text");
    km_writer *w = s == KM_OK ? km_writer_open(path, err) : NULL;
    if (s == KM_OK && !w) s = KM_ERR_FILE;
    if (w) km_writer_put(w, text.data, text.len);
    if (w) s = km_writer_commit(w, err);
    km_text_free(&text);
    return s;
}

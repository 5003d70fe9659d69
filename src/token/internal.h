/* What a tokenizer is inside. The parts follow Hugging Face's tokenizer.json: its four sections
 * (normaliser, pre-tokeniser, post-processor, decoder) are kept as JSON, for saving, and compiled
 * into the steps below. Every constructor fills the first half and calls km_token_finish, which
 * makes the second half from it. */
#ifndef KM_TOKEN_INTERNAL_H
#define KM_TOKEN_INTERNAL_H
#include "token/merges.h"
#include "token/pattern.h"
#include "token/token.h"
#include "token/vocab.h"
#include <jansson.h>
#include <pthread.h>

typedef enum km_token_model {
    KM_MODEL_BPE,       /* merges by rank */
    KM_MODEL_SPM,       /* SentencePiece: merges by the score of what comes out */
    KM_MODEL_WORDPIECE, /* longest token first */
    KM_MODEL_WORDS      /* a piece is a token or unknown */
} km_token_model;

/* Per token. */
enum {
    KM_MARK_MODEL = 1,   /* the model may produce it */
    KM_MARK_ADDED = 2,   /* found in the text before the model sees it */
    KM_MARK_SPECIAL = 4, /* control token: found only when asked for, and not text */
    KM_MARK_LITERAL = 8, /* byte-level: its text stands for itself */
    KM_MARK_HIDDEN = 16  /* no text is decoded from it, as SentencePiece's unused ones */
};

typedef struct km_added { /* a token that is looked for in the text itself */
    int32_t id;
    bool lstrip, rstrip; /* takes the white space before or after it along */
    bool single_word;    /* only between characters that are not of a word */
    bool normalized;     /* looked for after the normaliser */
} km_added;

/* Finds added tokens: by first byte, then by length, longest first. */
typedef struct km_finder {
    km_vocab texts;        /* ids are indices into `added` */
    uint16_t *length[256]; /* by first byte: the lengths there are, longest first, 0 ends */
    int count, plain;      /* all, and those that are not special */
} km_finder;

/* ---- Compiled sections ---- */

typedef enum km_normal_kind {
    KM_NORMAL_PREPEND, /* a before text that is not empty */
    KM_NORMAL_PREFIX,  /* a before text that does not start with it (and is not empty) */
    KM_NORMAL_REPLACE, /* every a, or match, becomes b */
    KM_NORMAL_NFC,
    KM_NORMAL_NFD,
    KM_NORMAL_NFKC,
    KM_NORMAL_NFKD,
    KM_NORMAL_LOWER,
    KM_NORMAL_ACCENTS, /* drop combining marks */
    KM_NORMAL_STRIP,   /* white space at the ends: left, right */
    KM_NORMAL_CLEAN,   /* BERT: control characters out, white space to spaces */
    KM_NORMAL_CJK      /* BERT: spaces around ideographs */
} km_normal_kind;

typedef struct km_normal_step {
    km_normal_kind kind;
    char *a, *b;
    size_t n_a, n_b;
    km_pattern *pattern; /* REPLACE by a regular expression */
    bool left, right;    /* STRIP */
    bool first;          /* PREFIX: only at the start of the whole text */
} km_normal_step;

typedef enum km_split_kind {
    KM_SPLIT_ISOLATED,
    KM_SPLIT_REMOVED,
    KM_SPLIT_PREVIOUS, /* a match belongs to the piece before it */
    KM_SPLIT_NEXT,     /* or to the one after it */
    KM_SPLIT_CONTIGUOUS
} km_split_kind;

typedef struct km_split_step {
    km_split_kind kind;
    bool invert; /* what does not match counts as the match */
    km_pattern *pattern;
} km_split_step;

/* How text is cut where no pattern says so. */
typedef enum km_border {
    KM_BORDER_NONE, /* all of it is one piece */
    KM_BORDER_CHAR, /* anywhere: there are no merges */
    KM_BORDER_SPACE /* before a run of U+2581: no token has one inside after something else */
} km_border;

#define KM_MAX_STEPS 24

typedef struct km_scratch km_scratch;

struct km_token {
    /* ---- What a constructor sets ---- */
    const char *kind;
    km_token_model model;
    km_vocab vocab; /* byte-level: the bytes that a token stands for; otherwise as in the file */
    uint8_t *mark;  /* by id */
    km_merges merges;
    float *score;    /* SPM, by id */
    bool byte_level; /* the symbols of the model are bytes */
    bool byte_fallback, fuse_unk, ignore_merges;
    int64_t longest_word; /* WordPiece: more characters than this are unknown */
    char *continuing;     /* WordPiece: "##" */
    km_added *added;
    int32_t n_added;
    int32_t bos, eos, unk, pad;
    bool unk_unused; /* unk is a name alone: the model makes it of nothing */
    json_t *normalizer, *pre_tokenizer, *post_processor, *decoder; /* owned; NULL stands for null */

    /* ---- What km_token_finish makes ---- */
    int32_t byte_id[256];  /* byte-level symbols, or the <0xNN> tokens; -1: none */
    int32_t ascii_id[128]; /* other models: the token of one character */
    km_normal_step normal[KM_MAX_STEPS];
    int n_normal;
    int n_before; /* so many of them belong to the normaliser proper; the rest comes
                             * after the added tokens that look for normalised text */
    km_split_step split[KM_MAX_STEPS];
    int n_split;
    km_border border;
    km_finder raw, normalized; /* added tokens before and after the normaliser */
    int32_t *prefix, *suffix;  /* what ADD_SPECIAL puts around a text */
    int n_prefix, n_suffix;
    km_vocab shown; /* what each token decodes to; empty when that is its text */
    int strip_left; /* spaces dropped at the start of the decoded text */
    bool join;      /* a space between tokens, but not before a continuing one */
    bool cleanup;   /* WordPiece: and not before punctuation */
    uint64_t hash;

    /* By token: whether the model makes just this token of its text; 0: nobody has asked yet. */
    _Atomic uint8_t *whole;

    pthread_mutex_t lock; /* of the list of unused scratches */
    km_scratch *scratches;
};

/* What the model makes of text that it has no token for; -1: a byte-level one drops such bytes, for
 * the others they are an error. */
static inline int32_t km_token_unknown(const km_token *t) { return t->unk_unused ? -1 : t->unk; }

/* An empty tokenizer to fill; NULL when out of memory. */
km_token *km_token_new(const char *kind, km_token_model model, km_error *err);
/* Adds a token to the vocabulary with its marks. */
km_status km_token_put(km_token *t, int64_t id, const char *text, size_t n, unsigned marks,
                       km_error *err);
km_status km_token_put_added(km_token *t, const km_added *a, km_error *err);
/* Compiles the sections and builds all tables. `name` is for messages. */
km_status km_token_finish(km_token *t, const char *name, km_error *err);

/* The sections of a byte-level tokenizer, with GPT-2's pattern or without any. */
km_status km_token_byte_sections(km_token *t, bool regex, km_error *err);

/* sections.c: JSON to steps */
km_status km_token_compile(km_token *t, const char *name, km_error *err);
void km_token_compile_free(km_token *t);
/* decode.c: the decoder section, and what each token decodes to */
km_status km_token_compile_decoder(km_token *t, const char *name, km_error *err);

/* bytes.c: GPT-2's alphabet, in which a byte is written as one printable character */
extern const uint16_t km_byte_char[256]; /* the code point of a byte */
int km_char_byte(uint32_t cp);           /* and back; -1: none */
extern const uint8_t km_byte_order[256]; /* bytes in the order of GPT-2's ids */
/* The bytes that a text in that alphabet stands for, into out (at least n bytes); SIZE_MAX when
 * some character is not of the alphabet. */
size_t km_bytes_from_alphabet(const char *text, size_t n, char *out);
/* The value of a token written as <0xNN>; -1: it is none. */
int km_byte_token(const char *text, size_t n);

/* added.c */
km_status km_finder_build(km_finder *f, const km_token *t, bool normalized, km_error *err);
void km_finder_free(km_finder *f);
/* The first added token at or after `from`; the index in t->added, or -1. Its white space is
 * part of [*begin, *end), which does not begin before `from`. */
int32_t km_finder_next(const km_finder *f, const km_token *t, const char *text, size_t n,
                       size_t from, bool special, size_t *begin, size_t *end);

/* Where a stretch of text lies: prefixes are for the first two. */
typedef enum km_text_place {
    KM_PLACE_TEXT,    /* at the start of the whole text */
    KM_PLACE_SEGMENT, /* after an added token */
    KM_PLACE_INSIDE   /* after bytes that are no characters */
} km_text_place;

/* normal.c: runs steps [first, last) over valid UTF-8; the result is *text, which is the text
 * given, or lies in one of the two buffers. */
km_status km_normal_run(const km_token *t, int first, int last, km_text_place place, km_matcher *m,
                        km_text buffer[2], const char **text, size_t *n, km_error *err);
void km_normal_free(km_normal_step *n);

/* ---- Sections of a tokenizer.json ---- */

const char *km_section_type(const json_t *section); /* "" for null */
/* Whether the section is of this type, or a Sequence with one of it. */
bool km_section_has(const json_t *section, const char *type);

#endif

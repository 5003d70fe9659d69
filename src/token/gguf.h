/* Tokenizers in GGUF files: read from their metadata, and written into it. */
#ifndef KM_TOKEN_GGUF_H
#define KM_TOKEN_GGUF_H
#include "format/gguf.h"
#include "token/token.h"

km_token *km_token_load_gguf(const char *path, km_error *err);
km_token *km_token_from_gguf(const km_gguf *g, km_error *err); /* g may be closed afterwards */

/* Puts the tokenizer.ggml.* keys. A tokenizer that GGUF has no words for is an error. */
km_status km_token_put_gguf(const km_token *t, km_gguf_out *out, km_error *err);

#endif

/* Guessing what comes next, so that several tokens go through a model in one step (speculative
 * decoding). Guesses change no token of the text: at each place the model's own sampler chooses
 * from the model's own logits, with the number it would have drawn anyway, and a guess counts only
 * if it is what was chosen. So a guess d is accepted with probability p(d), and what takes its
 * place otherwise has the distribution p without d: the rejection rule for a guess that is
 * certain. */
#ifndef KM_INFER_DRAFT_H
#define KM_INFER_DRAFT_H
#include "infer/sample.h"
#include "infer/sequence.h"

typedef struct km_drafter km_drafter;

/* Looks for the last few tokens earlier in the text, and guesses that what followed them there
 * comes again. Costs nothing; pays where texts repeat: code, summaries, edits. NULL with *err
 * set. */
km_drafter *km_drafter_lookup(km_error *err);
/* Guesses with a smaller model of the same vocabulary, in a session that is the drafter's from now
 * on, also if this fails. With a temperature it draws the numbers that the model's sampler will. */
km_drafter *km_drafter_model(km_sequence *session, km_error *err);
void km_drafter_free(km_drafter *d); /* NULL is fine */

/* The text's tokens are chosen by the op `sample`: a model's guesses are then, too, where its logits are. */
void km_drafter_by_op(km_drafter *d, bool on);

/* Guesses of what comes after tokens (n) and id, at most `most` of them and KM_FEW_ROWS - 1; how
 * many, or -1 with *err set. sampler is the one that will choose. */
int km_drafter_guess(km_drafter *d, const int32_t *tokens, int64_t n, int32_t id,
                     const km_sampler *sampler, int64_t most, int32_t *out, km_error *err);
/* How the last guesses fared: it then guesses more, or fewer. */
void km_drafter_told(km_drafter *d, int right, int wrong);

#endif

/* What a model's weights take, known from its file before any of them is loaded: layer by layer, as
 * they lie in a GPU's memory. */
#ifndef KM_MODEL_WEIGH_H
#define KM_MODEL_WEIGH_H
#include "model/open.h"
#include "model/synthetic.h"

typedef struct km_weighed {
    km_config config; /* complete, with the context asked for */
    double embedding,
        head;      /* bytes: tables looked up in; the last norm and the head (a tied head is
                             * the embedding's table, and counts as the embedding alone) */
    double *layer; /* (config.layers) bytes */
    double *stays; /* (config.layers) of them, those of matrices that a GPU can also use from the
                    * host's memory (model/parts.h) */
} km_weighed;

/* Of a GGUF file or a Hugging Face folder; where ranks share it (o->comm), of this rank's share. */
km_status km_weigh(const char *path, const km_open_options *o, km_weighed *out, km_error *err);
/* Of a random model (synthetic.h). */
km_status km_weigh_mix(const km_config *c, const km_mix *mix, km_weighed *out, km_error *err);
void km_weighed_free(km_weighed *w);

/* Bytes of layers first .. last - 1 with what belongs to the first and the last of them. */
double km_weighed_part(const km_weighed *w, int first, int last);

#endif

/* What plan.c, plan_choose.c and plan_pass.c share: steps at the sizes at which they are captured. */
#ifndef KM_INFER_PLAN_IMPL_H
#define KM_INFER_PLAN_IMPL_H
#include "infer/plan.h"

/* A host captures steps of so many rows and no longer ones, whose kernels outweigh what it spares. */
#define KM_HOST_CAPTURES 64

typedef struct km_plan_way { /* of a step, captured: without adapters, or with them */
    km_tensor *out; /* kept: the residual stream, or the last part's logits (last, vocab) */
    km_graph *graph, *chosen; /* chosen: of the last part, with tokens chosen where they are made */
} km_plan_way;

typedef struct km_plan_piece { /* of a step: what one part of the model does */
    km_net *m;
    km_tensor *in, *rows; /* kept: ids (n) or the residual stream (n, C); (n, 2) */
    km_tensor *mix;       /* kept: (n, slots); NULL: no row has had an adapter yet */
    km_net_place place;
    km_plan_way way[2];
    bool captured; /* false: it runs as it is, and keeps no memory */
    /* Of the last part, when tokens are chosen where they are made: */
    km_tensor *settings, *state, *next; /* kept; next (n, 2): what a row's place grows by */
    bool penalties;
} km_plan_piece;

typedef struct km_plan_shape { /* a step of so many rows, padding included */
    int64_t n, last;           /* last: of those with logits */
    uint64_t used;             /* when it was needed last */
    km_plan_piece part[KM_MAX_PARTS];
} km_plan_shape;

struct km_plan {
    km_ctx *ctx;
    km_net *m;
    km_cache *cache;
    bool host;             /* the last part's device */
    km_plan_shape **shape; /* (n_shapes) */
    int n_shapes, cap_shapes;
    uint64_t uses;
    int32_t *ids, *rows;       /* (KM_PROMPT_CHUNK), (KM_PROMPT_CHUNK, 2): with padding in front */
    float *mixes;              /* (KM_PROMPT_CHUNK, slots); NULL: no row has had an adapter yet */
    float *stream;             /* (KM_STEP_ROWS, C), between parts; NULL: there is one */
    const km_adapter_mix *mix; /* of each sequence; NULL: no adapters */
    const atomic_bool *cancel; /* of prompts; or NULL */
    km_tensor *logits;         /* of the last pass (km_plan_pass); NULL: there are none */
    bool own;                  /* they are kept by the plan, and not by a shape */
    int64_t wanted;            /* of its rows, the last ones */
};

/* Rows at which a step of n runs, the padding included: a GPU's are captured, a host's cost what is in them. */
int64_t km_plan_padded(const km_plan *p, int64_t n);
/* The step of that size, made when it is first needed; NULL with the context's error set. */
km_plan_shape *km_plan_shape_of(km_plan *p, int64_t n, int64_t last);
/* p->ids and p->rows: those of n rows behind as much padding as fills `padded`. */
void km_plan_pad(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n, int64_t padded);
/* What a part makes of its rows: logits f32 after those that `place` wants, or the stream. */
km_tensor *km_plan_run_part(km_net *m, km_tensor *in, const km_net_place *place);
/* The context's status, whichever part's failed. */
km_status km_plan_failed(km_plan *p);
/* Whether this step is the one that a test wants to fail. */
bool km_plan_faulty(void);
/* The inputs of part `part`, from the host's memory. */
km_status km_plan_put(km_plan *p, km_plan_shape *s, int part, const void *in, size_t bytes);
/* One part's share of a step; fn gets the piece. A host treats the last `tail` rows each by itself. */
void km_plan_run(km_plan *p, km_plan_piece *a, km_graph **graph, uint64_t key, km_step_fn fn,
                 int64_t n, int64_t tail);
/* All parts but the last; what that one gets is *in. */
km_status km_plan_parts(km_plan *p, km_plan_shape *s, const void **in, size_t *bytes, int *last);
/* A step with adapters is captured anew when one has come or gone. */
uint64_t km_plan_key(const km_plan *p, const km_plan_piece *a, int kind);
void km_plan_step(km_ctx *ctx, void *piece);
/* What n rows of p->rows have of each adapter: a tensor of the step; NULL: none has any. */
km_tensor *km_plan_mix_of(km_plan *p, km_ctx *ctx, int64_t n);
static inline km_plan_way *km_plan_way_of(km_plan_piece *a) {
    return &a->way[a->place.at.mix != NULL];
}

#endif

/* The optimiser from inside: what its files know of each other. */
#ifndef KM_NN_OPTIM_IMPL_H
#define KM_NN_OPTIM_IMPL_H
#include "backend/control.h"
#include "nn/optim.h"

enum { KM_STATE_M, KM_STATE_V, KM_STATE_W, KM_STATES };

/* A run of one parameter's elements that this rank updates, and where its state is. */
typedef struct km_optim_piece {
    int param;                    /* in the optimiser's own list */
    int64_t first, count;         /* elements of the parameter */
    int64_t at[KM_STATES];        /* where its state begins in state[]; -1: it has none */
    km_tensor p, g, s[KM_STATES]; /* flat views, filled anew for each step */
} km_optim_piece;

struct km_reducer;

struct km_optimizer {
    km_handle handle;
    km_ctx *ctx;
    km_param_list *list;
    struct km_comm *comm; /* NULL: one rank */
    km_optim_settings how;
    km_param **param; /* those that are not frozen, by dtype */
    int n;
    km_optim_piece *piece;
    int n_pieces;
    km_tensor *state[KM_STATES]; /* kept, flat, f32; NULL where nothing needs it */
    km_tensor *knobs;            /* kept, (KM_KNOBS) */
    km_tensor *control;          /* kept, (KM_CONTROL_TENSORS + 2 pieces) */
    km_tensor *head;             /* kept, the control's first KM_CONTROL_TENSORS */
    km_tensor *loss_scale;       /* kept, a scalar of the control */
    float knob[KM_KNOBS];        /* as last written */
    char **name;                 /* of the states, in order of export */
    int n_names;
    struct km_reducer *reducer; /* NULL with one rank */
    km_tensor **in, **out;      /* operands of a call, room for all pieces */
};

/* Whether parameter i has that kind of state. */
bool km_optimizer_has(const km_optimizer *o, int i, int kind);
/* A flat view of `count` elements of t, `first` elements in. */
km_tensor km_flat_view(const km_tensor *t, int64_t first, int64_t count);
/* Makes the list of names; frees it. */
km_status km_optimizer_name_states(km_ctx *ctx, km_optimizer *o);

#endif

/* Sorting out the axes of a reduction. */
#include "backend/cpu/reduce.h"

/* Adds an axis, keeping strides in falling order; repeated elements (stride 0) come first. */
static void add_axis(km_reduce_axes *s, int64_t dim, int64_t x, int64_t out) {
    int at = s->n++;
    int64_t rank = x ? x : INT64_MAX;
    for (; at > 0 && (s->x[at - 1] ? s->x[at - 1] : INT64_MAX) < rank; at--) {
        s->dim[at] = s->dim[at - 1];
        s->x[at] = s->x[at - 1];
        s->out[at] = s->out[at - 1];
    }
    s->dim[at] = dim;
    s->x[at] = x;
    s->out[at] = out;
    s->count *= dim;
}

static void merge_axes(km_reduce_axes *s) {
    int n = 0;
    for (int a = 0; a < s->n; a++) {
        int64_t dim = s->dim[a], x = s->x[a], out = s->out[a];
        if (n > 0 && s->x[n - 1] == x * dim && s->out[n - 1] == out * dim) {
            s->dim[n - 1] *= dim;
        } else {
            s->dim[n++] = dim;
        }
        s->x[n - 1] = x;
        s->out[n - 1] = out;
    }
    s->n = n;
}

void km_reduce_plan(const km_call *c, km_reduce_axes *kept, km_reduce_axes *reduced) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int to = 0;
    *kept = *reduced = (km_reduce_axes){.count = 1};
    for (int a = 0; a < x->shape.ndim; a++) {
        bool gone = (c->p->axes >> a) & 1u;
        int64_t dim = x->shape.dim[a];
        int64_t out_stride = gone ? 0 : out->stride[c->p->keepdim ? a : to];
        if (!gone) to++;
        if (dim == 1) continue;
        add_axis(gone ? reduced : kept, dim, x->stride[a], out_stride);
    }
    merge_axes(kept);
    merge_axes(reduced);
    km_reduce_axes *sets[2] = {kept, reduced};
    for (int i = 0; i < 2; i++)
        if (sets[i]->n == 0) { /* one element: an axis of one, for the loops' sake */
            sets[i]->n = 1;
            sets[i]->dim[0] = sets[i]->x[0] = sets[i]->out[0] = 1;
        }
}

int64_t km_reduce_at(const km_reduce_axes *axes, int64_t i, int64_t *out) {
    int64_t in_x = 0, in_out = 0;
    for (int a = axes->n - 1; a >= 0; a--) {
        int64_t k = i % axes->dim[a];
        i /= axes->dim[a];
        in_x += k * axes->x[a];
        in_out += k * axes->out[a];
    }
    if (out) *out = in_out;
    return in_x;
}

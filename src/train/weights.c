/* Parameters to and from safetensors. */
#include "train/weights.h"
#include "base/alloc.h"
#include "format/safetensors.h"
#include <stdio.h>
#include <string.h>

/* What one tensor of the file is: rows [row, row + rows) of a parameter. */
typedef struct piece {
    km_model *model;
    const km_param *param;
    int64_t row, rows;
    char *name;
    char **buffer; /* shared: the tensor that is being written, whole */
} piece;

static km_shape shape_of(const piece *p) {
    km_shape s = p->param->t->shape;
    s.dim[0] = p->rows;
    if (p->param->conv1d && s.ndim == 2) {
        s.dim[0] = p->param->t->shape.dim[1];
        s.dim[1] = p->rows;
    }
    return s;
}

static size_t bytes_of(const piece *p) {
    return (size_t)km_shape_count(shape_of(p)) * km_dtype_size(p->param->t->dtype);
}

/* The parameter as the file has it: a view, so that writing to it writes the parameter. Called
 * with recording off. */
static km_tensor *view_of(const piece *p) {
    km_ctx *ctx = p->model->ctx;
    km_tensor *t = p->param->t;
    if (p->rows != t->shape.dim[0]) t = km_narrow(ctx, t, 0, p->row, p->rows);
    return p->param->conv1d && t->shape.ndim == 2 ? km_transpose(ctx, t, 0, 1) : t;
}

static km_status fill(void *user, size_t offset, void *dst, size_t bytes, km_error *err) {
    piece *p = user;
    km_ctx *ctx = p->model->ctx;
    if (offset == 0) {
        km_no_grad_begin(ctx);
        km_status s = km_read(ctx, view_of(p), *p->buffer, bytes_of(p));
        km_no_grad_end(ctx);
        if (s != KM_OK) return km_error_set(err, s, "%s", km_ctx_error(ctx));
    }
    memcpy(dst, *p->buffer + offset, bytes);
    return KM_OK;
}

/* The tokens' tables have rows of padding that belong to a checkpoint but to no export. */
static bool padded(const km_model *m, const km_param *param) {
    return km_config_rows(&m->config) != m->config.vocab &&
           (param->t == m->wte.w || param->t == m->head.w);
}

static int list_pieces(km_model *m, bool padding, piece *out, char **buffer) {
    int n = 0;
    for (int i = 0; i < m->params.n; i++) {
        const km_param *param = &m->params.at[i];
        int64_t rows = param->t->shape.dim[0], vocab = m->config.vocab;
        piece p = {m, param, 0, padded(m, param) ? vocab : rows, NULL, buffer};
        size_t size = strlen(param->name) + sizeof ".padding";
        p.name = km_alloc(size);
        if (p.name) snprintf(p.name, size, "%s", param->name);
        out[n++] = p;
        if (!padding || !padded(m, param)) continue;
        p.row = vocab;
        p.rows = rows - vocab;
        p.name = km_alloc(size);
        if (p.name) snprintf(p.name, size, "%s.padding", param->name);
        out[n++] = p;
    }
    return n;
}

static void free_pieces(piece *pieces, int n) {
    for (int i = 0; pieces && i < n; i++) km_free(pieces[i].name);
    km_free(pieces);
}

static km_status no_memory(km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "out of memory for the weights");
}

km_status km_weights_save(const char *path, km_model *m, bool merged, km_error *err) {
    static const km_st_pair meta[] = {{"format", "pt"}}; /* what Hugging Face's loaders ask for */
    char *buffer = NULL;
    int n = 0;
    size_t largest = 1;
    piece *pieces = km_calloc((size_t)m->params.n + 2, sizeof *pieces);
    km_st_item *items = km_calloc((size_t)m->params.n + 2, sizeof *items);
    km_status s = pieces && items ? KM_OK : no_memory(err);
    if (s == KM_OK) n = list_pieces(m, !merged, pieces, &buffer);
    for (int i = 0; i < n; i++) {
        piece *p = &pieces[i];
        if (!p->name) s = no_memory(err);
        if (bytes_of(p) > largest) largest = bytes_of(p);
        items[i] = (km_st_item){.name = p->name,
                                .dtype = p->param->t->dtype,
                                .shape = shape_of(p),
                                .fill = fill,
                                .user = p};
    }
    buffer = km_alloc(largest);
    if (s == KM_OK && !buffer) s = no_memory(err);
    if (s == KM_OK) s = km_safetensors_write(path, items, n, meta, 1, err);
    km_free(buffer);
    km_free(items);
    free_pieces(pieces, n);
    return s;
}

static km_status load_piece(const km_safetensors *f, const char *path, const piece *p,
                            km_error *err) {
    const km_st_tensor *t = km_safetensors_find(f, p->name);
    km_ctx *ctx = p->model->ctx;
    if (!t)
        return km_error_set(err, KM_ERR_FORMAT, "'%s' lacks %s, which the model has", path,
                            p->name);
    char a[KM_SHAPE_TEXT], b[KM_SHAPE_TEXT];
    if (!km_shape_equal(t->shape, shape_of(p)) || t->dtype != p->param->t->dtype)
        return km_error_set(err, KM_ERR_FORMAT, "'%s': %s is %s of %s, and the model's %s of %s",
                            path, p->name, km_shape_text(a, t->shape), t->type,
                            km_shape_text(b, shape_of(p)), km_dtype_name(p->param->t->dtype));
    km_no_grad_begin(ctx);
    km_status s = km_write(ctx, view_of(p), t->data, t->bytes);
    km_no_grad_end(ctx);
    return s == KM_OK ? s : km_error_set(err, s, "%s", km_ctx_error(ctx));
}

km_status km_weights_load(const char *path, km_model *m, km_error *err) {
    km_safetensors *f = km_safetensors_open(path, err);
    if (!f) return KM_ERR_FORMAT;
    piece *pieces = km_calloc((size_t)m->params.n + 2, sizeof *pieces);
    km_status s = pieces ? KM_OK : no_memory(err);
    int n = pieces ? list_pieces(m, true, pieces, NULL) : 0;
    for (int i = 0; i < n && s == KM_OK; i++)
        s = pieces[i].name ? load_piece(f, path, &pieces[i], err) : no_memory(err);
    free_pieces(pieces, n);
    km_safetensors_close(f);
    km_step_end(m->ctx);
    return s;
}

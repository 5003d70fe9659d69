/* Every function of kermes.h, called with nothing, and in a context that works with nothing else; those on
 * objects with what never was one or is closed (of tensors, graphs and lists of parameters that cannot be
 * told); then sizes beyond all memory. Each is an error that is
 * told, or nothing at all. The header is read: a function without a row here fails the test. */
#include "api/inputs.h"
#include "base/error.h"
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MOST 1000
static const char *rows[MOST]; /* of the functions that were called with nothing */
static int n_rows;

static km_ctx *working;
static bool no_context; /* in these calls: as with a context that failed, nothing is done or told */

/* Before a call: an error of no call's, so that one that is told shows. */
static void begin(const char *name) {
    km_ctx_clear_error(working);
    km_public_fail(KM_ERR_PEER, "nothing was told");
    for (int i = 0; i < n_rows; i++)
        if (strcmp(rows[i], name) == 0) return;
    assert_true(n_rows < MOST);
    rows[n_rows++] = name;
}

static int wrong; /* calls that did not do so; a test names all of them before it fails */

static void told(const char *name, bool failed) {
    if (failed && no_context) return;
    const char *what = !failed                                          ? "gave a result"
                       : km_last_status() == KM_ERR_PEER                ? "told no error"
                       : km_last_status() == KM_OK || !*km_last_error() ? "no status or text"
                                                                        : NULL;
    if (!what) return;
    print_error("%s: %s\n", name, what);
    wrong++;
}

static bool is_last(km_status s) { /* asked after the call */
    return no_context ? s != KM_OK : s == km_last_status();
}

static void none_was_wrong(void) {
    int n = wrong;
    wrong = 0;
    if (n) fail_msg("%d calls did not tell their error", n);
}

/* The call gives NULL, a status, -1, 0 or a struct of size 0, and tells why. */
#define NONE(name, args) (begin(#name), told(#name, (name args) == NULL))
#define STATUS(name, args) (begin(#name), told(#name, is_last(name args)))
#define MINUS(name, args) (begin(#name), told(#name, (name args) == -1))
#define ZERO(name, args) (begin(#name), told(#name, (name args) == 0))
#define SIZED(name, args) (begin(#name), told(#name, (name args).size == 0))
/* It needs nothing, and gives something. */
#define GIVES(name, args)                                                                          \
    (begin(#name), (name args) != NULL ? (void)0 : (print_error(#name ": NULL\n"), (void)wrong++))
/* It gives a value that says nothing, or needs nothing; it comes back. */
#define QUIET(name, args) (begin(#name), (void)(name args))

/* Calls in a context, of which c is one that works, or none. */
static void in_context(km_ctx *c) {
    no_context = !c;
    QUIET(km_seed, (c, 0));
    QUIET(km_sync, (c));
    QUIET(km_ctx_allow_tf32, (c, false));
    STATUS(km_ctx_set_activations, (c, 0));
    QUIET(km_ctx_set_fallback, (c, false));
    QUIET(km_ctx_lost, (c));
    QUIET(km_step_end, (c));
    STATUS(km_graph_run, (c, NULL, 0, NULL, NULL));
    QUIET(km_stats_reset_peak, (c));
    QUIET(km_trim, (c));
    NONE(km_profile_end, (c, NULL));
    NONE(km_from_data, (c, 0, KM_SCALAR, NULL));
    STATUS(km_read, (c, NULL, NULL, 0));
    STATUS(km_write, (c, NULL, NULL, 0));
    ZERO(km_item, (c, NULL));
    NONE(km_keep, (c, NULL));
    NONE(km_to, (c, NULL, NULL));
    STATUS(km_assign, (c, NULL, NULL));
    NONE(km_from_dlpack, (c, NULL));
    NONE(km_from_dlpack_versioned, (c, NULL));
    NONE(km_to_dlpack, (c, NULL));
    NONE(km_to_dlpack_versioned, (c, NULL));
    NONE(km_file_load, (c, NULL, NULL));
    NONE(km_load, (c, NULL, NULL));
    STATUS(km_save, (c, NULL, NULL, 0, NULL));
    NONE(km_copy, (c, NULL));
    NONE(km_contiguous, (c, NULL));
    NONE(km_cast, (c, NULL, 0));
    NONE(km_slice, (c, NULL, 0, 0, 0, 0));
    NONE(km_narrow, (c, NULL, 0, 0, 0));
    NONE(km_select, (c, NULL, 0, 0));
    NONE(km_transpose, (c, NULL, 0, 0));
    NONE(km_permute, (c, NULL, NULL));
    NONE(km_reshape, (c, NULL, KM_SCALAR));
    NONE(km_broadcast, (c, NULL, KM_SCALAR));
    NONE(km_unsqueeze, (c, NULL, 0));
    NONE(km_squeeze, (c, NULL, 0));
    STATUS(km_split, (c, NULL, 0, 0, NULL));
    NONE(km_add, (c, NULL, NULL));
    NONE(km_sub, (c, NULL, NULL));
    NONE(km_mul, (c, NULL, NULL));
    NONE(km_div, (c, NULL, NULL));
    NONE(km_pow, (c, NULL, NULL));
    NONE(km_maximum, (c, NULL, NULL));
    NONE(km_minimum, (c, NULL, NULL));
    NONE(km_add_scalar, (c, NULL, 0));
    NONE(km_mul_scalar, (c, NULL, 0));
    NONE(km_pow_scalar, (c, NULL, 0));
    NONE(km_neg, (c, NULL));
    NONE(km_abs, (c, NULL));
    NONE(km_sqrt, (c, NULL));
    NONE(km_rsqrt, (c, NULL));
    NONE(km_exp, (c, NULL));
    NONE(km_log, (c, NULL));
    NONE(km_sin, (c, NULL));
    NONE(km_cos, (c, NULL));
    NONE(km_tanh, (c, NULL));
    NONE(km_sigmoid, (c, NULL));
    NONE(km_relu, (c, NULL));
    NONE(km_gelu, (c, NULL));
    NONE(km_gelu_erf, (c, NULL));
    NONE(km_silu, (c, NULL));
    NONE(km_clamp, (c, NULL, 0, 0));
    NONE(km_eq, (c, NULL, NULL));
    NONE(km_ne, (c, NULL, NULL));
    NONE(km_lt, (c, NULL, NULL));
    NONE(km_le, (c, NULL, NULL));
    NONE(km_gt, (c, NULL, NULL));
    NONE(km_ge, (c, NULL, NULL));
    NONE(km_where, (c, NULL, NULL, NULL));
    NONE(km_masked_fill, (c, NULL, NULL, 0));
    NONE(km_triu, (c, NULL, 0));
    NONE(km_tril, (c, NULL, 0));
    NONE(km_dropout, (c, NULL, 0));
    NONE(km_sum, (c, NULL, NULL, 0, false));
    NONE(km_mean, (c, NULL, NULL, 0, false));
    NONE(km_max, (c, NULL, NULL, 0, false));
    NONE(km_var, (c, NULL, NULL, 0, false, 0));
    NONE(km_logsumexp, (c, NULL, NULL, 0, false));
    NONE(km_argmax, (c, NULL, 0, false));
    NONE(km_matmul, (c, NULL, NULL));
    NONE(km_linear, (c, NULL, NULL, NULL, 0));
    NONE(km_mlp, (c, NULL, NULL, NULL, 0, NULL, NULL));
    NONE(km_softmax, (c, NULL, 0));
    NONE(km_log_softmax, (c, NULL, 0));
    NONE(km_layer_norm, (c, NULL, NULL, NULL, 0));
    NONE(km_rms_norm, (c, NULL, NULL, 0));
    NONE(km_add_layer_norm, (c, NULL, NULL, NULL, NULL, 0, NULL));
    NONE(km_add_rms_norm, (c, NULL, NULL, NULL, 0, NULL));
    NONE(km_embedding, (c, NULL, NULL));
    NONE(km_gather, (c, NULL, 0, NULL));
    NONE(km_scatter_add, (c, NULL, 0, NULL, NULL));
    NONE(km_scatter, (c, NULL, 0, NULL, NULL));
    NONE(km_index_select, (c, NULL, 0, NULL));
    NONE(km_masked_select, (c, NULL, NULL));
    NONE(km_masked_scatter, (c, NULL, NULL, NULL));
    NONE(km_nonzero, (c, NULL));
    NONE(km_concat, (c, NULL, 0, 0));
    NONE(km_stack, (c, NULL, 0, 0));
    NONE(km_repeat, (c, NULL, 0, 0));
    NONE(km_repeat_each, (c, NULL, 0, 0));
    NONE(km_one_hot, (c, NULL, 0, 0));
    NONE(km_sort, (c, NULL, 0, false, NULL));
    NONE(km_topk, (c, NULL, 0, 0, false, NULL));
    NONE(km_cumsum, (c, NULL, 0));
    NONE(km_rope, (c, NULL, NULL, 0, 0, 0));
    NONE(km_attention, (c, NULL, NULL, NULL, false, 0));
    NONE(km_attention_qkv, (c, NULL, 0, 0, false, 0));
    NONE(km_cross_entropy, (c, NULL, NULL, 0, 0));
    NONE(km_linear_cross_entropy, (c, NULL, NULL, NULL, 0, 0, 0));
    NONE(km_mse, (c, NULL, NULL, 0));
    NONE(km_bce_with_logits, (c, NULL, NULL, 0));
    STATUS(km_require_grad, (c, NULL, false));
    STATUS(km_backward, (c, NULL));
    QUIET(km_zero_grad, (c, NULL, 0));
    QUIET(km_no_grad_begin, (c));
    QUIET(km_no_grad_end, (c));
    NONE(km_detach, (c, NULL));
    STATUS(km_sgd_step, (c, NULL, NULL, 0, NULL));
    STATUS(km_adamw_step, (c, NULL, NULL, NULL, 0, NULL));
    NONE(km_custom, (c, NULL, NULL, 0));
    STATUS(km_check_grad, (c, NULL, NULL, NULL, 0, 0, NULL));
    NONE(km_param_add, (c, NULL, KM_F32, KM_SCALAR, false, "%s", "w"));
    MINUS(km_param_freeze, (c, NULL, NULL, false));
    NONE(km_optimizer_new, (c, NULL, NULL));
    STATUS(km_optimizer_set, (c, NULL, 0, 0));
    NONE(km_optimizer_scale_loss, (c, NULL, NULL));
    STATUS(km_optimizer_step, (c, NULL));
    QUIET(km_optimizer_zero_grad, (c, NULL));
    STATUS(km_optimizer_report, (c, NULL, NULL));
    STATUS(km_param_list_save, (c, NULL, NULL, NULL, 0));
    STATUS(km_param_list_load, (c, NULL, NULL, NULL, NULL));
    NONE(km_index_build, (c, NULL, 0, 0, NULL, NULL));
    STATUS(km_index_compress, (c, NULL, NULL, NULL));
    STATUS(km_index_compress_from, (c, NULL, NULL, NULL, NULL, NULL));
    STATUS(km_anchors_learn, (c, NULL, 0, 0, NULL, NULL, NULL));
    NONE(km_searcher_new, (c, NULL));
    STATUS(km_index_add, (c, NULL, NULL, 0, NULL));
    STATUS(km_index_add_from, (c, NULL, NULL, NULL, false, NULL));
    STATUS(km_index_merge, (c, NULL, NULL, NULL));
    STATUS(km_index_measure, (c, NULL, NULL, NULL, 0, 0, NULL, NULL));
    STATUS(km_index_report, (c, NULL, NULL, NULL, 0, NULL, NULL));
    no_context = false;
}

static void without_a_context(void) {
    no_context = true;
    QUIET(km_ctx_free, (NULL));
    STATUS(km_ctx_status, (NULL));
    QUIET(km_ctx_error, (NULL));
    QUIET(km_ctx_clear_error, (NULL));
    STATUS(km_ctx_fail, (NULL, KM_ERR_STATE, "%s", "an error of the caller's"));
    QUIET(km_ctx_device, (NULL));
    QUIET(km_ctx_threads, (NULL));
    QUIET(km_ctx_activations, (NULL));
    QUIET(km_scope_begin, (NULL));
    NONE(km_scope_end, (NULL, NULL));
    QUIET(km_ctx_stats, (NULL));
    STATUS(km_profile_begin, (NULL));
    NONE(km_ctx_stream, (NULL));
    NONE(km_zeros, (NULL, 0, KM_SCALAR));
    NONE(km_ones, (NULL, 0, KM_SCALAR));
    NONE(km_full, (NULL, 0, KM_SCALAR, 0));
    NONE(km_arange, (NULL, 0, 0, 0, 0));
    NONE(km_uniform, (NULL, 0, KM_SCALAR, 0, 0));
    NONE(km_normal, (NULL, 0, KM_SCALAR, 0, 0));
    QUIET(km_clip_grad_norm, (NULL, NULL, 0, 0));
    no_context = false;
}

static void nothing_at_all_is_an_error_or_nothing(void **state) {
    (void)state;
    GIVES(km_version, ());
    GIVES(km_status_name, (0));
    GIVES(km_status_text, (0));
    QUIET(km_last_status, ());
    GIVES(km_last_error, ());
    QUIET(km_string_free, (NULL));
    QUIET(km_set_log, (NULL, NULL));
    GIVES(km_dtype_name, (0));
    QUIET(km_dtype_size, (0));
    QUIET(km_dtype_block, (0));
    NONE(km_ctx_new, (NULL, 0));
    QUIET(km_graph_captured, (NULL));
    QUIET(km_graph_free, (NULL));
    QUIET(km_tensor_shape, (NULL));
    QUIET(km_tensor_ndim, (NULL));
    QUIET(km_tensor_dim, (NULL, 0));
    QUIET(km_tensor_count, (NULL));
    QUIET(km_tensor_dtype, (NULL));
    QUIET(km_tensor_device, (NULL));
    QUIET(km_tensor_is_contiguous, (NULL));
    QUIET(km_tensor_data, (NULL));
    QUIET(km_tensor_device_data, (NULL));
    QUIET(km_release, (NULL));
    NONE(km_file_open, (NULL));
    QUIET(km_file_close, (NULL));
    QUIET(km_file_count, (NULL));
    QUIET(km_file_at, (NULL, 0));
    QUIET(km_file_find, (NULL, NULL));
    QUIET(km_file_meta, (NULL, NULL));
    QUIET(km_file_meta_int, (NULL, NULL, NULL));
    QUIET(km_device_count, ());
    GIVES(km_device_describe, (0));
    QUIET(km_string_free, (km_devices_json(NULL))); /* NULL: the best one */
    begin("km_devices_json");
    QUIET(km_requires_grad, (NULL));
    QUIET(km_grad, (NULL));
    QUIET(km_sgd_defaults, ());
    QUIET(km_adamw_defaults, ());
    QUIET(km_train_defaults, ());
    STATUS(km_train_read_json, (NULL, NULL, 0, NULL));
    STATUS(km_train_read_file, (NULL, NULL));
    STATUS(km_train_read_run, (NULL, NULL));
    QUIET(km_train_settings_free, (NULL));
    STATUS(km_train_check, (NULL));
    GIVES(km_train_setting, (0));
    STATUS(km_train, (NULL, NULL, NULL));
    STATUS(km_train_json, (NULL, NULL, NULL));
    STATUS(km_train_demo_text, (NULL, 0, 0));
    QUIET(km_rank, ());
    QUIET(km_param_list_free, (km_param_list_new()));
    begin("km_param_list_new");
    QUIET(km_param_list_free, (NULL));
    QUIET(km_param_count, (NULL));
    QUIET(km_param_at, (NULL, 0));
    QUIET(km_param_name, (NULL, 0));
    QUIET(km_param_named, (NULL, NULL));
    QUIET(km_optim_defaults, ());
    QUIET(km_optimizer_free, (NULL));
    QUIET(km_schedule_lr, (NULL, 0));
    QUIET(km_model_defaults, ());
    NONE(km_model_open, (NULL, NULL));
    NONE(km_model_find, (NULL));
    QUIET(km_model_known, (NULL, false));
    QUIET(km_string_free, (km_model_folder()));
    begin("km_model_folder");
    NONE(km_model_open_fd, (-1, NULL));
    NONE(km_model_open_memory, (NULL, 0, NULL));
    NONE(km_model_open_reader, (NULL, NULL));
    QUIET(km_model_close, (NULL));
    SIZED(km_model_describe, (NULL));
    NONE(km_model_describe_json, (NULL));
    QUIET(km_model_follows, (NULL));
    STATUS(km_model_follow, (NULL));
    STATUS(km_model_add_adapter, (NULL, NULL));
    STATUS(km_model_remove_adapter, (NULL, NULL));
    NONE(km_model_adapters_json, (NULL));
    QUIET(km_ranks, ());
    MINUS(km_tokenize, (NULL, NULL, 0, 0, NULL, 0));
    MINUS(km_detokenize, (NULL, NULL, 0, 0, NULL, 0));
    NONE(km_token_piece, (NULL, 0, NULL));
    MINUS(km_model_bos, (NULL));
    MINUS(km_model_eos, (NULL));
    QUIET(km_token_ends, (NULL, 0));
    QUIET(km_token_special, (NULL, 0));
    NONE(km_tokenizer_open, (NULL));
    QUIET(km_tokenizer_close, (NULL));
    STATUS(km_tokenizer_save, (NULL, NULL));
    SIZED(km_tokenizer_describe, (NULL));
    MINUS(km_tokenizer_encode, (NULL, NULL, 0, 0, NULL, 0));
    MINUS(km_tokenizer_decode, (NULL, NULL, 0, 0, NULL, 0));
    NONE(km_tokenizer_piece, (NULL, 0, NULL));
    STATUS(km_tokenizer_encode_large, (NULL, NULL, 0, 0, 0, NULL, NULL));
    QUIET(km_tokenizer_defaults, ());
    MINUS(km_tokenizer_train, (NULL, NULL, 0, NULL));
    QUIET(km_render_defaults, ());
    NONE(km_render_chat, (NULL, NULL, NULL));
    STATUS(km_embed_tokens, (NULL, NULL, 0, NULL));
    QUIET(km_model_pooling, (NULL));
    QUIET(km_embed_defaults, ());
    STATUS(km_embed, (NULL, NULL, NULL, 0, NULL, NULL));
    MINUS(km_relevance_tokens, (NULL, NULL, 0, NULL, 0, false, NULL, 0));
    STATUS(km_relevance, (NULL, NULL, NULL, 0, NULL, NULL));
    NONE(km_answer_parser_new, (NULL, 0, 0, NULL, NULL));
    QUIET(km_answer_parser_free, (NULL));
    STATUS(km_answer_parser_put, (NULL, NULL, 0));
    STATUS(km_answer_parser_special, (NULL, NULL, 0));
    STATUS(km_answer_parser_end, (NULL));
    MINUS(km_answer_parser_calls, (NULL));
    QUIET(km_sampling_defaults, ());
    STATUS(km_sampling_check, (NULL));
    QUIET(km_model_sampling, (NULL));
    GIVES(km_end_name, (0));
    QUIET(km_generation_defaults, (NULL));
    STATUS(km_grammar_check, (NULL, NULL, false));
    NONE(km_session_new, (NULL));
    QUIET(km_session_free, (NULL));
    NONE(km_session_fork, (NULL));
    STATUS(km_session_read, (NULL, NULL, 0));
    NONE(km_session_logits, (NULL));
    MINUS(km_session_length, (NULL));
    NONE(km_session_tokens, (NULL));
    STATUS(km_session_rewind, (NULL, 0));
    STATUS(km_session_save, (NULL, NULL));
    STATUS(km_session_restore, (NULL, NULL));
    STATUS(km_session_set_adapters, (NULL, NULL, 0));
    QUIET(km_session_cancel, (NULL));
    STATUS(km_generate, (NULL, NULL, 0, NULL, NULL));
    STATUS(km_generate_chat, (NULL, NULL, NULL, NULL, NULL));
    NONE(km_generate_text, (NULL, NULL, NULL));
    STATUS(km_generate_begin, (NULL, NULL, 0, NULL));
    STATUS(km_generate_begin_ids, (NULL, NULL, 0, NULL));
    MINUS(km_generate_next, (NULL, NULL));
    QUIET(km_generate_state, (NULL));
    QUIET(km_batch_defaults, ());
    NONE(km_batch_new, (NULL, NULL));
    QUIET(km_batch_free, (NULL));
    MINUS(km_batch_join, (NULL));
    MINUS(km_batch_fork, (NULL, 0, 0));
    STATUS(km_batch_leave, (NULL, 0));
    STATUS(km_batch_start, (NULL, 0, NULL, 0, NULL));
    STATUS(km_batch_stop, (NULL, 0));
    STATUS(km_batch_pause, (NULL, 0));
    STATUS(km_batch_resume, (NULL, 0));
    STATUS(km_batch_rewind, (NULL, 0, 0));
    MINUS(km_batch_pages_ahead, (NULL));
    STATUS(km_batch_save, (NULL, 0, NULL));
    STATUS(km_batch_restore, (NULL, 0, NULL));
    STATUS(km_batch_set_adapters, (NULL, 0, NULL, 0));
    MINUS(km_batch_step, (NULL, NULL, 0));
    QUIET(km_batch_describe, (NULL));
    MINUS(km_batch_length, (NULL, 0));
    MINUS(km_batch_tokens, (NULL, 0, NULL, 0));
    QUIET(km_batch_generated, (NULL, 0));
    QUIET(km_perplexity_defaults, ());
    STATUS(km_perplexity, (NULL, NULL, 0, NULL, NULL));
    QUIET(km_anchor_training_defaults, ());
    QUIET(km_index_defaults, ());
    QUIET(km_search_defaults, ());
    QUIET(km_vectors_defaults, ());
    NONE(km_vectors_open, (NULL, NULL));
    NONE(km_vectors_open_memory, (NULL, 0, NULL));
    QUIET(km_vectors_close, (NULL));
    QUIET(km_vectors_count, (NULL));
    QUIET(km_vectors_dim, (NULL));
    QUIET(km_vectors_type, (NULL));
    STATUS(km_vectors_read, (NULL, 0, 0, NULL));
    STATUS(km_vectors_read_ids, (NULL, NULL, 0));
    STATUS(km_vectors_save, (NULL, NULL, NULL, 0, 0));
    STATUS(km_vectors_rerank, (NULL, 0, NULL, 0, NULL, 0, 0, NULL, NULL));
    NONE(km_index_open, (NULL));
    QUIET(km_index_close, (NULL));
    SIZED(km_index_describe, (NULL));
    STATUS(km_index_search, (NULL, NULL, 0, 0, NULL, 0, NULL, NULL));
    QUIET(km_searcher_free, (NULL));
    STATUS(km_searcher_search, (NULL, NULL, 0, 0, NULL, NULL, NULL));
    QUIET(km_searcher_on_gpu, (NULL));
    STATUS(km_index_delete, (NULL, NULL, 0));
    STATUS(km_index_delete_some, (NULL, NULL, 0, NULL));
    MINUS(km_index_ids, (NULL, NULL, 0));
    STATUS(km_index_decode, (NULL, NULL, 0, NULL));
    QUIET(km_decompress_defaults, ());
    MINUS(km_index_decompress, (NULL, NULL, NULL));
    STATUS(km_index_anchors, (NULL, NULL));
    STATUS(km_index_assignments, (NULL, NULL, 0, NULL));
    STATUS(km_index_save, (NULL, NULL, false));
    QUIET(km_report_defaults, ());
    QUIET(km_convert_defaults, ());
    GIVES(km_convert_type, (0));
    QUIET(km_convert_type_named, (NULL));
    STATUS(km_convert, (NULL, NULL, NULL, NULL));
    QUIET(km_describe_defaults, ());
    NONE(km_describe_file, (NULL, NULL));
#define SIZED_ROW(type, name) STATUS(name##_sized, (NULL, 0));
#define SIZED_OF_ROW(type, name, object) STATUS(name##_sized, (NULL, NULL, 0));
    KM_SIZED_LIST(SIZED_ROW)
    KM_SIZED_OF_LIST(SIZED_OF_ROW)
    STATUS(km_batch_generated_sized, (NULL, 0, NULL, 0));
    without_a_context();
    in_context(NULL);
    working = km_ctx_new("cpu", 1);
    assert_non_null(working);
    in_context(working);
    km_ctx_free(working);
    working = NULL;
    none_was_wrong();
}

/* The header's own list of functions, each with a row above. */
static void every_function_has_a_row(void **state) {
    (void)state;
    char path[4096], line[1024];
    const char *source = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/include/kermes.h", source ? source : ".");
    FILE *f = fopen(path, "r");
    if (!f) fail_msg("cannot read %s", path);
    int declared = 0;
    while (fgets(line, sizeof line, f)) {
        bool listed = strncmp(line, "    X(km_", 9) == 0; /* X(struct, call...): call_sized */
        if (!listed && (strncmp(line, "KM_API", 6) != 0 || !strchr(line, '('))) continue;
        if (strstr(line, ") {")) continue; /* the body of one that is declared above */
        char *end = strpbrk(line, "(,"), *name = end;
        if (listed) {
            char *call = strchr(line, ',') + 2;
            call[strcspn(call, ",)")] = 0;
            name = memmove(line, call, strlen(call) + 1);
            strcat(line, "_sized");
            end = line + strlen(line);
        }
        *end = 0;
        while (!listed && name > line && name[-1] != ' ' && name[-1] != '*') name--;
        bool found = false;
        for (int i = 0; i < n_rows && !found; i++) found = strcmp(rows[i], name) == 0;
        if (!found) fail_msg("%s has no row in nothing_at_all_is_an_error_or_nothing", name);
        declared++;
    }
    fclose(f);
    assert_int_equal(declared, n_rows);
}

static void no_part(void *user, const km_answer_part *part);
/* ---- Closed and foreign objects ---- */

/* Calls on an index, a file of vectors, a searcher, a parser or a file of tensors, with one that is none. */
static void refused_vectors(void *junk) {
    float x[8] = {0};
    uint64_t ids[8] = {0};
    km_measured m = {.size = sizeof m};
    km_report_options page = km_report_defaults();
    page.path = "/nowhere";
    km_ctx *c = km_ctx_new("cpu", 1);
    QUIET(km_index_close, (junk));
    SIZED(km_index_describe, (junk));
    STATUS(km_index_search, (junk, x, 1, 1, NULL, 1, ids, x));
    NONE(km_searcher_new, (c, junk));
    QUIET(km_searcher_free, (junk));
    STATUS(km_searcher_search, (junk, x, 1, 1, NULL, ids, x));
    QUIET(km_searcher_on_gpu, (junk));
    STATUS(km_index_add, (c, junk, x, 1, NULL));
    STATUS(km_index_add_from, (c, junk, junk, NULL, false, NULL));
    STATUS(km_index_delete, (junk, ids, 1));
    STATUS(km_index_delete_some, (junk, ids, 1, NULL));
    MINUS(km_index_ids, (junk, ids, 1));
    STATUS(km_index_decode, (junk, ids, 1, x));
    MINUS(km_index_decompress, (junk, "/nowhere", NULL));
    STATUS(km_index_anchors, (junk, x));
    STATUS(km_index_assignments, (junk, ids, 1, (int32_t *)(void *)x));
    STATUS(km_index_merge, (c, junk, junk, NULL));
    STATUS(km_index_save, (junk, "/nowhere", false));
    STATUS(km_index_measure, (c, junk, junk, x, 1, 1, NULL, &m));
    STATUS(km_index_report, (c, junk, junk, x, 1, &m, &page));
    STATUS(km_index_compress_from, (c, junk, NULL, "/nowhere", NULL, NULL));
    QUIET(km_vectors_close, (junk));
    ZERO(km_vectors_count, (junk));
    ZERO(km_vectors_dim, (junk));
    ZERO(*km_vectors_type, (junk));
    STATUS(km_vectors_read, (junk, 0, 1, x));
    STATUS(km_vectors_read_ids, (junk, ids, 1));
    STATUS(km_vectors_rerank, (junk, KM_METRIC_L2, x, 1, ids, 1, 1, ids, x));
    QUIET(km_answer_parser_free, (junk));
    STATUS(km_answer_parser_put, (junk, "a", 1));
    STATUS(km_answer_parser_special, (junk, "a", 1));
    STATUS(km_answer_parser_end, (junk));
    MINUS(km_answer_parser_calls, (junk));
    QUIET(km_file_close, (junk));
    ZERO(km_file_count, (junk));
    NONE(km_file_at, (junk, 0));
    NONE(km_file_find, (junk, "w"));
    NONE(km_file_meta, (junk, "k"));
    ZERO(km_file_meta_int, (junk, "k", &(int64_t){0}));
    NONE(km_file_load, (c, junk, "w"));
    km_ctx_clear_error(c);
    QUIET(km_optimizer_free, (junk));
    STATUS(km_optimizer_set, (c, junk, 0, 1));
    km_ctx_clear_error(c);
    STATUS(km_optimizer_step, (c, junk));
    km_ctx_clear_error(c);
    NONE(km_optimizer_scale_loss, (c, junk, NULL));
    km_ctx_clear_error(c);
    QUIET(km_optimizer_zero_grad, (c, junk));
    km_ctx_free(c);
}

/* Calls in a context that is none: tensors are not looked at. */
static void refused_in_contexts(void *junk) {
    float x[8] = {0};
    QUIET(km_ctx_free, (junk));
    STATUS(km_ctx_status, (junk));
    QUIET(km_ctx_error, (junk));
    QUIET(km_ctx_clear_error, (junk));
    STATUS(km_ctx_set_activations, (junk, 8));
    SIZED(km_ctx_stats, (junk));
    QUIET(km_ctx_device, (junk));
    QUIET(km_ctx_threads, (junk));
    QUIET(km_seed, (junk, 1));
    QUIET(km_sync, (junk));
    QUIET(km_trim, (junk));
    QUIET(km_step_end, (junk));
    QUIET(km_scope_begin, (junk));
    NONE(km_scope_end, (junk, NULL));
    QUIET(km_ctx_allow_tf32, (junk, true));
    QUIET(km_ctx_set_fallback, (junk, true));
    QUIET(km_ctx_lost, (junk));
    QUIET(km_ctx_activations, (junk));
    QUIET(km_stats_reset_peak, (junk));
    STATUS(km_profile_begin, (junk));
    NONE(km_profile_end, (junk, NULL));
    NONE(km_ctx_stream, (junk));
    NONE(km_from_data, (junk, KM_F32, KM_SHAPE(8), x));
    NONE(km_zeros, (junk, KM_F32, KM_SHAPE(8)));
    NONE(km_arange, (junk, KM_F32, 8, 0, 1));
    NONE(km_normal, (junk, KM_F32, KM_SHAPE(8), 0, 1));
    NONE(km_add, (junk, NULL, NULL));
    NONE(km_matmul, (junk, NULL, NULL));
    NONE(km_slice, (junk, NULL, 0, 0, 0, 1));
    NONE(km_load, (junk, "/nowhere", NULL));
    STATUS(km_read, (junk, NULL, x, 0));
    STATUS(km_backward, (junk, NULL));
    QUIET(km_zero_grad, (junk, NULL, 0));
    QUIET(km_no_grad_begin, (junk));
    QUIET(km_no_grad_end, (junk));
    NONE(km_index_build, (junk, x, 1, 8, NULL, NULL));
    STATUS(km_anchors_learn, (junk, x, 1, 8, NULL, NULL, NULL));
    NONE(km_optimizer_new, (junk, NULL, NULL));
}

static void refused(void *junk) {
    QUIET(km_model_close, (junk));
    SIZED(km_model_describe, (junk));
    NONE(km_model_describe_json, (junk));
    QUIET(km_model_follows, (junk));
    STATUS(km_model_follow, (junk));
    STATUS(km_model_add_adapter, (junk, NULL));
    STATUS(km_model_remove_adapter, (junk, NULL));
    NONE(km_model_adapters_json, (junk));
    MINUS(km_tokenize, (junk, NULL, 0, 0, NULL, 0));
    MINUS(km_detokenize, (junk, NULL, 0, 0, NULL, 0));
    NONE(km_token_piece, (junk, 0, NULL));
    MINUS(km_model_bos, (junk));
    MINUS(km_model_eos, (junk));
    QUIET(km_token_ends, (junk, 0));
    QUIET(km_token_special, (junk, 0));
    QUIET(km_tokenizer_close, (junk));
    STATUS(km_tokenizer_save, (junk, NULL));
    SIZED(km_tokenizer_describe, (junk));
    MINUS(km_tokenizer_encode, (junk, NULL, 0, 0, NULL, 0));
    MINUS(km_tokenizer_decode, (junk, NULL, 0, 0, NULL, 0));
    NONE(km_tokenizer_piece, (junk, 0, NULL));
    STATUS(km_tokenizer_encode_large, (junk, NULL, 0, 0, 0, NULL, NULL));
    NONE(km_render_chat, (junk, NULL, NULL));
    STATUS(km_embed_tokens, (junk, NULL, 0, NULL));
    QUIET(km_model_pooling, (junk));
    STATUS(km_embed, (junk, NULL, NULL, 0, NULL, NULL));
    MINUS(km_relevance_tokens, (junk, NULL, 0, NULL, 0, false, NULL, 0));
    STATUS(km_relevance, (junk, NULL, NULL, 0, NULL, NULL));
    QUIET(km_model_sampling, (junk));
    NONE(km_session_new, (junk));
    QUIET(km_session_free, (junk));
    NONE(km_session_fork, (junk));
    STATUS(km_session_read, (junk, NULL, 0));
    NONE(km_session_logits, (junk));
    MINUS(km_session_length, (junk));
    NONE(km_session_tokens, (junk));
    STATUS(km_session_rewind, (junk, 0));
    STATUS(km_session_save, (junk, NULL));
    STATUS(km_session_restore, (junk, NULL));
    STATUS(km_session_set_adapters, (junk, NULL, 0));
    QUIET(km_session_cancel, (junk));
    STATUS(km_generate, (junk, NULL, 0, NULL, NULL));
    STATUS(km_generate_chat, (junk, NULL, NULL, NULL, NULL));
    NONE(km_generate_text, (junk, NULL, NULL));
    STATUS(km_generate_begin, (junk, NULL, 0, NULL));
    STATUS(km_generate_begin_ids, (junk, NULL, 0, NULL));
    MINUS(km_generate_next, (junk, NULL));
    QUIET(km_generate_state, (junk));
    NONE(km_batch_new, (junk, NULL));
    QUIET(km_batch_free, (junk));
    MINUS(km_batch_join, (junk));
    MINUS(km_batch_fork, (junk, 0, 0));
    STATUS(km_batch_leave, (junk, 0));
    STATUS(km_batch_start, (junk, 0, NULL, 0, NULL));
    STATUS(km_batch_stop, (junk, 0));
    STATUS(km_batch_pause, (junk, 0));
    STATUS(km_batch_resume, (junk, 0));
    STATUS(km_batch_rewind, (junk, 0, 0));
    MINUS(km_batch_pages_ahead, (junk));
    STATUS(km_batch_save, (junk, 0, NULL));
    STATUS(km_batch_restore, (junk, 0, NULL));
    STATUS(km_batch_set_adapters, (junk, 0, NULL, 0));
    MINUS(km_batch_step, (junk, NULL, 0));
    QUIET(km_batch_describe, (junk));
    MINUS(km_batch_length, (junk, 0));
    MINUS(km_batch_tokens, (junk, 0, NULL, 0));
    QUIET(km_batch_generated, (junk, 0));
    STATUS(km_perplexity, (junk, NULL, 0, NULL, NULL));
    refused_vectors(junk);
    refused_in_contexts(junk);
}

static void what_is_no_object_or_is_closed_is_not_looked_into(void **state) {
    (void)state;
    static char junk[4096];
    refused(junk);
    refused((void *)(uintptr_t)16);
    km_model *m = km_model_open(tiny_path(), NULL);
    km_session *s = km_session_new(m);
    km_batch *b = km_batch_new(m, NULL);
    km_tokenizer *t = km_tokenizer_open("bytes");
    km_ctx *c = km_ctx_new("cpu", 1);
    km_index *i = km_index_build(c, some_vectors(), VECTORS, DIM, NULL, NULL);
    km_searcher *find = km_searcher_new(c, i);
    km_answer_parser *p = km_answer_parser_new(NULL, 0, 0, no_part, NULL);
    km_file *f = km_file_open(tiny_path());
    assert_int_equal(km_vectors_save(in_tmp("closed.npy"), "f32", some_vectors(), VECTORS, DIM),
                     KM_OK);
    km_vectors *v = km_vectors_open(in_tmp("closed.npy"), NULL);
    remove(in_tmp("closed.npy"));
    km_param_list *list = km_param_list_new();
    assert_non_null(km_param_add(c, list, KM_F32, KM_SHAPE(2), true, "w"));
    km_optimizer *o = km_optimizer_new(c, list, NULL);
    assert_true(m && s && b && t && c && i && find && p && f && v && o);
    km_optimizer_free(o);
    km_param_list_free(list);
    km_vectors_close(v);
    km_file_close(f);
    km_answer_parser_free(p);
    /* a searcher whose index is gone */
    float x[DIM] = {0};
    uint64_t id;
    km_index_close(i);
    STATUS(km_searcher_search, (find, x, 1, 1, NULL, &id, x));
    km_searcher_free(find);
    km_ctx_free(c);
    km_session_free(s);
    km_batch_free(b);
    km_model_close(m);
    km_tokenizer_close(t);
    void *closed[] = {s, b, m, t, o, v, f, p, i, find, c};
    for (size_t k = 0; k < sizeof closed / sizeof *closed; k++) refused(closed[k]);
    none_was_wrong();
}

/* ---- Sizes beyond all memory ---- */

#define VAST (INT64_MAX / 2)

static void sizes_of_vectors_beyond_all_memory_are_errors(void **state) {
    (void)state;
    km_ctx *ctx = km_ctx_new("cpu", 1);
    float *x = some_vectors(), dist[8];
    uint64_t ids[8] = {0};
    km_index *i = km_index_build(ctx, x, VECTORS, DIM, NULL, NULL);
    assert_non_null(i);
    assert_int_equal(km_vectors_save(in_tmp("x.npy"), "f32", x, VECTORS, DIM), KM_OK);
    km_vectors *v = km_vectors_open(in_tmp("x.npy"), NULL);
    assert_non_null(v);
    km_measured m = {.size = sizeof m};
    km_decompress_options d = km_decompress_defaults();
    d.ids = ids;
    d.n_ids = VAST;
    NONE(km_index_build, (ctx, x, VAST, DIM, NULL, NULL));
    NONE(km_index_build, (ctx, x, DIM, VAST, NULL, NULL));
    STATUS(km_anchors_learn, (ctx, x, VAST, DIM, NULL, NULL, NULL));
    STATUS(km_index_search, (i, x, VAST, 4, NULL, 1, ids, dist));
    STATUS(km_index_search, (i, x, 4, VAST, NULL, 1, ids, dist));
    STATUS(km_index_add, (ctx, i, x, VAST, NULL));
    STATUS(km_index_delete, (i, ids, VAST));
    STATUS(km_index_delete_some, (i, ids, VAST, NULL));
    STATUS(km_index_decode, (i, ids, VAST, x));
    STATUS(km_index_assignments, (i, ids, VAST, (int32_t *)(void *)dist));
    MINUS(km_index_decompress, (i, in_tmp("never"), &d));
    STATUS(km_index_measure, (ctx, i, v, x, VAST, 10, NULL, &m));
    STATUS(km_index_measure, (ctx, i, v, x, 4, VAST, NULL, &m));
    STATUS(km_vectors_read, (v, 0, VAST, x));
    STATUS(km_vectors_read_ids, (v, ids, VAST));
    STATUS(km_vectors_save, (in_tmp("never"), "f32", x, VAST, DIM));
    STATUS(km_vectors_save, (in_tmp("never"), "u64", x, VAST, 0));
    STATUS(km_vectors_rerank, (v, KM_METRIC_L2, x, VAST, ids, 4, 4, ids, dist));
    STATUS(km_vectors_rerank, (v, KM_METRIC_L2, x, 1, ids, VAST, 4, ids, dist));
    assert_int_equal(km_index_describe(i).count, VECTORS);
    assert_int_not_equal(access(in_tmp("never"), F_OK), 0);
    remove(in_tmp("x.npy"));
    km_vectors_close(v);
    km_index_close(i);
    km_ctx_free(ctx);
    none_was_wrong();
}

static km_status no_bytes(void *user, uint64_t offset, void *to, size_t n) {
    (void)user, (void)offset, (void)to, (void)n;
    return KM_OK;
}

static void sizes_of_models_beyond_all_memory_are_errors(void **state) {
    (void)state;
    km_model_options o = km_model_defaults();
    km_batch_options w = km_batch_defaults();
    km_reader r = {.bytes = UINT64_MAX, .read = no_bytes};
    int32_t ids[4] = {1, 2, 3, 4};
    const int32_t *text = ids;
    km_adapter a = {.path = "none"};
    float out[4];
    o.context = VAST;
    NONE(km_model_open, (tiny_path(), &o));
    o = km_model_defaults();
    o.sequences = VAST;
    NONE(km_model_open, (tiny_path(), &o));
    NONE(km_model_open_reader, (&r, NULL));
    km_model *m = km_model_open(tiny_path(), NULL);
    km_session *s = km_session_new(m);
    w.sequences = VAST;
    NONE(km_batch_new, (m, &w));
    km_batch *b = km_batch_new(m, NULL);
    assert_true(m && s && b && km_batch_join(b) == 0);
    STATUS(km_embed_tokens, (m, ids, SIZE_MAX / 8, out));
    STATUS(km_session_read, (s, ids, SIZE_MAX / 8));
    STATUS(km_embed, (m, &text, &(size_t){SIZE_MAX / 8}, 1, NULL, out));
    STATUS(km_session_rewind, (s, VAST));
    STATUS(km_session_set_adapters, (s, &a, VAST));
    STATUS(km_session_set_adapters, (s, &a, -2));
    STATUS(km_generate_begin_ids, (s, ids, SIZE_MAX / 8, NULL));
    STATUS(km_batch_start, (b, 0, ids, SIZE_MAX / 8, NULL));
    STATUS(km_batch_start, (b, INT_MAX, ids, 4, NULL));
    STATUS(km_batch_pause, (b, INT_MAX));
    STATUS(km_batch_resume, (b, -1));
    STATUS(km_batch_rewind, (b, INT_MAX, 0));
    STATUS(km_batch_save, (b, INT_MAX, in_tmp("never")));
    STATUS(km_batch_restore, (b, -1, in_tmp("never")));
    STATUS(km_batch_set_adapters, (b, 0, &a, VAST));
    STATUS(km_batch_set_adapters, (b, -1, NULL, 0));
    MINUS(km_batch_fork, (b, 0, VAST));
    MINUS(km_batch_fork, (b, INT_MAX, 0));
    MINUS(km_batch_length, (b, INT_MAX));
    MINUS(km_batch_tokens, (b, -1, NULL, 0));
    assert_int_equal(km_session_read(s, ids, 4), KM_OK); /* as if nothing had been */
    assert_int_equal(km_session_length(s), 4);
    km_batch_free(b);
    km_session_free(s);
    km_model_close(m);
    none_was_wrong();
}

static void no_part(void *user, const km_answer_part *part) {
    (void)user, (void)part;
    fail_msg("a part of no text");
}

static void a_text_beyond_all_memory_is_an_error(void **state) {
    (void)state;
    static const size_t vast[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 2, SIZE_MAX / 2};
    for (size_t i = 0; i < sizeof vast / sizeof *vast; i++) {
        km_answer_parser *p = km_answer_parser_new(NULL, 0, 0, no_part, NULL);
        assert_non_null(p);
        STATUS(km_answer_parser_put, (p, "the sea", vast[i]));
        assert_int_equal(km_last_status(), KM_ERR_MEMORY);
        STATUS(km_answer_parser_end, (p)); /* an answer that lost text is none */
        km_answer_parser_free(p);
    }
    static const char *const no_name[] = {NULL};
    NONE(km_answer_parser_new, (no_name, 1, 0, no_part, NULL));
    NONE(km_answer_parser_new, (NULL, SIZE_MAX, 0, no_part, NULL));
    none_was_wrong();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_at_all_is_an_error_or_nothing),
        cmocka_unit_test(every_function_has_a_row),
        cmocka_unit_test(what_is_no_object_or_is_closed_is_not_looked_into),
        cmocka_unit_test(sizes_of_vectors_beyond_all_memory_are_errors),
        cmocka_unit_test(sizes_of_models_beyond_all_memory_are_errors),
        cmocka_unit_test(a_text_beyond_all_memory_is_an_error),
    };
    setenv("KERMES_MODELS", in_tmp("no-models"), 1); /* NULL is the newest one there: none */
    return cmocka_run_group_tests(tests, NULL, NULL);
}

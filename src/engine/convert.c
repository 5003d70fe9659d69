/* The public call for conversion: paths checked, a training run looked into, and a folder made beside its
 * target and renamed when it is whole. */
#include "base/sized.h"
#include "engine/describe.h"
#include "model/convert.h"
#include "train/checkpoint.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

km_status km_convert_defaults_sized(km_convert_options *out, size_t size) {
    km_convert_options own = {.size = sizeof(km_convert_options)};
    return KM_HAND_OUT(out, size, &own, km_convert_options);
}

const char *km_convert_type(int i) { return i >= 0 && km_mix_at(i) ? km_mix_at(i)->name : NULL; }

const char *km_convert_type_named(const char *name) {
    const km_mix *mix = name ? km_mix_find(name) : NULL;
    return mix ? mix->name : NULL;
}

/* path without slashes at its end, so that its last part is a name */
static bool trim(const char *path, char out[PATH_MAX]) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= PATH_MAX - 64) return false;
    memcpy(out, path, n);
    out[n] = 0;
    return true;
}

static km_status into_folder(km_conversion *job, const char *out, km_conversion_done *done,
                             km_error *err) {
    char temp[PATH_MAX];
    const char *slash = strrchr(out, '/');
    int parent = slash ? (int)(slash - out) + 1 : 0;
    if (snprintf(temp, sizeof temp, "%.*s.kermes-convert-%ld.tmp", parent, out, (long)getpid()) >=
        (int)sizeof temp)
        return km_error_set(err, KM_ERR_FILE, "the path '%.60s...' is too long", out);
    km_status s = km_folder_make(temp, err);
    job->out = temp;
    if (s == KM_OK) s = km_convert_weights(job, done, err);
    if (s == KM_OK) s = km_folder_publish(temp, out, err);
    if (s != KM_OK) km_folder_remove(temp);
    return s;
}

/* What is asked for, as the model room has it. */
static km_status make_job(const km_convert_options *o, const char *out, km_conversion *job,
                          km_error *err) {
    const km_mix *mix = o->type ? km_mix_find(o->type) : NULL;
    *job = (km_conversion){.dtype = KM_DTYPE_COUNT,
                           .imatrix = o->imatrix,
                           .threads = o->threads,
                           .tokenizer = o->tokenizer,
                           .no_tokenizer = o->no_tokenizer,
                           .progress = o->progress,
                           .user = o->user};
    if (o->type && !mix) return km_error_set(err, KM_ERR_RANGE, "unknown type '%.40s'", o->type);
    if (mix && mix->base <= KM_BF16)
        job->dtype = mix->base;
    else
        job->mix = mix;
    if (job->mix && !km_names_gguf(out))
        return km_error_set(err, KM_ERR_RANGE,
                            "weights of type %s need a target whose name ends in .gguf", mix->name);
    if (o->imatrix && !job->mix)
        return km_error_set(err, KM_ERR_RANGE, "an importance matrix needs a type of a few bits");
    if (o->tokenizer && o->no_tokenizer)
        return km_error_set(err, KM_ERR_RANGE, "a tokenizer, and none, exclude each other");
    return o->threads < 0 ? km_error_set(err, KM_ERR_RANGE, "%d threads", o->threads) : KM_OK;
}

/* Whether something may be written at `out`. */
static km_status check_target(const char *in, const char *out, bool replace, km_error *err) {
    char real_in[PATH_MAX], real_out[PATH_MAX];
    struct stat st;
    bool to_gguf = km_names_gguf(out);
    if (lstat(out, &st) != 0) return KM_OK;
    if (realpath(in, real_in) && realpath(out, real_out) && strcmp(real_in, real_out) == 0)
        return km_error_set(err, KM_ERR_STATE, "'%s' cannot be converted into itself", out);
    if (!replace) return km_error_set(err, KM_ERR_STATE, "'%s' is there already", out);
    if (to_gguf != !S_ISDIR(st.st_mode))
        return km_error_set(err, KM_ERR_STATE, "'%s' is %s, and the result would be %s", out,
                            S_ISDIR(st.st_mode) ? "a folder" : "a file",
                            to_gguf ? "a file" : "a folder");
    return KM_OK;
}

static km_status convert(const char *from, const char *to, const km_convert_options *o,
                         km_converted *done, km_error *err) {
    static _Thread_local char in[PATH_MAX];
    char given[PATH_MAX], out[PATH_MAX];
    km_conversion job;
    km_conversion_done d;
    if (!trim(from, given) || !trim(to, out))
        return km_error_set(err, KM_ERR_RANGE, "a path is too long");
    km_status s = make_job(o, out, &job, err);
    if (s == KM_OK && !km_run_folder(given, in)) memcpy(in, given, sizeof in);
    job.in = in;
    job.out = out;
    if (s == KM_OK) s = check_target(in, out, o->replace, err);
    if (s == KM_OK)
        s = km_names_gguf(out) ? km_convert_weights(&job, &d, err)
                               : into_folder(&job, out, &d, err);
    if (s != KM_OK) return s;
    km_converted told = {.from_gguf = d.from_gguf,
                         .to_gguf = d.to_gguf,
                         .architecture = km_arch_name(d.config.arch),
                         .in = in,
                         .tensors = d.tensors,
                         .parameters = d.parameters,
                         .bytes = d.bytes,
                         .tokens = d.tokens,
                         .unweighed = d.unweighed};
    km_give_sized(done, &told, sizeof told);
    return KM_OK;
}

km_status km_convert(const char *in, const char *out, const km_convert_options *options,
                     km_converted *done) {
    km_error err = {0};
    km_convert_options o = km_convert_defaults();
    if (!in || !out || !*in || !*out)
        km_error_set(&err, KM_ERR_NULL, "km_convert: a path is missing");
    else if (km_take_sized(&o, sizeof o, options, "km_convert_options", &err) == KM_OK &&
             km_check_sized(done, sizeof *done, "km_converted", &err) == KM_OK)
        convert(in, out, &o, done, &err);
    if (err.code != KM_OK) km_last_error_set(&err);
    return err.code;
}

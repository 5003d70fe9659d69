/* Ranks over MPI. One thread makes all calls, in the order in which jobs were given, so that a
 * reduction runs beside the backward pass and messages of two jobs never mix. Sums are ours, not
 * MPI's: every rank receives the others' parts and adds them up in the order of the ranks, in f32,
 * so the bits do not depend on who came first. */
#include "comm/mpi.h"
#include "backend/cpu/cast.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/module.h"
#include "comm/mpi_module.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL ((size_t)64 << 10) /* bytes of all ranks together */

enum { JOB_TENSOR, JOB_BARRIER, JOB_BROADCAST, JOB_GATHER };

struct km_mpi {
    const km_mpi_module *call;
    int rank, size;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    km_mpi_job *first, **last;
    bool stop, taken;  /* taken: another thread talks for itself */
    km_mpi_part *part; /* 2 * size */
    void *room;        /* what the others send */
    size_t room_bytes;
};

/* ---- One job ---- */

/* out = sum of src[0..n-1], each `count` elements, in that order. out may be one of them. */
static void sum_parts(void *out, const void *const *src, int n, int64_t count, km_dtype d) {
    enum { BLOCK = 1024 };
    float sum[BLOCK], x[BLOCK];
    int64_t size = (int64_t)km_dtype_size(d);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t m = count - at < BLOCK ? count - at : BLOCK;
        km_cast_run(KM_F32, sum, 1, d, (const char *)src[0] + at * size, 1, m);
        for (int k = 1; k < n; k++) {
            km_cast_run(KM_F32, x, 1, d, (const char *)src[k] + at * size, 1, m);
            for (int64_t i = 0; i < m; i++) sum[i] += x[i];
        }
        km_cast_run(d, (char *)out + at * size, 1, KM_F32, sum, 1, m);
    }
}

static km_status failed(km_mpi_job *job, const char *why) {
    return km_error_set(&job->err, KM_ERR_STATE, "comm: %s", why);
}

/* Elements [r * per, (r + 1) * per) that there are. */
static int64_t part_of(int64_t count, int64_t per, int r) {
    int64_t first = per * r;
    return first >= count ? 0 : count - first < per ? count - first : per;
}

/* Room for `bytes` from each rank. */
static km_status make_room(km_mpi *m, km_mpi_job *job, size_t bytes) {
    if (m->room_bytes >= bytes * (size_t)m->size) return KM_OK;
    km_free_aligned(m->room, m->room_bytes);
    m->room_bytes = bytes * (size_t)m->size;
    m->room = km_alloc_aligned(m->room_bytes);
    if (m->room) return KM_OK;
    m->room_bytes = 0;
    return km_error_set(&job->err, KM_ERR_MEMORY, "comm: out of memory");
}

/* own = the sum over the ranks, of which the others' lie in the room, `bytes` each. */
static km_status sum_room(km_mpi *m, km_mpi_job *job, void *own, size_t bytes, int64_t count) {
    const void **src = km_alloc((size_t)m->size * sizeof *src);
    if (!src) return km_error_set(&job->err, KM_ERR_MEMORY, "comm: out of memory");
    for (int r = 0; r < m->size; r++)
        src[r] = r == m->rank ? own : (char *)m->room + bytes * (size_t)r;
    sum_parts(own, src, m->size, count, job->dtype);
    km_free(src);
    return KM_OK;
}

/* A small sum: everybody sends all of it to everybody, and each adds it up. The parts below would
 * need two messages one after the other, and it is their delay that counts. */
static km_status reduce_small(km_mpi *m, km_mpi_job *job) {
    char why[256] = "";
    size_t bytes = (size_t)job->count * km_dtype_size(job->dtype);
    if (make_room(m, job, bytes) != KM_OK) return job->err.code;
    km_mpi_part *send = m->part, *receive = m->part + m->size;
    int n = 0;
    for (int r = 0; r < m->size; r++) {
        if (r == m->rank) continue;
        send[n] = (km_mpi_part){r, job->data, bytes};
        receive[n++] = (km_mpi_part){r, (char *)m->room + bytes * (size_t)r, bytes};
    }
    if (m->call->exchange(send, n, receive, n, why, sizeof why) != 0) return failed(job, why);
    return sum_room(m, job, job->data, bytes, job->count);
}

static km_status reduce_parts(km_mpi *m, km_mpi_job *job, int64_t per) {
    char why[256] = "";
    size_t size = km_dtype_size(job->dtype);
    int64_t mine = part_of(job->count, per, m->rank);
    size_t bytes = (size_t)mine * size;
    if (make_room(m, job, bytes) != KM_OK) return job->err.code;
    km_mpi_part *send = m->part, *receive = m->part + m->size;
    int n = 0;
    for (int r = 0; r < m->size; r++) {
        if (r == m->rank) continue;
        send[n] = (km_mpi_part){r, (char *)job->data + (size_t)per * (size_t)r * size,
                                (size_t)part_of(job->count, per, r) * size};
        receive[n++] = (km_mpi_part){r, (char *)m->room + bytes * (size_t)r, bytes};
    }
    if (m->call->exchange(send, n, receive, n, why, sizeof why) != 0) return failed(job, why);
    if (mine == 0) return KM_OK;
    char *own = (char *)job->data + (size_t)per * (size_t)m->rank * size;
    return sum_room(m, job, own, bytes, mine);
}

/* Parts of `per` bytes; the last may be short, or there may be none. */
static km_status gather_parts(km_mpi *m, km_mpi_job *job, void *data, size_t total, size_t per) {
    char why[256] = "";
    km_mpi_part *send = m->part, *receive = m->part + m->size;
    int n = 0;
    for (int r = 0; r < m->size; r++) {
        if (r == m->rank) continue;
        send[n] = (km_mpi_part){r, (char *)data + per * (size_t)m->rank,
                                (size_t)part_of((int64_t)total, (int64_t)per, m->rank)};
        receive[n++] = (km_mpi_part){r, (char *)data + per * (size_t)r,
                                     (size_t)part_of((int64_t)total, (int64_t)per, r)};
    }
    return m->call->exchange(send, n, receive, n, why, sizeof why) == 0 ? KM_OK : failed(job, why);
}

static km_status do_tensor(km_mpi *m, km_mpi_job *job) {
    char why[256] = "";
    int64_t per = (job->count + m->size - 1) / m->size;
    size_t size = km_dtype_size(job->dtype), total = (size_t)job->count * size;
    if (m->size == 1 || job->count == 0) return KM_OK;
    switch (job->op) {
    case KM_COMM_REDUCE_SCATTER: return reduce_parts(m, job, per);
    case KM_COMM_ALL_GATHER: return gather_parts(m, job, job->data, total, (size_t)per * size);
    case KM_COMM_ALL_REDUCE:
        if (total * (size_t)m->size <= SMALL) return reduce_small(m, job);
        if (reduce_parts(m, job, per) != KM_OK) return job->err.code;
        return gather_parts(m, job, job->data, total, (size_t)per * size);
    default:
        return m->call->broadcast(0, job->data, total, why, sizeof why) == 0 ? KM_OK
                                                                             : failed(job, why);
    }
}

static void do_job(km_mpi *m, km_mpi_job *job) {
    char why[256] = "";
    if (job->before) job->before(job->user);
    switch (job->kind) {
    case JOB_TENSOR: do_tensor(m, job); break;
    case JOB_GATHER:
        gather_parts(m, job, job->data, job->bytes * (size_t)m->size, job->bytes);
        break;
    case JOB_BARRIER:
        if (m->call->barrier(why, sizeof why) != 0) failed(job, why);
        break;
    case JOB_BROADCAST:
        if (m->call->broadcast(job->root, job->data, job->bytes, why, sizeof why) != 0)
            failed(job, why);
        break;
    }
}

/* ---- The thread ---- */

static void *work(void *arg) {
    km_mpi *m = arg;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while ((!m->first || m->taken) && !m->stop) pthread_cond_wait(&m->given, &m->lock);
        km_mpi_job *job = m->first;
        if (!job) break;
        pthread_mutex_unlock(&m->lock);
        do_job(m, job);
        pthread_mutex_lock(&m->lock);
        m->first = job->next;
        if (!m->first) m->last = &m->first;
        job->done = true;
        pthread_cond_broadcast(&m->done);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

void km_mpi_submit(km_mpi *m, km_mpi_job *job) {
    job->next = NULL;
    job->done = false;
    job->err = (km_error){0};
    if (!m->threaded) {
        do_job(m, job);
        job->done = true;
        return;
    }
    pthread_mutex_lock(&m->lock);
    *m->last = job;
    m->last = &job->next;
    pthread_cond_signal(&m->given);
    pthread_mutex_unlock(&m->lock);
}

km_status km_mpi_await(km_mpi *m, km_mpi_job *job, km_error *err) {
    pthread_mutex_lock(&m->lock);
    while (!job->done) pthread_cond_wait(&m->done, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return job->err.code == KM_OK ? KM_OK : km_error_set(err, job->err.code, "%s", job->err.text);
}

km_status km_mpi_run(km_mpi *m, km_mpi_job *job, km_error *err) {
    pthread_mutex_lock(&m->lock);
    bool idle = m->threaded && !m->first && !m->taken;
    if (idle) m->taken = true;
    pthread_mutex_unlock(&m->lock);
    if (!idle) {
        km_mpi_submit(m, job);
        return km_mpi_await(m, job, err);
    }
    job->err = (km_error){0};
    do_job(m, job);
    pthread_mutex_lock(&m->lock);
    m->taken = false;
    pthread_cond_signal(&m->given);
    pthread_mutex_unlock(&m->lock);
    return job->err.code == KM_OK ? KM_OK : km_error_set(err, job->err.code, "%s", job->err.text);
}

km_status km_mpi_barrier(km_mpi *m, km_error *err) {
    return km_mpi_run(m, &(km_mpi_job){.kind = JOB_BARRIER}, err);
}

km_status km_mpi_broadcast(km_mpi *m, int root, void *data, size_t bytes, km_error *err) {
    km_mpi_job job = {.kind = JOB_BROADCAST, .root = root, .data = data, .bytes = bytes};
    return km_mpi_run(m, &job, err);
}

km_status km_mpi_gather(km_mpi *m, void *data, size_t bytes, km_error *err) {
    return km_mpi_run(m, &(km_mpi_job){.kind = JOB_GATHER, .data = data, .bytes = bytes}, err);
}

/* ---- Opening ---- */

km_mpi *km_mpi_open(km_error *err) {
    static bool used;
    char why[512];
    int threads = 0;
    if (used) {
        km_error_set(err, KM_ERR_STATE, "comm: MPI can be opened only once in a process");
        return NULL;
    }
    /* Global, because MPI's own plug-ins look for its symbols. */
    void *handle = km_module_open("kermes-mpi.so", "KERMES_MPI_MODULE", RTLD_NOW | RTLD_GLOBAL, why,
                                  sizeof why);
    if (!handle && !*why)
        snprintf(
            why, sizeof why,
            "kermes-mpi.so was not found; it is built where MPI is installed (libopenmpi-dev): if "
            "MPI came after Kermes, build Kermes again");
    const km_mpi_module *call = handle ? dlsym(handle, KM_MPI_SYMBOL) : NULL;
    if (handle && (!call || call->abi != KM_MPI_ABI))
        snprintf(why, sizeof why, "kermes-mpi.so belongs to another version of Kermes");
    if (!call || call->abi != KM_MPI_ABI) {
        km_error_set(err, KM_ERR_UNSUPPORTED, "comm: %s", why);
        return NULL;
    }
    km_mpi *m = km_calloc(1, sizeof *m);
    if (!m) {
        km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
        return NULL;
    }
    m->call = call;
    m->last = &m->first;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->given, NULL);
    pthread_cond_init(&m->done, NULL);
    used = true;
    if (call->init(&m->rank, &m->size, &threads, why, sizeof why) != 0)
        km_error_set(err, KM_ERR_STATE, "comm: %s", why);
    else if ((m->part = km_calloc((size_t)m->size * 2, sizeof *m->part)) == NULL)
        km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
    else {
        m->threaded = threads && pthread_create(&m->thread, NULL, work, m) == 0;
        if (!m->threaded) km_note(KM_LOG_INFO, "this MPI serves one thread: nothing overlaps");
        return m;
    }
    km_mpi_close(m, false);
    return NULL;
}

void km_mpi_close(km_mpi *m, bool clean) {
    if (m->threaded) {
        pthread_mutex_lock(&m->lock);
        m->stop = true;
        pthread_cond_signal(&m->given);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->thread, NULL);
    }
    if (clean) m->call->finalize();
    pthread_cond_destroy(&m->given);
    pthread_cond_destroy(&m->done);
    pthread_mutex_destroy(&m->lock);
    km_free(m->part);
    km_free_aligned(m->room, m->room_bytes);
    km_free(m);
}

int km_mpi_rank(const km_mpi *m) { return m->rank; }
int km_mpi_size(const km_mpi *m) { return m->size; }

/*
 * memory.c - memory comes and goes, and nobody waits for another's.
 *
 * A GPU's worker pins host memory, which takes seconds where it is many GiB, and lets it go, as it
 * does legacy handles and pointers of pools, only with its kernels at rest. Such requests stand in
 * line for a thread of their own, in which the kernels rest once for all that are to go; whatever
 * the driver does at once is done at once, past that line. The backend does a piece of what is
 * first in line, and if that was not all of it, it goes to the end: nobody's GiB are brought in
 * before everybody else's. Memory that is let go has every other turn, and more goes in one than
 * comes in one. So of what stands in line there is never more pinned than the daemon counts, which
 * counts what was given up as free for others (memory.c); what is too small for the line may come
 * before that has gone.
 *
 * Messages about one index are answered in the order in which it was asked, because a map that does
 * not stand in line is done before the next request is looked at, and one that does is given up
 * when its index is to go; more the daemon does not count on (maps.c). In the queue segment stands
 * which memory is being brought in, by either thread: too much of it gets a process killed, and
 * then the daemon does not go on giving it to others.
 */
#include "service/worker/memory.h"

#include "schemas/atomics.h"
#include "schemas/crash.h"

#include <assert.h>
#include <signal.h>
#include <unistd.h>

/* Taken out at once; more wait for the next time. */
#define UNMAPS_MAX 64u

/* ---- what is asked ---- */

enum { AT_ONCE, IN_PIECES };

static int map_some(const struct attnd_worker_memory *self, const struct attnd_worker_job *job,
                    int way, struct attnd_fault *fault)
{
    uint32_t *pinning = &self->port->head->pinning[way];
    const struct attnd_worker_message *request = &job->request;
    const struct attnd_memory_source source = {.kind = request->memory_kind,
                                               .fd = job->fd,
                                               .size_bytes = request->size_bytes,
                                               .handle = request->handle};
    attnd_publish32(pinning, 1 + request->index);
    if (self->dies && request->size_bytes >= ATTND_WORKER_DEADLY_BYTES)
        (void)raise(SIGKILL);
    int code = self->ops->map(self->backend, request->index, &source, fault);
    attnd_publish32(pinning, 0);
    return code;
}

static void answer_map(const struct attnd_worker_memory *self, const struct attnd_worker_job *job,
                       int code, const struct attnd_fault *fault)
{
    const struct attnd_worker_message answer = {.kind = ATTND_WORKER_MAP,
                                                .index = job->request.index,
                                                .code = code,
                                                .field = fault->field,
                                                .value = fault->value,
                                                .limit = fault->limit};
    if (job->fd >= 0)
        close(job->fd);
    attnd_crash(ATTND_CRASH_WORKER_MEMORY_MAPPED);
    self->answer(self->context, &answer);
}

/* At once, all of it. */
static void map(const struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    struct attnd_fault fault = {0};
    int code;
    do
        code = map_some(self, job, AT_ONCE, &fault);
    while (code == ATTND_BACKEND_MORE);
    answer_map(self, job, code, &fault);
}

/* A piece. Return: 1 there is more of it. */
static int pin(const struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    struct attnd_fault fault = {0};
    int code = map_some(self, job, IN_PIECES, &fault);
    if (code == ATTND_BACKEND_MORE)
        return 1;
    answer_map(self, job, code, &fault);
    return 0;
}

/* It is to go before it is there: the request that says so takes out what is. */
static void give_up(const struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    static const struct attnd_fault cancelled = {.field = ATTND_F_MEMORY};
    answer_map(self, job, -ATTND_E_CANCELLED, &cancelled);
}

/* Return: 1 there is more of it. */
static int unmap(const struct attnd_worker_memory *self, const uint32_t *indices, uint32_t count)
{
    struct attnd_worker_message answer = {.kind = ATTND_WORKER_UNMAP};
    attnd_worker_port_acquire(self->port);
    answer.code = self->ops->unmap(self->backend, indices, count);
    if (answer.code == ATTND_BACKEND_MORE)
        return 1;
    attnd_crash(ATTND_CRASH_WORKER_MEMORY_UNMAPPED);
    for (uint32_t i = 0; i < count; i++) {
        answer.index = indices[i];
        self->answer(self->context, &answer);
    }
    return 0;
}

/* ---- the line ---- */

static const struct attnd_worker_job *first(const struct attnd_worker_memory *self)
{
    return &self->jobs[self->begin];
}

static struct attnd_worker_job take(struct attnd_worker_memory *self)
{
    struct attnd_worker_job job = *first(self);
    self->begin = (self->begin + 1) % ATTND_WORKER_JOBS_MAX;
    self->count--;
    (void)pthread_cond_broadcast(&self->changed);
    return job;
}

static void put(struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    assert(self->count < ATTND_WORKER_JOBS_MAX);
    self->jobs[(self->begin + self->count++) % ATTND_WORKER_JOBS_MAX] = *job;
    (void)pthread_cond_broadcast(&self->changed);
}

static void put_first(struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    assert(self->count < ATTND_WORKER_JOBS_MAX);
    self->begin = (self->begin + ATTND_WORKER_JOBS_MAX - 1) % ATTND_WORKER_JOBS_MAX;
    self->jobs[self->begin] = *job;
    self->count++;
}

/* Behind the first in line. */
static void put_second(struct attnd_worker_memory *self, const struct attnd_worker_job *jobs,
                       uint32_t count)
{
    struct attnd_worker_job next = {.fd = -1};
    int has_next = self->count > 0;
    if (has_next)
        next = take(self);
    while (count > 0)
        put_first(self, &jobs[--count]);
    if (has_next)
        put_first(self, &next);
}

/* A piece of one map. The lock is held, but not while the backend works. */
static void work_in(struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    const uint8_t *goes = &self->goes[job->request.index];
    int more = 1;
    if (!*goes) {
        (void)pthread_mutex_unlock(&self->lock);
        more = pin(self, job);
        (void)pthread_mutex_lock(&self->lock);
    }
    if (more && *goes)
        give_up(self, job);
    else if (more)
        put(self, job);
}

/* Of all that stand in line one behind the other to go. */
static void work_out(struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    struct attnd_worker_job jobs[UNMAPS_MAX] = {*job};
    uint32_t indices[UNMAPS_MAX], count = 1;
    while (count < UNMAPS_MAX && self->count && first(self)->request.kind == ATTND_WORKER_UNMAP)
        jobs[count++] = take(self);
    for (uint32_t i = 0; i < count; i++) {
        indices[i] = jobs[i].request.index;
        self->goes[indices[i]] = 0; /* what was to come is given up, or has come */
    }
    (void)pthread_mutex_unlock(&self->lock);
    int more = unmap(self, indices, count);
    (void)pthread_mutex_lock(&self->lock);
    if (more)
        put_second(self, jobs, count);
}

static void work(struct attnd_worker_memory *self)
{
    struct attnd_worker_job job = take(self);
    self->busy = 1;
    if (job.request.kind == ATTND_WORKER_MAP)
        work_in(self, &job);
    else
        work_out(self, &job);
    self->busy = 0;
}

static void *line_main(void *context)
{
    struct attnd_worker_memory *self = context;
    (void)pthread_mutex_lock(&self->lock);
    while (!self->leave) {
        if (self->count)
            work(self);
        else
            (void)pthread_cond_wait(&self->changed, &self->lock);
    }
    (void)pthread_mutex_unlock(&self->lock);
    return NULL;
}

static void line_up(struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    (void)pthread_mutex_lock(&self->lock);
    if (job->request.kind == ATTND_WORKER_UNMAP)
        self->goes[job->request.index] = 1;
    put(self, job);
    (void)pthread_mutex_unlock(&self->lock);
}

/* ---- the outside ---- */

void attnd_worker_memory_serve(struct attnd_worker_memory *self,
                               const struct attnd_worker_message *request, int fd)
{
    const struct attnd_worker_job job = {.request = *request, .fd = fd};
    const uint32_t index = request->index;
    const int known = index < ATTND_MEMORIES_MAX;
    if (request->kind == ATTND_WORKER_MAP) {
        const uint32_t kind = request->memory_kind;
        if (known)
            self->rests[index] =
                kind == ATTND_KIND_HOST || kind == ATTND_KIND_POOL || kind == ATTND_KIND_IPC ||
                kind == ATTND_KIND_LENT_HOST; /* which is munmap() only, of many pages */
        if (known && kind == ATTND_KIND_HOST && request->size_bytes >= ATTND_WORKER_LARGE_BYTES)
            line_up(self, &job);
        else
            map(self, &job);
    } else if (known && self->rests[index]) {
        line_up(self, &job);
    } else {
        (void)unmap(self, &index, 1); /* small, or at once: all of it */
    }
}

int attnd_worker_memory_start(struct attnd_worker_memory *self)
{
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->changed, NULL);
    self->leave = 0;
    return pthread_create(&self->thread, NULL, line_main, self) == 0 ? 0 : -ATTND_E_SYSTEM;
}

int attnd_worker_memory_stop(struct attnd_worker_memory *self)
{
    (void)pthread_mutex_lock(&self->lock);
    self->leave = 1;
    int busy = self->busy;
    (void)pthread_cond_broadcast(&self->changed);
    (void)pthread_mutex_unlock(&self->lock);
    if (busy)
        return 0;
    (void)pthread_join(self->thread, NULL);
    while (self->count) {
        struct attnd_worker_job job = take(self);
        if (job.fd >= 0)
            close(job.fd);
    }
    (void)pthread_cond_destroy(&self->changed);
    (void)pthread_mutex_destroy(&self->lock);
    return 1;
}

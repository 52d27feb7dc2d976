/*
 * worker_memory.c - memory comes and goes, and nobody waits for another's.
 *
 * A GPU's worker pins host memory, which takes seconds where it is many GiB, and lets it go, as it
 * does legacy handles, only with its kernels at rest. Such requests stand in line for a thread of
 * their own, in which the kernels rest once for all that are to go; whatever the driver does at
 * once is done at once, past that line. What is about one index is answered in the order in which
 * it was asked, because a map that does not stand in line is done before the next request is
 * looked at; more the daemon does not count on (maps.c).
 */
#include "service/worker_memory.h"

#include <unistd.h>

/* Taken out at once; more wait for the next time. */
#define UNMAPS_MAX 64u

/* ---- what is asked ---- */

static void map(const struct attnd_worker_memory *self, const struct attnd_worker_job *job)
{
    const struct attnd_worker_message *request = &job->request;
    struct attnd_worker_message answer = {.kind = request->kind, .index = request->index};
    struct attnd_fault fault = {0};
    const struct attnd_memory_source source = {.kind = request->memory_kind,
                                               .fd = job->fd,
                                               .size_bytes = request->size_bytes,
                                               .handle = request->handle};
    answer.code = self->ops->map(self->backend, request->index, &source, &fault);
    answer.field = fault.field;
    answer.value = fault.value;
    answer.limit = fault.limit;
    if (job->fd >= 0)
        close(job->fd);
    self->answer(self->context, &answer);
}

static void unmap(const struct attnd_worker_memory *self, const uint32_t *indices, uint32_t count)
{
    struct attnd_worker_message answer = {.kind = ATTND_WORKER_UNMAP};
    attnd_worker_port_settle(self->port);
    answer.code = self->ops->unmap(self->backend, indices, count);
    for (uint32_t i = 0; i < count; i++) {
        answer.index = indices[i];
        self->answer(self->context, &answer);
    }
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

/* One map, or all that stand in line one behind the other to go. The lock is held, but not while
 * the backend works. */
static void work(struct attnd_worker_memory *self)
{
    uint32_t indices[UNMAPS_MAX], count = 0;
    struct attnd_worker_job job = take(self);
    self->busy = 1;
    if (job.request.kind == ATTND_WORKER_UNMAP) {
        indices[count++] = job.request.index;
        while (count < UNMAPS_MAX && self->count && first(self)->request.kind == ATTND_WORKER_UNMAP)
            indices[count++] = take(self).request.index;
    }
    (void)pthread_mutex_unlock(&self->lock);
    if (count)
        unmap(self, indices, count);
    else
        map(self, &job);
    (void)pthread_mutex_lock(&self->lock);
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
    while (self->count == ATTND_WORKER_JOBS_MAX) /* more than the daemon may ask */
        (void)pthread_cond_wait(&self->changed, &self->lock);
    self->jobs[(self->begin + self->count++) % ATTND_WORKER_JOBS_MAX] = *job;
    (void)pthread_cond_broadcast(&self->changed);
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
            self->rests[index] = kind == ATTND_KIND_HOST || kind == ATTND_KIND_IPC;
        if (kind == ATTND_KIND_HOST && request->size_bytes >= ATTND_WORKER_LARGE_BYTES)
            line_up(self, &job);
        else
            map(self, &job);
    } else if (known && self->rests[index]) {
        line_up(self, &job);
    } else {
        unmap(self, &index, 1);
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

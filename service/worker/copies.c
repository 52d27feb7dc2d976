/*
 * copies.c - pages are copied by three threads, one for each way.
 *
 * Neither tiles nor commands wait for them, nor does memory that comes and goes. A copy into a pool
 * never stands behind one out of it, nor behind another service's pages.
 */
#include "service/worker/copies.h"

static void copy(const struct attnd_worker_copies *self, const struct attnd_worker_message *request)
{
    const struct attnd_backend_ops *ops = self->ops;
    const struct attnd_worker_message answer = {
        .kind = ATTND_WORKER_COPY,
        .index = request->index,
        .code = request->value == ATTND_COPY_BRING ? ops->bring(self->backend, request->size_bytes)
                                                   : ops->copy(self->backend, request->size_bytes)};
    self->answer(self->context, &answer);
}

static void *copier_main(void *context)
{
    struct attnd_worker_copier *copier = context;
    struct attnd_worker_copies *self = copier->copies;

    (void)pthread_mutex_lock(&self->lock);
    while (!self->leave) {
        if (copier->count == 0) {
            (void)pthread_cond_wait(&self->changed, &self->lock);
            continue;
        }
        const struct attnd_worker_message request = copier->jobs[copier->begin];
        (void)pthread_mutex_unlock(&self->lock);
        copy(self, &request);
        (void)pthread_mutex_lock(&self->lock);
        copier->begin = (copier->begin + 1) % ATTND_WORKER_COPIES_MAX;
        copier->count--;
    }
    (void)pthread_mutex_unlock(&self->lock);
    return NULL;
}

void attnd_worker_copies_serve(struct attnd_worker_copies *self,
                               const struct attnd_worker_message *request)
{
    struct attnd_worker_copier *copier =
        &self->copier[request->value < ATTND_COPY_WAYS ? request->value : 0];
    const struct attnd_worker_message refusal = {
        .kind = ATTND_WORKER_COPY, .index = request->index, .code = -ATTND_E_FULL};

    (void)pthread_mutex_lock(&self->lock);
    int fits = copier->count < ATTND_WORKER_COPIES_MAX;
    if (fits)
        copier->jobs[(copier->begin + copier->count++) % ATTND_WORKER_COPIES_MAX] = *request;
    (void)pthread_cond_broadcast(&self->changed);
    (void)pthread_mutex_unlock(&self->lock);
    if (!fits)
        self->answer(self->context, &refusal);
}

int attnd_worker_copies_start(struct attnd_worker_copies *self)
{
    (void)pthread_mutex_init(&self->lock, NULL);
    (void)pthread_cond_init(&self->changed, NULL);
    for (int i = 0; i < ATTND_COPY_WAYS; i++) {
        self->copier[i].copies = self;
        self->copier[i].started =
            pthread_create(&self->copier[i].thread, NULL, copier_main, &self->copier[i]) == 0;
        if (!self->copier[i].started) {
            attnd_worker_copies_stop(self);
            return -ATTND_E_SYSTEM;
        }
    }
    return 0;
}

void attnd_worker_copies_stop(struct attnd_worker_copies *self)
{
    if (!self->copier[0].copies)
        return;
    (void)pthread_mutex_lock(&self->lock);
    self->leave = 1;
    (void)pthread_cond_broadcast(&self->changed);
    (void)pthread_mutex_unlock(&self->lock);
    for (int i = 0; i < ATTND_COPY_WAYS; i++) {
        if (self->copier[i].started)
            (void)pthread_join(self->copier[i].thread, NULL);
        self->copier[i].started = 0;
    }
    self->copier[0].copies = NULL;
    (void)pthread_cond_destroy(&self->changed);
    (void)pthread_mutex_destroy(&self->lock);
}

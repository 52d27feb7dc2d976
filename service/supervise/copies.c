/*
 * copies.c - copies in flight, each with its description in the queue's heap.
 *
 * A copy that a dead worker left may be done in part, or end a little later: on a GPU it is the
 * copy engines' then. Nothing is lost by that, because who asked for it asks again, for the same
 * bytes at the same places, or keeps these places from everybody until another worker is up.
 */
#include "service/supervise/copies.h"

#include "ipc/fdpass.h"
#include "service/supervise/supervise.h"
#include "service/supervise/worker_abi.h"

#include <string.h>

static uint32_t find_free(const struct attnd_copies *copies, enum attnd_copy_way way)
{
    const uint32_t first = (uint32_t)way * ATTND_COPIES_WAY;
    for (uint32_t i = first; i < first + ATTND_COPIES_WAY; i++)
        if (!copies->flight[i].context)
            return i;
    return ATTND_NONE;
}

int attnd_copies_fit(const struct attnd_supervisor *supervisor, enum attnd_copy_way way)
{
    return !supervisor->condemned && supervisor->state == ATTND_WORKER_UP &&
           find_free(&supervisor->copies, way) != ATTND_NONE;
}

/* A description, and the pages behind it. */
struct parts {
    const void *what, *pages;
    uint64_t what_bytes, pages_bytes;
};

static int copies_send(struct attnd_supervisor *supervisor, enum attnd_copy_way way,
                       const struct parts *parts, void *context)
{
    struct attnd_queue *queue = supervisor->service->queue;
    const uint32_t index = find_free(&supervisor->copies, way);
    const uint64_t bytes = parts->what_bytes + parts->pages_bytes;

    if (!attnd_copies_fit(supervisor, way))
        return -ATTND_E_FULL;
    uint64_t offset_bytes = attnd_heap_alloc(queue, bytes);
    if (!offset_bytes)
        return -ATTND_E_NO_SPACE;
    memcpy(attnd_heap_at(queue, offset_bytes), parts->what, parts->what_bytes);
    memcpy(attnd_heap_at(queue, offset_bytes + parts->what_bytes), parts->pages,
           parts->pages_bytes);
    const struct attnd_worker_message message = {
        .kind = ATTND_WORKER_COPY, .index = index, .size_bytes = offset_bytes, .value = way};
    if (attnd_fdpass_send(supervisor->process.control, &message, sizeof(message), NULL, 0) < 0) {
        attnd_heap_free(queue, offset_bytes, bytes);
        return -ATTND_E_FULL; /* its end is handled where it is noticed; else an answer follows */
    }
    supervisor->copies.flight[index].context = context;
    supervisor->copies.flight[index].offset_bytes = offset_bytes;
    supervisor->copies.flight[index].bytes = bytes;
    return 0;
}

int attnd_copies_send(struct attnd_supervisor *supervisor, const struct attnd_copy *what,
                      const struct attnd_copy_page *pages, void *context)
{
    const struct parts parts = {.what = what,
                                .pages = pages,
                                .what_bytes = sizeof(*what),
                                .pages_bytes = what->count * sizeof(*pages)};
    return copies_send(supervisor, what->to_host ? ATTND_COPY_OUT : ATTND_COPY_IN, &parts, context);
}

int attnd_copies_bring(struct attnd_supervisor *supervisor, const struct attnd_bring *what,
                       const struct attnd_bring_page *pages, void *context)
{
    const struct parts parts = {.what = what,
                                .pages = pages,
                                .what_bytes = sizeof(*what),
                                .pages_bytes = what->count * sizeof(*pages)};
    return copies_send(supervisor, ATTND_COPY_BRING, &parts, context);
}

static void land(struct attnd_supervisor *supervisor, uint32_t index, int code)
{
    struct attnd_service *service = supervisor->service;
    void *context = supervisor->copies.flight[index].context;

    attnd_heap_free(service->queue, supervisor->copies.flight[index].offset_bytes,
                    supervisor->copies.flight[index].bytes);
    supervisor->copies.flight[index].context = NULL;
    if (index / ATTND_COPIES_WAY == ATTND_COPY_BRING)
        supervisor->events->brought(service, context, code);
    else
        supervisor->events->copied(service, context, code);
}

int attnd_copies_answered(struct attnd_supervisor *supervisor, uint32_t index, int code)
{
    if (index >= ATTND_COPIES_MAX || !supervisor->copies.flight[index].context)
        return -ATTND_E_PROTOCOL;
    land(supervisor, index, code < 0 ? code : 0);
    return 0;
}

void attnd_copies_lost(struct attnd_supervisor *supervisor)
{
    for (uint32_t i = 0; i < ATTND_COPIES_MAX; i++)
        if (supervisor->copies.flight[i].context)
            land(supervisor, i, -ATTND_E_WORKER_RESTARTED);
}

/*
 * describe.c - a pool and some of its pages as a PeerGrant: what a giver lends, and where a claimer
 * has its mover put it.
 */
#include "ipc/shm.h"
#include "schemas/pool_fields.h"
#include "service/peers/peers_internal.h"

#include <stdlib.h>
#include <unistd.h>

/* A grant as it is sent, in one piece of memory. */
struct answer {
    Attnd__PeerGrant grant;
    Attnd__PeerMemory memory[ATTND_PEER_MEMORIES_MAX];
    Attnd__PeerMemory *memory_list[ATTND_PEER_MEMORIES_MAX];
    int fds[ATTND_PEER_MEMORIES_MAX], fds_count;
    uint32_t opened; /* of fds, a bit each: they are closed again */
    Attnd__PeerPlane *plane_list[2 * ATTND_LAYERS_MAX];
    Attnd__PeerPlane plane[2 * ATTND_LAYERS_MAX];
};

static uint32_t place_of(const struct attnd_pool *pool, uint32_t index)
{
    uint32_t place = 0;

    while (place < pool->memories_count && pool->memories[place]->index != index)
        place++;
    return place;
}

static void fill_planes(const struct attnd_pool *pool, struct answer *answer)
{
    const struct attnd_heap_plane *planes = attnd_pool_planes(pool);

    for (uint32_t i = 0; i < 2 * pool->shape.layers; i++) {
        Attnd__PeerPlane *to = &answer->plane[i];
        attnd__peer_plane__init(to);
        to->memory = place_of(pool, planes[i].memory);
        ATTND_PLANE_PLACE_COPY(to, &planes[i]);
        answer->plane_list[i] = to;
    }
    answer->grant.n_k = answer->grant.n_v = pool->shape.layers;
    answer->grant.k = answer->plane_list;
    answer->grant.v = answer->plane_list + pool->shape.layers;
}

/* Host memory of a giver is passed on for reading. Return: 0; < 0 with *@fault. */
static int fill_memory(const struct attnd_grant_of *what, uint32_t i, struct answer *answer,
                       struct attnd_fault *fault)
{
    const struct attnd_memory *memory = what->pool->memories[i];
    const int reopens = what->reads && memory->kind == ATTND_KIND_HOST;

    if (memory->kind != ATTND_KIND_HOST && (memory->kind != ATTND_KIND_DEVICE || what->host_only))
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, i, memory->kind,
                               what->host_only ? ATTND_KIND_HOST : ATTND_KIND_DEVICE);
    const int fd = reopens ? attnd_shm_reopen(memory->fd) : memory->fd;
    if (fd < 0)
        return attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_MEMORY, i, -fd, 0);
    answer->opened |= (uint32_t)reopens << i;
    answer->fds[answer->fds_count++] = fd;
    attnd__peer_memory__init(&answer->memory[i]);
    answer->memory[i].memory_kind = memory->kind;
    answer->memory[i].size_bytes = memory->size_bytes;
    answer->memory_list[i] = &answer->memory[i];
    return 0;
}

static void send_answer(struct attnd_peer_link *link, const struct attnd_grant_of *what,
                        struct answer *answer)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;

    ATTND_POOL_SHAPE_COPY(&answer->grant, &what->pool->shape);
    fill_planes(what->pool, answer);
    answer->grant.memory = answer->memory_list;
    answer->grant.n_memory = what->pool->memories_count;
    answer->grant.transfer = what->transfer;
    answer->grant.layers_whole = what->layers_whole;
    answer->grant.n_page = what->count;
    answer->grant.page = (uint32_t *)(uintptr_t)what->pages; /* none is negative; packing reads */
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_GRANT;
    message.grant = &answer->grant;
    (void)attnd_link_send(link, &message, answer->fds, answer->fds_count);
}

int attnd_grant_send(struct attnd_peer_link *link, const struct attnd_grant_of *what,
                     struct attnd_fault *fault)
{
    struct answer *answer = calloc(1, sizeof(*answer));
    int rc = 0;

    if (!answer)
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    attnd__peer_grant__init(&answer->grant);
    for (uint32_t i = 0; i < what->pool->memories_count && rc == 0; i++)
        rc = fill_memory(what, i, answer, fault);
    if (rc == 0)
        send_answer(link, what, answer);
    for (int i = 0; i < answer->fds_count; i++) /* the pool may be gone: with the link */
        if (answer->opened >> i & 1)
            close(answer->fds[i]);
    free(answer);
    return rc;
}

/*
 * message.c - what a peer says, as far as its form goes.
 *
 * A peer runs as the same user, and is a program of ours; but it may be of another version, or have
 * gone wrong, and nobody's worker should die of that.
 */
#include "service/peers/message.h"

#define POOL_PAGES_MAX (1u << 24)

static int check_planes(const Attnd__PeerGrant *grant, Attnd__PeerPlane *const *planes,
                        size_t count)
{
    if (count != grant->layers)
        return -ATTND_E_PROTOCOL;
    for (size_t i = 0; i < count; i++)
        if (planes[i]->memory >= grant->n_memory)
            return -ATTND_E_PROTOCOL;
    return 0;
}

static int check_shape(const Attnd__PeerGrant *grant)
{
    return grant->layers >= 1 && grant->layers <= ATTND_LAYERS_MAX && grant->pages >= 1 &&
                   grant->pages <= POOL_PAGES_MAX && grant->page_size >= 1 &&
                   grant->heads_kv >= 1 && grant->dim_qk >= 1 && grant->dim_vo >= 1
               ? 0
               : -ATTND_E_PROTOCOL;
}

static int check_grant(const Attnd__PeerGrant *grant)
{
    if (check_shape(grant) < 0 || grant->layers_whole > grant->layers || grant->n_memory < 1 ||
        grant->n_memory > ATTND_PEER_MEMORIES_MAX || grant->n_page > ATTND_TICKET_PAGES_MAX ||
        check_planes(grant, grant->k, grant->n_k) < 0 ||
        check_planes(grant, grant->v, grant->n_v) < 0)
        return -ATTND_E_PROTOCOL;
    for (size_t i = 0; i < grant->n_memory; i++)
        if (grant->memory[i]->size_bytes == 0 || grant->memory[i]->size_bytes > INT64_MAX)
            return -ATTND_E_PROTOCOL;
    for (size_t i = 0; i < grant->n_page; i++)
        if (grant->page[i] >= grant->pages)
            return -ATTND_E_PROTOCOL;
    return 0;
}

int attnd_peer_decode(const void *bytes, size_t size_bytes, struct attnd_admit_alloc *alloc,
                      Attnd__PeerMessage **out)
{
    Attnd__PeerMessage *message = attnd__peer_message__unpack(&alloc->allocator, size_bytes, bytes);

    if (!message || !attnd_admit_known(&message->base))
        return -ATTND_E_PROTOCOL;
    *out = message;
    switch (message->message_case) {
    case ATTND__PEER_MESSAGE__MESSAGE_GRANT:
        return check_grant(message->grant);
    case ATTND__PEER_MESSAGE__MESSAGE_REFUSE: /* a code of ours, or of a later version */
        return message->refuse->code < 0 ? 0 : -ATTND_E_PROTOCOL;
    case ATTND__PEER_MESSAGE__MESSAGE__NOT_SET:
        return -ATTND_E_PROTOCOL;
    default:
        return 0;
    }
}

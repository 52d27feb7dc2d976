/*
 * handles.c - the handles of a client: what they name, and which are free.
 *
 * Handle h is slot h - 1 of a table of its kind; 0 names nothing. A client cannot guess its way to
 * anything: the tables are its own.
 */
#include "service/objects/client.h"

uint32_t attnd_client_vacant(void *const *table)
{
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        if (!table[i])
            return i + 1;
    return 0;
}

struct attnd_memory *attnd_client_memory(const struct attnd_client *client, uint32_t handle)
{
    return handle - 1 < ATTND_HANDLES_MAX ? client->memories[handle - 1] : NULL;
}

struct attnd_attachment *attnd_client_attachment(const struct attnd_client *client, uint32_t handle)
{
    if (handle - 1 >= ATTND_HANDLES_MAX || handle == client->import_pool)
        return NULL; /* one whose memory is being tried may yet go */
    return client->attachments[handle - 1];
}

struct attnd_plan_object *attnd_client_plan(const struct attnd_client *client, uint32_t handle)
{
    return handle - 1 < ATTND_HANDLES_MAX ? client->plans[handle - 1] : NULL;
}

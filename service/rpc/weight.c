/*
 * weight.c - how much of the worker a session gets beside others.
 *
 * An operator says it, not a session: a tenant that could weigh itself would. The operator is root
 * or the user whom the service runs as. Where tenants are that user too, weights are an agreement.
 */
#include "service/rpc/calls.h"

#include <unistd.h>

#define WEIGHT_MAX 1000u

static struct attnd_client *find(const struct attnd_service *service, uint32_t id)
{
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] && service->clients[i]->id == id)
            return service->clients[i];
    return NULL;
}

int attnd_call_session_weight(struct attnd_call *call)
{
    const Attnd__SessionWeight *request = call->request->session_weight;
    const uid_t uid = call->client->uid;
    struct attnd_client *session = find(call->service, request->session);

    if (uid != 0 && uid != geteuid())
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_WEIGHT, 0, (int64_t)uid,
                               (int64_t)geteuid());
    if (!session)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_SESSION, 0, request->session,
                               0);
    if (request->weight < 1 || request->weight > WEIGHT_MAX)
        return attnd_fault_set(call->fault, -ATTND_E_RANGE, ATTND_F_WEIGHT, 0, request->weight,
                               request->weight ? WEIGHT_MAX : 1);
    session->weight = request->weight;
    return 0;
}

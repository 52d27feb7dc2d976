/*
 * operator_calls.c - what people who run the service ask of it, beside its status.
 *
 * Identities are the kernel's word (SO_PEERCRED), of the asker and of the session alike. An
 * operator is root or the user whom the service runs as. A weight is for operators alone: a tenant
 * that could weigh itself would. Where tenants are that user too, weights are an agreement. A
 * session may also be ended by its own user.
 */
#include "service/rpc/calls.h"
#include "service/session/session.h"

#include <stdio.h>
#include <unistd.h>

#define WEIGHT_MAX 1000u

static struct attnd_client *find_session(const struct attnd_service *service, uint32_t id)
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
    struct attnd_client *session = find_session(call->service, request->session);

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

int attnd_call_session_kill(struct attnd_call *call)
{
    const struct attnd_client *asker = call->client;
    const uint32_t id = call->request->session_kill->session;
    struct attnd_client *session = find_session(call->service, id);
    char why[96];

    if (!session || session->state == ATTND_CLIENT_DYING)
        return attnd_fault_set(call->fault, -ATTND_E_UNKNOWN, ATTND_F_SESSION, 0, id, 0);
    if (asker->uid != 0 && asker->uid != geteuid() && asker->uid != session->uid)
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_SESSION, 0, id, 0);
    snprintf(why, sizeof(why), "user %u asked for it (pid %d, attnctl kill)", (unsigned)asker->uid,
             (int)asker->pid);
    attnd_client_kill(session, why);
    return 0;
}

/*
 * peer_calls.c - PeerHello: another service of this user asks for a link.
 *
 * The link is a socket of its own, whose other end goes with the reply: the connection on which it
 * was asked for ends like that of any visitor.
 */
#include "schemas/version.h"
#include "service/peers/message.h"
#include "service/peers/peers.h"
#include "service/rpc/calls.h"

#include <string.h>
#include <unistd.h>

/* It is sent descriptors of pools, which bind nobody who has them. */
static int check(const struct attnd_call *call)
{
    const Attnd__PeerHello *hello = call->request->peer_hello;

    if (call->client->uid != geteuid())
        return attnd_fault_set(call->fault, -ATTND_E_PERMISSION, ATTND_F_PEER, 0,
                               (int64_t)call->client->uid, (int64_t)geteuid());
    if (hello->version != ATTND_PEER_VERSION)
        return attnd_fault_set(call->fault, -ATTND_E_VERSION, ATTND_F_VERSION, 0, hello->version,
                               ATTND_PEER_VERSION);
    if (hello->service.len != ATTND_IDENTITY_BYTES)
        return attnd_fault_set(call->fault, -ATTND_E_INVALID, ATTND_F_PEER, 0,
                               (int64_t)hello->service.len, ATTND_IDENTITY_BYTES);
    if (memcmp(hello->service.data, call->service->identity, ATTND_IDENTITY_BYTES) == 0)
        return attnd_fault_set(call->fault, -ATTND_E_BUSY, ATTND_F_PEER, 0, 0, 0);
    return 0;
}

/* Answered here, because a descriptor that goes with a reply stays its owner's: this call's. */
int attnd_call_peer_hello(struct attnd_call *call)
{
    const struct attnd_fault none = {0};
    struct attnd_service *service = call->service;
    Attnd__PeerWelcome welcome = ATTND__PEER_WELCOME__INIT;
    int fd, rc = check(call);

    if (rc < 0)
        return rc;
    rc = attnd_peers_welcome(service, call->client->pid, call->request->peer_hello->service.data,
                             &fd, call->fault);
    if (rc < 0)
        return rc;
    welcome.version = ATTND_PEER_VERSION;
    welcome.service = (ProtobufCBinaryData){.len = ATTND_IDENTITY_BYTES, .data = service->identity};
    welcome.daemon_version = (char *)(uintptr_t)ATTND_VERSION;
    call->reply->peer_welcome = &welcome;
    call->reply->result_case = ATTND__REPLY__RESULT_PEER_WELCOME;
    attnd_control_answer(call->client, call->reply, fd, &none);
    close(fd);
    return ATTND_CALL_LATER;
}

/*
 * control.c - one request and its reply at a time over the socket.
 *
 * The reply is received into private memory and unpacked there: protobuf-c walks a message twice,
 * and memory that changes between the walks would overflow. Its allocator hands out what follows
 * the datagram in the same buffer and nothing beyond, so no reply costs more than that.
 *
 * A request that is not answered in time leaves the two sides in disagreement about what exists,
 * and so does an answer that makes no sense. Both end the session for every thread: a late reply is
 * never mistaken for the next one, and nobody waits for a completion that cannot come.
 */
#include "client/internal.h"
#include "ipc/admit_alloc.h"
#include "schemas/crash.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

/* The largest reply describes a pool of 1,024 layers: 2,048 planes and protobuf-c's scratch. */
#define UNPACK_BYTES (4u * ATTND_DATAGRAM_BYTES_MAX)

size_t attnd_call_buffer_bytes(void)
{
    return ATTND_DATAGRAM_BYTES_MAX + UNPACK_BYTES;
}

void attnd_session_end(struct attnd_session *session)
{
    attnd_publish32(&session->gone, 1); /* R1: completions seen before it stay seen */
    shutdown(session->socket, SHUT_RDWR);
}

static int lost(struct attnd_session *session, int error)
{
    attnd_session_end(session);
    return attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, error, 0);
}

static int broken(struct attnd_session *session)
{
    attnd_session_end(session);
    return attnd_fault_raise(-ATTND_E_PROTOCOL, ATTND_F_SOCKET, 0, 0, 0);
}

static int send_request(struct attnd_session *session, struct attnd_rpc *call)
{
    call->request.id = ++session->call_id;
    size_t bytes = attnd__request__get_packed_size(&call->request);
    if (bytes > ATTND_DATAGRAM_BYTES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_SIZE, 0, (int64_t)bytes,
                                 ATTND_DATAGRAM_BYTES_MAX);
    attnd__request__pack(&call->request, session->datagram);
    int rc = attnd_fdpass_send(session->socket, session->datagram, bytes, &call->fd,
                               call->fd >= 0 ? 1 : 0);
    attnd_crash(ATTND_CRASH_CLIENT_REQUEST_SENT);
    return rc < 0 ? lost(session, rc == -ATTND_E_FULL ? ETIMEDOUT : EPIPE) : 0;
}

/* Return: bytes of the reply in session->datagram, or a fault. */
static long receive_reply(struct attnd_session *session, struct attnd_rpc *call)
{
    uint64_t timeout_ns = call->timeout_ns ? call->timeout_ns : ATTND_CALL_TIMEOUT_NS;
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    for (;;) {
        uint64_t now_ns = attnd_clock_ns();
        if (now_ns >= deadline_ns)
            return lost(session, ETIMEDOUT);
        struct pollfd wanted = {.fd = session->socket, .events = POLLIN};
        int ready = poll(&wanted, 1, (int)((deadline_ns - now_ns) / 1000000u) + 1);
        if (ready < 0 && errno != EINTR)
            return lost(session, errno);
        if (ready <= 0)
            continue;
        long bytes = attnd_fdpass_recv(session->socket, session->datagram, ATTND_DATAGRAM_BYTES_MAX,
                                       call->fds, &call->fd_count);
        if (bytes > 0)
            return bytes;
        if (bytes < 0)
            return bytes == -ATTND_E_PROTOCOL ? broken(session) : lost(session, ECONNRESET);
    }
}

static int unpack_reply(struct attnd_session *session, struct attnd_rpc *call, long bytes,
                        Attnd__Reply__ResultCase expect)
{
    struct attnd_admit_alloc alloc;
    attnd_admit_alloc_init(&alloc, session->datagram + ATTND_DATAGRAM_BYTES_MAX, UNPACK_BYTES);
    Attnd__Reply *reply = attnd__reply__unpack(&alloc.allocator, (size_t)bytes, session->datagram);
    if (reply == NULL || reply->id != session->call_id || reply->code > 0)
        return broken(session);
    if (reply->code < 0) {
        struct attnd_fault fault = {.code = reply->code,
                                    .field = reply->field,
                                    .index = reply->index,
                                    .value = reply->value,
                                    .limit = reply->limit};
        return attnd_fault_keep(&fault);
    }
    if (reply->result_case != expect)
        return broken(session);
    call->reply = reply;
    return 0;
}

int attnd_call(struct attnd_session *session, struct attnd_rpc *call,
               Attnd__Reply__ResultCase expect)
{
    int rc = attnd_session_check(session);
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&session->call_lock);
    call->fd_count = 0;
    rc = attnd_session_check(session); /* the call before ours may have ended the session */
    if (rc == 0)
        rc = send_request(session, call);
    if (rc == 0) {
        long bytes = receive_reply(session, call);
        attnd_crash(ATTND_CRASH_CLIENT_REPLY_TAKEN);
        rc = bytes < 0 ? (int)bytes : unpack_reply(session, call, bytes, expect);
    }
    if (rc < 0)
        attnd_call_end(session, call);
    return rc;
}

void attnd_call_end(struct attnd_session *session, struct attnd_rpc *call)
{
    attnd_fdpass_close(call->fds, call->fd_count);
    call->fd_count = 0;
    call->reply = NULL;
    pthread_mutex_unlock(&session->call_lock);
}

int attnd_call_broken(struct attnd_session *session, struct attnd_rpc *call)
{
    int rc = broken(session);
    attnd_call_end(session, call);
    return rc;
}

int attnd_call_secret(struct attnd_session *session, struct attnd_rpc *call,
                      Attnd__Reply__ResultCase expect, struct attnd_token *secret)
{
    int rc = attnd_call(session, call, expect);
    if (rc < 0)
        return rc;
    const ProtobufCBinaryData *bytes = expect == ATTND__REPLY__RESULT_TICKET
                                           ? &call->reply->ticket->ticket
                                           : &call->reply->token->token;
    if (bytes->len != ATTND_TOKEN_BYTES)
        return attnd_call_broken(session, call);
    memcpy(secret->bytes, bytes->data, ATTND_TOKEN_BYTES);
    attnd_call_end(session, call);
    return 0;
}

int attnd_call_take_fd(struct attnd_rpc *call, int index)
{
    int fd = call->fds[index];
    call->fds[index] = -1;
    return fd;
}

/*
 * dial.c - how a claimer comes to a link, and to the next one when that has ended.
 *
 * It connects to the other service's socket as any client does, and asks there. The listener on a
 * path is not known before: it has to be a process of this daemon's own user, and its identity must
 * not be one that is linked already. What fails is tried again, less and less often.
 */
#include "ipc/discard.h"
#include "ipc/fdpass.h"
#include "schemas/attnd.pb-c.h"
#include "schemas/clock.h"
#include "service/peers/peers_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DELAY_NS_MIN UINT64_C(100000000)
#define DELAY_NS_MAX UINT64_C(2000000000)
#define LIVED_NS UINT64_C(2000000000) /* a link that ends before is as good as one that failed */
#define ANSWER_NS UINT64_C(3000000000)
#define FAR_ANSWER_NS UINT64_C(5000000000) /* longer than the mover gives a handshake */
#define REPLY_BYTES 4096u

static void close_later(void *context)
{
    const int fd = (int)(intptr_t)context;
    attnd_discard(ATTND_DISCARD_OWN, &fd, 1);
}

/* The connection on which it was asked is of no more use. */
static void end_visit(struct attnd_peer *peer)
{
    if (peer->visit_watch)
        attnd_loop_unwatch(peer->service->loop, peer->visit_watch, close_later,
                           (void *)(intptr_t)peer->visit);
    else if (peer->visit >= 0)
        close_later((void *)(intptr_t)peer->visit);
    peer->visit_watch = NULL;
    peer->visit = -1;
}

/* Less and less often. */
static void try_later(struct attnd_peer *peer)
{
    peer->delay_ns = peer->delay_ns ? peer->delay_ns * 2 : DELAY_NS_MIN;
    if (peer->delay_ns > DELAY_NS_MAX)
        peer->delay_ns = DELAY_NS_MAX;
    attnd_loop_timer_set(peer->service->loop, peer->timer, attnd_clock_ns() + peer->delay_ns);
}

/* Said once, and not with each try that ends in the same way. */
static void fail(struct attnd_peer *peer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void fail(struct attnd_peer *peer, const char *format, ...)
{
    char text[sizeof(peer->trouble)];
    va_list values;

    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    if (strcmp(text, peer->trouble) != 0)
        attnd_log(ATTND_LOG_WARNING, "peer %s: no link to %s: %s", peer->option->name,
                  peer->option->address, text);
    memcpy(peer->trouble, text, sizeof(text));
    end_visit(peer);
    peer->state = ATTND_PEER_DOWN;
    try_later(peer);
}

/* ---- the answer ---- */

/* Return: NULL: it is to be linked; else why not. */
static const char *check_identity(const struct attnd_peer *peer, const uint8_t *identity)
{
    const struct attnd_peers *peers = peer->service->peers;

    if (memcmp(identity, peer->service->identity, ATTND_IDENTITY_BYTES) == 0)
        return "it is this service";
    for (uint32_t i = 0; i < peers->peers_count; i++)
        if (&peers->peers[i] != peer && peers->peers[i].state == ATTND_PEER_UP &&
            memcmp(identity, peers->peers[i].identity, ATTND_IDENTITY_BYTES) == 0)
            return "it is linked already, by another name";
    return NULL;
}

void attnd_dial_linked(struct attnd_peer *peer, const uint8_t *identity, const char *version,
                       int *fd)
{
    const char *why = check_identity(peer, identity);
    const int flags = fcntl(*fd, F_GETFL);

    if (why) {
        fail(peer, "%s", why);
        return;
    }
    if (flags < 0 || fcntl(*fd, F_SETFL, flags | O_NONBLOCK) < 0) {
        fail(peer, "its link cannot be used: %s", strerror(errno));
        return;
    }
    const int link = *fd;
    *fd = -1;
    if (attnd_link_begin(&peer->link, link) < 0) {
        fail(peer, "out of memory");
        return;
    }
    end_visit(peer);
    attnd_loop_timer_set(peer->service->loop, peer->timer, UINT64_MAX);
    memcpy(peer->identity, identity, ATTND_IDENTITY_BYTES);
    peer->known = 1;
    peer->state = ATTND_PEER_UP;
    peer->trouble[0] = 0;
    attnd_log(ATTND_LOG_INFO, "peer %s: linked to %s, attnd %s", peer->option->name,
              peer->option->address, version);
}

static const char *check_welcome(const Attnd__PeerWelcome *welcome, int fds_count)
{
    if (welcome->version != ATTND_PEER_VERSION)
        return "it speaks another version";
    if (welcome->service.len != ATTND_IDENTITY_BYTES || fds_count != 1)
        return "its answer makes no sense";
    return NULL;
}

static void take_reply(struct attnd_peer *peer, const Attnd__Reply *reply, int *fds, int fds_count)
{
    char text[128];
    const struct attnd_fault fault = {.code = reply->code,
                                      .field = reply->field,
                                      .index = reply->index,
                                      .value = reply->value,
                                      .limit = reply->limit};

    if (reply->code < 0) {
        fail(peer, "%s", attnd_fault_string(&fault, text, sizeof(text)));
        return;
    }
    const char *why = reply->result_case == ATTND__REPLY__RESULT_PEER_WELCOME
                          ? check_welcome(reply->peer_welcome, fds_count)
                          : "its answer makes no sense";
    if (why)
        fail(peer, "%s", why);
    else
        attnd_dial_linked(peer, reply->peer_welcome->service.data,
                          reply->peer_welcome->daemon_version, &fds[0]);
}

static void on_visit(void *context, uint32_t poll_events)
{
    struct attnd_peer *peer = context;
    uint8_t bytes[REPLY_BYTES];
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t memory[2 * REPLY_BYTES];
    struct attnd_admit_alloc alloc;
    int fds[ATTND_FDS_MAX], fds_count = 0, kept = 0;
    (void)poll_events;

    const long got = attnd_fdpass_recv(peer->visit, bytes, sizeof(bytes), fds, &fds_count);
    if (got == 0)
        return;
    attnd_admit_alloc_init(&alloc, memory, sizeof(memory));
    const Attnd__Reply *reply =
        got > 0 ? attnd__reply__unpack(&alloc.allocator, (size_t)got, bytes) : NULL;
    if (reply)
        take_reply(peer, reply, fds, fds_count);
    else
        fail(peer, got == -ATTND_E_DISCONNECTED ? "it hung up" : "its answer makes no sense");
    for (int i = 0; i < fds_count; i++)
        if (fds[i] >= 0)
            fds[kept++] = fds[i];
    if (kept > 0)
        attnd_discard(ATTND_DISCARD_OWN, fds, kept);
}

/* ---- the question ---- */

static int ask(const struct attnd_peer *peer)
{
    uint8_t identity[ATTND_IDENTITY_BYTES], bytes[64];
    Attnd__PeerHello hello = ATTND__PEER_HELLO__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    memcpy(identity, peer->service->identity, sizeof(identity));
    hello.version = ATTND_PEER_VERSION;
    hello.service = (ProtobufCBinaryData){.len = sizeof(identity), .data = identity};
    request.id = 1;
    request.call_case = ATTND__REQUEST__CALL_PEER_HELLO;
    request.peer_hello = &hello;
    if (attnd__request__get_packed_size(&request) > sizeof(bytes))
        return -ATTND_E_RANGE;
    return attnd_fdpass_send(peer->visit, bytes, attnd__request__pack(&request, bytes), NULL, 0);
}

/* It would be sent tickets, and sends descriptors that the worker maps. */
static int is_own_user(int fd)
{
    struct ucred credentials;
    socklen_t bytes = sizeof(credentials);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
           credentials.uid == geteuid();
}

void attnd_dial_failed(struct attnd_peer *peer, const char *why)
{
    fail(peer, "%s", why);
}

/* The mover says what comes of it. While it may write for the last link it is not asked. */
static void dial_far(struct attnd_peer *peer)
{
    peer->state = ATTND_PEER_CONNECTING;
    const char *why = peer->closing ? "the last link is not over" : attnd_far_dial(peer);
    if (why)
        fail(peer, "%s", why);
    else
        attnd_loop_timer_set(peer->service->loop, peer->timer, attnd_clock_ns() + FAR_ANSWER_NS);
}

static void dial(struct attnd_peer *peer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memcpy(address.sun_path, peer->option->address, sizeof(address.sun_path));
    peer->state = ATTND_PEER_CONNECTING;
    peer->visit = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (peer->visit < 0 || connect(peer->visit, (struct sockaddr *)&address, sizeof(address)) < 0) {
        fail(peer, "%s", strerror(errno));
        return;
    }
    if (!is_own_user(peer->visit)) {
        fail(peer, "the service runs as another user");
        return;
    }
    peer->visit_watch =
        attnd_loop_watch_fd(peer->service->loop, peer->visit, POLLIN | POLLRDHUP, on_visit, peer);
    if (!peer->visit_watch || ask(peer) < 0) {
        fail(peer, "it cannot be asked");
        return;
    }
    attnd_loop_timer_set(peer->service->loop, peer->timer, attnd_clock_ns() + ANSWER_NS);
}

static void go(struct attnd_peer *peer)
{
    if (peer->far)
        dial_far(peer);
    else
        dial(peer);
}

static void on_timer(void *context)
{
    struct attnd_peer *peer = context;

    if (peer->state == ATTND_PEER_CONNECTING)
        fail(peer, "it does not answer");
    else if (peer->state == ATTND_PEER_DOWN)
        go(peer);
}

/* ---- the outside ---- */

int attnd_dial_start(struct attnd_peer *peer)
{
    peer->timer = attnd_loop_timer_new(peer->service->loop, on_timer, peer);
    if (!peer->timer)
        return -ATTND_E_NO_MEMORY;
    go(peer);
    return 0;
}

void attnd_dial_down(struct attnd_peer *peer)
{
    peer->state = ATTND_PEER_DOWN;
    if (peer->far) {
        peer->closing = 1;
        attnd_far_owes(peer->service);
    }
    if (!peer->timer) /* stopped */
        return;
    attnd_log(ATTND_LOG_WARNING, "peer %s: the link to %s has ended: %s", peer->option->name,
              peer->option->address, peer->link.last_end);
    if (attnd_clock_ns() - peer->link.up_ns >= LIVED_NS)
        peer->delay_ns = 0;
    try_later(peer);
}

void attnd_dial_stop(struct attnd_peer *peer)
{
    attnd_loop_unwatch(peer->service->loop, peer->timer, NULL, NULL);
    peer->timer = NULL;
    end_visit(peer);
    attnd_link_end(&peer->link, "this service stops");
    peer->state = ATTND_PEER_DOWN;
}

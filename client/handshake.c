/*
 * handshake.c - from a path to two mapped segments.
 *
 *   -> Hello        version, wishes for ring and arena
 *   <- HelloReply   submission memfd, completion memfd, notify pipe (, doorbell eventfd)
 *      map the submission segment read-write and the completion segment read-only
 *   -> Mapped       only now may the daemon seal the submission segment against new writers
 *   <- empty
 *
 * The daemon is trusted more than a client is, but what it says about sizes is still held against
 * the files it sent: a segment that is too short would be a SIGBUS in the engine, much later.
 */
#include "client/internal.h"
#include "ipc/socket_path.h"
#include "schemas/crash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RING_ENTRIES_DEFAULT 256u
#define ARENA_BYTES_DEFAULT (8u << 20)

static int socket_fault(int code, int error)
{
    return attnd_fault_raise(code, ATTND_F_SOCKET, 0, error, 0);
}

/* Where the daemon listens, by argument or by the rule. */
static int find_address(const char *path, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t length = path ? strlen(path)
                         : attnd_socket_path(ATTND_SOCKET_CONNECT, address->sun_path,
                                             sizeof(address->sun_path));
    if (length == 0 || length >= sizeof(address->sun_path))
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_SOCKET, 0, (int64_t)length,
                                 (int64_t)sizeof(address->sun_path) - 1);
    if (path)
        memcpy(address->sun_path, path, length);
    return 0;
}

/* Anybody can listen on a path in a folder that is everybody's, and would be sent q, K and V. The
 * credentials are those of the process that began to listen. */
static int check_daemon(int socket, const uint32_t *wanted)
{
    struct ucred daemon;
    socklen_t bytes = sizeof(daemon);
    const uid_t expected = wanted ? *wanted : geteuid();

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &daemon, &bytes) < 0)
        return socket_fault(-ATTND_E_SYSTEM, errno);
    if (daemon.uid == expected || (!wanted && daemon.uid == 0))
        return 0;
    return attnd_fault_raise(-ATTND_E_PERMISSION, ATTND_F_DAEMON_UID, 0, daemon.uid, expected);
}

static int dial(struct attnd_session *session, const struct attnd_open_args *args)
{
    struct sockaddr_un address;
    int rc = find_address(args->socket_path, &address);
    if (rc < 0)
        return rc;
    session->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (session->socket < 0)
        return socket_fault(-ATTND_E_SYSTEM, errno);

    /* Bounds connect() as well, when the daemon's backlog is full. */
    struct timeval timeout = {.tv_sec = ATTND_CALL_TIMEOUT_NS / 1000000000u};
    if (setsockopt(session->socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
        return socket_fault(-ATTND_E_SYSTEM, errno);
    do
        rc = connect(session->socket, (struct sockaddr *)&address, sizeof(address));
    while (rc < 0 && errno == EINTR);
    if (rc < 0)
        return attnd_fault_unreachable(errno == EACCES || errno == EPERM ? -ATTND_E_PERMISSION
                                                                         : -ATTND_E_DISCONNECTED,
                                       errno, address.sun_path);
    return check_daemon(session->socket, args->daemon_uid);
}

static uint64_t slots_bytes(uint32_t entries)
{
    return (uint64_t)entries * ATTND_SLOT_BYTES;
}

/* Behind the slots, from the next page on. */
static uint64_t results_offset(const Attnd__HelloReply *hello)
{
    uint64_t bytes = ATTND_PAGE_BYTES + slots_bytes(hello->ring_entries);
    return (bytes + ATTND_PAGE_BYTES - 1) / ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
}

static uint64_t results_bytes(const Attnd__HelloReply *hello)
{
    return hello->has_results && hello->results ? ATTND_RESULT_WORDS * sizeof(int32_t) : 0;
}

/* Is what the daemon says consistent with itself? The files are held against it when mapped. */
static int check_reply(const struct attnd_rpc *call, uint64_t tables_bytes)
{
    const Attnd__HelloReply *hello = call->reply->hello;
    if (hello->version != ATTND_PROTOCOL_VERSION)
        return attnd_fault_raise(-ATTND_E_VERSION, ATTND_F_VERSION, 0, hello->version,
                                 ATTND_PROTOCOL_VERSION);
    int fds = hello->doorbell == ATTND__DOORBELL__DOORBELL_EVENTFD ? 4 : 3;
    int consistent =
        call->fd_count == fds && attnd_ring_entries_valid(hello->ring_entries) &&
        hello->arena_bytes >= ATTND_CACHE_LINE + tables_bytes && hello->arena_bytes <= INT64_MAX &&
        hello->arena_offset_bytes % ATTND_CACHE_LINE == 0 &&
        hello->arena_offset_bytes <= INT64_MAX &&
        hello->arena_offset_bytes >= ATTND_PAGE_BYTES + slots_bytes(hello->ring_entries);
    return consistent ? 0 : attnd_fault_raise(-ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, 0, 0);
}

/* A segment's fd is closed once it is mapped: the mapping keeps the memory. */
static int map_segment(struct attnd_rpc *call, int index, uint64_t bytes, int writable,
                       struct attnd_shm *out)
{
    struct attnd_fault fault = {0};
    if (attnd_shm_map(call->fds[index], bytes, writable, out, &fault) < 0)
        return attnd_fault_keep(&fault);
    out->fd = -1;
    return 0;
}

static int map_segments(struct attnd_session *session, struct attnd_rpc *call)
{
    const Attnd__HelloReply *hello = call->reply->hello;
    int rc = map_segment(call, 0, hello->arena_offset_bytes + hello->arena_bytes, 1,
                         &session->submission);
    if (rc == 0)
        rc = map_segment(call, 1, results_offset(hello) + results_bytes(hello), 0,
                         &session->completion);
    if (rc < 0)
        return rc;

    const struct attnd_submit_head *submit = session->submission.address;
    const struct attnd_complete_head *complete = session->completion.address;
    if (submit->magic != ATTND_SEGMENT_MAGIC || complete->magic != ATTND_SEGMENT_MAGIC)
        return attnd_fault_raise(-ATTND_E_PROTOCOL, ATTND_F_HEADER, 0, 0, 0);
    if (submit->version != ATTND_PROTOCOL_VERSION || complete->version != ATTND_PROTOCOL_VERSION)
        return attnd_fault_raise(-ATTND_E_VERSION, ATTND_F_VERSION, 0, submit->version,
                                 ATTND_PROTOCOL_VERSION);
    return 0;
}

static int init_rings(struct attnd_session *session, const Attnd__HelloReply *hello)
{
    struct attnd_submit_head *submit = session->submission.address;
    const struct attnd_complete_head *complete = session->completion.address;
    uint8_t *submission = session->submission.address;
    const uint8_t *completion = session->completion.address;

    attnd_producer_init(&session->sq, submission + ATTND_PAGE_BYTES, &submit->sq_tail,
                        &complete->sq_head, hello->ring_entries);
    attnd_consumer_init(&session->cq, completion + ATTND_PAGE_BYTES, &complete->cq_tail,
                        &submit->cq_head, hello->ring_entries);
    if (results_bytes(hello)) {
        session->results_shared = (const void *)(completion + results_offset(hello));
        session->results = malloc(results_bytes(hello));
        if (session->results == NULL)
            return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    session->cq_need = &submit->cq_need;
    session->spin_ns = attnd_spin_flight_ns(); /* a thread that waits has asked */
    session->doorbell = (struct attnd_doorbell){
        .word = &submit->sq_tail, .need = &complete->sq_need, .fd = session->doorbell_fd};
    uint8_t *arena = submission + hello->arena_offset_bytes;
    const uint64_t blocks_bytes = hello->arena_bytes - session->tables_bytes;
    if (attnd_arena_init(&session->arena, arena, blocks_bytes, hello->ring_entries) < 0)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_ARENA, 0, 0, 0);
    session->tables = session->tables_bytes ? arena + session->arena.bytes : NULL;
    return 0;
}

/* One descriptor for an engine's own loop: readable when a completion was announced, and when the
 * daemon is gone. */
static int init_event(struct attnd_session *session)
{
    struct epoll_event completion = {.events = EPOLLIN}, end = {.events = EPOLLRDHUP};
    session->event = epoll_create1(EPOLL_CLOEXEC);
    if (session->event < 0 ||
        epoll_ctl(session->event, EPOLL_CTL_ADD, session->notify, &completion) < 0 ||
        epoll_ctl(session->event, EPOLL_CTL_ADD, session->socket, &end) < 0)
        return attnd_fault_raise(-ATTND_E_SYSTEM, ATTND_F_NONE, 0, errno, 0);
    return 0;
}

static void fill_info(struct attnd_info *info, const Attnd__HelloReply *hello,
                      uint64_t tables_bytes)
{
    info->size = sizeof(*info);
    info->session = hello->session;
    info->ring_entries = hello->ring_entries;
    info->arena_bytes = hello->arena_bytes - tables_bytes;
    snprintf(info->backend, sizeof(info->backend), "%s", hello->backend);
    snprintf(info->isa, sizeof(info->isa), "%s", hello->isa);
    snprintf(info->residency, sizeof(info->residency), "%s",
             hello->residency ? hello->residency : "");
    if (hello->has_gpu_uuid && hello->gpu_uuid.len == sizeof(info->gpu_uuid))
        memcpy(info->gpu_uuid, hello->gpu_uuid.data, sizeof(info->gpu_uuid));
    info->mps = hello->has_mps && hello->mps;
    snprintf(info->daemon_version, sizeof(info->daemon_version), "%s", hello->daemon_version);
}

static uint64_t arena_bytes(const struct attnd_open_args *args)
{
    return args->arena_bytes ? args->arena_bytes : ARENA_BYTES_DEFAULT;
}

/* The daemon knows one arena. What it gives out of it is the client's affair, and so are limits. */
static int take_tables(struct attnd_session *session, const struct attnd_open_args *args)
{
    const uint64_t line = ATTND_CACHE_LINE;

    if (args->tables_bytes == 0)
        return 0;
    const uint64_t blocks = arena_bytes(args), least = ATTND_ARENA_BYTES_MIN;
    const uint64_t most = ATTND_ARENA_BYTES_MAX;
    if (blocks < least || blocks > most)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_ARENA, 0, (int64_t)blocks,
                                 (int64_t)(blocks < least ? least : most));
    if (args->tables_bytes > most - blocks)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_ARENA, 0, (int64_t)args->tables_bytes,
                                 (int64_t)(most - blocks));
    session->tables_bytes = (args->tables_bytes + line - 1) / line * line;
    return 0;
}

static int say_hello(struct attnd_session *session, const struct attnd_open_args *args)
{
    /* A name is for people to read; cut rather than refused. protobuf-c does not write to it. */
    char name[32];
    snprintf(name, sizeof(name), "%s", args->name ? args->name : "");
    Attnd__Hello message = ATTND__HELLO__INIT;
    message.version = ATTND_PROTOCOL_VERSION;
    message.name = args->name ? name : NULL;
    message.has_ring_entries = 1;
    message.ring_entries = args->ring_entries ? args->ring_entries : RING_ENTRIES_DEFAULT;
    message.has_arena_bytes = 1;
    message.arena_bytes = arena_bytes(args) + session->tables_bytes;
    session->arena_chosen = args->arena_bytes != 0;

    struct attnd_rpc call = ATTND_CALL(HELLO, .hello = &message);
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_HELLO);
    if (rc < 0)
        return rc;
    rc = check_reply(&call, session->tables_bytes);
    if (rc == 0)
        rc = map_segments(session, &call);
    attnd_crash(ATTND_CRASH_CLIENT_SEGMENTS_MAPPED);
    if (rc == 0) {
        session->notify = attnd_call_take_fd(&call, 2);
        session->doorbell_fd = call.fd_count > 3 ? attnd_call_take_fd(&call, 3) : -1;
        fill_info(&session->info, call.reply->hello, session->tables_bytes);
        rc = init_rings(session, call.reply->hello);
    }
    attnd_call_end(session, &call);
    return rc;
}

/* The limit that it names is the nearest length that there is. */
static int ring_entries_fault(uint32_t entries)
{
    uint32_t nearest = ATTND_RING_ENTRIES_MIN;
    while (nearest < entries && nearest < ATTND_RING_ENTRIES_MAX)
        nearest *= 2;
    return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_RING_ENTRIES, 0, entries, nearest);
}

int attnd_session_connect(struct attnd_session *session, const struct attnd_open_args *args)
{
    if (args->ring_entries != 0 && !attnd_ring_entries_valid(args->ring_entries))
        return ring_entries_fault(args->ring_entries);
    int rc = take_tables(session, args);
    if (rc == 0)
        rc = dial(session, args);
    attnd_crash(ATTND_CRASH_CLIENT_CONNECTED);
    if (rc == 0)
        rc = say_hello(session, args);
    if (rc == 0)
        rc = init_event(session);
    if (rc < 0)
        return rc;

    Attnd__Mapped message = ATTND__MAPPED__INIT;
    struct attnd_rpc call = ATTND_CALL(MAPPED, .mapped = &message);
    rc = attnd_call(session, &call, ATTND__REPLY__RESULT__NOT_SET);
    if (rc == 0)
        attnd_call_end(session, &call);
    return rc;
}

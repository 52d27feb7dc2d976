/*
 * fuzz_reply.c - any bytes, with any descriptors, as the service's reply to each call of libattnd.
 *
 * The session is made by hand over a socket pair; the reply waits in it before the call is made. A
 * call returns 0 with what it says, or a fault; nothing that it was given is read beyond its end,
 * every descriptor is closed, and the session can be closed whatever happened.
 */
#include "client/attnd.h"
#include "client/internal.h"

#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS_MAX 6u
#define REPLY_BYTES_MAX 2048u

static struct attnd_session *open_session(int *daemon)
{
    struct attnd_session *session = aligned_alloc(64, (sizeof(*session) + 63) / 64 * 64);
    int ends[2];

    fuzz_require(session != NULL, "memory");
    memset(session, 0, sizeof(*session));
    fuzz_require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0,
                 "a socket");
    session->socket = ends[0];
    *daemon = ends[1];
    session->notify = session->doorbell_fd = session->event = -1;
    session->submission.fd = session->completion.fd = -1;
    session->forks = attnd_session_forks;
    session->arena.bytes = 1u << 20;
    session->datagram = malloc(attnd_call_buffer_bytes());
    fuzz_require(session->datagram != NULL, "memory");
    pthread_mutex_init(&session->call_lock, NULL);
    pthread_mutex_init(&session->objects_lock, NULL);
    return session;
}

/* A descriptor as memory is sent, or one that is no memory. */
static int descriptor(struct case_source *source)
{
    if (case_below(source, 4) == 0)
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    int fd = memfd_create("reply", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_require(fd >= 0 && ftruncate(fd, 4096 * (1 + (off_t)case_below(source, 4))) == 0,
                 "memory");
    if (case_below(source, 2))
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | (case_below(source, 2) ? F_SEAL_GROW : 0));
    return fd;
}

/* The next bytes of the input, and behind them the number of the call, so that it need not be
 * guessed: of a field that comes twice the last one counts. */
static void send_reply(struct case_source *source, int daemon, uint64_t id)
{
    uint8_t reply[REPLY_BYTES_MAX + 2];
    int fds[3];
    const int fd_count = (int)case_below(source, 4);
    size_t bytes = case_below(source, REPLY_BYTES_MAX);

    for (int i = 0; i < fd_count; i++)
        fds[i] = descriptor(source);
    bytes = bytes < source->bytes_left ? bytes : source->bytes_left;
    memcpy(reply, source->bytes, bytes);
    source->bytes += bytes;
    source->bytes_left -= bytes;
    if (case_below(source, 8)) {
        reply[bytes++] = 0x08; /* field 1, varint */
        reply[bytes++] = (uint8_t)id;
    }
    if (bytes)
        (void)attnd_fdpass_send(daemon, reply, bytes, fds, fd_count);
    attnd_fdpass_close(fds, fd_count);
    if (!bytes)
        (void)shutdown(daemon, SHUT_WR);
}

static int make_call(struct attnd_session *session, uint32_t what, uint32_t handle)
{
    const struct attnd_plan_args plan = {.size = sizeof(plan),
                                         .pool = handle,
                                         .requests = 1,
                                         .rows = 1,
                                         .pages = 1,
                                         .levels = 1,
                                         .heads_q = 1};
    const struct attnd_prepare_args prepare = {.size = sizeof(prepare)};
    struct attnd_memory_info memory = {.size = sizeof(memory)};
    struct attnd_pool_info pool = {.size = sizeof(pool)};
    struct attnd_token token = {{0}};
    int32_t pages[4] = {0, 1, 2, 3};
    uint32_t made;
    void *at;

    switch (what) {
    case 0:
        return attnd_memory_create(session, 4096, &made, &at);
    case 1:
        return attnd_pool_create_leased(session, 1, 4, 16, 1, 16, ATTND_DTYPE_FP16, &made);
    case 2:
        return attnd_pool_attach(session, &token, &made);
    case 3:
        return attnd_plan_create(session, &plan, &made);
    case 4:
        return attnd_pages_alloc(session, handle, 4, pages);
    case 5:
        return attnd_pages_free(session, handle, 4, pages);
    case 6:
        return attnd_pool_share(session, handle, 1, &token);
    case 7:
        return attnd_prepare(session, handle, &prepare, &made);
    case 8:
        return attnd_memory_release(session, handle);
    case 9:
        return attnd_pool_release(session, handle);
    case 10:
        return attnd_plan_destroy(session, handle);
    case 11:
        return attnd_memory_info(session, handle, &memory);
    case 12:
        return attnd_pool_info(session, handle, &pool);
    case 13:
        return attnd_unprepare(session, handle);
    case 14:
        return attnd_lane_error(session, 0);
    default:
        return attnd_memory_create_device(session, 4096, &made);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct case_source source = {.bytes = data, .bytes_left = bytes};
    int daemon;

    if (!data || !bytes)
        return 0;
    struct attnd_session *session = open_session(&daemon);
    for (uint32_t i = 0; i < CALLS_MAX && source.bytes_left; i++) {
        const uint32_t what = case_below(&source, 16), handle = case_below(&source, 8);
        struct attnd_fault fault = {0};
        uint8_t request[4096];

        send_reply(&source, daemon, session->call_id + 1);
        const int code = make_call(session, what, handle);
        attnd_last_fault(&fault);
        fuzz_require(code <= 0, "a call returns 0 or a fault");
        fuzz_require(code == 0 || fault.code == code, "the fault says which");
        while (recv(daemon, request, sizeof(request), MSG_DONTWAIT) > 0)
            ;
    }
    attnd_close(session);
    close(daemon);
    return 0;
}

/* attack_kernel.c - what makes it long to wake somebody, to close something, and to tell. */
#include "bench/support/attack_kernel.h"
#include "bench/support/attack_parts.h"
#include "client/attnd_launch.h"
#include "client/internal.h"
#include "schemas/futex.h"

#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RINGS 4u
#define RING_WAITS 15000u
#define RING_ENTRIES 16384u
#define FUTEX_WAIT_OPCODE 51 /* IORING_OP_FUTEX_WAIT, which older headers lack */
#define FUTEX_WORD_BYTES4 2  /* FUTEX2_SIZE_U32 */
#define DUPLICATES 15000u
#define SPARE_DESCRIPTORS 100u
#define MEMORIES 1000u
#define MEMORY_BYTES (UINT64_C(16) << 20)
#define ASKERS 4u
#define ASKED_MEMORIES 500u
#define SILENT 7u

/* ---- who waits for an answer of the worker ---- */

struct launches {
    struct attnd_session *session;
    uint32_t prepared;
    struct io_uring rings[RINGS];
    uint32_t rings_count;
};

static bool prepare(struct bench_suite *suite, struct launches *launches)
{
    const struct attnd_pool_desc desc = attack_pool(4, ATTND_PAGES_OF_ENGINE);
    struct attnd_prepare_args args = {.size = sizeof(args)};
    uint32_t pool, plan, memory;

    if (!attack_open(suite, 64, 65536, &launches->session) ||
        !bench_suite_call(suite, "attnd_pool_create",
                          attnd_pool_create(launches->session, &desc, &pool)) ||
        !bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(launches->session, 65536, &memory, NULL)) ||
        !attack_plan(suite, launches->session, pool, &plan))
        return false;
    args.q = (struct attnd_tensor){memory, 0};
    args.o = (struct attnd_tensor){memory, 4096};
    return bench_suite_call(suite, "attnd_prepare",
                            attnd_prepare(launches->session, plan, &args, &launches->prepared));
}

/* A wait for the word to be another one, as often as the ring has room. */
static void wait_in(struct io_uring *ring, const uint32_t *word)
{
    for (uint32_t i = 0; i < RING_WAITS; i++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
        if (!sqe)
            break;
        memset(sqe, 0, sizeof(*sqe));
        sqe->opcode = FUTEX_WAIT_OPCODE;
        sqe->fd = FUTEX_WORD_BYTES4;
        sqe->addr = (uintptr_t)word;
        sqe->addr2 = attnd_observe32(word);
        sqe->addr3 = UINT32_MAX;
    }
    (void)io_uring_submit(ring);
}

void bench_attack_futexes(struct bench_suite *suite, int fd)
{
    static struct launches launches;

    if (!prepare(suite, &launches))
        return;
    while (launches.rings_count < RINGS &&
           io_uring_queue_init(RING_ENTRIES, &launches.rings[launches.rings_count], 0) == 0)
        launches.rings_count++;
    while (!suite->failed) {
        for (uint32_t i = 0; i < launches.rings_count; i++)
            wait_in(&launches.rings[i], &launches.session->mailbox->doorbell[0]);
        if (bench_suite_call(suite, "attnd_launch",
                             attnd_launch(launches.session, 0, launches.prepared)))
            bench_suite_call(suite, "attnd_launch_wait",
                             attnd_launch_wait(launches.session, 0, 60000000000u));
        for (uint32_t i = 0; i < launches.rings_count; i++)
            io_uring_cq_advance(&launches.rings[i], io_uring_cq_ready(&launches.rings[i]));
        attack_begun(&fd);
    }
}

/* ---- who waits for a completion ---- */

static void watch_often(struct bench_suite *suite, int file)
{
    const uint32_t room = attack_raise_descriptors();
    const int set = epoll_create1(EPOLL_CLOEXEC);
    uint32_t count = room > DUPLICATES + SPARE_DESCRIPTORS ? DUPLICATES : room / 2;

    for (; set >= 0 && count > 0; count--) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET};
        const int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
        if (copy < 0 || epoll_ctl(set, EPOLL_CTL_ADD, copy, &event) < 0)
            break;
    }
    if (count > 0)
        bench_suite_fail(suite, "no descriptors for an attacker: %u are left", count);
}

void bench_attack_waiters(struct bench_suite *suite, int fd)
{
    const struct attnd_run_args run = {.size = sizeof(run)};
    struct attnd_session *session;
    struct attnd_completion done[ATTND_LANES_MAX];
    char bytes[4096];
    const struct attnd_op op = {0};

    if (!attack_open(suite, 4096, 65536, &session))
        return;
    watch_often(suite, session->notify);
    (void)fcntl(session->notify, F_SETFL, O_NONBLOCK);
    while (!suite->failed) { /* a run that is refused is answered at once */
        attnd_poke32(session->cq_need, 1);
        (void)attnd_run(session, 1, &run, &op);
        while (attnd_wait(session, done, ATTND_LANES_MAX, 0) == 0)
            attnd_poke32(session->cq_need, 1);
        while (read(session->notify, bytes, sizeof(bytes)) > 0)
            ;
        attack_begun(&fd);
        if (attnd_session_lost(session))
            bench_suite_fail(suite, "the session of an attacker was ended");
    }
}

/* ---- what there is to close, and to tell ---- */

static void register_many(struct bench_suite *suite, int fd)
{
    struct attnd_session *session;

    (void)attack_raise_descriptors();
    if (!attack_open(suite, 8, 65536, &session) ||
        attack_memories(suite, session, MEMORIES, MEMORY_BYTES) < 0)
        return;
    attack_begun(&fd);
    pause();
}

void bench_attack_memories(struct bench_suite *suite, int fd)
{
    while (attack_die(suite, register_many))
        attack_begun(&fd);
}

void bench_attack_askers(struct bench_suite *suite, int fd)
{
    struct attnd_session *session[ASKERS];

    for (uint32_t i = 0; i < ASKERS; i++)
        if (!attack_open(suite, 8, 65536, &session[i]) ||
            attack_memories(suite, session[i], ASKED_MEMORIES, 4096) < 0)
            return;
    while (!suite->failed) {
        Attnd__Reply *reply = bench_suite_status(suite);
        if (reply)
            attnd__reply__free_unpacked(reply, NULL);
        attack_begun(&fd);
    }
}

static int connect_silently(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (file >= 0)
        (void)connect(file, (const struct sockaddr *)&address, sizeof(address));
    return file;
}

void bench_attack_visits(struct bench_suite *suite, int fd)
{
    int silent[SILENT];

    while (!suite->failed) {
        struct attnd_session *session;
        if (!attack_open(suite, 0, 0, &session))
            return;
        for (uint32_t i = 0; i < SILENT; i++)
            silent[i] = connect_silently(suite->socket_path);
        attnd_close(session);
        for (uint32_t i = 0; i < SILENT; i++)
            if (silent[i] >= 0)
                close(silent[i]);
        attack_begun(&fd);
    }
}

/* fake_daemon.c - see fake_daemon.h. Failures of the fake itself end the test program. */
#include "tests/support/harness/fake_daemon.h"

#include "client/attnd.h"
#include "ipc/fdpass.h"
#include "schemas/atomics.h"
#include "tests/support/harness/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t round_to_pages(uint64_t bytes)
{
    return (bytes + ATTND_PAGE_BYTES - 1) / ATTND_PAGE_BYTES * ATTND_PAGE_BYTES;
}

static void add_fd(struct fake_reply *reply, int fd)
{
    reply->fds[reply->fd_count++] = fd;
}

static void make_segments(struct fake_daemon *fake)
{
    uint64_t slots_bytes = round_to_pages(fake->ring_entries * (uint64_t)ATTND_SLOT_BYTES);
    uint64_t arena_offset_bytes = ATTND_PAGE_BYTES + slots_bytes;
    CHECK_EQUAL(attnd_shm_create("fake-submission", arena_offset_bytes + fake->arena_bytes,
                                 &fake->submission, NULL),
                0);
    CHECK_EQUAL(attnd_shm_create("fake-completion", arena_offset_bytes, &fake->completion, NULL),
                0);
    fake->submit = fake->submission.address;
    fake->complete = fake->completion.address;
    fake->submit->magic = fake->complete->magic = ATTND_SEGMENT_MAGIC;
    fake->submit->version = fake->complete->version = ATTND_PROTOCOL_VERSION;
    fake->arena = (uint8_t *)fake->submission.address + arena_offset_bytes;
    fake->notify = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    fake->doorbell = fake->eventfd_doorbell ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    attnd_consumer_init(&fake->sq, (uint8_t *)fake->submit + ATTND_PAGE_BYTES,
                        &fake->submit->sq_tail, &fake->complete->sq_head, fake->ring_entries);
    attnd_producer_init(&fake->cq, (uint8_t *)fake->complete + ATTND_PAGE_BYTES,
                        &fake->complete->cq_tail, &fake->submit->cq_head, fake->ring_entries);
    CHECK_EQUAL(attnd_shm_seal(fake->completion.fd, ATTND_SEAL_COMPLETION), 0);
}

static void answer_hello(struct fake_daemon *fake, const Attnd__Hello *hello,
                         Attnd__HelloReply *answer, struct fake_reply *reply)
{
    static char backend[] = "fake", isa[] = "none", version[] = "9.9.9";
    if (fake->ring_entries == 0)
        fake->ring_entries = hello->ring_entries;
    if (fake->arena_bytes == 0)
        fake->arena_bytes = hello->arena_bytes;
    make_segments(fake);
    answer->version = ATTND_PROTOCOL_VERSION;
    answer->session = 7;
    answer->ring_entries = fake->ring_entries;
    answer->arena_offset_bytes = (uint64_t)(fake->arena - (uint8_t *)fake->submission.address);
    answer->arena_bytes = fake->arena_bytes;
    answer->doorbell = fake->eventfd_doorbell ? ATTND__DOORBELL__DOORBELL_EVENTFD
                                              : ATTND__DOORBELL__DOORBELL_FUTEX;
    answer->backend = backend;
    answer->isa = isa;
    answer->daemon_version = version;
    add_fd(reply, fake->submission.fd);
    add_fd(reply, fake->completion.fd);
    add_fd(reply, fake->notify);
    if (fake->doorbell >= 0)
        add_fd(reply, fake->doorbell);
}

static int make_memory(struct fake_daemon *fake, uint64_t size_bytes)
{
    if (fake->memory_fd >= 0)
        close(fake->memory_fd);
    CHECK_EQUAL(attnd_shm_create_unmapped("fake-memory", size_bytes, &fake->memory_fd, NULL), 0);
    return fake->memory_fd;
}

/* Room for whatever a default reply points to. */
struct answers {
    Attnd__HelloReply hello;
    Attnd__MemoryReply memory;
    Attnd__PlanReply plan;
    Attnd__TokenReply token;
    Attnd__TicketReply ticket;
    Attnd__PagesReply pages;
    uint8_t secret[16];
    int32_t page[16384];
};

static void answer_pages(struct answers *answers, uint32_t pool, uint32_t count)
{
    attnd__pages_reply__init(&answers->pages);
    for (uint32_t i = 0; i < count; i++)
        answers->page[i] = (int32_t)(100 + i);
    answers->pages.pool = pool;
    answers->pages.n_page = count;
    answers->pages.page = answers->page;
}

/* What a well-behaved daemon of no great memory says. Pools are the tests' to answer. */
static void answer(struct fake_daemon *fake, const Attnd__Request *request, struct answers *answers,
                   struct fake_reply *reply)
{
    Attnd__Reply *message = &reply->message;
    for (size_t i = 0; i < sizeof(answers->secret); i++)
        answers->secret[i] = (uint8_t)(i + 1);
    ProtobufCBinaryData secret = {sizeof(answers->secret), answers->secret};
    switch (request->call_case) {
    case ATTND__REQUEST__CALL_HELLO:
        attnd__hello_reply__init(&answers->hello);
        answer_hello(fake, request->hello, &answers->hello, reply);
        message->result_case = ATTND__REPLY__RESULT_HELLO;
        message->hello = &answers->hello;
        break;
    case ATTND__REQUEST__CALL_MAPPED:
        attnd_publish32(&fake->mapped, 1);
        CHECK_EQUAL(attnd_shm_seal(fake->submission.fd, ATTND_SEAL_SUBMISSION), 0);
        break;
    case ATTND__REQUEST__CALL_MEMORY_REGISTER:
        attnd__memory_reply__init(&answers->memory);
        answers->memory.memory = ++fake->next_handle;
        message->result_case = ATTND__REPLY__RESULT_MEMORY;
        message->memory = &answers->memory;
        if (fake->received_fds == 0 && !request->memory_register->has_handle)
            add_fd(reply, make_memory(fake, request->memory_register->size_bytes));
        break;
    case ATTND__REQUEST__CALL_PLAN_CREATE:
        attnd__plan_reply__init(&answers->plan);
        answers->plan.plan = ++fake->next_handle;
        message->result_case = ATTND__REPLY__RESULT_PLAN;
        message->plan = &answers->plan;
        break;
    case ATTND__REQUEST__CALL_POOL_SHARE:
        attnd__token_reply__init(&answers->token);
        answers->token.token = secret;
        message->result_case = ATTND__REPLY__RESULT_TOKEN;
        message->token = &answers->token;
        break;
    case ATTND__REQUEST__CALL_PAGES_OFFER:
        attnd__ticket_reply__init(&answers->ticket);
        answers->ticket.ticket = secret;
        message->result_case = ATTND__REPLY__RESULT_TICKET;
        message->ticket = &answers->ticket;
        break;
    case ATTND__REQUEST__CALL_PAGES_ALLOC:
        answer_pages(answers, request->pages_alloc->pool, request->pages_alloc->count);
        message->result_case = ATTND__REPLY__RESULT_PAGES;
        message->pages = &answers->pages;
        break;
    case ATTND__REQUEST__CALL_PAGES_CLAIM:
        answer_pages(answers, 5, 3);
        message->result_case = ATTND__REPLY__RESULT_PAGES;
        message->pages = &answers->pages;
        break;
    default:
        break;
    }
}

/* Return: 0 when the connection is to end. */
static int serve(struct fake_daemon *fake, const Attnd__Request *request)
{
    static _Thread_local struct answers answers;
    struct fake_reply reply = {.message = ATTND__REPLY__INIT};
    reply.message.id = request->id;
    answer(fake, request, &answers, &reply);
    enum fake_verdict verdict = fake->spoil ? fake->spoil(fake, request, &reply) : FAKE_REPLY;
    (void)attnd_take32(&fake->calls, 1);
    if (verdict != FAKE_REPLY)
        return verdict != FAKE_DIE;
    size_t bytes = attnd__reply__get_packed_size(&reply.message);
    CHECK(bytes <= sizeof(fake->reply));
    attnd__reply__pack(&reply.message, fake->reply);
    return attnd_fdpass_send(fake->client, fake->reply, bytes, reply.fds, reply.fd_count) == 0;
}

static void *serve_client(void *context)
{
    struct fake_daemon *fake = context;
    fake->client = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fake->client < 0)
        return NULL;
    uint8_t *datagram = malloc(ATTND_DATAGRAM_BYTES_MAX);
    int going = 1;
    while (going) {
        int fds[ATTND_FDS_MAX];
        long bytes = attnd_fdpass_recv(fake->client, datagram, ATTND_DATAGRAM_BYTES_MAX, fds,
                                       &fake->received_fds);
        if (bytes <= 0)
            break;
        attnd_fdpass_close(fds, fake->received_fds);
        Attnd__Request *request = attnd__request__unpack(NULL, (size_t)bytes, datagram);
        CHECK(request != NULL);
        going = request && serve(fake, request);
        attnd__request__free_unpacked(request, NULL);
    }
    shutdown(fake->client, SHUT_RDWR);
    free(datagram);
    return NULL;
}

void fake_listen(struct fake_daemon *fake)
{
    char folder[] = "/tmp/attnd-test-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    snprintf(fake->path, sizeof(fake->path), "%s/socket", folder);
    fake->submission.fd = fake->completion.fd = fake->client = -1;
    fake->notify = fake->doorbell = fake->memory_fd = -1;

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, fake->path, sizeof(fake->path));
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(fake->listener >= 0);
    CHECK_EQUAL(bind(fake->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQUAL(listen(fake->listener, 4), 0);
    CHECK_EQUAL(pthread_create(&fake->thread, NULL, serve_client, fake), 0);
}

struct attnd_session *fake_open(struct fake_daemon *fake)
{
    struct attnd_open_args args = {.size = sizeof(args), .socket_path = fake->path};
    struct attnd_session *session;
    fake_listen(fake);
    CHECK_OK(attnd_open(&args, &session));
    CHECK(attnd_observe32(&fake->mapped)); /* A1: all that the thread made is visible here */
    return session;
}

void fake_die(struct fake_daemon *fake)
{
    shutdown(fake->client, SHUT_RDWR);
}

void fake_stop(struct fake_daemon *fake)
{
    shutdown(fake->listener, SHUT_RDWR); /* ends accept() */
    if (attnd_observe32(&fake->mapped))
        fake_die(fake);
    pthread_join(fake->thread, NULL);
    int fds[] = {fake->listener, fake->client, fake->notify, fake->doorbell, fake->memory_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++) {
        if (fds[i] >= 0)
            close(fds[i]);
    }
    attnd_shm_unmap(&fake->submission);
    attnd_shm_unmap(&fake->completion);
    unlink(fake->path);
    *strrchr(fake->path, '/') = '\0';
    rmdir(fake->path);
}

int fake_take(struct fake_daemon *fake, struct attnd_sqe *sqe)
{
    int rc = attnd_consumer_pop(&fake->sq, sqe);
    CHECK(rc >= 0);
    return rc;
}

int fake_post(struct fake_daemon *fake, const struct attnd_cqe *cqe)
{
    CHECK_EQUAL(attnd_producer_push(&fake->cq, cqe), 0);
    struct attnd_doorbell doorbell = {
        .word = &fake->complete->cq_tail, .need = &fake->submit->cq_need, .fd = fake->notify};
    return attnd_doorbell_ring(&doorbell);
}

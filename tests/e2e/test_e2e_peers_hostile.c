/*
 * test_e2e_peers_hostile.c - the other end of a link is a test that says what it likes.
 */
#include "ipc/fdpass.h"
#include "service/peers/message.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/hand_over.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGES 4u
#define LONG_MS 20000

static struct harness service;

static const struct side_shape shape = {
    .layers = 2, .pages = 16, .page_size = 16, .heads_kv = 1, .dim = 64};
static uint8_t identity[4] = {0xfa, 0x4e, 0x00, 0x01};

/* ---- messages ---- */

static void say(int link, const Attnd__PeerMessage *message, const int *fds, int fds_count)
{
    uint8_t bytes[16384];

    CHECK(attnd__peer_message__get_packed_size(message) <= sizeof(bytes));
    (void)attnd_fdpass_send(link, bytes, attnd__peer_message__pack(message, bytes), fds, fds_count);
}

/* The next message but beats. Return: to be freed; NULL: the other side has hung up. */
static Attnd__PeerMessage *hear(int link)
{
    static uint8_t bytes[ATTND_DATAGRAM_BYTES_MAX];
    int fds[ATTND_FDS_MAX], fds_count;

    for (;;) {
        struct pollfd readable = {.fd = link, .events = POLLIN};
        CHECK(poll(&readable, 1, LONG_MS) == 1);
        const long got = attnd_fdpass_recv(link, bytes, sizeof(bytes), fds, &fds_count);
        if (got <= 0)
            return NULL;
        attnd_fdpass_close(fds, fds_count);
        Attnd__PeerMessage *message = attnd__peer_message__unpack(NULL, (size_t)got, bytes);
        CHECK(message != NULL);
        if (message->message_case != ATTND__PEER_MESSAGE__MESSAGE_BEAT)
            return message;
        attnd__peer_message__free_unpacked(message, NULL);
    }
}

static void expect_hung_up(int link)
{
    Attnd__PeerMessage *message;

    while ((message = hear(link)))
        attnd__peer_message__free_unpacked(message, NULL);
    close(link);
}

/* ---- a claimer that the test is ---- */

static int visit(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    memcpy(address.sun_path, service.socket, strlen(service.socket) + 1);
    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Return: the code of the reply; 0 with *@link. */
static int ask_for_link(uint32_t version, int *link)
{
    uint8_t bytes[4096];
    int fds[ATTND_FDS_MAX], fds_count = 0;
    const int fd = visit();
    Attnd__PeerHello hello = ATTND__PEER_HELLO__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    hello.version = version;
    hello.service = (ProtobufCBinaryData){.len = sizeof(identity), .data = identity};
    request.id = 1;
    request.call_case = ATTND__REQUEST__CALL_PEER_HELLO;
    request.peer_hello = &hello;
    CHECK_OK(attnd_fdpass_send(fd, bytes, attnd__request__pack(&request, bytes), NULL, 0));
    const long got = attnd_fdpass_recv(fd, bytes, sizeof(bytes), fds, &fds_count);
    CHECK(got > 0);
    Attnd__Reply *reply = attnd__reply__unpack(NULL, (size_t)got, bytes);
    CHECK(reply != NULL);
    const int code = reply->code;
    CHECK_EQUAL(fds_count, code == 0);
    if (code == 0)
        *link = fds[0];
    if (code == 0) /* blocking, as its own process likes it */
        CHECK_EQUAL(fcntl(fds[0], F_SETFL, 0), 0);
    attnd__reply__free_unpacked(reply, NULL);
    close(fd);
    return code;
}

static void take(int link, uint64_t number, const struct attnd_token *ticket)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerTake body = ATTND__PEER_TAKE__INIT;
    struct attnd_token own = *ticket;

    body.transfer = number;
    body.ticket = (ProtobufCBinaryData){.len = sizeof(own.bytes), .data = own.bytes};
    body.pages_max = PAGES;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_TAKE;
    message.take = &body;
    say(link, &message, NULL, 0);
}

static void done(int link, uint64_t number)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerDone body = ATTND__PEER_DONE__INIT;

    body.transfer = number;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_DONE;
    message.done = &body;
    say(link, &message, NULL, 0);
}

static void expect_case(int link, Attnd__PeerMessage__MessageCase what)
{
    Attnd__PeerMessage *message = hear(link);

    CHECK(message != NULL);
    CHECK_EQUAL(message->message_case, what);
    attnd__peer_message__free_unpacked(message, NULL);
}

static int as_another_user(void *context)
{
    int link;
    (void)context;

    return setuid(65534) != 0 || ask_for_link(ATTND_PEER_VERSION, &link) != -ATTND_E_PERMISSION;
}

static void a_link_is_for_services_of_this_user(void **state)
{
    int link;
    (void)state;

    harness_start(&service,
                  (const char *const[]){"--allow-uid", "65534", "--allow-uid", "0", NULL});
    CHECK_EQUAL(ask_for_link(ATTND_PEER_VERSION + 1, &link), -ATTND_E_VERSION);
    CHECK_EQUAL(ask_for_link(ATTND_PEER_VERSION, &link), 0);
    close(link);
    if (getuid() == 0) {
        CHECK_EQUAL(chmod(service.directory, 0755), 0);
        CHECK_EQUAL(harness_join(harness_fork(as_another_user, NULL), LONG_MS), 0);
    }
    harness_stop(&service);
}

/* What is said on a link of its own, behind a ticket that is lent to it. */
enum nonsense { GARBAGE, AGAIN, A_GRANT, A_DESCRIPTOR, TOO_EARLY, NONSENSES };

static void say_nonsense(int link, enum nonsense what, const struct attnd_token *ticket)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerGiven given = ATTND__PEER_GIVEN__INIT;
    Attnd__PeerDrop drop = ATTND__PEER_DROP__INIT;
    Attnd__PeerCheck check = ATTND__PEER_CHECK__INIT;

    switch (what) {
    case GARBAGE:
        (void)attnd_fdpass_send(link, "\xff\xff\xff", 3, NULL, 0);
        return;
    case AGAIN:
        take(link, 1, ticket);
        return;
    case A_GRANT:
        given.transfer = 1;
        message.message_case = ATTND__PEER_MESSAGE__MESSAGE_GIVEN;
        message.given = &given;
        break;
    case A_DESCRIPTOR:
        drop.transfer = 1;
        message.message_case = ATTND__PEER_MESSAGE__MESSAGE_DROP;
        message.drop = &drop;
        say(link, &message, &link, 1);
        return;
    default:
        check.transfer = 1;
        check.layers = shape.layers + 1;
        message.message_case = ATTND__PEER_MESSAGE__MESSAGE_CHECK;
        message.check = &check;
        break;
    }
    say(link, &message, NULL, 0);
}

static void a_claimer_that_breaks_the_protocol_loses_its_link_only(void **state)
{
    struct side side;
    struct attnd_token ticket;
    uint32_t pool;
    int32_t pages[PAGES];
    int link;
    (void)state;

    harness_start(&service, NULL);
    side_open(&side, &service, &shape, SIDE_OF_SERVICE);
    side_offer(&side, PAGES, 1, 60000, &ticket);
    for (int what = 0; what < NONSENSES; what++) {
        CHECK_EQUAL(ask_for_link(ATTND_PEER_VERSION, &link), 0);
        take(link, 1, &ticket);
        expect_case(link, ATTND__PEER_MESSAGE__MESSAGE_GRANT);
        CHECK_ERROR(attnd_pages_claim(side.session, &ticket, &pool, pages, PAGES), ATTND_E_BUSY);
        say_nonsense(link, (enum nonsense)what, &ticket);
        expect_hung_up(link);
    }
    /* What was never lent is refused, and that is all. */
    CHECK_EQUAL(ask_for_link(ATTND_PEER_VERSION, &link), 0);
    done(link, 99);
    expect_case(link, ATTND__PEER_MESSAGE__MESSAGE_REFUSE);
    take(link, 1, &ticket);
    expect_case(link, ATTND__PEER_MESSAGE__MESSAGE_GRANT);
    done(link, 1);
    expect_case(link, ATTND__PEER_MESSAGE__MESSAGE_GIVEN);
    side_await_free(&service, "the ticket is spent");
    close(link);
    side_close(&side);
    harness_stop(&service);
}

static void a_claimer_that_does_not_read_is_hung_up_on(void **state)
{
    struct side side;
    struct attnd_token ticket, none = {{0}};
    int32_t pages[PAGES];
    uint32_t pool;
    int link;
    struct pollfd end = {0};
    (void)state;

    harness_start(&service, NULL);
    side_open(&side, &service, &shape, SIDE_OF_SERVICE);
    side_offer(&side, PAGES, 1, 60000, &ticket);
    CHECK_EQUAL(ask_for_link(ATTND_PEER_VERSION, &link), 0);
    CHECK_EQUAL(fcntl(link, F_SETFL, O_NONBLOCK), 0);
    take(link, 1, &ticket);
    end.fd = link;
    for (uint64_t number = 2; !(end.revents & (POLLHUP | POLLRDHUP)); number++) {
        take(link, number, &none); /* each has an answer, which nobody reads */
        end.events = POLLRDHUP;
        CHECK(poll(&end, 1, 0) >= 0 && number < 10000000);
    }
    close(link);
    CHECK_EQUAL(attnd_pages_claim(side.session, &ticket, &pool, pages, PAGES), PAGES);
    side_close(&side);
    harness_stop(&service);
}

/* ---- a giver that the test is ---- */

struct giver {
    char path[64];
    int listener, link;
};

static void giver_listen(struct giver *giver)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(giver->path, sizeof(giver->path), "/tmp/attnd-giver-%d", (int)getpid());
    (void)unlink(giver->path);
    memcpy(address.sun_path, giver->path, strlen(giver->path) + 1);
    giver->link = -1;
    giver->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(giver->listener >= 0);
    CHECK_EQUAL(bind(giver->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQUAL(listen(giver->listener, 8), 0);
}

/* The service asks for a link, and has it. */
static void giver_welcome(struct giver *giver)
{
    uint8_t bytes[4096];
    int ends[2], fds[ATTND_FDS_MAX], fds_count;
    Attnd__PeerWelcome welcome = ATTND__PEER_WELCOME__INIT;
    Attnd__Reply reply = ATTND__REPLY__INIT;
    const int fd = accept(giver->listener, NULL, NULL);

    CHECK(fd >= 0);
    CHECK(attnd_fdpass_recv(fd, bytes, sizeof(bytes), fds, &fds_count) > 0);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    welcome.version = ATTND_PEER_VERSION;
    welcome.service = (ProtobufCBinaryData){.len = sizeof(identity), .data = identity};
    welcome.daemon_version = (char *)(uintptr_t) "a test";
    reply.id = 1;
    reply.peer_welcome = &welcome;
    reply.result_case = ATTND__REPLY__RESULT_PEER_WELCOME;
    CHECK_OK(attnd_fdpass_send(fd, bytes, attnd__reply__pack(&reply, bytes), &ends[1], 1));
    close(ends[1]);
    close(fd);
    giver->link = ends[0];
}

enum lie {
    HONEST,
    OUTSIDE,       /* planes behind the end of their memory */
    HUGE_STRIDES,  /* beyond 64 bits */
    NEGATIVE,      /* strides */
    UNSEALED,      /* memory that can be shrunk */
    A_PIPE,        /* no memory at all */
    SMALLER,       /* than it says */
    TOO_MANY,      /* pages */
    NO_DESCRIPTOR, /* for its memory */
    UNASKED,       /* PeerGiven before PeerDone */
    BACKWARDS,     /* layers that are whole no more */
    LIES
};

static int make_memory(enum lie lie, uint64_t bytes)
{
    int ends[2];

    if (lie == A_PIPE) {
        CHECK_EQUAL(pipe(ends), 0);
        close(ends[1]);
        return ends[0];
    }
    const int fd = memfd_create("lent", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0);
    CHECK_EQUAL(ftruncate(fd, (off_t)(lie == SMALLER ? bytes / 2 : bytes)), 0);
    if (lie != UNSEALED)
        CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}

static void grant(const struct giver *giver, uint64_t number, enum lie lie)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerGrant body = ATTND__PEER_GRANT__INIT;
    Attnd__PeerMemory memory = ATTND__PEER_MEMORY__INIT, *memories[] = {&memory};
    Attnd__PeerPlane plane[4], *planes[4];
    const int64_t page = shape.page_size * shape.heads_kv * shape.dim;
    uint32_t pages[PAGES + 1] = {0, 1, 2, 3, 4};

    memory.memory_kind = 1;
    memory.size_bytes = (uint64_t)(4 * page) * shape.pages * 2;
    for (uint32_t i = 0; i < 4; i++) {
        attnd__peer_plane__init(&plane[i]);
        plane[i].offset_bytes =
            i * (uint64_t)page * shape.pages * 2 + (lie == OUTSIDE ? memory.size_bytes - 64 : 0);
        plane[i].stride_page = lie == HUGE_STRIDES ? INT64_MAX / 2 : lie == NEGATIVE ? -page : page;
        plane[i].stride_token = shape.dim;
        plane[i].stride_head = shape.dim;
        planes[i] = &plane[i];
    }
    body.transfer = number;
    body.layers = body.layers_whole = shape.layers;
    if (lie == BACKWARDS)
        body.layers_whole = 1;
    body.pages = shape.pages;
    body.page_size = shape.page_size;
    body.heads_kv = shape.heads_kv;
    body.dim_qk = body.dim_vo = shape.dim;
    body.dtype = ATTND_DTYPE_FP16;
    body.n_memory = 1;
    body.memory = memories;
    body.n_k = body.n_v = shape.layers;
    body.k = planes;
    body.v = planes + shape.layers;
    body.n_page = lie == TOO_MANY ? PAGES + 1 : PAGES;
    body.page = pages;
    message.message_case = ATTND__PEER_MESSAGE__MESSAGE_GRANT;
    message.grant = &body;
    const int fd = make_memory(lie, memory.size_bytes);
    say(giver->link, &message, &fd, lie != NO_DESCRIPTOR);
    close(fd);
}

/* What follows a grant. */
static void go_on_lying(const struct giver *giver, uint64_t number, enum lie lie)
{
    Attnd__PeerMessage message = ATTND__PEER_MESSAGE__INIT;
    Attnd__PeerGiven given = ATTND__PEER_GIVEN__INIT;
    Attnd__PeerLayers layers = ATTND__PEER_LAYERS__INIT;

    given.transfer = layers.transfer = number;
    if (lie == HONEST)
        expect_case(giver->link, ATTND__PEER_MESSAGE__MESSAGE_DONE);
    if (lie == HONEST || lie == UNASKED) {
        message.message_case = ATTND__PEER_MESSAGE__MESSAGE_GIVEN;
        message.given = &given;
        say(giver->link, &message, NULL, 0);
    }
    if (lie == BACKWARDS) {
        message.message_case = ATTND__PEER_MESSAGE__MESSAGE_LAYERS;
        message.layers = &layers;
        say(giver->link, &message, NULL, 0);
    }
}

static int code_of(enum lie lie)
{
    switch (lie) {
    case HONEST:
        return 0;
    case OUTSIDE:
    case HUGE_STRIDES:
    case NEGATIVE:
        return -ATTND_E_PROTOCOL;
    case SMALLER:
        return -ATTND_E_RANGE;
    case UNSEALED:
    case A_PIPE:
        return -ATTND_E_PERMISSION;
    default: /* it is no peer any more */
        return -ATTND_E_PEER_LOST;
    }
}

static void tell_a_lie(struct giver *giver, const struct side *side, enum lie lie)
{
    struct attnd_token ticket = {{0}};

    if (giver->link < 0)
        giver_welcome(giver);
    side_await_linked(&service);
    memcpy(ticket.bytes, identity, sizeof(identity));
    side_claim(side, &ticket, PAGES, NULL);
    Attnd__PeerMessage *asked = hear(giver->link);
    while (asked && asked->message_case == ATTND__PEER_MESSAGE__MESSAGE_DROP) {
        attnd__peer_message__free_unpacked(asked, NULL); /* of the lie before */
        asked = hear(giver->link);
    }
    CHECK(asked && asked->message_case == ATTND__PEER_MESSAGE__MESSAGE_TAKE);
    const uint64_t number = asked->take->transfer;
    attnd__peer_message__free_unpacked(asked, NULL);
    /* Nothing is copied, so nobody is done, until the lie has been heard. */
    const pid_t worker = lie == UNASKED ? harness_worker(&service) : -1;
    if (worker > 0)
        CHECK_EQUAL(kill(worker, SIGSTOP), 0);
    grant(giver, number, lie);
    go_on_lying(giver, number, lie);
    if (worker > 0) {
        expect_hung_up(giver->link);
        giver->link = -1;
        CHECK_EQUAL(kill(worker, SIGCONT), 0);
    }
    const struct attnd_completion completion = side_wait(side, LONG_MS);
    CHECK_EQUAL(completion.fault.code, code_of(lie));
    if (code_of(lie) == -ATTND_E_PEER_LOST && giver->link >= 0) {
        expect_hung_up(giver->link);
        giver->link = -1;
    }
}

static int only_the_honest(void *context)
{
    (void)context;
    return side_leased(&service) == PAGES;
}

static void a_giver_that_lies_breaks_no_worker(void **state)
{
    struct giver giver;
    struct side side;
    char peer[128];
    (void)state;

    giver_listen(&giver);
    snprintf(peer, sizeof(peer), "liar=%s", giver.path);
    harness_start(&service, (const char *const[]){"--peer", peer, NULL});
    const pid_t worker = harness_worker(&service);
    side_open(&side, &service, &shape, SIDE_OF_SERVICE);
    for (int lie = 0; lie < LIES; lie++)
        tell_a_lie(&giver, &side, (enum lie)lie);
    CHECK_EQUAL(harness_worker(&service), worker);
    harness_eventually(only_the_honest, NULL, LONG_MS, "the pages of lies are free again");
    close(giver.link);
    close(giver.listener);
    (void)unlink(giver.path);
    side_close(&side);
    harness_stop(&service);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_OWN_TEST(a_link_is_for_services_of_this_user),
        E2E_OWN_TEST(a_claimer_that_breaks_the_protocol_loses_its_link_only),
        E2E_OWN_TEST(a_claimer_that_does_not_read_is_hung_up_on),
        E2E_OWN_TEST(a_giver_that_lies_breaks_no_worker),
    };

    harness_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

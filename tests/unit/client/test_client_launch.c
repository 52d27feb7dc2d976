/* test_client_launch.c - libattnd's side of stream-ordered runs: what it writes when it rings, and
 * what it makes of replies and answers. */
#include "client/internal.h"
#include "schemas/engine.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/fake_daemon.h"
#include "tests/support/harness/harness.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define PREPARED 700u

/* How the daemon of a test answers. */
static struct {
    uint32_t kind;       /* of the mailbox */
    uint64_t size_bytes; /* as it says */
    int fds;
    uint32_t memory;
    Attnd__Executor executor;
    uint32_t opened, prepared, lane;
    int wished; /* the session has sent one */
    uint32_t wish;
    int counts; /* the session has asked for an account */
    int with_lse;
} daemon_is;

static struct fake_daemon fake;
static struct attnd_session *session;

static enum fake_verdict answer(struct fake_daemon *self, const Attnd__Request *request,
                                struct fake_reply *reply)
{
    static _Thread_local Attnd__MailboxReply mailbox;
    static _Thread_local Attnd__PrepareReply prepare;
    (void)self;
    if (request->call_case == ATTND__REQUEST__CALL_MAILBOX_OPEN) {
        attnd__mailbox_reply__init(&mailbox);
        mailbox.memory = daemon_is.memory;
        mailbox.has_executor = daemon_is.executor != ATTND__EXECUTOR__EXECUTOR_AUTO;
        mailbox.executor = daemon_is.executor;
        mailbox.size_bytes = daemon_is.size_bytes;
        mailbox.memory_kind = (Attnd__MemoryKind)daemon_is.kind;
        reply->message.result_case = ATTND__REPLY__RESULT_MAILBOX;
        reply->message.mailbox = &mailbox;
        for (int i = 0; i < daemon_is.fds; i++) {
            int fd = memfd_create("mailbox", MFD_CLOEXEC);
            CHECK(fd >= 0 && ftruncate(fd, ATTND_PAGE_BYTES) == 0);
            reply->fds[reply->fd_count++] = fd;
        }
        daemon_is.opened++;
        daemon_is.wished = request->mailbox_open->has_executor;
        daemon_is.wish = (uint32_t)request->mailbox_open->executor;
        daemon_is.counts = request->mailbox_open->account;
    } else if (request->call_case == ATTND__REQUEST__CALL_PREPARE) {
        attnd__prepare_reply__init(&prepare);
        prepare.prepared = PREPARED;
        reply->message.result_case = ATTND__REPLY__RESULT_PREPARE;
        reply->message.prepare = &prepare;
        daemon_is.prepared++;
        daemon_is.lane = request->prepare->lane;
        daemon_is.with_lse = request->prepare->lse != NULL;
    }
    return FAKE_REPLY;
}

static int setup(void **state)
{
    (void)state;
    memset(&daemon_is, 0, sizeof(daemon_is));
    daemon_is.kind = ATTND_KIND_HOST;
    daemon_is.size_bytes = ATTND_PAGE_BYTES;
    daemon_is.fds = 1;
    daemon_is.memory = 40;
    fake = (struct fake_daemon){.spoil = answer};
    session = fake_open(&fake);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    attnd_close(session);
    fake_stop(&fake);
    return 0;
}

static const struct attnd_prepare_args args = {
    .size = sizeof(args), .layer = 1, .lane = 2, .q = {3, 0}, .o = {3, 4096}};

static struct attnd_mailbox *prepared_mailbox(void)
{
    uint32_t prepared, memory;
    CHECK_OK(attnd_prepare(session, 1, &args, &prepared));
    CHECK_EQUAL(prepared, PREPARED);
    CHECK_OK(attnd_mailbox(session, &memory));
    struct attnd_mailbox *mailbox = attnd_memory_address(session, memory);
    CHECK(mailbox != NULL);
    for (uint32_t lane = 0; lane < ATTND_LANES_MAX; lane++)
        mailbox->doorbell[lane] = 1; /* as a worker that begins to watch it does */
    return mailbox;
}

static void the_mailbox_is_opened_once_and_when_it_is_needed(void **state)
{
    (void)state;
    CHECK_EQUAL(attnd_launch(session, 0, PREPARED), -ATTND_E_INVALID);
    CHECK_EQUAL(daemon_is.opened, 0);
    (void)prepared_mailbox();
    (void)prepared_mailbox();
    CHECK_EQUAL(daemon_is.opened, 1);
    CHECK_EQUAL(daemon_is.prepared, 2);
    CHECK_EQUAL(daemon_is.lane, 2);
    CHECK_EQUAL(daemon_is.with_lse, 0);
    CHECK_OK(attnd_unprepare(session, PREPARED));
}

static void a_ring_is_a_word_and_a_count(void **state)
{
    (void)state;
    struct attnd_mailbox *mailbox = prepared_mailbox();
    CHECK_OK(attnd_launch(session, 2, PREPARED));
    CHECK_EQUAL(mailbox->doorbell[2], ATTND_DOORBELL_RUNG + PREPARED);
    CHECK_EQUAL(mailbox->rung, 1);
    CHECK_EQUAL(mailbox->doorbell[1], 1);
    CHECK_EQUAL(attnd_launch(session, 2, PREPARED), -ATTND_E_BUSY);
    CHECK_EQUAL(mailbox->rung, 1);
    CHECK_EQUAL(attnd_launch_wait(session, 2, 1000000), -ATTND_E_TIMEOUT);
    CHECK_EQUAL(attnd_launch(session, 64, PREPARED), -ATTND_E_RANGE);
    CHECK_EQUAL(attnd_launch_wait(session, 64, 0), -ATTND_E_RANGE);
}

/* A number that does not fit the doorbell would come round to what reads as an answer. */
static void what_a_doorbell_cannot_say_is_not_rung(void **state)
{
    (void)state;
    struct attnd_mailbox *mailbox = prepared_mailbox();
    CHECK_EQUAL(attnd_launch(session, 2, ATTND_DOORBELL_RUNS), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(attnd_launch(session, 2, ATTND_DOORBELL_RUNG + 1), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(mailbox->doorbell[2], 1);
    CHECK_EQUAL(mailbox->rung, 0);
}

static void fields_that_mean_nothing_yet_are_zero(void **state)
{
    (void)state;
    struct attnd_prepare_args odd = args;
    struct attnd_fault fault;
    uint32_t prepared;
    odd.zero = 1;
    CHECK_EQUAL(attnd_prepare(session, 1, &odd, &prepared), -ATTND_E_INVALID);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_RESERVED);
    CHECK_EQUAL(daemon_is.prepared, 0);
}

static void what_is_answered_is_returned(void **state)
{
    static const struct {
        uint32_t answer;
        int code;
    } cases[] = {{1, 0},
                 {1 + ATTND_E_UNKNOWN, -ATTND_E_UNKNOWN},
                 {1 + ATTND_E_WORKER_RESTARTED, -ATTND_E_WORKER_RESTARTED},
                 {INT32_MAX, -(INT32_MAX - 1)}};
    (void)state;
    struct attnd_mailbox *mailbox = prepared_mailbox();
    struct attnd_fault fault;
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_OK(attnd_launch(session, 2, PREPARED));
        attnd_publish32(&mailbox->doorbell[2], cases[i].answer);
        CHECK_EQUAL(attnd_launch_wait(session, 2, ATTND_FOREVER), cases[i].code);
    }
    attnd_poke32(&mailbox->error[2], ATTND_E_RANGE);
    CHECK_EQUAL(attnd_lane_error(session, 2), -ATTND_E_RANGE);
    attnd_last_fault(&fault); /* which number was out of range only the worker knows */
    CHECK_EQUAL(fault.code, -ATTND_E_RANGE);
    CHECK_EQUAL(fault.field, ATTND_F_NONE);
    CHECK_EQUAL(fault.index, 2);
    CHECK_EQUAL(attnd_lane_error(session, 2), 0);
    attnd_poke32(&mailbox->error[2], UINT32_MAX);
    CHECK_EQUAL(attnd_lane_error(session, 2), -ATTND_E_PROTOCOL);
}

/* Nobody answers in time; the lane is free when somebody has, and not before. */
static void a_late_answer_is_not_that_of_the_next_ring(void **state)
{
    (void)state;
    struct attnd_mailbox *mailbox = prepared_mailbox();
    CHECK_OK(attnd_launch(session, 2, PREPARED));
    CHECK_EQUAL(attnd_launch_wait(session, 2, 1000000), -ATTND_E_TIMEOUT);
    CHECK_EQUAL(attnd_launch(session, 2, PREPARED + 1), -ATTND_E_BUSY);
    attnd_publish32(&mailbox->doorbell[2], 0); /* taken */
    CHECK_EQUAL(attnd_launch_wait(session, 2, 1000000), -ATTND_E_TIMEOUT);
    CHECK_EQUAL(attnd_launch(session, 2, PREPARED + 1), -ATTND_E_BUSY);
    attnd_publish32(&mailbox->doorbell[2], 1);
    CHECK_OK(attnd_launch(session, 2, PREPARED + 1));
    CHECK_EQUAL(attnd_launch_wait(session, 2, 1000000), -ATTND_E_TIMEOUT);
    attnd_publish32(&mailbox->doorbell[2], 1 + ATTND_E_RANGE);
    CHECK_EQUAL(attnd_launch_wait(session, 2, 1000000), -ATTND_E_RANGE);
}

static void a_mailbox_on_the_gpu_is_not_rung_from_here(void **state)
{
    uint32_t prepared, memory;
    (void)state;
    daemon_is.kind = ATTND_KIND_DEVICE;
    CHECK_OK(attnd_prepare(session, 1, &args, &prepared));
    CHECK_EQUAL(attnd_launch(session, 2, prepared), -ATTND_E_UNSUPPORTED);
    CHECK_OK(attnd_mailbox(session, &memory));
    CHECK(attnd_memory_address(session, memory) == NULL);
    int fd = attnd_memory_fd(session, memory); /* for a process that has CUDA */
    CHECK(fd >= 0);
    close(fd);
}

static void a_mailbox_that_makes_no_sense_ends_the_session(void **state)
{
    uint32_t memory;
    (void)state;
    for (int lie = 0; lie < 3; lie++) {
        if (lie > 0) {
            (void)teardown(NULL);
            (void)setup(NULL);
        }
        daemon_is.fds = lie == 0 ? 0 : lie == 1 ? 2 : 1;
        if (lie == 2)
            daemon_is.size_bytes = sizeof(struct attnd_mailbox) - 1;
        CHECK_EQUAL(attnd_mailbox(session, &memory), -ATTND_E_PROTOCOL);
        CHECK_EQUAL(attnd_mailbox(session, &memory), -ATTND_E_DISCONNECTED);
    }
}

/* A daemon whose engines execute themselves. */
static void execute_by_engine(void)
{
    daemon_is.executor = ATTND__EXECUTOR__EXECUTOR_ENGINE;
    daemon_is.memory = 0;
    daemon_is.size_bytes = 0;
    daemon_is.fds = 0;
}

static void where_the_engine_executes_there_is_no_mailbox(void **state)
{
    struct attnd_info info = {.size = sizeof(info)};
    uint32_t prepared, memory;
    struct attnd_fault fault;
    (void)state;
    execute_by_engine();
    session->execute = ATTND_EXECUTE_ENGINE; /* as attnd_open() was told */
    CHECK_OK(attnd_prepare(session, 1, &args, &prepared));
    CHECK_EQUAL(prepared, PREPARED);
    CHECK_EQUAL(daemon_is.wish, ATTND_EXECUTE_ENGINE);
    CHECK_EQUAL(attnd_mailbox(session, &memory), -ATTND_E_UNSUPPORTED);
    attnd_last_fault(&fault);
    CHECK_EQUAL(fault.field, ATTND_F_MAILBOX);
    CHECK_EQUAL(attnd_launch(session, 2, prepared), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(attnd_launch_wait(session, 2, 0), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(attnd_lane_error(session, 2), -ATTND_E_UNSUPPORTED);
    CHECK_OK(attnd_prepare(session, 1, &args, &prepared));
    CHECK_EQUAL(daemon_is.opened, 1);
    CHECK_OK(attnd_info(session, &info));
    CHECK_EQUAL(info.executor, ATTND_EXECUTE_ENGINE);
}

/* That is a wish, too: without the field the daemon takes it for one that knows only the service.
 */
static void a_session_that_does_not_say_leaves_it_to_the_service(void **state)
{
    struct attnd_info info = {.size = sizeof(info)};
    (void)state;
    CHECK_OK(attnd_info(session, &info));
    CHECK_EQUAL(info.executor, ATTND_EXECUTE_AUTO);
    (void)prepared_mailbox();
    CHECK_EQUAL(daemon_is.wished, 1);
    CHECK_EQUAL(daemon_is.wish, ATTND_EXECUTE_AUTO);
    CHECK_OK(attnd_info(session, &info));
    CHECK_EQUAL(info.executor, ATTND_EXECUTE_SERVICE);
}

static void what_the_engine_executes_is_counted_in_a_page_of_the_services(void **state)
{
    uint32_t prepared;
    (void)state;
    execute_by_engine();
    daemon_is.fds = 1;
    daemon_is.size_bytes = ATTND_PAGE_BYTES;
    CHECK_OK(attnd_prepare(session, 1, &args, &prepared));
    CHECK_EQUAL(daemon_is.counts, 1);
    struct attnd_engine_account *account = session->account.address;
    CHECK(account != NULL);
    account->lane[3].runs = 5; /* it can be written */
}

static void an_executor_with_a_mailbox_ends_the_session(void **state)
{
    uint32_t memory;
    (void)state;
    execute_by_engine();
    daemon_is.fds = 1;
    CHECK_EQUAL(attnd_mailbox(session, &memory), -ATTND_E_PROTOCOL);
    (void)teardown(NULL);
    (void)setup(NULL);
    execute_by_engine();
    daemon_is.memory = 40;
    CHECK_EQUAL(attnd_mailbox(session, &memory), -ATTND_E_PROTOCOL);
}

static void *die_later(void *context)
{
    (void)context;
    harness_await_asleep(getpid()); /* the test waits in its first thread */
    fake_die(&fake);
    return NULL;
}

static void a_wait_without_end_ends_with_the_service(void **state)
{
    pthread_t thread;
    (void)state;
    (void)prepared_mailbox();
    CHECK_OK(attnd_launch(session, 2, PREPARED));
    CHECK_EQUAL(pthread_create(&thread, NULL, die_later, NULL), 0);
    CHECK_EQUAL(attnd_launch_wait(session, 2, ATTND_FOREVER), -ATTND_E_DISCONNECTED);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_mailbox_is_opened_once_and_when_it_is_needed),
        CASE(a_ring_is_a_word_and_a_count),
        CASE(what_a_doorbell_cannot_say_is_not_rung),
        CASE(fields_that_mean_nothing_yet_are_zero),
        CASE(what_is_answered_is_returned),
        CASE(a_late_answer_is_not_that_of_the_next_ring),
        CASE(a_mailbox_on_the_gpu_is_not_rung_from_here),
        CASE(a_mailbox_that_makes_no_sense_ends_the_session),
        CASE(where_the_engine_executes_there_is_no_mailbox),
        CASE(a_session_that_does_not_say_leaves_it_to_the_service),
        CASE(what_the_engine_executes_is_counted_in_a_page_of_the_services),
        CASE(an_executor_with_a_mailbox_ends_the_session),
        CASE(a_wait_without_end_ends_with_the_service),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * test_prepared_engine.c - a session whose engine executes its launched runs: everything is
 * answered at once, and the worker hears of nothing. And who decides that it is such a session.
 */
#include "ipc/shm.h"
#include "schemas/engine.h"
#include "service/objects/image.h"
#include "service/prepared/internal.h"
#include "tests/support/harness/check.h"
#include "tests/support/rigs/prepared_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "schemas/attnd.pb-c.h"

#define LANE 3u

static struct attnd_fault fault;
static char folder[] = "/tmp/attnd-test-XXXXXX", worker[64], kernels[64], engine[128];

/* A GPU's worker, with a file of the engine's kernels beside it. */
static int setup(void **state)
{
    (void)prepared_rig_setup(state);
    snprintf(folder, sizeof(folder), "/tmp/attnd-test-XXXXXX");
    CHECK(mkdtemp(folder) != NULL);
    snprintf(worker, sizeof(worker), "%s/attnd-worker", folder);
    snprintf(kernels, sizeof(kernels), "%s/kernels", folder);
    snprintf(engine, sizeof(engine), "%s/engine.fatbin", kernels);
    CHECK_EQUAL(mkdir(kernels, 0700), 0);
    FILE *file = fopen(engine, "w");
    CHECK(file != NULL && fputs("kernels", file) >= 0 && fclose(file) == 0);
    stage.service.options.worker_path = worker;
    stage.service.queue->info.mailbox_kind = ATTND_KIND_DEVICE;
    fault = (struct attnd_fault){0};
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(engine);
    (void)rmdir(kernels);
    (void)rmdir(folder);
    return prepared_rig_teardown(state);
}

/* The session's mailbox is opened; the reply says who executes. */
static Attnd__Executor open_mailbox(uint32_t wish)
{
    uint8_t bytes[4096];
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, wish, 0, &fault), 1);
    ssize_t got = recv(prepared_rig_peer, bytes, sizeof(bytes), 0);
    CHECK(got > 0);
    Attnd__Reply *reply = attnd__reply__unpack(NULL, (size_t)got, bytes);
    CHECK(reply && reply->code == 0 && reply->result_case == ATTND__REPLY__RESULT_MAILBOX);
    const Attnd__Executor executor = reply->mailbox->executor;
    CHECK_EQUAL(reply->mailbox->memory, 0);
    CHECK_EQUAL(reply->mailbox->size_bytes, 0);
    attnd__reply__free_unpacked(reply, NULL);
    return executor;
}

/* Return: its index in the run table. */
static uint32_t prepare(uint32_t plan, uint32_t layer)
{
    const struct attnd_sqe_run wish = prepared_rig_wish(layer);
    uint32_t prepared;
    int code;
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), 1);
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &code, &prepared), 1);
    CHECK_EQUAL(code, 0);
    CHECK(prepared >= ATTND_QUEUE_RUNS);
    prepared_rig_expect_none();
    return prepared;
}

static void submit(struct attnd_sqe sqe)
{
    CHECK_EQUAL(stage_submit(&client, &sqe), 0);
    stage_sweep(&stage);
}

/* ---- the worker hears of nothing ---- */

static void it_is_open_at_once_without_memory(void **state)
{
    const uint64_t before_bytes = client.daemon->used[ATTND_QUOTA_HOST];
    struct attnd_prepared_status status;
    (void)state;
    CHECK_EQUAL(open_mailbox(ATTND_EXECUTE_AUTO), ATTND__EXECUTOR__EXECUTOR_ENGINE);
    prepared_rig_expect_none();
    CHECK_EQUAL(client.daemon->used[ATTND_QUOTA_HOST], before_bytes);
    const struct attnd_mail *mail = client.daemon->mail;
    CHECK_EQUAL(mail->state, ATTND_MAIL_OPEN);
    const uint32_t index = attnd_mail_index(stage.service.prepared_runs, mail);
    CHECK_EQUAL(stage.service.queue->mailboxes[index].memory, ATTND_NONE);
    CHECK_EQUAL(attnd_prepared_status(client.daemon, &status), 1);
    CHECK_EQUAL(status.by_engine, 1);
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 2, ATTND_EXECUTE_AUTO, 0, &fault),
                -ATTND_E_BUSY);
}

/* Its engine asks for a page to count in. Return: the page, as the engine maps it. */
static struct attnd_engine_account *open_counting(struct attnd_shm *mapped)
{
    char control[CMSG_SPACE(4 * sizeof(int))];
    uint8_t bytes[4096];
    int fd;
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, ATTND_EXECUTE_AUTO, 1, &fault), 1);
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof(bytes)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    const ssize_t got = recvmsg(prepared_rig_peer, &message, MSG_CMSG_CLOEXEC);
    CHECK(got > 0);
    Attnd__Reply *reply = attnd__reply__unpack(NULL, (size_t)got, bytes);
    CHECK(reply && reply->code == 0 && reply->result_case == ATTND__REPLY__RESULT_MAILBOX);
    CHECK_EQUAL(reply->mailbox->memory, 0);
    const uint64_t size_bytes = reply->mailbox->size_bytes;
    attnd__reply__free_unpacked(reply, NULL);
    const struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    CHECK(header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(fd)));
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    CHECK(size_bytes >= sizeof(struct attnd_engine_account));
    CHECK(ftruncate(fd, 0) < 0); /* the daemon reads all of it, whatever the engine does */
    CHECK_EQUAL(attnd_shm_map(fd, size_bytes, 1, mapped, &fault), 0);
    return mapped->address;
}

static void what_it_has_executed_is_shown_as_it_counts(void **state)
{
    const uint64_t before_bytes = client.daemon->used[ATTND_QUOTA_DAEMON];
    struct attnd_prepared_status status;
    struct attnd_shm mapped;
    (void)state;
    struct attnd_engine_account *account = open_counting(&mapped);
    CHECK_EQUAL(client.daemon->used[ATTND_QUOTA_DAEMON], before_bytes + ATTND_PAGE_BYTES);
    CHECK_EQUAL(attnd_prepared_status(client.daemon, &status), 1);
    CHECK_EQUAL(status.launches, 0);
    account->lane[2] = (struct attnd_engine_sums){.runs = 7, .busy_ns = 1000};
    account->lane[ATTND_LANES_MAX - 1] = (struct attnd_engine_sums){
        .runs = 3, .busy_ns = 500, .errors = 2, .error_code = ATTND_E_TIMEOUT};
    CHECK_EQUAL(attnd_prepared_status(client.daemon, &status), 1);
    CHECK_EQUAL(status.launches, 10);
    CHECK_EQUAL(status.busy_ns, 1500);
    CHECK_EQUAL(status.errors, 2);
    CHECK_EQUAL(status.error_code, ATTND_E_TIMEOUT);
    CHECK_EQUAL(status.error_lane, ATTND_LANES_MAX - 1);
    attnd_prepared_close(client.daemon);
    CHECK_EQUAL(client.daemon->used[ATTND_QUOTA_DAEMON], before_bytes);
    attnd_shm_unmap(&mapped);
}

static void runs_are_prepared_and_unprepared_at_once(void **state)
{
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    const struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    const struct attnd_memory *tensors = client.daemon->memories[STAGE_TENSORS - 1];
    const uint32_t refs = tensors->refs;
    const uint32_t first = prepare(plan, 0), second = prepare(plan, 1);
    CHECK(first != second);
    CHECK_EQUAL(object->prepared, 2);
    CHECK(tensors->refs > refs);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, first, &fault), 1);
    prepared_rig_expect_answer(0);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, first, &fault), -ATTND_E_UNKNOWN);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, second, &fault), 1);
    prepared_rig_expect_answer(0);
    prepared_rig_expect_none();
    CHECK_EQUAL(object->prepared, 0);
    CHECK_EQUAL(tensors->refs, refs);
}

static void a_run_that_does_not_suit_its_plan_is_refused_all_the_same(void **state)
{
    struct attnd_sqe_run wish = prepared_rig_wish(0);
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    wish.o_offset_bytes = STAGE_TENSOR_BYTES;
    CHECK_EQUAL(attnd_prepared_add(client.daemon, 2, plan, LANE, &wish, &fault), -ATTND_E_RANGE);
    prepared_rig_expect_no_answer();
}

static void it_takes_nothing_of_the_workers_scratch(void **state)
{
    struct attnd_plan_object *object;
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    object = client.daemon->plans[plan - 1];
    object->scratch_bytes = 16 * STAGE_SCRATCH_BYTES; /* that of many splits */
    (void)prepare(plan, 0);
    CHECK_EQUAL(stage.service.prepared_runs->scratch.used_bytes, 0);
    CHECK_EQUAL(client.daemon->mail->scratch_bytes, 0);
}

/* Neither is held nor published, and there is a generation for each of them. */
static void sets_and_advances_wait_for_nobody(void **state)
{
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    const struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    const uint64_t version = object->set_version;
    (void)prepare(plan, 0);
    for (int32_t step = 0; step < 3 * (int32_t)ATTND_GENERATIONS; step++) {
        submit(stage_advance(&client, plan, 0, 4 + step % 4));
        stage_expect(&client, 0, 0);
        CHECK_EQUAL(object->published, 1u << object->generation);
    }
    submit(stage_batch(&client, plan, 0, 4, 10, 0, 2));
    stage_expect(&client, 0, 0);
    CHECK(object->set_version != version);
    prepared_rig_expect_none();
    CHECK_EQUAL(client.daemon->holds, 0);
}

static void what_is_submitted_keeps_its_lengths(void **state)
{
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    struct attnd_lengths lengths = {.generation = ATTND_NONE};
    (void)prepare(plan, 0);
    attnd_planobj_pin(object, &lengths);
    for (int32_t step = 0; step < 3 * (int32_t)ATTND_GENERATIONS; step++) {
        submit(stage_advance(&client, plan, 0, 4 + step % 4));
        stage_expect(&client, 0, 0);
        CHECK(object->generation != lengths.generation);
    }
    attnd_planobj_unpin(object, &lengths);
}

static void a_dead_session_leaves_nothing_to_wait_for(void **state)
{
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    (void)prepare(prepared_rig_filled_plan(), 0);
    attnd_client_end(client.daemon);
    stage_sweep(&stage);
    prepared_rig_expect_none();
    CHECK_EQUAL(stage.service.prepared_runs->prepared_count, 0);
    for (uint32_t i = 0; i < ATTND_MAILBOXES_MAX; i++)
        CHECK_EQUAL(stage.service.prepared_runs->mail[i].state, ATTND_MAIL_FREE);
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        CHECK(stage.service.clients[i] == NULL);
}

static void the_workers_death_is_nothing_to_it(void **state)
{
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    const uint32_t first = prepare(plan, 0);
    stage_lose_worker(&stage);
    CHECK_EQUAL(attnd_prepared_remove(client.daemon, 3, first, &fault), 1);
    prepared_rig_expect_answer(0);
    (void)prepare(plan, 1);
    submit(stage_advance(&client, plan, 0, 5));
    stage_expect(&client, 0, 0);
    prepared_rig_new_worker();
    prepared_rig_expect_none();
    CHECK_EQUAL(client.daemon->mail->state, ATTND_MAIL_OPEN);
    (void)prepare(plan, 0);
}

/* ---- what its kernels see ---- */

static void operations_are_shown_in_the_plans_image(void **state)
{
    uint64_t bytes;
    int fd;
    (void)state;
    (void)open_mailbox(ATTND_EXECUTE_AUTO);
    const uint32_t plan = prepared_rig_filled_plan();
    struct attnd_plan_object *object = client.daemon->plans[plan - 1];
    (void)prepare(plan, 0);
    CHECK_EQUAL(attnd_image_open(client.daemon, object, &fd, &bytes, &fault), 0);
    const struct attnd_plan_image *image = object->image.address;
    CHECK_EQUAL(image->code, 0);
    const uint64_t version = image->set_version;
    submit(stage_advance(&client, plan, 0, 7));
    stage_expect(&client, 0, 0);
    CHECK_EQUAL(image->advance_version, object->advance_version);
    CHECK_EQUAL(image->generation, object->generation);
    submit(stage_batch(&client, plan, 0, 4, 6, (int32_t)STAGE_PAGES, 0)); /* no such page */
    stage_expect(&client, 0, -ATTND_E_RANGE);
    CHECK_EQUAL(image->code, 0); /* what there was */
    CHECK_EQUAL(image->set_version, version);
    submit(stage_batch(&client, plan, 0, 4, 9, 0, 0));
    stage_expect(&client, 0, 0);
    CHECK_EQUAL(image->code, 0);
    CHECK(image->set_version > version);
    CHECK_EQUAL(image->sequence % 2, 0);
}

/* ---- who decides ---- */

static void expect_refused(uint32_t wish)
{
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, wish, 0, &fault), -ATTND_E_UNSUPPORTED);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    CHECK_EQUAL(fault.value, ATTND_EXECUTE_ENGINE);
    CHECK_EQUAL(fault.index, ATTND_F_BACKEND);
    CHECK(client.daemon->mail == NULL);
    prepared_rig_expect_no_answer();
}

/* The mailbox lies in host memory here, so that it can be made; the worker is not asked yet. */
static void expect_service(uint32_t wish, const char *why)
{
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, wish, 0, &fault), 1);
    prepared_rig_expect_no_answer();
    CHECK_EQUAL(client.daemon->mail->by_engine, 0);
    CHECK(strstr(client.daemon->mail->why, why) != NULL);
}

static void auto_is_the_engine_where_it_can(void **state)
{
    (void)state;
    CHECK_EQUAL(open_mailbox(ATTND_EXECUTE_AUTO), ATTND__EXECUTOR__EXECUTOR_ENGINE);
    CHECK(strcmp(client.daemon->mail->why, "auto") == 0);
}

static void auto_is_the_service_for_a_worker_of_processors(void **state)
{
    (void)state;
    stage.service.queue->info.mailbox_kind = ATTND_KIND_HOST;
    expect_service(ATTND_EXECUTE_AUTO, "no GPU");
}

/* Why the worker executes; NULL: the engine does. */
static const char *why_service(uint32_t wish)
{
    struct attnd_mail mail = {0};
    CHECK_EQUAL(attnd_executor_choose(&stage.service, wish, &mail, &fault), 0);
    return mail.by_engine ? NULL : mail.why;
}

static void auto_is_the_service_where_workers_stay_on_sms(void **state)
{
    static const char why[] = "workers stay on SMs";
    struct attnd_worker_info *info = &stage.service.queue->info;
    (void)state;
    info->residency = ATTND_RESIDENCY_ELASTIC;
    stage.service.options.reserve = 8; /* of which nothing comes without MPS */
    CHECK(why_service(ATTND_EXECUTE_AUTO) == NULL);
    info->mps = 1;
    CHECK(strcmp(why_service(ATTND_EXECUTE_AUTO), why) == 0);
    CHECK(why_service(ATTND_EXECUTE_ENGINE) == NULL);
    stage.service.options.reserve = 0;
    CHECK(why_service(ATTND_EXECUTE_AUTO) == NULL);
    info->residency = ATTND_RESIDENCY_SHARED;
    CHECK(strcmp(why_service(ATTND_EXECUTE_AUTO), why) == 0);
    info->residency = ATTND_RESIDENCY_EXCLUSIVE;
    CHECK(strcmp(why_service(ATTND_EXECUTE_AUTO), why) == 0);
}

static void without_kernel_files_the_engine_cannot(void **state)
{
    struct attnd_mail mail = {0};
    (void)state;
    CHECK_EQUAL(unlink(engine), 0);
    expect_refused(ATTND_EXECUTE_ENGINE);
    CHECK_EQUAL(attnd_executor_choose(&stage.service, ATTND_EXECUTE_AUTO, &mail, &fault), 0);
    CHECK_EQUAL(mail.by_engine, 0);
    CHECK(strstr(mail.why, "engine.fatbin") != NULL);
}

static void a_wish_for_the_engine_of_a_worker_of_processors_is_refused_by_name(void **state)
{
    (void)state;
    stage.service.queue->info.mailbox_kind = ATTND_KIND_HOST;
    expect_refused(ATTND_EXECUTE_ENGINE);
}

static void the_operators_word_is_for_those_who_do_not_say(void **state)
{
    struct attnd_mail mail = {0};
    (void)state;
    stage.service.options.execute = "service";
    CHECK_EQUAL(attnd_executor_choose(&stage.service, ATTND_EXECUTE_AUTO, &mail, &fault), 0);
    CHECK_EQUAL(mail.by_engine, 0);
    CHECK(strcmp(mail.why, "--execute") == 0);
    CHECK_EQUAL(open_mailbox(ATTND_EXECUTE_ENGINE), ATTND__EXECUTOR__EXECUTOR_ENGINE);
    CHECK(strstr(client.daemon->mail->why, "session") != NULL);
}

static void a_wish_for_the_service_is_granted_against_the_operators_word(void **state)
{
    (void)state;
    stage.service.options.execute = "engine";
    stage.service.queue->info.mailbox_kind = ATTND_KIND_HOST;
    expect_refused(ATTND_EXECUTE_AUTO); /* which is the operator's */
    expect_service(ATTND_EXECUTE_SERVICE, "session");
}

static void a_wish_that_there_is_not_is_refused(void **state)
{
    (void)state;
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, ATTND_EXECUTE_SERVICE + 1, 0, &fault),
                -ATTND_E_INVALID);
    CHECK_EQUAL(fault.field, ATTND_F_EXECUTOR);
    CHECK_EQUAL(fault.limit, ATTND_EXECUTE_SERVICE);
    CHECK(client.daemon->mail == NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(it_is_open_at_once_without_memory),
        CASE(what_it_has_executed_is_shown_as_it_counts),
        CASE(runs_are_prepared_and_unprepared_at_once),
        CASE(a_run_that_does_not_suit_its_plan_is_refused_all_the_same),
        CASE(it_takes_nothing_of_the_workers_scratch),
        CASE(sets_and_advances_wait_for_nobody),
        CASE(what_is_submitted_keeps_its_lengths),
        CASE(a_dead_session_leaves_nothing_to_wait_for),
        CASE(the_workers_death_is_nothing_to_it),
        CASE(operations_are_shown_in_the_plans_image),
        CASE(auto_is_the_engine_where_it_can),
        CASE(auto_is_the_service_for_a_worker_of_processors),
        CASE(auto_is_the_service_where_workers_stay_on_sms),
        CASE(without_kernel_files_the_engine_cannot),
        CASE(a_wish_for_the_engine_of_a_worker_of_processors_is_refused_by_name),
        CASE(the_operators_word_is_for_those_who_do_not_say),
        CASE(a_wish_for_the_service_is_granted_against_the_operators_word),
        CASE(a_wish_that_there_is_not_is_refused),
    };
    check_failed = _fail;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

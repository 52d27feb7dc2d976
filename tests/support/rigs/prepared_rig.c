/* prepared_rig.c - a session with a mailbox, between a test that makes its calls and a worker that
 * is the test too: commands are taken and answered one by one. */
#include "tests/support/rigs/prepared_rig.h"
#include "schemas/atomics.h"
#include "service/rpc/call.h"
#include "service/sched/lane.h"
#include "tests/support/harness/check.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int prepared_rig_peer;

void prepared_rig_new_worker(void)
{
    stage_lose_worker(&stage);
    stage.service.queue->info.mailbox_kind = ATTND_KIND_HOST;
    attnd_worker_port_init(&stage.worker, stage.service.queue->head, -1);
    stage_memory_mapped(&stage);
    CHECK_EQUAL(attnd_sched_resume(stage.service.scheduler, STAGE_SCRATCH_BYTES), 0);
}

int prepared_rig_connect(struct stage_client *out)
{
    int ends[2];
    stage_connect(&stage, out, 16, 1);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    CHECK(dup2(ends[0], out->daemon->socket) >= 0);
    close(ends[0]);
    return ends[1];
}

int prepared_rig_setup(void **state)
{
    (void)state;
    stage_start(&stage);
    stage.service.options.memory_max_bytes = 1u << 20;
    stage.service.options.host_memory_max_bytes = 1u << 20;
    CHECK_EQUAL(attnd_control_new(&stage.service), 0);
    prepared_rig_new_worker();
    prepared_rig_peer = prepared_rig_connect(&client);
    return 0;
}

int prepared_rig_teardown(void **state)
{
    (void)state;
    stage_stop(&stage);
    attnd_control_free(&stage.service);
    close(prepared_rig_peer);
    return 0;
}

int prepared_rig_answer(int peer, int *code, uint32_t *prepared)
{
    uint8_t bytes[4096];
    ssize_t got = recv(peer, bytes, sizeof(bytes), 0);
    if (got <= 0)
        return 0;
    Attnd__Reply *reply = attnd__reply__unpack(NULL, (size_t)got, bytes);
    CHECK(reply != NULL);
    *code = reply->code;
    *prepared = reply->result_case == ATTND__REPLY__RESULT_PREPARE ? reply->prepare->prepared : 0;
    attnd__reply__free_unpacked(reply, NULL);
    return 1;
}

int prepared_rig_take(struct attnd_command *command)
{
    (void)stage_sweep(&stage);
    return stage.worker.port.next(stage.worker.port.context, command);
}

void prepared_rig_retire(const struct attnd_command *command, int code)
{
    const struct attnd_retire retire = {
        .run = command->run, .code = code, .kind = command->kind, .tag = command->tag};
    stage.worker.port.retire(stage.worker.port.context, &retire);
    (void)stage_sweep(&stage);
}

struct attnd_command prepared_rig_expect(uint32_t kind)
{
    struct attnd_command command;
    CHECK(prepared_rig_take(&command));
    CHECK_EQUAL(command.kind, kind);
    return command;
}

void prepared_rig_expect_none(void)
{
    struct attnd_command command;
    CHECK(!prepared_rig_take(&command));
}

struct attnd_sqe_run prepared_rig_wish(uint32_t layer)
{
    struct attnd_sqe_run wish = stage_run(1, 0, 0).u.run;
    wish.layer = layer;
    return wish;
}

void prepared_rig_expect_answer(int code)
{
    int got;
    uint32_t prepared;
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &got, &prepared), 1);
    CHECK_EQUAL(got, code);
}

void prepared_rig_expect_no_answer(void)
{
    int got;
    uint32_t prepared;
    CHECK_EQUAL(prepared_rig_answer(prepared_rig_peer, &got, &prepared), 0);
}

void prepared_rig_open_mailbox(void)
{
    CHECK_EQUAL(attnd_prepared_open(client.daemon, 1, 0, 0, NULL), 1);
    stage_memory_mapped(&stage);
    attnd_lane_retry(stage.service.scheduler);
    struct attnd_command command = prepared_rig_expect(ATTND_COMMAND_MAILBOX);
    prepared_rig_retire(&command, 0);
    prepared_rig_expect_answer(0);
}

uint32_t prepared_rig_filled_plan(void)
{
    uint32_t plan = stage_plan(&client);
    struct attnd_sqe set = stage_batch(&client, plan, 0, 4, 6, 0, 2);
    CHECK_EQUAL(stage_submit(&client, &set), 0);
    stage_sweep(&stage);
    stage_expect(&client, 0, 0);
    return plan;
}

void prepared_rig_ack_all(void)
{
    struct attnd_command command;
    while (prepared_rig_take(&command))
        prepared_rig_retire(&command, 0);
}

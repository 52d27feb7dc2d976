/*
 * launch.c - runs that are prepared once and then launched, as often as an engine likes.
 *
 * Preparing is a call like any other. A launch is a word in a mailbox, which the engine's side
 * writes. That is a stream of the GPU where the mailbox lies there, and libattnd-cuda knows how. In
 * host memory it is attnd_launch(), which does with a futex what the stream does by looking.
 *
 *   doorbell = RUNG + r   R1: after q; the worker takes it with A1 and counts in it until the end
 *   launches + 1          R1: after the doorbell; the worker may sleep on it
 *   ... doorbell          A1: the lane rests, and o is there
 *
 * A lane that does not rest is not launched on. The answer that is still to come would be taken for
 * the answer to the new launch.
 */
#include "client/internal.h"

#include "schemas/crash.h"
#include "schemas/engine.h"
#include "schemas/futex.h"

#include <limits.h>
#include <stdlib.h>

/* How long a wait sleeps before it asks whether the service is still there. */
#define SLICE_NS 10000000u

/* ---- the mailbox ---- */

/* Makes it known to the session; call_lock is held. */
static int keep_mailbox(struct attnd_session *session, struct attnd_rpc *call,
                        struct attnd_object *object)
{
    const Attnd__MailboxReply *reply = call->reply->mailbox;
    struct attnd_fault fault = {0};

    object->kind = ATTND_OBJECT_MEMORY;
    object->handle = reply->memory;
    object->u.memory.uses = 1;
    object->u.memory.kind = (uint32_t)reply->memory_kind;
    object->u.memory.size_bytes = reply->size_bytes;
    object->u.memory.shm.fd = -1;
    if (object->u.memory.kind == ATTND_KIND_HOST) {
        int rc = attnd_shm_map(call->fds[0], reply->size_bytes, 1, &object->u.memory.shm, &fault);
        object->u.memory.shm.fd = -1; /* the call closes it; the mapping is enough */
        if (rc < 0)
            return attnd_fault_keep(&fault);
        session->mailbox = object->u.memory.shm.address;
    } else {
        object->u.memory.shm.fd = attnd_call_take_fd(call, 0);
    }
    attnd_object_add(session, object);
    attnd_publish32(&session->mailbox_memory, object->handle); /* R1: it is mapped */
    return 0;
}

/* What this engine executes is counted there, if the service wants to know. */
static int keep_account(struct attnd_session *session, const struct attnd_rpc *call)
{
    struct attnd_fault fault = {0};

    if (call->fd_count == 0)
        return 0;
    const int rc =
        attnd_shm_map(call->fds[0], call->reply->mailbox->size_bytes, 1, &session->account, &fault);
    session->account.fd = -1; /* the call closes it; the mapping is enough */
    return rc < 0 ? attnd_fault_keep(&fault) : 0;
}

/* Has the service said who executes? */
static int decided(const struct attnd_session *session)
{
    return attnd_observe32(&session->mailbox_memory) || /* A1 */
           attnd_observe32(&session->by_engine);
}

/* The reply is complete, for the executor that it names. */
static int is_whole(const struct attnd_rpc *call)
{
    const Attnd__MailboxReply *reply = call->reply->mailbox;
    if (reply->executor == ATTND__EXECUTOR__EXECUTOR_ENGINE)
        return reply->memory == 0 &&
               (call->fd_count == 0 ||
                (call->fd_count == 1 && reply->size_bytes >= sizeof(struct attnd_engine_account)));
    return call->fd_count == 1 && reply->memory != 0 &&
           reply->size_bytes >= sizeof(struct attnd_mailbox);
}

int attnd_mailbox_open(struct attnd_session *session)
{
    int rc = attnd_session_check(session);
    if (rc != 0 || decided(session))
        return rc;
    struct attnd_object *object = calloc(1, sizeof(*object));
    if (object == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_MAILBOX, 0, 0, 0);
    Attnd__MailboxOpen message = ATTND__MAILBOX_OPEN__INIT;
    struct attnd_rpc call = ATTND_CALL(MAILBOX_OPEN, .mailbox_open = &message);
    message.has_executor = message.has_account = message.account = 1;
    message.executor = (Attnd__Executor)session->execute;
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    rc = attnd_call(session, &call, ATTND__REPLY__RESULT_MAILBOX);
    if (rc < 0) {
        free(object);
        return rc == -ATTND_E_BUSY && decided(session) ? 0 : rc; /* another thread was faster */
    }
    if (!is_whole(&call)) {
        free(object);
        return attnd_call_broken(session, &call);
    }
    const int by_engine = call.reply->mailbox->executor == ATTND__EXECUTOR__EXECUTOR_ENGINE;
    rc = by_engine ? keep_account(session, &call) : keep_mailbox(session, &call, object);
    if (by_engine && rc == 0)
        attnd_publish32(&session->by_engine, 1); /* R1 */
    if (by_engine || rc < 0)
        free(object);
    attnd_call_end(session, &call);
    return rc;
}

int attnd_mailbox(struct attnd_session *session, uint32_t *memory)
{
    if (memory == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MAILBOX, 0, 0, 0);
    int rc = attnd_mailbox_open(session);
    if (rc == 0 && attnd_observe32(&session->by_engine))
        rc = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MAILBOX, 0, 0, 0);
    if (rc == 0)
        *memory = attnd_peek32(&session->mailbox_memory);
    return rc;
}

/* ---- preparing ---- */

static Attnd__Tensor put_tensor(const struct attnd_tensor *tensor)
{
    Attnd__Tensor message = ATTND__TENSOR__INIT;
    message.memory = tensor->memory;
    message.offset_bytes = tensor->offset_bytes;
    return message;
}

static int ask_prepare(struct attnd_session *session, uint32_t plan,
                       const struct attnd_prepare_args *args, struct attnd_object *object)
{
    Attnd__Tensor q = put_tensor(&args->q), o = put_tensor(&args->o), lse = put_tensor(&args->lse);
    Attnd__Prepare message = ATTND__PREPARE__INIT;
    message.plan = plan;
    message.layer = args->layer;
    message.lane = args->lane;
    message.q = &q;
    message.o = &o;
    message.lse = args->lse.memory ? &lse : NULL;
    struct attnd_rpc call = ATTND_CALL(PREPARE, .prepare = &message);
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    int rc = attnd_call(session, &call, ATTND__REPLY__RESULT_PREPARE);
    if (rc < 0)
        return rc;
    object->kind = ATTND_OBJECT_PREPARED;
    object->handle = call.reply->prepare->prepared;
    object->u.prepared.plan = plan;
    object->u.prepared.args = *args;
    attnd_object_add(session, object);
    attnd_call_end(session, &call);
    return 0;
}

int attnd_prepare(struct attnd_session *session, uint32_t plan,
                  const struct attnd_prepare_args *args, uint32_t *prepared)
{
    struct attnd_prepare_args own;
    if (prepared == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_PREPARED, 0, 0, 0);
    int rc = attnd_session_check(session);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc == 0 && own.zero != 0)
        rc = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, own.zero, 0);
    if (rc != 0)
        return rc;
    rc = attnd_mailbox_open(session);
    if (rc != 0)
        return rc;
    struct attnd_object *object = calloc(1, sizeof(*object));
    if (object == NULL)
        return attnd_fault_raise(-ATTND_E_NO_MEMORY, ATTND_F_PREPARED, 0, 0, 0);
    rc = ask_prepare(session, plan, &own, object);
    if (rc != 0)
        free(object);
    else
        *prepared = object->handle;
    return rc;
}

int attnd_unprepare(struct attnd_session *session, uint32_t prepared)
{
    Attnd__Unprepare message = ATTND__UNPREPARE__INIT;
    message.prepared = prepared;
    struct attnd_rpc call = ATTND_CALL(UNPREPARE, .unprepare = &message);
    call.timeout_ns = ATTND_CALL_LONG_TIMEOUT_NS;
    return attnd_launcher_release(session, &call, ATTND_OBJECT_PREPARED, prepared);
}

/* ---- launching, from the host ---- */

/* Return: the mailbox; NULL with a fault in *rc. */
static struct attnd_mailbox *host_mailbox(const struct attnd_session *session, uint32_t lane,
                                          int *rc)
{
    *rc = attnd_session_check_owner(session);
    if (*rc != 0)
        return NULL;
    if (lane >= ATTND_LANES_MAX)
        *rc = attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LANE, 0, lane, ATTND_LANES_MAX - 1);
    else if (attnd_observe32(&session->by_engine)) /* its stream launches */
        *rc = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MAILBOX, 0, 0, 0);
    else if (!attnd_observe32(&session->mailbox_memory)) /* A1 */
        *rc = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_MAILBOX, 0, 0, 0);
    else if (session->mailbox == NULL)
        *rc = attnd_fault_raise(-ATTND_E_UNSUPPORTED, ATTND_F_MEMORY_KIND, 0, ATTND_KIND_DEVICE,
                                ATTND_KIND_HOST);
    else
        return session->mailbox;
    return NULL;
}

int attnd_launch(struct attnd_session *session, uint32_t lane, uint32_t prepared)
{
    int rc;
    struct attnd_mailbox *mailbox = host_mailbox(session, lane, &rc);
    if (mailbox == NULL)
        return rc;
    if (prepared >= ATTND_DOORBELL_RUNS)
        return attnd_fault_raise(-ATTND_E_UNKNOWN, ATTND_F_PREPARED, 0, prepared, 0);
    if (!attnd_doorbell_rests(attnd_observe32(&mailbox->doorbell[lane])))
        return attnd_fault_raise(-ATTND_E_BUSY, ATTND_F_LANE, 0, lane, 0);
    attnd_publish32(&mailbox->doorbell[lane], ATTND_DOORBELL_RUNG + prepared); /* R1 */
    attnd_crash(ATTND_CRASH_CLIENT_DOORBELL_WRITTEN);
    (void)attnd_arrive32(&mailbox->rung, 1); /* R1 */
    attnd_crash(ATTND_CRASH_CLIENT_DOORBELL_COUNTED);
    (void)attnd_futex_wake(&mailbox->rung, INT_MAX);
    return 0;
}

/* For @spin_ns at most: rung, then taken, then over. Return: the word as it was last seen. */
static uint32_t spin(const uint32_t *word, uint64_t begin_ns, uint64_t spin_ns)
{
    uint32_t doorbell = attnd_observe32(word);
    for (uint64_t spent_ns = 0; !attnd_doorbell_rests(doorbell) && spent_ns < spin_ns;
         spent_ns = attnd_clock_ns() - begin_ns) {
        (void)attnd_wake_spin(word, doorbell, spin_ns - spent_ns);
        doorbell = attnd_observe32(word);
    }
    return doorbell;
}

int attnd_launch_wait(struct attnd_session *session, uint32_t lane, uint64_t timeout_ns)
{
    int rc;
    struct attnd_mailbox *mailbox = host_mailbox(session, lane, &rc);
    if (mailbox == NULL)
        return rc;
    uint32_t *word = &mailbox->doorbell[lane];
    uint64_t begin_ns = attnd_clock_ns();
    uint32_t doorbell =
        spin(word, begin_ns, timeout_ns < session->spin_ns ? timeout_ns : session->spin_ns);
    for (; !attnd_doorbell_rests(doorbell); doorbell = attnd_observe32(word)) { /* A1: o and lse */
        uint64_t spent_ns = attnd_clock_ns() - begin_ns;
        if (spent_ns >= timeout_ns)
            return attnd_fault_raise(-ATTND_E_TIMEOUT, ATTND_F_LANE, 0, lane, 0);
        if (attnd_session_lost(session) && !attnd_doorbell_rests(attnd_observe32(word)))
            return attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0);
        /* A GPU that answers wakes nobody: sleep for as long as it has taken so far. */
        uint64_t nap_ns = spent_ns < SLICE_NS ? spent_ns : SLICE_NS;
        uint64_t left_ns = timeout_ns - spent_ns;
        const struct timespec slice = {.tv_nsec = (long)(left_ns < nap_ns ? left_ns : nap_ns)};
        /* The worker wakes one, and that one the others of this engine: whoever made them sleep
         * pays for them. Where one is lost, they look at the end of their slices. */
        if (attnd_futex_wait(word, doorbell, &slice) == 0)
            (void)attnd_futex_wake(word, INT_MAX);
    }
    return attnd_lane_failed(lane, doorbell - 1);
}

int attnd_lane_error(struct attnd_session *session, uint32_t lane)
{
    int rc;
    struct attnd_mailbox *mailbox = host_mailbox(session, lane, &rc);
    if (mailbox == NULL)
        return rc;
    return attnd_lane_failed(lane, attnd_swap32(&mailbox->error[lane], 0));
}

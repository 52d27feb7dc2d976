/*
 * wait.c - collecting completions: look, spin, sleep, and notice a dead daemon.
 *
 * Spinning is for the daemon that answers within microseconds. Beyond the budget the thread
 * announces that it sleeps (F1), looks once more, and blocks in ppoll on two descriptors: the
 * pipe that the daemon writes when it has seen the announcement, and the socket. That one of them
 * ends is the only sign a killed daemon gives; the pipe does first, because its io_uring holds the
 * socket for a while. The socket is polled for its end alone; replies on it belong to the thread
 * that is in a control call.
 *
 * Completions that a daemon posted before it died are in memory before either closes. So after the
 * end was seen, one more look at the ring is complete, and only then is the session said to be
 * gone.
 */
#include "client/internal.h"
#include "schemas/crash.h"

#include <poll.h>
#include <string.h>

/* A wait that does not block asks the socket at most this often: an engine that polls must learn
 * of a dead daemon too, but not pay a system call each time. */
#define GLANCE_NS 1000000u

static uint64_t saturating_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

void attnd_session_listen(struct attnd_session *session, uint64_t timeout_ns)
{
    struct pollfd fds[2] = {{.fd = session->notify, .events = POLLIN},
                            {.fd = session->socket, .events = POLLRDHUP}};
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                               .tv_nsec = (long)(timeout_ns % 1000000000u)};
    if (ppoll(fds, 2, timeout_ns == ATTND_FOREVER ? NULL : &timeout, NULL) <= 0)
        return; /* timed out or interrupted: the caller looks and decides */

    if (fds[0].revents & POLLIN)
        attnd_doorbell_drain(session->notify);
    if (fds[0].revents & ~POLLIN || fds[1].revents)
        attnd_session_end(session);
}

int attnd_session_lost(struct attnd_session *session)
{
    struct pollfd ends[2] = {{.fd = session->notify}, {.fd = session->socket, .events = POLLRDHUP}};
    if (poll(ends, 2, 0) > 0)
        attnd_session_end(session);
    return attnd_observe32(&session->gone) != 0;
}

/* The daemon leaves submissions in the ring while there is no room for their completions, and then
 * sleeps as if there were none. F2: either its last look before it slept saw the room that was made
 * just now, or this sees that it sleeps. */
static void tell_of_room(const struct attnd_session *session)
{
    attnd_fence_full();
    if (attnd_peek32(session->sq.tail) != attnd_peek32(session->sq.head))
        (void)attnd_doorbell_ring(&session->doorbell);
}

/* The pages of a match, into memory that stays when the slot is freed: where they lie there, and
 * how many, become the completion's limit. Return: 1; -ATTND_E_PROTOCOL. */
static int take_results(struct attnd_session *session, struct attnd_cqe *cqe)
{
    uint32_t place = (uint32_t)cqe->limit, used = session->results_used;
    if (session->results == NULL || cqe->limit < 0 || cqe->limit >= ATTND_RESULT_WORDS ||
        cqe->words > ATTND_RESULT_WORDS - used)
        return -ATTND_E_PROTOCOL;
    uint32_t to_end = ATTND_RESULT_WORDS - place;
    uint32_t first = cqe->words < to_end ? cqe->words : to_end;
    memcpy(session->results + used, session->results_shared + place, first * sizeof(int32_t));
    memcpy(session->results + used + first, session->results_shared,
           (cqe->words - first) * sizeof(int32_t));
    session->results_used += cqe->words;
    cqe->limit = (int64_t)((uint64_t)cqe->words << 32 | used);
    return 1;
}

/* Return: completions copied; -ATTND_E_PROTOCOL. No lock, and a system call only to wake a daemon
 * that waited for room. */
static int collect(struct attnd_session *session, struct attnd_completion *completions,
                   uint32_t count)
{
    uint32_t got = 0;
    struct attnd_cqe cqe;
    while (got < count) {
        int rc = attnd_consumer_peek(&session->cq, &cqe);
        if (rc == 0)
            break;
        attnd_crash(ATTND_CRASH_CLIENT_COMPLETION_SEEN);
        if (rc > 0 && cqe.words > 0)
            rc = take_results(session, &cqe);
        if (rc < 0)
            return got > 0 ? (int)got : attnd_fault_raise(rc, ATTND_F_NONE, 0, 0, 0);
        if (cqe.opcode == ATTND_OP_PLAN_SET && cqe.code < 0)
            attnd_publish32(&session->refusals, session->refusals + 1);
        attnd_consumer_skip(&session->cq);
        attnd_crash(ATTND_CRASH_CLIENT_COMPLETION_TAKEN);
        completions[got++] = (struct attnd_completion){.user_data = cqe.user_data,
                                                       .fault = {.code = cqe.code,
                                                                 .field = cqe.field,
                                                                 .index = cqe.index,
                                                                 .value = cqe.value,
                                                                 .limit = cqe.limit},
                                                       .operation = cqe.opcode,
                                                       .lane = cqe.lane,
                                                       .begin_ns = cqe.begin_ns,
                                                       .end_ns = cqe.end_ns};
    }
    if (got > 0)
        tell_of_room(session);
    return (int)got;
}

/* The last look: `gone` is read before the ring, so that nothing posted is lost. */
static int collect_or_gone(struct attnd_session *session, struct attnd_completion *completions,
                           uint32_t count)
{
    uint32_t gone = attnd_observe32(&session->gone); /* A1 */
    int got = collect(session, completions, count);
    if (got == 0 && gone)
        return attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0);
    return got;
}

static int sleep_until(struct attnd_session *session, struct attnd_completion *completions,
                       uint32_t count, uint64_t deadline_ns)
{
    for (;;) {
        uint64_t now_ns = attnd_clock_ns();
        uint64_t left_ns = deadline_ns == UINT64_MAX ? ATTND_FOREVER
                           : deadline_ns > now_ns    ? deadline_ns - now_ns
                                                     : 0;
        attnd_wake_announce(session->cq_need); /* F1 */
        attnd_crash(ATTND_CRASH_CLIENT_SLEEP_ANNOUNCED);
        if (attnd_consumer_empty(&session->cq) && !attnd_observe32(&session->gone))
            attnd_session_listen(session, left_ns);
        attnd_wake_withdraw(session->cq_need);

        int got = collect_or_gone(session, completions, count);
        if (got != 0 || left_ns == 0)
            return got;
    }
}

int attnd_wait(struct attnd_session *session, struct attnd_completion *completions, uint32_t count,
               uint64_t timeout_ns)
{
    int got = attnd_session_check_owner(session);
    if (got < 0)
        return got;
    if (completions == NULL)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_COMPLETIONS, 0, 0, 0);
    if (count == 0)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_COUNT, 0, count, 1);
    session->results_used = 0;
    if (session->armed) {
        session->armed = 0;
        attnd_wake_withdraw(session->cq_need);
        attnd_session_listen(session, 0);
    }
    got = collect(session, completions, count);
    if (got != 0)
        return got;

    uint64_t now_ns = attnd_clock_ns();
    if (timeout_ns == 0) {
        if (now_ns - session->glanced_ns >= GLANCE_NS) {
            session->glanced_ns = now_ns;
            attnd_session_lost(session);
        }
        return collect_or_gone(session, completions, count);
    }
    uint64_t spin_ns = timeout_ns < session->spin_ns ? timeout_ns : session->spin_ns;
    if (attnd_wake_spin(session->cq.tail, session->cq.index, spin_ns))
        return collect(session, completions, count);
    return sleep_until(session, completions, count, saturating_add(now_ns, timeout_ns));
}

int attnd_arm(struct attnd_session *session)
{
    int rc = attnd_session_check_owner(session);
    if (rc < 0)
        return rc;
    int gone = attnd_session_lost(session);
    attnd_wake_announce(session->cq_need); /* F1 */
    session->armed = 1;
    if (!attnd_consumer_empty(&session->cq))
        return 1;
    return gone ? attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0) : 0;
}

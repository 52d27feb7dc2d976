/*
 * loop_uring.c - the loop's watches as io_uring requests.
 *
 * One system call serves a whole sleep: it submits what was armed or cancelled since the last one
 * and waits. The ring belongs to the loop's thread alone (SINGLE_ISSUER), and completions are
 * worked off only when that thread asks (DEFER_TASKRUN), never by interrupting it. The price is
 * that the completion queue stays empty while we spin: the kernel raises IORING_SQ_TASKRUN instead,
 * and somebody has to look at it.
 *
 * Descriptors use one-shot polls, armed again after the callback. Arming looks at the descriptor
 * first, so this is level-triggered exactly as promised, where a multishot poll reports edges only
 * and would need a poll(2) after every callback. It costs one entry in a submission that happens
 * anyway.
 *
 * Futex waits are new enough (Linux 6.7) for liburing 2.3 not to know them: their entries are
 * filled by hand. A wait ends once: woken, refused because the word differs, or cancelled; each of
 * these only means that the word has to be looked at, so the result is not.
 */
#include "ipc/loop_impl.h"
#include "schemas/atomics.h"

#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OP_FUTEX_WAIT 51
#define OP_FUTEX_WAKE 52
#define FUTEX_SIZE_U32 2 /* FUTEX2_SIZE_U32; without FUTEX2_PRIVATE: two processes share it */
#define FUTEX_ANY 0xffffffffu

#define SUBMISSIONS 1024u
#define RING_FLAGS                                                                                 \
    (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |         \
     IORING_SETUP_SUBMIT_ALL)

struct uring {
    struct io_uring ring;
    struct __kernel_timespec timeout; /* read by the kernel at submission */
    uint64_t timeout_ns;              /* of the one timeout in the kernel; UINT64_MAX: none */
};

static int has_futex_operations(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (!probe)
        return 0;
    int has = io_uring_opcode_supported(probe, OP_FUTEX_WAIT) &&
              io_uring_opcode_supported(probe, OP_FUTEX_WAKE);
    io_uring_free_probe(probe);
    return has;
}

static int uring_open(struct attnd_loop *loop)
{
    struct uring *uring = calloc(1, sizeof(*uring));
    if (!uring)
        return -ENOMEM;
    uring->timeout_ns = UINT64_MAX;

    struct io_uring_params params = {.flags = RING_FLAGS};
    int rc = io_uring_queue_init_params(SUBMISSIONS, &uring->ring, &params);
    if (rc < 0) {
        snprintf(loop->reason, sizeof(loop->reason), "io_uring_setup was refused: %s",
                 strerror(-rc));
        free(uring);
        return rc;
    }
    if (!has_futex_operations(&uring->ring)) {
        snprintf(loop->reason, sizeof(loop->reason),
                 "this kernel's io_uring has no futex operations (Linux 6.7 brought them)");
        io_uring_queue_exit(&uring->ring);
        free(uring);
        return -EOPNOTSUPP;
    }
    loop->state = uring;
    return 0;
}

static void uring_close(struct attnd_loop *loop)
{
    struct uring *uring = loop->state;
    io_uring_queue_exit(&uring->ring);
    free(uring);
}

static struct io_uring_sqe *next_sqe(struct uring *uring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    if (!sqe && io_uring_submit(&uring->ring) >= 0)
        sqe = io_uring_get_sqe(&uring->ring);
    return sqe;
}

static void prepare_futex_wait(struct io_uring_sqe *sqe, uint32_t *word, uint32_t expected)
{
    memset(sqe, 0, sizeof(*sqe));
    sqe->opcode = OP_FUTEX_WAIT;
    sqe->fd = FUTEX_SIZE_U32;
    sqe->addr = (uintptr_t)word;
    sqe->addr2 = expected;
    sqe->addr3 = FUTEX_ANY;
}

static int uring_arm(struct attnd_loop *loop, struct attnd_watch *watch)
{
    struct io_uring_sqe *sqe = next_sqe(loop->state);
    if (!sqe)
        return -EBUSY;
    if (watch->kind == ATTND_WATCH_FD)
        io_uring_prep_poll_add(sqe, watch->fd, watch->poll_events | POLLRDHUP);
    else
        prepare_futex_wait(sqe, watch->word, watch->seen);
    io_uring_sqe_set_data(sqe, watch);
    watch->armed = 1;
    return 0;
}

/* The request's own completion, not the cancellation's, says that the kernel has let go. */
static void uring_disarm(struct attnd_loop *loop, struct attnd_watch *watch)
{
    struct io_uring_sqe *sqe = next_sqe(loop->state);
    if (!sqe)
        return; /* it ends with its next event, or with the ring */
    io_uring_prep_cancel(sqe, watch, 0);
    io_uring_sqe_set_data(sqe, NULL);
}

/* One absolute timeout in the kernel, moved only to come earlier. One that has become too early
 * wakes us for nothing once, which is cheaper than moving it at every sleep. */
static int aim_timeout(struct uring *uring, uint64_t until_ns)
{
    if (uring->timeout_ns <= until_ns)
        return 0;
    struct io_uring_sqe *sqe = next_sqe(uring);
    if (!sqe)
        return -EBUSY;
    uring->timeout.tv_sec = (long long)(until_ns / 1000000000u);
    uring->timeout.tv_nsec = (long long)(until_ns % 1000000000u);
    if (uring->timeout_ns == UINT64_MAX) {
        io_uring_prep_timeout(sqe, &uring->timeout, 0, IORING_TIMEOUT_ABS);
        io_uring_sqe_set_data(sqe, &uring->timeout);
    } else {
        io_uring_prep_timeout_update(sqe, &uring->timeout, (uintptr_t)&uring->timeout,
                                     IORING_TIMEOUT_ABS);
        io_uring_sqe_set_data(sqe, NULL);
    }
    uring->timeout_ns = until_ns;
    return 0;
}

static int uring_collect(struct attnd_loop *loop, uint64_t until_ns)
{
    struct uring *uring = loop->state;
    struct io_uring *ring = &uring->ring;
    int rc = 0;

    if (until_ns == 0) {
        if (io_uring_sq_ready(ring) > 0)
            rc = io_uring_submit_and_get_events(ring);
        else if (attnd_peek32(ring->sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW))
            rc = io_uring_get_events(ring);
    } else {
        rc = aim_timeout(uring, until_ns);
        if (rc == 0)
            rc = io_uring_submit_and_wait(ring, 1);
    }
    /* BUSY and AGAIN: completions have to be taken first, which is what comes next. */
    return rc >= 0 || rc == -EINTR || rc == -EBUSY || rc == -EAGAIN ? 0 : rc;
}

static int complete(struct attnd_loop *loop, struct attnd_watch *watch, int result)
{
    watch->armed = 0;
    if (watch->ended) {
        attnd_watch_release(loop, watch);
        return 0;
    }
    if (watch->kind != ATTND_WATCH_FD)
        return 0; /* a word: the next sweep reads it, the next sleep arms it */
    watch->fd_fn(watch->context, result < 0 ? POLLNVAL : (uint32_t)result);
    /* A descriptor that cannot be polled stays unarmed: it would fail again for ever. */
    const int armed = watch->armed; /* paused and resumed by its own callback */
    return watch->ended || watch->paused || armed || result < 0 ? 0 : uring_arm(loop, watch);
}

static int uring_dispatch(struct attnd_loop *loop)
{
    struct uring *uring = loop->state;
    int rc = 0;

    /* Counted once: what callbacks arm may complete at once, and waits for the next turn. */
    for (unsigned left = io_uring_cq_ready(&uring->ring); left > 0 && rc == 0; left--) {
        struct io_uring_cqe *cqe;
        if (io_uring_peek_cqe(&uring->ring, &cqe) < 0)
            break;
        void *what = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        if (what == &uring->timeout)
            uring->timeout_ns = UINT64_MAX;
        else if (what)
            rc = complete(loop, what, result);
    }
    return rc;
}

const struct attnd_loop_backend attnd_loop_uring = {
    .name = "io_uring",
    .has_futex = 1,
    .open = uring_open,
    .close = uring_close,
    .arm = uring_arm,
    .disarm = uring_disarm,
    .collect = uring_collect,
    .dispatch = uring_dispatch,
};

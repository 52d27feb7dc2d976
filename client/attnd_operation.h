/*
 * attnd_operation.h - operations: what is submitted, and how it is taken when it has completed.
 * Part of attnd.h.
 */
#ifndef ATTND_OPERATION_H
#define ATTND_OPERATION_H

#include "schemas/errors.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct attnd_session; /* attnd_session.h */

/* Fields of every submitted operation. Zero-initialise; a call may be given NULL for zeros. */
struct attnd_op {
    uint64_t user_data;  /* comes back in the completion */
    uint16_t lane;       /* 0..63: operations of a lane take effect in order; lanes are unordered */
    uint16_t flags;      /* ATTND_SKIP_SUCCESS */
    uint32_t timeout_us; /* append and run: completes with -ATTND_E_TIMEOUT after this; 0: never */
};

#define ATTND_SKIP_SUCCESS 0x1u /* an operation that succeeds posts no completion */

enum attnd_operation {
    ATTND_PLAN_SET = 1,
    ATTND_PLAN_ADVANCE = 2,
    ATTND_APPEND = 3,
    ATTND_RUN = 4,
    ATTND_MATCH = 6, /* attnd_prefix.h, from here on */
    ATTND_PUBLISH = 7,
    ATTND_CLAIM = 8,
    ATTND_ABANDON = 9,
    ATTND_PIN = 10,
    ATTND_UNPIN = 11,
    ATTND_MERGE = 12,       /* attnd_merge.h */
    ATTND_PAGES_CLAIM = 13, /* attnd_pages.h */
    ATTND_PAGES_READY = 14
};

struct attnd_completion {
    uint64_t user_data;
    struct attnd_fault fault; /* code 0: success */
    uint32_t operation;       /* enum attnd_operation */
    uint32_t lane;
    uint64_t begin_ns, end_ns; /* CLOCK_MONOTONIC in the service: started, finished */
};

#define ATTND_FOREVER UINT64_MAX

/**
 * attnd_wait() - collect completions
 * @completions: [count]
 * @timeout_ns:  0: do not block; ATTND_FOREVER
 * Spins for up to 100 us (20 with two processors), then sleeps in ppoll. A signal's handler runs
 * and the wait goes on: an engine that must leave then polls attnd_fd() instead. Return: 1..count
 * completions; 0 timed out; -ATTND_E_DISCONNECTED the service died and all it posted was taken.
 */
int attnd_wait(struct attnd_session *session, struct attnd_completion *completions, uint32_t count,
               uint64_t timeout_ns);

/**
 * attnd_cancel() - stop every operation of this session submitted with @user_data, if it can be
 * Those stopped complete with -ATTND_E_CANCELLED; o is then undefined. Posts nothing itself.
 */
int attnd_cancel(struct attnd_session *session, uint64_t user_data);

#ifdef __cplusplus
}
#endif

#endif

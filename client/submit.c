/*
 * submit.c - one slot: checked for what must be known to write it, published, announced.
 *
 * The daemon checks everything again from its own copy, so this side only refuses what would not
 * survive being written down: a lane or a flag that the slot has no bits for. No lock, no
 * allocation, and a system call only to wake a daemon that sleeps, or when the ring is full:
 * then the socket is asked, because a dead daemon must not look like a busy one for ever.
 */
#include "client/submit.h"
#include "schemas/crash.h"

int attnd_submit_begin(struct attnd_session *session, uint32_t plan, uint8_t opcode,
                       const struct attnd_op *op, struct attnd_sqe *sqe)
{
    static const struct attnd_op plain;
    int rc = attnd_session_check(session);
    if (rc < 0)
        return rc;
    if (op == NULL)
        op = &plain;
    if (op->lane >= ATTND_LANES_MAX)
        return attnd_fault_raise(-ATTND_E_RANGE, ATTND_F_LANE, 0, op->lane, ATTND_LANES_MAX - 1);
    if (op->flags & ~ATTND_OP_FLAGS)
        return attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_FLAGS, 0, op->flags, ATTND_OP_FLAGS);
    *sqe = (struct attnd_sqe){.opcode = opcode,
                              .flags = (uint8_t)op->flags,
                              .lane = op->lane,
                              .plan = plan,
                              .user_data = op->user_data};
    return 0;
}

/* @size: how large it is that is full. */
static int full(struct attnd_session *session, enum attnd_field field, uint64_t size)
{
    if (attnd_session_lost(session))
        return attnd_fault_raise(-ATTND_E_DISCONNECTED, ATTND_F_SOCKET, 0, 0, 0);
    return attnd_fault_raise(-ATTND_E_FULL, field, 0, (int64_t)size, 0);
}

int attnd_submit_push(struct attnd_session *session, const struct attnd_sqe *sqe)
{
    int rc = attnd_producer_push(&session->sq, sqe); /* R1 */
    if (rc == -ATTND_E_FULL)
        return full(session, ATTND_F_RING_ENTRIES, session->sq.entries);
    if (rc < 0)
        return attnd_fault_raise(rc, ATTND_F_NONE, 0, 0, 0);
    attnd_crash(ATTND_CRASH_CLIENT_SLOT_PUBLISHED);
    (void)attnd_doorbell_ring(&session->doorbell); /* F2; it says whether it had to wake anybody */
    return 0;
}

int attnd_submit_reserve(struct attnd_session *session, uint64_t bytes, uint64_t *offset_bytes)
{
    int space = attnd_producer_space(&session->sq);
    if (space < 0)
        return attnd_fault_raise(space, ATTND_F_NONE, 0, 0, 0);
    if (space == 0)
        return full(session, ATTND_F_RING_ENTRIES, session->sq.entries);
    uint32_t in_flight = session->sq.entries - (uint32_t)space;
    int rc =
        attnd_arena_reserve(&session->arena, bytes, session->sq.index, in_flight, offset_bytes);
    if (rc == -ATTND_E_FULL)
        return full(session, ATTND_F_ARENA, session->arena.bytes);
    if (rc < 0)
        return attnd_fault_raise(rc, ATTND_F_ARENA, 0, (int64_t)bytes,
                                 (int64_t)session->arena.bytes);
    return 0;
}

int attnd_submit_push_block(struct attnd_session *session, const struct attnd_sqe *sqe,
                            uint64_t bytes)
{
    uint32_t index = session->sq.index;
    int rc = attnd_submit_push(session, sqe);
    if (rc == 0)
        attnd_arena_commit(&session->arena, bytes, index);
    return rc;
}

int attnd_append(struct attnd_session *session, uint32_t plan, const struct attnd_append_args *args,
                 const struct attnd_op *op)
{
    struct attnd_sqe sqe;
    struct attnd_append_args own;
    int rc = attnd_submit_begin(session, plan, ATTND_OP_APPEND, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc < 0)
        return rc;
    sqe.u.append = (struct attnd_sqe_append){.layer = own.layer,
                                             .timeout_us = op == NULL ? 0 : op->timeout_us,
                                             .k_memory = own.k.memory,
                                             .v_memory = own.v.memory,
                                             .k_offset_bytes = own.k.offset_bytes,
                                             .v_offset_bytes = own.v.offset_bytes,
                                             .refusals = attnd_observe32(&session->refusals)};
    return attnd_submit_push(session, &sqe);
}

int attnd_run(struct attnd_session *session, uint32_t plan, const struct attnd_run_args *args,
              const struct attnd_op *op)
{
    struct attnd_sqe sqe;
    struct attnd_run_args own;
    int rc = attnd_submit_begin(session, plan, ATTND_OP_RUN, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc < 0)
        return rc;
    sqe.u.run = (struct attnd_sqe_run){.layer = own.layer,
                                       .timeout_us = op == NULL ? 0 : op->timeout_us,
                                       .q_memory = own.q.memory,
                                       .o_memory = own.o.memory,
                                       .q_offset_bytes = own.q.offset_bytes,
                                       .o_offset_bytes = own.o.offset_bytes,
                                       .lse_offset_bytes = own.lse.offset_bytes,
                                       .lse_memory = own.lse.memory,
                                       .refusals = attnd_observe32(&session->refusals)};
    return attnd_submit_push(session, &sqe);
}

int attnd_cancel(struct attnd_session *session, uint64_t user_data)
{
    struct attnd_sqe sqe;
    int rc = attnd_submit_begin(session, 0, ATTND_OP_CANCEL, NULL, &sqe);
    if (rc < 0)
        return rc;
    sqe.u.cancel.target_user_data = user_data;
    return attnd_submit_push(session, &sqe);
}

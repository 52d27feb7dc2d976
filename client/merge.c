/*
 * merge.c - attnd_merge_state(): six places, which a slot has no room for, in the arena.
 */
#include "client/attnd_merge.h"
#include "client/submit.h"

static struct attnd_merge_place place_of(const struct attnd_tensor *tensor)
{
    return (struct attnd_merge_place){.memory = tensor->memory,
                                      .offset_bytes = tensor->offset_bytes};
}

int attnd_merge_state(struct attnd_session *session, uint32_t plan,
                      const struct attnd_merge_args *args, const struct attnd_op *op)
{
    struct attnd_sqe sqe;
    struct attnd_merge_args own;
    uint64_t offset_bytes;
    int rc = attnd_submit_begin(session, plan, ATTND_OP_MERGE, op, &sqe);
    if (rc == 0)
        rc = attnd_args_take(&own, sizeof(own), args);
    if (rc == 0 && own.reserved0)
        rc = attnd_fault_raise(-ATTND_E_INVALID, ATTND_F_RESERVED, 0, own.reserved0, 0);
    if (rc < 0)
        return rc;

    rc = attnd_submit_reserve(session, ATTND_MERGE_PLACES * sizeof(struct attnd_merge_place),
                              &offset_bytes);
    if (rc < 0)
        return rc;
    struct attnd_merge_place *at = (void *)(session->arena.base + offset_bytes);
    at[ATTND_MERGE_O_A] = place_of(&own.o_a);
    at[ATTND_MERGE_LSE_A] = place_of(&own.lse_a);
    at[ATTND_MERGE_O_B] = place_of(&own.o_b);
    at[ATTND_MERGE_LSE_B] = place_of(&own.lse_b);
    at[ATTND_MERGE_O] = place_of(&own.o);
    at[ATTND_MERGE_LSE] = place_of(&own.lse);
    sqe.u.merge = (struct attnd_sqe_merge){.places_offset_bytes = offset_bytes,
                                           .timeout_us = op == NULL ? 0 : op->timeout_us,
                                           .refusals = attnd_observe32(&session->refusals)};
    return attnd_submit_push_block(session, &sqe,
                                   ATTND_MERGE_PLACES * sizeof(struct attnd_merge_place));
}

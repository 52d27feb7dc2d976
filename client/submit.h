/*
 * submit.h - how an operation becomes a slot, for submit.c and plan.c.
 *
 * Threads: all of it belongs to the submitting thread.
 */
#ifndef ATTND_CLIENT_SUBMIT_H
#define ATTND_CLIENT_SUBMIT_H

#include "client/internal.h"

/** attnd_submit_begin() - check session and @op (NULL: zeros), fill all of @sqe but its union.
 * Return: 0 or a fault. */
int attnd_submit_begin(struct attnd_session *session, uint32_t plan, uint8_t opcode,
                       const struct attnd_op *op, struct attnd_sqe *sqe);

/** attnd_submit_push() - publish and ring. Return: 0, -ATTND_E_FULL, -ATTND_E_DISCONNECTED,
 * -ATTND_E_PROTOCOL. */
int attnd_submit_push(struct attnd_session *session, const struct attnd_sqe *sqe);

/** attnd_submit_reserve() - a slot and @bytes of arena for it. Return: 0, -ATTND_E_FULL,
 * -ATTND_E_NO_SPACE, -ATTND_E_DISCONNECTED, -ATTND_E_PROTOCOL. */
int attnd_submit_reserve(struct attnd_session *session, uint64_t bytes, uint64_t *offset_bytes);

/** attnd_copy_out() - copy @bytes into the arena, for the daemon to read; complete before R1. */
void attnd_copy_out(void *to, const void *from, uint64_t bytes);

/** attnd_submit_push_block() - push the slot that uses the first @bytes of the block reserved. */
int attnd_submit_push_block(struct attnd_session *session, const struct attnd_sqe *sqe,
                            uint64_t bytes);

#endif

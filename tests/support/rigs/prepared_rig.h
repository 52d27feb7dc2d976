/*
 * prepared_rig.h - a session with a mailbox, between a test that makes its calls and a worker that
 * is the test too: commands are taken and answered one by one.
 */
#ifndef ATTND_TESTS_SUPPORT_RIGS_PREPARED_RIG_H
#define ATTND_TESTS_SUPPORT_RIGS_PREPARED_RIG_H

#include "tests/support/rigs/stage_rig.h"

extern int prepared_rig_peer; /* the other end of the client's socket */

/* A worker that watches mailboxes, told of everything from the beginning. */
void prepared_rig_new_worker(void);
int prepared_rig_connect(struct stage_client *out);
int prepared_rig_setup(void **state);
int prepared_rig_teardown(void **state);
/* Return: 1 and *code, *prepared if the call was answered; 0 not yet. */
int prepared_rig_answer(int peer, int *code, uint32_t *prepared);
/* The next command. Return: 0 if there is none. */
int prepared_rig_take(struct attnd_command *command);
void prepared_rig_retire(const struct attnd_command *command, int code);
struct attnd_command prepared_rig_expect(uint32_t kind);
void prepared_rig_expect_none(void);
/* A run of @plan on @layer, with its rows where stage_run() has them. */
struct attnd_sqe_run prepared_rig_wish(uint32_t layer);

/* The session's call was answered with @code, or has no answer yet. */
void prepared_rig_expect_answer(int code);
void prepared_rig_expect_no_answer(void);
/* A mailbox that the worker watches. */
void prepared_rig_open_mailbox(void);
/* A plan of one request, set. */
uint32_t prepared_rig_filled_plan(void);
/* Every command that was sent is answered with success. */
void prepared_rig_ack_all(void);

#endif

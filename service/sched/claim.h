/*
 * claim.h - claims of tickets, and layers that are whole.
 */
#ifndef ATTND_SERVICE_SCHED_CLAIM_H
#define ATTND_SERVICE_SCHED_CLAIM_H

#include "service/sched/op.h"

struct attnd_client_lanes;

/** attnd_claim_check() - the attachment that a claim's pages go to. Return: NULL with *@fault. */
struct attnd_attachment *attnd_claim_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault);
/** attnd_claim_step() - of a claim of pages. DONE or PARKED. */
enum attnd_step attnd_claim_step(struct attnd_sched_op *op);
/** attnd_ready_check() - the attachment of the pool that a ready names. Return: NULL with *@fault.
 */
struct attnd_attachment *attnd_ready_check(const struct attnd_client *client,
                                           const struct attnd_sqe *sqe, struct attnd_fault *fault);
/** attnd_ready_step() - layers of a ticket are whole, since what is in front of it in its lane is
 * over. DONE. */
enum attnd_step attnd_ready_step(struct attnd_sched_op *op);
/** attnd_claim_listed() - a parked operation has left its lane; one that is no claim stays as it
 * is.
 */
void attnd_claim_listed(struct attnd_sched_op *op);
/** attnd_claim_cancel() - end those of @user_data that wait. Return: how many. */
int attnd_claim_cancel(struct attnd_client_lanes *session, uint64_t user_data);
/** attnd_claim_expire() - end one whose deadline has passed. */
void attnd_claim_expire(struct attnd_sched_op *op);
/** attnd_claim_close() - the session is closing: one claim more is given up. Return: 1 there was
 * one; 0. */
int attnd_claim_close(struct attnd_client_lanes *session);

#endif

/*
 * admit.h - what an operation carries: copied and checked once, on the way in.
 */
#ifndef ATTND_SERVICE_SCHED_ADMIT_H
#define ATTND_SERVICE_SCHED_ADMIT_H

struct attnd_admitted;
struct attnd_client;
struct attnd_sched_op;

/** attnd_op_admit() - copy and check what the operation carries, once; of a batch or an advance the
 * beginning. A failure becomes the operation's fault. */
void attnd_op_admit(struct attnd_sched_op *op);
/** attnd_op_admit_some() - the rest, as far as the piece goes. Return: 1 there is more; 0. */
int attnd_op_admit_some(struct attnd_sched_op *op);
/** attnd_op_let_go() - the operation needs its copy no more. Harmless without one. */
void attnd_op_let_go(struct attnd_sched_op *op);
/** attnd_admitted_free() - the memory of a copy of @client's. NULL is fine. */
void attnd_admitted_free(struct attnd_client *client, struct attnd_admitted *admitted);

#endif

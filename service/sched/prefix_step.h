/*
 * prefix_step.h - the steps of operations on the prefix tree.
 */
#ifndef ATTND_SERVICE_SCHED_PREFIX_STEP_H
#define ATTND_SERVICE_SCHED_PREFIX_STEP_H

#include "service/prefix/prefix.h"
#include "service/sched/op.h"

/** attnd_prefix_step() - of an operation on the prefix tree. DONE, MORE or PARKED. */
enum attnd_step attnd_prefix_step(struct attnd_sched_op *op);
/** attnd_prefix_find() - a match, whose pages are leased, also of what comes back from the host.
 * @recalls: 0: blocks are brought back only behind one that is found. */
struct attnd_tree_result attnd_prefix_find(const struct attnd_prefix_handle *handle,
                                           const struct attnd_tree_chain *chain, int recalls,
                                           int32_t *pages);
/** attnd_prefix_part() - of @blocks, as many as an operation does before it looks at the clock. */
uint32_t attnd_prefix_part(uint32_t blocks, uint32_t block_pages);
/** attnd_prefix_waits() - 1: a match that ended like that is to wait for the claim. */
int attnd_prefix_waits(const struct attnd_sched_op *op, const struct attnd_tree_result *result);
/** attnd_prefix_answer() - what the operation's completion says. */
void attnd_prefix_answer(struct attnd_sched_op *op, uint32_t blocks, enum attnd_prefix_stop stop,
                         uint64_t value);

#endif

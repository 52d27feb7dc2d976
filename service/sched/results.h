/*
 * results.h - what a completion has no room for: the pages that a match found.
 *
 * Behind its slots the completion segment has a ring of words that the daemon writes. What belongs
 * to a completion is the client's until the client has freed that completion's slot, so there is no
 * second index to trust: the room comes back with the slots.
 */
#ifndef ATTND_SERVICE_SCHED_RESULTS_H
#define ATTND_SERVICE_SCHED_RESULTS_H

#include <stdint.h>

struct attnd_client;
struct attnd_client_lanes;
struct attnd_results;
struct attnd_sched_op;

/** attnd_results_init() - in the client's completion segment; `mark` is to be freed. Return: 0 or
 * -ATTND_E_NO_MEMORY. */
int attnd_results_init(struct attnd_results *results, const struct attnd_client *client);

/** attnd_results_room() - are there @words beside those reserved? Return: 1, 0. */
int attnd_results_room(struct attnd_client_lanes *session, uint32_t words);
/** attnd_results_reserve() - for @op, until it completes; attnd_results_room() has said 1. */
void attnd_results_reserve(struct attnd_sched_op *op, uint32_t words);
void attnd_results_unreserve(struct attnd_sched_op *op);
/** attnd_results_put() - the words of @op, whose completion is posted next: where they lie becomes
 * its limit. attnd_results_room() has said 1, or they are reserved. */
void attnd_results_put(struct attnd_sched_op *op, const int32_t *words, uint32_t count);

#endif

/*
 * doer.h - a client that does all that clients do, once: memory, a pool, leases, a plan, appends
 * and runs, a launched run, a ticket, a prefix. Results are checked. Where a worker dies it does
 * again what was lost.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_DOER_H
#define ATTND_TESTS_SUPPORT_HARNESS_DOER_H

#define DOER_DISCONNECTED 3

/** doer_do_all() - for a process of its own: ends it with DOER_DISCONNECTED where the service is
 * gone. Return: 0; anything that is wrong fails the test. */
int doer_do_all(const char *socket_path);

#endif

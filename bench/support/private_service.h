/*
 * private_service.h - an attnd of one's own for as long as a program runs, or several, and nothing
 * left behind.
 *
 * The daemons get a private directory for their sockets. They are stopped by bench_private_stop(),
 * by a signal that ends the program (Ctrl-C, SIGTERM, a closed pipe), and by the kernel if the
 * program is killed. Children that use it can be registered and are stopped first.
 */
#ifndef ATTND_BENCH_SUPPORT_PRIVATE_SERVICE_H
#define ATTND_BENCH_SUPPORT_PRIVATE_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define BENCH_PRIVATE_MAX 4

/**
 * bench_private_start() - run one more attnd on a private socket and wait until it answers
 * @attnd_path: the program; NULL: beside or above this one's folder, else on PATH
 * @arguments:  NULL-terminated, behind --socket PATH; NULL: none
 * @why:        receives a sentence on failure
 * Return: the socket's path, valid until bench_private_stop(); NULL, and nothing runs any more.
 */
const char *bench_private_start(const char *attnd_path, const char *const *arguments, char *why,
                                size_t why_bytes);

/** bench_private_peer() - one more, linked to @giver, a socket of a private service: its engines
 * can claim tickets of that one. Return: as bench_private_start(). */
const char *bench_private_peer(const char *attnd_path, const char *giver, char *why,
                               size_t why_bytes);
/** bench_private_linked() - waits until @claimer, the socket of a service with one peer, and that
 * peer have found each other. Return: have they; if not, @why receives a sentence. */
bool bench_private_linked(const char *claimer, char *why, size_t why_bytes);

/** bench_private_stop() - end children and daemons, wait for them, remove the directory. Harmless
 * without a daemon. */
void bench_private_stop(void);

/** bench_private_guard() - from now on a fatal signal does bench_private_stop() first. Children
 * call bench_private_leave() after fork to have the default back. */
void bench_private_guard(void);
void bench_private_leave(void);

/** bench_private_child() - a child to be stopped with the rest; 0 < @pid. bench_private_gone() when
 * it has been waited for. */
void bench_private_child(pid_t pid);
/** bench_private_fork() - fork() and bench_private_child(), or bench_private_leave() in the
 * child, with no fatal signal between them. */
pid_t bench_private_fork(void);
void bench_private_gone(pid_t pid);

/** bench_private_pid() - of the first daemon, 0 if there is none. */
pid_t bench_private_pid(void);
/** bench_private_is_daemon() - is @pid one of them? */
int bench_private_is_daemon(pid_t pid);

#endif

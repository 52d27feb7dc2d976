/*
 * harness.h - a real attnd with its real worker on a private socket, and client processes.
 *
 * Nothing outlives the test: daemon and clients die with the test program (PR_SET_PDEATHSIG), the
 * program adopts orphans, and harness_stop() fails if a process is left. Programs are looked for in
 * the folder $ATTND_BIN, else two folders above the test program. $ATTND_TEST_BACKEND is the
 * daemon's --backend, $ATTND_TEST_EXECUTE its --execute. When a check fails, the logs of the
 * daemons that run are printed with it; with $ATTND_TEST_LOGS they are all kept in that folder, as
 * attnd-test-XXXXXX.log.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_HARNESS_H
#define ATTND_TESTS_SUPPORT_HARNESS_HARNESS_H

#include "schemas/attnd.pb-c.h"
#include "tests/support/harness/check.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct harness {
    char directory[64]; /* holds the socket and the log */
    char socket[96];
    char log[96];
    int notify;   /* where the daemon says that it is ready */
    int handed;   /* a listening socket that it is given as $LISTEN_FDS; 0: none */
    pid_t daemon; /* 0: not running */
};

/** harness_init() - in main(), before cmocka runs: checks that fail end the test with the logs. */
void harness_init(void);

/**
 * harness_start() - start the daemon and wait until it says READY
 * @options: more arguments of attnd, NULL-terminated; may be NULL
 */
void harness_start(struct harness *harness, const char *const *options);

/** harness_try_start() - the same of a daemon that may end before that. Return: 1; 0 it has ended,
 * with *@status as wait() has it, and has left no process and no socket. */
int harness_try_start(struct harness *harness, const char *const *options, int *status);

/** harness_start_activated() - the same, with the listening socket @fd of a service manager. */
void harness_start_activated(struct harness *harness, int fd, const char *const *options);

/** harness_stop() - SIGTERM, a clean exit within 10 s, no process left. Harmless when stopped. */
void harness_stop(struct harness *harness);

/**
 * harness_end_all() - teardown of a test that starts services itself
 *
 * Ends what a test left that failed in the middle: its services, and the clients that it forked.
 * The next test must not find them. Does nothing after one that passed. Return: 0.
 */
int harness_end_all(void **state);

/** harness_kill_daemon() - kill -9 and reap it. */
void harness_kill_daemon(struct harness *harness);

/** harness_restart() - start again on the same socket after harness_kill_daemon(). */
void harness_restart(struct harness *harness, const char *const *options);

/** harness_status() - what the daemon says; attnd__status__free_unpacked(status, NULL) frees it. */
Attnd__Status *harness_status(const struct harness *harness);

/** harness_connect() - a connection to its socket that says nothing yet. Return: the descriptor. */
int harness_connect(const struct harness *harness);

/** harness_is_busy() - for harness_eventually(): are runs with the worker? @harness: its own. */
int harness_is_busy(void *harness);

/** harness_has_ended() - likewise: has the daemon ended? harness_stop() reaps it. */
int harness_has_ended(void *harness);

/** harness_child() - a process that @parent's first thread has started. @name: of its program, cut
 * as the kernel does; NULL: any. @but: this one is not meant; 0: none. Return: 0: there is none. */
pid_t harness_child(pid_t parent, const char *name, pid_t but);
/** harness_worker() - pid of the worker that runs now. */
pid_t harness_worker(const struct harness *harness);

/** harness_stop_worker() - SIGSTOP, and wait: kill() comes back while its threads still run, so
 * that what is rung next could still be answered. Return: its pid. */
pid_t harness_stop_worker(const struct harness *harness);

/** harness_attnctl() - run attnctl on this daemon. @output receives its standard output,
 * terminated. Return: its exit status. */
int harness_attnctl(const struct harness *harness, const char *const *arguments, char *output,
                    size_t output_bytes);

/** harness_attnctl_as() - the same by user @uid, who may not be able to reach the program's file;
 * to become somebody else one has to be root. */
int harness_attnctl_as(const struct harness *harness, uid_t uid, const char *const *arguments,
                       char *output, size_t output_bytes);

/** harness_program() - run a program of the build, argv[0] ("examples/engine"), with the daemon's
 * socket in ATTND_SOCKET; the rest as for harness_attnctl(). */
int harness_program(const struct harness *harness, const char *const *argv, char *output,
                    size_t output_bytes);

/** harness_program_path() - of a program that was built beside the tests, or that ATTND_BIN has. */
void harness_program_path(const char *name, char *path, size_t bytes);

/* ---- client processes ---- */

/** harness_fork() - run @client in a process of its own. Its return value is the exit status; a
 * check that fails in it exits with 1 after saying so. */
pid_t harness_fork(int (*client)(void *context), void *context);
/** harness_fork_part() - the same for a part of a test, which starts services of its own; none runs
 * yet. A check that fails in it prints their logs. */
pid_t harness_fork_part(int (*run)(void *context), void *context);
/** harness_join() - wait at most @timeout_ms for it to end by itself. Return: its exit status;
 * a process ended by a signal or by the deadline fails the test. */
int harness_join(pid_t pid, uint32_t timeout_ms);
/** harness_kill() - kill -9 and reap. */
void harness_kill(pid_t pid);

/** harness_shared() - zeroed memory that forked clients share with the test. */
void *harness_shared(size_t bytes);
/** harness_say()/await() - one word as a flag between processes; await fails after 20 s. */
void harness_say(uint32_t *word, uint32_t value);
void harness_await(const uint32_t *word, uint32_t value);

/** harness_eventually() - ask @holds until it returns 1; fails the test after @timeout_ms. Return:
 * milliseconds that it took. */
double harness_eventually(int (*holds)(void *context), void *context, uint32_t timeout_ms,
                          const char *what);

/** harness_die_with() - in the child of a fork: end when @parent does. */
void harness_die_with(pid_t parent);
/** harness_reap() - wait for @pid, or any child if it is -1. Return: 1 reaped, 0 still there after
 * @timeout_ms, -1 no such child. */
int harness_reap(pid_t pid, uint32_t timeout_ms, int *status);

/** harness_threads_are() - Return: 1 if every thread of the process is in @state, a letter of
 * /proc/PID/stat ('S' asleep, 'T' stopped). One that is made during the look may be missed. */
int harness_threads_are(pid_t pid, char state);
/** harness_descriptors() - how many the process has open. */
uint32_t harness_descriptors(pid_t pid);

/** harness_await_asleep() - until the thread, or process of one thread, sleeps in the kernel. */
void harness_await_asleep(pid_t thread);

uint64_t harness_now_ns(void);
void harness_sleep_ms(uint32_t ms);

#endif

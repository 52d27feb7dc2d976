/*
 * crash.h - points at which tests stop or kill a process: the steps of the protocols.
 *
 * A build with CRASH_POINTS=1 has them, and no other. There, ATTND_CRASH="POINT SIGNAL COUNT FILE"
 * in the environment makes a process send itself SIGNAL when it comes to POINT for the COUNTth time
 * since FILE is there, and can unlink it. So the test that makes the file decides from when on, it
 * happens once among all processes, and a file that is gone says that it did.
 */
#ifndef ATTND_SCHEMAS_CRASH_H
#define ATTND_SCHEMAS_CRASH_H

/* X(NAME): the process, and what it has just done. CPU and GPU: the worker, with that backend. */
#define ATTND_CRASH_POINT_LIST(X)                                                                  \
    X(CLIENT_CONNECTED)                                                                            \
    X(CLIENT_REQUEST_SENT)                                                                         \
    X(CLIENT_REPLY_TAKEN)                                                                          \
    X(CLIENT_SEGMENTS_MAPPED)                                                                      \
    X(CLIENT_SLOT_PUBLISHED)                                                                       \
    X(CLIENT_SLEEP_ANNOUNCED)                                                                      \
    X(CLIENT_COMPLETION_SEEN)                                                                      \
    X(CLIENT_COMPLETION_TAKEN)                                                                     \
    X(CLIENT_DOORBELL_WRITTEN)                                                                     \
    X(CLIENT_DOORBELL_COUNTED)                                                                     \
    X(CLIENT_SHUT_DOWN)                                                                            \
    X(DAEMON_ACCEPTED)                                                                             \
    X(DAEMON_SEGMENTS_MADE)                                                                        \
    X(DAEMON_SESSION_OPENED)                                                                       \
    X(DAEMON_REQUEST_SERVED)                                                                       \
    X(DAEMON_REPLIED)                                                                              \
    X(DAEMON_SLOT_ACCEPTED)                                                                        \
    X(DAEMON_PLAN_FILLED)                                                                          \
    X(DAEMON_RUN_FILLED)                                                                           \
    X(DAEMON_COMMAND_PUSHED)                                                                       \
    X(DAEMON_RETIRE_TAKEN)                                                                         \
    X(DAEMON_COMPLETION_POSTED)                                                                    \
    X(DAEMON_MEMORY_SENT)                                                                          \
    X(DAEMON_MEMORY_MAPPED)                                                                        \
    X(DAEMON_SESSION_ENDED)                                                                        \
    X(DAEMON_SESSION_DRAINED)                                                                      \
    X(DAEMON_WORKER_SPAWNED)                                                                       \
    X(DAEMON_PEER_TOLD)                                                                            \
    X(DAEMON_PEER_LENT)                                                                            \
    X(DAEMON_PEER_GRANTED)                                                                         \
    X(DAEMON_PEER_MAPPED)                                                                          \
    X(DAEMON_PEER_PIECE_SENT)                                                                      \
    X(DAEMON_PEER_PIECE_LANDED)                                                                    \
    X(DAEMON_PEER_BROUGHT)                                                                         \
    X(DAEMON_PEER_SPENT)                                                                           \
    X(DAEMON_PEER_GIVEN)                                                                           \
    X(WORKER_QUEUE_MAPPED)                                                                         \
    X(WORKER_STARTED)                                                                              \
    X(WORKER_MEMORY_MAPPED)                                                                        \
    X(WORKER_MEMORY_UNMAPPED)                                                                      \
    X(CPU_COMMAND_TAKEN)                                                                           \
    X(CPU_ITEM_TAKEN)                                                                              \
    X(CPU_ITEM_DONE)                                                                               \
    X(CPU_RUN_DONE)                                                                                \
    X(CPU_RETIRED)                                                                                 \
    X(CPU_BRING_BEGUN)                                                                             \
    X(CPU_BRING_DONE)                                                                              \
    X(CPU_DOORBELL_TAKEN)                                                                          \
    X(CPU_DOORBELL_ANSWERED)                                                                       \
    X(MOVER_STARTED)                                                                               \
    X(MOVER_LINKED)                                                                                \
    X(MOVER_HEARD_DAEMON)                                                                          \
    X(MOVER_HEARD_PEER)                                                                            \
    X(MOVER_FRAGMENT_SENT)                                                                         \
    X(MOVER_FRAGMENT_TAKEN)                                                                        \
    X(MOVER_LANDED)                                                                                \
    X(WORKER_TOLD_TO_LEAVE)                                                                        \
    X(GPU_MEMORY_SET)                                                                              \
    X(GPU_LAUNCHED)                                                                                \
    X(GPU_GANG_CALLED)                                                                             \
    X(GPU_RETIRE_SEEN)                                                                             \
    X(GPU_QUIESCED)

#define ATTND_CRASH_NUMBER(name) ATTND_CRASH_##name,
enum attnd_crash_point { ATTND_CRASH_POINT_LIST(ATTND_CRASH_NUMBER) ATTND_CRASH_POINTS_END };
#undef ATTND_CRASH_NUMBER

#ifdef ATTND_CRASH_POINTS
/** attnd_crash() - the process is at @point. Threads: any. */
void attnd_crash(enum attnd_crash_point point);
/** attnd_crash_name() - as the environment names it. */
const char *attnd_crash_name(enum attnd_crash_point point);
#else
static inline void attnd_crash(enum attnd_crash_point point)
{
    (void)point;
}
#endif

#endif

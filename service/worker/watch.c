/*
 * watch.c - two threads that do nothing but look.
 *
 * The worker's main thread may be in a call that takes long, and the backend's own threads are busy
 * or asleep: none of them can promise to notice anything. One thread here counts in the queue
 * segment, so that the daemon sees the process move (watchdog.c). The other asks the backend
 * whether it is well. They are two because a question to a driver may have to wait for another call
 * to it, such as one that pins a large memory, and that is no reason to be killed; only when a
 * question has waited for a minute does the first thread stop counting.
 *
 * If the backend is not well, nothing can be mended here: what is known is logged and sent to the
 * daemon, and the process ends with a code that names the reason. The daemon answers what was in
 * flight and starts the next worker.
 */
#include "service/worker/watch.h"

#include "ipc/fdpass.h"
#include "ipc/wake.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"
#include "service/base/log.h"
#include "service/supervise/worker_abi.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define BEAT_NS 250000000
#define LOOK_NS_MAX 60000000000u
#define REPORT_BYTES 32768u

static void log_lines(char *report)
{
    char *rest = report;
    const char *line;
    while ((line = strtok_r(rest, "\n", &rest)))
        attnd_log(ATTND_LOG_ERROR, "%s", line);
}

static _Noreturn void give_up(int code, char *report)
{
    const struct attnd_worker_message message = {.kind = ATTND_WORKER_FAILED, .code = code};
    log_lines(report);
    (void)attnd_fdpass_send(ATTND_WORKER_FD_CONTROL, &message, sizeof(message), NULL, 0);
    /* Not exit(): its handlers would wait for a device that answers no more. */
    _exit(code == -ATTND_E_TIMEOUT ? ATTND_WORKER_EXIT_STUCK : ATTND_WORKER_EXIT_DEVICE);
}

static void *beat_main(void *context)
{
    struct attnd_worker_watch *watch = context;
    struct attnd_queue_head *queue = watch->queue;
    const struct timespec period = {.tv_nsec = BEAT_NS};

    while (!attnd_observe32(&watch->leave)) {
        if (!watch->ops->check || attnd_clock_ns() - attnd_peek64(&watch->looked_ns) < LOOK_NS_MAX)
            attnd_publish32(&queue->heartbeat, attnd_peek32(&queue->heartbeat) + 1);
        if (watch->stop_once && attnd_observe32(&queue->retire_tail)) {
            watch->stop_once = 0;
            (void)kill(getpid(), SIGSTOP);
        }
        (void)attnd_futex_wait(&watch->leave, 0, &period);
    }
    return NULL;
}

static void *look_main(void *context)
{
    struct attnd_worker_watch *watch = context;
    const struct attnd_backend_ops *ops = watch->ops;
    static char report[REPORT_BYTES];
    const struct timespec period = {.tv_nsec = (long)ops->check_period_ms * 1000000};

    while (!attnd_observe32(&watch->leave)) {
        int code = ops->check(watch->backend, report, sizeof(report));
        if (code < 0)
            give_up(code, report);
        attnd_poke64(&watch->looked_ns, attnd_clock_ns());
        (void)attnd_futex_wait(&watch->leave, 0, &period);
    }
    return NULL;
}

int attnd_worker_watch_start(struct attnd_worker_watch *watch)
{
    attnd_poke32(&watch->leave, 0);
    attnd_poke64(&watch->looked_ns, attnd_clock_ns());
    if (pthread_create(&watch->beat, NULL, beat_main, watch) != 0)
        return -ATTND_E_SYSTEM;
    if (!watch->ops->check || pthread_create(&watch->look, NULL, look_main, watch) == 0)
        return 0;
    attnd_publish32(&watch->leave, 1);
    (void)pthread_join(watch->beat, NULL);
    return -ATTND_E_SYSTEM;
}

void attnd_worker_watch_stop(struct attnd_worker_watch *watch)
{
    attnd_publish32(&watch->leave, 1);
    (void)attnd_futex_wake(&watch->leave, INT_MAX);
    (void)pthread_join(watch->beat, NULL);
    if (watch->ops->check)
        (void)pthread_join(watch->look, NULL);
}

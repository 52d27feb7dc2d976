/*
 * worker_watch.c - one thread that does nothing but look.
 *
 * The worker's main thread may be in a call that takes long, and the backend's own threads are busy
 * or asleep: none of them can promise to notice anything. This one counts in the queue segment, so
 * that the daemon sees the process move (watchdog.c), and asks the backend whether it is well. If
 * it is not, nothing can be mended here: what is known is logged, the daemon is told, and the
 * process ends with a code that names the reason. The daemon answers what was in flight and starts
 * the next worker.
 */
#include "service/worker_watch.h"

#include "ipc/fdpass.h"
#include "schemas/atomics.h"
#include "schemas/futex.h"
#include "service/service.h"
#include "service/worker_abi.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define PERIOD_MS 250u /* of the heart, where the backend does not ask for less */
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

static void *watch_main(void *context)
{
    struct attnd_worker_watch *watch = context;
    const struct attnd_backend_ops *ops = watch->ops;
    static char report[REPORT_BYTES];
    uint32_t period_ms = ops->check ? ops->check_period_ms : PERIOD_MS;
    const struct timespec period = {.tv_nsec = (long)period_ms * 1000000};

    while (!attnd_observe32(&watch->leave)) {
        attnd_publish32(&watch->queue->heart, attnd_peek32(&watch->queue->heart) + 1);
        int code = ops->check ? ops->check(watch->backend, report, sizeof(report)) : 0;
        if (code < 0)
            give_up(code, report);
        if (watch->stop_once && attnd_observe32(&watch->queue->retire_tail)) {
            watch->stop_once = 0;
            (void)kill(getpid(), SIGSTOP);
        }
        (void)attnd_futex_wait(&watch->leave, 0, &period);
    }
    return NULL;
}

int attnd_worker_watch_start(struct attnd_worker_watch *watch)
{
    attnd_poke32(&watch->leave, 0);
    return pthread_create(&watch->thread, NULL, watch_main, watch) == 0 ? 0 : -ATTND_E_SYSTEM;
}

void attnd_worker_watch_stop(struct attnd_worker_watch *watch)
{
    attnd_publish32(&watch->leave, 1);
    (void)attnd_futex_wake(&watch->leave, 1);
    (void)pthread_join(watch->thread, NULL);
}

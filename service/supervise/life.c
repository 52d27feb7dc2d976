/*
 * life.c - the worker may die; the service goes on.
 *
 * A worker is one process on the queue segment. When it ends, however it ends, what it wrote there
 * is left to it, the scheduler answers what it had, every mapping is due again, and the next one is
 * started at once: nothing of the KV was its own. Five deaths in ten seconds are taken for a worker
 * that cannot live; from then on there is a growing pause, and operations wait. The pidfd tells of
 * the death; the end of file on the socket only that it is coming, so that one is killed to be
 * sure.
 */
#include "service/supervise/internal.h"

#include "ipc/fdpass.h"
#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "schemas/futex.h"
#include "service/supervise/worker_abi.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define START_TIMEOUT_NS 10000000000u
#define STORM_NS 10000000000u
#define DELAY_NS_MIN 50000000u
#define DELAY_NS_MAX 1000000000u
#define REAP_NS 2000000000u
#define POLL_STEP_NS 1000000u

static void start_next(struct attnd_supervisor *supervisor);

static void close_later(void *context)
{
    close((int)(intptr_t)context);
}

void attnd_supervisor_arm(struct attnd_supervisor *supervisor, uint64_t delay_ns)
{
    const uint64_t when_ns = delay_ns == UINT64_MAX ? delay_ns : attnd_clock_ns() + delay_ns;
    if (supervisor->timer)
        attnd_loop_timer_set(supervisor->service->loop, supervisor->timer, when_ns);
}

static void let_go(struct attnd_supervisor *supervisor)
{
    struct attnd_loop *loop = supervisor->service->loop;
    struct attnd_process *process = &supervisor->process;
    /* The loop may hold the descriptors for a while yet; the worker need not wait for that. */
    if (process->control >= 0)
        shutdown(process->control, SHUT_RDWR);
    if (supervisor->control_watch)
        attnd_loop_unwatch(loop, supervisor->control_watch, close_later,
                           (void *)(intptr_t)process->control);
    else if (process->control >= 0)
        close(process->control);
    if (supervisor->pidfd_watch)
        attnd_loop_unwatch(loop, supervisor->pidfd_watch, close_later,
                           (void *)(intptr_t)process->pidfd);
    else if (process->pidfd >= 0)
        close(process->pidfd);
    attnd_supervisor_arm(supervisor, UINT64_MAX);
    attnd_watchdog_stop(supervisor);
    supervisor->control_watch = supervisor->pidfd_watch = NULL;
    process->control = process->pidfd = -1;
}

static void on_timer(void *context)
{
    struct attnd_supervisor *supervisor = context;
    if (supervisor->state == ATTND_WORKER_DOWN)
        start_next(supervisor);
    else
        attnd_supervisor_kill(supervisor, "it did not come up in 10 s");
}

/* How long to wait before the next start: not at all, unless the last deaths came fast. */
static uint64_t note_death(struct attnd_supervisor *supervisor)
{
    uint64_t now_ns = attnd_clock_ns();
    uint64_t *oldest = &supervisor->deaths_ns[supervisor->deaths % ATTND_DEATHS_KEPT];
    int storm = supervisor->deaths >= ATTND_DEATHS_KEPT && now_ns - *oldest < STORM_NS;
    *oldest = now_ns;
    supervisor->deaths++;
    if (!storm)
        supervisor->delay_ns = 0;
    else if (supervisor->delay_ns == 0)
        supervisor->delay_ns = DELAY_NS_MIN;
    else if (supervisor->delay_ns < DELAY_NS_MAX)
        supervisor->delay_ns *= 2;
    return supervisor->delay_ns < DELAY_NS_MAX ? supervisor->delay_ns : DELAY_NS_MAX;
}

static void come_again(struct attnd_supervisor *supervisor)
{
    uint64_t delay_ns = note_death(supervisor);
    supervisor->state = ATTND_WORKER_DOWN;
    supervisor->restarts++;
    if (delay_ns)
        attnd_supervisor_arm(supervisor, delay_ns);
    else
        start_next(supervisor);
}

static void bury(struct attnd_supervisor *supervisor)
{
    char *text = supervisor->last_end;
    pid_t pid = supervisor->process.pid;
    snprintf(text, sizeof(supervisor->last_end), "does not end");
    (void)attnd_spawn_reap(&supervisor->process, REAP_NS, text, sizeof(supervisor->last_end));
    attnd_log(ATTND_LOG_WARNING, "worker %d: %s", (int)pid, text);
    let_go(supervisor);
    supervisor->condemned = 0;
    supervisor->state = ATTND_WORKER_DOWN;
    attnd_supervisor_inherit(supervisor);
    come_again(supervisor);
}

static void on_death(void *context, uint32_t poll_events)
{
    (void)poll_events;
    bury(context);
}

static void on_control(void *context, uint32_t poll_events)
{
    struct attnd_supervisor *supervisor = context;
    (void)poll_events;
    if (attnd_messages_receive(supervisor))
        return;
    /* A worker that closes the socket is as good as dead: make sure of it. */
    supervisor->condemned = 1;
    attnd_spawn_signal(&supervisor->process, SIGKILL);
    if (!supervisor->pidfd_watch) {
        bury(supervisor);
        return;
    }
    attnd_loop_unwatch(supervisor->service->loop, supervisor->control_watch, close_later,
                       (void *)(intptr_t)supervisor->process.control);
    supervisor->control_watch = NULL;
    supervisor->process.control = -1;
}

static int watch(struct attnd_supervisor *supervisor)
{
    struct attnd_loop *loop = supervisor->service->loop;
    struct attnd_process *process = &supervisor->process;
    supervisor->control_watch =
        attnd_loop_watch_fd(loop, process->control, POLLIN, on_control, supervisor);
    if (process->pidfd >= 0)
        supervisor->pidfd_watch =
            attnd_loop_watch_fd(loop, process->pidfd, POLLIN, on_death, supervisor);
    return supervisor->control_watch && (process->pidfd < 0 || supervisor->pidfd_watch)
               ? 0
               : -ATTND_E_NO_MEMORY;
}

static int renew_queue(struct attnd_supervisor *supervisor, struct attnd_fault *fault)
{
    /* First, so that it is tried again if the other fails; the wait itself begins later. */
    int rc = attnd_supervisor_watch_retires(supervisor, fault);
    return rc < 0 ? rc : attnd_queue_renew(supervisor->service->queue, fault);
}

static int start(struct attnd_supervisor *supervisor, struct attnd_fault *fault)
{
    struct attnd_service *service = supervisor->service;
    int rc = service->queue->abandoned ? renew_queue(supervisor, fault) : 0;
    if (rc < 0)
        return rc;
    rc = attnd_spawn_worker(&service->options, service->queue, &supervisor->process, fault);
    if (rc < 0)
        return rc;
    attnd_crash(ATTND_CRASH_DAEMON_WORKER_SPAWNED);
    if (service->options.inject && strcmp(service->options.inject, "pins") != 0)
        service->options.inject = NULL; /* the next one is to live */
    supervisor->state = ATTND_WORKER_COMING_UP;
    attnd_messages_send_due(supervisor);
    return 0;
}

static void start_next(struct attnd_supervisor *supervisor)
{
    char text[160];
    struct attnd_fault fault = {0};
    int rc = start(supervisor, &fault);
    if (rc == 0 && watch(supervisor) == 0) {
        attnd_supervisor_arm(supervisor, START_TIMEOUT_NS);
        return;
    }
    if (rc == 0) {
        attnd_spawn_signal(&supervisor->process, SIGKILL);
        (void)attnd_spawn_reap(&supervisor->process, REAP_NS, text, sizeof(text));
        let_go(supervisor);
        (void)attnd_fault_set(&fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    }
    attnd_log(ATTND_LOG_ERROR, "no worker can be started: %s",
              attnd_fault_string(&fault, text, sizeof(text)));
    supervisor->state = ATTND_WORKER_DOWN;
    supervisor->delay_ns = DELAY_NS_MAX;
    attnd_supervisor_arm(supervisor, DELAY_NS_MAX);
}

/* ---- the outside ---- */

/* They are there from the beginning: what a worker needs in its place never wants for memory. */
static void end_timers(struct attnd_supervisor *supervisor)
{
    attnd_loop_unwatch(supervisor->service->loop, supervisor->timer, NULL, NULL);
    attnd_loop_unwatch(supervisor->service->loop, supervisor->watchdog, NULL, NULL);
    supervisor->timer = supervisor->watchdog = NULL;
}

int attnd_supervisor_new(struct attnd_service *service,
                         const struct attnd_supervisor_events *events,
                         struct attnd_supervisor **out)
{
    struct attnd_supervisor *supervisor = calloc(1, sizeof(*supervisor));
    if (!supervisor)
        return -ATTND_E_NO_MEMORY;
    supervisor->service = service;
    supervisor->events = events;
    supervisor->process.control = supervisor->process.pidfd = -1;
    supervisor->timer = attnd_loop_timer_new(service->loop, on_timer, supervisor);
    if (!supervisor->timer || attnd_watchdog_new(supervisor) < 0) {
        end_timers(supervisor);
        free(supervisor);
        return -ATTND_E_NO_MEMORY;
    }
    *out = supervisor;
    return 0;
}

void attnd_supervisor_free(struct attnd_supervisor *supervisor)
{
    free(supervisor);
}

/* The loop does not run yet: look at the socket by hand until READY, FAILED or the end. */
static int await_ready(struct attnd_supervisor *supervisor, uint64_t timeout_ns,
                       struct attnd_fault *fault)
{
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    while (supervisor->state != ATTND_WORKER_UP) {
        uint64_t now_ns = attnd_clock_ns();
        if (now_ns >= deadline_ns)
            return attnd_fault_set(fault, -ATTND_E_TIMEOUT, ATTND_F_NONE, 0, 0, 0);
        struct pollfd control = {.fd = supervisor->process.control, .events = POLLIN};
        (void)poll(&control, 1, (int)((deadline_ns - now_ns) / 1000000u) + 1);
        if (!attnd_messages_receive(supervisor) && supervisor->state != ATTND_WORKER_UP) {
            if (supervisor->fault.code == 0) {
                attnd_log(ATTND_LOG_ERROR, "worker %d: left without a word: is it an attnd-worker?",
                          (int)supervisor->process.pid);
                attnd_fault_set(&supervisor->fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, ECHILD, 0);
            }
            *fault = supervisor->fault;
            return fault->code;
        }
    }
    return 0;
}

int attnd_supervisor_start(struct attnd_supervisor *supervisor, uint64_t timeout_ns,
                           struct attnd_fault *fault)
{
    int rc = start(supervisor, fault);
    if (rc < 0)
        return rc;
    rc = await_ready(supervisor, timeout_ns, fault);
    if (rc == 0 && watch(supervisor) < 0)
        rc = attnd_fault_set(fault, -ATTND_E_NO_MEMORY, ATTND_F_NONE, 0, 0, 0);
    if (rc < 0)
        attnd_supervisor_stop(supervisor, 0);
    return rc;
}

/* A worker that says something waits until it is read, and parks after that. What it says of memory
 * does not matter any more: it is as good as let go. */
static void drop_answers(const struct attnd_process *process)
{
    struct attnd_worker_message message;
    int fds[ATTND_FDS_MAX], fds_count = 0;

    while (attnd_fdpass_recv(process->control, &message, sizeof(message), fds, &fds_count) > 0)
        attnd_fdpass_close(fds, fds_count);
}

/* @text: how it ended, if it did. */
static void park(struct attnd_supervisor *supervisor, uint64_t deadline_ns, char *text,
                 size_t text_bytes)
{
    struct attnd_queue_head *head = supervisor->service->queue->head;
    const struct attnd_worker_message message = {.kind = ATTND_WORKER_PARK};
    attnd_publish32(&head->park, ATTND_PARK_ASKED);
    int rc = -ATTND_E_FULL; /* of messages about memory, until the worker has read some */
    while (attnd_observe32(&head->state) != ATTND_WORKER_PARKED && attnd_clock_ns() < deadline_ns) {
        /* The word it sleeps on has not changed: knock until it has looked at park. */
        (void)attnd_futex_wake(&head->command_tail, 1);
        drop_answers(&supervisor->process);
        if (rc == -ATTND_E_FULL)
            rc = attnd_fdpass_send(supervisor->process.control, &message, sizeof(message), NULL, 0);
        if (attnd_spawn_reap(&supervisor->process, POLL_STEP_NS, text, text_bytes))
            return;
    }
}

void attnd_supervisor_stop(struct attnd_supervisor *supervisor, uint64_t timeout_ns)
{
    struct attnd_process *process = &supervisor->process;
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    char text[96] = "does not end";
    pid_t pid = process->pid;

    if (supervisor->state == ATTND_WORKER_UP)
        park(supervisor, deadline_ns, text, sizeof(text));
    supervisor->state = ATTND_WORKER_STOPPED;
    if (pid) {
        shutdown(process->control, SHUT_RDWR); /* asks it to leave */
        uint64_t now_ns = attnd_clock_ns();
        uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        static const int signals[] = {0, SIGTERM, SIGKILL};
        for (int i = 0; i < 3 && process->pid; i++) {
            attnd_spawn_signal(process, signals[i]);
            (void)attnd_spawn_reap(process, left_ns, text, sizeof(text));
            left_ns = signals[i] == 0 ? REAP_NS / 10 : REAP_NS;
        }
        attnd_log(ATTND_LOG_INFO, "worker %d: %s", (int)pid, text);
    }
    let_go(supervisor);
    end_timers(supervisor);
    attnd_supervisor_inherit(supervisor);
}

void attnd_supervisor_kill(struct attnd_supervisor *supervisor, const char *why)
{
    if (!supervisor || supervisor->condemned || !supervisor->process.pid)
        return;
    supervisor->condemned = 1;
    attnd_log(ATTND_LOG_ERROR, "worker %d is killed: %s", (int)supervisor->process.pid, why);
    attnd_spawn_signal(&supervisor->process, SIGKILL);
}

const struct attnd_worker_info *attnd_supervisor_worker(const struct attnd_service *service)
{
    return &service->queue->info;
}

int attnd_supervisor_running(const struct attnd_service *service)
{
    return service->supervisor->state == ATTND_WORKER_UP;
}

const char *attnd_supervisor_state_name(const struct attnd_supervisor *supervisor)
{
    switch (supervisor->state) {
    case ATTND_WORKER_DOWN:
        return "down";
    case ATTND_WORKER_COMING_UP:
        return "starting";
    case ATTND_WORKER_UP:
        return "running";
    case ATTND_WORKER_STOPPED:
        break;
    }
    return "stopped";
}

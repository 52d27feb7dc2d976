/*
 * spawn.c - posix_spawn with exactly the descriptors the worker needs.
 *
 * Everything the daemon opens is close-on-exec, so the child gets what is moved to fixed numbers
 * here and nothing more: no client socket, no memory of sessions it has not been sent. Sources are
 * first duplicated above the fixed numbers, because one of them could itself be such a number.
 * Signals: the daemon blocks those it reads from a signalfd, and the mask would be inherited.
 */
#include "service/supervise/spawn.h"

#include "service/supervise/worker_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define FD_FIRST_FREE 10
#define ARGUMENT_BYTES 64
#define POLL_STEP_NS 1000000u

extern char **environ;

const char *attnd_spawn_beside(const char *name, char *path, size_t path_bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, path_bytes - 1);
    if (length <= 0)
        return name;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = slash ? path_bytes - (size_t)(slash + 1 - path) : 0;
    if (room < strlen(name) + 1)
        return name;
    memcpy(slash + 1, name, strlen(name) + 1);
    return access(path, X_OK) == 0 ? path : name;
}

const char *attnd_spawn_program(const struct attnd_options *options, char *path, size_t path_bytes)
{
    return options->worker_path ? options->worker_path
                                : attnd_spawn_beside("attnd-worker", path, path_bytes);
}

struct inherited {
    int from[4], to[4];
    int count;
};

static int inherit(struct inherited *fds, int fd, int to)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, FD_FIRST_FREE);
    if (copy < 0)
        return -1;
    fds->from[fds->count] = copy;
    fds->to[fds->count++] = to;
    return 0;
}

static int spawn(const char *path, char *const *arguments, const struct inherited *fds, pid_t *pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc)
        return rc;
    rc = posix_spawnattr_init(&attributes);
    if (rc)
        goto free_actions;
    rc = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!rc)
        rc = posix_spawnattr_setsigmask(&attributes, &none);
    if (!rc)
        rc = posix_spawnattr_setsigdefault(&attributes, &all);
    for (int i = 0; !rc && i < fds->count; i++)
        rc = posix_spawn_file_actions_adddup2(&actions, fds->from[i], fds->to[i]);
    if (!rc)
        rc = posix_spawnp(pid, path, &actions, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
free_actions:
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

static int run_worker(const struct attnd_options *options, const struct attnd_queue *queue,
                      const struct inherited *fds, pid_t *pid)
{
    char path[4096], backend[ARGUMENT_BYTES], isa[ARGUMENT_BYTES], threads[ARGUMENT_BYTES];
    char scratch[ARGUMENT_BYTES], parent[ARGUMENT_BYTES], level[ARGUMENT_BYTES];
    char residency[ARGUMENT_BYTES], sms[ARGUMENT_BYTES], inject[ARGUMENT_BYTES];
    char reserve[ARGUMENT_BYTES];
    char device[ARGUMENT_BYTES], modules[sizeof("--modules=") + PATH_MAX];
    snprintf(backend, sizeof(backend), "--backend=%s", options->backend);
    snprintf(threads, sizeof(threads), "--threads=%u", options->threads);
    snprintf(scratch, sizeof(scratch), "--scratch=%" PRIu64, options->scratch_bytes);
    snprintf(parent, sizeof(parent), "--parent=%d", (int)getpid());
    snprintf(level, sizeof(level), "--log-level=%d", (int)options->log_level);
    snprintf(isa, sizeof(isa), "--isa=%s", options->isa ? options->isa : "");
    snprintf(residency, sizeof(residency), "--residency=%s", options->residency);
    snprintf(sms, sizeof(sms), "--sms=%u", options->sms);
    snprintf(reserve, sizeof(reserve), "--reserve=%u", options->reserve);
    snprintf(device, sizeof(device), "--device=%u", options->device);
    snprintf(inject, sizeof(inject), "--inject=%s", options->inject ? options->inject : "");
    char name[] = "attnd-worker", eventfd_doorbell[] = "--retire-eventfd";
    snprintf(modules, sizeof(modules), "--modules=%s", options->modules ? options->modules : "");
    char *arguments[15] = {name,  backend,   threads, scratch, parent,
                           level, residency, sms,     reserve, device};
    int count = 10;
    if (options->isa)
        arguments[count++] = isa;
    if (options->modules)
        arguments[count++] = modules;
    if (options->inject)
        arguments[count++] = inject;
    if (queue->retire_fd >= 0)
        arguments[count++] = eventfd_doorbell;
    const char *program = attnd_spawn_program(options, path, sizeof(path));
    int rc = spawn(program, arguments, fds, pid);
    if (rc)
        attnd_log(ATTND_LOG_ERROR, "--worker %s: %s", program, strerror(rc));
    return rc;
}

/* What runs on one end of a socketpair, @run's arguments aside. Return: 0 or errno. */
static int start_child(struct inherited *fds, int control, struct attnd_process *process,
                       int (*run)(const void *, const struct inherited *, pid_t *),
                       const void *context)
{
    int pair[2], rc = 0;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return errno;
    if (fcntl(pair[0], F_SETFL, O_NONBLOCK) < 0 || inherit(fds, pair[1], control))
        rc = errno;
    if (!rc)
        rc = run(context, fds, &process->pid);
    close(pair[1]);
    if (rc) {
        close(pair[0]);
        process->pid = 0;
        return rc;
    }
    process->signal = 0;
    process->control = pair[0];
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    return 0;
}

struct worker {
    const struct attnd_options *options;
    const struct attnd_queue *queue;
};

static int run_of_worker(const void *context, const struct inherited *fds, pid_t *pid)
{
    const struct worker *worker = context;
    return run_worker(worker->options, worker->queue, fds, pid);
}

int attnd_spawn_worker(const struct attnd_options *options, const struct attnd_queue *queue,
                       struct attnd_process *process, struct attnd_fault *fault)
{
    const struct worker worker = {options, queue};
    struct inherited fds = {.count = 0};
    int rc = 0;

    if (inherit(&fds, queue->rings_fd, ATTND_WORKER_FD_QUEUE) ||
        inherit(&fds, queue->heap_fd, ATTND_WORKER_FD_HEAP) ||
        (queue->retire_fd >= 0 && inherit(&fds, queue->retire_fd, ATTND_WORKER_FD_RETIRE)))
        rc = errno;
    if (!rc)
        rc = start_child(&fds, ATTND_WORKER_FD_CONTROL, process, run_of_worker, &worker);
    for (int i = 0; i < fds.count; i++)
        close(fds.from[i]);
    return rc ? attnd_fault_set(fault, -ATTND_E_SYSTEM, ATTND_F_NONE, 0, rc, 0) : 0;
}

static int run_of_child(const void *context, const struct inherited *fds, pid_t *pid)
{
    char *const *arguments = context;
    char path[4096];
    return spawn(attnd_spawn_beside(arguments[0], path, sizeof(path)), arguments, fds, pid);
}

int attnd_spawn_child(char *const *arguments, int control, struct attnd_process *process)
{
    struct inherited fds = {.count = 0};
    const int rc = start_child(&fds, control, process, run_of_child, arguments);

    for (int i = 0; i < fds.count; i++)
        close(fds.from[i]);
    return rc ? -rc : 0;
}

void attnd_spawn_signal(const struct attnd_process *process, int signal)
{
    /* Not yet reaped, so the number is still its own. */
    if (process->pid)
        (void)kill(process->pid, signal);
}

static const char *exit_name(int code)
{
    switch (code) {
    case ATTND_WORKER_EXIT_PARKED:
        return "it parked and left";
    case ATTND_WORKER_EXIT_USAGE:
        return "bad usage";
    case ATTND_WORKER_EXIT_NO_QUEUE:
        return "no queue segment";
    case ATTND_WORKER_EXIT_NO_BACKEND:
        return "its backend does not start";
    case ATTND_WORKER_EXIT_DEVICE:
        return "its device failed";
    case ATTND_WORKER_EXIT_STUCK:
        return "a tile did not end";
    default:
        return "unknown";
    }
}

static void describe(int status, char *text, size_t text_bytes)
{
    if (WIFSIGNALED(status))
        snprintf(text, text_bytes, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(text, text_bytes, "exited with %d (%s)", WEXITSTATUS(status),
                 exit_name(WEXITSTATUS(status)));
}

int attnd_spawn_reap(struct attnd_process *process, uint64_t timeout_ns, char *text,
                     size_t text_bytes)
{
    uint64_t deadline_ns = attnd_clock_ns() + timeout_ns;
    while (process->pid) {
        int status = 0;
        pid_t pid = waitpid(process->pid, &status, WNOHANG);
        if (pid == process->pid) {
            process->pid = 0;
            process->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
            describe(status, text, text_bytes);
            return 1;
        }
        if (pid < 0 && errno != EINTR) { /* somebody ignores SIGCHLD: it is gone */
            process->pid = 0;
            snprintf(text, text_bytes, "ended");
            return 1;
        }
        uint64_t now_ns = attnd_clock_ns();
        if (now_ns >= deadline_ns)
            return 0;
        uint64_t left_ns = deadline_ns - now_ns;
        const struct timespec step = {.tv_nsec =
                                          (long)(left_ns < POLL_STEP_NS ? left_ns : POLL_STEP_NS)};
        struct pollfd ended = {.fd = process->pidfd, .events = POLLIN};
        (void)ppoll(&ended, process->pidfd >= 0, &step, NULL);
    }
    return 1;
}

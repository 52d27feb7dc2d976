/*
 * main_worker.c - attnd-worker: the process that executes tiles.
 *
 * Started by attnd and by nobody else; it inherits the queue segment and one end of a socketpair.
 * Commands and retires go through the segment, between the daemon and the backend's own threads;
 * this thread passes on the messages about memory (memory.c), and sees to the end: when the
 * daemon asks, when the socket's other end is gone, or on SIGTERM, which the kernel sends if the
 * daemon dies. It then parks, so that no tile is cut in the middle, and leaves.
 */
#include "ipc/fdpass.h"
#include "ipc/shm.h"
#include "schemas/atomics.h"
#include "schemas/crash.h"
#include "service/args/args.h"
#include "service/args/started.h"
#include "service/service.h"
#include "service/supervise/worker_abi.h"
#include "service/worker/copies.h"
#include "service/worker/memory.h"
#include "service/worker/port.h"
#include "service/worker/watch.h"

#include <argp.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tile that takes longer than this to end is stuck. */
#define PARK_TIMEOUT_S 5u

/* ---- options ---- */

struct options {
    const char *backend, *isa, *residency, *modules, *inject;
    uint32_t sms, reserve, device;
    uint32_t threads;
    uint64_t scratch_bytes;
    struct attnd_started started;
    int retire_eventfd;
};

enum key {
    KEY_BACKEND = 256,
    KEY_ISA,
    KEY_THREADS,
    KEY_SCRATCH,
    KEY_DOORBELL,
    KEY_DEVICE,
    KEY_RESIDENCY,
    KEY_SMS,
    KEY_RESERVE,
    KEY_MODULES,
    KEY_INJECT
};

static const struct argp_option option_list[] = {
    {"backend", KEY_BACKEND, "NAME", 0, "auto, cpu or cuda", 0},
    {"isa", KEY_ISA, "NAME", 0,
     "Instruction set: avx512, avx2, portable; sm_90a, sm_80 (default: the best)", 0},
    {"threads", KEY_THREADS, "N", 0, "Tile workers of the cpu backend (0: all processors)", 0},
    {"scratch", KEY_SCRATCH, "BYTES", 0, "Memory for partial results (0: what suits the backend)",
     0},
    {"device", KEY_DEVICE, "N", 0, "cuda: which GPU (default: 0)", 0},
    {"residency", KEY_RESIDENCY, "MODE", 0,
     "cuda: auto, elastic, shared or exclusive (default: auto)", 0},
    {"sms", KEY_SMS, "N", 0, "cuda: SMs of \"shared\" (0: half of them)", 0},
    {"reserve", KEY_RESERVE, "N", 0, "cuda: SMs that \"elastic\" stays on (0: none)", 0},
    {"modules", KEY_MODULES, "DIR", 0, "cuda: load kernels that were not built in from here", 0},
    {"inject", KEY_INJECT, "FAULT", 0,
     "For tests. stop: the process stops after its first run; pin: it is killed by the first "
     "memory of 60 MiB that it would bring in, pins: and so is each worker after it; and of the "
     "cuda backend, stall: runs never end; stuck: a tile waits in vain; fault: an illegal access "
     "on the device",
     0},
    {"retire-eventfd", KEY_DOORBELL, NULL, 0, "Descriptor 6 is an eventfd that wakes attnd", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    switch (key) {
    case KEY_BACKEND:
        options->backend = text;
        return 0;
    case KEY_ISA:
        options->isa = text;
        return 0;
    case KEY_THREADS:
        options->threads = attnd_args_number32(state, "threads", text, 0, UINT32_MAX);
        return 0;
    case KEY_SCRATCH:
        options->scratch_bytes = attnd_args_number(state, "scratch", text, 0, INT64_MAX);
        return 0;
    case KEY_DOORBELL:
        options->retire_eventfd = 1;
        return 0;
    case KEY_DEVICE:
        options->device = attnd_args_number32(state, "device", text, 0, ATTND_DEVICES_MAX - 1);
        return 0;
    case KEY_RESIDENCY:
        options->residency = text;
        return 0;
    case KEY_SMS:
        options->sms = attnd_args_number32(state, "sms", text, 0, UINT32_MAX);
        return 0;
    case KEY_RESERVE:
        options->reserve = attnd_args_number32(state, "reserve", text, 0, UINT32_MAX);
        return 0;
    case KEY_MODULES:
        options->modules = text;
        return 0;
    case KEY_INJECT:
        options->inject = text;
        return 0;
    case ARGP_KEY_INIT:
        attnd_started_init(state, &options->started);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const char doc[] =
    "attnd-worker - executes the tiles of attnd\v"
    "attnd starts this program itself, with its socket as descriptor 3 and the two files of its "
    "queue segment as 4 and 5. There is no reason to start it by hand.\n\n"
    "Exit codes:\n"
    "  0  parked and left\n"
    "  1  bad option or usage\n"
    "  2  no queue segment, or of another version\n"
    "  3  the backend does not start\n"
    "  4  the device failed\n"
    "  5  a tile did not end";

/* ---- the backend ---- */

static enum attnd_injection injection(const char *name)
{
    static const char *const names[] = {[ATTND_INJECT_STALL] = "stall",
                                        [ATTND_INJECT_STUCK] = "stuck",
                                        [ATTND_INJECT_FAULT] = "fault"};
    for (int i = ATTND_INJECT_STALL; i <= ATTND_INJECT_FAULT; i++)
        if (name && strcmp(name, names[i]) == 0)
            return (enum attnd_injection)i;
    return ATTND_INJECT_NONE;
}

static int create(const char *name, const struct attnd_backend_config *config,
                  const struct attnd_backend_ops **ops, struct attnd_backend **backend,
                  struct attnd_fault *fault)
{
    static const struct attnd_backend_ops *const known[] = {&attnd_backend_cuda,
                                                            &attnd_backend_cpu};
    int any = strcmp(name, "auto") == 0;
    int rc = attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_NONE, 0, 0, 0);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (!any && strcmp(name, known[i]->name) != 0)
            continue;
        *ops = known[i];
        rc = known[i]->create(config, backend, fault);
        if (rc == 0 || !any)
            return rc;
    }
    return rc;
}

/* ---- the control socket ---- */

static void say(void *context, const struct attnd_worker_message *message)
{
    (void)context;
    /* Blocks while the daemon is behind. If it is gone, the next receive says so. */
    (void)attnd_fdpass_send(ATTND_WORKER_FD_CONTROL, message, sizeof(*message), NULL, 0);
}

static int wait_for_request(int signals)
{
    struct pollfd sources[] = {{.fd = ATTND_WORKER_FD_CONTROL, .events = POLLIN},
                               {.fd = signals, .events = POLLIN}};
    while (poll(sources, 2, -1) < 0)
        if (errno != EINTR)
            return 0;
    return !(sources[1].revents & POLLIN);
}

/* Returns when it is time to leave. */
static void serve_until_told(struct attnd_worker_memory *memory, struct attnd_worker_copies *copies,
                             int signals)
{
    while (wait_for_request(signals)) {
        struct attnd_worker_message request;
        int fds[ATTND_FDS_MAX], fd_count = 0;
        long got =
            attnd_fdpass_recv(ATTND_WORKER_FD_CONTROL, &request, sizeof(request), fds, &fd_count);
        if (got < 0)
            return;
        int whole = got == (long)sizeof(request);
        if (whole && (request.kind == ATTND_WORKER_MAP || request.kind == ATTND_WORKER_UNMAP)) {
            attnd_worker_memory_serve(memory, &request, fd_count == 1 ? fds[0] : -1);
            fd_count = fd_count == 1 ? 0 : fd_count; /* taken over */
        } else if (whole && request.kind == ATTND_WORKER_COPY) {
            attnd_worker_copies_serve(copies, &request);
        } else if (whole && request.kind == ATTND_WORKER_PARK) {
            (void)memory->ops->park(memory->backend);
        }
        attnd_fdpass_close(fds, fd_count);
    }
}

/* ---- from start to end ---- */

static int read_signals(void)
{
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    /* Ctrl-C reaches the whole process group; when to leave is the daemon's decision. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)pthread_sigmask(SIG_BLOCK, &ending, NULL);
    return signalfd(-1, &ending, SFD_CLOEXEC);
}

static int map_queue(struct attnd_shm *queue)
{
    static const int fds[] = {ATTND_WORKER_FD_QUEUE, ATTND_WORKER_FD_HEAP};
    uint64_t bytes[2];
    for (int i = 0; i < 2; i++) {
        struct stat status;
        if (fstat(fds[i], &status) < 0 || status.st_size <= 0)
            return -ATTND_E_SYSTEM;
        bytes[i] = (uint64_t)status.st_size;
    }
    int rc = attnd_shm_map_joined(fds, bytes, queue, NULL);
    return rc < 0 ? rc : attnd_worker_port_check(queue->address, queue->size_bytes);
}

/* What the process consists of. Large; and memory's thread may be there to the end. */
static struct parts {
    struct attnd_worker_port port;
    struct attnd_worker_memory memory;
    struct attnd_worker_copies copies;
    struct attnd_worker_watch watch;
} parts;

static int start(void)
{
    int rc = parts.memory.ops->start(parts.memory.backend);
    if (rc == 0)
        rc = attnd_worker_memory_start(&parts.memory);
    if (rc < 0)
        return rc;
    rc = attnd_worker_copies_start(&parts.copies);
    if (rc == 0)
        rc = attnd_worker_watch_start(&parts.watch);
    if (rc < 0) {
        attnd_worker_copies_stop(&parts.copies);
        (void)attnd_worker_memory_stop(&parts.memory);
    }
    return rc;
}

static void log_text(const char *text)
{
    attnd_log(ATTND_LOG_INFO, "%s", text);
}

/* Return: 0, or -ATTND_E_* with *@fault: there is no backend. */
static int create_all(const struct options *options, const struct attnd_shm *queue,
                      struct attnd_fault *fault)
{
    const struct attnd_backend_config config = {.queue = queue->address,
                                                .queue_bytes = queue->size_bytes,
                                                .port = &parts.port.port,
                                                .threads = options->threads,
                                                .scratch_bytes = options->scratch_bytes,
                                                .isa = options->isa,
                                                .device = options->device,
                                                .residency = options->residency,
                                                .sms = options->sms,
                                                .reserve = options->reserve,
                                                .injection = injection(options->inject),
                                                .modules = options->modules,
                                                .say = log_text};

    attnd_worker_port_init(&parts.port, queue->address,
                           options->retire_eventfd ? ATTND_WORKER_FD_RETIRE : -1);
    parts.memory.port = &parts.port;
    parts.memory.answer = say;
    parts.memory.dies = options->inject && strncmp(options->inject, "pin", 3) == 0;
    int rc = create(options->backend, &config, &parts.memory.ops, &parts.memory.backend, fault);
    if (rc < 0)
        return rc;
    parts.copies.ops = parts.watch.ops = parts.memory.ops;
    parts.copies.backend = parts.watch.backend = parts.memory.backend;
    parts.copies.answer = say;
    parts.watch.queue = queue->address;
    parts.watch.stop_once = options->inject && strcmp(options->inject, "stop") == 0;
    rc = start();
    if (rc == 0)
        return 0;
    /* The system refuses threads, and nothing else, here. */
    attnd_fault_set(fault, rc, ATTND_F_NONE, 0, rc == -ATTND_E_SYSTEM ? EAGAIN : 0, 0);
    (void)parts.memory.ops->park(parts.memory.backend);
    parts.memory.ops->destroy(parts.memory.backend);
    return rc;
}

static void say_ready(const struct options *options, int rc, const struct attnd_fault *fault)
{
    const struct attnd_worker_message ready = {.kind =
                                                   rc ? ATTND_WORKER_FAILED : ATTND_WORKER_READY,
                                               .code = rc,
                                               .field = fault->field,
                                               .value = fault->value,
                                               .limit = fault->limit};
    if (rc < 0)
        attnd_log(ATTND_LOG_ERROR, "--backend %s%s%s does not start here", options->backend,
                  options->isa ? " --isa " : "", options->isa ? options->isa : "");
    attnd_crash(ATTND_CRASH_WORKER_STARTED);
    say(NULL, &ready);
}

static int work(const struct options *options, const struct attnd_shm *queue, int signals)
{
    struct attnd_fault fault = {0};
    int rc = create_all(options, queue, &fault);

    say_ready(options, rc, &fault);
    if (rc < 0)
        return ATTND_WORKER_EXIT_NO_BACKEND;
    serve_until_told(&parts.memory, &parts.copies, signals);
    attnd_crash(ATTND_CRASH_WORKER_TOLD_TO_LEAVE);
    (void)alarm(PARK_TIMEOUT_S);
    (void)parts.memory.ops->park(parts.memory.backend);
    attnd_worker_copies_stop(&parts.copies);
    /* Before the watch, which may wait for the same driver. What it waits for goes with the
     * process. */
    if (!attnd_worker_memory_stop(&parts.memory))
        _exit(ATTND_WORKER_EXIT_PARKED);
    attnd_worker_watch_stop(&parts.watch);
    parts.memory.ops->destroy(parts.memory.backend);
    return ATTND_WORKER_EXIT_PARKED;
}

int main(int argc, char **argv)
{
    static const struct argp parser = {option_list,           parse_option, NULL, doc,
                                       attnd_started_options, NULL,         NULL};
    struct options options = {.backend = "auto",
                              .residency = "auto",
                              .started = {.program = "attnd-worker", .log_level = ATTND_LOG_INFO}};
    struct attnd_shm queue;

    argp_err_exit_status = ATTND_WORKER_EXIT_USAGE;
    if (argp_parse(&parser, argc, argv, 0, NULL, &options))
        return ATTND_WORKER_EXIT_USAGE;
    attnd_log_level((enum attnd_log_level)options.started.log_level);
    /* The daemon has none, for its own reasons. */
    (void)prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    int signals = read_signals();
    if (signals < 0 || !attnd_started_by_parent(&options.started) || map_queue(&queue) < 0) {
        attnd_log(ATTND_LOG_ERROR, "attnd-worker: no queue segment to work on");
        return ATTND_WORKER_EXIT_NO_QUEUE;
    }
    attnd_crash(ATTND_CRASH_WORKER_QUEUE_MAPPED);
    int code = work(&options, &queue, signals);
    attnd_shm_unmap(&queue);
    return code;
}

/*
 * run.c - start, serve, stop.
 *
 * Steps that often fail come early: the socket first, because a second daemon on it is the
 * commonest mistake, and the worker last. Stopping is the reverse, with one rule: a client that
 * still waits for something learns of the end by its connection closing. That happens only after
 * what ran has been drained and its completions posted.
 *
 * Signals are read by the loop while it runs. Once it does not, they have their default effect
 * again: that is what makes a second one end the daemon at once, and the worker leaves when its
 * socket hangs up.
 */
#include "service/daemon/run.h"

#include "schemas/timeslice.h"
#include "schemas/version.h"
#include "service/base/switch_cost.h"
#include "service/daemon/accept.h"
#include "service/daemon/activate.h"
#include "service/daemon/alive.h"
#include "service/daemon/config.h"
#include "service/daemon/data.h"
#include "service/daemon/listen.h"
#include "service/daemon/notify.h"
#include "service/daemon/scrape.h"
#include "service/objects/ticket.h"
#include "service/peers/peers.h"
#include "service/rpc/call.h"
#include "service/rpc/data_status.h"
#include "service/sched/sched.h"
#include "service/session/session.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define DRAIN_TIMEOUT_NS 6000000000u
#define HEAP_BLOCK_BYTES_MAX (4 << 20)
#define HEAP_KEPT_NS 1000000000u /* when the last one has gone */

struct runner {
    int argc;
    char **argv;
    struct attnd_service *service;
    struct attnd_listen listener;
    sigset_t signals, signals_before;
    int signal_fd;
    struct attnd_alive alive;
    struct attnd_scrape *scrape; /* NULL: no metrics are served */
    struct attnd_watch *signal_watch;
};

static void log_fault(const char *what, const struct attnd_fault *fault)
{
    char text[256];
    attnd_log(ATTND_LOG_ERROR, "%s: %s", what, attnd_fault_string(fault, text, sizeof(text)));
}

/* ---- the heap ---- */

/* Copies of batches and keys come and go with each operation. When the last of many is freed, the
 * heap's end would go back to the kernel at once, some milliseconds of this thread. So the heap
 * keeps what it has until nobody is there. Larger blocks are none of it, and the closer's thread
 * frees them. */
static void keep_heap(void)
{
    /* Nor does it grow by 2 MiB at a time, which the kernel fills with zeros meanwhile. */
    (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
#ifdef M_TRIM_THRESHOLD
    (void)mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX);
    (void)mallopt(M_TRIM_THRESHOLD, -1);
#endif
}

static void give_heap_back(void *context)
{
    const struct attnd_service *service = context;

    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i])
            return;
#ifdef M_TRIM_THRESHOLD
    (void)malloc_trim(0);
#endif
}

/* ---- the loop's hooks ---- */

static int sweep(void *context)
{
    struct attnd_service *service = context;
    int moved = attnd_sched_sweep(service);
    if (service->drained) {
        attnd_client_reap(service, 0);
        attnd_loop_timer_set(service->loop, service->heap_timer, attnd_clock_ns() + HEAP_KEPT_NS);
    }
    return moved;
}

/* ---- signals ---- */

/* For other users the socket must be writable; then the peer's credentials decide alone. */
static mode_t socket_mode(const struct attnd_options *options)
{
    for (uint32_t i = 0; i < options->allow_uids_count; i++)
        if (options->allow_uids[i] != getuid())
            return 0666;
    return 0600;
}

/* Users that are admitted no more are ended, and the file's mode is as at a start. */
static void apply_users(const struct runner *runner)
{
    struct attnd_service *service = runner->service;
    struct attnd_client *client, *next;

    if (attnd_listen_mode(&runner->listener, service->options.socket_path,
                          socket_mode(&service->options)) < 0)
        attnd_log(ATTND_LOG_WARNING, "%s: its mode cannot be changed: %s",
                  service->options.socket_path, strerror(errno));
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        client = service->clients[i];
        if (client && !attnd_accept_allows(&service->options, client->uid))
            attnd_client_kill(client, "its user is admitted no more");
    }
    for (client = service->visitors; client; client = next) {
        next = client->next;
        if (client->allowed && !attnd_accept_allows(&service->options, client->uid))
            attnd_client_end(client);
    }
}

static void reload(const struct runner *runner)
{
    attnd_log(ATTND_LOG_INFO, "SIGHUP: options are read again");
    (void)attnd_notify("RELOADING=1");
    if (runner->argc > 0 &&
        attnd_config_reload(runner->argc, runner->argv, &runner->service->options) == 0)
        apply_users(runner);
    (void)attnd_notify("READY=1");
}

static void on_signal(void *context, uint32_t poll_events)
{
    const struct runner *runner = context;
    struct signalfd_siginfo info;
    (void)poll_events;

    if (read(runner->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGHUP) {
        reload(runner);
        return;
    }
    attnd_log(ATTND_LOG_INFO, "stopping: %s", strsignal((int)info.ssi_signo));
    runner->service->stopping = 1;
    attnd_loop_stop(runner->service->loop);
}

static int block_signals(struct runner *runner)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f counts memfds too: ftruncate() says EFBIG */
    sigemptyset(&runner->signals);
    sigaddset(&runner->signals, SIGTERM);
    sigaddset(&runner->signals, SIGINT);
    sigaddset(&runner->signals, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &runner->signals, &runner->signals_before) < 0)
        return -ATTND_E_SYSTEM;
    runner->signal_fd = signalfd(-1, &runner->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return runner->signal_fd < 0 ? -ATTND_E_SYSTEM : 0;
}

/* Every session holds several descriptors and every memory object one. */
static void raise_fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* All that others wait for passes this thread. */
static void raise_priority(void)
{
    int rc = attnd_timeslice_raise();
    if (rc < 0)
        attnd_log(ATTND_LOG_INFO, "the loop runs at the priority of others: %s", strerror(-rc));
}

/* ---- start ---- */

/* Status shows the socket that is listened on, and not the one that was asked for. */
static void note_handed_over(struct attnd_options *options, const char *path)
{
    for (uint32_t i = 0; i < options->settings_count; i++) {
        struct attnd_setting *setting = &options->settings[i];
        if (strcmp(setting->name, "socket") != 0)
            continue;
        if (strcmp(setting->origin, "default") != 0 && strcmp(options->socket_path, path) != 0)
            attnd_log(ATTND_LOG_WARNING, "the service manager hands over %s: %s is not used", path,
                      options->socket_path);
        setting->origin = attnd_origin_manager;
        snprintf(setting->value, sizeof(setting->value), "%s", path);
    }
    snprintf(options->socket_path, sizeof(options->socket_path), "%s", path);
}

/* Return: 1 a socket was handed over, and is taken; 0 none was; -1 it is a wrong one (logged). */
static int take_handed_over(struct runner *runner)
{
    struct attnd_options *options = &runner->service->options;
    char path[sizeof(options->socket_path)];
    struct attnd_fault fault = {0};
    const int rc = attnd_activate(&runner->listener, path, sizeof(path), &fault);

    if (rc == 1)
        note_handed_over(options, path);
    else if (rc == -ATTND_E_RANGE)
        attnd_log(ATTND_LOG_ERROR, "the service manager hands over %d sockets: one is wanted",
                  (int)fault.value);
    else if (rc == -ATTND_E_INVALID)
        attnd_log(ATTND_LOG_ERROR, "what the service manager hands over is no listening unix "
                                   "socket with a path (ListenSequentialPacket=)");
    else if (rc < 0)
        attnd_log(ATTND_LOG_ERROR, "the service manager's socket: %s", strerror((int)fault.value));
    return rc < 0 ? -1 : rc;
}

static void explain_socket(const struct attnd_options *options, int rc,
                           const struct attnd_fault *fault)
{
    const char *path = options->socket_path;

    if (rc == -ATTND_E_BUSY)
        attnd_log(ATTND_LOG_ERROR, "another service listens on %s", path);
    else if (rc == -ATTND_E_INVALID)
        attnd_log(ATTND_LOG_ERROR, "%s is there and is not a socket: give another --socket", path);
    else if (rc == -ATTND_E_TIMEOUT)
        attnd_log(ATTND_LOG_ERROR, "%s.lock was held for %d s: another start hangs", path,
                  (int)(fault->limit / 1000));
    else if (rc == -ATTND_E_PERMISSION)
        attnd_log(ATTND_LOG_ERROR, "%s.lock belongs to user %d: give another --socket", path,
                  (int)fault->value);
    else
        attnd_log(ATTND_LOG_ERROR, "no socket can be made at %s: %s%s", path,
                  strerror((int)fault->value),
                  options->socket_default ? " (give --socket, or set XDG_RUNTIME_DIR)" : "");
}

static enum attnd_exit open_socket(struct runner *runner)
{
    struct attnd_service *service = runner->service;
    struct attnd_options *options = &service->options;
    struct attnd_fault fault = {0};
    int rc = take_handed_over(runner);

    if (rc < 0)
        return ATTND_EXIT_SOCKET;
    if (rc == 0) {
        if (options->socket_default && attnd_listen_directory(options->socket_path) < 0)
            rc = attnd_fault_set(&fault, -ATTND_E_SYSTEM, ATTND_F_SOCKET, 0, errno, 0);
        else
            rc = attnd_listen_open(options->socket_path, socket_mode(options), &runner->listener,
                                   &fault);
        if (rc < 0) {
            explain_socket(options, rc, &fault);
            return ATTND_EXIT_SOCKET;
        }
    }
    service->listen_fd = runner->listener.fd;
    return ATTND_EXIT_OK;
}

static enum attnd_exit make_loop(struct runner *runner)
{
    struct attnd_service *service = runner->service;
    struct attnd_loop_hooks hooks = {.context = service,
                                     .sweep = sweep,
                                     .asleep = attnd_sched_asleep,
                                     .expecting = attnd_sched_expecting};
    struct attnd_fault fault = {0};

    if (attnd_loop_new(service->options.loop, attnd_spin_budget_ns(), &hooks, &service->loop,
                       &fault) < 0) {
        log_fault("no event loop", &fault);
        return ATTND_EXIT_INTERNAL;
    }
    if (attnd_loop_reason(service->loop)[0])
        attnd_log(ATTND_LOG_WARNING, "the loop is %s: %s", attnd_loop_name(service->loop),
                  attnd_loop_reason(service->loop));
    service->heap_timer = attnd_loop_timer_new(service->loop, give_heap_back, service);
    runner->signal_watch =
        attnd_loop_watch_fd(service->loop, runner->signal_fd, POLLIN, on_signal, runner);
    return runner->signal_watch && service->heap_timer ? ATTND_EXIT_OK : ATTND_EXIT_INTERNAL;
}

static enum attnd_exit start_data(struct attnd_service *service)
{
    struct attnd_fault fault = {0};
    struct attnd_memory *wake;

    if (attnd_data_start(service, &fault) < 0) {
        log_fault("the service does not start", &fault);
        return ATTND_EXIT_WORKER;
    }
    /* Now: while a worker's kernels take it in, nobody's runs begin. */
    if (attnd_memory_wake(service, &wake, &fault) < 0 && fault.code != -ATTND_E_UNSUPPORTED)
        log_fault("no wake word until an engine asks for it", &fault);
    return ATTND_EXIT_OK;
}

static int asks_for_gpu(const struct attnd_options *options)
{
    const char *residency = options->residency;
    return options->device || options->sms || options->reserve ||
           (residency && strcmp(residency, "auto") != 0);
}

static void announce_reserve(const struct attnd_service *service,
                             const struct attnd_data_status *data)
{
    const uint32_t reserve = service->options.reserve;

    if (strcmp(data->residency, "elastic") != 0)
        attnd_log(ATTND_LOG_WARNING, "--reserve %u is of residency elastic, not of %s", reserve,
                  data->residency);
    else if (!data->mps)
        attnd_log(ATTND_LOG_WARNING, "--reserve %u: without MPS no SM can be reserved", reserve);
    else if (reserve >= data->sms_resident)
        attnd_log(ATTND_LOG_WARNING, "--reserve %u: a worker has %u SMs at most; none is reserved",
                  reserve, data->sms_resident);
    else
        attnd_log(ATTND_LOG_INFO,
                  "%u SMs stay reserved: a kernel of an engine that wants all SMs at once waits "
                  "for the rest of them twice",
                  reserve);
}

static void announce(const struct attnd_service *service)
{
    struct attnd_data_status data;
    char turns[ATTND_SWITCH_COST_BYTES];

    attnd_data_status(service, &data);
    attnd_log(ATTND_LOG_INFO, "attnd %s: socket %s, loop %s, backend %s, isa %s, %u tile workers",
              ATTND_VERSION, service->options.socket_path, attnd_loop_name(service->loop),
              data.backend, data.isa, data.tile_workers);
    if (data.residency)
        attnd_log(ATTND_LOG_INFO, "GPU %u, residency %s on %u of %u SMs, %s",
                  service->options.device, data.residency, data.sms_resident, data.sms,
                  data.mps ? "under MPS" : "without MPS");
    if (data.residency && service->options.reserve)
        announce_reserve(service, &data);
    if (data.rates_source)
        attnd_log(ATTND_LOG_INFO,
                  "rates of plans, %s: a tile worker %u"
                  " GFLOP/s, %u GB/s of the memory, %u "
                  "of the L2; all %u GB/s of the memory",
                  data.rates_source, data.rates.worker_gflops, data.rates.worker_gbps,
                  data.rates.worker_l2_gbps, data.rates.memory_gbps);
    if (data.residency && !data.mps)
        attnd_log(ATTND_LOG_WARNING, "without MPS %s (nvidia-cuda-mps-control -d)",
                  attnd_switch_cost_text(data.switch_cost_us, turns, sizeof(turns)));
    else if (!data.residency && asks_for_gpu(&service->options))
        attnd_log(ATTND_LOG_WARNING,
                  "--device, --residency, --reserve and --sms are of the cuda backend, not of %s",
                  data.backend);
    if (service->options.modules)
        attnd_log(ATTND_LOG_INFO, "--modules: kernels in %s run with the rights of the worker%s",
                  service->options.modules,
                  service->options.allow_uids_count > 1 ? ", for all users that are admitted" : "");
    for (uint32_t i = 0; i < service->options.peers_count; i++)
        attnd_log(ATTND_LOG_INFO, "peer %s: pages of tickets of the service at %s are brought here",
                  service->options.peers[i].name, service->options.peers[i].address);
    attnd_log(ATTND_LOG_INFO, "prefix trees begin empty: what an earlier service had is gone");
    if (attnd_notify("READY=1") < 0)
        attnd_log(ATTND_LOG_WARNING, "the service manager cannot be notified: %s", strerror(errno));
}

static enum attnd_exit start(struct runner *runner)
{
    struct attnd_service *service = runner->service;

    raise_fd_limit();
    raise_priority();
    if (getrandom(service->identity, sizeof(service->identity), 0) !=
        (ssize_t)sizeof(service->identity)) {
        attnd_log(ATTND_LOG_ERROR, "no random bytes: %s", strerror(errno));
        return ATTND_EXIT_INTERNAL;
    }
    if (block_signals(runner) < 0 || attnd_control_new(service) < 0) {
        attnd_log(ATTND_LOG_ERROR, "out of memory or descriptors");
        return ATTND_EXIT_INTERNAL;
    }
    enum attnd_exit code = open_socket(runner);
    if (code == ATTND_EXIT_OK)
        code = make_loop(runner);
    if (code == ATTND_EXIT_OK)
        code = start_data(service);
    if (code == ATTND_EXIT_WORKER || code == ATTND_EXIT_INTERNAL)
        attnd_log(ATTND_LOG_ERROR, "attnctl doctor says what this machine lacks");
    if (code != ATTND_EXIT_OK)
        return code;
    if (service->options.metrics[0] &&
        attnd_scrape_start(service, service->options.metrics, socket_mode(&service->options),
                           &runner->scrape) < 0)
        return ATTND_EXIT_SOCKET;
    if (attnd_alive_start(&runner->alive, service) < 0)
        return ATTND_EXIT_INTERNAL;
    attnd_accept_start(service);
    if (!service->listen_watch)
        return ATTND_EXIT_INTERNAL;
    announce(service);
    return ATTND_EXIT_OK;
}

/* ---- stop ---- */

static void end_clients(struct attnd_service *service)
{
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i])
            attnd_client_end(service->clients[i]);
    while (service->visitors) {
        attnd_client_end(service->visitors);
        attnd_work_finish(&service->works); /* the end of one that has no turn any more */
    }
    attnd_ticket_free_all(service);
}

/* From now on connecting is refused; or, where the service manager listens on, it waits for the
 * next start. Harmless twice. */
static void close_door(const struct runner *runner)
{
    const struct attnd_service *service = runner->service;

    if (service->listen_fd < 0 || runner->listener.inherited)
        return;
    attnd_listen_unlink(&runner->listener, service->options.socket_path);
    shutdown(service->listen_fd, SHUT_RDWR);
}

/* Undoes whatever start() got done. */
static void stop(struct runner *runner)
{
    struct attnd_service *service = runner->service;

    close_door(runner);
    if (service->loop) {
        attnd_alive_stop(&runner->alive);
        attnd_scrape_stop(runner->scrape);
        attnd_accept_stop(service);
        attnd_loop_unwatch(service->loop, runner->signal_watch, NULL, NULL);
        attnd_loop_unwatch(service->loop, service->heap_timer, NULL, NULL);
    }
    if (service->supervisor || service->queue) {
        attnd_data_stop(service, DRAIN_TIMEOUT_NS);
        attnd_peers_end(service);
        end_clients(service);
    }
    attnd_loop_free(service->loop);
    service->loop = NULL;
    attnd_scrape_free(runner->scrape);
    attnd_client_reap(service, 1);
    attnd_data_free(service);
    attnd_control_free(service);
    attnd_monitor_free(&service->monitor);
    if (service->listen_fd >= 0)
        close(service->listen_fd);
    if (runner->signal_fd >= 0)
        close(runner->signal_fd);
}

enum attnd_exit attnd_service_run(const struct attnd_options *options, int argc, char **argv)
{
    struct attnd_service *service = calloc(1, sizeof(*service));
    struct runner runner = {.argc = argc, .argv = argv, .service = service, .signal_fd = -1};
    struct attnd_fault fault = {0};

    keep_heap();
    attnd_log_level(options->log_level);
    if (!service) {
        attnd_log(ATTND_LOG_ERROR, "out of memory");
        return ATTND_EXIT_INTERNAL;
    }
    service->options = *options;
    service->listen_fd = -1;
    service->start_ns = attnd_clock_ns();

    enum attnd_exit code = start(&runner);
    if (code == ATTND_EXIT_OK) {
        if (attnd_loop_run(service->loop, &fault) < 0) {
            log_fault("the event loop failed", &fault);
            code = ATTND_EXIT_INTERNAL;
        }
        (void)attnd_notify("STOPPING=1");
        close_door(&runner);     /* before a second signal can end us */
        signal(SIGHUP, SIG_IGN); /* one that comes late ends nothing either */
        sigprocmask(SIG_SETMASK, &runner.signals_before, NULL);
    }
    stop(&runner);
    if (code == ATTND_EXIT_OK)
        attnd_log(ATTND_LOG_INFO, "stopped");
    free(service);
    return code;
}

/*
 * doctor_gpu.c - driver, GPU and MPS.
 *
 * The driver is loaded by name and initialised outside MPS, as the daemon does it (device.c): no
 * context is made, and looking disturbs nobody. Whether MPS runs is seen by its control socket;
 * what it allows, it is asked by its own program. What doing without it costs, a running service
 * tells, which has measured it.
 */
#include "service/ctl/doctor.h"

#include "service/base/switch_cost.h"
#include "service/ctl/attnctl.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define MPS_DIRECTORY "/tmp/nvidia-mps" /* the control daemon's default */
#define MPS_CLIENTS_MAX 48              /* contexts on one GPU, of all its clients */
#define MPS_ANSWER_MS 2000
#define DRIVER_WANTED 13000 /* the runtime that is linked in */
#define CAPABILITY_LEAST 80 /* of a GPU that kernels are compiled for */
#define CAPABILITY_HOPPER 90

extern char **environ;

/* ---- driver and device ---- */

/* From cuda.h. */
enum {
    CU_CAPABILITY_MAJOR = 75,
    CU_CAPABILITY_MINOR = 76,
    CU_COMPUTE_MODE = 20,
    CU_EXPORTS_POSIX_FD = 103,
    CU_COMPUTE_DEFAULT = 0,
    CU_COMPUTE_PROHIBITED = 2
};

static int load(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol)); /* ISO C has no such conversion */
    return symbol != NULL;
}

static void look_at_device(void *library, struct attnd_doctor_gpu *gpu)
{
    int (*get_count)(int *), (*get_name)(char *, int, int), (*get)(int *, int, int);
    int major = 0, minor = 0;

    if (!load(library, "cuDeviceGetCount", &get_count) ||
        !load(library, "cuDeviceGetName", &get_name) ||
        !load(library, "cuDeviceGetAttribute", &get) || get_count(&gpu->count) != 0 ||
        gpu->count == 0)
        return;
    (void)get_name(gpu->name, sizeof(gpu->name), 0);
    (void)get(&major, CU_CAPABILITY_MAJOR, 0);
    (void)get(&minor, CU_CAPABILITY_MINOR, 0);
    (void)get(&gpu->compute_mode, CU_COMPUTE_MODE, 0);
    (void)get(&gpu->exports, CU_EXPORTS_POSIX_FD, 0);
    gpu->capability = 10 * major + minor;
}

/* In this process MPS is not there from here on. */
static void look_at_driver(struct attnd_doctor_gpu *gpu)
{
    int (*init)(unsigned), (*version)(int *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    *gpu = (struct attnd_doctor_gpu){0};
    if (!library || !load(library, "cuInit", &init) ||
        !load(library, "cuDriverGetVersion", &version))
        return;
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
    gpu->error = init(0);
    if (gpu->error != 0 || version(&gpu->driver) != 0) {
        gpu->driver = -1;
        return;
    }
    look_at_device(library, gpu);
}

void attnd_doctor_driver(const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding)
{
    if (gpu->driver == 0)
        attnd_doctor_say(finding, "driver", ATTND_HEALTH_WARN,
                         "for a GPU: install NVIDIA's driver; in a container, give it the GPU "
                         "(--gpus all)",
                         "no CUDA driver: only --backend cpu works here");
    else if (gpu->driver < 0)
        attnd_doctor_say(finding, "driver", ATTND_HEALTH_FAIL,
                         "nvidia-smi says more; driver and kernel module must be of one version",
                         "the CUDA driver does not initialise: error %d", gpu->error);
    else if (gpu->driver < DRIVER_WANTED)
        attnd_doctor_say(finding, "driver", ATTND_HEALTH_FAIL, "a driver of branch 580 or newer",
                         "it is of CUDA %d.%d, the worker is built with %d.%d", gpu->driver / 1000,
                         gpu->driver % 1000 / 10, DRIVER_WANTED / 1000, DRIVER_WANTED % 1000 / 10);
    else
        attnd_doctor_say(finding, "driver", ATTND_HEALTH_OK, "", "CUDA %d.%d", gpu->driver / 1000,
                         gpu->driver % 1000 / 10);
}

void attnd_doctor_device(const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding)
{
    char several[64] = "";

    if (gpu->count > 1)
        snprintf(several, sizeof(several), "; the first of %d, unless attnd --device says another",
                 gpu->count);
    if (gpu->driver <= 0 || gpu->count == 0)
        attnd_doctor_say(finding, "gpu", ATTND_HEALTH_WARN,
                         gpu->driver > 0 ? "CUDA_VISIBLE_DEVICES may hide it" : "",
                         "none: only --backend cpu works here");
    else if (gpu->capability < CAPABILITY_LEAST)
        attnd_doctor_say(finding, "gpu", ATTND_HEALTH_FAIL,
                         "a GPU of compute capability 8.0 or newer, or --backend cpu",
                         "%s: compute capability %d.%d", gpu->name, gpu->capability / 10,
                         gpu->capability % 10);
    else if (gpu->compute_mode == CU_COMPUTE_PROHIBITED)
        attnd_doctor_say(finding, "gpu", ATTND_HEALTH_FAIL, "nvidia-smi -c DEFAULT",
                         "%s: its compute mode prohibits contexts", gpu->name);
    else if (!gpu->exports)
        attnd_doctor_say(finding, "gpu", ATTND_HEALTH_FAIL, "",
                         "%s: its memory cannot be exported as a descriptor", gpu->name);
    else if (gpu->capability != CAPABILITY_HOPPER)
        attnd_doctor_say(
            finding, "gpu", ATTND_HEALTH_WARN,
            "a build with make CUDA_ARCHS=\"90a 80\" has them; H100 and H200 have faster "
            "ones",
            "%s: compute capability %d.%d has the kernels of sm_80, with prefill by "
            "mma.sync and latents without tensor cores%s",
            gpu->name, gpu->capability / 10, gpu->capability % 10, several);
    else
        attnd_doctor_say(finding, "gpu", ATTND_HEALTH_OK, "", "%s%s", gpu->name, several);
}

/* ---- MPS ---- */

/* Is somebody behind the control socket? Its type is not ours to know: a wrong one is an answer. */
static int answers(const char *directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", directory);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || length >= (int)sizeof(address.sun_path)) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    int rc = connect(fd, (const struct sockaddr *)&address, sizeof(address));
    int error = rc < 0 ? errno : 0;
    close(fd);
    switch (error) {
    case 0:
    case EPROTOTYPE:
    case EAGAIN:
        return 1;
    case EACCES:
        return -2;
    case ECONNREFUSED:
        return -1;
    default:
        return 0;
    }
}

static void read_answer(int fd, char *answer, size_t bytes)
{
    struct pollfd readable = {.fd = fd, .events = POLLIN};
    size_t length = 0;
    ssize_t got = 1;
    while (got > 0 && length + 1 < bytes && poll(&readable, 1, MPS_ANSWER_MS) > 0) {
        got = read(fd, answer + length, bytes - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    answer[length] = '\0';
}

/* One command to the control daemon, by its own program. "": it did not answer. */
static void ask_control(const char *command, char *answer, size_t bytes)
{
    char name[] = "nvidia-cuda-mps-control";
    char *arguments[] = {name, NULL};
    posix_spawn_file_actions_t actions;
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    pid_t pid = 0;

    answer[0] = '\0';
    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 &&
        posix_spawn_file_actions_init(&actions) == 0) {
        if (posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO) != 0 ||
            posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO) != 0 ||
            posix_spawnp(&pid, name, &actions, NULL, arguments, environ) != 0)
            pid = 0;
        posix_spawn_file_actions_destroy(&actions);
    }
    close(in[0]);
    close(out[1]);
    if (pid > 0 && write(in[1], command, strlen(command)) < 0)
        answer[0] = '\0';
    close(in[1]);
    if (pid > 0) {
        read_answer(out[0], answer, bytes);
        (void)kill(pid, SIGKILL); /* it is done, or will never be */
        (void)waitpid(pid, NULL, 0);
    }
    close(out[0]);
}

/* Clients of all servers: a line each, behind a heading. */
static int count_clients(void)
{
    char servers[256], command[64], clients[8192];
    int count = 0;

    ask_control("get_server_list\n", servers, sizeof(servers));
    char *rest = servers;
    const char *line;
    while ((line = strtok_r(rest, "\n", &rest))) {
        int server = (int)strtol(line, NULL, 10);
        if (server <= 0)
            continue;
        snprintf(command, sizeof(command), "get_client_list %d\n", server);
        ask_control(command, clients, sizeof(clients));
        for (const char *c = clients; *c; c++)
            count += *c == '\n';
    }
    return count;
}

void attnd_doctor_mps_look(const char *directory, struct attnd_doctor_mps *mps)
{
    char path[sizeof(mps->directory) + 16], answer[64];
    struct stat status;

    *mps = (struct attnd_doctor_mps){.clients = -1, .switch_cost_us = ATTND_SWITCH_COST_UNTOLD};
    snprintf(mps->directory, sizeof(mps->directory), "%s", directory);
    snprintf(path, sizeof(path), "%s/control", mps->directory);
    mps->state = answers(mps->directory);
    if (stat(path, &status) == 0)
        mps->owner = status.st_uid;
    if (mps->state != 1)
        return;
    ask_control("get_default_active_thread_percentage\n", answer, sizeof(answer));
    mps->percentage = (int)strtol(answer, NULL, 10);
    if (answer[0])
        mps->clients = count_clients();
}

static void judge_running(const struct attnd_doctor_mps *mps, uid_t uid,
                          struct attnd_finding *finding)
{
    char clients[32] = "";
    if (mps->clients >= 0)
        snprintf(clients, sizeof(clients), ", %d clients", mps->clients);
    if (mps->clients >= MPS_CLIENTS_MAX)
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_FAIL, "end some of them",
                         "runs (%s), but has all the clients it can%s", mps->directory, clients);
    else if (mps->percentage > 0 && mps->percentage < 100)
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_WARN,
                         "echo set_default_active_thread_percentage 100 | nvidia-cuda-mps-control, "
                         "and limit engines by CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                         "runs (%s), but limits every client to %d %% of the SMs, the worker too",
                         mps->directory, mps->percentage);
    else if (mps->owner != uid && mps->owner != 0)
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_WARN,
                         "run service, engines and MPS as one user, or start it with "
                         "nvidia-cuda-mps-control -d -multiuser-server",
                         "runs (%s) for user %d: it serves one user at a time", mps->directory,
                         (int)mps->owner);
    else
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_OK, "",
                         "runs (%s%s): residency is elastic; a fault of one client ends all",
                         mps->directory, clients);
}

void attnd_doctor_mps(const struct attnd_doctor_mps *mps, uid_t uid,
                      const struct attnd_doctor_gpu *gpu, struct attnd_finding *finding)
{
    char turns[ATTND_SWITCH_COST_BYTES];

    if (mps->state == 1)
        judge_running(mps, uid, finding);
    else if (mps->state == -2)
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_WARN,
                         "run as its user, or start it with -multiuser-server",
                         "the control daemon in %s is not for this user", mps->directory);
    else if (gpu->driver <= 0 || gpu->count == 0)
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_OK, "", "not there, nor a GPU to share");
    else
        attnd_doctor_say(finding, "mps", ATTND_HEALTH_WARN,
                         "nvidia-cuda-mps-control -d, with the same CUDA_MPS_PIPE_DIRECTORY for "
                         "service and engines",
                         "does not run%s: %s",
                         mps->state == -1 ? " (a dead one left its socket)" : "",
                         attnd_switch_cost_text(mps->switch_cost_us, turns, sizeof(turns)));
}

/* What the service at @socket_path has measured when it started; nothing is measured here. */
static int64_t ask_switch_cost(const char *socket_path)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__Reply *reply;
    int64_t switch_cost_us = ATTND_SWITCH_COST_UNTOLD;

    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    if (attnctl_ask(socket_path, &request, &reply) < 0)
        return switch_cost_us;
    /* One under MPS or without a GPU has nothing to tell. */
    if (reply->code == 0 && reply->result_case == ATTND__REPLY__RESULT_STATUS &&
        reply->status->has_mps && !reply->status->mps)
        switch_cost_us = reply->status->switch_cost_us; /* 0: absent */
    attnd__reply__free_unpacked(reply, NULL);
    return switch_cost_us;
}

uint32_t attnd_doctor_gpus(const char *socket_path, struct attnd_finding *findings)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct attnd_doctor_gpu gpu;
    struct attnd_doctor_mps mps;

    attnd_doctor_mps_look(directory ? directory : MPS_DIRECTORY,
                          &mps); /* before its name is lost */
    look_at_driver(&gpu);
    if (mps.state != 1 && gpu.count > 0)
        mps.switch_cost_us = ask_switch_cost(socket_path);
    attnd_doctor_driver(&gpu, &findings[0]);
    attnd_doctor_device(&gpu, &findings[1]);
    attnd_doctor_mps(&mps, getuid(), &gpu, &findings[2]);
    return 3;
}

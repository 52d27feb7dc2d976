/* private_service.c - daemons and some children, in static storage, because a signal handler
 * must be able to end them: everything bench_private_stop() does is allowed in one. */
#include "bench/support/private_service.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define START_TIMEOUT_MS 10000
#define STOP_TIMEOUT_MS 10000
#define CHILDREN_MAX 64

static char directory[64], socket_path[BENCH_PRIVATE_MAX][96];
static volatile sig_atomic_t daemons[BENCH_PRIVATE_MAX], children[CHILDREN_MAX];

static const int fatal_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE};

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

/* ---- ending ---- */

static void end_process(pid_t pid, int signal_number)
{
    if (pid <= 0 || kill(pid, signal_number))
        return;
    for (int waited_ms = 0; waited_ms < STOP_TIMEOUT_MS; waited_ms += 5) {
        pid_t done = waitpid(pid, NULL, WNOHANG);

        if (done == pid || (done < 0 && errno != EINTR))
            return;
        sleep_ms(5);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

void bench_private_stop(void)
{
    for (int i = 0; i < CHILDREN_MAX; i++) {
        pid_t child = (pid_t)children[i];
        children[i] = 0;
        end_process(child, SIGKILL); /* the service cleans up behind a dead client */
    }
    for (int i = BENCH_PRIVATE_MAX - 1; i >= 0; i--) { /* the last may use the first */
        pid_t pid = (pid_t)daemons[i];
        daemons[i] = 0;
        end_process(pid, SIGTERM);
        if (directory[0])
            unlink(socket_path[i]);
    }
    if (directory[0])
        rmdir(directory);
    directory[0] = 0;
}

static void on_fatal_signal(int number)
{
    int saved = errno;

    bench_private_stop();
    signal(number, SIG_DFL);
    raise(number);
    errno = saved;
}

void bench_private_guard(void)
{
    struct sigaction action = {.sa_handler = on_fatal_signal};

    /* One at a time: a second Ctrl-C waits until the first has cleaned up. */
    sigfillset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
        sigaction(fatal_signals[i], &action, NULL);
}

void bench_private_leave(void)
{
    memset((void *)daemons, 0, sizeof(daemons));
    memset((void *)children, 0, sizeof(children));
    directory[0] = 0; /* the paths of the sockets stay good */
    for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
        signal(fatal_signals[i], SIG_DFL);
    /* Ctrl-C reaches the whole group; the parent ends its children. */
    signal(SIGINT, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

void bench_private_child(pid_t pid)
{
    for (int i = 0; i < CHILDREN_MAX; i++)
        if (!children[i]) {
            children[i] = pid;
            return;
        }
}

void bench_private_gone(pid_t pid)
{
    for (int i = 0; i < BENCH_PRIVATE_MAX; i++)
        if (daemons[i] == pid)
            daemons[i] = 0;
    for (int i = 0; i < CHILDREN_MAX; i++)
        if (children[i] == pid)
            children[i] = 0;
}

pid_t bench_private_pid(void)
{
    return (pid_t)daemons[0];
}

int bench_private_is_daemon(pid_t pid)
{
    for (int i = 0; i < BENCH_PRIVATE_MAX; i++)
        if (pid > 0 && daemons[i] == pid)
            return 1;
    return 0;
}

/* ---- starting ---- */

/* The folder of this program, without a slash at its end. */
static int own_folder(char *path, size_t path_bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, path_bytes - 1);
    char *slash;

    if (length <= 0)
        return -1;
    path[length] = 0;
    slash = strrchr(path, '/');
    if (!slash)
        return -1;
    *slash = 0;
    return 0;
}

static void find_program(char *path, size_t path_bytes)
{
    static const char *const places[] = {"/attnd", "/../attnd"};
    char folder[PATH_MAX];

    if (!own_folder(folder, sizeof(folder)))
        for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
            int length = snprintf(path, path_bytes, "%s%s", folder, places[i]);
            if (length > 0 && (size_t)length < path_bytes && !access(path, X_OK))
                return;
        }
    snprintf(path, path_bytes, "attnd");
}

static int make_directory(void)
{
    const char *root = getenv("XDG_RUNTIME_DIR");

    /* A socket's path has 107 bytes: a long root would not fit. */
    if (!root || strlen(root) > 32 || access(root, W_OK))
        root = "/tmp";
    snprintf(directory, sizeof(directory), "%s/attnd-XXXXXX", root);
    if (!mkdtemp(directory)) {
        directory[0] = 0;
        return -1;
    }
    for (int i = 0; i < BENCH_PRIVATE_MAX; i++)
        snprintf(socket_path[i], sizeof(socket_path[i]), i ? "%s/attnd-%d.sock" : "%s/attnd.sock",
                 directory, i + 1);
    return 0;
}

static void exec_daemon(const char *program, const char *path, const char *const *arguments,
                        pid_t parent)
{
    const char *argv[32] = {program, "--socket", path};
    int count = 3;

    for (; arguments && *arguments && count < 31; arguments++)
        argv[count++] = *arguments;
    for (size_t i = 0; i < sizeof(fatal_signals) / sizeof(fatal_signals[0]); i++)
        signal(fatal_signals[i], SIG_DFL);
    /* Its own group: Ctrl-C must not take it away from engines that still run. */
    if (setpgid(0, 0) || prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent)
        _exit(127);
    execvp(program, (char *const *)argv);
    _exit(127);
}

static int answers(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), result;

    if (fd < 0)
        return 0;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    result = connect(fd, (struct sockaddr *)&address, sizeof(address));
    close(fd);
    return !result;
}

static int await_socket(int index, const char *program, char *why, size_t why_bytes)
{
    for (int waited_ms = 0; waited_ms < START_TIMEOUT_MS; waited_ms += 5) {
        int status;
        pid_t pid = (pid_t)daemons[index];

        if (answers(socket_path[index]))
            return 0;
        if (waitpid(pid, &status, WNOHANG) == pid) {
            daemons[index] = 0;
            snprintf(why, why_bytes, "%s %s %d%s", program,
                     WIFEXITED(status) ? "ended with status" : "was ended by signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
                     WIFEXITED(status) && WEXITSTATUS(status) == 127 ? ": is it built?" : "");
            return -1;
        }
        sleep_ms(5);
    }
    snprintf(why, why_bytes, "%s does not listen after %d s", program, START_TIMEOUT_MS / 1000);
    return -1;
}

const char *bench_private_start(const char *attnd_path, const char *const *arguments, char *why,
                                size_t why_bytes)
{
    char found[PATH_MAX + 16];
    pid_t parent = getpid(), pid;
    int index = 0;

    if (!attnd_path) {
        find_program(found, sizeof(found));
        attnd_path = found;
    }
    bench_private_guard();
    if (!directory[0] && make_directory()) {
        snprintf(why, why_bytes, "no directory for the socket: %s", strerror(errno));
        return NULL;
    }
    while (index < BENCH_PRIVATE_MAX && daemons[index])
        index++;
    if (index == BENCH_PRIVATE_MAX) {
        snprintf(why, why_bytes, "more than %d services", BENCH_PRIVATE_MAX);
        bench_private_stop();
        return NULL;
    }
    pid = fork();
    if (pid < 0) {
        snprintf(why, why_bytes, "fork: %s", strerror(errno));
        bench_private_stop();
        return NULL;
    }
    if (!pid)
        exec_daemon(attnd_path, socket_path[index], arguments, parent);
    daemons[index] = pid;
    if (await_socket(index, attnd_path, why, why_bytes)) {
        bench_private_stop();
        return NULL;
    }
    return socket_path[index];
}

/*
 * ending.c - who closed the connection: an engine that goes on, or the kernel for one that ended?
 *
 * A process that exits closes its descriptors before its pidfd tells of the end. By then it has a
 * flag in /proc that says that it is exiting. How it ended Linux 6.15 tells the holder of a pidfd;
 * before that, /proc tells until the parent has asked.
 */
#include "service/session/ending.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#define PF_EXITING 0x4u

/* linux/pidfd.h of 6.15; older headers lack it. */
struct pidfd_info {
    uint64_t mask, cgroup;
    uint32_t numbers[11];
    int32_t exit_code;
    uint32_t spare[4];
};
#define PIDFD_INFO_EXIT (UINT64_C(1) << 3)
#define PIDFD_GET_INFO _IOC(_IOC_READ | _IOC_WRITE, 0xff, 11, 64)

enum life { LIVES, EXITING, ENDED };

/* Return: 1 @wait_status is known. */
static int ask_pidfd(int pidfd, int *wait_status)
{
    struct pidfd_info info = {.mask = PIDFD_INFO_EXIT};

    if (pidfd < 0 || ioctl(pidfd, PIDFD_GET_INFO, &info) < 0 || !(info.mask & PIDFD_INFO_EXIT))
        return 0;
    *wait_status = info.exit_code;
    return 1;
}

/* Return: 1 @flags is known, and *@wait_status, as far as this user may know it. */
static int ask_proc(pid_t pid, unsigned *flags, int *wait_status)
{
    char path[40], text[1024];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    (void)fclose(file);
    char *rest = strrchr(text, ')'); /* the name before it may hold anything */
    int field = 3, known = 0;
    for (const char *word; rest && (word = strtok_r(NULL, " )", &rest)); field++) {
        if (field == 9)
            known = sscanf(word, "%u", flags) == 1;
        else if (field == 52)
            (void)sscanf(word, "%d", wait_status);
    }
    return known;
}

static enum life look(int pidfd, pid_t pid, int *wait_status)
{
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    unsigned flags = 0;
    const int dead = pidfd >= 0 && poll(&end, 1, 0) > 0;

    if (dead && ask_pidfd(pidfd, wait_status))
        return ENDED;
    *wait_status = -1;
    /* Without a pidfd the number may be another process' by now; with one it is not reaped yet. */
    if (pidfd < 0 || !pid || !ask_proc(pid, &flags, wait_status))
        return dead ? ENDED : LIVES;
    if (!dead && !(flags & PF_EXITING))
        return LIVES;
    return dead ? ENDED : EXITING;
}

int attnd_ending_goes_on(int pidfd, pid_t pid)
{
    int wait_status;
    return look(pidfd, pid, &wait_status) == EXITING;
}

const char *attnd_ending_text(int pidfd, pid_t pid, char *text, size_t text_bytes)
{
    int wait_status = -1;
    const enum life life = look(pidfd, pid, &wait_status);

    if (life == LIVES)
        snprintf(text, text_bytes, "closed");
    else if (wait_status > 0 && WIFSIGNALED(wait_status))
        snprintf(text, text_bytes, "was killed by signal %d", WTERMSIG(wait_status));
    else if (wait_status > 0 || (life == ENDED && wait_status == 0)) /* else 0 may mean unknown */
        snprintf(text, text_bytes, "exited with status %d", WEXITSTATUS(wait_status));
    else
        snprintf(text, text_bytes, "its process ended");
    return text;
}

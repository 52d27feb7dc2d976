/* armed.c - a crash point that waits until a test wants it. */
#include "tests/support/harness/armed.h"

#include "tests/support/harness/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

static char path[160];

const char *armed_new(const char *what)
{
    snprintf(path, sizeof(path), "/tmp/attnd-%s-armed-%d", what, (int)getpid());
    (void)unlink(path);
    return path;
}

void armed_now(void)
{
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    CHECK(fd >= 0);
    close(fd);
}

int armed_fired(void *context)
{
    (void)context;
    return access(path, F_OK) < 0;
}

/*
 * fail_allocation.c - a library that lets one allocation of the daemon fail: preloaded into
 * `attnd`, and deaf in every other program.
 *
 * The file $ATTND_FAIL_CONTROL is shared with the test, which says how many allocations from now on
 * succeed before one does not. glibc's own functions do the work, so nothing has to be looked up
 * before the first call.
 */
#include "tests/support/preload/fail_allocation.h"

#include "schemas/atomics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static struct fail_control *control;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ATTND_FAIL_CONTROL");
    const int fd = path && strcmp(program_invocation_short_name, "attnd") == 0
                       ? open(path, O_RDWR | O_CLOEXEC)
                       : -1;
    if (fd < 0)
        return;
    void *at = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        control = at;
}

/* Return: 1 this one fails. */
static int fails(void)
{
    if (!control || !attnd_observe32(&control->armed))
        return 0;
    if (attnd_arrive32(&control->calls, 1) + 1 != attnd_observe32(&control->fail_at))
        return 0;
    attnd_publish32(&control->failed, 1);
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

/* modules.c - see modules.h. */
#include "persistent/modules.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether only root and this user could have written what @file says it is. NULL: yes; else why
 * not. @above: it only leads to the directory. */
static const char *distrust(const struct stat *file, int above)
{
    if (file->st_uid != 0 && file->st_uid != geteuid())
        return "belongs to another user";
    if (file->st_mode & (S_IWGRP | S_IWOTH) && !(above && file->st_mode & S_ISVTX))
        return "may be written by others";
    return NULL;
}

static int fail(char *why, size_t why_bytes, const char *path, const char *what)
{
    snprintf(why, why_bytes, "%s: %s", path, what);
    return -1;
}

/* One step of the path, from @at; @at is closed. */
static int step(int at, const char *name, const char *path, int above, char *why, size_t why_bytes)
{
    struct stat file;
    const int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;

    if (at != AT_FDCWD)
        close(at);
    if (fd < 0)
        return fail(why, why_bytes, path, strerror(error));
    const char *what = fstat(fd, &file) < 0 ? strerror(errno) : distrust(&file, above);
    if (!what)
        return fd;
    close(fd);
    return fail(why, why_bytes, path, what);
}

int attnd_modules_open(const char *path, char *why, size_t why_bytes)
{
    char names[PATH_MAX], so_far[PATH_MAX] = "/", *rest = names;

    if (path[0] != '/' || strlen(path) >= sizeof(names))
        return fail(why, why_bytes, path, "is no absolute path");
    snprintf(names, sizeof(names), "%s", path);
    int fd = step(AT_FDCWD, "/", "/", 1, why, why_bytes);
    for (char *name; fd >= 0 && (name = strsep(&rest, "/"));) {
        const size_t length = strlen(so_far);
        if (!*name)
            continue;
        snprintf(so_far + length, sizeof(so_far) - length, "%s%s", length > 1 ? "/" : "", name);
        const int above = rest && rest[strspn(rest, "/")];
        fd = step(fd, name, so_far, above, why, why_bytes);
    }
    if (fd < 0)
        return fd;
    const int directory = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int error = errno;
    close(fd);
    return directory < 0 ? fail(why, why_bytes, path, strerror(error)) : directory;
}

static int read_all(int fd, size_t bytes, char **out)
{
    size_t have = 0;
    ssize_t got = 1;

    *out = calloc(1, bytes + 1);
    while (*out && have < bytes && (got = read(fd, *out + have, bytes - have)) > 0)
        have += (size_t)got;
    if (*out && have == bytes)
        return 0;
    free(*out);
    *out = NULL;
    return -1;
}

int attnd_modules_read(int directory, const char *name, void **bytes, char *why, size_t why_bytes)
{
    struct stat file;
    char *content = NULL;
    const char *what = NULL;
    const int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? 0 : fail(why, why_bytes, name, strerror(errno));
    if (fstat(fd, &file) < 0)
        what = strerror(errno);
    else if (!S_ISREG(file.st_mode))
        what = "is no file";
    else if (file.st_size > ATTND_MODULE_BYTES_MAX)
        what = "is too large";
    else
        what = distrust(&file, 0);
    if (!what && read_all(fd, (size_t)file.st_size, &content) < 0)
        what = "cannot be read as a whole";
    close(fd);
    *bytes = content;
    return what ? fail(why, why_bytes, name, what) : 1;
}

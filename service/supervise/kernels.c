/*
 * kernels.c - the files of kernels that lie beside the worker program.
 *
 * They are of one build with the worker, so they are looked for where it was found: in `kernels`
 * beside it, as in a build folder, or where they are installed, in `../lib/attnd/kernels`.
 */
#include "service/supervise/kernels.h"

#include "schemas/kernels.h"
#include "service/supervise/spawn.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const places[] = {"kernels", "../lib/attnd/kernels"};
/* Below that, of a worker on a GPU that is no Hopper. */
#define PORTABLE "portable"
#define PLACES (sizeof(places) / sizeof(places[0]))

/* The folder of PATH that has a program @name, into @folder. Return: 1; 0 none has. */
static int find_on_path(const char *name, char *folder, size_t folder_bytes)
{
    const char *from = getenv("PATH");

    while (from && *from) {
        const size_t length = strcspn(from, ":");
        char program[PATH_MAX];
        const int used =
            snprintf(program, sizeof(program), "%.*s/%s", (int)length, length ? from : ".", name);
        if (used > 0 && (size_t)used < sizeof(program) && access(program, X_OK) == 0) {
            snprintf(folder, folder_bytes, "%.*s", length ? (int)length : 1, length ? from : ".");
            return 1;
        }
        from += length + (from[length] == ':');
    }
    return 0;
}

/* The folder of the worker program. Return: 1; 0 there is no such program. */
static int worker_folder(const struct attnd_options *options, char *folder, size_t folder_bytes)
{
    char path[PATH_MAX];
    const char *program = attnd_spawn_program(options, path, sizeof(path));
    const char *slash = strrchr(program, '/');

    if (!slash)
        return find_on_path(program, folder, folder_bytes);
    snprintf(folder, folder_bytes, "%.*s", slash == program ? 1 : (int)(slash - program), program);
    return 1;
}

/* Return: a regular file that has something in it; -1. */
static int open_at(const char *folder, const char *place, const char *below, const char *name,
                   uint64_t *size_bytes)
{
    char path[PATH_MAX];
    struct stat status;
    const int used = snprintf(path, sizeof(path), "%s/%s/%s/%s.fatbin", folder, place, below, name);

    if (used < 0 || (size_t)used >= sizeof(path))
        return -1;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if (fstat(fd, &status) < 0 || !S_ISREG(status.st_mode) || status.st_size == 0) {
        close(fd);
        return -1;
    }
    *size_bytes = (uint64_t)status.st_size;
    return fd;
}

static int open_named(const struct attnd_options *options, const char *isa, const char *name,
                      uint64_t *size_bytes)
{
    const char *below = strcmp(isa, "sm_80") == 0 ? PORTABLE : ".";
    char folder[PATH_MAX];
    int fd = -1;

    if (!worker_folder(options, folder, sizeof(folder)))
        return -1;
    for (size_t i = 0; i < PLACES && fd < 0; i++)
        fd = open_at(folder, places[i], below, name, size_bytes);
    return fd;
}

int attnd_kernel_file_open(const struct attnd_options *options, const char *isa, uint32_t kernel,
                           int *fd, uint64_t *size_bytes, struct attnd_fault *fault)
{
    char text[ATTND_KERNEL_NAME_BYTES];

    if (kernel > ATTND_KERNELS)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KERNEL, 0, kernel, ATTND_KERNELS);
    *fd = open_named(options, isa,
                     kernel == ATTND_KERNELS ? "engine" : attnd_kernel_name(kernel, text),
                     size_bytes);
    const uint32_t varied = attnd_kernel_varied(kernel);
    if (*fd < 0 && varied < ATTND_KERNELS)
        *fd = open_named(options, isa, attnd_kernel_name(varied, text), size_bytes);
    return *fd < 0 ? attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_BACKEND, 0, kernel, 0)
                   : 0;
}

int attnd_kernel_files_are_there(const struct attnd_options *options, const char *isa)
{
    uint64_t size_bytes;
    const int fd = open_named(options, isa, "engine", &size_bytes);

    if (fd < 0)
        return 0;
    close(fd);
    return 1;
}

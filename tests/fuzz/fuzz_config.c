/*
 * fuzz_config.c - any bytes as the daemon's configuration file.
 *
 * A file with an error in it is refused whole: nothing of it is in force. One that is taken is
 * within the limits of its options.
 */
#include "service/base/log.h"
#include "service/daemon/config.h"
#include "service/daemon/scrape.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void attnd_log_level(enum attnd_log_level level)
{
    (void)level;
}

void attnd_log(enum attnd_log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

/* In scrape.c, with all that it needs; fuzz_scrape looks into that. */
int attnd_scrape_where(const char *where, struct sockaddr_in *loopback)
{
    (void)loopback;
    return strchr(where, '/') ? 0 : -ATTND_E_INVALID;
}

static void write_all(int fd, const void *data, size_t bytes)
{
    fuzz_require(ftruncate(fd, 0) == 0 && pwrite(fd, data, bytes, 0) == (ssize_t)bytes, "a file");
}

/* What a file may change while the service runs. */
static int same(const struct attnd_options *a, const struct attnd_options *b)
{
    return a->memory_max_bytes == b->memory_max_bytes &&
           a->host_memory_max_bytes == b->host_memory_max_bytes &&
           a->device_memory_max_bytes == b->device_memory_max_bytes &&
           a->log_level == b->log_level && a->allow_uids_count == b->allow_uids_count &&
           memcmp(a->allow_uids, b->allow_uids, sizeof(a->allow_uids)) == 0;
}

/* Options as the file says, or as they were. Return: as attnd_config_reload(). */
static int reload(int fd, struct attnd_options *options)
{
    char path[32];
    char *argv[] = {"attnd", "--config", path, NULL};

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return attnd_config_reload(3, argv, options);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct attnd_options options, before;
    static int fd = -1;

    if (!data)
        return 0;
    if (fd < 0)
        fd = memfd_create("config", MFD_CLOEXEC);
    attnd_options_default(&options);
    fuzz_require(attnd_options_finish(&options) == 0, "there are defaults");
    attnd_options_describe(&options);
    before = options;
    write_all(fd, data, bytes);
    if (reload(fd, &options) < 0)
        fuzz_require(same(&options, &before), "nothing of a wrong file is in force");
    else
        fuzz_require(options.allow_uids_count <=
                         sizeof(options.allow_uids) / sizeof(options.allow_uids[0]),
                     "as many users as there is room for");
    return 0;
}

/*
 * machine.c - how much memory there is to give out.
 *
 * In a container the machine's memory is not ours: the control group's limit kills first. A group
 * is bound by its own limit and by those of all above it, so every folder from ours to the root is
 * looked at. Inside a container the upper ones are often not visible, and its own lies at the root
 * although its name says otherwise: a file that is not there means nothing.
 */
#include "service/daemon/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* "max" and what cannot be read are no limit. */
static uint64_t read_limit(const char *path)
{
    uint64_t bytes = UINT64_MAX;
    FILE *file = fopen(path, "re");

    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &bytes) != 1)
        bytes = UINT64_MAX;
    fclose(file);
    return bytes;
}

/* @group: "/a/b", cut shorter and shorter. */
static uint64_t smallest_limit(const char *root, char *group, const char *name)
{
    uint64_t bytes = UINT64_MAX;

    for (;;) {
        char path[4096];
        if (snprintf(path, sizeof(path), "%s%s/%s", root, group, name) < (int)sizeof(path)) {
            uint64_t here_bytes = read_limit(path);
            bytes = here_bytes < bytes ? here_bytes : bytes;
        }
        char *last = strrchr(group, '/');
        if (!last)
            return bytes;
        *last = '\0';
    }
}

/* "4:memory:/a/b" (version 1), or "0::/a/b" (version 2). */
static uint64_t line_limit(char *line, const char *root)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    char memory[4096];

    if (!group)
        return UINT64_MAX;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    if (controllers[1] == '\0')
        return smallest_limit(root, group, "memory.max");
    if (strcmp(controllers + 1, "memory") != 0)
        return UINT64_MAX;
    if (snprintf(memory, sizeof(memory), "%s/memory", root) >= (int)sizeof(memory))
        return UINT64_MAX;
    return smallest_limit(memory, group, "memory.limit_in_bytes");
}

uint64_t attnd_machine_group_bytes(const char *groups, const char *root)
{
    char line[4096];
    uint64_t bytes = UINT64_MAX;
    FILE *file = fopen(groups, "re");

    while (file && fgets(line, sizeof(line), file)) {
        uint64_t line_bytes = line_limit(line, root);
        bytes = line_bytes < bytes ? line_bytes : bytes;
    }
    if (file)
        fclose(file);
    return bytes;
}

uint64_t attnd_machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t bytes =
        pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : INT64_MAX;
    uint64_t group_bytes = attnd_machine_group_bytes("/proc/self/cgroup", "/sys/fs/cgroup");

    return group_bytes < bytes ? group_bytes : bytes;
}

/* Code, stacks and tables of both processes. */
#define PROGRAMS_BYTES (UINT64_C(64) << 20)

struct attnd_budgets attnd_machine_budgets(uint64_t machine_bytes, uint64_t own_bytes,
                                           uint64_t cache_bytes)
{
    const uint64_t least_bytes = machine_bytes / 4;

    own_bytes += PROGRAMS_BYTES;
    uint64_t left_bytes =
        own_bytes < machine_bytes - least_bytes ? machine_bytes - own_bytes : least_bytes;
    left_bytes = cache_bytes < left_bytes ? left_bytes - cache_bytes : 0;
    return (struct attnd_budgets){.host_bytes = left_bytes / 4 * 3,
                                  .session_bytes = left_bytes / 2,
                                  .daemon_bytes = left_bytes / 8};
}

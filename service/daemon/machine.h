/*
 * machine.h - how much memory there is to give out.
 */
#ifndef ATTND_SERVICE_DAEMON_MACHINE_H
#define ATTND_SERVICE_DAEMON_MACHINE_H

#include <stdint.h>

/** attnd_machine_memory_bytes() - the machine's, or what our control groups leave of it. */
uint64_t attnd_machine_memory_bytes(void);

/**
 * attnd_machine_group_bytes() - the smallest limit of the control groups a process is in
 * @groups: a file as /proc/self/cgroup
 * @root:   where control groups are mounted, /sys/fs/cgroup
 * Return: UINT64_MAX if no limit can be found.
 */
uint64_t attnd_machine_group_bytes(const char *groups, const char *root);

#endif

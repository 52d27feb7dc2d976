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

/* What is given out where nobody says how much. */
struct attnd_budgets {
    uint64_t host_bytes;    /* made and registered by all sessions */
    uint64_t session_bytes; /* of it, of one session */
    uint64_t daemon_bytes;  /* the daemon's own, for all sessions */
};

/**
 * attnd_machine_budgets() - budgets that fit into @machine_bytes together with what is there anyway
 * @own_bytes:   heap and scratch
 * @cache_bytes: host memory below prefix trees
 * All of it together is no more than the machine has, if a quarter of it is left beside @own_bytes.
 */
struct attnd_budgets attnd_machine_budgets(uint64_t machine_bytes, uint64_t own_bytes,
                                           uint64_t cache_bytes);

#endif

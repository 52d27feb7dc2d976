/*
 * maps.h - memory of pools that this process has mapped, a mapping for all tickets of one pool.
 *
 * The pages of a mapping are found again when the next ticket of the pool comes. So one that
 * nothing uses is kept a little while.
 */
#ifndef ATTND_SERVICE_MOVER_MAPS_H
#define ATTND_SERVICE_MOVER_MAPS_H

#include <stdint.h>

struct attnd_map {
    struct attnd_map *next;
    uint64_t device, inode;
    uint8_t *address;
    uint64_t size_bytes;
    int writes;
    uint32_t refs;
    uint64_t unused_ns; /* since when refs is 0 */
};

/** attnd_map_take() - @fd: stays the caller's; a sealed memfd of at least @size_bytes
 * Return: 0 and a reference; as attnd_shm_check_import(); -ATTND_E_SYSTEM; -ATTND_E_NO_MEMORY. */
int attnd_map_take(int fd, uint64_t size_bytes, int writes, struct attnd_map **out);
void attnd_map_drop(struct attnd_map *map);
/** attnd_maps_tidy() - unmap what nothing has used for a while. Return: when it is to be called
 * again, CLOCK_MONOTONIC; UINT64_MAX: nothing is unused. */
uint64_t attnd_maps_tidy(uint64_t now_ns);
/** attnd_maps_count() - for tests. */
uint32_t attnd_maps_count(void);

#endif

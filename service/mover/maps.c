/*
 * maps.c - see maps.h. A mapping is found again by its file: the inode of a memfd is its own for as
 * long as it is mapped.
 */
#include "service/mover/maps.h"

#include "ipc/shm.h"
#include "schemas/clock.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define UNUSED_NS UINT64_C(1000000000)

static struct attnd_map *maps; /* of the process's one thread */

static struct attnd_map *find(const struct stat *status, uint64_t size_bytes, int writes)
{
    for (struct attnd_map *map = maps; map; map = map->next)
        if (map->inode == status->st_ino && map->device == status->st_dev &&
            map->size_bytes == size_bytes && map->writes == writes)
            return map;
    return NULL;
}

int attnd_map_take(int fd, uint64_t size_bytes, int writes, struct attnd_map **out)
{
    struct attnd_fault fault = {0};
    struct stat status;
    int rc = attnd_shm_check_import(fd, size_bytes, &fault);

    if (rc < 0)
        return rc;
    if (fstat(fd, &status) < 0)
        return -ATTND_E_SYSTEM;
    struct attnd_map *map = find(&status, size_bytes, writes);
    if (!map) {
        const int protection = writes ? PROT_READ | PROT_WRITE : PROT_READ;
        void *address = mmap(NULL, size_bytes, protection, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED)
            return -ATTND_E_SYSTEM;
        map = calloc(1, sizeof(*map));
        if (!map) {
            (void)munmap(address, size_bytes);
            return -ATTND_E_NO_MEMORY;
        }
        *map = (struct attnd_map){.next = maps,
                                  .device = status.st_dev,
                                  .inode = status.st_ino,
                                  .address = address,
                                  .size_bytes = size_bytes,
                                  .writes = writes};
        maps = map;
    }
    map->refs++;
    *out = map;
    return 0;
}

void attnd_map_drop(struct attnd_map *map)
{
    if (--map->refs == 0)
        map->unused_ns = attnd_clock_ns();
}

uint64_t attnd_maps_tidy(uint64_t now_ns)
{
    uint64_t again_ns = UINT64_MAX;

    for (struct attnd_map **link = &maps; *link;) {
        struct attnd_map *map = *link;
        if (map->refs == 0 && now_ns - map->unused_ns >= UNUSED_NS) {
            *link = map->next;
            (void)munmap(map->address, map->size_bytes);
            free(map);
            continue;
        }
        if (map->refs == 0 && map->unused_ns + UNUSED_NS < again_ns)
            again_ns = map->unused_ns + UNUSED_NS;
        link = &map->next;
    }
    return again_ns;
}

uint32_t attnd_maps_count(void)
{
    uint32_t count = 0;

    for (const struct attnd_map *map = maps; map; map = map->next)
        count++;
    return count;
}

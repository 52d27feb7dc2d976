/*
 * cascade.h - requests whose page lists begin alike, so that the beginning is read once.
 */
#ifndef ATTND_BENCH_REPLAY_CASCADE_H
#define ATTND_BENCH_REPLAY_CASCADE_H

#include <stdint.h>

#define REPLAY_CASCADE_LISTS_MAX 1024u

/* The leading pages a request could read at a shared level. */
struct replay_cascade_list {
    const int32_t *pages;
    uint32_t count; /* only those that every query row of it sees whole */
    uint32_t tag;   /* the caller's; carried along */
};

struct replay_cascade_group {
    uint32_t begin, end; /* of the lists, as ordered */
    uint32_t pages;      /* leading pages all of them share; 0: nothing to read together */
};

/**
 * replay_cascade_group() - cut requests into groups so that the fewest pages are read
 * @lists:  [count], count <= REPLAY_CASCADE_LISTS_MAX; reordered so that groups are contiguous
 * @groups: [count]
 * Every list is in exactly one group, groups are in order. A page list of a group is read once and
 * not once a member: grouping members begin..end saves (end - begin - 1) x pages.
 * Return: the number of groups.
 */
uint32_t replay_cascade_group(struct replay_cascade_list *lists, uint32_t count,
                              struct replay_cascade_group *groups);

#endif

/*
 * intervals.h - which bytes of a memory belong to pools: a set of intervals that may overlap each
 * other, asked whether any of them overlaps another.
 */
#ifndef ATTND_SERVICE_OBJECTS_INTERVALS_H
#define ATTND_SERVICE_OBJECTS_INTERVALS_H

#include <stdint.h>

/* Embedded in whatever owns it; [begin, end) is set by the caller and not empty. */
struct attnd_interval {
    uint64_t begin, end;
    uint64_t last; /* the largest end below it, its own included */
    uint64_t rank; /* random: the tree is a heap of them, and so it is flat */
    struct attnd_interval *left, *right;
};

/** attnd_intervals_merge() - sort @intervals, and join those that overlap. Return: how many
 * are left, in front. */
uint32_t attnd_intervals_merge(struct attnd_interval *intervals, uint32_t count);

/** attnd_intervals_add(), _remove() - in and out of the set at *@root, NULL when it is empty. A
 * number of steps that grows as the logarithm of what is there. */
void attnd_intervals_add(struct attnd_interval **root, struct attnd_interval *interval);
void attnd_intervals_remove(struct attnd_interval **root, struct attnd_interval *interval);

/** attnd_intervals_find() - one that overlaps [@begin, @end); NULL: none does. As many steps. */
const struct attnd_interval *attnd_intervals_find(const struct attnd_interval *root, uint64_t begin,
                                                  uint64_t end);

#endif

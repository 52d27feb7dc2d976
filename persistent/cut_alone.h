/*
 * cut_alone.h - what the threads of a team do together, where there is one: on a host. A GPU's are
 * in cuda/engine/team.cuh.
 */
#ifndef ATTND_PERSISTENT_CUT_ALONE_H
#define ATTND_PERSISTENT_CUT_ALONE_H

#include "persistent/cut.h"

/* Threads are in groups, whose lanes go together. */
struct attnd_team {
    uint32_t thread, threads;
    uint32_t group, groups;
    uint32_t lane, lanes;
};

static inline struct attnd_team attnd_team_alone(void)
{
    return (struct attnd_team){.threads = 1, .groups = 1, .lanes = 1};
}

static inline void attnd_team_sync(const struct attnd_team *team)
{
    (void)team;
}

/** attnd_team_scan() - each of @count words becomes the sum of those in front of it, and the one
 * behind them the sum of all. All threads, behind a sync; it ends with one. */
static inline void attnd_team_scan(const struct attnd_team *team, uint32_t *words, uint32_t count)
{
    uint32_t sum = 0;

    (void)team;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t here = words[i];
        words[i] = sum;
        sum += here;
    }
    words[count] = sum;
}

/** attnd_team_seen() - what all threads have seen, in place of a thread's own. */
static inline void attnd_team_seen(const struct attnd_team *team, struct attnd_cut_seen *seen)
{
    (void)team;
    (void)seen;
}

/** attnd_team_largest() - of all threads. */
static inline uint32_t attnd_team_largest(const struct attnd_team *team, uint32_t value)
{
    (void)team;
    return value;
}

/** attnd_team_total() - the sum over all threads. */
static inline uint32_t attnd_team_total(const struct attnd_team *team, uint32_t value)
{
    (void)team;
    return value;
}

/** attnd_group_longest() - of the group's lanes; and the sum of *@count. */
static inline float attnd_group_longest(const struct attnd_team *team, float longest,
                                        uint32_t *count)
{
    (void)team;
    (void)count;
    return longest;
}

static inline void attnd_group_sync(const struct attnd_team *team)
{
    (void)team;
}

/** attnd_group_add() - another lane may add to the same word. */
static inline void attnd_group_add(uint32_t *word, uint32_t value)
{
    *word += value;
}

/** attnd_group_list() - when the last item ends, if items begin longest first: @ns of each class,
 * in units of @unit_ns for all workers, and how many @items for one KV head. */
static inline float attnd_group_list(const struct attnd_team *team,
                                     const struct attnd_cut_shape *shape, const uint32_t *ns,
                                     const uint32_t *items, float unit_ns, float longest_ns)
{
    const float heads = (float)shape->heads_kv, workers = (float)shape->workers;
    float before = 0, list = 0;
    uint32_t begun = 0;

    (void)team;
    for (uint32_t c = ATTND_CUT_CLASSES; c-- > 0;) {
        before += (float)ns[c] * unit_ns * heads / workers;
        begun += items[c] * shape->heads_kv;
        const float begin = begun > shape->workers ? before : 0; /* else each has one at once */
        const float end = begin + longest_ns * (float)(c + 1) / ATTND_CUT_CLASSES;
        list = items[c] && end > list ? end : list;
    }
    return list;
}

/** attnd_team_order() - classes of @count tiles become their places, in the order of classes and
 * those of a class as they come. @counts: [ATTND_CUT_COUNTS]. Behind a sync; it ends with one. */
static inline void attnd_team_order(const struct attnd_team *team, uint32_t *order, uint32_t count,
                                    uint32_t *counts, uint32_t classes)
{
    (void)team;
    for (uint32_t c = 0; c < classes; c++)
        counts[c] = 0;
    for (uint32_t t = 0; t < count; t++)
        counts[order[t]]++;
    attnd_team_scan(team, counts, classes);
    for (uint32_t t = 0; t < count; t++)
        order[t] = counts[order[t]]++;
}

#endif

/*
 * timeslice.h - how a thread asks the scheduler for processor time; glibc has no wrapper for it.
 *
 * A thread that wakes up takes the processor from one that computes only if its slice is the
 * shorter of the two, and if it has had no more than its share (Linux 6.12). Else it waits for the
 * next tick, which is 4 ms away where HZ is 250. So threads that others wait for ask for brief
 * slices and a larger share, and threads that have computed for a while for long slices and a
 * smaller one. Older kernels ignore the slice.
 */
#ifndef ATTND_SCHEMAS_TIMESLICE_H
#define ATTND_SCHEMAS_TIMESLICE_H

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ATTND_TIMESLICE_BRIEF_NS 100000u /* the least that Linux grants */
#define ATTND_TIMESLICE_LONG_NS 3000000u /* some times what other programs have */
#define ATTND_TIMESLICE_RAISED_NICE (-5) /* of the daemon's loop, where it is allowed */
#define ATTND_TIMESLICE_TILES_NICE 3     /* what tiles are nicer than others */
#define ATTND_TIMESLICE_PLANS_NICE 10    /* and large plans, which tiles do not wait for */
#define ATTND_NICE_MAX 19

/* struct sched_attr of the kernel, which some headers have and others do not. */
struct attnd_timeslice {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
};

#define ATTND_TIMESLICE_RESET_ON_FORK 1u

/** attnd_timeslice_get() - of thread @tid, 0: the caller. Return: 0 or -errno. */
static inline int attnd_timeslice_get(pid_t tid, struct attnd_timeslice *now)
{
    return syscall(SYS_sched_getattr, tid, now, sizeof(*now), 0) < 0 ? -errno : 0;
}

/** attnd_timeslice_is_brief() - does the caller have brief slices? Older kernels tell of none. */
static inline int attnd_timeslice_is_brief(void)
{
    struct attnd_timeslice now = {0};
    return attnd_timeslice_get(0, &now) == 0 && now.runtime_ns == ATTND_TIMESLICE_BRIEF_NS;
}

/**
 * attnd_timeslice_offer() - the processor to a thread that is due before the caller
 *
 * A thread that woke up beside one whose slices are as brief waits for the next tick otherwise,
 * however short those are.
 */
static inline void attnd_timeslice_offer(void)
{
    (void)sched_yield();
}

static inline int attnd_timeslice_give(pid_t tid, struct attnd_timeslice *wanted)
{
    wanted->size = sizeof(*wanted);
    return syscall(SYS_sched_setattr, tid, wanted, 0) < 0 ? -errno : 0;
}

static inline int attnd_timeslice_put(struct attnd_timeslice *wanted)
{
    return attnd_timeslice_give(0, wanted);
}

/** attnd_timeslice_lend() - the caller's share to thread @tid, for which it waits from now on. Only
 * where the caller may raise others: elsewhere @tid goes on as it did. */
static inline void attnd_timeslice_lend(pid_t tid)
{
    struct attnd_timeslice own = {0};
    if (attnd_timeslice_get(0, &own) == 0)
        (void)attnd_timeslice_give(tid, &own);
}

/**
 * attnd_timeslice_ask() - slices of @slice_ns for the calling thread from now on
 * @nicer: 0 and more: its share is smaller by as many steps of nice(2)
 * Return: 0; -errno: it runs on as it did, and only others' latency is the worse for it.
 */
static inline int attnd_timeslice_ask(uint64_t slice_ns, int nicer)
{
    struct attnd_timeslice slice = {0};
    int rc = attnd_timeslice_get(0, &slice);
    if (rc < 0 || (slice.policy != SCHED_OTHER && slice.policy != SCHED_BATCH))
        return rc; /* somebody chose another policy for it */
    slice.runtime_ns = slice_ns;
    slice.nice = slice.nice + nicer < ATTND_NICE_MAX ? slice.nice + nicer : ATTND_NICE_MAX;
    return attnd_timeslice_put(&slice);
}

/**
 * attnd_timeslice_raise() - brief slices and a larger share for the calling thread
 *
 * A niceness that somebody chose stays. Processes that the thread forks and threads that it makes
 * begin with neither. Return: 0; -EPERM or -EACCES: slices are brief, and the share is as it was;
 * other values of -errno: it runs on as it did.
 */
static inline int attnd_timeslice_raise(void)
{
    struct attnd_timeslice slice = {0};
    int rc = attnd_timeslice_get(0, &slice);
    if (rc < 0 || slice.policy != SCHED_OTHER || slice.nice != 0)
        return rc < 0 ? rc : attnd_timeslice_ask(ATTND_TIMESLICE_BRIEF_NS, 0);
    slice.runtime_ns = ATTND_TIMESLICE_BRIEF_NS;
    slice.flags |= ATTND_TIMESLICE_RESET_ON_FORK;
    slice.nice = ATTND_TIMESLICE_RAISED_NICE;
    const int refused = attnd_timeslice_put(&slice);
    if (refused != -EPERM && refused != -EACCES)
        return refused;
    slice.nice = 0;
    rc = attnd_timeslice_put(&slice);
    return rc < 0 ? rc : refused;
}

#endif

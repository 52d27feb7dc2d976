/*
 * wake.c - sleeping and being woken without losing a message.
 *
 * Waker                              Sleeper
 *   R1 publish tail                    need = 1
 *   F2 full fence                      F1 full fence
 *   need != 0 ? wake                   tail unchanged ? sleep
 *
 * Whichever fence comes first in the one order of full fences, its side's store is seen by the
 * other side's load: either the waker sees `need`, or the sleeper sees the new tail. A sleeper that
 * saw the old tail gives it to the kernel, which compares again under its own lock, so a publish
 * between the look and the sleep is not lost either. The futex word is the tail itself; `need` is
 * never slept on, because the peer may only be able to read it.
 *
 * While nobody sleeps a message costs one fence and one load, and no system call.
 */
#include "ipc/wake.h"

#include "schemas/atomics.h"
#include "schemas/futex.h"

#include <errno.h>
#include <sched.h>
#include <sys/uio.h>
#include <time.h>

#define SPIN_BUDGET_NS 50000u
#define SPIN_BUDGET_PAIR_NS 20000u
#define SPIN_FLIGHT_NS 100000u
#define SPINS_PER_CLOCK 16u

int attnd_doorbell_ring(const struct attnd_doorbell *doorbell)
{
    attnd_fence_full(); /* F2 */
    if (!attnd_peek32(doorbell->need))
        return 0;
    if (doorbell->fd < 0) {
        /* Fails only for an unmapped word, and then nobody can sleep on it. */
        (void)attnd_futex_wake(doorbell->word, 1);
        return 1;
    }
    /* EAGAIN: counter or pipe are full, so the sleeper's fd is readable already. */
    uint64_t one = 1;
    ssize_t written = write(doorbell->fd, &one, sizeof(one));
    (void)written;
    return 1;
}

void attnd_doorbell_drain(int fd)
{
    char knocks[512];
    const struct iovec buffer = {.iov_base = knocks, .iov_len = sizeof(knocks)};
    /* Nothing there is as good as something: the ring tells what happened, not the knocks. */
    ssize_t got = preadv2(fd, &buffer, 1, -1, RWF_NOWAIT);
    if (got < 0 && errno == EOPNOTSUPP) /* eventfds before Linux 5.8 */
        got = read(fd, knocks, sizeof(knocks));
    (void)got;
}

void attnd_wake_announce(uint32_t *need)
{
    attnd_poke32(need, 1);
    attnd_fence_full(); /* F1 */
}

void attnd_wake_withdraw(uint32_t *need)
{
    attnd_poke32(need, 0);
}

static uint64_t deadline_after(uint64_t timeout_ns)
{
    uint64_t now_ns = attnd_clock_ns();
    return timeout_ns > UINT64_MAX - now_ns ? UINT64_MAX : now_ns + timeout_ns;
}

/* One futex wait, bounded by @deadline_ns. Return: 0 look again; -1 give up. */
static int sleep_once(uint32_t *word, uint32_t seen, uint64_t deadline_ns)
{
    struct timespec timeout;
    if (deadline_ns != UINT64_MAX) {
        uint64_t now_ns = attnd_clock_ns();
        if (now_ns >= deadline_ns)
            return -1;
        timeout.tv_sec = (time_t)((deadline_ns - now_ns) / 1000000000u);
        timeout.tv_nsec = (long)((deadline_ns - now_ns) % 1000000000u);
    }
    int rc = attnd_futex_wait(word, seen, deadline_ns == UINT64_MAX ? NULL : &timeout);
    return rc == 0 || rc == -EAGAIN || rc == -ETIMEDOUT ? 0 : -1;
}

int attnd_wake_wait(uint32_t *word, uint32_t seen, uint32_t *need, uint64_t timeout_ns)
{
    if (timeout_ns == 0)
        return attnd_observe32(word) != seen;

    uint64_t deadline_ns = deadline_after(timeout_ns);
    attnd_wake_announce(need);
    int differs = attnd_observe32(word) != seen;
    while (!differs && sleep_once(word, seen, deadline_ns) == 0)
        differs = attnd_observe32(word) != seen;
    attnd_wake_withdraw(need);
    return differs || attnd_observe32(word) != seen;
}

int attnd_wake_spin(const uint32_t *word, uint32_t seen, uint64_t spin_ns)
{
    if (attnd_observe32(word) != seen)
        return 1;
    if (spin_ns == 0)
        return 0;

    uint64_t deadline_ns = deadline_after(spin_ns);
    do {
        for (unsigned i = 0; i < SPINS_PER_CLOCK; i++) {
            if (attnd_observe32(word) != seen)
                return 1;
            attnd_relax();
        }
    } while (attnd_clock_ns() < deadline_ns);
    return 0;
}

/* Return: processors this process may use; 0 if that cannot be told. */
static int processors(void)
{
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

uint64_t attnd_spin_budget_ns(void)
{
    const int count = processors();
    return count == 1 ? 0 : count == 2 ? SPIN_BUDGET_PAIR_NS : SPIN_BUDGET_NS;
}

uint64_t attnd_spin_flight_ns(void)
{
    return processors() > 2 ? SPIN_FLIGHT_NS : attnd_spin_budget_ns();
}

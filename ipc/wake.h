/*
 * wake.h - how a producer wakes a consumer that sleeps: the F1/F2 pair of atomics.h, once.
 */
#ifndef ATTND_IPC_WAKE_H
#define ATTND_IPC_WAKE_H

#include "schemas/clock.h"

#include <stdint.h>

/* Where to knock: a futex word, or when fd >= 0 a non-blocking eventfd or write end of a pipe. The
 * flags of an eventfd belong to everybody who holds it: a hostile sleeper could clear O_NONBLOCK,
 * fill the counter, and block the side that rings. The ends of a pipe have flags of their own. */
struct attnd_doorbell {
    uint32_t *word; /* the ring's tail */
    const uint32_t *need;
    int fd;
};

/**
 * attnd_doorbell_ring() - after publishing: F2, and a system call only if the peer sleeps
 * Threads: the producer's. Return: 1 if a wake-up was sent, 0 if none was needed.
 */
int attnd_doorbell_ring(const struct attnd_doorbell *doorbell);

/**
 * attnd_doorbell_drain() - take the knocks off the fd one sleeps on, eventfd or read end of a pipe
 * Never blocks, not even where the peer cleared O_NONBLOCK of a shared eventfd and took the knocks.
 */
void attnd_doorbell_drain(int fd);

/**
 * attnd_wake_announce() - F1, for a sleeper that blocks in something else (ppoll on an eventfd):
 * set @need and fence; then look at the ring once more, and only then block
 * attnd_wake_withdraw() - awake again; stale wake-ups may still arrive
 */
void attnd_wake_announce(uint32_t *need);
void attnd_wake_withdraw(uint32_t *need);

/**
 * attnd_wake_wait() - sleep on a futex word until it differs from @seen (F1 done by the caller's
 * need word here: set, fence, look, wait, clear)
 * @need: the word the peer looks at
 * @timeout_ns: 0 returns at once, UINT64_MAX for ever
 * Return: 1 the word differs; 0 timed out or interrupted.
 */
int attnd_wake_wait(uint32_t *word, uint32_t seen, uint32_t *need, uint64_t timeout_ns);

/** attnd_wake_spin() - spin at most @spin_ns for the word to differ. Return: 1 if it does. */
int attnd_wake_spin(const uint32_t *word, uint32_t seen, uint64_t spin_ns);

/**
 * attnd_spin_budget_ns() - how long to spin for what may come
 * 50 us: an engine asks for the next thing some 30 us after it was answered. 20 us where this
 * process may use two processors, because others need the second one, and 0 where it has one.
 */
uint64_t attnd_spin_budget_ns(void);

/**
 * attnd_spin_flight_ns() - how long to spin while an answer is known to be on its way
 * 100 us: a short run takes less, and two sleeps on its way back would take longer than it does.
 * With two processors or fewer, the budget: those who make the answer need them.
 */
uint64_t attnd_spin_flight_ns(void);

#endif

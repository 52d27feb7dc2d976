/*
 * debt.h - time that somebody has taken, and that is forgiven at a rate.
 *
 * So what is free once and what is free in the long run are two numbers.
 */
#ifndef ATTND_IPC_DEBT_H
#define ATTND_IPC_DEBT_H

#include <stdint.h>

/* Zero-initialise. */
struct attnd_debt {
    uint64_t owed_ns, at_ns;
};

/** attnd_debt_owed_ns() - at CLOCK_MONOTONIC @now_ns; one nanosecond in @rate is forgiven. */
static inline uint64_t attnd_debt_owed_ns(const struct attnd_debt *debt, uint64_t now_ns,
                                          uint64_t rate)
{
    const uint64_t forgiven_ns = (now_ns - debt->at_ns) / rate;

    return debt->owed_ns > forgiven_ns ? debt->owed_ns - forgiven_ns : 0;
}

/** attnd_debt_add() - @took_ns more. */
static inline void attnd_debt_add(struct attnd_debt *debt, uint64_t now_ns, uint64_t rate,
                                  uint64_t took_ns)
{
    debt->owed_ns = attnd_debt_owed_ns(debt, now_ns, rate) + took_ns;
    debt->at_ns = now_ns;
}

#endif

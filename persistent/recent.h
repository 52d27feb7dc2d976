/*
 * recent.h - which kernels of a GPU's workers had runs lately: by the number of the last gang in
 * which one came, which the dispatcher writes for each kind of run when it leaves.
 */
#ifndef ATTND_PERSISTENT_RECENT_H
#define ATTND_PERSISTENT_RECENT_H

#include "schemas/kernels.h"

/* Kernels of which no run came for so long make room for the others. To bring one back takes a few
 * milliseconds. */
#define ATTND_RECENT_NS 2000000000ull

/* All zero: none had. */
struct attnd_recent {
    uint32_t gang[ATTND_KERNELS]; /* as last seen */
    uint64_t ns[ATTND_KERNELS];   /* when that changed; 0: never */
};

/**
 * attnd_recent_note() - a look at what dispatchers wrote
 * @gang:   [ATTND_KERNELS] numbers of gangs
 * @now_ns: not 0
 * Return: kernels whose runs came within ATTND_RECENT_NS, a bit each.
 */
static inline uint32_t attnd_recent_note(struct attnd_recent *recent,
                                         const uint32_t gang[ATTND_KERNELS], uint64_t now_ns)
{
    uint32_t kernels = 0;

    for (uint32_t k = 0; k < ATTND_KERNELS; k++) {
        if (gang[k] != recent->gang[k]) {
            recent->gang[k] = gang[k];
            recent->ns[k] = now_ns;
        }
        kernels |= (uint32_t)(recent->ns[k] && now_ns - recent->ns[k] < ATTND_RECENT_NS) << k;
    }
    return kernels;
}

/** attnd_recent_ask() - a run of kernel @kernel waits, or is about to come. */
static inline void attnd_recent_ask(struct attnd_recent *recent, uint32_t kernel, uint64_t now_ns)
{
    recent->ns[kernel] = now_ns;
}

#endif

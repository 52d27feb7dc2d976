/*
 * atomics.h - the only host header that names a memory order.
 *
 * Shared words are plain uint32_t/uint64_t in mapped structs (abi.h must compile as CUDA and C++),
 * so the compiler's __atomic builtins act on them. Every edge has a name; a comment at each use
 * names the edge it belongs to:
 *
 *   R1 publish   release store of an index or a flag, after the data it covers
 *   A1 observe   acquire load of it, before that data is read
 *   F1 sleep     store `need`, full fence, look again, sleep   (the sleeper's half)
 *   F2 wake      publish, full fence, load `need`, wake        (the waker's half)
 *
 * F1 and F2 are one Dekker pair: drop either fence and a wake-up is lost (measured).
 */
#ifndef ATTND_SCHEMAS_ATOMICS_H
#define ATTND_SCHEMAS_ATOMICS_H

#include <stdint.h>

#if defined(__SANITIZE_THREAD__)
#define ATTND_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTND_TSAN 1
#endif
#endif

/* R1: everything written before it is visible to a thread that observes the value with A1. */
static inline void attnd_publish32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* A1 */
static inline uint32_t attnd_observe32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void attnd_publish64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint64_t attnd_observe64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* A word that is only a hint or whose reader is ordered by something else. */
static inline uint32_t attnd_peek32(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void attnd_poke32(uint32_t *word, uint32_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline uint64_t attnd_peek64(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void attnd_poke64(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Tickets and statistics: no data hangs on them. Returns the value before. */
static inline uint32_t attnd_take32(uint32_t *word, uint32_t count)
{
    return __atomic_fetch_add(word, count, __ATOMIC_RELAXED);
}

static inline uint64_t attnd_take64(uint64_t *word, uint64_t count)
{
    return __atomic_fetch_add(word, count, __ATOMIC_RELAXED);
}

/* Arrival counters: the last arriver sees what every earlier one wrote. Returns the value before.
 */
static inline uint32_t attnd_arrive32(uint32_t *word, uint32_t count)
{
    return __atomic_fetch_add(word, count, __ATOMIC_ACQ_REL);
}

/* Compare-and-swap with both edges; returns 1 if it was @expected and is now @desired. */
static inline int attnd_claim32(uint32_t *word, uint32_t expected, uint32_t desired)
{
    return __atomic_compare_exchange_n(word, &expected, desired, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

static inline int attnd_claim64(uint64_t *word, uint64_t expected, uint64_t desired)
{
    return __atomic_compare_exchange_n(word, &expected, desired, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

static inline uint32_t attnd_swap32(uint32_t *word, uint32_t value)
{
    return __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL);
}

/* F1 and F2. TSan does not model fences, so under it a sequentially consistent read-modify-write
 * of a private word stands in; the tests that look for lost wake-ups run without TSan. */
static inline void attnd_fence_full(void)
{
#ifdef ATTND_TSAN
    static uint32_t word;
    (void)__atomic_fetch_add(&word, 0, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* A seqlock's writer: @sequence is odd while what it covers changes. A reader that copies between
 * two observations (A1) of one even number, with a fence before the second, has it whole. */
static inline void attnd_change_begin32(uint32_t *sequence)
{
    attnd_poke32(sequence, attnd_peek32(sequence) + 1);
    attnd_fence_full(); /* F1: before anything is changed */
}

static inline void attnd_change_end32(uint32_t *sequence)
{
    attnd_publish32(sequence, attnd_peek32(sequence) + 1); /* R1: when all of it is there */
}

/* Polite spinning: tells the core, not the kernel. */
static inline void attnd_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif

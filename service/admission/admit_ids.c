/*
 * admit_ids.c - page ids: copied, and each looked at on the way. Is it in the pool, and does the
 * session hold a lease of it?
 *
 * A batch names up to millions of pages, so nothing here touches one twice. They come out of the
 * arena by a few at a time, and what is looked at is the copy, while it is still in registers or in
 * the first cache. A pool that was empty gives out pages that follow each other, so such runs are
 * looked up at once. Others cost a load each.
 *
 * Almost every batch is good, and a good one is checked without a branch an element: a value x is
 * in 0..max exactly when neither x nor max - x, taken as 32-bit words, has its sign bit set, and
 * sign bits are collected by OR, leases by AND.
 */
#include "service/admission/admit_internal.h"

#include <string.h>

#define RUN 32u /* pages that are looked at together */
#define SIGN 0x80000000u
#define SIGNS 0x80008000u
/* How far ahead of a copy its lines are asked for. The client's processor wrote them: they come out
 * of memory, or of its cache, and the next page of them is nobody's guess but ours. */
#define AHEAD_BYTES 8192u

/* Four words at a time: every 64-bit instruction set has that, and compilers lower the type to
 * plain code where it has not. */
typedef uint32_t four_words __attribute__((vector_size(16)));

/* What was found, of all ids so far. */
struct seen {
    uint32_t outside; /* sign: an id is not in the pool */
    int others;       /* negative: ids beside runs are leased */
    four_words runs;  /* a sign in each half of each word: those of runs are */
};

static inline four_words load_four(const void *from)
{
    four_words four;
    memcpy(&four, from, sizeof(four));
    return four;
}

uint32_t attnd_admit_id_max(uint32_t pool_pages)
{
    return pool_pages > INT32_MAX ? INT32_MAX : pool_pages - (pool_pages > 0);
}

/* Bits in which @pages differ from sixteen that follow @first. Written out: as a loop it takes
 * twice as long. */
static inline four_words sixteen_differ(const int32_t *pages, uint32_t first)
{
    const four_words at = {first, first + 1, first + 2, first + 3};
    const four_words a = load_four(pages) ^ at, b = load_four(pages + 4) ^ (at + 4),
                     c = load_four(pages + 8) ^ (at + 8), d = load_four(pages + 12) ^ (at + 12);
    return (a | b) | (c | d);
}

/* 1: RUN pages that follow each other. */
static inline int is_run(const int32_t *pages)
{
    const uint32_t first = (uint32_t)pages[0];

    if ((uint32_t)pages[RUN - 1] - first != RUN - 1)
        return 0;
    const four_words differ = sixteen_differ(pages, first) | sixteen_differ(pages + 16, first + 16);
    return (differ[0] | differ[1] | differ[2] | differ[3]) == 0;
}

/* All of a run? The sign is set in each half of each word if so. */
static inline four_words run_leased(const int16_t *held)
{
    return load_four(held) & load_four(held + 8) & load_four(held + 16) & load_four(held + 24);
}

/* Both of two? Negative if so. Two ids come by one load, because loads are what this waits for. */
static inline int two_leased(const int16_t *held, const int32_t *page)
{
    uint64_t both;
    memcpy(&both, page, sizeof(both));
    return held[(uint32_t)both] & held[both >> 32];
}

static struct seen nothing_seen(void)
{
    return (struct seen){.others = -1, .runs = {SIGNS, SIGNS, SIGNS, SIGNS}};
}

static int all_leased(const struct seen *seen)
{
    const four_words runs = seen->runs;
    return seen->others < 0 && (runs[0] & runs[1] & runs[2] & runs[3] & SIGNS) == SIGNS;
}

/* RUN pages, which are inside @held. */
static inline void look_up(struct seen *seen, const int16_t *held, const int32_t *pages, int run)
{
    if (run)
        seen->runs &= run_leased(held + pages[0]);
    else
        for (uint32_t i = 0; i < RUN; i += 2)
            seen->others &= two_leased(held, pages + i);
}

int attnd_admit_leased(const int16_t *held, const int32_t *pages, uint64_t count)
{
    struct seen seen = nothing_seen();
    uint64_t i = 0;

    for (; i + RUN <= count; i += RUN)
        look_up(&seen, held, pages + i, is_run(pages + i));
    for (; i < count; i++)
        seen.others &= held[pages[i]];
    return all_leased(&seen);
}

/* Sign: one of RUN pages is not in 0..@max. */
static inline uint32_t outside_of(const int32_t *pages, uint32_t max)
{
    const four_words top = {max, max, max, max};
    four_words even = {0}, odd = {0}; /* two chains, so that loads and not ORs set the pace */

    for (uint32_t i = 0; i < RUN; i += 8) {
        const four_words a = load_four(pages + i), b = load_four(pages + i + 4);
        even |= a | (top - a);
        odd |= b | (top - b);
    }
    even |= odd;
    return even[0] | even[1] | even[2] | even[3];
}

static inline uint32_t one_outside(int32_t page, uint32_t max)
{
    return (uint32_t)page | (max - (uint32_t)page);
}

/* RUN pages: in the pool, and then in the books. Of a run in the pool both ends are. */
static inline void look_at(struct seen *seen, const struct attnd_admit_ids *ids,
                           const int32_t *pages)
{
    const int run = is_run(pages);
    const uint32_t outside =
        run ? one_outside(pages[0], ids->max) | one_outside(pages[RUN - 1], ids->max)
            : outside_of(pages, ids->max);

    seen->outside |= outside;
    if (ids->held && !(outside & SIGN))
        look_up(seen, ids->held, pages, run);
}

static void look_at_one(struct seen *seen, const struct attnd_admit_ids *ids, int32_t page)
{
    const uint32_t outside = one_outside(page, ids->max);

    seen->outside |= outside;
    if (ids->held && !(outside & SIGN))
        seen->others &= ids->held[page];
}

int attnd_arena_copy_ids(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                         uint64_t count, uint64_t index, int32_t *copy, struct attnd_admit_ids *ids,
                         struct attnd_fault *fault)
{
    const uint64_t bytes = count * sizeof(*copy);
    struct seen seen = nothing_seen();
    uint64_t i = 0;
    int code = attnd_arena_range(arena, offset_bytes, bytes, sizeof(*copy), index, fault);
    if (code)
        return code;
    const uint8_t *from = arena->bytes + offset_bytes;
    for (; i + RUN <= count; i += RUN) {
        const uint64_t at = i * sizeof(*copy);
        if (at + AHEAD_BYTES + ATTND_CACHE_LINE < bytes) {
            __builtin_prefetch(from + at + AHEAD_BYTES, 0, 2);
            __builtin_prefetch(from + at + AHEAD_BYTES + ATTND_CACHE_LINE, 0, 2);
        }
        attnd_arena_take(from + at, RUN * sizeof(*copy), copy + i);
        look_at(&seen, ids, copy + i);
    }
    attnd_arena_take(from + i * sizeof(*copy), (count - i) * sizeof(*copy), copy + i);
    for (; i < count; i++)
        look_at_one(&seen, ids, copy[i]);
    ids->outside = seen.outside & SIGN;
    ids->unleased = !ids->held || ids->outside || !all_leased(&seen);
    return 0;
}

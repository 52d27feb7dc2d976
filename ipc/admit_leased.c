/*
 * admit_leased.c - does the session hold a lease of each page that it names?
 *
 * A batch names up to millions of pages, and each is looked up. A pool that was empty gives out
 * pages that follow each other, so such runs are looked up at once. Others cost a load each.
 */
#include "ipc/admit.h"

#include <string.h>

#define RUN 32u /* pages that are looked up at once */
#define SIGNS 0x80008000u

/* As in admit_check.c. */
typedef uint32_t four_words __attribute__((vector_size(16)));

static inline four_words load_four(const void *from)
{
    four_words four;
    memcpy(&four, from, sizeof(four));
    return four;
}

/* 1: RUN pages that follow each other. */
static inline int is_run(const int32_t *pages)
{
    const uint32_t first = (uint32_t)pages[0];
    const four_words step = {4, 4, 4, 4};
    four_words expected = {first, first + 1, first + 2, first + 3}, differ = {0};

    if ((uint32_t)pages[RUN - 1] - first != RUN - 1)
        return 0;
    for (uint32_t i = 0; i < RUN; i += 4, expected += step)
        differ |= load_four(pages + i) ^ expected;
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

int attnd_admit_leased(const int16_t *held, const int32_t *pages, uint64_t count)
{
    four_words runs = {SIGNS, SIGNS, SIGNS, SIGNS};
    int others = -1;
    uint64_t i = 0;

    for (; i + RUN <= count; i += RUN) {
        if (is_run(pages + i))
            runs &= run_leased(held + pages[i]);
        else
            for (uint32_t j = 0; j < RUN; j += 2)
                others &= two_leased(held, pages + i + j);
    }
    for (; i < count; i++)
        others &= held[pages[i]];
    return others < 0 && (runs[0] & runs[1] & runs[2] & runs[3] & SIGNS) == SIGNS;
}

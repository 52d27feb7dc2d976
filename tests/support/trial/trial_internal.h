/* trial_internal.h - what the files of a trial say to each other. */
#ifndef ATTND_TESTS_SUPPORT_TRIAL_TRIAL_INTERNAL_H
#define ATTND_TESTS_SUPPORT_TRIAL_TRIAL_INTERNAL_H

#include "tests/support/trial/trial.h"

#include <stddef.h>

/* trial_memory.c: never NULL. */
void *trial_allocate(size_t count, size_t bytes);
void trial_free(void *memory);

/* trial_tables.c, trial_pages.c, trial_rows.c: trial_begin() in three parts. */
void trial_begin_tables(struct trial *trial, struct prng *prng);
void trial_begin_pages(struct trial *trial, struct prng *prng);
void trial_begin_rows(struct trial *trial, struct prng *prng);

/* Takes @bytes of engine->rows, at an address that is a multiple of @align and often of nothing
 * more, with room for poison on both sides. Return: bytes from engine->rows. */
uint64_t trial_take(struct trial *trial, struct prng *prng, uint64_t bytes, uint32_t align);

/* trial_variant.c: the tables of the batch's variant, if it has them. */
void trial_place_scales(struct trial *trial, struct prng *prng);
void trial_place_sinks(struct trial *trial, struct prng *prng);
void trial_place_mask(struct trial *trial, struct prng *prng);

/* Values in +-scale of dtype; a row of a head may begin anywhere in the first TRIAL_VALUES. */
#define TRIAL_VALUES 16384u
const uint16_t *trial_values(uint32_t dtype, float scale);
void trial_draw_values(struct prng *prng, const uint16_t *values, uint16_t *to, uint32_t count);

/* The same of K and V, of either size. */
void trial_draw_kv(const struct trial *trial, struct prng *prng, uint8_t *to);

/* Element 0 of one token and head; @base: the pool's mapping or the shadow. */
uint8_t *trial_token(const struct trial *trial, const struct attnd_plane *plane, uint8_t *base,
                     int32_t page, int32_t token, uint32_t head);

/* Calls @fn for every page in use, layer, and K (0) and V (1): the same bytes in shadow and pool.
 */
typedef void trial_page_fn(struct trial *trial, uint32_t used, uint32_t layer, int v,
                           uint8_t *shadow, uint8_t *pool, size_t bytes);
void trial_each_page(struct trial *trial, trial_page_fn *fn);
void trial_poison_pages(struct trial *trial);

extern const uint16_t trial_poison_o;
extern const uint32_t trial_poison_lse;
/* Repeats a pattern of 2 or 4 bytes over begin..end. */
void trial_poison(uint8_t *begin, uint8_t *end, const void *pattern, size_t pattern_bytes);

#endif

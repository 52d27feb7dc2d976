/*
 * admit_internal.h - what the files of admission share. Nobody else includes it.
 */
#ifndef ATTND_SERVICE_ADMISSION_ADMIT_INTERNAL_H
#define ATTND_SERVICE_ADMISSION_ADMIT_INTERNAL_H

#include "ipc/admit_alloc.h"
#include "schemas/attnd.pb-c.h"
#include "service/admission/admit.h"

#include <string.h>

/* Enough for a header of ATTND_LEVELS_MAX levels and all strides several times over. */
#define ATTND_ADMIT_UNPACK_BYTES 8192u

/* A header on its way: private bytes, and the message unpacked from them. */
struct attnd_admit_header {
    uint8_t packed[ATTND_BATCH_HEADER_BYTES_MAX];
    struct attnd_admit_alloc alloc;
    Attnd__Batch *message; /* lies in alloc_bytes and goes with this struct */
    _Alignas(ATTND_ADMIT_ALIGN_BYTES) uint8_t alloc_bytes[ATTND_ADMIT_UNPACK_BYTES];
};

/* A client's arena as mapped here. Only attnd_arena_take() reads it. */
struct attnd_admit_arena {
    const uint8_t *bytes;
    uint64_t size_bytes;
};

/**
 * attnd_arena_take() - the one read of bytes of the arena, which are inside it
 *
 * One memcpy into memory nobody else can write. The barrier behind it is the point: without it a
 * compiler may load "the copy" from the arena again (it is entitled to: nothing in C says that
 * another process writes there), and the value checked would not be the value used.
 */
static inline void attnd_arena_take(const uint8_t *from, uint64_t bytes, void *copy)
{
    if (bytes)
        memcpy(copy, from, bytes);
    __asm__ volatile("" : : "r"(copy) : "memory");
}

/** attnd_arena_range() - is it inside the arena, and aligned? Return: as attnd_arena_copy(). */
int attnd_arena_range(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                      uint64_t count_bytes, uint32_t align_bytes, uint64_t index,
                      struct attnd_fault *fault);

/**
 * attnd_arena_copy() - take a range of the arena
 * @index: for @fault: the level whose array this is
 * Return: 0; -ATTND_E_RANGE if the range leaves the arena, -ATTND_E_INVALID if @offset_bytes is not
 * a multiple of @align_bytes; both name field ARENA.
 */
int attnd_arena_copy(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                     uint64_t count_bytes, uint32_t align_bytes, uint64_t index, void *copy,
                     struct attnd_fault *fault);

/* The bounds of page ids while they are copied, and the finding. */
struct attnd_admit_ids {
    uint32_t max;        /* they are 0..max */
    const int16_t *held; /* as attnd_batch_limits.leased */
    uint32_t outside;    /* nonzero: some are not */
    uint32_t unleased;   /* nonzero: some are not held, or were not looked up */
};

/** attnd_arena_copy_ids() - attnd_arena_copy() of @count page ids, and a look at each. */
int attnd_arena_copy_ids(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                         uint64_t count, uint64_t index, int32_t *copy, struct attnd_admit_ids *ids,
                         struct attnd_fault *fault);

/** attnd_admit_id_max() - the largest id of a pool of so many pages. */
uint32_t attnd_admit_id_max(uint32_t pool_pages);

/** attnd_staging_reserve() - room for @words int32; what was there is lost. Return: 0 or
 * -ATTND_E_NO_MEMORY. */
int attnd_staging_reserve(struct attnd_staging *staging, uint64_t words, struct attnd_fault *fault);

/** attnd_admit_header_unpack() - copy and unpack a header. Return: 0, -ATTND_E_RANGE or
 * -ATTND_E_PROTOCOL. */
int attnd_admit_header_unpack(const struct attnd_admit_arena *arena, uint64_t offset_bytes,
                              uint32_t bytes, struct attnd_admit_header *header,
                              struct attnd_fault *fault);

/** attnd_admit_fits() - entries and pages against the plan's capacities. Return: 0;
 * -ATTND_E_NO_SPACE. */
int attnd_admit_fits(uint64_t entries, uint64_t pages, const struct attnd_batch_limits *limits,
                     struct attnd_fault *fault);

/** attnd_admit_header_check() - the scalars of a header against pool and plan, into @batch. The
 * levels get their counts, not yet their arrays. */
int attnd_admit_header_check(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                             struct attnd_batch_view *batch, struct attnd_fault *fault);

/** attnd_admit_variant() - each field of the variant, and its defaults; @batch has its scalars and
 * levels. Without one it changes nothing. */
int attnd_admit_variant(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                        struct attnd_batch_view *batch, struct attnd_fault *fault);

/** attnd_admit_strides() - defaults, signs, extents, and outputs that would overlap themselves. */
int attnd_admit_strides(const Attnd__Batch *message, const struct attnd_batch_limits *limits,
                        struct attnd_batch_view *batch, struct attnd_fault *fault);

enum attnd_admit_step_kind {
    ATTND_ADMIT_COPY,     /* an array out of the arena */
    ATTND_ADMIT_COPY_IDS, /* page ids, each of which is looked at on the way */
    ATTND_ADMIT_INDPTR,   /* from 0, monotonic, to its total */
    ATTND_ADMIT_LENGTHS,  /* last page and length of each entry of a level that was checked */
    ATTND_ADMIT_IDS,      /* name the first page id that is not in the pool, if one is known */
    ATTND_ADMIT_MASK      /* are there as many bits as each request has queries times keys? */
};
#define ATTND_ADMIT_ANY_TOTAL UINT32_MAX

/* Checks of elements [@begin, @end) of private arrays; those before were good. */

int attnd_admit_indptr(const struct attnd_admit_step *step, uint64_t begin, uint64_t end,
                       struct attnd_fault *fault);
int attnd_admit_lengths(const struct attnd_level_view *level, uint32_t page_size, uint64_t begin,
                        uint64_t end, struct attnd_fault *fault);
int attnd_admit_indices(const struct attnd_level_view *level, uint32_t pool_pages, uint64_t begin,
                        uint64_t end, struct attnd_fault *fault);
int attnd_admit_mask(const int32_t *mask_indptr, const struct attnd_level_view *level,
                     uint32_t page_size, uint64_t begin, uint64_t end, struct attnd_fault *fault);

#endif

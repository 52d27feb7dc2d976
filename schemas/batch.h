/*
 * batch.h - a batch after admission: what service/admission produces and
 * persistent/plan consumes.
 *
 * Every pointer is into private memory of the daemon, every array has been checked against the
 * contract below, and nobody else can write it. Notation as in FlashInfer: request r of a level
 * owns query rows qo_indptr[r]..qo_indptr[r+1] and pages kv_indices[kv_indptr[r]..kv_indptr[r+1]];
 * kv_len = page_size * (pages - 1) + last_page_len, 0 for no pages.
 */
#ifndef ATTND_SCHEMAS_BATCH_H
#define ATTND_SCHEMAS_BATCH_H

#include "schemas/abi.h"

#include <string.h>

/** attnd_fault_float() - a float as the value or the limit of a fault: its bits (errors.h). */
static inline int64_t attnd_fault_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Tables of a variant: those of options.def, and the mask. */
enum attnd_table {
    ATTND_TABLE_MASK,
#define OPTION(name, field, value)
#define TABLE(name, field, member, elements, beside) ATTND_TABLE_##name,
#include "schemas/options.def"
    ATTND_TABLES
};

/* One cascade level; one request of it is an "entry". */
struct attnd_level_view {
    uint32_t entries;
    uint32_t pages;            /* kv_indptr[entries] */
    const int32_t *qo_indptr;  /* [entries + 1], from 0, monotonic, last == rows */
    const int32_t *kv_indptr;  /* [entries + 1], from 0, monotonic */
    const int32_t *kv_indices; /* [pages], 0 <= id < pool pages */
    const int32_t
        *kv_last_page_len; /* [entries], 1..page_size; not read where there are no pages */
};

/** attnd_level_keys() - kv_len of an entry of @level; both factors are below 2^32. */
static inline int64_t attnd_level_keys(const struct attnd_level_view *level, uint32_t entry,
                                       uint32_t page_size)
{
    const int64_t pages = (int64_t)level->kv_indptr[entry + 1] - level->kv_indptr[entry];

    return pages ? (pages - 1) * page_size + level->kv_last_page_len[entry] : 0;
}

/* How far each tensor reaches from its first element; 0 where it has no rows. */
struct attnd_extents {
    uint64_t q_bytes, o_bytes, lse_bytes, k_bytes, v_bytes;
};

struct attnd_batch_view {
    uint32_t rows;          /* query rows; every level covers 0..rows */
    uint32_t levels;        /* 1..ATTND_LEVELS_MAX */
    uint32_t entries;       /* over all levels */
    uint32_t pages;         /* over all levels, without the reserve */
    uint32_t reserve_pages; /* extra page slots of each entry of the last level, for advance */
    uint32_t heads_q;       /* multiple of the pool's heads_kv */
    uint32_t dtype;
    uint32_t flags;               /* ATTND_BATCH_* */
    float sm_scale;               /* finite; already defaulted to 1/sqrt(dim_qk) */
    uint32_t options;             /* ATTND_OPTION_* of the variant; 0: it says nothing */
    const int32_t *mask_indptr;   /* [entries + 1] of the last level: bytes in the mask; or NULL */
    struct attnd_variant variant; /* already defaulted; its tables as the client names them */
    struct attnd_pitch q_pitch, o_pitch, lse_pitch, k_pitch, v_pitch; /* already defaulted */
    struct attnd_extents extents;
    uint32_t leased;   /* 1: all page ids were held when they were admitted */
    uint64_t releases; /* of the session's leases until then; admission leaves it to its caller */
    struct attnd_level_view level[ATTND_LEVELS_MAX];
};

/* Absolute lengths for every entry, and pages appended to the page list of some. */
struct attnd_advance_view {
    uint32_t entries;            /* equals the plan's */
    uint32_t pages;              /* appended in all */
    const int32_t *kv_len;       /* [entries], >= 0, <= pages in use x page_size */
    const int32_t *page_indptr;  /* [entries + 1]; NULL when pages == 0 */
    const int32_t *page_indices; /* [pages] */
};

/* The arrays of a prefix operation. */
struct attnd_prefix_view {
    uint32_t blocks;
    const struct attnd_block_key *parent; /* NULL: keys[0] begins a prompt */
    const struct attnd_block_key *keys;   /* [blocks] */
    int32_t *pages; /* [blocks * block_pages]: publish, in the pool; match: room for them */
    /* Publish: tables of keys and of pages, empty. [attnd_prefix_seen_places(blocks) +
     * attnd_prefix_seen_places(blocks * block_pages)] */
    uint16_t *seen;
};

/** attnd_prefix_seen_places() - of a hash table of @count entries, which are half of it at most: a
 * power of two, and even. */
static inline uint32_t attnd_prefix_seen_places(uint32_t count)
{
    return count < 2 ? 2 : 1u << (32 - __builtin_clz(2 * count - 1));
}

/* A merge's places, as its client named them. */
struct attnd_merge_view {
    struct attnd_merge_place at[ATTND_MERGE_PLACES]; /* enum attnd_merge_at */
};

/* The limits of page ids, heads and capacities for admission: one pool and one plan. */
struct attnd_batch_limits {
    uint32_t pool_pages, page_size, heads_kv, dim_qk, dim_vo;
    uint32_t pool_dtype;
    uint32_t requests; /* capacity: entries over all levels */
    uint32_t rows, pages, levels;
    uint32_t heads_q;      /* capacity */
    uint32_t fixed_split;  /* of the plan; admission does not look at it */
    const int16_t *leased; /* [pool_pages] negative: held by the session; NULL: nobody asks */
};

#endif

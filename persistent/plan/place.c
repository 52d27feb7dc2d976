/*
 * place.c - where rows stand that have keys on several levels.
 *
 * The keys of a row are those of its entries, level after level, so a row stands behind all keys of
 * earlier levels. An entry of an earlier level is shared by requests that stand at different places
 * behind it. A variant that asks where a row stands (window, position encoding) so needs to know,
 * for rows of an entry, how many keys they have behind the entry's own. This is one number for rows
 * that have the same entry on each later level: a piece. Tiles do not reach across pieces then, and
 * a tile's copy of its entry has the rows of the last level's entry, from which a row's place is
 * counted.
 *
 * The numbers are sums of lengths, so an advance changes them. They stand behind the lengths of a
 * generation: [entries] keys in front of an entry's own, then one number for each piece, level by
 * level and in the order of rows.
 */
#include "persistent/plan/place.h"

#include <assert.h>

int attnd_plan_in_pieces(const struct attnd_plan *plan)
{
    return plan->shape.flags & ATTND_PLAN_PLACED && plan->shape.options & ATTND_OPTIONS_PLACE;
}

struct attnd_piece_walk attnd_plan_walk_pieces(const struct attnd_plan *plan, uint32_t level)
{
    struct attnd_piece_walk walk = {.level = level, .entry = plan->level_entries[level]};

    for (uint32_t l = level + 1; l < plan->shape.levels; l++)
        walk.behind[l] = plan->level_entries[l];
    return walk;
}

static uint32_t row_end(const struct attnd_plan *plan, uint32_t entry)
{
    return plan->state[entry].entry.row_begin + plan->state[entry].entry.row_count;
}

int attnd_plan_next_piece(const struct attnd_plan *plan, struct attnd_piece_walk *walk)
{
    const uint32_t entries_end = plan->level_entries[walk->level + 1];

    walk->row = walk->row_end;
    while (walk->entry < entries_end && row_end(plan, walk->entry) <= walk->row)
        walk->entry++;
    if (walk->entry == entries_end)
        return 0;
    walk->row_end = row_end(plan, walk->entry);
    for (uint32_t l = walk->level + 1; l < plan->shape.levels; l++) {
        while (row_end(plan, walk->behind[l]) <= walk->row)
            walk->behind[l]++;
        assert(walk->behind[l] < plan->level_entries[l + 1]);
        if (row_end(plan, walk->behind[l]) < walk->row_end)
            walk->row_end = row_end(plan, walk->behind[l]);
    }
    return 1;
}

/* Of entry @entry. @lengths: of all entries; NULL: those that were set. */
static int32_t length_of(const struct attnd_plan *plan, const int32_t *lengths, uint32_t entry)
{
    return lengths ? lengths[entry] : (int32_t)plan->state[entry].kv_len;
}

int32_t attnd_plan_keys_behind(const struct attnd_plan *plan, const struct attnd_piece_walk *walk,
                               const int32_t *lengths)
{
    int32_t keys = 0;

    for (uint32_t l = walk->level + 1; l < plan->shape.levels; l++)
        keys += length_of(plan, lengths, walk->behind[l]);
    return keys;
}

/* Keys in front of each entry, into @before. No entry is cut by one of an earlier level. */
static void sum_before(const struct attnd_plan *plan, const int32_t *lengths, int32_t *before)
{
    const uint32_t levels = plan->shape.levels;

    for (uint32_t l = 0; l < levels; l++) {
        uint32_t outer = l ? plan->level_entries[l - 1] : 0;
        for (uint32_t e = plan->level_entries[l]; e < plan->level_entries[l + 1]; e++) {
            before[e] = 0;
            if (l == 0 || plan->state[e].entry.row_count == 0)
                continue;
            while (row_end(plan, outer) <= plan->state[e].entry.row_begin)
                outer++;
            before[e] = before[outer] + length_of(plan, lengths, outer);
        }
    }
}

void attnd_plan_write_places(const struct attnd_plan *plan, uint32_t generation,
                             const int32_t *lengths)
{
    int32_t *to = plan->kv_len + (size_t)generation * plan->capacity.entries;

    if (!attnd_plan_in_pieces(plan))
        return;
    if (plan->shape.options & ATTND_OPTION_ROPE_APPEND)
        sum_before(plan, lengths, to + plan->shape.entries);
    for (uint32_t l = 0; l + 1 < plan->shape.levels; l++) {
        struct attnd_piece_walk walk = attnd_plan_walk_pieces(plan, l);
        uint32_t place = plan->level_places[l];
        while (attnd_plan_next_piece(plan, &walk)) {
            assert(place < plan->capacity.entries);
            to[place++] = attnd_plan_keys_behind(plan, &walk, lengths);
        }
    }
}

int attnd_plan_check_places(const struct attnd_plan *plan, const int32_t *lengths,
                            struct attnd_fault *fault)
{
    const int64_t most = INT32_MAX - (int64_t)plan->shape.rows;
    int64_t keys = 0; /* of the longest entries of each level together: no row has more */
    uint32_t longest = 0;

    if (!attnd_plan_in_pieces(plan))
        return 0;
    for (uint32_t l = 0; l < plan->shape.levels; l++) {
        longest = plan->level_entries[l];
        for (uint32_t e = longest; e < plan->level_entries[l + 1]; e++)
            if (length_of(plan, lengths, e) > length_of(plan, lengths, longest))
                longest = e;
        keys += longest < plan->level_entries[l + 1] ? length_of(plan, lengths, longest) : 0;
    }
    if (keys > most)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, longest, keys, most);
    return 0;
}

/* Keys that were stored rotated have one place each, for all rows that see them. */
static int check_nested(const struct attnd_plan *plan, struct attnd_fault *fault)
{
    for (uint32_t l = 0; l + 1 < plan->shape.levels; l++) {
        uint32_t outer = plan->level_entries[l];
        for (uint32_t e = plan->level_entries[l + 1]; e < plan->level_entries[l + 2]; e++) {
            const struct attnd_entry *entry = &plan->state[e].entry;
            if (entry->row_count == 0)
                continue;
            while (row_end(plan, outer) <= entry->row_begin)
                outer++;
            if (row_end(plan, e) > row_end(plan, outer))
                return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_POSITION_ENCODING,
                                       ATTND_F_LEVELS, ATTND_POSITION_ROPE, l);
        }
    }
    return 0;
}

int attnd_plan_place(struct attnd_plan *plan, struct attnd_fault *fault)
{
    uint32_t places = 2 * plan->shape.entries; /* behind lengths, and keys in front of entries */

    if (plan->shared_levels || plan->shape.levels == 1 ||
        !(plan->shape.options & (ATTND_OPTIONS_PLACE | ATTND_OPTION_MASK)))
        return 0;
    plan->shape.flags |= ATTND_PLAN_PLACED;
    int code = attnd_plan_check_places(plan, NULL, fault);
    if (!code && plan->shape.options & ATTND_OPTION_ROPE_APPEND)
        code = check_nested(plan, fault);
    if (code)
        return code;
    for (uint32_t l = 0; l + 1 < plan->shape.levels && attnd_plan_in_pieces(plan); l++) {
        struct attnd_piece_walk walk = attnd_plan_walk_pieces(plan, l);
        plan->level_places[l] = places;
        while (attnd_plan_next_piece(plan, &walk))
            places++;
    }
    return 0;
}

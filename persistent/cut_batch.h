/*
 * cut_batch.h - the steps of cut.h, by all threads of a team. Included behind the team's header
 * (cuda/engine/team.cuh); on a host that is cut_alone.h.
 */
#ifndef ATTND_PERSISTENT_CUT_BATCH_H
#define ATTND_PERSISTENT_CUT_BATCH_H

#include "persistent/cut_fuse.h"

/* What came of it. */
struct attnd_cut_result {
    uint32_t blocks, tiles, merges, partials, parts;      /* without those of refused requests */
    uint32_t classes;                                     /* bit c: there are tiles of class c */
    uint32_t rows_max;                                    /* packed, of a block */
    uint32_t compute_tiles, whole_tiles, compute_workers; /* as in struct attnd_plan_head */
    uint32_t uneven; /* 1: a few tiles take far longer than most, and are to be begun first */
};

/* Requests, of which only lengths and rows are looked at. @qo_indptr: with rows_each 0. */
static ATTND_OF_TEAM void attnd_cut_requests(const struct attnd_team *team,
                                             const struct attnd_cut_shape *shape,
                                             const struct attnd_cut *cut, const int32_t *lengths,
                                             const int32_t *qo_indptr)
{
    if (team->thread == 0)
        *cut->rows_refused = 0;
    for (uint32_t r = team->thread; r <= shape->requests; r += team->threads)
        cut->row_begin[r] = shape->rows_each ? r * shape->rows_each : (uint32_t)qo_indptr[r];
    attnd_team_sync(team);
    for (uint32_t r = team->thread; r < shape->requests; r += team->threads)
        attnd_cut_read(shape, cut, r, lengths[r]);
    attnd_team_sync(team);
    attnd_team_scan(team, cut->block_begin, shape->requests, 1);
}

/* ---- in how many parts ---- */

/* All lanes of a group look at one way. */
static ATTND_OF_TEAM void attnd_cut_try(const struct attnd_team *team,
                                        const struct attnd_cut_shape *shape,
                                        const struct attnd_cut *cut, uint32_t blocks, uint32_t way,
                                        float share_ns, float stretch, float wave_ns)
{
    const struct attnd_cut_split split = attnd_cut_way(way, share_ns);
    uint32_t *const ns_of = cut->way_ns + way * ATTND_CUT_CLASSES;
    uint32_t *const items_of = cut->way_items + way * ATTND_CUT_CLASSES;
    float longest = 0.0f;
    uint32_t tiles = 0, parts;

    for (uint32_t c = team->lane; c < ATTND_CUT_CLASSES; c += team->lanes)
        ns_of[c] = items_of[c] = 0;
    for (uint32_t b = team->lane; b < blocks; b += team->lanes) {
        longest =
            attnd_cut_larger(longest, attnd_cut_part_ns(shape, cut, b, split, stretch, &parts));
        tiles += parts;
    }
    longest = attnd_group_longest(team, longest, &tiles);
    attnd_group_sync(team);
    for (uint32_t b = team->lane; b < blocks; b += team->lanes) {
        const float ns = attnd_cut_part_ns(shape, cut, b, split, stretch, &parts);
        const float of_longest = ns / longest;
        const uint32_t c = attnd_cut_fewer((uint32_t)(of_longest * (ATTND_CUT_CLASSES - 1)),
                                           ATTND_CUT_CLASSES - 1);
        attnd_group_add(&ns_of[c], (uint32_t)(of_longest * ATTND_CUT_TIME_UNITS) * parts);
        attnd_group_add(&items_of[c], parts);
    }
    attnd_group_sync(team);
    const float list =
        attnd_group_list(team, shape, ns_of, items_of, longest / ATTND_CUT_TIME_UNITS, longest);
    if (team->lane == 0)
        cut->finish_ns[way] = attnd_cut_finish(shape, way ? wave_ns : 0.0f, list, longest, tiles);
}

static ATTND_OF_TEAM struct attnd_cut_choice
attnd_cut_decide(const struct attnd_team *team, const struct attnd_cut_shape *shape,
                 const struct attnd_cut *cut, uint32_t blocks, const struct attnd_cut_seen *seen)
{
    struct attnd_cut_choice choice;
    float stretch;
    const float share = attnd_cut_share(shape, seen, &stretch);
    const float longest = attnd_cut_larger(seen->longest_ns[ATTND_TILE_COMPUTE],
                                           seen->longest_ns[ATTND_TILE_MEMORY] * stretch);
    const uint32_t waves = (blocks * shape->heads_kv + shape->workers - 1) / shape->workers;
    const float wave_ns =
        seen->count[ATTND_TILE_COMPUTE] ? shape->pace.start_ns : shape->pace.wave_ns;
    uint32_t way = 0;

    if (seen->count[0] && seen->count[1] && attnd_cut_fuse(team, shape, cut, blocks, seen, &choice))
        return choice;
    if ((float)waves * longest > share * ATTND_CUT_SLACK) {
        for (way = team->group; way < ATTND_CUT_WAYS; way += team->groups)
            attnd_cut_try(team, shape, cut, blocks, way, share, stretch, wave_ns);
        attnd_team_sync(team);
        way = attnd_cut_best(cut->finish_ns, share);
    }
    choice = attnd_cut_choose(shape, seen, way, share, stretch);
    return choice;
}

/* How many blocks of its class stand in front of each, into its place. */
static ATTND_OF_TEAM void attnd_cut_rank(const struct attnd_team *team,
                                         const struct attnd_cut_shape *shape,
                                         const struct attnd_cut *cut, uint32_t blocks)
{
    const struct attnd_cut_place nothing = {0, 0, 0, 0};

    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        cut->place[b] = nothing;
        cut->place[b].tile = attnd_cut_class(shape, cut, b) == ATTND_TILE_MEMORY;
    }
    attnd_team_sync(team);
    attnd_team_scan(team, &cut->place->tile, blocks, 4);
}

/* Splits beyond those that the plan has room for are not made, the last ones. */
static ATTND_OF_TEAM void attnd_cut_clip(const struct attnd_team *team,
                                         const struct attnd_cut_shape *shape,
                                         const struct attnd_cut *cut, uint32_t blocks)
{
    const struct attnd_cut_place nothing = {0, 0, 0, 0};

    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        cut->place[b] = nothing;
        cut->place[b].tile = cut->parts[b] - 1;
    }
    attnd_team_sync(team);
    attnd_team_scan(team, &cut->place->tile, blocks, 4);
    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        const uint32_t before = cut->place[b].tile;
        const uint32_t left = before < shape->splits_max ? shape->splits_max - before : 0;
        cut->parts[b] = 1 + attnd_cut_fewer(cut->parts[b] - 1, left);
    }
    attnd_team_sync(team);
}

/* Parts of each block, and where what it has begins. */
static ATTND_OF_TEAM void attnd_cut_split_blocks(const struct attnd_team *team,
                                                 const struct attnd_cut_shape *shape,
                                                 const struct attnd_cut *cut, uint32_t blocks,
                                                 const struct attnd_cut_choice *choice, int mixed)
{
    const int ranked = mixed && (choice->halved || choice->compute_workers);
    uint32_t splits = 0;

    if (ranked)
        attnd_cut_rank(team, shape, cut, blocks);
    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        const uint32_t before = ranked ? cut->place[b].tile : b;
        const int computes = ranked && attnd_cut_class(shape, cut, b) == ATTND_TILE_COMPUTE;
        const uint32_t nth = 1 + (computes ? b - before : before);
        cut->parts[b] = attnd_cut_wanted(shape, cut, choice, b, nth);
        splits += cut->parts[b] - 1;
    }
    if (attnd_team_total(team, splits) > shape->splits_max)
        attnd_cut_clip(team, shape, cut, blocks);
    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        cut->parts[b] = attnd_cut_bound(shape, cut, b, cut->parts[b]);
        cut->place[b] = attnd_cut_takes(cut, b);
    }
    attnd_team_sync(team);
    attnd_team_scan(team, &cut->place->tile, blocks, 4);
}

/* ---- all of it ---- */

/* Of a fused plan whole compute-bound blocks come first, then parts of such, then the rest. */
static ATTND_OF_TEAM uint32_t attnd_cut_order_place(const struct attnd_cut_shape *shape,
                                                    const struct attnd_cut *cut, uint32_t b)
{
    if (attnd_cut_class(shape, cut, b) != ATTND_TILE_COMPUTE || cut->kv_len[cut->request[b]] < 0)
        return 2;
    return cut->parts[b] > 1;
}

/* Where each tile stands: the dearest first, of each place. */
static ATTND_OF_TEAM void attnd_cut_sort(const struct attnd_team *team,
                                         const struct attnd_cut_shape *shape,
                                         const struct attnd_cut *cut, uint32_t blocks,
                                         struct attnd_cut_result *result)
{
    const uint32_t tiles = result->tiles;
    const int fused = result->compute_workers != 0;
    uint32_t most = 0, most_computing = 1, whole = 0, computes = 0, classes = 0;

    for (uint32_t t = team->thread; t < tiles; t += team->threads) {
        const uint32_t b = attnd_cut_block_at(cut, blocks, t);
        const uint32_t cost = attnd_cut_cost(shape, cut, b, t - cut->place[b].tile);
        const uint32_t place = fused ? attnd_cut_order_place(shape, cut, b) : 2;
        cut->order[t] = cost;
        if (place == 2)
            most = cost > most ? cost : most;
        else
            most_computing = cost > most_computing ? cost : most_computing;
        whole += place == 0;
        computes += place < 2;
    }
    most = attnd_team_largest(team, most);
    if (fused) {
        most_computing = attnd_team_largest(team, most_computing);
        result->whole_tiles = attnd_team_total(team, whole);
        result->compute_tiles = attnd_team_total(team, computes);
    }
    for (uint32_t t = team->thread; t < tiles; t += team->threads) {
        const uint32_t place =
            fused ? attnd_cut_order_place(shape, cut, attnd_cut_block_at(cut, blocks, t)) : 2;
        const uint32_t of_cost =
            attnd_cut_cost_class(cut->order[t], place == 2 ? most : most_computing);
        cut->order[t] = of_cost + place * ATTND_CUT_CLASSES;
        classes += ATTND_CUT_CLASSES - 1 - of_cost;
    }
    if (!fused)
        result->uneven =
            attnd_team_total(team, classes) * ATTND_CUT_UNEVEN < tiles * (ATTND_CUT_CLASSES - 1);
    attnd_team_sync(team);
    attnd_team_order(team, cut->order, tiles, cut->counts);
}

/* Tiles of the requests that are there; of those whose length is -1, that are refused. May be done
 * again when more are. */
static ATTND_OF_TEAM struct attnd_cut_result attnd_cut_batch(const struct attnd_team *team,
                                                             const struct attnd_cut_shape *shape,
                                                             const struct attnd_cut *cut)
{
    const uint32_t blocks = cut->block_begin[shape->requests];
    struct attnd_cut_seen seen = {{0, 0}, {0, 0}, {INFINITY, INFINITY}, 0, {0, 0}, 0};
    struct attnd_cut_result result = {blocks, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

    if (!blocks)
        return result;
    for (uint32_t b = team->thread; b < blocks; b += team->threads) {
        attnd_cut_look(shape, cut, b);
        attnd_cut_count(&seen, attnd_cut_class(shape, cut, b), cut->time_ns[b], cut->keys[b],
                        attnd_cut_packed(shape, cut, b));
    }
    attnd_team_seen(team, &seen);
    const int mixed = seen.count[0] && seen.count[1];
    const struct attnd_cut_choice choice = attnd_cut_decide(team, shape, cut, blocks, &seen);
    attnd_cut_split_blocks(team, shape, cut, blocks, &choice, mixed);
    const struct attnd_cut_place end = cut->place[blocks];
    result.tiles = end.tile;
    result.compute_workers = choice.compute_workers;
    attnd_cut_sort(team, shape, cut, blocks, &result);
    result.merges = end.merge;
    result.partials = end.partial;
    result.parts = end.list;
    result.rows_max = seen.rows_max;
    result.classes = (seen.count[0] ? 1u : 0) | (seen.count[1] ? 2u : 0);
    return result;
}

#endif

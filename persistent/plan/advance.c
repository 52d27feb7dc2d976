/*
 * advance.c - a step of decoding without planning again: lengths of a new generation, pages behind
 * the lists there are.
 *
 * Everything is checked before anything is written, so a refused advance leaves no trace. A length
 * may not reach past the pages in use, new ones included: slots behind them are reserved, not
 * empty, and what they will name is not known yet.
 */
#include "persistent/plan/place.h"
#include "persistent/plan/planner.h"
#include "persistent/plan/steps.h"
#include "schemas/atomics.h"

#include <assert.h>
#include <string.h>

static uint32_t pages_added(const struct attnd_advance_view *advance, uint32_t entry)
{
    if (!advance->pages)
        return 0;
    return (uint32_t)(advance->page_indptr[entry + 1] - advance->page_indptr[entry]);
}

/* Most steps append no page and are right: nothing is looked for then, and no branch is taken. */
static int lengths_fit(const struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    const uint64_t page_size = plan->pool.page_size;
    uint64_t beyond = 0;

    for (uint32_t i = 0; i < advance->entries; i++) {
        const uint64_t room = plan->state[plan->shared + i].pages_used * page_size;
        const uint32_t kv_len = (uint32_t)advance->kv_len[i]; /* 2^31 or more: negative */
        beyond |= (room - kv_len) >> 63 | kv_len >> 31;
    }
    return !beyond;
}

static int check_entries(const struct attnd_plan *plan, const struct attnd_advance_view *advance,
                         struct attnd_fault *fault)
{
    const uint64_t page_size = plan->pool.page_size;

    if (!advance->pages && lengths_fit(plan, advance))
        return 0;
    for (uint32_t i = 0; i < advance->entries; i++) {
        const struct attnd_entry_state *state = &plan->state[plan->shared + i];
        const uint32_t added = pages_added(advance, i);
        const uint32_t spare = state->entry.page_count - state->pages_used;
        const int64_t kv_len = advance->kv_len[i];

        if (added > spare)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_INDPTR, i + 1,
                                   advance->page_indptr[i + 1],
                                   (int64_t)advance->page_indptr[i] + spare);
        uint64_t room = (state->pages_used + added) * page_size;
        int64_t kv_len_max = room > INT32_MAX ? INT32_MAX : (int64_t)room;
        if (kv_len < 0 || kv_len > kv_len_max)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_LEN, i, kv_len,
                                   kv_len < 0 ? 0 : kv_len_max);
    }
    return 0;
}

static int check_pages(const struct attnd_advance_view *advance, uint32_t pool_pages,
                       struct attnd_fault *fault)
{
    for (uint32_t p = 0; p < advance->pages; p++) {
        int64_t page = advance->page_indices[p];
        if (page < 0 || page >= pool_pages)
            return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_KV_INDICES, p, page,
                                   page < 0 ? 0 : (int64_t)pool_pages - 1);
    }
    return 0;
}

static void count_pages(struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    for (uint32_t i = 0; advance->pages && i < advance->entries; i++)
        plan->state[plan->shared + i].pages_used += pages_added(advance, i);
}

/* Those that were counted, into the heap. */
static void append_pages(struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    for (uint32_t i = 0; advance->pages && i < advance->entries; i++) {
        const struct attnd_entry_state *state = &plan->state[plan->shared + i];
        const uint32_t added = pages_added(advance, i);

        if (added)
            memcpy(plan->kv_pages + state->entry.page_begin + state->pages_used - added,
                   advance->page_indices + advance->page_indptr[i], added * sizeof(int32_t));
    }
}

static int check(const struct attnd_plan *plan, const struct attnd_advance_view *advance,
                 uint32_t pool_pages, struct attnd_fault *fault)
{
    if (advance->entries != plan->shape.entries - plan->shared)
        return attnd_fault_set(fault, -ATTND_E_RANGE, ATTND_F_REQUESTS, 0, advance->entries,
                               plan->shape.entries - plan->shared);
    /* A mask has a bit for each key of the lengths that were set. */
    if (plan->shape.options & ATTND_OPTION_MASK)
        return attnd_fault_set(fault, -ATTND_E_UNSUPPORTED, ATTND_F_MASK, ATTND_F_KV_LEN, 0, 0);
    int code = check_entries(plan, advance, fault);
    if (!code)
        code = attnd_plan_check_places(plan, advance->kv_len, fault);
    return code ? code : check_pages(advance, pool_pages, fault);
}

int attnd_planner_advance(struct attnd_plan *plan, const struct attnd_advance_view *advance,
                          uint32_t generation, uint32_t pool_pages, struct attnd_fault *fault)
{
    assert(generation < ATTND_GENERATIONS);
    int code = check(plan, advance, pool_pages, fault);
    if (code)
        return code;
    assert(!attnd_planner_unshares(plan, advance));

    count_pages(plan, advance);
    append_pages(plan, advance);
    if (advance->entries)
        memcpy(plan->kv_len + (size_t)generation * plan->capacity.entries + plan->shared,
               advance->kv_len, advance->entries * sizeof(int32_t));
    attnd_plan_write_places(plan, generation, advance->kv_len);
    /* R1: a worker that reads the heap in place sees what a version covers. One with a copy takes
     * the version from its command, and copies what it lacks: the lengths of the command's
     * generation, and page ids that they reach. */
    attnd_publish32(&plan->head->advance_version, ++plan->shape.advance_version);
    plan->shape.generation = generation;
    attnd_publish32(&plan->head->generation, generation); /* R1: its lengths are there */
    return 0;
}

int attnd_planner_unshares(const struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    if (advance->entries != plan->shape.entries - plan->shared)
        return 0;
    for (uint32_t i = 0; plan->shared && i < advance->entries; i++) {
        const struct attnd_entry_state *state = &plan->state[plan->shared + i];
        const int64_t shortest = (int64_t)state->keys_begin + state->entry.row_count;
        if (state->keys_begin && advance->kv_len[i] < shortest)
            return 1;
    }
    return 0;
}

/* The entries of the batch alone, each with all of its keys; page lists stay where they are. */
static void unshare(struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    const uint32_t entries = advance->entries;

    memcpy(plan->state, plan->before->state + plan->shared, entries * sizeof(*plan->state));
    plan->shape.entries = entries;
    plan->shape.levels -= plan->shared_levels;
    plan->shape.flags &= ~ATTND_PLAN_ONE_PASS;
    plan->shape.advance_version = plan->shape.generation = 0;
    for (uint32_t i = 0; i < entries; i++) {
        struct attnd_entry_state *state = &plan->state[i];
        state->keys_begin = 0;
        state->kv_len = (uint32_t)advance->kv_len[i];
        state->entry.level -= plan->shared_levels;
    }
    plan->shared = plan->shared_levels = 0;
    plan->keys_again = 0;
    plan->found = (struct attnd_plan_found){0};
    count_pages(plan, advance);
}

int attnd_planner_build_unshared(struct attnd_plan *plan, const struct attnd_advance_view *advance,
                                 uint32_t pool_pages, struct attnd_fault *fault)
{
    int code = check(plan, advance, pool_pages, fault);
    if (code)
        return code;
    attnd_plan_begin(plan);
    unshare(plan, advance);
    code = attnd_plan_build(plan, 0, fault); /* equal pages are not looked for with fixed splits */
    if (code)
        attnd_planner_drop(plan);
    return code;
}

void attnd_planner_write_unshared(struct attnd_plan *plan, const struct attnd_advance_view *advance)
{
    attnd_plan_copy_entries(plan, 0, advance->entries);
    append_pages(plan, advance);
    attnd_plan_write(plan);
}

/*
 * scratch.c - where a run of a plan keeps what is not finished: arrival counters, then the states
 * and outputs of partial rows. The daemon sizes it and the backend addresses it with the same
 * functions, so the two cannot disagree.
 */
#include "persistent/plan/plan.h"

static uint64_t lines(uint64_t bytes)
{
    return (bytes + ATTND_CACHE_LINE - 1) / ATTND_CACHE_LINE * ATTND_CACHE_LINE;
}

static uint64_t states(const struct attnd_plan_head *head)
{
    return (uint64_t)head->partial_rows * head->heads_q;
}

uint64_t attnd_scratch_state_offset(const struct attnd_plan_head *head)
{
    return lines((uint64_t)head->merges * head->heads_kv * sizeof(uint32_t));
}

uint64_t attnd_scratch_output_offset(const struct attnd_plan_head *head)
{
    return attnd_scratch_state_offset(head) + lines(states(head) * 2 * sizeof(float));
}

uint64_t attnd_plan_scratch_bytes(const struct attnd_plan_head *head)
{
    return attnd_scratch_output_offset(head) + lines(states(head) * head->dim_vo * sizeof(float));
}

uint32_t attnd_plan_items(const struct attnd_plan_head *head, uint32_t kind)
{
    if (kind == ATTND_RUN_APPEND)
        return head->rows / ATTND_APPEND_ROWS + (head->rows % ATTND_APPEND_ROWS != 0);
    if (kind == ATTND_RUN_MERGE)
        return (uint32_t)(((uint64_t)head->rows * head->heads_q + ATTND_MERGE_ROWS - 1) /
                          ATTND_MERGE_ROWS);
    return head->tiles * head->heads_kv;
}

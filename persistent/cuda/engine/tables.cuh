/*
 * tables.cuh - the tables that a variant names, in memories of the session, as its runs find them.
 */
#ifndef ATTND_PERSISTENT_CUDA_ENGINE_TABLES_CUH
#define ATTND_PERSISTENT_CUDA_ENGINE_TABLES_CUH

#include "persistent/cuda/state/engine.cuh"
#include "schemas/variant.h"

namespace attnd
{

/* Are all memories there that the variant names? */
__device__ __forceinline__ bool tables_there(const EngineSession *session, uint32_t options,
                                             const attnd_variant &variant)
{
    const auto there = [=](uint32_t option, const attnd_variant_table &table) {
        return !(options & option) ||
               (table.memory < ATTND_MEMORIES_MAX && session->memories[table.memory].base);
    };
    return there(ATTND_OPTION_SINKS, variant.sinks) && there(ATTND_OPTION_MASK, variant.mask) &&
           there(ATTND_OPTION_HEAD_SCALES, variant.kv_scales);
}

/* Tables of the run's layer, where its plan has any. */
__device__ __forceinline__ void engine_tables(EngineSession *session, uint32_t slot)
{
    const EngineRun run = session->runs[slot];
    ActiveRun *active = &session->active[slot];
    if (!run.plan || !run.plan->set_version)
        return;
    const char *copy = reinterpret_cast<const char *>(run.plan->place.mirror);
    const attnd_plan_head &plan = *reinterpret_cast<const attnd_plan_head *>(copy);
    const attnd_variant *variant =
        reinterpret_cast<const attnd_variant *>(copy + sizeof(attnd_plan_head));
    const auto at = [&](const attnd_variant_table &table) -> const char * {
        const uint64_t begin =
            table.offset_bytes + uint64_t(table.layer_stride) * run.layer * sizeof(float);
        const Memory &memory =
            session->memories[table.memory < ATTND_MEMORIES_MAX ? table.memory : 0];
        return memory.base && begin < memory.size_bytes ? memory.base + begin : nullptr;
    };
    active->tables = {variant, nullptr, nullptr, nullptr};
    active->sinks = nullptr;
    if (plan.options & ATTND_OPTION_SINKS)
        active->sinks = reinterpret_cast<const float *>(at(variant->sinks));
    if (plan.options & ATTND_OPTION_MASK) {
        active->tables.mask = reinterpret_cast<const uint8_t *>(at(variant->mask));
        active->tables.mask_begin =
            reinterpret_cast<const uint32_t *>(copy + plan.mask_begin_offset_bytes);
    }
    if (plan.options & ATTND_OPTION_HEAD_SCALES)
        active->tables.kv_scales = reinterpret_cast<const float *>(at(variant->kv_scales));
}

/* The plan's mirror is about to change, or it has: what else has filled a slot looks there again.
 * One thread. */
__device__ __forceinline__ void engine_version(EnginePlan *plan, uint64_t set_version)
{
    fence_order(); /* the front, before the version is seen */
    *const_cast<volatile uint64_t *>(&plan->set_version) = set_version;
    fence_order(); /* then the front, or the slots, are looked at */
}

/* The same where a graph that is in flight may change the mirror meanwhile: it says so by version
 * 0, and when all is there it looks at all slots. So it finds this one, behind what is written
 * here, or what is written here is of the version that stays. One thread, which has filled the
 * slot. */
__device__ __forceinline__ void engine_tables_beside(EngineSession *session, uint32_t slot)
{
    const auto *word =
        reinterpret_cast<const unsigned long long *>(&session->runs[slot].plan->set_version);
    uint64_t version;
    do {
        fence_order();
        version = peek8_gpu(word);
        if (version)
            engine_tables(session, slot);
        fence_order();
    } while (version && peek8_gpu(word) != version);
}

} // namespace attnd

#endif

/*
 * mirror.cuh - plans copied from the queue segment's heap, behind the bus, to device memory.
 *
 * The mirror has the heap's offsets. A command names a version of its plan: which set, and which
 * advance since. Bytes that the mirror lacks of that version are copied before anything of it is
 * published:
 *
 *   another set       the head, its arrays and all page ids, as they are now
 *   another advance   page ids that the new lengths reach and the mirror does not have yet
 *   either of them    the lengths of the command's generation
 *
 * So an advance costs one trip across the bus, and a second one where a request enters a new page.
 * It does not matter how many advances came in between, nor in which order their commands are
 * resolved, because of three things that the daemon keeps to (planobj.c, advance.c):
 *
 *   - (set, advance) decides the generation;
 *   - the lengths of a generation stay as they are while a run of it is submitted or published;
 *   - within a set a slot of the page list is written once, before a length reaches it.
 *
 * Runs in flight read the mirror meanwhile. They keep their lengths, which are another
 * generation's, and the page ids that these reach are written again only with the values that they
 * have.
 */
#ifndef ATTND_PERSISTENT_CUDA_DISPATCH_MIRROR_CUH
#define ATTND_PERSISTENT_CUDA_DISPATCH_MIRROR_CUH

#include "persistent/cuda/dispatch/dispatch_state.cuh"

namespace attnd
{

constexpr uint32_t ids_vector = 16 / sizeof(int32_t); /* page ids are copied by 16 bytes */

/* A warp, or @lanes threads, copy host -> device, 16 bytes a lane, eight loads in flight. Return:
 * bytes moved. */
inline __device__ __noinline__ uint64_t copy_in(char *to, const char *from, uint64_t bytes,
                                                uint32_t lane, uint32_t lanes = 32)
{
    uint4 *out = reinterpret_cast<uint4 *>(to);
    const uint4 *in = reinterpret_cast<const uint4 *>(from);
    uint64_t count = (bytes + 15) / 16;
    for (uint64_t base = 0; base < count; base += 8 * lanes) {
        uint4 part[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint64_t index = base + i * lanes + lane;
            if (index < count)
                part[i] = peek16_sys(in + index);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint64_t index = base + i * lanes + lane;
            if (index < count)
                out[index] = part[i];
        }
    }
    return count * 16;
}

/* The same for @count vectors from @first on of each lane, all lanes' together in as few trips as
 * for one span of their length. */
__device__ __forceinline__ uint64_t copy_spans(uint4 *out, const uint4 *in, uint32_t first,
                                               uint32_t count, uint32_t lane)
{
    uint32_t end = count; /* of the lane's span, among all */
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t before = __shfl_up_sync(0xffffffffu, end, step);
        end += lane < step ? 0 : before;
    }
    const uint32_t total = __shfl_sync(0xffffffffu, end, 31);
    const uint32_t shift = first - (end - count); /* from a vector's number to its place */
    for (uint32_t base = 0; base < total; base += 128) {
        uint4 part[4];
        uint32_t place[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t number = base + i * 32 + lane;
            uint32_t owner = 0; /* the lanes whose spans end before it */
            for (uint32_t step = 16; step; step /= 2) {
                const uint32_t last = __shfl_sync(0xffffffffu, end, owner + step - 1);
                owner += last <= number ? step : 0;
            }
            place[i] = number + __shfl_sync(0xffffffffu, shift, owner);
            if (number < total)
                part[i] = peek16_sys(in + place[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (base + i * 32 + lane < total)
                out[place[i]] = part[i];
    }
    return uint64_t(total) * 16;
}

__device__ __forceinline__ Mirrored *mirrored_at(const Settings &settings, uint64_t plan_offset)
{
    return &settings.mirrored[plan_offset / mirrored_bytes];
}

/* A plan in the heap, and its copy. */
struct PlanCopy {
    const char *host;
    char *copy;
    const attnd_plan_head *head; /* the copy's */
};

/* How many page ids of an entry the mirror has, from the first on. It stands in a word of the copy
 * that the planner leaves 0 and nobody else reads. */
__device__ __forceinline__ uint32_t *pages_there(attnd_entry *entry)
{
    return &entry->behind;
}

/* The head, and the variant behind it. */
constexpr uint64_t plan_front_bytes = sizeof(attnd_plan_head) + sizeof(attnd_variant);

/* Arrays of a plan that only a set changes, page ids aside. */
struct PlanArray {
    uint64_t offset_bytes, bytes;
};
struct PlanArrays {
    PlanArray of[5];
};
__device__ __forceinline__ PlanArrays plan_arrays(const attnd_plan_head *head)
{
    return {{
        {head->entries_offset_bytes, uint64_t(head->entries) * sizeof(attnd_entry)},
        {head->tiles_offset_bytes, uint64_t(head->tiles) * sizeof(attnd_tile)},
        {head->merges_offset_bytes, uint64_t(head->merges) * sizeof(attnd_merge)},
        {head->merge_parts_offset_bytes, uint64_t(head->parts) * sizeof(uint32_t)},
        {head->mask_begin_offset_bytes,
         head->options & ATTND_OPTION_MASK ? uint64_t(head->entries) * sizeof(uint32_t) : 0},
    }};
}

/* Those arrays, and all page ids; the head first, for it says where the rest
 * lies. Return: bytes moved. */
__device__ __forceinline__ uint64_t mirror_set(const PlanCopy &plan, uint32_t lane)
{
    const attnd_plan_head *head = plan.head;
    uint64_t moved = copy_in(plan.copy, plan.host, plan_front_bytes, lane);
    __syncwarp();
    const PlanArrays arrays = plan_arrays(head);
#pragma unroll
    for (const PlanArray &array : arrays.of)
        moved += copy_in(plan.copy + array.offset_bytes, plan.host + array.offset_bytes,
                         array.bytes, lane);
    __syncwarp();
    if (!head->entries)
        return moved;
    const attnd_entry *last =
        reinterpret_cast<const attnd_entry *>(plan.copy + head->entries_offset_bytes) +
        head->entries - 1;
    return moved + copy_in(plan.copy + head->kv_pages_offset_bytes,
                           plan.host + head->kv_pages_offset_bytes,
                           (uint64_t(last->page_begin) + last->page_count) * sizeof(int32_t), lane);
}

/* The lengths of @generation, and page ids that they reach and that are not there. @all_pages: all
 * are. Return: bytes moved. */
__device__ __forceinline__ uint64_t mirror_lengths(const PlanCopy &plan, uint32_t generation,
                                                   uint32_t page_size, bool all_pages,
                                                   uint32_t lane)
{
    const attnd_plan_head *head = plan.head;
    attnd_entry *entries = reinterpret_cast<attnd_entry *>(plan.copy + head->entries_offset_bytes);
    const uint64_t lengths_at =
        head->kv_len_offset_bytes + uint64_t(generation) * head->entries_max * sizeof(int32_t);
    const uint32_t numbers = head->flags & ATTND_PLAN_PLACED ? head->entries_max : head->entries;
    uint64_t moved = copy_in(plan.copy + lengths_at, plan.host + lengths_at,
                             uint64_t(numbers) * sizeof(int32_t), lane);
    __syncwarp();
    const int32_t *lengths = reinterpret_cast<const int32_t *>(plan.copy + lengths_at);
    uint4 *out = reinterpret_cast<uint4 *>(plan.copy + head->kv_pages_offset_bytes);
    const uint4 *in = reinterpret_cast<const uint4 *>(plan.host + head->kv_pages_offset_bytes);
    for (uint32_t base = 0; base < head->entries; base += 32) {
        uint32_t first = 0, count = 0;
        if (base + lane < head->entries) {
            attnd_entry *entry = &entries[base + lane];
            const uint32_t tokens = uint32_t(max(lengths[base + lane], 0));
            const uint32_t pages = tokens / page_size + (tokens % page_size != 0);
            const uint32_t reached = min(pages, entry->page_count), there = *pages_there(entry);
            if (reached > there) {
                *pages_there(entry) = reached;
                first = (entry->page_begin + there) / ids_vector;
                count = (entry->page_begin + reached + ids_vector - 1) / ids_vector - first;
            }
        }
        if (!all_pages && __any_sync(0xffffffffu, count != 0))
            moved += copy_spans(out, in, first, count, lane);
    }
    return moved;
}

/* Brings the mirror of a plan up to @version, which a command carries, for runs that read the
 * lengths of @generation. The daemon writes arrays, then versions, then the command: what they
 * cover is complete. The whole warp that takes commands. Return: what the mirror holds now. */
inline __device__ __noinline__ Mirrored mirror_plan(Dispatch *dispatch, uint64_t plan_offset,
                                                    PlanVersion version, uint32_t generation,
                                                    uint32_t page_size)
{
    const Settings &settings = dispatch->settings;
    const uint32_t lane = threadIdx.x % 32;
    char *copy = settings.mirror + plan_offset;
    const attnd_plan_head *head = reinterpret_cast<const attnd_plan_head *>(copy);
    const PlanCopy plan = {reinterpret_cast<const char *>(settings.queue) + plan_offset, copy,
                           head};
    Mirrored mirrored = *mirrored_at(settings, plan_offset);
    const bool fresh = mirrored.set_version != version.set;
    if (!fresh && mirrored.advance_version == version.advance)
        return mirrored;
    uint64_t moved = 0;
    bool many = mirrored.many;
    if (fresh) {
        moved += mirror_set(plan, lane);
        __syncwarp();
        const attnd_entry *entries =
            reinterpret_cast<const attnd_entry *>(copy + head->entries_offset_bytes);
        many = false;
        for (uint32_t i = lane; i < head->entries; i += 32)
            many |= entries[i].row_count * head->group > 8;
        many = __any_sync(0xffffffffu, many);
    }
    moved += mirror_lengths(plan, generation, page_size, fresh, lane);
    /* Not what the head carries: it may be newer than the arrays. */
    mirrored = {version.set, version.advance, many};
    if (lane == 0) {
        *mirrored_at(settings, plan_offset) = mirrored;
        dispatch->plan_bytes += moved;
        store_relaxed_sys(&settings.queue->plan_bytes, dispatch->plan_bytes);
    }
    __syncwarp();
    return mirrored;
}

} // namespace attnd

#endif

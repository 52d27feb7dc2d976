/*
 * prefill_widen.cuh - keys and values of 8 bits for the prefill loop: they come to shared memory as
 * they are, and loader warps make of them what wgmma reads.
 *
 * A lane copies 16 bytes of a row and converts the same ones, so nobody waits for another lane.
 * There is room for one plane of a block: behind the conversion of each group of rows the same
 * place is asked for rows of the plane that is wanted next. So a plane's bytes are mostly there
 * when consumers leave its stage. Consumers fence between what is stored here and what wgmma reads.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_WIDEN_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_WIDEN_CUH

#include "persistent/cuda/loops/prefill_gather.cuh"

namespace attnd
{

/* Page ids of a loader warp's share of a block, of two of them: a lane copies those that it reads.
 * Aligned, because a lane's place is found by an XOR. */
__device__ __forceinline__ uint32_t page_ids(uint32_t warp, uint32_t table)
{
    __shared__ __align__(256) uint32_t ids[loader_warps][2][64];
    static_assert(share_rows <= 64, "room for ids");
    return shared_address(ids[warp][table]);
}

/* Blocks that a loader warp has converted, across items: in shared memory, because its registers
 * are all in use. */
__device__ __forceinline__ uint32_t widened_blocks(uint32_t warp)
{
    __shared__ uint32_t blocks[loader_warps];
    return shared_address(&blocks[warp]);
}

/* A loader warp's share of a plane, in groups of 8 rows as it is gathered. Nothing but what a lane
 * has in hand stays in registers: what follows from its number is found anew. */
template <typename T, int D, typename Policy> struct Widen {
    using Shape = PrefillShape<D>;
    using Rows = Gather<T, D, Policy>;
    using Values = typename Types<T, Policy>::Products;
    /* Of a group a lane has a part of so many rows, which are @step apart. */
    static constexpr uint32_t step = Rows::template step<false>, units = 8 / step, panels = D / 64;
    static constexpr uint32_t unit_bytes = 32 * 16, group_bytes = units * unit_bytes;
    static constexpr uint32_t at_once = units < 2 ? units : 2; /* in registers */

    /* A lane's 16 elements: eight lanes have the halves of panels of two rows, which are stored
     * without a bank twice. */
    struct Part {
        uint32_t row, chunk;
    };
    __device__ static __forceinline__ Part part(uint32_t lane)
    {
        return {lane / 4 % 2 + lane / 8 / panels * 2, lane % 4 + lane / 8 % panels * 4};
    }

    /* How many blocks there have been, and one more. */
    __device__ static __forceinline__ uint32_t blocks()
    {
        return load_shared4(widened_blocks(thread_anew() / 32 - 1));
    }
    __device__ static __forceinline__ void begin()
    {
        const uint32_t thread = thread_anew();
        if (thread % 32 == 0)
            store_shared4(widened_blocks(thread / 32 - 1), 0);
        __syncwarp();
    }
    __device__ static __forceinline__ void count_block()
    {
        const uint32_t thread = thread_anew(), next = blocks() + 1;
        __syncwarp();
        if (thread % 32 == 0)
            store_shared4(widened_blocks(thread / 32 - 1), next);
        __syncwarp();
    }

    /* What a lane is to copy of a plane. */
    struct Lines {
        uint32_t from; /* its rows' places; 0: nothing */
        uint32_t inside;
        int32_t left; /* rows behind its first that are there */
    };

    /* The first key of @block. */
    __device__ static __forceinline__ int32_t first_of(const Item &item, int32_t block)
    {
        return item.kv_begin + block * Shape::keys;
    }

    /* Asks for the pages of @block: they come with the copies behind this. */
    __device__ static __forceinline__ void ask_pages(const Item &item, int32_t block)
    {
        const int32_t *pages = item.run->kv_pages + item.tile.of_entry.page_begin;
        const uint32_t thread = thread_anew(), lane = thread % 32, own = thread / 32 - 1;
        const uint32_t to = page_ids(own, block % 2) ^ (lane * 4);
        const int32_t first = first_of(item, block);
        cp_async4(to, pages + Rows::place(item, first, own, lane).quotient);
        if (lane < share_rows - 32)
            cp_async4(to + 128, pages + Rows::place(item, first, own, lane + 32).quotient);
    }

    /* Finds where the rows of @block lie, whose pages are there. */
    __device__ static __forceinline__ void find(const Item &item, int32_t block)
    {
        const uint32_t thread = thread_anew(), lane = thread % 32, own = thread / 32 - 1;
        const uint32_t from = page_ids(own, block % 2) ^ (lane * 4);
        Rows rows = {own, {load_shared4(from), 0}};
        if (lane < share_rows - 32)
            rows.page[1] = load_shared4(from + 128);
        rows.find(item, first_of(item, block), block % 2);
    }

    /* Of @block. */
    template <bool values>
    __device__ static __forceinline__ Lines lines(const Item &item, int32_t block)
    {
        const ActiveRun *run = item.run;
        __builtin_assume(__isShared(run));
        const attnd_plan_head &plan = run->plan;
        const int32_t left = item.kv_end - first_of(item, block);
        const uint32_t table = block % 2;
        const uint32_t thread = thread_anew(), own = thread / 32 - 1;
        const auto [row, chunk] = part(thread % 32);
        /* What is not there comes from the row's beginning: an address must be mapped. */
        const bool in = values ? Policy::in_vo(plan, chunk * 16) : Policy::in_qk(plan, chunk * 16);
        return {gather_places(own, table, values) + row * (64 / step), in ? chunk * 16 : 0,
                in ? left - int32_t(row + own * 8) : 0};
    }

    /* Where this lane's bytes of its share lie. Ends with an XOR: see COMPILER.md. */
    __device__ static __forceinline__ uint32_t raw_at()
    {
        const uint32_t thread = thread_anew(), own = thread / 32 - 1;
        return (shared_address(cta_buffer()) + raw_offset<D> + own * group_bytes) ^
               (thread % 32 * 16);
    }

    /* Whether the warp has a group @i. */
    __device__ static __forceinline__ bool has_group(uint32_t i)
    {
        return i + 1 < Rows::shares || thread_anew() / 32 - 1 + i * loader_warps < Rows::groups;
    }

    /* Where a lane's parts of group @i lie, from part @n on. */
    struct Sources {
        uint64_t at[at_once];
    };
    __device__ static __forceinline__ Sources sources(const Lines &lines, uint32_t i, uint32_t n)
    {
        Sources sources;
        if constexpr (at_once == 1)
            sources.at[0] = load_shared8(lines.from + i * 64);
        else
            load_shared_addresses(sources.at[0], sources.at[1], lines.from + i * 64 + n * 8);
        return sources;
    }

    /* And where they lie among the bytes. */
    __device__ static __forceinline__ uint32_t raw_part(uint32_t raw, uint32_t i, uint32_t n)
    {
        return raw + i * loader_warps * group_bytes + n * unit_bytes;
    }

    /* Copies these. */
    __device__ static __forceinline__ void copy(const Lines &lines, const Sources &sources,
                                                uint32_t raw, uint32_t i, uint32_t n)
    {
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++)
            cp_async16(raw_part(raw, i, n + u),
                       reinterpret_cast<const char *>(sources.at[u] + lines.inside),
                       int32_t(i * loader_warps * 8 + (n + u) * step) < lines.left ? 16 : 0);
    }

    /* All of it. */
    __device__ static __forceinline__ void copy(const Lines &lines)
    {
        const uint32_t raw = raw_at();
#pragma unroll
        for (uint32_t i = 0; i < Rows::shares; i++) {
#pragma unroll
            for (uint32_t n = 0; n < units && has_group(i); n += at_once)
                copy(lines, sources(lines, i, n), raw, i, n);
            cp_async_commit(); /* of a group that is none, too: they are counted */
        }
    }

    /* Converts the share of a plane to its stage, and copies that of @next. */
    template <typename KV, bool values>
    __device__ static __forceinline__ void convert(uint32_t stage, const Lines &next)
    {
        /* Two groups of the share further on, a whole number of those that lie together. */
        constexpr uint32_t pair = place_in_block<D, values>(2 * loader_warps * 8, 0);
        const uint32_t thread = thread_anew(), own = thread / 32 - 1;
        const auto [row, chunk] = part(thread % 32);
        const uint32_t raw = raw_at();
        uint32_t to = shared_address(cta_buffer());
        to += values ? Shape::v_offset + stage * Shape::v_bytes
                     : Shape::k_offset + stage * Shape::k_bytes;
        to += place_in_block<D, values>(0, chunk * 2 / 8 * 8) + row * 128;
        to ^= (chunk * 2 % 8 ^ row) << 4;
        const uint32_t at[2] = {to + place_in_block<D, values>(own * 8, 0),
                                to + place_in_block<D, values>((own + loader_warps) * 8, 0)};
        cp_async_wait<Rows::shares - 1>();
        Pieces now = pieces(raw, 0, 0);
#pragma unroll
        for (uint32_t i = 0; i < Rows::shares; i++) {
            const uint32_t group = at[i % 2] + i / 2 * pair;
#pragma unroll
            for (uint32_t n = 0; n < units; n += at_once) {
                Pieces then = {}; /* asked for before these are computed with */
                if (n + at_once < units) {
                    then = pieces(raw, i, n + at_once);
                } else if (i + 1 < Rows::shares) {
                    cp_async_wait<Rows::shares - 2>();
                    if (has_group(i + 1))
                        then = pieces(raw, i + 1, 0);
                }
                if (has_group(i))
                    convert_parts<KV, values>(now, raw, group, i, n, next);
                now = then;
            }
            cp_async_commit();
        }
    }

    /* A lane's bytes of group @i, from part @n on. */
    struct Pieces {
        uint4 of[at_once];
    };
    __device__ static __forceinline__ Pieces pieces(uint32_t raw, uint32_t i, uint32_t n)
    {
        Pieces pieces;
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++)
            pieces.of[u] = load_shared16(raw_part(raw, i, n + u));
        return pieces;
    }

    /* Parts of group @i, from part @n on, to that group's place; and those of @next. */
    template <typename KV, bool values>
    __device__ static __forceinline__ void convert_parts(const Pieces &now, uint32_t raw,
                                                         uint32_t group, uint32_t i, uint32_t n,
                                                         const Lines &next)
    {
        Sources from = {};
        if (next.from)
            from = sources(next, i, n);
#pragma unroll
        for (uint32_t u = 0; u < at_once; u++) {
            const uint32_t row = (n + u) * step, to = (group ^ row << 4) + row * 128;
            put<KV, values>(to, now.of[u].x, now.of[u].y);
            put<KV, values>(to ^ 16, now.of[u].z, now.of[u].w);
        }
        if (next.from)
            copy(next, from, raw, i, n);
    }

    /* Eight elements to shared memory at @to. */
    template <typename KV, bool values>
    __device__ static __forceinline__ void put(uint32_t to, uint32_t low, uint32_t high)
    {
        using Out = std::conditional_t<values, Values, T>;
        uint4 out;
        Narrow<KV>::template widen<false>(out.x, out.y, low);
        Narrow<KV>::template widen<false>(out.z, out.w, high);
        store_shared16(to, make_uint4(from_halves<Out>(out.x), from_halves<Out>(out.y),
                                      from_halves<Out>(out.z), from_halves<Out>(out.w)));
    }
};

} // namespace attnd

#endif

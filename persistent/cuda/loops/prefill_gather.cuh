/*
 * prefill_gather.cuh - keys and values of the prefill loop where they do not come by TMA: rows by
 * cp.async, 16 bytes a lane, whatever pages and strides are.
 *
 * Consumers leave a stage half a step before they want it filled again. So nothing but copies
 * happens in between: each loader warp has a share of a block's rows, in groups of 8, and has found
 * where they lie before the stage is free. Page ids are asked for a block ahead, and places go
 * round by shared memory. Nobody waits for copies: a lane's arrive when they have landed, and
 * consumers fence between what cp.async wrote and what wgmma reads.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_GATHER_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_PREFILL_GATHER_CUH

#include "persistent/cuda/loops/prefill_stages.cuh"

namespace attnd
{

/* A warp's share of a block: at most so many rows, of which a lane finds two or fewer. */
constexpr uint32_t share_groups = portable ? 3 : 6, share_rows = 8 * share_groups;

/* Where the rows of a loader warp's share lie: of K, and of V, in two blocks. */
struct GatherPlaces {
    uint64_t row[2][2][share_rows];
};

__device__ __forceinline__ uint32_t gather_places(uint32_t warp, uint32_t table, bool values)
{
    __shared__ __align__(16) GatherPlaces places[loader_warps];
    return shared_address(places[warp].row[table][values]);
}

/* A loader warp's way through an item that is gathered, block by block from the last to the first.
 * What follows from the lane is computed where it is wanted (thread_anew()): what is kept in local
 * memory instead waits behind all copies in flight.
 * Row r of its share is row r % 8 of the block's group @warp + r / 8 * loader_warps. */
template <typename T, int D, typename Policy> struct Gather {
    using Shape = PrefillShape<D>;
    static constexpr uint32_t groups = Shape::keys / 8; /* of all warps */
    static constexpr uint32_t shares = (groups + loader_warps - 1) / loader_warps;
    /* Chunks of a row of V or K; rows of which a warp copies a part at once; none of theirs is
     * swizzled by `other`. */
    template <bool values>
    static constexpr uint32_t chunks = (values ? Shape::values : D) * (widens<Policy> ? 1 : 2) / 16;
    template <bool values>
    static constexpr uint32_t step = Policy::narrow &&portable ? 1 : 32 / chunks<values>;
    template <bool values> static constexpr uint32_t other = step<values> == 1 ? 8 : 1;
    static_assert(shares <= share_groups, "room for places");
    uint32_t warp;
    uint32_t page[2] = {}; /* of this lane's rows of the next block */

    /* Of row @r of the share in the block that begins with key @first: its key, or one of the
     * item's where there is none. */
    __device__ static __forceinline__ Divided place(const Item &item, int32_t first, uint32_t own,
                                                    uint32_t r)
    {
        const ActiveRun *run = item.run;
        __builtin_assume(__isShared(run));
        const int32_t key = first + int32_t((own + r / 8 * loader_warps) * 8 + r % 8);
        return divided(uint32_t(max(min(key, item.kv_end - 1), item.kv_begin)), run->page_size,
                       run->page_reciprocal);
    }

    /* Asks for the pages of a block. They are not looked at here, so nobody waits. */
    __device__ __forceinline__ void ask(const Item &item, int32_t first)
    {
        const ActiveRun *run = item.run;
        __builtin_assume(__isShared(run));
        const int32_t *pages = run->kv_pages + item.tile.of_entry.page_begin;
        const uint32_t thread = thread_anew(), lane = thread % 32, own = thread / 32 - 1;
        page[0] = uint32_t(__ldcg(pages + place(item, first, own, lane).quotient));
        if (share_rows > 32 && lane < share_rows - 32)
            page[1] = uint32_t(__ldcg(pages + place(item, first, own, lane + 32).quotient));
    }

    /* Where the place of row @r is in its table: in a group those of rows that a lane copies a part
     * of are side by side. */
    template <bool values> __device__ static __forceinline__ uint32_t place_at(uint32_t r)
    {
        constexpr uint32_t each = step<values>;
        return (r / 8 * 8 + r % each * (8 / each) + r % 8 / each) * 8;
    }

    /* Finds where the rows of the block lie whose pages are there, for @table. */
    __device__ __forceinline__ void find(const Item &item, int32_t first, uint32_t table) const
    {
        const ActiveRun *run = item.run;
        __builtin_assume(__isShared(run));
        const attnd_heap_plane &k = run->k_plane, &v = run->v_plane;
        const uint32_t thread = thread_anew(), lane = thread % 32, own = thread / 32 - 1;
        __syncwarp(); /* all have read the places before */
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t r = i * 32 + lane, rest = place(item, first, own, r).rest;
            if (r >= share_rows)
                continue;
            const uint32_t id = page_checked(item, page[i]);
            store_shared_address(
                gather_places(own, table, false) + place_at<false>(r),
                uint64_t(item.k) + kv_bytes<Policy> * (id * k.stride_page + rest * k.stride_token));
            store_shared_address(
                gather_places(own, table, true) + place_at<true>(r),
                uint64_t(item.v) + kv_bytes<Policy> * (id * v.stride_page + rest * v.stride_token));
        }
        __syncwarp();
    }

    /* What a lane's copies of a plane have in common, found before their stage is free. */
    template <bool values> struct Lines {
        uint32_t to[2]; /* of its part of the first row, in even groups of the share and in odd */
        uint32_t from;  /* its rows' places */
        uint32_t inside;
        int32_t left; /* rows behind it that are there */
    };

    /* Of the plane's stage @to. @left: rows of the block that are there. */
    template <bool values>
    __device__ __forceinline__ Lines<values> lines(const Item &item, uint32_t table, int32_t left,
                                                   uint32_t to) const
    {
        const attnd_plan_head &plan = item.run->plan;
        /* Of 24 chunks the first ones are copied twice, by lanes that have no other. */
        constexpr uint32_t lanes = chunks<values> * step<values>;
        const uint32_t thread = thread_anew(), lane = thread % 32 % lanes, own = thread / 32 - 1;
        const uint32_t r = lane / chunks<values>, c = lane % chunks<values>;
        /* What is not there comes from the row's beginning: an address must be mapped. */
        const bool in = values ? Policy::in_vo(plan, c * 8) : Policy::in_qk(plan, c * 8);
        to +=
            place_in_block<D, values>(0, c / 8 * 8) + r * 128 + ((c % 8 ^ r ^ other<values>) << 4);
        return {{to + place_in_block<D, values>(own * 8, 0),
                 to + place_in_block<D, values>((own + loader_warps) * 8, 0)},
                gather_places(own, table, values) + r * (64 / step<values>),
                in ? c * 16 : 0,
                in ? left - int32_t(r + own * 8) : 0};
    }

    /* Are rows copied by copy_in_turns()? */
    template <bool values> static constexpr bool in_turns = chunks<values> *step<values> < 32;

    /* Copies the share of a plane: rows of 16 bits, of which a lane copies the same chunk of every
     * row. Each address is one of two with some bits changed and a constant behind it, and never
     * another sum: see COMPILER.md. */
    template <bool values> __device__ __forceinline__ void copy(const Lines<values> &lines) const
    {
        constexpr uint32_t step = Gather::step<values>, other = Gather::other<values>;
#pragma unroll
        for (uint32_t i = 0; i < shares; i++) {
            if (i + 1 == shares && warp + i * loader_warps >= groups)
                break;
            /* Two groups of the share further on, a whole number of those that lie together. */
            constexpr uint32_t pair = place_in_block<D, values>(2 * loader_warps * 8, 0);
            uint64_t at[8 / step]; /* loaded before a copy: none is moved in front of one */
#pragma unroll
            for (uint32_t n = 0; n < 8 / step; n += 2)
                load_shared_addresses(at[n], at[n + 1], lines.from + i * 64 + n * 8);
#pragma unroll
            for (uint32_t n = 0; n < 8; n += step)
                cp_async16((lines.to[i % 2] ^ ((n ^ other) << 4)) + i / 2 * pair + n * 128,
                           reinterpret_cast<const char *>(at[n / step] + lines.inside),
                           int32_t(i * loader_warps * 8 + n) < lines.left ? 16 : 0);
        }
    }

    /* The same of rows of 24 chunks, two groups of the share at a time: unrolled, the addresses of
     * all of them are more than there are registers, and those that are spilled wait behind the
     * copies. */
    template <bool values> __device__ __forceinline__ void copy_in_turns(Lines<values> lines) const
    {
        constexpr uint32_t pair = place_in_block<D, values>(2 * loader_warps * 8, 0);
        static_assert(step<values> == 1, "a row at once");
#pragma unroll 1
        for (uint32_t group = warp; group < groups; group += 2 * loader_warps) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                if (group + i * loader_warps >= groups)
                    break;
                uint64_t at[8];
#pragma unroll
                for (uint32_t n = 0; n < 8; n += 2)
                    load_shared_addresses(at[n], at[n + 1], lines.from + i * 64 + n * 8);
#pragma unroll
                for (uint32_t n = 0; n < 8; n++)
                    cp_async16((lines.to[i] ^ ((n ^ other<values>) << 4)) + n * 128,
                               reinterpret_cast<const char *>(at[n] + lines.inside),
                               int32_t(i * loader_warps * 8 + n) < lines.left ? 16 : 0);
            }
            lines.to[0] += pair;
            lines.to[1] += pair;
            lines.from += 2 * 64;
            lines.left -= int32_t(2 * loader_warps * 8);
        }
    }

    /* The same of fp8. @left and @to as of lines(). */
    template <bool values>
    __device__ __forceinline__ void convert(const Item &item, uint32_t table, int32_t left,
                                            uint32_t to) const
    {
        if (item.run->plan.kv_dtype == ATTND_FP8_E4M3)
            widen<E4m3, values>(item, table, left, to);
        else
            widen<E5m2, values>(item, table, left, to);
    }

    /* Rows of fp8 through registers: 16 elements a lane, a few lines in flight. */
    template <typename KV, bool values>
    __device__ __forceinline__ void widen(const Item &item, uint32_t table, int32_t left,
                                          uint32_t to) const
    {
        constexpr uint32_t pieces = D / 16, rows = 32 / pieces, at_once = 2;
        const attnd_plan_head &plan = item.run->plan;
        const uint32_t lane = threadIdx.x % 32, c = lane % pieces;
        const bool in = values ? Policy::in_vo(plan, c * 16) : Policy::in_qk(plan, c * 16);
#pragma unroll 1
        for (uint32_t first = lane / pieces; first < share_rows; first += at_once * rows) {
            uint4 piece[at_once];
#pragma unroll
            for (uint32_t i = 0; i < at_once; i++) {
                const uint32_t r = first + i * rows;
                const uint32_t row = (warp + r / 8 * loader_warps) * 8 + r % 8;
                piece[i] = {};
                if (in && int32_t(row) < min(left, Shape::keys))
                    piece[i] = __ldcg(reinterpret_cast<const uint4 *>(load_shared8(
                                          gather_places(warp, table, values) + r * 8)) +
                                      c);
            }
#pragma unroll
            for (uint32_t i = 0; i < at_once; i++) {
                const uint32_t r = first + i * rows;
                const uint32_t row = (warp + r / 8 * loader_warps) * 8 + r % 8;
                if (row >= uint32_t(Shape::keys))
                    continue;
                put<KV>(to + place_in_block<D, values>(row, c * 2), piece[i].x, piece[i].y);
                put<KV>(to + place_in_block<D, values>(row, c * 2 + 1), piece[i].z, piece[i].w);
            }
        }
    }

    /* Eight of them to shared memory at @to. */
    template <typename KV>
    __device__ static __forceinline__ void put(uint32_t to, uint32_t low, uint32_t high)
    {
        uint4 out;
        Narrow<KV>::template widen<false>(out.x, out.y, low);
        Narrow<KV>::template widen<false>(out.z, out.w, high);
        store_shared16(to, make_uint4(from_halves<T>(out.x), from_halves<T>(out.y),
                                      from_halves<T>(out.z), from_halves<T>(out.w)));
    }
};

} // namespace attnd

#endif

/*
 * fused.cuh - new rows of K and V on their way to their pages, and rows of q to where they are
 * read, rotated both: what a launch does in front of attention where an engine asks for it.
 *
 * Whoever needs a new key stores it, and all of them store the same. So no CTA waits for another.
 */
#ifndef ATTND_PERSISTENT_CUDA_ITEMS_FUSED_CUH
#define ATTND_PERSISTENT_CUDA_ITEMS_FUSED_CUH

#include "persistent/cuda/items/item.cuh"
#include "persistent/cuda/machine/element.cuh"
#include "schemas/engine.h"

namespace attnd
{

constexpr uint32_t fused_unit = ATTND_FUSED_UNIT;

/* Rows of a tile: query rows first, then those of K, then those of V. */
struct FusedRows {
    attnd_entry entry;
    int32_t begins; /* the key that the request's first row is */
    uint32_t kv_head;
    uint32_t q_begin, q_count;   /* the first row of the batch, and packed rows */
    uint32_t kv_begin, kv_count; /* rows of the batch */
};

/* The key that the first row of @entry is; below 0 where there are more rows than keys. */
__device__ __forceinline__ int32_t fused_begins(const ActiveRun *run, const attnd_entry &entry,
                                                int32_t kv_len)
{
    __builtin_assume(__isShared(run));
    const uint64_t planned = uint64_t(entry.page_count) * run->page_size;
    return int32_t(min(uint64_t(max(kv_len, 0)), planned)) - int32_t(entry.row_count);
}

/* Four elements of a row, and the four that they are pairs with; or eight that are not rotated. */
struct FusedUnit {
    uint2 a, b;
};

/* Elements 0, 2, 4 and 6 of eight, and the others. */
__device__ __forceinline__ FusedUnit fused_apart(FusedUnit unit)
{
    return {{__byte_perm(unit.a.x, unit.a.y, 0x5410), __byte_perm(unit.b.x, unit.b.y, 0x5410)},
            {__byte_perm(unit.a.x, unit.a.y, 0x7632), __byte_perm(unit.b.x, unit.b.y, 0x7632)}};
}

/* The reverse. */
__device__ __forceinline__ FusedUnit fused_beside(FusedUnit unit)
{
    return {{__byte_perm(unit.a.x, unit.b.x, 0x5410), __byte_perm(unit.a.x, unit.b.x, 0x7632)},
            {__byte_perm(unit.a.y, unit.b.y, 0x5410), __byte_perm(unit.a.y, unit.b.y, 0x7632)}};
}

/* Of each pair (a, b) a cos - b sin and b cos + a sin: the product with b is rounded first, and
 * then the result. */
template <typename T>
__device__ __forceinline__ void fused_turn(FusedUnit *unit, const float (&cosine)[4],
                                           const float (&sine)[4])
{
    const T *const a = reinterpret_cast<const T *>(&unit->a);
    const T *const b = reinterpret_cast<const T *>(&unit->b);
    float x[4], y[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float low = to_float<T>(a[i]), high = to_float<T>(b[i]);
        x[i] = __fmaf_rn(low, cosine[i], -__fmul_rn(high, sine[i]));
        y[i] = __fmaf_rn(low, sine[i], __fmul_rn(high, cosine[i]));
    }
    unit->a = {Pack<T>::pair(x[0], x[1]), Pack<T>::pair(x[2], x[3])};
    unit->b = {Pack<T>::pair(y[0], y[1]), Pack<T>::pair(y[2], y[3])};
}

/* Four elements of T, times @by, as four of fp8. */
template <typename T, typename KV>
__device__ __forceinline__ uint32_t fused_narrowed(uint2 four, float by)
{
    const T *const x = reinterpret_cast<const T *>(&four);
    uint32_t out = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        out |= uint32_t(from_float<KV>(to_float<T>(x[i]) * by).bits) << 8 * i;
    return out;
}

/* Where a new row is stored: its page, and its place there; page ATTND_NONE: nowhere. */
struct FusedPlace {
    uint32_t page, token;
};

/* Asked for first, and looked at last: what else is wanted of memory does not wait for it. */
struct FusedAsked {
    uint32_t page; /* of the plan's list, if there are no slots; else a slot */
    uint32_t token;
};

/* Of row @row of the batch, which is key @key of its request. */
__device__ __forceinline__ FusedAsked fused_ask(const attnd_engine_fused &args,
                                                const ActiveRun *run, uint32_t page_begin,
                                                uint32_t row, int32_t key)
{
    if (args.slots)
        return {uint32_t(__ldcg(reinterpret_cast<const int32_t *>(args.slots) + row)), 0};
    const Divided at = divided(uint32_t(key), run->page_size, run->page_reciprocal);
    return {uint32_t(__ldcg(run->kv_pages + page_begin + at.quotient)), at.rest};
}

/* Clears *good where that is none of the pool's. */
__device__ __forceinline__ FusedPlace fused_place(const attnd_engine_fused &args,
                                                  const ActiveRun *run, FusedAsked asked,
                                                  bool *good)
{
    FusedPlace place = {asked.page, asked.token};
    if (args.slots) {
        if (int32_t(asked.page) < 0)
            return {ATTND_NONE, 0};
        const Divided at = divided(asked.page, run->page_size, run->page_reciprocal);
        place = {at.quotient, at.rest};
    }
    if (place.page < run->pages)
        return place;
    *good = false;
    return {ATTND_NONE, 0};
}

/* The row's angles. Clears *good where the table has none of its position. */
__device__ __forceinline__ const float *fused_row_angles(const attnd_engine_fused &args,
                                                         uint32_t row, int32_t key, bool *good)
{
    int32_t position = max(key, 0); /* of a row in front of the first key: nobody reads it */
    if (args.positions)
        position = __ldcg(reinterpret_cast<const int32_t *>(args.positions) + row);
    if (uint32_t(position) >= args.table_rows) {
        position = 0;
        *good = false;
    }
    return reinterpret_cast<const float *>(args.cos_sin) + uint64_t(position) * args.rotary_dim;
}

/* Stores four elements of K or V, from @d on. */
template <typename T, bool narrow>
__device__ __forceinline__ void fused_store(const ActiveRun *run, char *to, uint32_t d, uint2 four,
                                            float by)
{
    if constexpr (narrow)
        *reinterpret_cast<uint32_t *>(to + d) = run->plan.kv_dtype == ATTND_FP8_E4M3
                                                    ? fused_narrowed<T, E4m3>(four, by)
                                                    : fused_narrowed<T, E5m2>(four, by);
    else
        *reinterpret_cast<uint2 *>(to + d * 2) = four;
}

/* Where the elements of a unit begin in their row. */
struct FusedColumns {
    uint32_t a, b;
    bool turns;
};

__device__ __forceinline__ FusedColumns fused_columns(const attnd_engine_fused &args, bool of_v,
                                                      uint32_t unit)
{
    const bool turns = !of_v && unit * fused_unit < args.rotary_dim;
    if (turns && !args.interleaved)
        return {unit * 4, unit * 4 + args.rotary_dim / 2, true};
    return {unit * 8, unit * 8 + 4, turns};
}

/* A unit of @row, rotated by @angles, a row of the table. */
template <typename T>
__device__ __forceinline__ FusedUnit fused_take(const attnd_engine_fused &args, const T *row,
                                                const FusedColumns &at, const float *angles)
{
    FusedUnit unit = {__ldcg(reinterpret_cast<const uint2 *>(row + at.a)),
                      __ldcg(reinterpret_cast<const uint2 *>(row + at.b))};
    if (!at.turns)
        return unit;
    const float4 c = __ldcg(reinterpret_cast<const float4 *>(angles));
    const float4 s = __ldcg(reinterpret_cast<const float4 *>(angles + args.rotary_dim / 2));
    const float cosine[4] = {c.x, c.y, c.z, c.w}, sine[4] = {s.x, s.y, s.z, s.w};
    if (args.interleaved)
        unit = fused_apart(unit);
    fused_turn<T>(&unit, cosine, sine);
    return args.interleaved ? fused_beside(unit) : unit;
}

/* A row of one head: which it is, of what, and where it comes from. */
struct FusedRow {
    bool of_q, of_v;
    uint32_t row, head; /* of the batch; a head of q, or of K and V */
    int32_t key;        /* of its request, whose page ids begin at page_begin */
    uint32_t page_begin;
    uint64_t from;
};

/* Its place in the engine's tensors. */
__device__ __forceinline__ uint64_t fused_from(const attnd_engine_fused &args, const ActiveRun *run,
                                               const FusedRow &of)
{
    const attnd_plan_head &plan = run->plan;
    uint64_t from = of.of_v ? args.v : args.k;
    uint32_t row_pitch = of.of_v ? args.v_row : args.k_row;
    uint32_t head_pitch = of.of_v ? args.v_head : args.k_head;
    if (of.of_q) {
        from = uint64_t(run->q);
        row_pitch = uint32_t(plan.q_pitch.row);
        head_pitch = uint32_t(plan.q_pitch.head);
    }
    return from + 2 * (uint64_t(of.row) * row_pitch + of.head * head_pitch);
}

/* Row @r of @rows. */
__device__ __forceinline__ FusedRow fused_row(const attnd_engine_fused &args, const ActiveRun *run,
                                              const FusedRows &rows, uint32_t r)
{
    FusedRow of = {r < rows.q_count, false, 0, rows.kv_head, 0, rows.entry.page_begin, 0};
    of.of_v = !of.of_q && r - rows.q_count >= rows.kv_count;
    of.row = rows.kv_begin + r - rows.q_count - (of.of_v ? rows.kv_count : 0);
    if (of.of_q) {
        const Divided at = divided(r, run->plan.group, run->group_reciprocal);
        of.row = rows.q_begin + at.quotient;
        of.head = rows.kv_head * run->plan.group + at.rest;
    }
    of.key = rows.begins + int32_t(of.row - rows.entry.row_begin);
    of.from = fused_from(args, run, of);
    return of;
}

/* Where a row of K or V is kept. */
template <bool narrow>
__device__ __forceinline__ char *fused_to(const ActiveRun *run, const FusedRow &of,
                                          FusedPlace place)
{
    const attnd_heap_plane &plane = of.of_v ? run->v_plane : run->k_plane;
    return (of.of_v ? run->v_base : run->k_base) +
           (place.page * plane.stride_page + place.token * plane.stride_token +
            of.head * plane.stride_head) *
               (narrow ? 1 : 2);
}

/* Unit @u of a row; of q to @turned. @tables: where @narrow, K and V are of fp8. Return: false
 * where a row, a place or a position is out of range. */
template <typename T, bool narrow>
__device__ __forceinline__ bool fused_move(const attnd_engine_fused &args, const ActiveRun *run,
                                           const RunTables *tables, const FusedRow &of, uint32_t u,
                                           char *turned)
{
    __builtin_assume(__isShared(run));
    if (u * fused_unit >= (of.of_v ? run->plan.dim_vo : run->plan.dim_qk))
        return true;
    if (of.row >= args.rows)
        return false;
    bool good = true;
    FusedAsked asked = {0, 0};
    if (!of.of_q)
        asked = fused_ask(args, run, of.page_begin, of.row, of.key);
    const FusedColumns at = fused_columns(args, of.of_v, u);
    const float *angles = nullptr;
    if (at.turns)
        angles = fused_row_angles(args, of.row, of.key, &good) + u * 4;
    const FusedUnit unit = fused_take(args, reinterpret_cast<const T *>(of.from), at, angles);
    if (of.of_q) {
        fused_store<T, false>(run, turned, at.a, unit.a, 1.0f);
        fused_store<T, false>(run, turned, at.b, unit.b, 1.0f);
        return good;
    }
    const FusedPlace place = fused_place(args, run, asked, &good);
    if (place.page == ATTND_NONE)
        return good;
    char *to = fused_to<narrow>(run, of, place);
    const float by = narrow ? kv_reciprocal(*tables, run->plan, of.head, of.of_v) : 1.0f;
    fused_store<T, narrow>(run, to, at.a, unit.a, by);
    fused_store<T, narrow>(run, to, at.b, unit.b, by);
    return good;
}

} // namespace attnd

#endif

/*
 * staged.cuh - attention of one item without tensor cores, for what the fast loops do not
 * take: rotations, strides that do not keep alignment, latents in two planes.
 *
 * All consumers bring 32 keys and values to shared memory as floats (of latents without Hopper's
 * shared memory 16), where keys are rotated in
 * place. So a key is converted and rotated once for all rows of a chunk, and nothing is rounded on
 * the way. A warp has rows of its own, and a lane a key for scores, then some dims for o. A result
 * that is not finite goes the naive way: see Prefill::finite().
 *
 * Nothing is brought ahead of its block: the registers for that made ptxas spill those of prefill,
 * which is in the same kernel.
 */
#ifndef ATTND_PERSISTENT_CUDA_LOOPS_STAGED_CUH
#define ATTND_PERSISTENT_CUDA_LOOPS_STAGED_CUH

#include "persistent/cuda/loops/naive.cuh"
#include "persistent/cuda/machine/barrier.cuh"

namespace attnd
{

constexpr uint32_t staged_warps = consumer_threads / 32;

/* In shared memory, floats: K [keys][k_row], V [keys][columns], Q [rows][D], weights [rows][keys].
 */
template <int D> struct StagedShape {
    static constexpr int keys = portable && D > loop_dim_max ? 16 : 32;
    static constexpr int warp_keys = keys / int(staged_warps); /* that a warp brings */
    static constexpr int at_once = D > loop_dim_max ? 1 : 2;   /* whose loads are in flight */
    /* At most; and half as many where shared memory is less. */
    static constexpr int warp_rows = (D > loop_dim_max ? 2
                                      : D > 128        ? 4
                                                       : 8) >>
                                     (portable && D > 128);
    static constexpr int k_row = D + 4; /* lanes read 16 bytes of a key each: other banks */
    static constexpr int columns = D == latent_dim ? latent_values : D;
    static constexpr int v_offset = keys * k_row, q_offset = v_offset + keys * columns;
    static constexpr int p_offset = q_offset + int(staged_warps) * warp_rows * D;
    static constexpr uint32_t bytes = (p_offset + int(staged_warps) * warp_rows * keys) * 4;
};

/* Keys and values on their way from memory, elements lane, lane + 32, ... of each. */
template <typename KV, int D> struct StagedKeys {
    using Shape = StagedShape<D>;
    KV k[Shape::at_once][D / 32], v[Shape::at_once][Shape::columns / 32];

    /* From key @first on; zeros where there is none. */
    template <typename Policy>
    __device__ __forceinline__ void ask(const Item &item, int32_t first, uint32_t lane)
    {
        const ActiveRun *run = item.run;
#pragma unroll
        for (int b = 0; b < Shape::at_once; b++) {
            const bool there = first + b < item.kv_end;
            const int32_t at = there ? first + b : item.kv_end - 1;
            const KV *k_row =
                kv_row<KV>(item, item.tile.of_entry, run->k_base, run->k_plane, item.kv_head, at);
            const KV *v_row =
                kv_row<KV>(item, item.tile.of_entry, run->v_base, run->v_plane, item.kv_head, at);
#pragma unroll
            for (int i = 0; i < D / 32; i++) {
                k[b][i] = KV{};
                if (there && Policy::in_qk(run->plan, i * 32 + lane))
                    k[b][i] = load_element(k_row + i * 32 + lane);
            }
#pragma unroll
            for (int i = 0; i < Shape::columns / 32; i++) {
                v[b][i] = KV{};
                if (there && Policy::in_vo(run->plan, i * 32 + lane))
                    v[b][i] = load_element(v_row + i * 32 + lane);
            }
        }
    }

    /* To places @place and behind of the block in @shared, whose first is key @first. */
    template <typename Policy>
    __device__ __forceinline__ void put(const Item &item, float *shared, int place, int32_t first,
                                        uint32_t lane) const
    {
#pragma unroll
        for (int b = 0; b < Shape::at_once; b++) {
            float *const k_to = shared + (place + b) * Shape::k_row;
            float *const v_to = shared + Shape::v_offset + (place + b) * Shape::columns;
#pragma unroll
            for (int i = 0; i < D / 32; i++)
                k_to[i * 32 + lane] = to_float<KV>(k[b][i]);
#pragma unroll
            for (int i = 0; i < Shape::columns / 32; i++)
                v_to[i * 32 + lane] = to_float<KV>(v[b][i]);
            __syncwarp();
            Policy::turn_key(item, k_to, first + b, lane);
        }
    }
};

/* A warp's rows of a chunk: at most @count, one behind the other. */
template <typename T, int D, typename Policy, int count> struct StagedRows {
    using Shape = StagedShape<D>;
    float o[count][D / 32], m[count], l[count]; /* l: of this lane's keys */
    int32_t end[count];

    /* Packed row @r of the item and what follows it: Q, and what each row sees. Rows that are not
     * there see nothing. @q: this warp's, in shared memory. */
    __device__ __forceinline__ void begin(const Item &item, uint32_t r, uint32_t rows, float *q,
                                          uint32_t lane)
    {
        const ActiveRun *run = item.run;
        const attnd_plan_head &plan = run->plan;
        Policy::rows(item, r);
#pragma unroll
        for (int i = 0; i < count; i++) {
            const bool there = uint32_t(i) < rows;
            const Divided at =
                divided(there ? r + uint32_t(i) : 0, plan.group, run->group_reciprocal);
            const uint32_t row = item.tile.row_begin + at.quotient;
            const T *from = reinterpret_cast<const T *>(run->q) + int64_t(row) * plan.q_pitch.row +
                            int64_t(item.kv_head * plan.group + at.rest) * plan.q_pitch.head;
            end[i] = there ? visible_end(item, row) : item.kv_begin;
            m[i] = -INFINITY;
            l[i] = 0.0f;
#pragma unroll
            for (int d = 0; d < D / 32; d++) {
                const uint32_t e = d * 32 + lane;
                o[i][d] = 0.0f;
                q[i * D + e] = there && Policy::in_qk(plan, e) ? to_float<T>(from[e]) : 0.0f;
            }
            __syncwarp();
            Policy::turn_query(item, q + i * D, uint32_t(i), lane);
        }
        __syncwarp();
    }

    /* The block of keys in @shared, of which this lane has key @key; INT32_MAX: none. @p: this
     * warp's weights. */
    __device__ __forceinline__ void see(const Item &item, const float *shared, const float *q,
                                        float *p, int32_t key, uint32_t lane)
    {
        float s[count] = {};
        const float4 *const k = reinterpret_cast<const float4 *>(shared + lane * Shape::k_row);
        const int parts = int(Policy::template dim_qk<D>(item.run->plan) / 4);
#pragma unroll 4
        for (int d = 0; d < parts; d++) {
            const float4 a = k[d];
#pragma unroll
            for (int i = 0; i < count; i++) {
                const float4 b = reinterpret_cast<const float4 *>(q + i * D)[d];
                s[i] = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, s[i]))));
            }
        }
        __syncwarp(); /* weights of the block before have been read */
#pragma unroll
        for (int i = 0; i < count; i++) {
            s[i] = key < end[i] ? Policy::row_score(item, uint32_t(i), s[i], key) : -INFINITY;
            float top = s[i];
#pragma unroll
            for (int step = 16; step; step /= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            top = fmaxf(top, m[i]);
            const float base = top == -INFINITY ? 0.0f : top, fade = exp2_fast(m[i] - base);
            const float weight = exp2_fast(s[i] - base);
            m[i] = top;
            l[i] = fmaf(l[i], fade, weight);
            if (Shape::keys == 32 || lane < Shape::keys)
                p[i * Shape::keys + lane] = weight;
#pragma unroll
            for (int d = 0; d < D / 32; d++)
                o[i][d] *= fade;
        }
        __syncwarp();
        const float *const v = shared + Shape::v_offset + lane;
#pragma unroll 1
        for (int j = 0; j < Shape::keys; j += 4) {
            float4 weights[count];
#pragma unroll
            for (int i = 0; i < count; i++)
                weights[i] = *reinterpret_cast<const float4 *>(p + i * Shape::keys + j);
#pragma unroll
            for (int d = 0; d < Shape::columns / 32; d++) {
                const float *const at = v + j * Shape::columns + d * 32;
                const float a = at[0], b = at[Shape::columns], c = at[2 * Shape::columns],
                            e = at[3 * Shape::columns];
#pragma unroll
                for (int i = 0; i < count; i++)
                    o[i][d] = fmaf(weights[i].x, a,
                                   fmaf(weights[i].y, b,
                                        fmaf(weights[i].z, c, fmaf(weights[i].w, e, o[i][d]))));
            }
        }
    }

    /* o and lse of the rows from packed row @r on, or partials. */
    __device__ __forceinline__ void store(const Item &item, uint32_t r, uint32_t rows,
                                          uint32_t lane)
    {
        const ActiveRun *run = item.run;
        float probe = 0.0f;
#pragma unroll
        for (int i = 0; i < count; i++) {
#pragma unroll
            for (int step = 16; step; step /= 2)
                l[i] += __shfl_xor_sync(0xffffffffu, l[i], step);
            probe += l[i] * 0.0f;
#pragma unroll
            for (int d = 0; d < D / 32; d++)
                probe = fmaf(o[i][d], 0.0f, probe);
        }
        if (__any_sync(0xffffffffu, !isfinite(probe))) {
            attend_naive<T, D, Policy>(item, r, r + rows, 1);
            return;
        }
#pragma unroll
        for (int i = 0; i < count; i++) {
            if (uint32_t(i) >= rows)
                break;
            const Divided at = divided(r + uint32_t(i), run->plan.group, run->group_reciprocal);
            const uint32_t row = item.tile.row_begin + at.quotient;
            const bool sees = end[i] > Policy::first_key(item, row) && Policy::shows_any(item, row);
            naive_store<T, D, Policy>(item, row, item.kv_head * run->plan.group + at.rest,
                                      at.quotient, m[i], l[i], o[i], sees, lane);
        }
    }
};

/* An item, @count rows a warp at a time. All consumers. A call: see attend_naive(). */
template <typename T, typename KV, int D, typename Policy, int count>
__device__ __noinline__ void attend_staged(const Item &item)
{
    using Shape = StagedShape<D>;
    const uint32_t lane = threadIdx.x % 32, warp = consumer_thread() / 32;
    const int mine = int(warp) * Shape::warp_keys; /* this warp's keys of a block */
    float *const shared = reinterpret_cast<float *>(cta_buffer());
    float *const q = shared + Shape::q_offset + warp * (Shape::warp_rows * D);
    float *const p = shared + Shape::p_offset + warp * (Shape::warp_rows * Shape::keys);
    constexpr uint32_t chunk = staged_warps * count;
    /* Keys that no row sees are not brought. */
    const int32_t limit = visible_end(item, item.tile.row_begin + item.tile.row_count - 1);

    if (lane == 0)
        add_relaxed(cta_naive(), 1u);
#pragma unroll 1
    for (uint32_t first = 0; first < item.packed_rows; first += chunk) {
        const uint32_t left = min(item.packed_rows - first, chunk);
        const uint32_t most = (left + staged_warps - 1) / staged_warps; /* rows of a warp */
        const uint32_t r = first + warp * most;
        const uint32_t rows = warp * most < left ? min(most, left - warp * most) : 0;
        StagedRows<T, D, Policy, count> state;
        consumers_sync(); /* nobody reads what lay here */
        state.begin(item, r, rows, q, lane);
#pragma unroll 1
        for (int32_t key = item.kv_begin; key < limit; key += Shape::keys) {
            /* All are done with the block before, and all end at the same one. */
            if (consumers_any(peek_cta(&item.failed)))
                break;
            if (consumer_thread() == 0 && (key - item.kv_begin) % naive_portion == 0)
                tally_gpu(&item.live->portions, 1u);
#pragma unroll 1
            for (int b = 0; b < Shape::warp_keys; b += Shape::at_once) {
                StagedKeys<KV, D> keys;
                keys.template ask<Policy>(item, key + mine + b, lane);
                keys.template put<Policy>(item, shared, mine + b, key + mine + b, lane);
            }
            consumers_sync();
            const bool has = Shape::keys == 32 || lane < Shape::keys;
            if (rows)
                state.see(item, shared, q, p, has ? key + int32_t(lane) : INT32_MAX, lane);
        }
        if (rows)
            state.store(item, r, rows, lane);
    }
    consumers_sync(); /* what comes next may be anybody's */
    if (lane == 0)
        add_relaxed(cta_naive(), 0u - 1);
}

} // namespace attnd

#endif

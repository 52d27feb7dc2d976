/*
 * gpu_drain_shapes.cuh - what gpu_drain.cu executes.
 */
#ifndef ATTND_BENCH_GPU_DRAIN_SHAPES_CUH
#define ATTND_BENCH_GPU_DRAIN_SHAPES_CUH

#include "bench/gpu_drain_reference.cuh"

namespace
{

/* The same with a variant: a window of so many keys, a cap, slopes, rows of V of another length, K
 * and V of 8 bits, parts of so many keys. */
constexpr Shape windowed(Shape shape, uint32_t window)
{
    shape.window = window;
    return shape;
}
constexpr Shape capped(Shape shape, float soft_cap)
{
    shape.soft_cap = soft_cap;
    return shape;
}
constexpr Shape sloped(Shape shape)
{
    shape.alibi = true;
    return shape;
}
constexpr Shape with_values(Shape shape, uint32_t dim_vo)
{
    shape.dim_vo = dim_vo;
    return shape;
}
constexpr Shape over(uint32_t kv_dtype, Shape shape)
{
    shape.kv_dtype = kv_dtype;
    return shape;
}
constexpr Shape in_splits(Shape shape, uint32_t keys)
{
    shape.fixed_split = keys;
    return shape;
}

/* The same with requests of all lengths from @keys on. */
constexpr Shape from_keys(uint32_t keys, Shape shape)
{
    shape.least = keys;
    return shape;
}

constexpr Shape shapes[] = {
    {"decode_64x8192", 64, 1, 8192, 16, 32, 8, 128, ATTND_FP16, true, 2, 20},
    {"decode_1x8192", 1, 1, 8192, 16, 32, 8, 128, ATTND_FP16, true, 10, 200},
    from_keys(1000, {"engine_a_32_8", 8, 1, 1259, 16, 32, 8, 128, ATTND_FP16, true, 16, 100}),
    from_keys(1000, {"engine_a_8_1", 8, 1, 1259, 16, 8, 1, 128, ATTND_FP16, true, 32, 100}),
    from_keys(1000, {"engine_a_16_8", 8, 1, 1259, 16, 16, 8, 128, ATTND_BF16, true, 16, 100}),
    from_keys(500, {"engine_b_32_8", 64, 1, 3839, 16, 32, 8, 128, ATTND_FP16, true, 2, 50}),
    from_keys(500, {"engine_b_8_1", 64, 1, 3839, 16, 8, 1, 128, ATTND_FP16, true, 8, 50}),
    from_keys(2000, {"engine_s_32_8", 32, 5, 2527, 16, 32, 8, 128, ATTND_FP16, true, 4, 50}),
    from_keys(2000, {"engine_s_8_1", 32, 5, 2527, 16, 8, 1, 128, ATTND_FP16, true, 16, 50}),
    from_keys(2000, {"engine_s_16_8", 32, 5, 2527, 16, 16, 8, 128, ATTND_BF16, true, 4, 50}),
    from_keys(100, {"engine_e_32_8", 256, 1, 355, 16, 32, 8, 128, ATTND_FP16, true, 4, 50}),
    from_keys(100, {"engine_e_32_32", 256, 1, 355, 16, 32, 32, 128, ATTND_FP16, true, 2, 30}),
    from_keys(100, {"engine_e_16_2", 256, 1, 355, 16, 16, 2, 128, ATTND_FP16, true, 16, 50}),
    {"decode_256x1024", 256, 1, 1024, 16, 32, 8, 128, ATTND_FP16, true, 2, 50},
    {"decode_256x1024_8_1", 256, 1, 1024, 16, 8, 1, 128, ATTND_FP16, true, 8, 50},
    {"decode_1x128", 1, 1, 128, 16, 32, 8, 128, ATTND_FP16, true, 10, 400},
    {"decode_1x32000_8_1", 1, 1, 32000, 16, 8, 1, 128, ATTND_FP16, true, 16, 100},
    {"decode_1x131072_8_1", 1, 1, 131072, 16, 8, 1, 128, ATTND_FP16, true, 8, 100},
    {"decode_1x131072", 1, 1, 131072, 16, 32, 8, 128, ATTND_FP16, true, 2, 40},
    {"decode_8x4096", 8, 1, 4096, 16, 32, 8, 128, ATTND_FP16, true, 4, 100},
    {"decode_32x4096", 32, 1, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 50},
    {"decode_16x4096_4rows", 16, 4, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 50},
    {"decode_16x32768", 16, 1, 32768, 16, 32, 8, 128, ATTND_FP16, true, 2, 20},
    {"prefill_8192_p128", 1, 8192, 8192, 128, 32, 8, 128, ATTND_FP16, true, 4, 20},
    {"prefill_8192_p16", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 20},
    {"prefill_8192_p8", 1, 8192, 8192, 8, 32, 8, 128, ATTND_FP16, true, 4, 10},
    {"prefill_8192_p1", 1, 8192, 8192, 1, 32, 8, 128, ATTND_FP16, true, 4, 10},
    {"prefill_16384_p128", 1, 16384, 16384, 128, 32, 8, 128, ATTND_FP16, true, 2, 12},
    {"prefill_16384_p16", 1, 16384, 16384, 16, 32, 8, 128, ATTND_FP16, true, 2, 12},
    {"chunk_1024_at_16384", 1, 1024, 16384, 16, 32, 8, 128, ATTND_FP16, true, 3, 20},
    {"chunk_1024_at_16384_p1", 1, 1024, 16384, 1, 32, 8, 128, ATTND_FP16, true, 3, 20},
    {"chunks_4x1000_p16", 4, 1000, 4001, 16, 32, 8, 128, ATTND_FP16, true, 4, 20},
    {"chunks_4x1000_p1", 4, 1000, 4001, 1, 32, 8, 128, ATTND_FP16, true, 4, 20},
    {"prompt_2000_p16", 1, 2000, 2000, 16, 32, 8, 128, ATTND_FP16, true, 8, 40},
    {"prompt_2000_p1", 1, 2000, 2000, 1, 32, 8, 128, ATTND_FP16, true, 8, 40},
    {"prompt_1000_p16", 1, 1000, 1000, 16, 32, 8, 128, ATTND_FP16, true, 8, 40},
    {"prompt_2000_28_4", 1, 2000, 2000, 16, 28, 4, 128, ATTND_FP16, true, 8, 40},
    {"prompt_2000_8_1", 1, 2000, 2000, 16, 8, 1, 128, ATTND_FP16, true, 16, 40},
    {"prompt_2000_40_8", 1, 2000, 2000, 16, 40, 8, 128, ATTND_FP16, true, 8, 40},
    {"prompt_2000_64_8", 1, 2000, 2000, 16, 64, 8, 128, ATTND_FP16, true, 8, 40},
    {"prompt_2000_32_32", 1, 2000, 2000, 16, 32, 32, 128, ATTND_FP16, true, 4, 30},
    {"prompt_2000_71_71", 1, 2000, 2000, 16, 71, 71, 128, ATTND_FP16, true, 2, 20},
    {"chunks_4x1000_28_4", 4, 1000, 4001, 16, 28, 4, 128, ATTND_FP16, true, 4, 20},
    {"chunks_4x1000_32_32", 4, 1000, 4001, 16, 32, 32, 128, ATTND_FP16, true, 2, 20},
    {"chunks_4x1000_71_71", 4, 1000, 4001, 16, 71, 71, 128, ATTND_FP16, true, 1, 10},
    {"verify_5_32_8", 32, 5, 2264, 16, 32, 8, 128, ATTND_FP16, true, 4, 40},
    {"verify_5_32_8_p1", 32, 5, 2264, 1, 32, 8, 128, ATTND_FP16, true, 4, 40},
    {"verify_5_28_4", 32, 5, 2264, 16, 28, 4, 128, ATTND_FP16, true, 8, 40},
    {"verify_5_8_1", 32, 5, 2264, 16, 8, 1, 128, ATTND_FP16, true, 32, 40},
    {"rows_64_at_32768", 1, 64, 32768, 16, 32, 8, 128, ATTND_FP16, true, 3, 50},
    {"rows_16_at_32768", 1, 16, 32768, 16, 32, 8, 128, ATTND_FP16, true, 3, 50},
    {"rows_128_at_32768", 1, 128, 32768, 16, 32, 8, 128, ATTND_FP16, true, 3, 50},
    {"prefill_4096_hd64_p128", 2, 4096, 4096, 128, 32, 8, 64, ATTND_FP16, true, 4, 10},
    {"prefill_4096_hd64", 2, 4096, 4096, 16, 32, 8, 64, ATTND_FP16, true, 4, 10},
    {"prefill_4096_hd256_p128", 1, 4096, 4096, 128, 16, 8, 256, ATTND_BF16, true, 4, 10},
    {"prefill_4096_hd256", 1, 4096, 4096, 16, 16, 8, 256, ATTND_BF16, true, 4, 10},
    {"prefill_4096_bf16", 2, 4096, 4096, 16, 32, 8, 128, ATTND_BF16, true, 4, 10},
    {"prefill_4096_rising", 1, 4096, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 10, 40},
    {"prefill_4096_steep", 1, 4096, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 10, 150},
    {"prefill_4096_rising_hd64", 1, 4096, 4096, 16, 32, 8, 64, ATTND_FP16, true, 2, 10, 40},
    {"prefill_4096_rising_hd256", 1, 4096, 4096, 16, 16, 8, 256, ATTND_BF16, true, 2, 10, 20},
    {"naive_524288", 1, 4096, 524288, 128, 8, 2, 64, ATTND_FP16, true, 1, 1, 0, true},
    {"decode_64x4096", 64, 1, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 20},
    windowed({"decode_64x32768_w4096", 64, 1, 32768, 16, 32, 8, 128, ATTND_FP16, true, 2, 20},
             4096),
    capped({"decode_64x8192_cap", 64, 1, 8192, 16, 32, 8, 128, ATTND_FP16, true, 2, 20}, 50),
    windowed({"prefill_8192_w1024", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 20}, 1024),
    windowed({"prefill_8192_w16384", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 20},
             16384),
    capped({"prefill_8192_cap", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 20}, 50),
    capped({"prefill_4096_cap_rising", 1, 4096, 4096, 16, 32, 8, 128, ATTND_FP16, true, 2, 10, 40},
           50),
    sloped({"prefill_8192_alibi", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 20}),
    {"decode_32x4096_hd64", 32, 1, 4096, 16, 32, 8, 64, ATTND_FP16, true, 4, 20},
    {"decode_32x4096_hd256", 32, 1, 4096, 16, 16, 8, 256, ATTND_BF16, true, 2, 20},
    {"decode_32x4096_hd80", 32, 1, 4096, 16, 32, 8, 80, ATTND_FP16, true, 4, 20},
    {"prefill_4096_hd96", 1, 4096, 4096, 16, 32, 32, 96, ATTND_FP16, true, 4, 10},
    with_values({"prefill_4096_192_128", 1, 4096, 4096, 16, 16, 16, 192, ATTND_BF16, true, 4, 10},
                128),
    with_values({"prompt_2000_192_128", 1, 2000, 2000, 16, 32, 32, 192, ATTND_BF16, true, 8, 40},
                128),
    with_values({"prompt_2000_192_128_p1", 1, 2000, 2000, 1, 32, 32, 192, ATTND_BF16, true, 8, 40},
                128),
    with_values({"chunks_4x1000_192_128", 4, 1000, 4001, 16, 32, 32, 192, ATTND_BF16, true, 4, 20},
                128),
    with_values({"decode_32x4096_192_128", 32, 1, 4096, 16, 16, 16, 192, ATTND_BF16, true, 2, 20},
                128),
    with_values({"mla_64x8192", 64, 1, 8192, 64, 128, 1, 576, ATTND_BF16, true, 2, 20}, 512),
    with_values({"mla_64x8192_16heads", 64, 1, 8192, 64, 16, 1, 576, ATTND_BF16, true, 2, 20}, 512),
    with_values({"mla_1x32000", 1, 1, 32000, 64, 128, 1, 576, ATTND_BF16, true, 2, 20}, 512),
    with_values({"mla_1x32000_16heads", 1, 1, 32000, 64, 16, 1, 576, ATTND_BF16, true, 4, 20}, 512),
    with_values({"mla_8x1130", 8, 1, 1130, 64, 128, 1, 576, ATTND_BF16, true, 8, 20}, 512),
    with_values({"mla_8x1130_16heads", 8, 1, 1130, 64, 16, 1, 576, ATTND_BF16, true, 8, 20}, 512),
    from_keys(500,
              with_values({"mla_b", 64, 1, 3839, 64, 128, 1, 576, ATTND_BF16, true, 2, 20}, 512)),
    from_keys(
        500,
        with_values({"mla_b_16heads", 64, 1, 3839, 64, 16, 1, 576, ATTND_BF16, true, 2, 20}, 512)),
    over(ATTND_FP8_E4M3,
         {"decode_64x8192_e4m3", 64, 1, 8192, 16, 32, 8, 128, ATTND_FP16, true, 2, 20}),
    over(ATTND_FP8_E5M2,
         {"decode_64x8192_e5m2", 64, 1, 8192, 16, 32, 8, 128, ATTND_BF16, true, 2, 20}),
    over(ATTND_FP8_E4M3,
         {"decode_32x4096_hd64_e4m3", 32, 1, 4096, 16, 32, 8, 64, ATTND_BF16, true, 4, 20}),
    over(ATTND_FP8_E4M3,
         {"decode_16x4096_2rows_e4m3", 16, 2, 4096, 1, 16, 8, 256, ATTND_FP16, true, 2, 20}),
    over(ATTND_FP8_E4M3,
         {"prefill_8192_e4m3", 1, 8192, 8192, 16, 32, 8, 128, ATTND_FP16, true, 4, 10}),
    over(ATTND_FP8_E4M3,
         {"prefill_8192_e4m3_p1", 1, 8192, 8192, 1, 32, 8, 128, ATTND_FP16, true, 4, 10}),
    over(ATTND_FP8_E5M2,
         {"prefill_8192_e5m2_bf16", 1, 8192, 8192, 16, 32, 8, 128, ATTND_BF16, true, 4, 10}),
    over(ATTND_FP8_E4M3,
         {"chunks_4x1000_e4m3", 4, 1000, 4001, 16, 32, 8, 128, ATTND_FP16, true, 4, 20}),
    over(ATTND_FP8_E4M3,
         {"prompt_2000_e4m3", 1, 2000, 2000, 16, 32, 8, 128, ATTND_FP16, true, 8, 40}),
    over(ATTND_FP8_E4M3,
         {"prefill_4096_hd256_e4m3", 1, 4096, 4096, 16, 16, 8, 256, ATTND_FP16, true, 4, 10}),
    over(ATTND_FP8_E5M2,
         {"prefill_4096_hd64_e5m2", 2, 4096, 4096, 16, 32, 8, 64, ATTND_BF16, true, 4, 10}),
    with_values({"mla_8x4096_2rows_p1", 8, 2, 4096, 1, 128, 1, 576, ATTND_FP16, true, 4, 20}, 512),
    in_splits({"decode_8x4096_s512", 8, 1, 4096, 16, 32, 8, 128, ATTND_FP16, true, 4, 100}, 512),
};

} // namespace

#endif

/* gpu - the CUDA worker through the service, over pools in device memory, beside its peers.
 *
 * Both sides are timed by event pairs around the call, in a stream where nothing else is; peers are
 * launched, this service's doorbell is rung. An empty pair costs both the same (empty_event_us).
 *
 * fp16, head_dim 128, 32 and 8 heads, shuffled pages of 16 unless a name says otherwise. Everything
 * is of one run, because only ratios within a run count: a card's clock follows its power. First
 * the peers (peers.py, peer_flashinfer), alone; then the shapes with the service in `exclusive`,
 * and variants in others; then `elastic`; then with SMs reserved; then `shared`, with a
 * neighbour; last what kills the worker. Run it under MPS:
 *
 *   bench/gpu --spawn --record DIR
 *
 * Rates count what is needed: K and V of a decode once, 4 x dim x heads x visible pairs of a
 * prefill. */
#include "bench/gpu/contract.h"
#include "bench/gpu/crowd.h"
#include "bench/gpu/engine.h"
#include "bench/gpu/faults.h"
#include "bench/gpu/idle_tax.h"
#include "bench/gpu/latency.h"
#include "bench/gpu/peers.h"
#include "bench/gpu/plan_device.h"
#include "bench/gpu/trace.h"
#include "bench/support/private_service.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum unit { US, GBPS, TFLOPS };

struct shape {
    const char *name, *suffix; /* together the figure's name */
    uint32_t layers, requests, qo_len, kv_len, page_size, rounds;
    enum unit unit;
    double reach;
    const char *peer; /* its time is what ours is put over */
    double over;      /* the reach of that ratio; 0: 1 */
};

/* Layers: what runs in turn is far more than the 50 MB of L2. */
static const struct shape decode_large = {
    "decode_64x8192", "_gbps", 2, 64, 1, 8192, 16, 50, GBPS, 3000, "flashinfer", 0};
static const struct shape prefill_8192 = {
    "prefill_8192", "_tflops", 4, 1, 8192, 8192, 128, 30, TFLOPS, 600, "cudnn", 0};
static const struct shape decode_small = {"decode_8x4096", "_us", 4, 8, 1, 4096, 16, 200, US, 52,
                                          "flashinfer",    0};
static const struct shape others[] = {
    {"decode_1x8192", "_us", 10, 1, 1, 8192, 16, 400, US, 19, "flashinfer", 0},
    {"prefill_16384", "_tflops", 2, 1, 16384, 16384, 128, 12, TFLOPS, 620, "cudnn", 0},
    {"chunk_1024_at_16384", "_us", 3, 1, 1024, 16384, 16, 50, US, 440, "fa3", 0},
    {"rows_64_at_32768", "_us", 3, 1, 64, 32768, 16, 100, US, NAN, "flashinfer", 0.9},
};

static struct bench_uniform uniform_of(const struct shape *shape)
{
    return (struct bench_uniform){.dtype = ATTND_DTYPE_FP16,
                                  .layers = shape->layers,
                                  .requests = shape->requests,
                                  .qo_len = shape->qo_len,
                                  .kv_len = shape->kv_len,
                                  .page_size = shape->page_size,
                                  .heads_q = 32,
                                  .heads_kv = 8,
                                  .dim = 128,
                                  .memory_kind = ATTND_MEMORY_DEVICE};
}

/* What a time of this shape is, in its unit. */
static double value_of(const struct shape *shape, double us)
{
    const struct bench_uniform uniform = uniform_of(shape);

    switch (shape->unit) {
    case GBPS:
        return (double)bench_uniform_kv_bytes(&uniform) * 1e-3 / us;
    case TFLOPS:
        return bench_uniform_operations(&uniform) * 1e-6 / us;
    default:
        return us;
    }
}

static void write_notes(const struct shape *shape, const struct gpu_times *times, char *notes,
                        size_t notes_bytes)
{
    static const char *const labels[][2] = {
        {"flashinfer", "FlashInfer"}, {"cudnn", "cuDNN"}, {"fa2", "FA2"}, {"fa3", "FA3"}};
    FILE *out = fmemopen(notes, notes_bytes, "w");

    notes[0] = 0;
    if (!out)
        return;
    fprintf(out, "%.1f us; by rings %.1f, of which tiles %.1f", times->stream_us, times->ring_us,
            times->tile_us);
    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        double us = gpu_peer_us(labels[i][0], shape->name);

        if (us > 0)
            fprintf(out, ", %s %.4g", labels[i][1], value_of(shape, us));
    }
    if (shape->unit == GBPS && gpu_peer("read_gbps") > 0)
        fprintf(out, ", reading alone %.4g", gpu_peer("read_gbps"));
    if (shape->unit == TFLOPS && gpu_peer("matmul_8192_tflops") > 0)
        fprintf(out, ", matmul %.4g", gpu_peer("matmul_8192_tflops"));
    if (shape->unit == US && gpu_peer("empty_event_us") > 0)
        fprintf(out, ", an empty kernel %.3g", gpu_peer("empty_event_us"));
    fclose(out); /* what did not fit is missing at the end */
}

/* Cards differ, and a card from hour to hour; the ratio of two times of one run is what lasts. */
static void put_over_peer(struct bench_suite *suite, const struct shape *shape, double us)
{
    double peer_us = gpu_peer_us(shape->peer, shape->name);
    char figure[64], notes[96];

    if (!(peer_us > 0)) {
        printf("gpu: no time of %s for %s: no ratio to it\n", shape->peer, shape->name);
        return;
    }
    snprintf(figure, sizeof(figure), "%s_over_%s", shape->name, shape->peer);
    snprintf(notes, sizeof(notes), "%.1f us over %.1f us", us, peer_us);
    bench_suite_figure(suite, figure, us / peer_us, "ratio", "lower",
                       shape->over > 0 ? shape->over : 1, notes);
}

/* Return: the time of a call in a stream, microseconds; 0 after a failure. */
static double time_shape(struct bench_suite *suite, const struct shape *shape,
                         struct gpu_times *times)
{
    const struct bench_uniform uniform = uniform_of(shape);
    uint64_t count = shape->rounds * suite->rounds / 100;

    bench_suite_go_on(suite);
    *times = (struct gpu_times){0};
    if (!gpu_measure(suite, &uniform, count ? count : 1, times))
        return 0;
    return times->stream_us;
}

static double measure_shape(struct bench_suite *suite, const struct shape *shape)
{
    static const char *const units[] = {"us", "GB/s", "TFLOP/s"};
    struct gpu_times times;
    double us = time_shape(suite, shape, &times);
    char figure[64], notes[256];

    if (!(us > 0))
        return 0;
    snprintf(figure, sizeof(figure), "%s%s", shape->name, shape->suffix);
    write_notes(shape, &times, notes, sizeof(notes));
    bench_suite_figure(suite, figure, value_of(shape, us), units[shape->unit],
                       shape->unit == US ? "lower" : "higher", shape->reach, notes);
    put_over_peer(suite, shape, us);
    return us;
}

/* The same prompt in pages of 16 and of 128, in turns: the card's clock wanders with its power, by
 * more than what is looked for. The median of the ratios of neighbours. */
static void measure_small_pages(struct bench_suite *suite, const struct shape *prefill)
{
    enum { TURNS = 7 };
    struct shape small = *prefill;
    struct gpu_times times;
    uint64_t ratios[TURNS]; /* in millionths */
    double large_us = 0, small_us = 0;
    char notes[160];

    small.page_size = 16;
    for (int turn = 0; turn < TURNS; turn++) {
        large_us = time_shape(suite, prefill, &times);
        small_us = time_shape(suite, &small, &times);
        if (!(small_us > 0) || !(large_us > 0))
            return;
        ratios[turn] = (uint64_t)(large_us / small_us * 1e6);
    }
    const double ratio = (double)bench_p50(ratios, TURNS) * 1e-6; /* sorts them */
    snprintf(notes, sizeof(notes),
             "median of %d turns, %.3f to %.3f; the last: %.1f us in pages of 128, %.1f us of 16",
             TURNS, (double)ratios[0] * 1e-6, (double)ratios[TURNS - 1] * 1e-6, large_us, small_us);
    bench_suite_figure(suite, "prefill_page16_over_page128", ratio, "ratio", "higher", 0.95, notes);
}

/* Kernels that the service has launched so far. */
static uint32_t launches(struct bench_suite *suite)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    uint32_t count = reply ? reply->status->launches : 0;

    attnd__reply__free_unpacked(reply, NULL);
    return count;
}

static const struct shape submit = {"submit_rtt", "_us", 4, 1, 1, 128, 16, 10000, US, 10, "", 0};

/* Return: whether there is a figure. */
static bool measure_submit(struct bench_suite *suite, const char *figure, double reach)
{
    struct gpu_times times;
    char notes[200];

    if (!(time_shape(suite, &submit, &times) > 0))
        return false;
    snprintf(notes, sizeof(notes),
             "p50; %.2f us between first and last item; in a stream %.1f us by event pairs; launch "
             "and sync of an empty kernel %.1f us",
             times.tile_us, times.stream_us, gpu_peer("launch_sync_us"));
    bench_suite_figure(suite, figure, times.ring_us, "us", "lower", reach, notes);
    return true;
}

/* Where kernels stay, a run launches none. */
static void measure_submits_and_launches(struct bench_suite *suite)
{
    char notes[200];
    uint32_t before = launches(suite);

    if (!measure_submit(suite, "submit_rtt_us", submit.reach))
        return;
    snprintf(
        notes, sizeof(notes),
        "%u kernels for %llu runs; a run in a stream is one kernel of one thread, the engine's",
        launches(suite) - before, 2ull * submit.rounds * suite->rounds / 100);
    bench_suite_figure(suite, "launches_per_run",
                       (double)(launches(suite) - before) * 50 /
                           ((double)submit.rounds * (double)suite->rounds),
                       "kernels", "lower", 0, notes);
}

static void measure_shared(struct bench_suite *suite, const struct shape *decode,
                           double exclusive_us)
{
    Attnd__Reply *reply = bench_suite_status(suite);
    struct gpu_times times;
    double us = time_shape(suite, decode, &times);
    char notes[160];

    if (reply && us > 0 && exclusive_us > 0) {
        snprintf(notes, sizeof(notes), "64x8192: %.0f GB/s on %u of %u SMs, %.0f on all",
                 value_of(decode, us), reply->status->sms_resident, reply->status->sms,
                 value_of(decode, exclusive_us));
        bench_suite_figure(suite, "decode_shared_over_exclusive", exclusive_us / us, "ratio",
                           "higher", 0.95, notes);
    }
    attnd__reply__free_unpacked(reply, NULL);
}

/* For gpu_measure_trace(). */
static double time_drawn(struct bench_suite *suite, int shape)
{
    struct gpu_times times;

    return time_shape(suite, shape ? &prefill_8192 : &decode_large, &times);
}

static void measure_exclusive(struct bench_suite *suite, double *decode_us)
{
    *decode_us = measure_shape(suite, &decode_large);
    measure_shape(suite, &prefill_8192);
    measure_small_pages(suite, &prefill_8192);
    bench_suite_go_on(suite);
    gpu_measure_trace(suite, time_drawn);
    bench_suite_go_on(suite);
    measure_shape(suite, &decode_small);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        measure_shape(suite, &others[i]);
    measure_submits_and_launches(suite);
    bench_suite_go_on(suite);
    gpu_measure_layers(suite, "", 4);
}

/* A run that wants more workers than stay, while nobody else is there. */
static void measure_beside_none(struct bench_suite *suite, const char *suffix)
{
    struct gpu_times times;
    double us = time_shape(suite, &decode_small, &times);
    char figure[64], notes[160];

    if (!(us > 0))
        return;
    snprintf(figure, sizeof(figure), "%s%s_us", decode_small.name, suffix);
    snprintf(notes, sizeof(notes), "in a stream; by rings %.1f us, of which tiles %.1f",
             times.ring_us, times.tile_us);
    bench_suite_figure(suite, figure, us, "us", "lower", NAN, notes);
}

/* What engines have by default: they execute what they launch, and the worker's kernels come for
 * what they submit, and leave. */
static void measure_elastic(struct bench_suite *suite, const char *const *service)
{
    (void)measure_submit(suite, "submit_rtt_elastic_us", 14);
    bench_suite_go_on(suite);
    gpu_measure_layers(suite, "_elastic", 6);
    bench_suite_go_on(suite);
    gpu_measure_engine_layers(suite, "_elastic");
    bench_suite_go_on(suite);
    gpu_measure_device_plans(suite);
    bench_suite_go_on(suite);
    measure_beside_none(suite, "_elastic");
    gpu_measure_crowd(suite, "_elastic");
    bench_suite_go_on(suite);
    gpu_measure_idle_tax(suite, service);
}

/* A few workers stay, and the others come beside them. */
static void measure_reserved(struct bench_suite *suite)
{
    measure_beside_none(suite, "_reserve");
    gpu_measure_crowd(suite, "_reserve");
}

/* ---- the parts ---- */

enum part { EXCLUSIVE, CONTRACT, ELASTIC, RESERVE, SHARED, PARTS };

struct options {
    const char *only; /* a part's name; NULL: all of them */
};

static const char *const part_names[PARTS] = {"exclusive", "contract", "elastic", "reserve",
                                              "shared"};

static const struct argp_option option_list[] = {
    {"only", 'o', "PART", 0,
     "exclusive, contract, elastic, reserve or shared: this part alone, without peers. The records "
     "are incomplete",
     1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    int part = 0;

    if (key != 'o')
        return ARGP_ERR_UNKNOWN;
    while (part < PARTS && strcmp(part_names[part], text) != 0)
        part++;
    if (part == PARTS)
        argp_error(state, "--only: there is no part %s", text);
    options->only = text;
    return 0;
}

static const struct argp own_argp = {option_list, parse_option, NULL, NULL, NULL, NULL, NULL};

static bool chosen(const struct options *options, enum part part)
{
    return !options->only || strcmp(options->only, part_names[part]) == 0;
}

static void ask_peers(void)
{
    bench_private_stop(); /* peers are alone */
    gpu_peers_ask("peer_flashinfer");
    gpu_peers_ask("peers.py measure");
    gpu_peers_ask("peers.py gemm");
}

int main(int argc, char **argv)
{
    static const char *const exclusive[] = {"--quiet",     "--backend", "cuda",
                                            "--residency", "exclusive", NULL};
    static const char *const shared[] = {"--quiet",     "--backend", "cuda",
                                         "--residency", "shared",    NULL};
    static const char *const elastic[] = {"--quiet",     "--backend", "cuda",
                                          "--residency", "elastic",   NULL};
    static const char *const reserve[] = {"--quiet", "--backend", "cuda", "--reserve", "8", NULL};
    static struct options options;
    static struct bench_suite suite = {.name = "gpu",
                                       .doc = "gpu - the CUDA worker through the service, beside "
                                              "its peers; --rounds is a percentage",
                                       .rounds = 100,
                                       .own_options = &own_argp,
                                       .own_input = &options};
    double decode_us = 0;

    bench_suite_begin(&suite, argc, argv);
    gpu_stamp_device(&suite);
    if (suite.failed)
        return bench_suite_end(&suite);
    suite.incomplete = options.only != NULL;
    if (!options.only)
        ask_peers();
    if (chosen(&options, EXCLUSIVE) && bench_suite_restart(&suite, exclusive))
        measure_exclusive(&suite, &decode_us);
    bench_suite_go_on(&suite);
    if (chosen(&options, CONTRACT))
        gpu_measure_contract(&suite, exclusive, decode_us);
    bench_suite_go_on(&suite);
    if (chosen(&options, ELASTIC) && bench_suite_restart(&suite, elastic))
        measure_elastic(&suite, elastic);
    bench_suite_go_on(&suite);
    if (chosen(&options, RESERVE) && bench_suite_restart(&suite, reserve))
        measure_reserved(&suite);
    bench_suite_go_on(&suite);
    if (chosen(&options, SHARED) && bench_suite_restart(&suite, shared)) {
        measure_shared(&suite, &decode_large, decode_us);
        bench_suite_go_on(&suite);
        gpu_measure_neighbour(&suite);
        bench_suite_go_on(&suite);
        gpu_measure_restart(&suite);
    }
    bench_suite_go_on(&suite);
    return bench_suite_end(&suite);
}

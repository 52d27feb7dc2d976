/* pod - a chunk of a prompt beside decodes, in one plan, with --fusion off, sm-split and auto, and
 * one after the other; 135 cases: chunks of 512, 1024 and 2048 tokens at 4k, 12k and 16k, 16 to 220
 * decodes at 4k, 12k and 16k.
 *
 *   bench/pod --spawn [--sample N | --only CASE] [--peers FILE] [--cases FILE] [--record DIR]
 *
 * The floor of a case is the longer of its halves, each alone and of whichever side is faster. It
 * is balanced if its halves are within a factor of 1.6. FILE of --peers has what peers.py wrote on
 * the same card in the same minutes; without it no ratio over a peer is recorded, and that is said.
 */
#include "bench/mixed/batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BALANCED 1.6
#define ROUNDS 9u

enum way { PREFILL, DECODE, THEN, LANES, OFF, SM_SPLIT, AUTO, WAYS };

static const char *const way_names[WAYS] = {"prefill", "decode",   "then", "lanes",
                                            "off",     "sm-split", "auto"};
static const uint32_t chunks[] = {512, 1024, 2048}, contexts[] = {4096, 12288, 16384};
static const uint32_t decodes[] = {16, 32, 64, 128, 220}, lengths[] = {4096, 12288, 16384};

struct cell {
    char name[48];
    struct mixed_batch batch;
    double us[WAYS], peer_us, peer_prefill_us, peer_decode_us;
};

#define CELLS (3 * 3 * 5 * 3)

struct grid {
    uint32_t count;
    struct cell cell[CELLS];
};

struct work {
    struct grid *grid; /* shared with the engine process */
    const struct mixed_options *options;
    enum way way; /* OFF: with the halves and their sums */
};

static void fill_grid(struct grid *grid, const struct mixed_options *options)
{
    for (uint32_t i = 0; i < CELLS; i++) {
        struct cell *cell = &grid->cell[grid->count];
        const uint32_t chunk = chunks[i % 3], context = contexts[i / 3 % 3];
        const uint32_t count = decodes[i / 9 % 5], length = lengths[i / 45];

        *cell = (struct cell){
            .batch = {
                .chunk_rows = chunk, .chunk_kv = context, .decodes = count, .kv_len = length}};
        snprintf(cell->name, sizeof(cell->name), "%u@%u+%ux%u", chunk, context, count, length);
        grid->count += mixed_chosen(options, i, cell->name);
    }
}

static bool time_halves(struct mixed_engine *engine, struct cell *cell)
{
    struct mixed_batch prefill = cell->batch, decode = cell->batch;
    struct mixed_plan first = {0}, second = {0};

    prefill.decodes = prefill.kv_len = 0;
    decode.chunk_rows = decode.chunk_kv = 0;
    const bool good = mixed_set(engine, &prefill, &first) && mixed_set(engine, &decode, &second) &&
                      mixed_time(engine, &first, NULL, false, ROUNDS, &cell->us[PREFILL]) &&
                      mixed_time(engine, &second, NULL, false, ROUNDS, &cell->us[DECODE]) &&
                      mixed_time(engine, &first, &second, false, ROUNDS, &cell->us[THEN]) &&
                      mixed_time(engine, &first, &second, true, ROUNDS, &cell->us[LANES]);
    mixed_drop(engine, &first);
    mixed_drop(engine, &second);
    return good;
}

static bool measure(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct work *work = context;
    struct mixed_engine engine;
    uint64_t tokens = 0;

    (void)times;
    for (uint32_t i = 0; i < work->grid->count; i++) {
        const struct mixed_batch *batch = &work->grid->cell[i].batch;
        const uint64_t here = batch->chunk_kv + (uint64_t)batch->decodes * batch->kv_len;
        tokens = here > tokens ? here : tokens;
    }
    bool good = mixed_open(&engine, suite, work->options->heads_q, work->options->heads_kv,
                           tokens + MIXED_PAGE, 4096);
    for (uint32_t i = 0; good && i < work->grid->count; i++) {
        struct cell *cell = &work->grid->cell[i];
        struct mixed_plan plan = {0};

        good = (work->way != OFF || time_halves(&engine, cell)) &&
               mixed_set(&engine, &cell->batch, &plan) &&
               mixed_time(&engine, &plan, NULL, false, ROUNDS, &cell->us[work->way]);
        mixed_drop(&engine, &plan);
    }
    mixed_close(&engine);
    return good;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Return: the median of @values, which are sorted; the last is the worst. */
static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), by_value);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double best(double a, double b)
{
    return b > 0 && b < a ? b : a;
}

static double floor_of(const struct cell *cell)
{
    const double prefill = best(cell->us[PREFILL], cell->peer_prefill_us);
    const double decode = best(cell->us[DECODE], cell->peer_decode_us);

    return prefill > decode ? prefill : decode;
}

static bool balanced(const struct cell *cell)
{
    const double a = cell->us[PREFILL], b = cell->us[DECODE];

    return a < b * BALANCED && b < a * BALANCED;
}

struct ratios {
    double value[CELLS];
    uint32_t count;
};

static void record(struct bench_suite *suite, const char *name, struct ratios *ratios, bool worst,
                   const char *better, double reach, const char *notes)
{
    if (!ratios->count)
        return;
    const double middle = median(ratios->value, ratios->count);
    char text[160];

    snprintf(text, sizeof(text), "%u cases; median %.3f, %.3f to %.3f; %s", ratios->count, middle,
             ratios->value[0], ratios->value[ratios->count - 1], notes);
    bench_suite_figure(suite, name, worst ? ratios->value[ratios->count - 1] : middle, "ratio",
                       better, reach, text);
}

static void report(struct bench_suite *suite, const struct grid *grid)
{
    static struct ratios floor_all, floor_balanced, over_then, over_then_balanced, peer_balanced;

    for (uint32_t i = 0; i < grid->count; i++) {
        const struct cell *cell = &grid->cell[i];
        const double us = cell->us[AUTO];

        floor_all.value[floor_all.count++] = us / floor_of(cell);
        over_then.value[over_then.count++] = us / cell->us[THEN];
        if (!balanced(cell))
            continue;
        floor_balanced.value[floor_balanced.count++] = us / floor_of(cell);
        over_then_balanced.value[over_then_balanced.count++] = us / cell->us[THEN];
        if (cell->peer_us > 0)
            peer_balanced.value[peer_balanced.count++] = cell->peer_us / us;
    }
    record(suite, "floor_ratio_median", &floor_all, false, "lower", 1.15, "auto over the floor");
    record(suite, "floor_ratio_worst", &floor_all, true, "lower", 1.5, "auto over the floor");
    record(suite, "balanced_floor_ratio_median", &floor_balanced, false, "lower", 1.4,
           "auto over the floor");
    record(suite, "over_serial_worst", &over_then, true, "lower", 1.01,
           "auto over our own halves one after the other");
    record(suite, "balanced_over_serial_median", &over_then_balanced, false, "lower", 0.8,
           "auto over our own halves one after the other");
    if (peer_balanced.count)
        record(suite, "balanced_speedup_median", &peer_balanced, false, "higher", 1.3,
               "the best peer over auto");
    else
        printf("pod: no peer measured these cases: no ratio over one\n");
}

static void print(const struct grid *grid, const char *path)
{
    FILE *out = path ? fopen(path, "we") : NULL;

    printf("%-24s", "case");
    for (int way = 0; way < WAYS; way++)
        printf(" %9s", way_names[way]);
    printf("  peer\n");
    for (uint32_t i = 0; i < grid->count; i++) {
        const struct cell *cell = &grid->cell[i];
        printf("%-24s", cell->name);
        for (int way = 0; way < WAYS; way++)
            printf(" %9.1f", cell->us[way]);
        printf(" %9.1f\n", cell->peer_us);
        for (int way = 0; out && way < WAYS; way++)
            fprintf(out, "%s %s %.2f\n", cell->name, way_names[way], cell->us[way]);
        if (out)
            fprintf(out, "%s peer %.2f\n", cell->name, cell->peer_us);
    }
    if (out)
        fclose(out);
}

int main(int argc, char **argv)
{
    static const char *const services[][7] = {
        {"--quiet", "--backend", "cuda", "--residency", "exclusive", "--fusion=off", NULL},
        {"--quiet", "--backend", "cuda", "--residency", "exclusive", "--fusion=sm-split", NULL},
        {"--quiet", "--backend", "cuda", "--residency", "exclusive", "--fusion=auto", NULL}};
    static struct bench_suite suite = {
        .name = "pod", .doc = "pod - a chunk of a prompt beside decodes, fused and not"};
    struct mixed_options options;
    struct gpu_times times;

    struct grid *grid = mixed_begin(&suite, argc, argv, &options, sizeof(*grid));
    if (!grid)
        return bench_suite_end(&suite);
    fill_grid(grid, &options);
    if (!grid->count)
        bench_suite_fail(&suite, "no such case");
    for (int mode = 0; mode < 3 && !suite.failed; mode++) {
        struct work work = {grid, &options, (enum way)(OFF + mode)};
        if (bench_suite_restart(&suite, services[mode]))
            (void)gpu_child(&suite, measure, &work, &times);
    }
    for (uint32_t i = 0; i < grid->count; i++) {
        struct cell *cell = &grid->cell[i];
        cell->peer_us = mixed_peer_us(options.peers, cell->name, "flashinfer_one_");
        cell->peer_prefill_us = mixed_peer_us(options.peers, cell->name, "flashinfer_prefill_");
        cell->peer_decode_us = mixed_peer_us(options.peers, cell->name, "flashinfer_decode_");
    }
    print(grid, options.cases);
    if (!suite.failed)
        report(&suite, grid);
    return bench_suite_end(&suite);
}

/* cascade - decodes that begin with the same pages: as two levels that the engine names, found by
 * the service (--cascade auto), and not at all (off).
 *
 *   bench/cascade --spawn [--sample N | --only CASE] [--peers FILE] [--cases FILE] [--record DIR]
 *
 * A prefix of 1024, 8192 or 32768 tokens, 16, 64 or 256 requests, 128 or 1024 tokens of their own;
 * sixteen prefixes of 2048 tokens; and batches with nothing to share, which must not become slower.
 * The floor of a case is the time of the bytes that it reads, each once, at the rate of FLOOR_GBPS,
 * and of the products with the prefix at FLOOR_TFLOPS. FILE of --peers has what peers.py wrote on
 * the same card. */
#include "bench/mixed/batch.h"

#include <stdio.h>
#include <string.h>

#define FLOOR_GBPS 4600.0
#define FLOOR_TFLOPS 600.0
#define ROUNDS 15u

enum way { OFF, LEVELS, AUTO, WAYS };

static const char *const way_names[WAYS] = {"off", "levels", "auto"};
static const struct {
    uint32_t prefix, requests, own, prefixes;
} shapes[] = {{8192, 64, 128, 1},  {1024, 16, 128, 1},   {1024, 64, 128, 1},  {1024, 256, 128, 1},
              {8192, 16, 128, 1},  {8192, 256, 128, 1},  {8192, 64, 1024, 1}, {32768, 16, 128, 1},
              {32768, 64, 128, 1}, {32768, 256, 128, 1}, {0, 8, 4096, 1},     {0, 64, 2048, 1},
              {2048, 128, 128, 16}};

#define CELLS (sizeof(shapes) / sizeof(shapes[0]))

struct cell {
    char name[48];
    struct mixed_batch batch;
    double us[WAYS], peer_us, floor_us;
    uint32_t groups;
};

struct grid {
    uint32_t count;
    struct cell cell[CELLS];
};

struct work {
    struct grid *grid; /* shared with the engine process */
    const struct mixed_options *options;
    bool automatic;
};

static void fill_grid(struct grid *grid, const struct mixed_options *options)
{
    for (uint32_t i = 0; i < CELLS; i++) {
        struct cell *cell = &grid->cell[grid->count];

        *cell = (struct cell){.batch = {.decodes = shapes[i].requests,
                                        .kv_len = shapes[i].prefix + shapes[i].own,
                                        .prefix = shapes[i].prefix,
                                        .prefixes = shapes[i].prefixes}};
        snprintf(cell->name, sizeof(cell->name), "%u%s_%ux%u", shapes[i].prefix,
                 shapes[i].prefixes > 1 ? "x16" : "", shapes[i].requests, shapes[i].own);
        grid->count += mixed_chosen(options, i, cell->name);
    }
}

static bool time_way(struct mixed_engine *engine, struct cell *cell, enum way way)
{
    struct mixed_batch batch = cell->batch;
    struct mixed_plan plan = {0};

    if (way == LEVELS && !batch.prefix)
        return true;
    batch.levels = way == LEVELS;
    const bool good = mixed_set(engine, &batch, &plan) &&
                      mixed_time(engine, &plan, NULL, false, ROUNDS, &cell->us[way]);
    if (way == AUTO)
        cell->groups = plan.info.shared_groups;
    mixed_drop(engine, &plan);
    return good;
}

static bool measure(struct bench_suite *suite, void *context, struct gpu_times *times)
{
    struct work *work = context;
    struct mixed_engine engine;
    bool good =
        mixed_open(&engine, suite, work->options->heads_q, work->options->heads_kv, 600000, 512);

    (void)times;
    for (uint32_t i = 0; good && i < work->grid->count; i++) {
        struct cell *cell = &work->grid->cell[i];
        const double pairs =
            (double)cell->batch.prefix * cell->batch.decodes * work->options->heads_q;

        cell->floor_us = mixed_kv_bytes(&engine, &cell->batch) / FLOOR_GBPS * 1e-3 +
                         4 * MIXED_DIM * pairs / FLOOR_TFLOPS * 1e-6;
        if (work->automatic)
            good = time_way(&engine, cell, AUTO);
        else
            good = time_way(&engine, cell, OFF) && time_way(&engine, cell, LEVELS);
    }
    mixed_close(&engine);
    return good;
}

static void print(const struct grid *grid, const char *path)
{
    FILE *out = path ? fopen(path, "we") : NULL;

    printf("%-18s %9s %9s %9s %9s %9s  groups\n", "case", "floor", "off", "levels", "auto", "peer");
    for (uint32_t i = 0; i < grid->count; i++) {
        const struct cell *cell = &grid->cell[i];
        printf("%-18s %9.1f %9.1f %9.1f %9.1f %9.1f  %u\n", cell->name, cell->floor_us,
               cell->us[OFF], cell->us[LEVELS], cell->us[AUTO], cell->peer_us, cell->groups);
        for (int way = 0; out && way < WAYS; way++)
            fprintf(out, "%s %s %.2f\n", cell->name, way_names[way], cell->us[way]);
        if (out)
            fprintf(out, "%s peer %.2f\n%s floor %.2f\n", cell->name, cell->peer_us, cell->name,
                    cell->floor_us);
    }
    if (out)
        fclose(out);
}

static void report(struct bench_suite *suite, const struct grid *grid)
{
    double worst_peer = 0, worst_off = 0;
    const char *peer_at = "", *off_at = "";
    char notes[160];

    for (uint32_t i = 0; i < grid->count; i++) {
        const struct cell *cell = &grid->cell[i];
        const double us = cell->us[AUTO];

        if (!strcmp(cell->name, "8192_64x128")) {
            snprintf(notes, sizeof(notes), "%.1f us over %.1f us; off %.1f, two levels %.1f", us,
                     cell->floor_us, cell->us[OFF], cell->us[LEVELS]);
            bench_suite_figure(suite, "8192_64x128_over_bytes", us / cell->floor_us, "ratio",
                               "lower", 1.8, notes);
        }
        if (cell->peer_us > 0 && us / cell->peer_us > worst_peer) {
            worst_peer = us / cell->peer_us;
            peer_at = cell->name;
        }
        if (us / cell->us[OFF] > worst_off) {
            worst_off = us / cell->us[OFF];
            off_at = cell->name;
        }
    }
    snprintf(notes, sizeof(notes), "%u batches, two of them with nothing to share; worst %s",
             grid->count, off_at);
    bench_suite_figure(suite, "auto_worst_ratio", worst_off, "ratio", "lower", 1.02, notes);
    snprintf(notes, sizeof(notes), "auto over the best of its cascade and its plain decode; at %s",
             peer_at);
    if (worst_peer > 0)
        bench_suite_figure(suite, "worst_over_peer", worst_peer, "ratio", "lower", 1, notes);
    else
        printf("cascade: no peer measured these cases: no ratio over one\n");
}

int main(int argc, char **argv)
{
    static const char *const services[][7] = {
        {"--quiet", "--backend", "cuda", "--residency", "exclusive", "--cascade=off", NULL},
        {"--quiet", "--backend", "cuda", "--residency", "exclusive", "--cascade=auto", NULL}};
    static struct bench_suite suite = {.name = "cascade",
                                       .doc = "cascade - decodes that begin with the same pages"};
    struct mixed_options options;
    struct gpu_times times;

    struct grid *grid = mixed_begin(&suite, argc, argv, &options, sizeof(*grid));
    if (!grid)
        return bench_suite_end(&suite);
    fill_grid(grid, &options);
    if (!grid->count)
        bench_suite_fail(&suite, "no such case");
    for (int mode = 0; mode < 2 && !suite.failed; mode++) {
        struct work work = {grid, &options, mode == 1};
        if (bench_suite_restart(&suite, services[mode]))
            (void)gpu_child(&suite, measure, &work, &times);
    }
    for (uint32_t i = 0; i < grid->count; i++)
        grid->cell[i].peer_us = mixed_peer_us(options.peers, grid->cell[i].name, "flashinfer_");
    print(grid, options.cases);
    if (!suite.failed)
        report(&suite, grid);
    return bench_suite_end(&suite);
}

/* check.c - a few rows of every step against the reference. Decoding requests have one row where
 * prefilling ones have hundreds, so the request is drawn first and then a row of it: every kind of
 * row is looked at all the time. */
#include "bench/replay/engine.h"
#include "ipc/wake.h"

#include <stdio.h>
#include <string.h>

/* facts of the contract: tolerances on o, absolute and relative; LSE has one for both types */
#define TOLERANCE_FP16 1e-3
#define TOLERANCE_BF16 1e-2
#define TOLERANCE_LSE 1e-3

uint64_t replay_random(struct replay_engine *engine)
{
    engine->random += 0x9e3779b97f4a7c15u;
    return replay_mix(engine->random);
}

static double worse(double a, double b)
{
    return a > b ? a : b;
}

static void report(struct replay_engine *engine, const struct replay_slot *slot, uint32_t position,
                   uint32_t layer, uint32_t head, double error)
{
    if (engine->out->mismatch[0])
        return;
    snprintf(engine->out->mismatch, sizeof(engine->out->mismatch),
             "request %u, position %u, layer %u, head %u: %.3g times the tolerance (prefix pages "
             "%u, rows %u, %s)",
             slot->request->trace->index, position, layer, head, error, slot->prefix_pages,
             slot->row_count, engine->batch.levels == 2 ? "two levels" : "one level");
}

static void check_row(struct replay_engine *engine, uint32_t layer)
{
    const struct replay_options *options = engine->options;
    const struct replay_slot *slot =
        &engine->batch.slot[replay_random(engine) % engine->batch.slots];
    uint32_t token = (uint32_t)(replay_random(engine) % slot->row_count);
    uint32_t head = (uint32_t)(replay_random(engine) % options->heads_q);
    uint32_t position = slot->position_begin + token;
    uint64_t row = (uint64_t)(slot->row_begin + token) * options->heads_q + head;
    const struct replay_buffers *buffers = &engine->buffers;
    const uint8_t *o = buffers->address + buffers->o_offset + row * options->head_dim * 2;
    double tolerance = options->dtype == ATTND_DTYPE_BF16 ? TOLERANCE_BF16 : TOLERANCE_FP16;
    double expected_lse = replay_reference_row(&engine->reference, slot->request->trace, position,
                                               layer, head, engine->check_scratch);
    double error;
    float lse;

    memcpy(&lse, buffers->address + buffers->lse_offset + row * sizeof(lse), sizeof(lse));
    error = replay_reference_compare((double)lse, expected_lse, TOLERANCE_LSE);
    for (uint32_t d = 0; d < options->head_dim; d++) {
        uint16_t bits;

        memcpy(&bits, o + 2 * (size_t)d, sizeof(bits));
        error = worse(error, replay_reference_compare(replay_number(options->dtype, bits),
                                                      engine->check_scratch[d], tolerance));
    }
    engine->stats->rows_verified++;
    engine->stats->worst_error = worse(engine->stats->worst_error, error);
    if (!(error <= 1)) {
        engine->stats->mismatches++;
        report(engine, slot, position, layer, head, error);
    }
}

void replay_check(struct replay_engine *engine, uint32_t layer)
{
    uint32_t samples = engine->options->samples, layers = engine->options->layers;
    uint64_t begin_ns = attnd_clock_ns();

    /* The step's samples, spread over its layers. */
    for (uint32_t i = 0; i < samples; i++)
        if ((i + engine->stats->steps) % layers == layer)
            check_row(engine, layer);
    engine->stats->check_ns += attnd_clock_ns() - begin_ns;
}

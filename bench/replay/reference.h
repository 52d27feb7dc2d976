/*
 * reference.h - what attention must answer, from the definition, in fp64, without the pool.
 */
#ifndef ATTND_BENCH_REPLAY_REFERENCE_H
#define ATTND_BENCH_REPLAY_REFERENCE_H

#include "bench/replay/model.h"

struct replay_reference {
    const struct replay_model *model;
    const struct replay_trace *trace;
    double *score; /* [context_max] */
    uint32_t context_max;
};

/** replay_reference_init() - Return: 0; -1 without memory. Free with replay_reference_free(). */
int replay_reference_init(struct replay_reference *reference, const struct replay_model *model,
                          const struct replay_trace *trace, uint32_t context_max);
void replay_reference_free(struct replay_reference *reference);

/**
 * replay_reference_row() - the query at @position of @request against the keys 0..position
 * @position: below context_max
 * @o:        receives [dim]
 * Return: the log-sum-exp, base 2.
 */
double replay_reference_row(struct replay_reference *reference,
                            const struct replay_trace_request *request, uint32_t position,
                            uint32_t layer, uint32_t head_q, double *o);

/**
 * replay_reference_compare() - one value against its reference
 * NaN and infinities must agree before any tolerance is looked at.
 * Return: the error in units of @tolerance (absolute and relative); above 1 is a mismatch.
 */
double replay_reference_compare(double value, double expected, double tolerance);

#endif

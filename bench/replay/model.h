/*
 * model.h - a model that needs no weights: q, k and v are pure functions of (token, position,
 * layer, head, dimension).
 *
 * Engines write what it says; the reference asks it again, so a result can be checked without ever
 * reading what was stored. Values are multiples of 1/64 below 3 in magnitude, exact in fp16 and in
 * bf16. Scores have a standard deviation of 2: over a few thousand keys some dozens carry most of
 * the weight, so a key that is missing, doubled or taken from another page moves the result by far
 * more than any tolerance.
 */
#ifndef ATTND_BENCH_REPLAY_MODEL_H
#define ATTND_BENCH_REPLAY_MODEL_H

#include "bench/replay/trace.h"

#include <stdint.h>

enum replay_kind { REPLAY_Q = 0, REPLAY_K = 1, REPLAY_V = 2 };

struct replay_model {
    uint32_t heads_q, heads_kv, dim;
    uint32_t dtype; /* ATTND_DTYPE_* */
    uint64_t seed;
    uint16_t bits[3][64]; /* of each value a kind can take, in dtype */
    float value[3][64];
};

void replay_model_init(struct replay_model *model, uint32_t heads_q, uint32_t heads_kv,
                       uint32_t dim, uint32_t dtype, uint64_t seed);

/* Which vector: everything but the dimension. */
struct replay_site {
    uint64_t token; /* its content, replay_token() */
    uint32_t position, layer, head;
};

/** replay_model_bits() - the vector as an engine stores it, [dim]. */
void replay_model_bits(const struct replay_model *model, enum replay_kind kind,
                       const struct replay_site *site, uint16_t *out);

/** replay_model_values() - the same numbers, [dim]. */
void replay_model_values(const struct replay_model *model, enum replay_kind kind,
                         const struct replay_site *site, float *out);

/**
 * replay_token() - the content of a request's token at a position
 * In the prompt it depends on the block's id and the place in the block only: prompts that begin
 * alike have equal tokens there. What is generated belongs to the request.
 */
uint64_t replay_token(const struct replay_trace *trace, const struct replay_trace_request *request,
                      uint32_t position);

/** replay_mix() - 64 bits to 64 well-mixed bits, one to one. */
uint64_t replay_mix(uint64_t x);

/** replay_number() - the value of 16 bits of a dtype. */
double replay_number(uint32_t dtype, uint16_t bits);

#endif

/* model.c - one hash a vector, one hash for every eight dimensions, one table look-up each. Making
 * q, k and v must cost little against attending to them, or the engines would measure themselves.
 */
#include "bench/replay/model.h"
#include "client/attnd.h"

#include <math.h>
#include <string.h>

uint64_t replay_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

/* Exact by construction of the values: no rounding is needed, so none is done. */
static uint16_t exact_bits(uint32_t dtype, float value)
{
    int exponent;
    float fraction = frexpf(fabsf(value), &exponent); /* in 0.5..1 */
    uint32_t sign = value < 0 ? 0x8000u : 0;

    if (dtype == ATTND_DTYPE_FP16) /* 10 bits below the leading one, bias 15 */
        return (uint16_t)(sign | ((uint32_t)(exponent + 14) << 10) |
                          ((uint32_t)(fraction * 2048.0f) & 0x3ffu));
    return (uint16_t)(sign | ((uint32_t)(exponent + 126) << 7) |
                      ((uint32_t)(fraction * 256.0f) & 0x7fu));
}

void replay_model_init(struct replay_model *model, uint32_t heads_q, uint32_t heads_kv,
                       uint32_t dim, uint32_t dtype, uint64_t seed)
{
    /* Odd multiples of 1/32 up to 63/32 have variance 1.33; q is 1.5 times that wide. */
    static const float step[3] = {
        [REPLAY_Q] = 1.5f / 32, [REPLAY_K] = 1.0f / 32, [REPLAY_V] = 1.0f / 32};

    *model = (struct replay_model){
        .heads_q = heads_q, .heads_kv = heads_kv, .dim = dim, .dtype = dtype, .seed = seed};
    for (int kind = REPLAY_Q; kind <= REPLAY_V; kind++)
        for (int i = 0; i < 64; i++) {
            float value = step[kind] * (float)(2 * i - 63);
            model->value[kind][i] = value;
            model->bits[kind][i] = exact_bits(dtype, value);
        }
}

static uint64_t vector_hash(const struct replay_model *model, enum replay_kind kind,
                            const struct replay_site *site)
{
    uint64_t place = site->position | (uint64_t)site->layer << 32 | (uint64_t)site->head << 44 |
                     (uint64_t)kind << 60;

    return replay_mix(site->token ^ replay_mix(place ^ model->seed));
}

/* Eight indices of a table of 64, for dimensions word * 8 .. word * 8 + 7, a byte each. */
static uint64_t eight_indices(uint64_t hash, uint32_t word)
{
    return replay_mix(hash + word * 0x9e3779b97f4a7c15u) & 0x3f3f3f3f3f3f3f3fu;
}

void replay_model_bits(const struct replay_model *model, enum replay_kind kind,
                       const struct replay_site *site, uint16_t *out)
{
    const uint16_t *table = model->bits[kind];
    uint64_t hash = vector_hash(model, kind, site);

    for (uint32_t word = 0; word < model->dim / 8; word++) {
        uint64_t indices = eight_indices(hash, word);
        for (uint32_t i = 0; i < 8; i++)
            out[word * 8 + i] = table[indices >> (8 * i) & 0xff];
    }
}

void replay_model_values(const struct replay_model *model, enum replay_kind kind,
                         const struct replay_site *site, float *out)
{
    const float *table = model->value[kind];
    uint64_t hash = vector_hash(model, kind, site);

    for (uint32_t word = 0; word < model->dim / 8; word++) {
        uint64_t indices = eight_indices(hash, word);
        for (uint32_t i = 0; i < 8; i++)
            out[word * 8 + i] = table[indices >> (8 * i) & 0xff];
    }
}

uint64_t replay_token(const struct replay_trace *trace, const struct replay_trace_request *request,
                      uint32_t position)
{
    static const uint64_t prompt = 0x70726f6d7074, answer = 0x616e73776572;
    uint32_t block = position / REPLAY_BLOCK_TOKENS;

    if (position < request->input_tokens)
        return replay_mix(replay_mix(trace->block_ids[request->blocks_offset + block] ^ prompt) +
                          position % REPLAY_BLOCK_TOKENS);
    return replay_mix(replay_mix(request->index ^ answer) + position);
}

static float float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

double replay_number(uint32_t dtype, uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double fraction = bits & 0x3ff, magnitude;

    if (dtype == ATTND_DTYPE_BF16)
        return (double)float_of_bits((uint32_t)bits << 16);
    if (exponent == 31)
        magnitude = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(fraction, -24);
    else
        magnitude = ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

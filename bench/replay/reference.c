/* reference.c - softmax in two passes over keys that are made on the spot. Independent of the
 * service in everything: no pages, no tiles, no partial results. */
#include "bench/replay/reference.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define DIM_MAX 256

int replay_reference_init(struct replay_reference *reference, const struct replay_model *model,
                          const struct replay_trace *trace, uint32_t context_max)
{
    *reference =
        (struct replay_reference){.model = model, .trace = trace, .context_max = context_max};
    reference->score = calloc(context_max, sizeof(reference->score[0]));
    return reference->score ? 0 : -1;
}

void replay_reference_free(struct replay_reference *reference)
{
    free(reference->score);
    reference->score = NULL;
}

static void vector(const struct replay_reference *reference,
                   const struct replay_trace_request *request, enum replay_kind kind,
                   uint32_t position, uint32_t layer, uint32_t head, float *out)
{
    struct replay_site site = {.token = replay_token(reference->trace, request, position),
                               .position = position,
                               .layer = layer,
                               .head = head};

    replay_model_values(reference->model, kind, &site, out);
}

double replay_reference_row(struct replay_reference *reference,
                            const struct replay_trace_request *request, uint32_t position,
                            uint32_t layer, uint32_t head_q, double *o)
{
    const struct replay_model *model = reference->model;
    uint32_t head_kv = head_q / (model->heads_q / model->heads_kv);
    double scale = 1 / sqrt(model->dim), largest = -DBL_MAX, sum = 0;
    float q[DIM_MAX], kv[DIM_MAX];

    assert(model->dim <= DIM_MAX && position < reference->context_max);
    vector(reference, request, REPLAY_Q, position, layer, head_q, q);
    for (uint32_t j = 0; j <= position; j++) {
        double dot = 0;

        vector(reference, request, REPLAY_K, j, layer, head_kv, kv);
        for (uint32_t d = 0; d < model->dim; d++)
            dot += (double)q[d] * (double)kv[d];
        reference->score[j] = scale * dot;
        largest = fmax(largest, reference->score[j]);
    }
    for (uint32_t d = 0; d < model->dim; d++)
        o[d] = 0;
    for (uint32_t j = 0; j <= position; j++) {
        double weight = exp(reference->score[j] - largest);

        sum += weight;
        vector(reference, request, REPLAY_V, j, layer, head_kv, kv);
        for (uint32_t d = 0; d < model->dim; d++)
            o[d] += weight * (double)kv[d];
    }
    for (uint32_t d = 0; d < model->dim; d++)
        o[d] /= sum;
    return (largest + log(sum)) / log(2);
}

double replay_reference_compare(double value, double expected, double tolerance)
{
    if (isnan(value) || isnan(expected))
        return isnan(value) && isnan(expected) ? 0 : INFINITY;
    if (isinf(value) || isinf(expected))
        return value == expected ? 0 : INFINITY; /* NOLINT: infinities compare exactly */
    return fabs(value - expected) / (tolerance + tolerance * fabs(expected));
}

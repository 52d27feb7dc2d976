/* heads.c - two numbers with a slash between them. */
#include "bench/support/heads.h"

#include "schemas/errors.h"
#include "service/args/args.h"

#include <string.h>

int bench_heads_parse(const char *text, uint32_t *heads_q, uint32_t *heads_kv)
{
    const char *slash = strchr(text, '/');
    char first[16] = "";
    uint64_t q, kv;

    if (!slash || (size_t)(slash - text) >= sizeof(first))
        return -ATTND_E_INVALID;
    memcpy(first, text, (size_t)(slash - text));
    if (attnd_number_parse(first, 1, BENCH_HEADS_MAX, &q) < 0 ||
        attnd_number_parse(slash + 1, 1, BENCH_HEADS_MAX, &kv) < 0 || q % kv)
        return -ATTND_E_INVALID;
    *heads_q = (uint32_t)q;
    *heads_kv = (uint32_t)kv;
    return 0;
}

void bench_args_heads(struct argp_state *state, const char *text, uint32_t *heads_q,
                      uint32_t *heads_kv)
{
    if (bench_heads_parse(text, heads_q, heads_kv) < 0)
        argp_error(state, "--heads: '%s' is not Q/KV as in 32/8: numbers in 1..%u, Q a multiple",
                   text, BENCH_HEADS_MAX);
}

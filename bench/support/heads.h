/* heads.h - the option --heads Q/KV, as every program of bench reads it. */
#ifndef ATTND_BENCH_SUPPORT_HEADS_H
#define ATTND_BENCH_SUPPORT_HEADS_H

#include <argp.h>
#include <stdint.h>

#define BENCH_HEADS_MAX 1024u

/**
 * bench_heads_parse() - "32/8" as query heads and heads of K and V
 * @heads_q, @heads_kv: written on success only
 * Return: 0; -ATTND_E_INVALID: not two numbers in 1..BENCH_HEADS_MAX with a slash between them, or
 * the first is no multiple of the second.
 */
int bench_heads_parse(const char *text, uint32_t *heads_q, uint32_t *heads_kv);

/** bench_args_heads() - the value of --heads; on an error the program ends, as with attnd_args_*().
 */
void bench_args_heads(struct argp_state *state, const char *text, uint32_t *heads_q,
                      uint32_t *heads_kv);

#endif

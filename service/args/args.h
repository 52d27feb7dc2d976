/*
 * args.h - numbers and words of command lines, read the same way by every program.
 *
 * The first three functions only parse. The attnd_args_*() functions stand in an argp parser: they
 * end the program with argp's usage error, and name the option, the text and the limits.
 *
 * Threads: any. Blocking: never.
 */
#ifndef ATTND_SERVICE_ARGS_ARGS_H
#define ATTND_SERVICE_ARGS_ARGS_H

#include <argp.h>
#include <stdint.h>

/* For the children of a program's struct argp: -h says what --help says. */
extern const struct argp_child attnd_args_help[];

/**
 * attnd_number_parse() - decimal digits as a number in @least..@most
 * @number: written on success only
 *
 * No sign, no white space, no prefix. Return: 0; -ATTND_E_INVALID.
 */
int attnd_number_parse(const char *text, uint64_t least, uint64_t most, uint64_t *number);

/**
 * attnd_size_parse() - "512", "64K", "8M", "2G", "1T" as bytes; the suffixes are powers of 1024
 * Return: 0; -ATTND_E_INVALID for anything else, overflow included.
 */
int attnd_size_parse(const char *text, uint64_t *bytes);

/**
 * attnd_decimal_parse() - "0.25", "3e2" as a number in @least..@most; neither infinite nor NaN
 * Return: 0; -ATTND_E_INVALID.
 */
int attnd_decimal_parse(const char *text, double least, double most, double *number);

/** attnd_args_number() - the value of --@name. Return: it; on an error the program ends. */
uint64_t attnd_args_number(struct argp_state *state, const char *name, const char *text,
                           uint64_t least, uint64_t most);
uint32_t attnd_args_number32(struct argp_state *state, const char *name, const char *text,
                             uint32_t least, uint32_t most);

/** attnd_args_size() - the value of --@name in bytes, of at least 1 and at most INT64_MAX. */
uint64_t attnd_args_size(struct argp_state *state, const char *name, const char *text);

/** attnd_args_decimal() - the value of --@name. */
double attnd_args_decimal(struct argp_state *state, const char *name, const char *text,
                          double least, double most);

/**
 * attnd_args_word() - which of @words the value of --@name is
 * @words: ended by NULL
 * Return: its index.
 */
uint32_t attnd_args_word(struct argp_state *state, const char *name, const char *text,
                         const char *const *words);

#endif

/*
 * args.c - strtoull() and strtod() take white space, signs, prefixes and "inf" as well; a command
 * line that has them is more likely wrong than clever, so only plain digits get through.
 */
#include "service/args/args.h"

#include "schemas/errors.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- -h ---- */

static error_t parse_help(int key, char *text, struct argp_state *state)
{
    (void)text;
    if (key != 'h')
        return ARGP_ERR_UNKNOWN;
    argp_state_help(state, state->out_stream, ARGP_HELP_STD_HELP);
    return 0;
}

static const struct argp_option help_options[] = {{NULL, 'h', NULL, OPTION_HIDDEN, NULL, -1}, {0}};
static const struct argp help = {help_options, parse_help, NULL, NULL, NULL, NULL, NULL};
const struct argp_child attnd_args_help[] = {{&help, 0, NULL, 0}, {0}};

/* ---- numbers and words ---- */

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Return: where the digits of @text end, NULL if there are none or the number is too large. */
static const char *read_digits(const char *text, uint64_t *number)
{
    char *end;

    if (!is_digit(text[0]))
        return NULL;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return errno ? NULL : end;
}

int attnd_number_parse(const char *text, uint64_t least, uint64_t most, uint64_t *number)
{
    uint64_t value;
    const char *end = read_digits(text, &value);

    if (!end || *end || value < least || value > most)
        return -ATTND_E_INVALID;
    *number = value;
    return 0;
}

int attnd_size_parse(const char *text, uint64_t *bytes)
{
    static const char suffixes[] = "KMGT";
    unsigned shift = 0;
    uint64_t number;
    const char *end = read_digits(text, &number);

    if (!end)
        return -ATTND_E_INVALID;
    if (end[0]) {
        const char *suffix = strchr(suffixes, end[0] & ~0x20);
        if (!suffix || !suffix[0] || end[1])
            return -ATTND_E_INVALID;
        shift = 10 * (unsigned)(suffix - suffixes + 1);
    }
    if (number > UINT64_MAX >> shift)
        return -ATTND_E_INVALID;
    *bytes = number << shift;
    return 0;
}

int attnd_decimal_parse(const char *text, double least, double most, double *number)
{
    char *end;
    double value;

    if (!is_digit(text[0]) || (text[1] & ~0x20) == 'X')
        return -ATTND_E_INVALID;
    value = strtod(text, &end);
    if (*end || !isfinite(value) || value < least || value > most)
        return -ATTND_E_INVALID;
    *number = value;
    return 0;
}

uint64_t attnd_args_number(struct argp_state *state, const char *name, const char *text,
                           uint64_t least, uint64_t most)
{
    uint64_t number = least;

    if (attnd_number_parse(text, least, most, &number) < 0)
        argp_error(state, "--%s: '%s' is not a number in %llu..%llu", name, text,
                   (unsigned long long)least, (unsigned long long)most);
    return number;
}

uint32_t attnd_args_number32(struct argp_state *state, const char *name, const char *text,
                             uint32_t least, uint32_t most)
{
    return (uint32_t)attnd_args_number(state, name, text, least, most);
}

uint64_t attnd_args_size(struct argp_state *state, const char *name, const char *text)
{
    uint64_t bytes = 0;

    if (attnd_size_parse(text, &bytes) < 0 || bytes == 0 || bytes > INT64_MAX)
        argp_error(state, "--%s: '%s' is not a size (try 256M)", name, text);
    return bytes;
}

double attnd_args_decimal(struct argp_state *state, const char *name, const char *text,
                          double least, double most)
{
    double number = least;

    if (attnd_decimal_parse(text, least, most, &number) < 0)
        argp_error(state, "--%s: '%s' is not a number in %g..%g", name, text, least, most);
    return number;
}

uint32_t attnd_args_word(struct argp_state *state, const char *name, const char *text,
                         const char *const *words)
{
    char list[128] = "";
    size_t used = 0;

    for (uint32_t i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0)
            return i;
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "", words[i]);
        if (used >= sizeof(list))
            used = sizeof(list) - 1;
    }
    argp_error(state, "--%s: '%s' is none of: %s", name, text, list);
    return 0;
}

/* long_options.c - options that long tests have in common. */
#include "tests/support/harness/long_options.h"

#include "service/args/args.h"

#include <time.h>

static const struct argp_option option_list[] = {
    {"rounds", 'n', "N", 0, "Batches or clients", 0},
    {"seed", 's', "S", 0, "What all that is random is drawn from (default: the clock)", 0},
    {"loop", 'l', "KIND", 0, "Of the daemon (default: auto)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct long_options *options = state->input;

    switch (key) {
    case 'n':
        options->rounds = attnd_args_number(state, "rounds", text, 1, UINT32_MAX);
        return 0;
    case 's':
        options->seed = attnd_args_number(state, "seed", text, 0, UINT64_MAX);
        return 0;
    case 'l':
        options->loop = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp long_options_argp = {.options = option_list, .parser = parse_option};

struct long_options long_options_default(uint64_t rounds)
{
    return (struct long_options){.rounds = rounds, .seed = (uint64_t)time(NULL), .loop = "auto"};
}

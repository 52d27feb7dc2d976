/*
 * options.c - options that every command of attnctl takes.
 */
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

error_t attnctl_parse_option(int key, char *text, struct argp_state *state)
{
    struct attnctl_options *options = state->input;

    switch (key) {
    case ATTNCTL_KEY_JSON:
        options->json = 1;
        return 0;
    case ATTNCTL_KEY_SOCKET:
        options->socket_path = text;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not an option", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

error_t attnctl_parse_common(int key, char *text, struct argp_state *state,
                             struct attnctl_options *options)
{
    void *own = state->input;

    state->input = options;
    error_t rc = attnctl_parse_option(key, text, state);
    state->input = own;
    return rc;
}

void attnctl_parse_with(const struct argp *parser, int argc, char **argv, void *input)
{
    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(parser, argc, argv, 0, NULL, input);
}

struct numbers {
    struct attnctl_options common;
    const char *names;
    uint32_t *number;
    unsigned given, wanted;
};

static error_t parse_number(int key, char *text, struct argp_state *state)
{
    struct numbers *numbers = state->input;
    uint64_t number = 0;

    if (key == ARGP_KEY_ARG && numbers->given < numbers->wanted) {
        const uint64_t least = numbers->given == 0; /* no session is 0 */
        if (attnd_number_parse(text, least, UINT32_MAX, &number) < 0)
            argp_error(state, "'%s' is no number%s", text, least ? " of a session" : "");
        numbers->number[numbers->given++] = (uint32_t)number;
        return 0;
    }
    if (key == ARGP_KEY_END && numbers->given < numbers->wanted)
        argp_error(state, "which %s? attnctl status lists sessions", numbers->names);
    return attnctl_parse_common(key, text, state, &numbers->common);
}

struct attnctl_options attnctl_parse_numbers(int argc, char **argv, const char *names,
                                             const char *doc, uint32_t *number, unsigned count)
{
    const struct argp_option list[] = {ATTNCTL_SOCKET_OPTION, {0}};
    const struct argp parser = {.options = list,
                                .parser = parse_number,
                                .args_doc = names,
                                .children = attnd_args_help,
                                .doc = doc};
    struct numbers numbers = {.names = names, .number = number, .wanted = count};

    attnctl_parse_with(&parser, argc, argv, &numbers);
    return numbers.common;
}

struct attnctl_options attnctl_parse(int argc, char **argv, const char *json, const char *doc)
{
    const struct argp_option list[] = {
        ATTNCTL_SOCKET_OPTION,
        {json ? "json" : NULL, json ? ATTNCTL_KEY_JSON : 0, NULL, 0, json, 0},
        {0}};
    const struct argp parser = {
        .options = list, .parser = attnctl_parse_option, .children = attnd_args_help, .doc = doc};
    struct attnctl_options options = {0};

    attnctl_parse_with(&parser, argc, argv, &options);
    return options;
}

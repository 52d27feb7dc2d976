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

struct attnctl_options attnctl_parse(int argc, char **argv, const char *json, const char *doc)
{
    const struct argp_option list[] = {
        ATTNCTL_SOCKET_OPTION,
        {json ? "json" : NULL, json ? ATTNCTL_KEY_JSON : 0, NULL, 0, json, 0},
        {0}};
    const struct argp parser = {
        .options = list, .parser = attnctl_parse_option, .children = attnd_args_help, .doc = doc};
    struct attnctl_options options = {0};

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    return options;
}

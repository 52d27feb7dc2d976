/*
 * options.c - what every command of attnctl takes.
 */
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

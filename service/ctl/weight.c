/*
 * weight.c - `attnctl weight SESSION N`.
 */
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

struct weight_options {
    struct attnctl_options common;
    uint32_t number[2]; /* session, weight */
    unsigned count;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct weight_options *options = state->input;

    if (key == ARGP_KEY_ARG && options->count < 2) {
        uint64_t number;
        if (attnd_number_parse(text, 0, UINT32_MAX, &number) < 0)
            argp_error(state, "'%s' is no number", text);
        options->number[options->count++] = (uint32_t)number;
        return 0;
    }
    if (key == ARGP_KEY_END && options->count < 2)
        argp_error(state, "a session and its weight are needed");
    return attnctl_parse_common(key, text, state, &options->common);
}

enum attnctl_exit attnctl_weight(int argc, char **argv)
{
    static const struct argp_option list[] = {ATTNCTL_SOCKET_OPTION, {0}};
    static const struct argp parser = {
        .options = list,
        .parser = parse_option,
        .children = attnd_args_help,
        .args_doc = "SESSION N",
        .doc = "Give a session N times the share of the worker that one of weight 1 gets beside "
               "it: 1 to 1000. `attnctl status` shows sessions and weights. Only root and the "
               "service's own user may."};
    struct weight_options options = {0};
    Attnd__SessionWeight weight = ATTND__SESSION_WEIGHT__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    weight.session = options.number[0];
    weight.weight = options.number[1];
    request.call_case = ATTND__REQUEST__CALL_SESSION_WEIGHT;
    request.session_weight = &weight;
    return attnctl_ask_done(options.common.socket_path, &request);
}

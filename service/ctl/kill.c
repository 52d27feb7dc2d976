/*
 * kill.c - `attnctl kill SESSION`. The daemon decides about rights.
 */
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

struct kill_options {
    struct attnctl_options common;
    uint32_t session;
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct kill_options *options = state->input;
    uint64_t number = 0;

    switch (key) {
    case ARGP_KEY_ARG:
        if (options->session || attnd_number_parse(text, 1, UINT32_MAX, &number) < 0)
            argp_error(state, "'%s' is not the number of one session", text);
        options->session = (uint32_t)number;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which SESSION? attnctl status lists their numbers");
        return 0;
    default:
        return attnctl_parse_common(key, text, state, &options->common);
    }
}

enum attnctl_exit attnctl_kill(int argc, char **argv)
{
    static const struct argp_option list[] = {ATTNCTL_SOCKET_OPTION, {0}};
    static const struct argp parser = {
        .options = list,
        .parser = parse_option,
        .args_doc = "SESSION",
        .children = attnd_args_help,
        .doc = "End a session: its operations are dropped, its memory, leases and plans are given "
               "back, and its engine finds the connection closed. The engine's process goes "
               "on.\vRoot and the daemon's user may end any session, others those of their own "
               "user."};
    struct kill_options options = {0};
    Attnd__SessionKill kill = ATTND__SESSION_KILL__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;

    argp_err_exit_status = ATTNCTL_EXIT_USAGE;
    argp_parse(&parser, argc, argv, 0, NULL, &options);
    kill.session = options.session;
    request.call_case = ATTND__REQUEST__CALL_SESSION_KILL;
    request.session_kill = &kill;
    return attnctl_ask_done(options.common.socket_path, &request);
}

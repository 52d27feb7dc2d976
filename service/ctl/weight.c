/*
 * weight.c - `attnctl weight SESSION N`. The daemon decides about rights.
 */
#include "service/ctl/attnctl.h"

enum attnctl_exit attnctl_weight(int argc, char **argv)
{
    static const char doc[] =
        "Give a session N times the share of the worker that one of weight 1 gets beside it: 1 to "
        "1000. `attnctl status` shows sessions and weights. Only root and the service's own user "
        "may.";
    uint32_t number[2];
    const struct attnctl_options options =
        attnctl_parse_numbers(argc, argv, "SESSION N", doc, number, 2);
    Attnd__SessionWeight weight = ATTND__SESSION_WEIGHT__INIT;

    weight.session = number[0];
    weight.weight = number[1];
    return attnctl_ask_done(options.socket_path, ATTND__REQUEST__CALL_SESSION_WEIGHT, &weight);
}

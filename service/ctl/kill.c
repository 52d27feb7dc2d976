/*
 * kill.c - `attnctl kill SESSION`. The daemon decides about rights.
 */
#include "service/ctl/attnctl.h"

enum attnctl_exit attnctl_kill(int argc, char **argv)
{
    static const char doc[] =
        "End a session: its operations are dropped, its memory, leases and plans are given back, "
        "and its engine finds the connection closed. The engine's process goes on.\vRoot and the "
        "daemon's user may end any session, others those of their own user.";
    Attnd__SessionKill kill = ATTND__SESSION_KILL__INIT;
    const struct attnctl_options options =
        attnctl_parse_numbers(argc, argv, "SESSION", doc, &kill.session, 1);

    return attnctl_ask_done(options.socket_path, ATTND__REQUEST__CALL_SESSION_KILL, &kill);
}

/*
 * started.c - --parent, --log-level and --version as a child parser of argp.
 */
#include "service/args/started.h"

#include "schemas/version.h"
#include "service/args/args.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <syslog.h>
#include <unistd.h>

enum key { KEY_VERSION = 'V', KEY_PARENT = 1024, KEY_LEVEL };

static const struct argp_option option_list[] = {
    {"parent", KEY_PARENT, "PID", 0, "Leave at once if this is not the parent", 0},
    {"log-level", KEY_LEVEL, "N", 0, "As syslog's, 3 to 7", 0},
    {"version", KEY_VERSION, NULL, 0, "Print the version", -1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct attnd_started *started = state->input;

    switch (key) {
    case KEY_PARENT:
        started->parent = (int)attnd_args_number(state, "parent", text, 0, INT_MAX);
        return 0;
    case KEY_LEVEL:
        started->log_level = (int)attnd_args_number(state, "log-level", text, 0, LOG_DEBUG);
        return 0;
    case KEY_VERSION:
        fprintf(state->out_stream, "%s %s\n", started->program, ATTND_VERSION);
        exit(0);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {option_list,     parse_option, NULL, NULL,
                                   attnd_args_help, NULL,         NULL};
const struct argp_child attnd_started_options[] = {{&parser, 0, NULL, 0}, {0}};

void attnd_started_init(struct argp_state *state, struct attnd_started *started)
{
    state->child_inputs[0] = started;
}

/* The parent may have ended before the kernel was asked to tell. */
int attnd_started_by_parent(const struct attnd_started *started)
{
    return prctl(PR_SET_PDEATHSIG, SIGTERM) == 0 &&
           (started->parent == 0 || getppid() == started->parent);
}

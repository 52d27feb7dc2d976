/*
 * options.h - the daemon's command line.
 */
#ifndef ATTND_SERVICE_DAEMON_OPTIONS_H
#define ATTND_SERVICE_DAEMON_OPTIONS_H

#include "service/service.h"

/* Exit codes of attnd, printed by --help. */
enum attnd_exit {
    ATTND_EXIT_OK = 0,
    ATTND_EXIT_USAGE = 1,
    ATTND_EXIT_SOCKET = 2,
    ATTND_EXIT_WORKER = 3,
    ATTND_EXIT_INTERNAL = 4
};

/**
 * attnd_options_parse() - defaults, then the command line
 * @options: receives everything; its strings belong to @argv or are static
 *
 * Like every argp parser it prints and exits itself for --help, --version and bad usage.
 */
void attnd_options_parse(int argc, char **argv, struct attnd_options *options);

#endif

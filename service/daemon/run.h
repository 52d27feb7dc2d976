/*
 * run.h - the daemon from start to end.
 */
#ifndef ATTND_SERVICE_DAEMON_RUN_H
#define ATTND_SERVICE_DAEMON_RUN_H

#include "service/daemon/options.h"

/**
 * attnd_service_run() - serve until a signal says to stop
 * @options: copied; what it borrows must stay
 * @argc, @argv: the command line, for SIGHUP; 0: there is nothing to read again
 *
 * Threads: the process's only one. Blocks. Changes signal handling of the process.
 * Return: the exit code.
 */
enum attnd_exit attnd_service_run(const struct attnd_options *options, int argc, char **argv);

#endif

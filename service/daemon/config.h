/*
 * config.h - all options together: defaults, the file, the command line; and the file again.
 */
#ifndef ATTND_SERVICE_DAEMON_CONFIG_H
#define ATTND_SERVICE_DAEMON_CONFIG_H

#include "service/daemon/options.h"

/**
 * attnd_options_parse() - defaults, then the file, then the command line
 * @options: receives everything. Strings belong to @argv or to @options itself: a copy borrows them
 *
 * It prints and exits for --help, --version, bad usage and a wrong file.
 */
void attnd_options_parse(int argc, char **argv, struct attnd_options *options);

/* The origin of the socket that a service manager has handed over. */
extern const char attnd_origin_manager[];

/** attnd_config_print() - every value in force, in the form of the file, with its origin. */
void attnd_config_print(FILE *out, const struct attnd_options *options);

/**
 * attnd_config_reload() - read the file again
 * @options: receives budgets, users and the log level, or nothing if anything is wrong
 * @argc, @argv: as they were given to attnd_options_parse()
 *
 * Changes are logged, and so are those that take effect only at a restart. Blocks for the file and,
 * for users by name, for the machine's directory of users. Return: 0; -ATTND_E_INVALID the file or
 * the command line is wrong now (logged).
 */
int attnd_config_reload(int argc, char **argv, struct attnd_options *options);

#endif

/*
 * options.h - the daemon's options, step by step. config.h takes the steps.
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
 * attnd_options_default() - what holds if nobody says otherwise; the first step
 * @options: receives everything
 */
void attnd_options_default(struct attnd_options *options);

/**
 * attnd_options_command() - the command line
 * @options: its strings belong to @argv or are static
 *
 * Like every argp parser it prints and exits itself for --help, --version and bad usage; with
 * @options->errors it writes errors there and comes back.
 * Return: 0; -ATTND_E_INVALID. With @options->errors, what is written there tells of errors, too.
 */
int attnd_options_command(int argc, char **argv, struct attnd_options *options);

/**
 * attnd_options_take() - one option of the file
 * @options: errors is a stream, where a wrong value is explained; @value is copied
 * @name:    as on the command line, without dashes
 * Return: 0, perhaps with something in errors; -ATTND_E_UNKNOWN there is no such option;
 * -ATTND_E_INVALID it has no value but yes and no, or the value is too long.
 */
int attnd_options_take(struct attnd_options *options, const char *name, const char *value);

/** attnd_options_finish() - defaults that depend on the environment; the last step.
 * Return: 0; -ATTND_E_RANGE the socket's default path is too long; -ATTND_E_INVALID services of
 * other hosts are named, and no key. */
int attnd_options_finish(struct attnd_options *options);

/** attnd_options_describe() - write the values in force to @options->settings. */
void attnd_options_describe(struct attnd_options *options);

#endif

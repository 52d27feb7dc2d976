/*
 * options.h - the command line of attnd-replay.
 */
#ifndef ATTND_BENCH_REPLAY_OPTIONS_H
#define ATTND_BENCH_REPLAY_OPTIONS_H

#include "bench/replay/replay.h"

/** replay_options_parse() - fill @options from the command line; ends the program on --help,
 * --version and mistakes (status 64). Strings point into argv. */
void replay_options_parse(int argc, char **argv, struct replay_options *options);

#endif

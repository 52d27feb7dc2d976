/*
 * started.h - what a program that attnd starts is told by its command line, whatever it does.
 *
 * Threads: the one of main().
 */
#ifndef ATTND_SERVICE_ARGS_STARTED_H
#define ATTND_SERVICE_ARGS_STARTED_H

#include <argp.h>

struct attnd_started {
    const char *program; /* for --version */
    int parent;          /* --parent; 0: it was not given */
    int log_level;       /* --log-level, as syslog's */
};

/* For the children of a program's struct argp, with -h: --parent, --log-level and --version. The
 * program's parser calls attnd_started_init() at ARGP_KEY_INIT. */
extern const struct argp_child attnd_started_options[];

/** attnd_started_init() - the options go to @started, which the caller keeps. */
void attnd_started_init(struct argp_state *state, struct attnd_started *started);

/**
 * attnd_started_by_parent() - from here on this process gets SIGTERM when its parent ends
 * Return: 1; 0: --parent names another one, which may have ended already.
 */
int attnd_started_by_parent(const struct attnd_started *started);

#endif

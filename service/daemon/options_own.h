/*
 * options_own.h - options whose values have a form of their own.
 */
#ifndef ATTND_SERVICE_OPTIONS_OWN_H
#define ATTND_SERVICE_OPTIONS_OWN_H

#include "service/base/log.h"

#include <argp.h>

#define ATTND_LEVELS 4u
extern const char *const attnd_level_words[ATTND_LEVELS + 1]; /* ends with NULL */
extern const enum attnd_log_level attnd_level_numbers[ATTND_LEVELS];

/** attnd_options_own() - @state's input is a struct attnd_options; a wrong value is an
 * argp_error(). Return: 1 the option is one of these, and has been taken; 0 it is not. */
int attnd_options_own(struct argp_state *state, int key, char *text);

#endif

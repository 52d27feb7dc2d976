/*
 * quiet_loop.h - a loop without rings: nothing is swept, and nobody is told of its sleep.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_QUIET_LOOP_H
#define ATTND_TESTS_SUPPORT_HARNESS_QUIET_LOOP_H

#include "ipc/loop.h"

/** quiet_loop_new() - it does not spin. Return: as attnd_loop_new(). */
int quiet_loop_new(enum attnd_loop_kind kind, struct attnd_loop **out);

#endif

/*
 * armed.h - a crash point that waits until a test wants it: a file arms it, and goes when it fires.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_ARMED_H
#define ATTND_TESTS_SUPPORT_HARNESS_ARMED_H

/** armed_new() - the file's name, for ATTND_CRASH; there is none of that name. @what: in the name,
 * beside this process's number. Return: until the next call. */
const char *armed_new(const char *what);
/** armed_now() - from now on the point counts. */
void armed_now(void);
/** armed_fired() - has it been reached? For harness_eventually(). */
int armed_fired(void *context);

#endif

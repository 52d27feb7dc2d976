/*
 * ending.h - how a client's process and its connection ended.
 */
#ifndef ATTND_SERVICE_SESSION_ENDING_H
#define ATTND_SERVICE_SESSION_ENDING_H

#include "service/objects/client.h"

/**
 * attnd_ending_text() - "closed", "exited with status 1", "was killed by signal 9", or that its
 * process ended, where the kernel does not say how
 * @pidfd: -1 if there is none
 * Asks the kernel once. Return: @text.
 */
const char *attnd_ending_text(int pidfd, pid_t pid, char *text, size_t text_bytes);

/** attnd_ending_goes_on() - Return: 1: the process has begun to end, and may still have contexts on
 * the GPU, because @pidfd does not tell of its end yet. */
int attnd_ending_goes_on(int pidfd, pid_t pid);

#endif

/*
 * slow_file.h - files whose close() waits: what a hostile peer sends to make somebody else wait.
 */
#ifndef ATTND_TESTS_SUPPORT_HARNESS_SLOW_FILE_H
#define ATTND_TESTS_SUPPORT_HARNESS_SLOW_FILE_H

#define SLOW_LINGER_S 20

/** slow_lingering() - a TCP socket that lingers over unsent data for SLOW_LINGER_S
 * @listener: receives the other end's listening socket; closing it ends the wait
 * Return: the socket; -1 there is no network, not even to ourselves. */
int slow_lingering(int *listener);

/** slow_nested() - a unix socket in which such a socket travels. Return: as above. */
int slow_nested(int *listener);

/** slow_file() - a listening unix socket, with a connection that nobody accepted, in which such a
 * socket travels: no option of its own cuts the wait short. Return: as above. */
int slow_file(int *listener);

#endif

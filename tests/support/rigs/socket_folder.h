/* socket_folder.h - a folder of a test's own, for a socket. */
#ifndef ATTND_TESTS_SUPPORT_RIGS_SOCKET_FOLDER_H
#define ATTND_TESTS_SUPPORT_RIGS_SOCKET_FOLDER_H

extern char socket_folder[32];
extern char socket_path[64]; /* in it; nothing is there yet */

/** socket_folder_make(), socket_folder_remove() - setup and teardown of a test. The second fails if
 * anything but the socket was left. Return: 0; -1. */
int socket_folder_make(void **state);
int socket_folder_remove(void **state);

#endif

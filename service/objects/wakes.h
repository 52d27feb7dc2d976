/*
 * wakes.h - what wakes a client: a knock on its pipe, a reply on its socket, and its end.
 *
 * The kernel walks all that wait for a pipe or a socket within the call that wakes them, and its
 * owner decides how many they are. So these calls are measured. When those of a session have taken
 * long, a thread makes them (ipc/courier.h); when those of a user have, threads make all of that
 * user's, one a process.
 */
#ifndef ATTND_SERVICE_OBJECTS_WAKES_H
#define ATTND_SERVICE_OBJECTS_WAKES_H

#include "service/objects/client.h"

/** attnd_client_knock() - something was posted: wake it, if it sleeps. */
void attnd_client_knock(struct attnd_client *client);
/** attnd_client_send() - a reply. Return: as attnd_fdpass_send(); of a thread's, as
 * attnd_courier_send(). */
int attnd_client_send(struct attnd_client *client, const void *data, size_t bytes, const int *fds,
                      int fds_count);
/** attnd_client_hang_up() - its connection is shut down. Nothing is sent afterwards. */
void attnd_client_hang_up(struct attnd_client *client);

#endif

/*
 * session.h - the life of a client: a visitor, a session, an end in three steps.
 */
#ifndef ATTND_SERVICE_SESSION_SESSION_H
#define ATTND_SERVICE_SESSION_SESSION_H

#include "service/objects/client.h"

/** attnd_client_new() - a visitor on @socket, which it owns from now on.
 * Return: NULL if there are ATTND_VISITORS_MAX already, or no memory; then @socket is the caller's.
 */
struct attnd_client *attnd_client_new(struct attnd_service *service, int socket);

/** attnd_client_enroll() - a visitor becomes a session: gets a slot and an id.
 * Return: 0, or -ATTND_E_RANGE (field sessions) if all are taken, or all that one process or its
 * user may have.
 */
int attnd_client_enroll(struct attnd_client *client, struct attnd_fault *fault);

/** attnd_client_opened() - the handshake is done: drop its deadline. */
void attnd_client_opened(struct attnd_client *client);

/** attnd_client_watch_doorbell() - wake the loop when the client submits. Return: 0 or
 * -ATTND_E_NO_MEMORY. */
int attnd_client_watch_doorbell(struct attnd_client *client);

/** attnd_client_unwatch() - one of the client's watches, which is NULL from now on. The client is
 * not freed before the kernel has let go of what it watched. */
void attnd_client_unwatch(struct attnd_client *client, struct attnd_watch **watch);

/** attnd_client_end() - the peer is gone: drain, then free. Harmless on a dying one, which it no
 * longer lets wait for its process where the service stops. */
void attnd_client_end(struct attnd_client *client);

/** attnd_client_kill() - end a session that broke the protocol (logged with @why). Calls
 * attnd_sched_close(). Harmless on a dying one. */
void attnd_client_kill(struct attnd_client *client, const char *why);

/** attnd_client_drained() - the scheduler's event: nothing of a dying session is in flight. Its
 * plans, pools and memory go now, or when its process has ended, if that has begun; @client itself
 * stays valid until the sweep or loop callback that this happens in has returned. */
void attnd_client_drained(struct attnd_client *client);

/** attnd_client_reap() - free the drained ones that the kernel has let go of; after a sweep.
 * @all: every one, when the loop is gone. */
void attnd_client_reap(struct attnd_service *service, int all);

#endif

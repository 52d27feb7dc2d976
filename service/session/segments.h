/*
 * segments.h - what a session shares with its client: two segments, and how each side is woken.
 */
#ifndef ATTND_SERVICE_SESSION_SEGMENTS_H
#define ATTND_SERVICE_SESSION_SEGMENTS_H

#include "service/objects/client.h"

/** attnd_segments_new() - both segments and their doorbells, for client->ring_entries and
 * client->arena_bytes, which is rounded up to pages. After a failure attnd_segments_free() undoes
 * what was made. Return: 0; -ATTND_E_SYSTEM; -ATTND_E_NO_MEMORY. */
int attnd_segments_new(struct attnd_client *client, struct attnd_fault *fault);

/** attnd_segments_seal() - the client has mapped both: seal the submission segment, make the ring
 * ends, close what only the client needs. Return: 0; -ATTND_E_SYSTEM; -ATTND_E_PROTOCOL if its size
 * has changed. */
int attnd_segments_seal(struct attnd_client *client);

/** attnd_segments_free() - mappings and descriptors go. Harmless twice. */
void attnd_segments_free(struct attnd_client *client);

#endif

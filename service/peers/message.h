/*
 * message.h - a datagram of a link -> a PeerMessage, apart from the daemon so that it can be
 * fuzzed.
 */
#ifndef ATTND_SERVICE_PEERS_MESSAGE_H
#define ATTND_SERVICE_PEERS_MESSAGE_H

#include "ipc/admit_alloc.h"
#include "schemas/abi.h"
#include "schemas/errors.h"
#include "schemas/peer.pb-c.h"

/* What two services must agree on: the messages, and what they mean. */
#define ATTND_PEER_VERSION 1u

/* The largest honest grant fits when it is unpacked: a pool of ATTND_LAYERS_MAX layers, and 16384
 * pages. */
#define ATTND_PEER_DECODE_BYTES (1024u * 1024u)
/* Memories of a pool: each is a descriptor of the grant's datagram. */
#define ATTND_PEER_MEMORIES_MAX 8u

/**
 * attnd_peer_decode() - unpack one message, and look whether what it says is consistent with itself
 * @bytes: private memory, at most ATTND_DATAGRAM_BYTES_MAX; borrowed until the message is dropped
 * @alloc: bounded; the message lives in its buffer and is never freed by itself
 *
 * A grant that this lets pass has planes for each layer, in memories that it has, and pages within
 * the pool: whether these lie within their memories, the worker sees that copies them.
 * Return: 0; -ATTND_E_PROTOCOL it is none, or has fields that this version does not know, or
 * unpacks to more than @alloc has.
 */
int attnd_peer_decode(const void *bytes, size_t size_bytes, struct attnd_admit_alloc *alloc,
                      Attnd__PeerMessage **out);

#endif

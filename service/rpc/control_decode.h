/*
 * control_decode.h - a datagram -> a checked Request, apart from the daemon so that it can be
 * fuzzed.
 */
#ifndef ATTND_SERVICE_RPC_CONTROL_DECODE_H
#define ATTND_SERVICE_RPC_CONTROL_DECODE_H

#include "ipc/admit_alloc.h"
#include "schemas/attnd.pb-c.h"
#include "schemas/errors.h"

/* The largest honest request fits when it is unpacked: a pool of ATTND_LAYERS_MAX layers, 16384
 * pages to free. */
#define ATTND_CONTROL_DECODE_BYTES (1024u * 1024u)

/**
 * attnd_control_decode() - unpack one request
 * @bytes: private memory, at most ATTND_DATAGRAM_BYTES_MAX; borrowed until the request is dropped
 * @alloc: bounded; the request lives in its buffer and is never freed by itself
 * @out:   set on 0 and on -ATTND_E_UNSUPPORTED, so that the refusal can name the request's id
 *
 * Return: 0; -ATTND_E_UNSUPPORTED a call, or a field of it, that this version does not know;
 * -ATTND_E_PROTOCOL it is no Request, or unpacks to more than @alloc has.
 */
int attnd_control_decode(const void *bytes, size_t size_bytes, struct attnd_admit_alloc *alloc,
                         Attnd__Request **out);

#endif

/*
 * peers.h - what others need for the same, in the same run: programs beside this one that print
 * lines of "<name> <value>".
 */
#ifndef ATTND_BENCH_GPU_PEERS_H
#define ATTND_BENCH_GPU_PEERS_H

#include "bench/support/suite.h"

#include <stddef.h>
#include <sys/types.h>

/** gpu_peers_ask() - run a peer program and keep what it says; one that is not there says nothing.
 * @arguments: behind "<folder of this program>/", e.g. "peers.py measure" */
void gpu_peers_ask(const char *arguments);

/** gpu_peer() - Return: the last value said under @name, 0 if there is none. */
double gpu_peer(const char *name);

/** gpu_peer_forget() - nothing was said under @name, so far. */
void gpu_peer_forget(const char *name);

/** gpu_peer_us() - @peer's best time for @shape: of "<peer>_<shape>_us", its kernels called
 * natively, and "<peer>_python_<shape>_us", what its Python package makes of them. Return: it; 0
 * without one. */
double gpu_peer_us(const char *peer, const char *shape);

/** gpu_peers_hold() - start a process with a kernel that does not end. Return: its pid when the
 * kernel runs; 0 if that cannot be had. */
pid_t gpu_peers_hold(void);

#endif

/*
 * courier.h - knocks and datagrams for those whose wake-ups take long, on a thread of their
 * process'.
 *
 * The process that holds the other end of a pipe or a socket decides how many wait for it, and the
 * kernel walks all of them within the write that wakes them.
 */
#ifndef ATTND_IPC_COURIER_H
#define ATTND_IPC_COURIER_H

#include "schemas/errors.h"

#include <stddef.h>
#include <stdint.h>

struct attnd_courier_line; /* to one descriptor */

/** attnd_courier_new() - @fd is duplicated. Lines of one @owner (a pid) have one thread.
 * Return: NULL for lack of memory, descriptors or threads. */
struct attnd_courier_line *attnd_courier_new(uint32_t owner, int fd);

/** attnd_courier_knock() - one byte is written, as attnd_doorbell_ring() does for a pipe; knocks
 * that wait are one. Threads: one a line. Never blocks. */
void attnd_courier_knock(struct attnd_courier_line *line);

/**
 * attnd_courier_send() - one datagram with descriptors, behind those that wait
 * @fds: duplicated
 * A peer that takes none finds its connection shut down.
 * Return: 0; -ATTND_E_FULL: too much waits, or too many descriptors do; -ATTND_E_SYSTEM: no memory,
 * or no descriptor.
 */
int attnd_courier_send(struct attnd_courier_line *line, const void *data, size_t bytes,
                       const int *fds, int fds_count);

/** attnd_courier_end() - what waits is dropped; @hang_up: the connection is shut down, for a
 * socket. The line is freed when the thread is done with it. NULL is fine. */
void attnd_courier_end(struct attnd_courier_line *line, int hang_up);

#endif

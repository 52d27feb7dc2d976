/*
 * port.h - struct attnd_port over the rings of the queue segment: the worker's end.
 */
#ifndef ATTND_SERVICE_WORKER_PORT_H
#define ATTND_SERVICE_WORKER_PORT_H

#include "ipc/ring.h"
#include "ipc/wake.h"
#include "persistent/backend.h"

struct attnd_worker_port {
    struct attnd_port port; /* what the backend gets; context is this struct */
    struct attnd_queue_head *head;
    struct attnd_consumer commands;
    struct attnd_producer retires;
    struct attnd_doorbell daemon; /* woken after a retire */
    uint64_t spin_ns;             /* before a wait sleeps */
    uint32_t kicked;              /* a wait has to return */
    uint32_t asleep;              /* a wait is in the kernel, or about to be */
    uint32_t park_seen;
    uint32_t retired; /* retires so far, see port.c */
};

/**
 * attnd_worker_port_init()
 * @head:      the mapped queue segment, checked (attnd_worker_port_check()); borrowed for life
 * @retire_fd: eventfd that wakes the daemon; -1: futex on retire_tail
 */
void attnd_worker_port_init(struct attnd_worker_port *port, struct attnd_queue_head *head,
                            int retire_fd);

/** attnd_worker_port_check() - is this a queue segment of our version, and is all of it there?
 * Return: 0; -ATTND_E_VERSION; -ATTND_E_RANGE. */
int attnd_worker_port_check(const struct attnd_queue_head *head, uint64_t bytes);

/** attnd_worker_port_acquire() - what the backend did for retired runs comes before what the
 * calling thread does next. For memory that is unmapped: the daemon has seen those retires. */
void attnd_worker_port_acquire(const struct attnd_worker_port *port);

#endif

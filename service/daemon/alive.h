/*
 * alive.h - the service manager's watchdog is fed while the service gets on.
 */
#ifndef ATTND_SERVICE_DAEMON_ALIVE_H
#define ATTND_SERVICE_DAEMON_ALIVE_H

#include "service/service.h"

struct attnd_alive {
    struct attnd_service *service;
    struct attnd_watch *timer;
    uint64_t period_ns;
    uint32_t heartbeat, restarts; /* of the worker, when last looked at */
};

/**
 * attnd_alive_start() - send WATCHDOG=1 three times in $WATCHDOG_USEC while the worker moves
 *
 * A worker moves if its heartbeat has gone on since the last look, or if it has been started again.
 * The daemon's own loop has to turn for the look. Does nothing where no watchdog is asked for, or
 * for another process ($WATCHDOG_PID). Return: 0; -ATTND_E_NO_MEMORY.
 */
int attnd_alive_start(struct attnd_alive *alive, struct attnd_service *service);

/** attnd_alive_stop() - the loop still is. Harmless if it was not started. */
void attnd_alive_stop(struct attnd_alive *alive);

#endif

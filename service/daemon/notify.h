/*
 * notify.h - the service manager learns how far the daemon is.
 */
#ifndef ATTND_SERVICE_DAEMON_NOTIFY_H
#define ATTND_SERVICE_DAEMON_NOTIFY_H

/**
 * attnd_notify() - send @state ("READY=1", "STOPPING=1") to $NOTIFY_SOCKET
 * Does nothing where no service manager asked for it.
 * Return: 1 sent; 0 nobody asked; -ATTND_E_SYSTEM (errno says why).
 */
int attnd_notify(const char *state);

#endif

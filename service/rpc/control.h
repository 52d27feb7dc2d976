/*
 * control.h - the socket of an open or opening session: requests in, replies out.
 */
#ifndef ATTND_SERVICE_RPC_CONTROL_H
#define ATTND_SERVICE_RPC_CONTROL_H

#include "service/objects/client.h"

/** attnd_control_serve() - receive, serve and answer one datagram, if there is one. May end the
 * client. Return: 1: look again in a while, and not before; 0. */
int attnd_control_serve(struct attnd_client *client);

#endif

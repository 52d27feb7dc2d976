/*
 * control.h - the socket of an open or opening session: requests in, replies out.
 */
#ifndef ATTND_SERVICE_RPC_CONTROL_H
#define ATTND_SERVICE_RPC_CONTROL_H

#include "service/rpc/call.h"

#define ATTND_CONTROL_AGAIN 3 /* its turn has not come: ask again behind others */

/** attnd_control_serve() - receive, serve and answer one datagram, if there is one. May end the
 * client. Return: 0; ATTND_CONTROL_PAUSE; ATTND_CONTROL_AGAIN. */
int attnd_control_serve(struct attnd_client *client);

#endif

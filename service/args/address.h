/*
 * address.h - addresses of other hosts.
 */
#ifndef ATTND_SERVICE_ARGS_ADDRESS_H
#define ATTND_SERVICE_ARGS_ADDRESS_H

#include <sys/socket.h>

/**
 * attnd_address_parse() - "10.1.2.3:7200" or "[fe80::1]:7200": numbers, because a name may take
 * seconds to be found
 * Return: 0; -ATTND_E_INVALID.
 */
int attnd_address_parse(const char *text, struct sockaddr_storage *address, socklen_t *bytes);

#endif

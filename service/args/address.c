/*
 * address.c - see address.h.
 */
#include "service/args/address.h"

#include "schemas/errors.h"
#include "service/args/args.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

int attnd_address_parse(const char *text, struct sockaddr_storage *address, socklen_t *bytes)
{
    char host[64];
    uint64_t port;
    const char *colon = strrchr(text, ':');
    const int brackets = text[0] == '[';
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)address;

    if (!colon || attnd_number_parse(colon + 1, 1, UINT16_MAX, &port) < 0 ||
        (brackets && (colon == text || colon[-1] != ']')))
        return -ATTND_E_INVALID;
    const int length = (int)(colon - text) - (brackets ? 2 : 0);
    if (length < 1 || length >= (int)sizeof(host))
        return -ATTND_E_INVALID;
    snprintf(host, sizeof(host), "%.*s", length, text + brackets);
    memset(address, 0, sizeof(*address));
    if (brackets) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)port);
        *bytes = sizeof(*six);
        return inet_pton(AF_INET6, host, &six->sin6_addr) == 1 ? 0 : -ATTND_E_INVALID;
    }
    four->sin_family = AF_INET;
    four->sin_port = htons((uint16_t)port);
    *bytes = sizeof(*four);
    return inet_pton(AF_INET, host, &four->sin_addr) == 1 ? 0 : -ATTND_E_INVALID;
}

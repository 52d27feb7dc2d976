/*
 * reach_net.h - two network namespaces with a wire between them, a service in each, and a plain
 * socket that brings the same pieces.
 *
 * Root only. Namespaces end with the processes in them.
 */
#ifndef ATTND_BENCH_SUPPORT_REACH_NET_H
#define ATTND_BENCH_SUPPORT_REACH_NET_H

#include "bench/support/reach_pair.h"

struct reach_net {
    int here, there; /* pidfds of processes in the claimer's namespaces, and in the giver's */
    const char *giver, *claimer; /* sockets of the services */
    int plain;                   /* to the process that serves the plain socket; -1: none */
    uint8_t *from, *to;          /* [bytes] of the plain socket's ends; from is shared with it */
    uint64_t bytes;
};

/** reach_net_open() - Return: false after bench_suite_fail(). The caller's namespace is the
 * claimer's from now on. */
bool reach_net_open(struct bench_suite *suite, struct reach_net *net);
/** reach_net_plain() - the plain socket, over @bytes of memory on each side. */
bool reach_net_plain(struct bench_suite *suite, struct reach_net *net, uint64_t bytes);
/** reach_net_pull() - pieces from where @from says to where @to does, by writev and readv
 * @from, @to: [count] numbers of pieces. @ns: from the question to the last byte. */
bool reach_net_pull(struct bench_suite *suite, struct reach_net *net, const uint32_t *from,
                    const uint32_t *to, uint32_t count, uint32_t piece_bytes, uint64_t *ns);
void reach_net_plain_end(struct reach_net *net);

#endif

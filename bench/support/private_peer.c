/* private_peer.c - one more private service, which brings pages from the one before it. */
#include "bench/support/private_service.h"
#include "service/ctl/attnctl.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LINK_TIMEOUT_MS 10000

static bool is_linked(const char *path)
{
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__Reply *reply;
    bool linked;

    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    if (attnctl_ask(path, &request, &reply))
        return false;
    linked = reply->status && reply->status->n_peers == 1 &&
             strcmp(reply->status->peers[0]->state, "up") == 0;
    attnd__reply__free_unpacked(reply, NULL);
    return linked;
}

bool bench_private_linked(const char *claimer, char *why, size_t why_bytes)
{
    static const struct timespec period = {.tv_nsec = 5000000};

    for (int waited_ms = 0; waited_ms < LINK_TIMEOUT_MS; waited_ms += 5) {
        if (is_linked(claimer))
            return true;
        nanosleep(&period, NULL);
    }
    snprintf(why, why_bytes, "the services have not found each other after %d s",
             LINK_TIMEOUT_MS / 1000);
    return false;
}

const char *bench_private_peer(const char *attnd_path, const char *giver, char *why,
                               size_t why_bytes)
{
    char peer[128];
    const char *const arguments[] = {"--quiet", "--peer", peer, NULL};
    const char *path;

    snprintf(peer, sizeof(peer), "giver=%s", giver);
    path = bench_private_start(attnd_path, arguments, why, why_bytes);
    if (path && bench_private_linked(path, why, why_bytes))
        return path;
    bench_private_stop();
    return NULL;
}

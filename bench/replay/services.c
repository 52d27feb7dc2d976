/* services.c - the services of a replay: one that is there, one of its own, or two of its own of
 * which the second brings pages from the first. */
#include "bench/replay/replay.h"
#include "bench/support/private_service.h"
#include "service/ctl/attnctl.h"

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

static int await_link(const char *path, char *why, size_t why_bytes)
{
    static const struct timespec period = {.tv_nsec = 5000000};

    for (int waited_ms = 0; waited_ms < LINK_TIMEOUT_MS; waited_ms += 5) {
        if (is_linked(path))
            return 0;
        nanosleep(&period, NULL);
    }
    snprintf(why, why_bytes, "the services have not found each other after %d s",
             LINK_TIMEOUT_MS / 1000);
    return -1;
}

static int start_second(const struct replay_options *options,
                        const char *paths[REPLAY_SERVICES_MAX], char *why, size_t why_bytes)
{
    char peer[128];
    const char *const arguments[] = {"--quiet", "--peer", peer, NULL};

    snprintf(peer, sizeof(peer), "prefill=%s", paths[0]);
    paths[1] = bench_private_start(options->attnd_path, arguments, why, why_bytes);
    return paths[1] ? await_link(paths[1], why, why_bytes) : -1;
}

int replay_services_start(const struct replay_options *options,
                          const char *paths[REPLAY_SERVICES_MAX], char *why, size_t why_bytes)
{
    static const char *const arguments[] = {"--quiet", NULL};

    if (!options->spawn) {
        bench_private_guard(); /* engines are ended even so */
        paths[0] = options->socket_path;
        return 0;
    }
    paths[0] = bench_private_start(options->attnd_path, arguments, why, why_bytes);
    if (!paths[0])
        return -1;
    return options->services > 1 ? start_second(options, paths, why, why_bytes) : 0;
}

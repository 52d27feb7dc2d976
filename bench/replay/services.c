/* services.c - the services of a replay: one that is there, one of its own, or two of its own of
 * which the second brings pages from the first. */
#include "bench/replay/replay.h"
#include "bench/support/private_service.h"

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
    if (paths[0] && options->services > 1)
        paths[1] = bench_private_peer(options->attnd_path, paths[0], why, why_bytes);
    return paths[options->services - 1] ? 0 : -1;
}

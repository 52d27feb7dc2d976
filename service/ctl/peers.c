/*
 * peers.c - `attnctl peers`: the services that pages are brought from, and those that bring them.
 */
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>

static void print_peer(FILE *out, const Attnd__PeerStatus *peer)
{
    char bytes[24], rate[24];

    fprintf(out, "%s %s: %s, service %s", peer->claims ? "to  " : "from", peer->name, peer->state,
            peer->service ? peer->service : "not known");
    if (peer->address)
        fprintf(out, ", %s", peer->address);
    if (peer->up_ms)
        fprintf(out, ", linked for %.1f s", (double)peer->up_ms / 1e3);
    fprintf(out,
            "\n     under way %" PRIu32 " (%" PRIu32 " not granted yet), done %" PRIu64
            ", failed %" PRIu64 "; %" PRIu64 " pages, %s, the last at %s a second\n",
            peer->under_way, peer->waiting, peer->done, peer->failed, peer->pages,
            attnctl_bytes(peer->bytes, bytes, sizeof(bytes)),
            attnctl_bytes(peer->bytes_per_s, rate, sizeof(rate)));
    if (peer->last_end)
        fprintf(out, "     %" PRIu32 " links so far; the last trouble: %s\n", peer->links,
                peer->last_end);
}

void attnctl_print_peers(FILE *out, const Attnd__Status *status)
{
    if (status->n_peers == 0)
        fprintf(out, "no peers (attnd --peer)\n");
    for (size_t i = 0; i < status->n_peers; i++)
        print_peer(out, status->peers[i]);
}

/* Return: the caller's; NULL without memory. */
static json_t *peers_json(const Attnd__Status *status)
{
    json_t *list = json_array();

    for (size_t i = 0; list && i < status->n_peers; i++)
        if (json_array_append_new(list, attnd_json_message(&status->peers[i]->base)) < 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

enum attnctl_exit attnctl_peers(int argc, char **argv)
{
    static const char doc[] =
        "Show other services of this host: from which pages are brought (attnd --peer), and to "
        "which pages of this one are lent. A ticket begins with the service that it is of.";
    const struct attnctl_options options = attnctl_parse(argc, argv, "A list of JSON objects", doc);
    Attnd__Reply *reply;
    enum attnctl_exit code = attnctl_ask_status(options.socket_path, &reply);

    if (code != ATTNCTL_EXIT_OK)
        return code;
    if (!options.json)
        attnctl_print_peers(stdout, reply->status);
    else if (attnd_json_print(stdout, peers_json(reply->status), JSON_COMPACT) < 0)
        code = ATTNCTL_EXIT_ANSWER;
    attnd__reply__free_unpacked(reply, NULL);
    if (code == ATTNCTL_EXIT_OK && fflush(stdout) != 0)
        code = ATTNCTL_EXIT_ANSWER;
    return code;
}

/*
 * ping.c - `attnctl ping`: does the daemon answer, and does the worker move?
 *
 * The daemon is asked for its status and timed. The worker's heartbeat is a counter in the queue
 * segment that only a worker that moves counts up, four times a second; the status shows it. So the
 * status is asked again until the counter has changed.
 */
#include "schemas/clock.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <time.h>

#define HEARTBEAT_NS 3000000000u
static const struct timespec look_again = {.tv_nsec = 5000000};

static enum attnctl_exit ask(const char *socket_path, uint32_t *heartbeat, uint64_t *took_ns)
{
    Attnd__Reply *reply;
    const uint64_t begin_ns = attnd_clock_ns();
    enum attnctl_exit code = attnctl_ask_status(socket_path, &reply);

    *took_ns = attnd_clock_ns() - begin_ns;
    if (code != ATTNCTL_EXIT_OK)
        return code;
    *heartbeat = reply->status->worker_heartbeat;
    attnd__reply__free_unpacked(reply, NULL);
    return code;
}

/* *@beat_ns: until the heartbeat was seen; 0: it was not. */
static enum attnctl_exit await_beat(const char *socket_path, uint32_t heartbeat, uint64_t *beat_ns)
{
    const uint64_t begin_ns = attnd_clock_ns();
    uint64_t took_ns, waited_ns = 0;
    uint32_t now = heartbeat;
    enum attnctl_exit code = ATTNCTL_EXIT_OK;

    while (code == ATTNCTL_EXIT_OK && now == heartbeat && waited_ns < HEARTBEAT_NS) {
        nanosleep(&look_again, NULL);
        code = ask(socket_path, &now, &took_ns);
        waited_ns = attnd_clock_ns() - begin_ns;
    }
    *beat_ns = now != heartbeat ? waited_ns : 0;
    return code;
}

static int print(const struct attnctl_options *options, uint64_t took_ns, uint64_t beat_ns)
{
    char took[24], beat[24];

    if (options->json)
        return attnd_json_print(stdout,
                                json_pack("{so so}", "status_ns", attnd_json_count(took_ns),
                                          "heartbeat_ns",
                                          beat_ns ? attnd_json_count(beat_ns) : json_null()),
                                JSON_COMPACT);
    printf("status: answered in %s\n", attnctl_time_text(took_ns, took, sizeof(took)));
    if (beat_ns)
        printf("worker: moves, its heartbeat was seen within %s\n",
               attnctl_time_text(beat_ns, beat, sizeof(beat)));
    else
        printf("worker: did not move for %u s\n", HEARTBEAT_NS / 1000000000u);
    return 0;
}

enum attnctl_exit attnctl_ping(int argc, char **argv)
{
    static const char doc[] =
        "Time one status call, and wait for the worker's next heartbeat, four of which come "
        "in a second.\vThe exit code is 5 if the worker does not move for 3 s.";
    const struct attnctl_options options = attnctl_parse(argc, argv, "One JSON object", doc);
    uint64_t took_ns, beat_ns = 0;
    uint32_t heartbeat;

    enum attnctl_exit code = ask(options.socket_path, &heartbeat, &took_ns);
    if (code == ATTNCTL_EXIT_OK)
        code = await_beat(options.socket_path, heartbeat, &beat_ns);
    if (code != ATTNCTL_EXIT_OK)
        return code;
    if (print(&options, took_ns, beat_ns) < 0 || fflush(stdout) != 0)
        return ATTNCTL_EXIT_ANSWER;
    return beat_ns ? ATTNCTL_EXIT_OK : ATTNCTL_EXIT_UNWELL;
}

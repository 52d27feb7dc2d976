/*
 * latency.c - `attnctl latency`: how long runs took since the service began.
 *
 * Two times are told of all runs: the latency, which an engine waits for, and the duration, which
 * the worker needs. Between the two lies the queue. Of each session it is the latency.
 */
#include "service/base/histogram.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>

#define BAR_WIDTH 40

static const double parts[] = {0.5, 0.9, 0.99, 0.999};
static const char *const part_names[] = {"p50", "p90", "p99", "p99.9"};
#define PARTS_COUNT (sizeof(parts) / sizeof(parts[0]))

static uint64_t count_of(const Attnd__Histogram *histogram)
{
    uint64_t count = 0;
    for (size_t i = 0; histogram && i < histogram->n_counts; i++)
        count += histogram->counts[i];
    return count;
}

static void print_line(const char *name, const Attnd__Histogram *histogram)
{
    const uint64_t count = count_of(histogram);
    char text[24];

    printf("%-34.34s %12" PRIu64 " %10s", name, count,
           attnctl_time_text(count ? histogram->sum_ns / count : 0, text, sizeof(text)));
    for (size_t i = 0; i < PARTS_COUNT; i++)
        printf(" %10s",
               attnctl_time_text(histogram ? attnd_histogram_quantile_ns(
                                                 histogram->counts, histogram->n_counts, parts[i])
                                           : 0,
                                 text, sizeof(text)));
    putchar('\n');
}

static void print_bars(const Attnd__Histogram *histogram)
{
    static const char bar[] = "########################################";
    uint64_t most = 0;
    char text[24];

    for (size_t i = 0; i < histogram->n_counts; i++)
        most = histogram->counts[i] > most ? histogram->counts[i] : most;
    for (uint32_t i = 0; i < histogram->n_counts && i + 1 < ATTND_HISTOGRAM_BUCKETS; i++)
        if (histogram->counts[i])
            printf("  < %-10s %12" PRIu64 " %.*s\n",
                   attnctl_time_text(attnd_histogram_end_ns(i), text, sizeof(text)),
                   histogram->counts[i],
                   (int)((double)histogram->counts[i] / (double)most * BAR_WIDTH), bar);
    if (histogram->n_counts == ATTND_HISTOGRAM_BUCKETS)
        printf("  longer       %12" PRIu64 "\n", histogram->counts[ATTND_HISTOGRAM_BUCKETS - 1]);
}

static void print_text(const Attnd__Status *status)
{
    char name[64];

    printf("%-34s %12s %10s", "", "runs", "mean");
    for (size_t i = 0; i < PARTS_COUNT; i++)
        printf(" %10s", part_names[i]);
    putchar('\n');
    print_line("latency", status->latency);
    print_line("duration (worker)", status->duration);
    for (size_t i = 0; i < status->n_sessions; i++) {
        const Attnd__SessionStatus *session = status->sessions[i];
        snprintf(name, sizeof(name), "session %" PRIu32 " %s", session->session,
                 session->name ? session->name : "");
        print_line(name, session->latency);
    }
    if (count_of(status->latency)) {
        printf("\nlatency of all runs\n");
        print_bars(status->latency);
    }
}

static json_t *histogram_json(const Attnd__Histogram *histogram)
{
    json_t *buckets = json_array();

    for (uint32_t i = 0; buckets && histogram && i < histogram->n_counts; i++) {
        const uint64_t end_ns = attnd_histogram_end_ns(i);
        if (histogram->counts[i] &&
            json_array_append_new(
                buckets, json_pack("{so so}", "end_ns",
                                   end_ns == UINT64_MAX ? json_null() : attnd_json_count(end_ns),
                                   "count", attnd_json_count(histogram->counts[i]))) < 0) {
            json_decref(buckets);
            return NULL;
        }
    }
    json_t *object =
        json_pack("{so so so}", "count", attnd_json_count(count_of(histogram)), "sum_ns",
                  attnd_json_count(histogram ? histogram->sum_ns : 0), "buckets", buckets);
    for (size_t i = 0; object && i < PARTS_COUNT; i++)
        json_object_set_new(
            object, part_names[i],
            attnd_json_count(histogram ? attnd_histogram_quantile_ns(histogram->counts,
                                                                     histogram->n_counts, parts[i])
                                       : 0));
    return object;
}

static json_t *status_json(const Attnd__Status *status)
{
    json_t *sessions = json_array();

    for (size_t i = 0; sessions && i < status->n_sessions; i++) {
        const Attnd__SessionStatus *session = status->sessions[i];
        json_array_append_new(sessions,
                              json_pack("{sI so so}", "session", (json_int_t)session->session,
                                        "name", attnd_json_text(session->name ? session->name : ""),
                                        "latency", histogram_json(session->latency)));
    }
    return json_pack("{so so so}", "latency", histogram_json(status->latency), "duration",
                     histogram_json(status->duration), "sessions", sessions);
}

enum attnctl_exit attnctl_latency(int argc, char **argv)
{
    static const char doc[] =
        "Show how long submitted runs took since the service began.\vLatency is from taken "
        "out of a session's ring to done, duration from begun by the worker to done. A "
        "quantile is the end of its bucket, which is at most a quarter too long. Launched "
        "runs do not pass the daemon and are not in it.";
    const struct attnctl_options options =
        attnctl_parse(argc, argv, "One JSON object, with the histograms", doc);
    Attnd__Reply *reply;
    int rc = 0;

    enum attnctl_exit code = attnctl_ask_status(options.socket_path, &reply);
    if (code != ATTNCTL_EXIT_OK)
        return code;
    if (options.json)
        rc = attnd_json_print(stdout, status_json(reply->status), JSON_COMPACT);
    else
        print_text(reply->status);
    attnd__reply__free_unpacked(reply, NULL);
    return rc == 0 && fflush(stdout) == 0 ? ATTNCTL_EXIT_OK : ATTNCTL_EXIT_ANSWER;
}

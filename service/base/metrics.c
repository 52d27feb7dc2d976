/*
 * metrics.c - the text exposition format of Prometheus: a line of help and one of type for each
 * metric, then its samples.
 *
 * Samples of one metric stand together, so sessions are walked once for each of theirs. Histograms
 * are told at every fourth bucket, which are powers of two: as many lines as are of use. A session
 * may call itself what it likes, so its name is escaped.
 */
#include "service/base/metrics.h"

#include "schemas/errors.h"
#include "service/base/histogram.h"

#include <inttypes.h>
#include <stddef.h>

static void head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP attnd_%s %s\n# TYPE attnd_%s %s\n", name, help, name, type);
}

static void one(FILE *out, const char *name, const char *type, const char *help, double value)
{
    head(out, name, type, help);
    fprintf(out, "attnd_%s %.17g\n", name, value);
}

static void label(FILE *out, const char *text)
{
    for (; text && *text; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else
            fputc(*text, out);
    }
}

static void histogram(FILE *out, const char *name, const char *help,
                      const Attnd__Histogram *counted)
{
    const size_t buckets = counted ? counted->n_counts : 0;
    uint64_t seen = 0;

    head(out, name, "histogram", help);
    for (uint32_t i = 0; i + 1 < ATTND_HISTOGRAM_BUCKETS; i++) {
        seen += i < buckets ? counted->counts[i] : 0;
        if (i % 4 == 3)
            fprintf(out, "attnd_%s_bucket{le=\"%.9g\"} %" PRIu64 "\n", name,
                    (double)attnd_histogram_end_ns(i) / 1e9, seen);
    }
    seen += buckets == ATTND_HISTOGRAM_BUCKETS ? counted->counts[buckets - 1] : 0;
    fprintf(out, "attnd_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, seen);
    fprintf(out, "attnd_%s_sum %.9f\nattnd_%s_count %" PRIu64 "\n", name,
            counted ? (double)counted->sum_ns / 1e9 : 0.0, name, seen);
}

/* ---- the service ---- */

static void print_service(FILE *out, const Attnd__Status *status)
{
    head(out, "info", "gauge", "What the service is.");
    fputs("attnd_info{version=\"", out);
    label(out, status->version);
    fputs("\",backend=\"", out);
    label(out, status->backend);
    fputs("\",isa=\"", out);
    label(out, status->isa);
    fputs("\"} 1\n", out);
    one(out, "uptime_seconds", "gauge", "Since the daemon began.", (double)status->uptime_ms / 1e3);
    one(out, "worker_restarts_total", "counter", "Workers that ended and were replaced.",
        status->worker_restarts);
    one(out, "queue_runs", "gauge", "Runs that the worker has.", status->queue_runs);
    one(out, "queue_waiting", "gauge", "Lanes whose head waits.", status->queue_waiting);
    one(out, "runs_total", "counter", "Submitted runs that ended well.", (double)status->runs);
    one(out, "tiles_total", "counter", "Tiles of submitted runs and appends.",
        (double)status->tiles);
    one(out, "kv_read_bytes_total", "counter", "Keys and values that they read.",
        (double)status->kv_bytes);
    one(out, "kv_shared_bytes_total", "counter",
        "Keys and values that submitted runs did not read, because their requests share them.",
        (double)status->shared_bytes);
    one(out, "fused_runs_total", "counter",
        "Submitted runs with compute-bound and memory-bound tiles at once.",
        (double)status->fused_runs);
    one(out, "busy_seconds_total", "counter", "Time of tile workers.",
        (double)status->busy_ns / 1e9);
    one(out, "loop_pieces_total", "counter", "Pieces of work of the daemon's thread for clients.",
        (double)status->loop_pieces);
    one(out, "loop_pieces_over_total", "counter", "Of them, longer than their budget.",
        (double)status->loop_pieces_over);
    one(out, "loop_longest_seconds", "gauge", "The longest of them.",
        (double)status->loop_longest_ns / 1e9);
    one(out, "closing", "gauge", "Files and memory that were given back and are being closed.",
        (double)status->closing);
    one(out, "closing_bytes", "gauge", "What they hold.", (double)status->closing_bytes);
    one(out, "heap_bytes", "gauge", "Memory for plans.", (double)status->heap_bytes);
    one(out, "heap_used_bytes", "gauge", "Of it, used.", (double)status->heap_used_bytes);
    one(out, "host_memory_bytes", "gauge", "Host memory of all sessions.",
        (double)status->host_memory_bytes);
    one(out, "plans", "gauge", "Plans of all sessions.", status->plans);
    if (status->has_sms_resident)
        one(out, "sms_resident", "gauge", "SMs that the worker is resident on.",
            status->sms_resident);
    head(out, "faults_total", "counter", "Operations that ended with an error.");
    for (size_t i = 0; i < status->n_faults; i++)
        fprintf(out, "attnd_faults_total{code=\"%s\"} %" PRIu64 "\n",
                attnd_error_name((int)status->faults[i]->code), status->faults[i]->count);
    histogram(out, "run_latency_seconds", "Submitted runs, from taken out of the ring to done.",
              status->latency);
    histogram(out, "run_duration_seconds", "Submitted runs, from begun by the worker to done.",
              status->duration);
}

/* ---- sessions and pools ---- */

static double runs(const Attnd__SessionStatus *session)
{
    return (double)session->runs;
}

static double launches(const Attnd__SessionStatus *session)
{
    return (double)session->launches;
}

static double busy(const Attnd__SessionStatus *session)
{
    return (double)(session->busy_ns + session->launch_busy_ns) / 1e9;
}

static double faults(const Attnd__SessionStatus *session)
{
    return (double)session->faults + (double)session->launch_errors;
}

static double in_flight(const Attnd__SessionStatus *session)
{
    return session->in_flight;
}

static double oldest(const Attnd__SessionStatus *session)
{
    return (double)session->oldest_us / 1e6;
}

static double pages(const Attnd__SessionStatus *session)
{
    return (double)session->pages_leased;
}

static double shared(const Attnd__SessionStatus *session)
{
    return (double)session->shared_bytes;
}

static double memory(const Attnd__SessionStatus *session)
{
    return (double)session->memory_bytes;
}

static double loop(const Attnd__SessionStatus *session)
{
    return (double)session->loop_ns / 1e9;
}

static void print_sessions(FILE *out, const Attnd__Status *status)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const Attnd__SessionStatus *session);
    } metrics[] = {
        {"session_runs_total", "counter", "Submitted runs that ended well.", runs},
        {"session_launches_total", "counter", "Launched runs that were answered.", launches},
        {"session_busy_seconds_total", "counter", "Time of tile workers.", busy},
        {"session_kv_shared_bytes_total", "counter",
         "Keys and values not read, because requests share them.", shared},
        {"session_loop_seconds_total", "counter", "Time of the daemon's thread.", loop},
        {"session_faults_total", "counter", "Operations that ended with an error.", faults},
        {"session_in_flight", "gauge", "Operations accepted and not completed.", in_flight},
        {"session_oldest_seconds", "gauge", "Age of the oldest one.", oldest},
        {"session_pages_leased", "gauge", "Leases of pages.", pages},
        {"session_memory_bytes", "gauge", "Memory on the host and on the GPU.", memory},
    };

    one(out, "sessions", "gauge", "Sessions that are open.", (double)status->n_sessions);
    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        head(out, metrics[m].name, metrics[m].type, metrics[m].help);
        for (size_t i = 0; i < status->n_sessions; i++) {
            fprintf(out, "attnd_%s{session=\"%" PRIu32 "\",name=\"", metrics[m].name,
                    status->sessions[i]->session);
            label(out, status->sessions[i]->name);
            fprintf(out, "\"} %.17g\n", metrics[m].value(status->sessions[i]));
        }
    }
}

static void print_pools(FILE *out, const Attnd__Status *status)
{
    head(out, "pool_pages", "gauge", "Pages of a pool.");
    for (size_t i = 0; i < status->n_pools; i++)
        fprintf(out, "attnd_pool_pages{pool=\"%" PRIu32 "\"} %" PRIu32 "\n", status->pools[i]->pool,
                status->pools[i]->pages);
    head(out, "pool_pages_leased", "gauge", "Pages with at least one lease.");
    for (size_t i = 0; i < status->n_pools; i++)
        fprintf(out, "attnd_pool_pages_leased{pool=\"%" PRIu32 "\"} %" PRIu32 "\n",
                status->pools[i]->pool, status->pools[i]->pages_leased);
}

static void print_host_cache(FILE *out, const Attnd__HostCache *cache)
{
    one(out, "host_cache_bytes", "gauge", "Host memory made below prefix trees.",
        (double)cache->made_bytes);
    one(out, "host_cache_used_bytes", "gauge", "Of it, with pages in it.",
        (double)cache->used_bytes);
    one(out, "host_cache_out_blocks_total", "counter", "Evicted blocks that were copied there.",
        (double)cache->out_blocks);
    one(out, "host_cache_in_blocks_total", "counter", "Blocks that were brought back.",
        (double)cache->in_blocks);
    one(out, "host_cache_recalled_blocks_total", "counter",
        "Blocks that were found before they had left.", (double)cache->recalled_blocks);
    one(out, "host_cache_lost_blocks_total", "counter",
        "Blocks that were to be copied and were not.", (double)cache->lost_blocks);
    one(out, "host_cache_declined_blocks_total", "counter",
        "Blocks that are sooner computed than brought back.", (double)cache->declined_blocks);
    one(out, "host_cache_evicted_blocks_total", "counter", "Blocks that others took the place of.",
        (double)cache->evicted_blocks);
}

static double peer_up(const Attnd__PeerStatus *peer)
{
    return peer->up_ms > 0;
}

static double peer_under_way(const Attnd__PeerStatus *peer)
{
    return peer->under_way;
}

static double peer_done(const Attnd__PeerStatus *peer)
{
    return (double)peer->done;
}

static double peer_failed(const Attnd__PeerStatus *peer)
{
    return (double)peer->failed;
}

static double peer_bytes(const Attnd__PeerStatus *peer)
{
    return (double)peer->bytes;
}

/* Those that this service claims from: those that claim here come and go. */
static void print_peers(FILE *out, const Attnd__Status *status)
{
    static const struct {
        const char *name, *type, *help;
        double (*value)(const Attnd__PeerStatus *peer);
    } metrics[] = {
        {"peer_up", "gauge", "1 if there is a link to another service.", peer_up},
        {"peer_transfers", "gauge", "Tickets of it whose pages are being brought.", peer_under_way},
        {"peer_transfers_done_total", "counter", "Those that were brought.", peer_done},
        {"peer_transfers_failed_total", "counter", "Those that were not.", peer_failed},
        {"peer_bytes_total", "counter", "Keys and values brought.", peer_bytes},
    };

    for (size_t m = 0; m < sizeof(metrics) / sizeof(metrics[0]); m++) {
        head(out, metrics[m].name, metrics[m].type, metrics[m].help);
        for (size_t i = 0; i < status->n_peers; i++) {
            if (status->peers[i]->claims)
                continue;
            fprintf(out, "attnd_%s{peer=\"", metrics[m].name);
            label(out, status->peers[i]->name);
            fprintf(out, "\"} %.17g\n", metrics[m].value(status->peers[i]));
        }
    }
}

void attnd_metrics_print(FILE *out, const Attnd__Status *status)
{
    print_service(out, status);
    print_sessions(out, status);
    print_pools(out, status);
    if (status->host_cache)
        print_host_cache(out, status->host_cache);
    if (status->n_peers)
        print_peers(out, status);
}

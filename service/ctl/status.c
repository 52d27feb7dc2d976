/*
 * status.c - `attnctl status`.
 */
#include "service/base/switch_cost.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>
#include <string.h>

static const char *or_dash(const char *text)
{
    return text && text[0] ? text : "-";
}

static void print_service(FILE *out, const Attnd__Status *status)
{
    char used[24], all[24], read[24], gpu[24], turns[ATTND_SWITCH_COST_BYTES];

    fprintf(out, "attnd %s, up %" PRIu64 ".%03" PRIu64 " s\n", or_dash(status->version),
            status->uptime_ms / 1000, status->uptime_ms % 1000);
    fprintf(out, "loop     %s", or_dash(status->loop));
    if (status->loop_reason && status->loop_reason[0])
        fprintf(out, " (%s)", status->loop_reason);
    fprintf(out,
            "\nworker   pid %" PRIu32 " %s, backend %s, isa %s, %" PRIu32 " tile workers, %" PRIu32
            " restarts\n",
            status->worker_pid, or_dash(status->worker_state), or_dash(status->backend),
            or_dash(status->isa), status->tile_workers, status->worker_restarts);
    if (status->worker_last_end)
        fprintf(out, "         the one before %s\n", status->worker_last_end);
    if (status->residency)
        fprintf(out, "gpu      number %" PRIu32 ", %s: %" PRIu32 " of %" PRIu32 " SMs, %s MPS\n",
                status->device, status->residency, status->sms_resident, status->sms,
                status->mps ? "under" : "no");
    if (status->has_switch_cost_us)
        fprintf(out, "         %s\n",
                attnd_switch_cost_text(status->switch_cost_us, turns, sizeof(turns)));
    if (status->rates)
        fprintf(out,
                "rates    %s: a tile worker %" PRIu32 " GFLOP/s, %" PRIu32 " GB/s of the memory, "
                "%" PRIu32 " of the L2; all %" PRIu32 " GB/s of the memory\n",
                status->rates, status->worker_gflops, status->worker_gbps, status->worker_l2_gbps,
                status->memory_gbps);
    fprintf(out, "queue    %" PRIu32 " runs with the worker, %" PRIu32 " waiting\n",
            status->queue_runs, status->queue_waiting);
    fprintf(out, "heap     %s of %s, %" PRIu32 " plans\n",
            attnctl_bytes(status->heap_used_bytes, used, sizeof(used)),
            attnctl_bytes(status->heap_bytes, all, sizeof(all)), status->plans);
    if (status->has_host_memory_bytes)
        fprintf(out, "memory   %s of %s on the host, a session up to %s%s%s\n",
                attnctl_bytes(status->host_memory_bytes, used, sizeof(used)),
                attnctl_bytes(status->host_memory_max_bytes, all, sizeof(all)),
                attnctl_bytes(status->memory_max_bytes, read, sizeof(read)),
                status->has_device_memory_max_bytes ? ", and of the GPU's up to " : "",
                status->has_device_memory_max_bytes
                    ? attnctl_bytes(status->device_memory_max_bytes, gpu, sizeof(gpu))
                    : "");
    fprintf(out,
            "done     %" PRIu64 " runs, %" PRIu64
            " tiles, %s of KV read, %s saved by sharing, %.3f s "
            "busy\n",
            status->runs, status->tiles, attnctl_bytes(status->kv_bytes, read, sizeof(read)),
            attnctl_bytes(status->shared_bytes, used, sizeof(used)), (double)status->busy_ns / 1e9);
    if (status->twin_runs)
        fprintf(out,
                "         %" PRIu64
                " of this worker's runs shared the L2 with another session's run "
                "of the same pages\n",
                status->twin_runs);
}

/* Values that somebody has chosen. */
static void print_settings(FILE *out, const Attnd__Status *status)
{
    const char *before = "options  ";

    for (size_t i = 0; i < status->n_settings; i++) {
        const Attnd__Setting *setting = status->settings[i];
        if (strcmp(setting->origin, "default") == 0)
            continue;
        fprintf(out, "%s%s = %s (%s)", before, setting->name, setting->value, setting->origin);
        before = ", ";
    }
    if (before[0] == ',')
        fputc('\n', out);
}

static const char *amount(const Attnd__QuotaStatus *quota, uint64_t value, char *text, size_t bytes)
{
    if (quota->bytes)
        return attnctl_bytes(value, text, bytes);
    snprintf(text, bytes, "%" PRIu64, value);
    return text;
}

/* Things that are counted, where there is any of them. */
static void print_quotas(FILE *out, const Attnd__Status *status)
{
    char text[5][24];
    int printed = 0;

    for (size_t i = 0; i < status->n_quotas; i++) {
        const Attnd__QuotaStatus *quota = status->quotas[i];
        if (!quota->used)
            continue;
        if (!printed++)
            fprintf(out, "\n%-14s %10s %12s %12s %12s %12s\n", "counted", "used", "of", "a user",
                    "a process", "a session");
        fprintf(out, "%-14s %10s %12s %12s %12s %12s\n", quota->name,
                amount(quota, quota->used, text[0], sizeof(text[0])),
                amount(quota, quota->limit, text[1], sizeof(text[1])),
                amount(quota, quota->user_limit, text[2], sizeof(text[2])),
                amount(quota, quota->process_limit, text[3], sizeof(text[3])),
                amount(quota, quota->session_limit, text[4], sizeof(text[4])));
    }
}

/* Of all that is counted, what the session has most of, measured by its limit. */
static const char *most_used(const Attnd__Status *status, const Attnd__SessionStatus *session,
                             char *text, size_t bytes)
{
    double most = 0;

    snprintf(text, bytes, "-");
    for (size_t i = 0; i < session->n_quota_used && i < status->n_quotas; i++) {
        const Attnd__QuotaStatus *quota = status->quotas[i];
        const double part = quota->session_limit
                                ? (double)session->quota_used[i] / (double)quota->session_limit
                                : 0;
        if (part <= most || strcmp(quota->name, "sessions") == 0)
            continue;
        most = part;
        snprintf(text, bytes, "%.0f %% of %s", 100 * part, quota->name);
    }
    return text;
}

static void print_sessions(FILE *out, const Attnd__Status *status)
{
    char memory[24], most[48];

    fprintf(out, "\n%7s %7s %-16s %5s %9s %9s %9s %6s %6s %6s %10s  %s\n", "session", "pid", "name",
            "plans", "in flight", "runs", "appends", "busy s", "share", "weight", "memory",
            "most used");
    for (size_t i = 0; i < status->n_sessions; i++) {
        const Attnd__SessionStatus *session = status->sessions[i];
        fprintf(out,
                "%7" PRIu32 " %7" PRIu32 " %-16s %5" PRIu32 " %9" PRIu32 " %9" PRIu64 " %9" PRIu64
                " %6.2f %5.1f%% %6" PRIu32 " %10s  %s%s\n",
                session->session, session->pid, or_dash(session->name), session->plans,
                session->in_flight, session->runs, session->appends, (double)session->busy_ns / 1e9,
                100.0 * session->share, session->has_weight ? session->weight : 1,
                attnctl_bytes(session->memory_bytes, memory, sizeof(memory)),
                most_used(status, session, most, sizeof(most)), session->dying ? " (ending)" : "");
    }
}

/* Sessions with a mailbox: what is prepared, and how launches of it went. */
static void print_streams(FILE *out, const Attnd__Status *status)
{
    int printed = 0;

    for (size_t i = 0; i < status->n_sessions; i++) {
        const Attnd__SessionStatus *session = status->sessions[i];
        if (!session->has_prepared)
            continue;
        if (!printed++)
            fprintf(out, "\n%7s %8s %10s %9s %9s  %-9s %s\n", "session", "prepared", "launched",
                    "busy s", "errors", "executor", "why, and the last error");
        fprintf(out, "%7" PRIu32 " %8" PRIu32 " %10" PRIu64 " %9.2f %9" PRIu32 "  %-9s %s",
                session->session, session->prepared, session->launches,
                (double)session->launch_busy_ns / 1e9, session->launch_errors,
                or_dash(session->executor), or_dash(session->executor_why));
        if (session->has_launch_error)
            fprintf(out, "; %s on lane %" PRIu32, attnd_error_name((int)session->launch_error),
                    session->launch_error_lane);
        fputc('\n', out);
    }
}

static void print_pools(FILE *out, const Attnd__Status *status)
{
    char memory[24];

    fprintf(out, "\n%7s %6s %9s %9s %9s %9s %8s %10s\n", "pool", "layers", "page size", "pages",
            "leased", "cached", "attached", "memory");
    for (size_t i = 0; i < status->n_pools; i++) {
        const Attnd__PoolStatus *pool = status->pools[i];
        fprintf(out,
                "%7" PRIu32 " %6" PRIu32 " %9" PRIu32 " %9" PRIu32 " %9" PRIu32 " %9" PRIu32
                " %8" PRIu32 " %10s\n",
                pool->pool, pool->layers, pool->page_size, pool->pages, pool->pages_leased,
                pool->pages_cached, pool->attached,
                attnctl_bytes(pool->memory_bytes, memory, sizeof(memory)));
    }
}

static void print_host_cache(FILE *out, const Attnd__HostCache *cache)
{
    char used[24], made[24], most[24];

    fprintf(out,
            "host cache  %s used of %s pinned, at most %s; %" PRIu64 " blocks went there, %" PRIu64
            " came back\n",
            attnctl_bytes(cache->used_bytes, used, sizeof(used)),
            attnctl_bytes(cache->made_bytes, made, sizeof(made)),
            attnctl_bytes(cache->max_bytes, most, sizeof(most)), cache->out_blocks,
            cache->in_blocks);
}

void attnctl_print_status(FILE *out, const Attnd__Status *status)
{
    print_service(out, status);
    print_settings(out, status);
    if (status->n_sessions)
        print_sessions(out, status);
    print_streams(out, status);
    if (status->n_pools)
        print_pools(out, status);
    if (status->host_cache)
        print_host_cache(out, status->host_cache);
    print_quotas(out, status);
}

enum attnctl_exit attnctl_status(int argc, char **argv)
{
    static const char doc[] = "Show what the service is, and what its sessions and pools do.";
    const struct attnctl_options options =
        attnctl_parse(argc, argv, "One JSON object with every field", doc);
    Attnd__Reply *reply;

    enum attnctl_exit code = attnctl_ask_status(options.socket_path, &reply);
    if (code != ATTNCTL_EXIT_OK)
        return code;
    int rc = 0;
    if (options.json)
        rc = attnd_json_print(stdout, attnd_json_message(&reply->status->base), JSON_COMPACT);
    else
        attnctl_print_status(stdout, reply->status);
    attnd__reply__free_unpacked(reply, NULL);
    return rc == 0 && fflush(stdout) == 0 ? ATTNCTL_EXIT_OK : ATTNCTL_EXIT_ANSWER;
}

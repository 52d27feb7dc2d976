/*
 * top_rows.c - differences of counters, over the service's own clock.
 *
 * Every counter only grows while the service lives, so a smaller one means another service. A
 * session that was not there before began at zero.
 */
#include "service/ctl/top_rows.h"

#include "service/base/histogram.h"
#include "service/ctl/attnctl.h"
#include "service/ctl/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const Attnd__SessionStatus *session_of(const Attnd__Status *status, uint32_t session)
{
    for (size_t i = 0; status && i < status->n_sessions; i++)
        if (status->sessions[i]->session == session)
            return status->sessions[i];
    return NULL;
}

static uint64_t since(uint64_t before, uint64_t now)
{
    return now > before ? now - before : 0;
}

static uint64_t busy_ns(const Attnd__SessionStatus *session)
{
    return session ? session->busy_ns + session->launch_busy_ns : 0;
}

static uint64_t runs(const Attnd__SessionStatus *session)
{
    return session ? session->runs + session->launches : 0;
}

static void fill_latency(struct attnctl_row *row, const Attnd__Histogram *before,
                         const Attnd__Histogram *now)
{
    uint64_t counts[ATTND_HISTOGRAM_BUCKETS] = {0};

    for (size_t i = 0; now && i < now->n_counts && i < ATTND_HISTOGRAM_BUCKETS; i++)
        counts[i] = since(before && i < before->n_counts ? before->counts[i] : 0, now->counts[i]);
    row->p50_ns = attnd_histogram_quantile_ns(counts, ATTND_HISTOGRAM_BUCKETS, 0.5);
    row->p99_ns = attnd_histogram_quantile_ns(counts, ATTND_HISTOGRAM_BUCKETS, 0.99);
}

static void fill_row(struct attnctl_row *row, const Attnd__SessionStatus *before,
                     const Attnd__SessionStatus *now, double seconds)
{
    *row = (struct attnctl_row){.session = now->session,
                                .pid = now->pid,
                                .in_flight = now->in_flight,
                                .dying = (uint32_t)now->dying,
                                .name = now->name && now->name[0] ? now->name : "-",
                                .oldest_us = now->oldest_us,
                                .pages = now->pages_leased,
                                .memory_bytes = now->memory_bytes};
    if (seconds > 0) {
        row->runs_per_s = (double)since(runs(before), runs(now)) / seconds;
        row->loop = (double)since(before ? before->loop_ns : 0, now->loop_ns) / 1e9 / seconds;
        row->faults_per_s = (double)since(before ? before->faults : 0, now->faults) / seconds;
    }
    row->share = (double)since(busy_ns(before), busy_ns(now));
    fill_latency(row, before ? before->latency : NULL, now->latency);
}

static uint64_t user_loop_ns(const Attnd__Status *status, uint32_t uid)
{
    for (size_t i = 0; status && i < status->n_users; i++)
        if (status->users[i]->uid == uid)
            return status->users[i]->loop_ns;
    return 0;
}

static void fill_users(struct attnctl_top *top, const Attnd__Status *before)
{
    const Attnd__Status *now = top->now;

    top->users_count = 0;
    for (size_t i = 0; i < now->n_users && top->users_count < ATTNCTL_USERS_MAX; i++) {
        const uint32_t uid = now->users[i]->uid;
        const uint64_t spent_ns = since(user_loop_ns(before, uid), now->users[i]->loop_ns);
        top->users[top->users_count++] = (struct attnctl_user){
            .uid = uid, .loop = top->seconds > 0 ? (double)spent_ns / 1e9 / top->seconds : 0};
    }
}

static int larger_share_first(const void *one, const void *other)
{
    const struct attnctl_row *a = one, *b = other;

    if (a->share != b->share)
        return a->share < b->share ? 1 : -1;
    return a->session < b->session ? -1 : 1;
}

void attnctl_top_compare(const Attnd__Status *before, const Attnd__Status *now,
                         struct attnctl_top *top)
{
    double all = 0;

    if (before && before->uptime_ms > now->uptime_ms)
        before = NULL;
    top->now = now;
    top->seconds =
        before ? (double)since(before->time_ns, now->time_ns) / 1e9 : (double)now->uptime_ms / 1e3;
    top->count = 0;
    for (size_t i = 0; i < now->n_sessions && top->count < ATTNCTL_ROWS_MAX; i++) {
        struct attnctl_row *row = &top->rows[top->count++];
        fill_row(row, session_of(before, now->sessions[i]->session), now->sessions[i],
                 top->seconds);
        all += row->share;
    }
    for (uint32_t i = 0; i < top->count; i++)
        top->rows[i].share = all > 0 ? top->rows[i].share / all : 0;
    fill_users(top, before);
    qsort(top->rows, top->count, sizeof(top->rows[0]), larger_share_first);
}

void attnctl_top_print(FILE *out, const struct attnctl_top *top)
{
    const Attnd__Status *now = top->now;
    char age[24], p50[24], p99[24], memory[24];

    fprintf(out,
            "attnd %s, worker %s, %" PRIu32 " restarts; queue: %" PRIu32
            " with the worker, %" PRIu32 " waiting",
            now->version ? now->version : "-", now->worker_state ? now->worker_state : "-",
            now->worker_restarts, now->queue_runs, now->queue_waiting);
    if (now->has_sms_resident)
        fprintf(out, "; %" PRIu32 " of %" PRIu32 " SMs", now->sms_resident, now->sms);
    fprintf(out, "\n%7s %7s %-16s %8s %6s %6s %9s %8s %8s %8s %8s %8s %9s\n", "session", "pid",
            "name", "runs/s", "share", "loop", "in flight", "oldest", "p50", "p99", "faults/s",
            "pages", "memory");
    for (uint32_t i = 0; i < top->count; i++) {
        const struct attnctl_row *row = &top->rows[i];
        fprintf(out,
                "%7" PRIu32 " %7" PRIu32 " %-16.16s %8.1f %5.1f%% %5.1f%% %9" PRIu32
                " %8s %8s %8s %8.1f %8" PRIu64 " %9s%s\n",
                row->session, row->pid, row->name, row->runs_per_s, 100.0 * row->share,
                100.0 * row->loop, row->in_flight,
                attnctl_time_text(row->oldest_us * 1000, age, sizeof(age)),
                attnctl_time_text(row->p50_ns, p50, sizeof(p50)),
                attnctl_time_text(row->p99_ns, p99, sizeof(p99)), row->faults_per_s, row->pages,
                attnctl_bytes(row->memory_bytes, memory, sizeof(memory)),
                row->dying ? " (ending)" : "");
    }
    for (uint32_t i = 0; i < top->users_count && top->users_count > 1; i++)
        fprintf(out, "user %-26" PRIu32 " %8s %6s %5.1f%%\n", top->users[i].uid, "", "",
                100.0 * top->users[i].loop);
}

static json_t *row_json(const struct attnctl_row *row)
{
    return json_pack("{sI sI so sI so so so so so so so so so sb}", "session",
                     (json_int_t)row->session, "pid", (json_int_t)row->pid, "name",
                     attnd_json_text(row->name), "in_flight", (json_int_t)row->in_flight,
                     "runs_per_s", attnd_json_real(row->runs_per_s), "faults_per_s",
                     attnd_json_real(row->faults_per_s), "share", attnd_json_real(row->share),
                     "loop", attnd_json_real(row->loop), "p50_ns", attnd_json_count(row->p50_ns),
                     "p99_ns", attnd_json_count(row->p99_ns), "oldest_us",
                     attnd_json_count(row->oldest_us), "pages_leased", attnd_json_count(row->pages),
                     "memory_bytes", attnd_json_count(row->memory_bytes), "dying", (int)row->dying);
}

static json_t *users_json(const struct attnctl_top *top)
{
    json_t *users = json_array();

    for (uint32_t i = 0; users && i < top->users_count; i++)
        (void)json_array_append_new(users,
                                    json_pack("{sI so}", "uid", (json_int_t)top->users[i].uid,
                                              "loop", attnd_json_real(top->users[i].loop)));
    return users;
}

json_t *attnctl_top_json(const struct attnctl_top *top)
{
    const Attnd__Status *now = top->now;
    json_t *rows = json_array();

    for (uint32_t i = 0; rows && i < top->count; i++)
        if (json_array_append_new(rows, row_json(&top->rows[i])) < 0) {
            json_decref(rows);
            return NULL;
        }
    return json_pack("{so sI sI sI sI sI so so}", "seconds", attnd_json_real(top->seconds),
                     "queue_runs", (json_int_t)now->queue_runs, "queue_waiting",
                     (json_int_t)now->queue_waiting, "worker_restarts",
                     (json_int_t)now->worker_restarts, "sms", (json_int_t)now->sms, "sms_resident",
                     (json_int_t)now->sms_resident, "sessions", rows, "users", users_json(top));
}
